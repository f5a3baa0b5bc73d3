"""Scorers that compare values: `json_equal`, `json_subset`, `json_schema`."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.builtin_scorer import ResultScorer
from evaluator.batch.scorers.contract import NO_TARGET, ScorerInput, binary_score
from evaluator.batch.scorers.numeric_scorer import exact_number, is_close
from evaluator.errors import UsageError
from evaluator.errors.messages import cut
from evaluator.fields import NotNegative
from evaluator.language.scopes import describe as type_of
from evaluator.lazy_dataclass import frozen
from evaluator.output import parse_output
from evaluator.output.result import json_path
from evaluator.output.schema import NotChecked, Schema, UnusableSchema, compile_schema
from evaluator.record.json_difference import first_difference


@frozen(kw_only=True)
class _JsonScorer(ResultScorer):
    def json(self, scored: ScorerInput) -> tuple[Any, str | None]:
        """The scored value, and why there is none: the parsed content, else a value read from the
        text.
        """
        if self.of is not None:
            return self.value(scored), None
        parsed = scored.outcome.parsed_content
        if parsed is not None:
            return parsed, None
        read = parse_output(scored.outcome.content, "json", schema="any")
        if read.error is not None:
            return None, f"no JSON in the answer: {read.error}"
        if read.value is None and not scored.outcome.content.strip().endswith("null"):
            return None, "no JSON in the answer"
        return read.value, None


@frozen(kw_only=True)
class _JsonComparison(_JsonScorer):
    ignore_order: bool = False
    abs_tol: NotNegative = 0.0
    rel_tol: NotNegative = 0.0
    subset: ClassVar[bool] = False

    async def score(self, scored: ScorerInput) -> Score:
        target = scored.sample.target
        if target is None:
            return NO_TARGET
        value, problem = self.json(scored)
        if problem is None:
            if isinstance(value, str):
                expected = target
            else:
                expected = _read(target)
            rules = ComparisonRules(
                self.ignore_order, self.abs_tol, rel_tol=self.rel_tol, subset=self.subset
            )
            problem = json_difference(expected, value, rules=rules)
            if problem is not None and isinstance(expected, str) and not isinstance(value, str):
                problem += "; the target is a text that is not a JSON object or array"
        return binary_score(problem is None, explanation=problem or "")


@frozen(kw_only=True)
class JsonEqualScorer(_JsonComparison):
    """The value equals the target: 1 is 1.0, the order of keys does not matter, nor that of arrays
    with `ignore_order`. `abs_tol` and `rel_tol` apply to every number in it. The explanation is the
    first difference, with its path.

    A target that is the JSON text of an object or array, such as a cell of a CSV file, is read as
    JSON unless the value is a text too.
    """

    type: ClassVar[str] = "json_equal"


@frozen(kw_only=True)
class JsonSubsetScorer(_JsonComparison):
    """As `json_equal`, but objects may have further keys; with `ignore_order` arrays may have
    further items.
    """

    type: ClassVar[str] = "json_subset"
    subset: ClassVar[bool] = True


@frozen(kw_only=True)
class JsonSchemaScorer(_JsonScorer):
    """The value matches `schema`: a JSON Schema, a `.json` file, a type such as `string[]`, or
    `module:Model`; without one, the target is the schema, or its JSON text. The explanation is the
    first violation, with its path; a pattern that takes too long is an error.
    """

    type: ClassVar[str] = "json_schema"
    schema: Mapping[str, Any] | str | None = None

    def check(self) -> None:
        if self.schema is not None:
            _compiled(self.schema)

    def describe(self) -> dict[str, Any]:
        described = ResultScorer.describe(self)
        if self.schema is not None and (guide := _compiled(self.schema).guide) is not None:
            described["schema"] = guide.root
        return described

    async def score(self, scored: ScorerInput) -> Score:
        if self.schema is None:
            declared = _read(scored.sample.target)
        else:
            declared = self.schema
        if declared is None:
            return NO_TARGET
        if self.schema is None and not isinstance(declared, Mapping):
            if isinstance(declared, str):
                kind = "a text"
            else:
                kind = type_of(declared)
            raise UsageError(f"the target is {kind}, expected a JSON Schema, which is an object")
        value, problem = self.json(scored)
        if problem is None:
            violation = _compiled(declared).check(value)
            if isinstance(violation, NotChecked) or (
                violation is not None and violation.kind == "bad_schema"
            ):
                raise UsageError(str(violation))
            if violation is not None:
                problem = str(violation)
        return binary_score(problem is None, explanation=problem or "")


def _read(target: Any) -> Any:
    """The object or array whose JSON text a value is; any other value unchanged."""
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
    except UnusableSchema as error:
        raise UsageError(f"json_schema: {error}") from error
    if schema is None:
        raise UsageError(f"json_schema: the schema {declared!r} accepts everything")
    return schema


MAX_UNORDERED = 300
_PATH = list[str | int]


@frozen
class ComparisonRules:
    """Rules for equal values. `subset`: objects may have further keys, and with `ignore_order`
    arrays further items. 1 equals 1.0, a boolean is not a number, NaN equals NaN.
    """

    ignore_order: bool = False
    abs_tol: float = 0.0
    rel_tol: float = 0.0
    subset: bool = False


def json_difference(expected: Any, found: Any, rules: ComparisonRules) -> str | None:
    """The first difference, with its path, or None. Keys are compared in the order of `expected`,
    then further ones.

    Raises: UsageError, for arrays of more than 300 items that can only be compared by trying pairs
    of items; RecursionError, for values nested hundreds of levels deep.
    """
    return _difference(expected, found, rules=rules, path=[])


def _difference(expected: Any, found: Any, rules: ComparisonRules, path: _PATH) -> str | None:
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return _object_difference(
            cast("Mapping[str, Any]", expected),
            cast("Mapping[str, Any]", found),
            rules=rules,
            path=path,
        )
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        if rules.ignore_order:
            compare = _unordered_difference
        else:
            compare = _ordered_difference
        return compare(
            list(cast("list[Any]", expected)), list(cast("list[Any]", found)), rules, path
        )
    if _same_leaf(expected, found, rules=rules):
        return None
    place = json_path(path)
    difference = first_difference(expected, found, where=place)
    if difference is None:
        return f"{place}: expected {_short(expected)}, found {_short(found)}"
    return (
        f"{difference.where}: expected {difference.recorded or 'nothing'}, found "
        f"{difference.now or 'nothing'}"
    )


def _same_leaf(expected: Any, found: Any, rules: ComparisonRules) -> bool:
    a = exact_number(expected)
    b = exact_number(found)
    if a is not None and b is not None:
        return is_close(a, b, abs_tol=rules.abs_tol, rel_tol=rules.rel_tol)
    if isinstance(expected, float) and isinstance(found, float):
        return expected == found or (math.isnan(expected) and math.isnan(found))
    return type(expected) is type(found) and expected == found


def _object_difference(
    expected: Mapping[str, Any], found: Mapping[str, Any], rules: ComparisonRules, path: _PATH
) -> str | None:
    for key, value in expected.items():
        if key not in found:
            return f"{json_path([*path, key])}: missing"
        if (problem := _difference(value, found[key], rules=rules, path=[*path, key])) is not None:
            return problem
    if not rules.subset:
        for key in found:
            if key not in expected:
                return f"{json_path([*path, key])}: not expected"
    return None


def _ordered_difference(
    expected: list[Any], found: list[Any], rules: ComparisonRules, path: _PATH
) -> str | None:
    for index, (a, b) in enumerate(zip(expected, found, strict=False)):
        if (problem := _difference(a, b, rules=rules, path=[*path, index])) is not None:
            return problem
    return _length_difference(expected, found, path=path)


def _length_difference(expected: list[Any], found: list[Any], path: _PATH) -> str | None:
    if len(expected) == len(found):
        return None
    return f"{json_path(path)}: expected {len(expected)} items, found {len(found)}"


def _unordered_difference(
    expected: list[Any], found: list[Any], rules: ComparisonRules, path: _PATH
) -> str | None:
    if not rules.subset and (problem := _length_difference(expected, found, path=path)) is not None:
        return problem
    if not rules.subset and not rules.abs_tol and not rules.rel_tol:
        surplus = Counter(map(canonical, found))
        for index, item in enumerate(expected):
            key = canonical(item)
            if not surplus[key]:
                return f"{json_path([*path, index])}: {_short(item)} is not in the answer"
            surplus[key] -= 1
        return None
    index = _unmatched(expected, found, rules=rules)
    if index is None:
        return None
    return f"{json_path([*path, index])}: {_short(expected[index])} is not in the answer"


def _unmatched(expected: list[Any], found: list[Any], rules: ComparisonRules) -> int | None:
    """The first expected item that no found item is assigned to."""
    if max(len(expected), len(found)) > MAX_UNORDERED:
        raise UsageError(
            f"arrays of {len(expected)} and {len(found)} items are too long to compare without "
            "order with a tolerance "
            f"or as a subset; the limit is {MAX_UNORDERED} items"
        )
    fitting = [
        [
            j
            for j, other in enumerate(found)
            if _difference(item, other, rules=rules, path=[]) is None
        ]
        for item in expected
    ]
    return first_unmatched(fitting)


def first_unmatched(fitting: Sequence[Sequence[int]]) -> int | None:
    """The first item that gets none of the others that fit it, by a maximum matching with
    augmenting paths.
    """
    taken: dict[int, int] = {}

    def place(index: int, seen: set[int]) -> bool:
        for j in fitting[index]:
            if j not in seen:
                seen.add(j)
                if j not in taken or place(taken[j], seen):
                    taken[j] = index
                    return True
        return False

    return next((index for index in range(len(fitting)) if not place(index, set())), None)


def canonical(value: Any) -> str:
    """A text that is the same for all values that are equal without regard to order."""
    if isinstance(value, Mapping):
        items = sorted(
            (str(key), canonical(item)) for key, item in cast("Mapping[Any, Any]", value).items()
        )
        return "{" + ",".join(f"{json.dumps(key)}:{item}" for key, item in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(sorted(map(canonical, cast("list[Any]", value)))) + "]"
    number = exact_number(value)
    if number is not None:
        if number:
            return f"{number.normalize():E}"
        return "0"
    return json.dumps(value, default=str)


def _short(value: Any) -> str:
    return cut(json.dumps(value, ensure_ascii=False, default=str), 200)
