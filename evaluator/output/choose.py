"""Which of several blocks is the answer: the last of those that fit the schema equally well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evaluator.output.coerce import Coercion
from evaluator.output.extract import Block
from evaluator.output.result import OutputError
from evaluator.output.schema import Schema, SlowPattern
from evaluator.output.types import describe

_MAX_CHECKED = 64
_MAX_PLACES = 3


@dataclass(frozen=True, slots=True)
class Settled:
    """A value held against a schema: as coerced, with a warning for each kind of reading, or the error."""

    value: Any
    warnings: tuple[str, ...]
    error: OutputError | None


@dataclass(frozen=True, slots=True)
class Choice:
    """A block and how it fits; `rivals` is how many others would have done as well."""

    block: Block
    settled: Settled
    rivals: int


def settle(value: Any, schema: Schema | None) -> Settled:
    """Coerce a plain value as its schema guides, and check it. Containers are changed in place."""
    if schema is None:
        return Settled(value, (), None)
    warnings: tuple[str, ...] = ()
    error = schema.check(value)
    # A value that fits needs no reading: texts are read only where the schema allows none.
    if (
        error is not None
        and not isinstance(error, SlowPattern)
        and schema.guide is not None
        and isinstance(value, str | dict | list)
    ):
        coercion = Coercion(schema.guide)
        value = coercion.apply(value, schema.guide.root)
        if coercion.notes:
            warnings = tuple(_say(kind, places) for kind, places in coercion.notes.items())
            error = schema.check(value)
    if error is None and schema.build is not None:
        value = schema.build(value)
    return Settled(value, warnings, error)


def _say(kind: str, places: list[str]) -> str:
    shown = ", ".join(places[:_MAX_PLACES])
    more = f" and {len(places) - _MAX_PLACES} more" if len(places) > _MAX_PLACES else ""
    return f"text was read as a {kind}, as the schema asks: {shown}{more}"


def choose(blocks: list[Block], schema: Schema | None) -> Choice | None:
    """The block that is the answer; None where there is no block.

    Blocks that could be part of the prose count only where no other fits. Of those that fit equally well the
    last one is taken. Where none fits, the choice carries the error of the last one of the right type.
    """
    if not blocks:
        return None
    strong = [block for block in blocks if not block.weak]
    weak = [block for block in blocks if block.weak]
    if schema is None:
        pool = strong or weak
        return Choice(pool[-1], Settled(pool[-1].value, (), None), len(pool) - 1)
    wanted = schema.guide.top if schema.guide is not None else None
    for pool in (strong, weak):
        typed = [block for block in pool if wanted is None or describe(block.value) in wanted]
        chosen = _fitting(typed[-_MAX_CHECKED:], schema)
        if chosen is not None:
            return chosen
    typed = [block for block in strong or weak if wanted is None or describe(block.value) in wanted]
    last = (typed or strong or weak)[-1]
    return Choice(last, settle(last.value, schema), 0)


def _fitting(pool: list[Block], schema: Schema) -> Choice | None:
    chosen: Block | None = None
    settled: Settled | None = None
    rivals = 0
    for block in reversed(pool):
        current = settle(block.value, schema)
        if isinstance(current.error, SlowPattern):
            # The other blocks would take as long again.
            break
        if current.error is None:
            if settled is None:
                chosen, settled = block, current
            else:
                rivals += 1
    return None if chosen is None or settled is None else Choice(chosen, settled, rivals)
