"""The closures of a compiled text, as far as they depend on no syntax tree.

A text whose placeholders are all paths is compiled here, without a parser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evaluator.language.locating import CAUGHT, LocatedError, guarded, raise_at, undefined_name
from evaluator.language.scopes import MISSING
from evaluator.language.syntax import PlainData, PlainPath, plain_path, plain_pieces
from evaluator.language.values import Rendering, absent, attribute, text_of

Evaluate = Callable[[Rendering], Any]
"""Gives the value of an expression."""
Execute = Callable[[Rendering, list[str]], None]
"""Appends the pieces of a text to a list."""


def plain_text(text: str) -> Execute | None:
    """The closure of a text whose placeholders are all paths; None for any other text."""
    pieces = plain_pieces(text)
    if pieces is None:
        return None
    writers: list[Execute] = []
    for piece in pieces:
        if isinstance(piece, PlainData):
            writers.append(data_writer(piece.text, piece.offset))
        else:
            offset = piece.offset_of(len(piece.names) - 1)
            what = label_of(piece.names[0], piece.names[1:])
            writers.append(value_writer(_value_of(piece), what, offset))
    return sequence(writers)


def plain_expression(expression: str) -> Evaluate | None:
    """The closure of an expression that is a path; None for any other expression."""
    path = plain_path(expression)
    if path is None:
        return None
    return _value_of(path)


def _value_of(path: PlainPath) -> Evaluate:
    base, *fields = path.names
    value = name_value(base, path.offset)
    for index, field in enumerate(fields):
        what = label_of(base, fields[:index])
        value = field_value(value, field, what=what, offset=path.offset_of(index + 1))
    return value


def label_of(name: str, path: Sequence[str | int]) -> str:
    """How messages name a path."""
    shown = "".join(
        f".{part}" if isinstance(part, str) and part.isidentifier() else f"[{part!r}]"
        for part in path
    )
    return f"'{name}{shown}'"


def sequence(parts: Sequence[Execute]) -> Execute:
    """Writes one part after the other."""
    if len(parts) == 1:
        return parts[0]

    def execute(run: Rendering, out: list[str]) -> None:
        for part in parts:
            part(run, out)

    return execute


def data_writer(data: str, offset: int) -> Execute:
    """Writes literal text."""
    length = len(data)

    def constant(run: Rendering, out: list[str]) -> None:
        run.remaining -= length
        if run.remaining < 0:
            raise run.too_long(offset)
        out.append(data)

    return constant


def value_writer(value_of: Evaluate, what: str, offset: int) -> Execute:
    """Writes a value; `what` names it in messages."""

    def write(run: Rendering, out: list[str]) -> None:
        text = value_of(run)
        try:
            if text.__class__ is not str:
                text = text_of(run, text, what=what)
        except CAUGHT as error:
            raise_at(offset, f"{what} cannot be written", error=error)
        run.remaining -= len(text)
        if run.remaining < 0:
            raise run.too_long(offset)
        out.append(text)

    return write


def name_value(
    name: str, offset: int, *, is_local: bool = False, is_soft: bool = False
) -> Evaluate:
    """The value of a name. `is_local`: the text itself binds it. `is_soft`: an undefined one is
    MISSING instead of an error.
    """

    def load(run: Rendering) -> Any:
        if is_local:
            value = run.look_up(name)
        else:
            value = run.scope.get(name)
        if value is MISSING and not is_soft:
            raise LocatedError(
                undefined_name(name, run.visible()), "undefined-variable", offset=offset
            )
        return value

    return load


def field_value(
    base: Evaluate, name: str, *, what: str, offset: int, is_soft: bool = False
) -> Evaluate:
    """The field `name` of the value of `base`, which messages call `what`. `is_soft`: an undefined
    one is MISSING instead of an error.
    """

    @guarded(offset + 1, "field")
    def look_up(value: Any) -> Any:
        if is_soft and (value is MISSING or value is None):
            return MISSING
        found = attribute(value, name, what=what)
        if found is MISSING and not is_soft:
            raise absent(value, name, what=what)
        return found

    def load(run: Rendering) -> Any:
        value = base(run)
        if value.__class__ is dict and name in value:
            return value[name]
        return look_up(value)

    return load
