"""Maps rows to samples: inputs, id, target and metadata by field names or expressions.

Row ids: computed from the content of rows without one, and checked to be unique.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from evaluator.batch.identity import digest
from evaluator.batch.records import Sample, Shot
from evaluator.batch.rows.choice_order import shuffle_choices
from evaluator.batch.rows.object_rows import RowError
from evaluator.errors import ExpressionError, UsageError
from evaluator.errors.messages import did_you_mean, listed
from evaluator.language.analysis import analyse
from evaluator.language.sandbox import evaluate_expression_sync, render_sync
from evaluator.language.scopes import Scope, describe
from evaluator.language.syntax import has_markup
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Expression, Span, Text
from evaluator.store.columns import Column, Interner, Spool


def content_digest(value: Any, size: int = 16) -> str:
    """The hash of a JSON value, two hexadecimal digits for each byte of `size`."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=size).hexdigest()


_FRESH = 1_000
"""So many positions are stored at once."""


class SeenIds:
    """The hashes of the ids of one pass over a source."""

    __slots__ = ("_copies", "_count", "_fresh", "_numbers", "_wheres")

    def __init__(self) -> None:
        self._numbers = Interner()
        self._wheres = Column("Q", Spool())
        self._fresh: list[int] = []
        self._count = 0
        self._copies: dict[int, int] = {}

    def add(self, id: str, where: int) -> int | None:
        """Stores an id with a number for its position; returns the number of an earlier equal id,
        if any.
        """
        number = self._numbers.number_of_hash(hash(id))
        if number < self._count:
            self._wheres.extend(self._fresh)
            self._fresh.clear()
            return self._wheres[number]
        self._count = number + 1
        self._fresh.append(where)
        if len(self._fresh) == _FRESH:
            self._wheres.extend(self._fresh)
            self._fresh.clear()
        return None

    def numbered(self, id: str) -> str:
        """`id` unchanged for the first row that has it, then `id-2`, `id-3`, …"""
        number = self._numbers.find(id)
        if number is None:
            return id
        self._copies[number] = self._copies.get(number, 1) + 1
        return f"{id}-{self._copies[number]}"


LINE = "line"
"""The `id` of a mapping that identifies rows by their numbers."""
Getter = Callable[[Mapping[str, Any]], Any]
ChooseShots = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[Shot, ...]]
"""Returns the few-shot examples for a row and its inputs. Raises: MissingField, if there are not
enough.
"""

_PLACEHOLDER = re.compile(r"\s*\{\{[-+]?(.*?)[-+]?\}\}\s*", re.DOTALL)


@frozen
class RowMapping:
    """Maps the fields of a row to a sample. Each text is a field's name, a dotted path, or a text
    with `{{ … }}`.

    A path such as `answers.text.0` goes through objects and arrays; a field with that whole name
    has priority. A text that is a single `{{ … }}` gives the expression's value unchanged; any
    other text with markup gives text. Expressions see the row's fields by name, and the row itself
    as `row`, for names that are not identifiers.

    `inputs`: texts for the template's inputs. Other inputs come from the fields of the same name,
    if the row has them. If the template's inputs are unknown and `inputs` is None, every field that
    is not id, target or metadata is one.
    `id`: None uses the field `id`, if the first row has it; else the id is computed from the row's
    content, independent of its position; the second of equal rows gets `-2`, and so on. `line`,
    unless the first row has such a field, is the row's number: its line in a file with lines, else
    its place, counted from 1.
    `target`: None uses the field `target`; a row without it has no target.
    `answers`: the field with an existing answer, a text or any JSON value; null is an empty one.
    None: no answers.
    `shuffle_choices`: the seed of the order of each row's options; None: as they are.
    `metadata`: names or paths, or `NAME={{ … }}`, or a table of names and texts; None uses every
    field that is not wholly input, id or target.
    `allow_empty`: whether a required input may be empty.
    """

    inputs: Mapping[str, str] | None = None
    id: str | None = None
    target: str | None = None
    metadata: Sequence[str] | Mapping[str, str] | None = None
    answers: str | None = None
    shuffle_choices: int | None = None
    allow_empty: bool = True


@frozen
class MappedExample:
    """A row of few-shot examples, mapped as the rows of the batch are."""

    inputs: Mapping[str, Any]
    target: Any
    more: Sequence[Any]


class MissingField(Exception):
    """A row has no such field, or no usable value in it."""


