"""`json_equal`, `json_subset`, `json_schema`: values, not texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from evaluator.batch.records import Score
from evaluator.batch.scorers.comparing import Rules, difference
from evaluator.batch.scorers.contract import NO_TARGET, Scored, yes_or_no
from evaluator.batch.scorers.reading import OfResult
from evaluator.binding.types import describe as type_of
from evaluator.errors import UsageError
from evaluator.output import parse_output
from evaluator.output.schema import BadSchema, Schema, SlowPattern, compile_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfValue(OfResult):
    def json(self, scored: Scored) -> tuple[Any, str | None]:
        """The value that is judged, and why there is none: parsed content, else what can be read out of the text."""
        if self.of is not None:
            return self.value(scored), None
        parsed = scored.outcome.parsed_content
        if parsed is not None:
            return parsed, None
        read = parse_output(scored.outcome.content, "json", "any")
        if read.error is not None:
            return None, f"no JSON in the answer: {read.error}"
        if read.value is None and not scored.outcome.content.strip().endswith("null"):
            return None, "no JSON in the answer"
        return read.value, None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparing(_OfValue):
    ignore_order: bool = False
    abs_tol: float = 0.0
    rel_tol: float = 0.0
    subset: ClassVar[bool] = False

    def check(self) -> None:
        if self.abs_tol < 0 or self.rel_tol < 0:
            raise UsageError(f"{self.type}: a tolerance is 0 or more")

    async def score(self, scored: Scored) -> Score:
        target = scored.sample.target
        if target is None:
            return NO_TARGET
        value, problem = self.json(scored)
        if problem is None:
            expected = target if isinstance(value, str) else _read(target)
            problem = difference(expected, value, Rules(self.ignore_order, self.abs_tol, self.rel_tol, self.subset))
            if problem is not None and isinstance(expected, str) and not isinstance(value, str):
                problem += "; the target is a text, and no JSON object or array can be read from it"
        return yes_or_no(problem is None, explanation=problem or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonEqual(_Comparing):
    """The value is the target: 1 is 1.0, the order of keys does not count, nor that of arrays with `ignore_order`.
    `abs_tol` and `rel_tol` are for every number in it. The explanation is the first difference, with its path.

    A target that is a text is read as JSON where it is that of an object or array, unless the value is a text too: the
    cells of a CSV file are nothing but texts."""

    type: ClassVar[str] = "json_equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSubset(_Comparing):
    """As `json_equal`, and objects may have further keys; with `ignore_order` arrays may have further items."""

    type: ClassVar[str] = "json_subset"
    subset: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSchema(_OfValue):
    """The value keeps to `schema`: a JSON Schema, a `.json` file, a type such as `string[]`, or `module:Model`; without
    one, the target is the schema, or a text that is its JSON. The explanation is the first violation, with its path; a
    pattern that takes too long is an error."""

    type: ClassVar[str] = "json_schema"
    schema: Mapping[str, Any] | str | None = None

    def check(self) -> None:
        if self.schema is not None:
            _compiled(self.schema)

    def describe(self) -> dict[str, Any]:
        described = OfResult.describe(self)
        guide = None if self.schema is None else _compiled(self.schema).guide
        return described if guide is None else {**described, "schema": guide.root}

    async def score(self, scored: Scored) -> Score:
        declared = _read(scored.sample.target) if self.schema is None else self.schema
        if declared is None:
            return NO_TARGET
        if self.schema is None and not isinstance(declared, Mapping):
            kind = "a text" if isinstance(declared, str) else type_of(declared)
            raise UsageError(f"the target is {kind} and no JSON Schema, which is an object")
        value, problem = self.json(scored)
        if problem is None:
            violation = _compiled(declared).check(value)
            if isinstance(violation, SlowPattern) or (violation is not None and violation.kind == "bad_schema"):
                raise UsageError(str(violation))
            problem = None if violation is None else str(violation)
        return yes_or_no(problem is None, explanation=problem or "")


def _read(target: Any) -> Any:
    """The object or array that a text is the JSON of, as a cell of a CSV file is; all else as it is."""
    if not isinstance(target, str) or not target.lstrip().startswith(("{", "[")):
        return target
    try:
        return json.loads(target)
    except (ValueError, RecursionError):
        return target


def _compiled(declared: Any) -> Schema:
    """Raises: UsageError."""
    try:
        schema = compile_schema(dict(declared) if isinstance(declared, Mapping) else declared)
    except BadSchema as error:
        raise UsageError(f"json_schema: {error}") from error
    if schema is None:
        raise UsageError(f"json_schema: {declared!r} lets everything pass")
    return schema
