"""Chooses the answer among several blocks: the last of those that fit the schema best.

Finds the one value inside another that fits a schema: `{"keywords": ["a"]}` for an array,
arguments of a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from evaluator.language.scopes import describe
from evaluator.lazy_dataclass import dataclass
from evaluator.output.coerce import Coercion
from evaluator.output.extract import Block
from evaluator.output.result import MESSAGES, OutputError
from evaluator.output.schema import NotChecked, Schema
from evaluator.output.strict import read_as_meant

_MAX_CHECKED = 64
_MAX_PLACES = 3


@dataclass(frozen=True, slots=True)
class CheckedValue:
    """A value that was coerced and checked by a schema, with a warning for each kind of coercion,
    or an error.
    """

    value: Any
    warnings: tuple[str, ...]
    error: OutputError | None


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen block and how it fits; `rivals` is the number of others that fit equally well."""

    block: Block
    conformed: CheckedValue
    rivals: int


def conform(value: Any, schema: Schema | None, *warnings: str) -> CheckedValue:
    """Coerces a plain value to its schema and checks it. Containers are changed in place.

    `warnings` come before those of the coercion.
    """
    if schema is None:
        return CheckedValue(value, warnings, error=None)
    error = schema.check(value)
    # A value that fits is not coerced: texts are read as scalars only where the schema allows no
    # text.
    if (
        error is not None
        and not isinstance(error, NotChecked)
        and schema.guide is not None
        and isinstance(value, str | dict | list)
    ):
        coercion = Coercion(schema.guide)
        value = coercion.apply(value, schema.guide.root)
        if coercion.notes:
            warnings += tuple(
                _coercion_warning(kind, places) for kind, places in coercion.notes.items()
            )
            error = schema.check(value)
    if error is None and schema.build is not None:
        value = schema.build(value)
    return CheckedValue(value, warnings, error=error)


def _coercion_warning(kind: str, places: list[str]) -> str:
    shown = ", ".join(places[:_MAX_PLACES])
    if len(places) > _MAX_PLACES:
        more = f" and {len(places) - _MAX_PLACES} more"
    else:
        more = ""
    if kind in ("unit", "multiplier"):
        return f"{MESSAGES[kind]}: {shown}{more}"
    if kind == "word":
        what = "one of the allowed words"
    else:
        what = f"a {kind}, which the schema asks for"
    return f"text was read as {what}: {shown}{more}"


def choose(blocks: list[Block], schema: Schema | None) -> Choice | None:
    """The block that is the answer; None if there is no block.

    Blocks that could be part of the prose count only if no other fits. Of those that fit equally
    well the last one is taken. If none fits, the choice has the error of the last one of the right
    type.
    """
    if not blocks:
        return None
    strong = [block for block in blocks if not block.weak]
    weak = [block for block in blocks if block.weak]
    if schema is None:
        pool = strong or weak
        last = _only_fenced(pool) or pool[-1]
        return Choice(
            last,
            CheckedValue(last.value, (), error=None),
            rivals=len(pool) - 1 if last is pool[-1] else 0,
        )
    wanted = schema.types
    for pool in (strong, weak):
        typed = _of_types(pool, wanted)
        chosen = _fitting(typed[-_MAX_CHECKED:], schema)
        if chosen is not None:
            return chosen
    last = (_of_types(strong or weak, wanted) or strong or weak)[-1]
    return Choice(last, conform(last.value, schema), rivals=0)


def _of_types(blocks: list[Block], wanted: frozenset[str] | None) -> list[Block]:
    if wanted is None:
        return blocks
    names = {kind: describe(kind()) for kind in (dict, list)}
    return [block for block in blocks if names[block.value.__class__] in wanted]