class Mapper:
    """Maps the rows of one pass over a source to samples; the first row determines where ids come
    from.

    `declared`: the template's inputs; None if unknown. `required`: those of them that each row must
    have.
    `choose_shots`: chooses the few-shot examples of each row.

    Raises: UsageError, for an invalid expression, and an input that the template does not have.
    """

    def __init__(
        self,
        mapping: RowMapping,
        source: str,
        declared: Collection[str] | None,
        required: Collection[str],
        choose_shots: ChooseShots | None = None,
    ) -> None:
        given = mapping.inputs or {}
        if declared is not None:
            for name in given:
                if name not in declared:
                    hint = did_you_mean(name, declared)
                    message = f"the template has no input `{name}` (it takes: {listed(declared)})"
                    raise UsageError(f"{message}; {hint}" if hint else message)
        self._source = source
        self._required = required
        self._not_empty = () if mapping.allow_empty else tuple(required)
        self._inputs = {name: getter(text, f"inputs.{name}") for name, text in given.items()}
        self._computed = [name for name, text in given.items() if has_markup(text)]
        if declared is None:
            self._by_name = ()
        else:
            self._by_name = tuple([name for name in declared if name not in given])
        self._takes_all = declared is None and mapping.inputs is None
        if mapping.id is None:
            self._id = None
        else:
            self._id = getter(mapping.id, "id")
        if mapping.target is None:
            self._target = None
        else:
            self._target = getter(mapping.target, "target")
        if mapping.metadata is None:
            metadata = None
        else:
            metadata = metadata_texts(mapping.metadata)
        if metadata is None:
            self._metadata = None
        else:
            self._metadata = {
                name: getter(text, f"metadata.{name}") for name, text in metadata.items()
            }
        if mapping.answers is None:
            self._answer = None
        else:
            self._answer = getter(mapping.answers, "answers")
        own = {mapping.id or "id", mapping.target or "target"} | (
            {mapping.answers} if mapping.answers else set()
        )
        self._not_inputs = {*own, *(metadata or {}).values()}
        self._consumed = {*own, *given.values(), *self._by_name}
        self._seed = mapping.shuffle_choices
        self._choose_shots = choose_shots
        self._is_first = True
        self._is_numbered = mapping.id == LINE
        self._ids = SeenIds()

    def sample(self, row: Mapping[str, Any], place: int, line: int | None) -> Sample:
        """The sample of a row. Raises: RowError, for a missing field, and an invalid or duplicate
        id.
        """
        id = None
        if self._is_first:
            self._is_first = False
            if self._id is None and "id" in row:
                self._id = _of_field("id", "id")
            self._is_numbered = self._is_numbered and LINE not in row
        try:
            id = self._identify(row, place, line)
            inputs = self._inputs_of(row)
            if self._target is None:
                target = row.get("target")
            else:
                target = self._target(row)
            metadata: dict[str, Any] = {}
            if self._metadata is not None:
                metadata = {name: get(row) for name, get in self._metadata.items()}
            elif not self._takes_all and not self._consumed.issuperset(row):
                consumed = self._consumed
                metadata = {name: value for name, value in row.items() if name not in consumed}
            if self._answer is None:
                answer = None
            else:
                answer = answer_text(self._answer(row))
            if self._choose_shots is None:
                shots = ()
            else:
                shots = self._choose_shots(row, inputs)
            # By position, which takes half the time.
            sample = Sample(id, inputs, target, metadata, place, answer, shots)
            if self._seed is not None and (sample := shuffle_choices(sample, self._seed)) is None:
                raise MissingField("there is no list `choices` or `options` to shuffle")
        except (MissingField, ExpressionError) as error:
            raise self._row_error(error, place, line=line, id=id) from error
        earlier = self._ids.add(id, place if line is None else line)
        if earlier is None:
            return sample
        if line is None:
            kind = "row"
        else:
            kind = "line"
        message = (
            f"the id is not unique, it is first in {kind} {earlier}; name another field with `id` "
            f'(--id FIELD), or identify rows by their numbers with `id = "{LINE}"` (--id {LINE})'
        )
        raise RowError(message, source=self._source, line=line, place=place, id=id)

    def example(
        self, row: Mapping[str, Any], place: int, line: int | None, more: Sequence[Getter]
    ) -> MappedExample:
        """The inputs and the target of a row, and what `more` reads from it. Raises: RowError, for
        a missing field.
        """
        try:
            if self._target is None:
                target = row.get("target")
            else:
                target = self._target(row)
            return MappedExample(self._inputs_of(row), target, more=[get(row) for get in more])
        except (MissingField, ExpressionError) as error:
            raise self._row_error(error, place, line=line) from error

    def _row_error(
        self,
        error: MissingField | ExpressionError,
        place: int,
        line: int | None,
        id: str | None = None,
    ) -> RowError:
        if isinstance(error, ExpressionError):
            message = f"{error.span}: {error.message}"
        else:
            message = str(error)
        return RowError(message, source=self._source, line=line, place=place, id=id)

    def _identify(self, row: Mapping[str, Any], place: int, line: int | None) -> str:
        if self._is_numbered:
            return str(place + 1 if line is None else line)
        if self._id is None:
            if "id" in row:
                raise MissingField(
                    "this row has the field `id`, but the first one does not; all rows need one, "
                    f'or none; `id = "{LINE}"` (--id {LINE}) identifies rows by their numbers'
                )
            # The same in every version of this package: results are found by it.
            return self._ids.numbered(content_digest(row, 8))
        value = self._id(row)
        if value.__class__ is str and value.strip():
            return value
        if value.__class__ is int:
            return str(value)
        if value.__class__ is str:
            found = "an empty text"
        else:
            found = describe(value)
        raise MissingField(f"the id is {found}, expected text or a whole number")

    def _inputs_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if self._takes_all:
            return {name: value for name, value in row.items() if name not in self._not_inputs}
        inputs: dict[str, Any] = {}
        for name, get in self._inputs.items():
            inputs[name] = get(row)
        for name in self._computed:
            value = inputs[name]
            if value.__class__ is not str:
                try:
                    digest(value)  # as the sample's identity needs it
                except UsageError as error:
                    raise MissingField(f"the input `{name}` is {error}") from error
        for name in self._by_name:
            if name in row:
                inputs[name] = row[name]
            elif name in self._required:
                hint = did_you_mean(name, row, otherwise="map a field to it")
                raise MissingField(
                    f"no field for the template's input `{name}`; {hint} (the row has: "
                    f"{listed(row)})"
                )
        for name in self._not_empty:
            if is_blank(inputs.get(name)):
                raise MissingField(
                    f"the required input `{name}` is empty; give it a value, or allow empty ones "
                    'with `empty = "keep"` (--empty keep)'
                )
        return inputs


