"""What of a row is what: its inputs, id, target and metadata, by fields' names or by expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import nodes

from evaluator.batch.records import Sample
from evaluator.batch.rows.identity import SeenIds, content_id
from evaluator.batch.rows.problems import RowError
from evaluator.binding.sandbox import evaluate_expression_sync, render_sync
from evaluator.binding.scopes import Scope
from evaluator.binding.types import describe
from evaluator.errors import ExpressionError, UsageError
from evaluator.library.near import did_you_mean, listed
from evaluator.library.syntax import analyse, analyse_expression, has_markup, parse_text
from evaluator.nodes import Expression, Span, Text

Getter = Callable[[Mapping[str, Any]], Any]

_PLACEHOLDER = re.compile(r"\s*\{\{[-+]?(.*?)[-+]?\}\}\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RowMapping:
    """What of a row is what. Each text is a field's name, a dotted path into nested values, or holds `{{ … }}`.

    A path such as `answers.text.0` goes through objects and arrays; a field of that whole name comes first. A text
    that is one `{{ … }}` gives the expression's value, as it is; any other text with markup gives text. Expressions
    see the row's fields by name, and the row itself as `row`, for names that are no identifiers.

    `inputs`: for each of the template's inputs. Inputs that are not named here come from the fields of the same name,
    where the row has them; where it is not known what the template takes and `inputs` is None, every field is one
    that is not id, target or metadata.
    `id`: None takes the field `id`, if the first row has it; else an id is made of the row's content, and is the same
    wherever the row stands; of rows that are the same, the second has `-2` added, and so on.
    `target`: None takes the field `target`; a row without it has no target.
    `metadata`: names or paths; None takes every field that is not wholly input, id or target.
    """

    inputs: Mapping[str, str] | None = None
    id: str | None = None
    target: str | None = None
    metadata: Sequence[str] | None = None


class Absent(Exception):
    """A row lacks a field."""


class Mapper:
    """Rows of one pass over a source → samples; the first row decides where ids come from.

    `declared`: the inputs that the template takes; None: not known. `required`: those of them that each row must have.

    Raises: UsageError, for an expression that is none, and an input that the template does not take.
    """

    def __init__(
        self, mapping: RowMapping, source: str, declared: Collection[str] | None, required: Collection[str]
    ) -> None:
        given = mapping.inputs or {}
        if declared is not None:
            for name in given:
                if name not in declared:
                    hint = did_you_mean(name, declared)
                    message = f"the template has no input `{name}` (it takes: {listed(declared)})"
                    raise UsageError(f"{message}; {hint}" if hint else message)
        self._source, self._required = source, required
        self._inputs = {name: getter(text, f"inputs.{name}") for name, text in given.items()}
        self._by_name = () if declared is None else tuple(name for name in declared if name not in given)
        self._takes_all = declared is None and mapping.inputs is None
        self._id = None if mapping.id is None else getter(mapping.id, "id")
        self._target = None if mapping.target is None else getter(mapping.target, "target")
        self._metadata = (
            None if mapping.metadata is None else {name: _of_field(name, "metadata") for name in mapping.metadata}
        )
        self._spoken_for = {mapping.id or "id", mapping.target or "target", *(mapping.metadata or ())}
        self._consumed = {mapping.id or "id", mapping.target or "target", *given.values(), *self._by_name}
        self._is_first = True
        self._ids = SeenIds()

    def sample(self, row: Mapping[str, Any], place: int, line: int | None) -> Sample:
        """Raises: RowError, for a row that lacks what is mapped, and an id that is none or was there before."""
        id = None
        if self._is_first:
            self._is_first = False
            if self._id is None and "id" in row:
                self._id = _of_field("id", "id")
        try:
            id = self._identify(row)
            inputs = self._inputs_of(row)
            target = row.get("target") if self._target is None else self._target(row)
            metadata = self._metadata_of(row)
        except (Absent, ExpressionError) as error:
            message = f"{error.span}: {error.message}" if isinstance(error, ExpressionError) else str(error)
            raise RowError(message, source=self._source, line=line, place=place, id=id) from error
        self._remember(id, place, line)
        return Sample(id, inputs, target, metadata, place)

    def _identify(self, row: Mapping[str, Any]) -> str:
        if self._id is None:
            if "id" in row:
                raise Absent("this row has the field `id`, and the first one has not; all rows need one, or none")
            return self._ids.numbered(content_id(row))
        value = self._id(row)
        if value.__class__ is str and value.strip():
            return value
        if value.__class__ is int:
            return str(value)
        found = "an empty text" if value.__class__ is str else describe(value)
        raise Absent(f"the id is {found}; it must be a text or a whole number")

    def _remember(self, id: str, place: int, line: int | None) -> None:
        earlier = self._ids.add(id, place if line is None else line)
        if earlier is not None:
            kind = "row" if line is None else "line"
            message = f"the id stands twice, first in {kind} {earlier}; map another field to id, or none"
            raise RowError(message, source=self._source, line=line, place=place, id=id)

    def _inputs_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if self._takes_all:
            return {name: value for name, value in row.items() if name not in self._spoken_for}
        inputs = {name: get(row) for name, get in self._inputs.items()}
        for name in self._by_name:
            if name in row:
                inputs[name] = row[name]
            elif name in self._required:
                hint = did_you_mean(name, row, "say which field it is")
                raise Absent(f"no field for the template's input `{name}`; {hint} (the row has: {listed(row)})")
        return inputs

    def _metadata_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if self._metadata is not None:
            return {name: get(row) for name, get in self._metadata.items()}
        if self._takes_all:
            return {}
        consumed = self._consumed
        return {name: value for name, value in row.items() if name not in consumed}


def getter(text: str, what: str) -> Getter:
    """What reads `text` out of a row; what it gives raises Absent or ExpressionError. Raises: UsageError."""
    if not has_markup(text):
        return _of_field(text, what)
    source = Text(text, Span(what))
    _check(lambda: analyse(source).calls)
    found = _PLACEHOLDER.fullmatch(text)
    if found is not None and _is_one_placeholder(text.strip()):
        return _value_of(Text(found[1], source.locate(found.start(1))))
    return lambda row: render_sync(source, _scope(row))


def expression(text: str, what: str) -> Getter:
    """What gives the value of an expression over a row. Raises: UsageError, if it is none."""
    return _value_of(Text(text, Span(what)))


def _value_of(text: Text) -> Getter:
    source = Expression(text)
    _check(lambda: analyse_expression(source).calls)
    return lambda row: evaluate_expression_sync(source, _scope(row))


def _is_one_placeholder(text: str) -> bool:
    body = parse_text(text).body
    parts = body[0].nodes if len(body) == 1 and isinstance(body[0], nodes.Output) else []
    return len(parts) == 1 and not isinstance(parts[0], nodes.TemplateData)


def _scope(row: Mapping[str, Any]) -> Scope:
    return Scope(row, Scope({"row": row}))


def _check(analysed: Callable[[], Sequence[Any]]) -> None:
    try:
        calls = analysed()
    except ExpressionError as error:
        raise UsageError(f"{error.span}: {error.message}") from error
    if calls:
        raise UsageError(f"there is no function {calls[0].name}() here; an expression over a row calls no templates")


def _of_field(path: str, what: str) -> Getter:
    if not path.strip():
        raise UsageError(f"{what} names no field")
    steps = path.split(".")

    def read(row: Mapping[str, Any]) -> Any:
        if path in row:
            return row[path]
        if len(steps) == 1:
            raise _absent(path, row, "the row")
        value: Any = row
        for number, step in enumerate(steps):
            above = ".".join(steps[:number]) or "the row"
            if isinstance(value, Mapping):
                if step not in value:
                    raise _absent(step, value, above)
                value = value[step]
            elif isinstance(value, list) and step.isdecimal():
                if int(step) >= len(value):
                    raise Absent(f"`{path}`: {above} has only {len(value)} items")
                value = value[int(step)]
            else:
                raise Absent(f"`{path}`: {above} is {describe(value)}, and has no field `{step}`")
        return value

    return read


def _absent(name: str, fields: Mapping[str, Any], where: str) -> Absent:
    hint = did_you_mean(name, fields)
    message = f"there is no field `{name}`{f'; {hint}' if hint else ''} ({where} has: {listed(fields, 20)})"
    return Absent(message)