def _fitting(pool: list[Block], schema: Schema) -> Choice | None:
    fitting: list[tuple[Block, CheckedValue]] = []
    for block in reversed(pool):
        conformed = conform(block.value, schema)
        if isinstance(conformed.error, NotChecked):
            break  # the other blocks would take as long
        if conformed.error is not None and block.cut:
            conformed = _without_cut_item(block.value, schema) or conformed
        if conformed.error is None:
            fitting.append((block, conformed))
        elif block.others and (other := _other_reading(block, schema)) is not None:
            fitting.append(other)
    if not fitting:
        return None
    fenced = _only_fenced([block for block, _ in fitting])
    if fenced is not None:
        return Choice(
            fenced, next(conformed for block, conformed in fitting if block is fenced), rivals=0
        )
    return Choice(*fitting[0], len(fitting) - 1)


def _without_cut_item(value: Any, schema: Schema) -> CheckedValue | None:
    """The value of a block that is cut off, without the incomplete last item of one of its arrays;
    None if it does not fit either.
    """
    arrays: list[list[Any]] = []
    last = value
    while last and isinstance(last, dict | list):
        if isinstance(last, list):
            arrays.append(cast("list[Any]", last))
            last = arrays[-1][-1]
        else:
            last = next(reversed(cast("dict[str, Any]", last).values()))
    for array in reversed(arrays):
        item = array.pop()
        conformed = conform(value, schema, MESSAGES["cut_item"])
        if conformed.error is None and array:
            return conformed
        array.append(item)
    return None


def _other_reading(block: Block, schema: Schema) -> tuple[Block, CheckedValue] | None:
    """The only reading of a block with one bracket elsewhere that fits the schema; None if there
    are more, or none.
    """
    found: list[tuple[Block, CheckedValue]] = []
    for other in block.others:
        try:
            value = read_as_meant(other.text)
        except (ValueError, RecursionError):
            continue
        conformed = conform(value, schema)
        if isinstance(conformed.error, NotChecked):
            return None
        if conformed.error is None and all(conformed.value != known.value for _, known in found):
            found.append(
                (
                    replace(block, value=value, end=other.end, repairs=(other.kind,), cut=False),
                    conformed,
                )
            )
    if len(found) == 1:
        return found[0]
    return None


def _only_fenced(blocks: list[Block]) -> Block | None:
    """The block in a code fence, if there is exactly one among several."""
    fenced = [block for block in blocks if block.fenced]
    if len(fenced) == 1:
        return fenced[0]
    return None


_CONTAINERS = frozenset({"object", "array"})
_MAX_DEPTH = 5
_MAX_INNER_PLACES = 32


def read_inner(values: list[Any], schema: Schema | None) -> CheckedValue | None:
    """The only object or array inside `values` that fits the schema wholly; None if there is none,
    or several.

    Declared properties are not searched: an object that has them is the value itself, with a
    mistake. Nor are arrays with several items: one item cannot stand for all.
    """
    if schema is None or schema.guide is None:
        return None
    wanted = (schema.types or frozenset[str]()) - {"null"}
    if not wanted or wanted - _CONTAINERS:
        return None
    declared = schema.guide.properties(schema.guide.root).keys()
    fitting: list[CheckedValue] = []
    waiting = [(child, 1, len(value)) for value in values for child in _children(value, declared)]
    for count, (value, depth, siblings) in enumerate(waiting):
        if count >= _MAX_INNER_PLACES:
            return None
        if describe(value) in wanted or (
            isinstance(value, str) and value.lstrip()[:1] in ("{", "[")
        ):
            conformed = conform(value, schema, MESSAGES["inner"])
            if isinstance(conformed.error, NotChecked):
                return None
            if conformed.error is None and not value and siblings > 1:
                return None  # {"error": "not found", "items": []} may be no answer
            if conformed.error is None:
                fitting.append(conformed)
                continue
        if depth < _MAX_DEPTH:
            waiting += [(child, depth + 1, len(value)) for child in _children(value, declared)]
    if len(fitting) == 1:
        return fitting[0]
    return None


def _children(value: Any, declared: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, child in cast(dict[str, Any], value).items():
            if key not in declared and isinstance(child, dict | list | str):
                yield child
    elif isinstance(value, list) and len(cast(list[Any], value)) == 1:
        yield value[0]