def is_blank(value: Any) -> bool:
    """Whether a value is a text without anything but white space."""
    return isinstance(value, str) and not value.strip()


def metadata_texts(metadata: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """The text that each metadata field is read from. Raises: UsageError, for an expression without
    a name.
    """
    if isinstance(metadata, Mapping):
        return dict(metadata)
    found: dict[str, str] = {}
    for text in metadata:
        if not has_markup(text):
            found[text] = text
            continue
        name, equals, value = text.partition("=")
        if not equals or has_markup(name) or not name.strip():
            raise UsageError(
                f"metadata {text!r}: an expression needs a name, as in level={{{{ … }}}}"
            )
        found[name.strip()] = value.strip()
    return found


def answer_text(value: Any) -> str:
    """An existing answer as a model would have written it."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)


def getter(text: str, what: str) -> Getter:
    """A function that reads `text` from a row and raises MissingField or ExpressionError. Raises:
    UsageError.
    """
    if not has_markup(text):
        return _of_field(text, what)
    source = Text(text, Span(what))
    _check(source, lambda: analyse(source).calls)
    found = _PLACEHOLDER.fullmatch(text)
    if found is not None and _is_one_placeholder(text.strip()):
        return _value_of(Text(found[1], source.locate(found.start(1))))
    return lambda row: render_sync(source, _scope(row))


def expression(text: str, what: str) -> Getter:
    """A function that returns the value of an expression over a row. Raises: UsageError, for an
    invalid one.
    """
    return _value_of(Text(text, Span(what)))


def _value_of(text: Text) -> Getter:
    source = Expression(text)
    _check(text, lambda: analyse(source).calls)
    return lambda row: evaluate_expression_sync(source, _scope(row))


def _is_one_placeholder(text: str) -> bool:
    from jinja2 import nodes

    from evaluator.language.parsing import parse_text

    body = parse_text(text).body
    if len(body) == 1 and isinstance(body[0], nodes.Output):
        parts = body[0].nodes
    else:
        parts = []
    return len(parts) == 1 and not isinstance(parts[0], nodes.TemplateData)


def _scope(row: Mapping[str, Any]) -> Scope:
    return Scope(row, Scope({"row": row}))


def _check(text: Text, analysed: Callable[[], Sequence[Any]]) -> None:
    try:
        calls = analysed()
    except ExpressionError as error:
        raise UsageError(f"{error.span}: {error.message}") from error
    if calls:
        raise UsageError(
            f"{text.locate(calls[0].offset)}: there is no function {calls[0].name}() here; an "
            "expression over a row "
            "cannot call templates"
        )


def _of_field(path: str, what: str) -> Getter:
    if not path.strip():
        raise UsageError(f"{what} is empty, expected the name of a field")
    steps = path.split(".")

    def read(row: Mapping[str, Any]) -> Any:
        if path in row:
            return row[path]
        if len(steps) == 1:
            raise _missing(path, row, where="the row")
        value: Any = row
        for number, step in enumerate(steps):
            above = ".".join(steps[:number]) or "the row"
            if isinstance(value, Mapping):
                if step not in value:
                    raise _missing(step, value, where=above)
                value = value[step]
            elif isinstance(value, list) and step.isdecimal():
                if int(step) >= len(value):
                    raise MissingField(f"`{path}`: {above} has only {len(value)} items")
                value = value[int(step)]
            else:
                raise MissingField(
                    f"`{path}`: {above} is {describe(value)} and has no field `{step}`"
                )
        return value

    return read


def _missing(name: str, fields: Mapping[str, Any], where: str) -> MissingField:
    hint = did_you_mean(name, fields)
    message = (
        f"there is no field `{name}`{f'; {hint}' if hint else ''} ({where} has: "
        f"{listed(fields, 20)})"
    )
    return MissingField(message)
