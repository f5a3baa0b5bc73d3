"""The names and calls that a text or an expression refers to, found without evaluating it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from evaluator.errors import ExpressionError
from evaluator.language.locating import LocatedError
from evaluator.language.syntax import (
    CACHE_SIZE,
    Analysis,
    PlainPath,
    Reference,
    has_markup,
    plain_path,
    plain_pieces,
)
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Argument, Expression, Text
from evaluator.nodes.declare import values
from evaluator.patterns import Pattern

_CONSTANT = Analysis((), (), constant=True)


def analyse(value: Text | Expression) -> Analysis:
    """Returns the names and calls in a text or an expression.

    Raises: ExpressionError at the exact place, with code `syntax`, `forbidden-statement`,
    `unknown-filter`, `unknown-test` or `too-deep`.
    """
    result = _result(value)
    if isinstance(result, LocatedError):
        raise result.located(value.source) from result.__cause__
    return result


def references_in(owner: Any, *, without: Text | None = None) -> Iterator[Reference]:
    """The names that the texts, settings and parts of a node read, not those of the nodes inside
    it.

    A text that cannot be read reads nothing, and the text `without` is left out.
    """
    for field, _, value in values(owner, "text", "setting", "part"):
        if value is without:
            continue
        if field.role == "part":
            yield from references_in(value)
        elif isinstance(value, Text | Expression):
            # A bare argument of a call is a variable, if there is one of that name.
            bare = (
                isinstance(owner, Argument)
                and isinstance(value, Text)
                and not has_markup(value.value)
            )
            try:
                yield from analyse(
                    Expression(value) if bare and isinstance(value, Text) else value
                ).references
            except ExpressionError:
                continue


@frozen
class Reading:
    """What a text with errors still says: its errors, the analysis of the rest (None where nothing
    certain is known), and every word in what could not be read.
    """

    errors: tuple[ExpressionError, ...]
    analysis: Analysis | None
    words: frozenset[str] = frozenset()


_WORD = Pattern(r"[^\W\d]\w*")
_PLACEHOLDER = Pattern(r"\{\{.*?\}\}", "s")
_TEST_NAME = Pattern(r"there is no test '(\w+)'")
_MAX_ERRORS = 20


def read_all(value: Text | Expression) -> Reading:
    """Every error of a text or an expression, and what the rest of it refers to.

    A placeholder that cannot be read is skipped. Without it the rest is read, unless a statement
    cannot be read, which may bind names.
    """
    result = _result(value)
    if isinstance(result, Analysis):
        return Reading((), result)
    from evaluator.language.parsing import TooMuchMarkup, parse_expression, parse_text
    from evaluator.language.walker import analyse_tree

    text = value.source
    first = result.located(text)
    if isinstance(result, TooMuchMarkup):
        # Without a placeholder or two it has too much markup still.
        return Reading((first,), None, frozenset(_WORD.findall(text.value)))
    remaining = text.value
    errors: list[ExpressionError] = []
    words: set[str] = set()
    while len(errors) < _MAX_ERRORS:
        found: list[LocatedError] = []
        try:
            if isinstance(value, Text):
                tree = parse_text(remaining, found)
            else:
                tree = parse_expression(remaining, found)
            analysis = analyse_tree(tree, is_expression=isinstance(value, Expression))
        except LocatedError as error:
            errors.append(error.located(text))
            offset = min(error.offset or 0, len(remaining))
            skipped = next(
                (m for m in _PLACEHOLDER.finditer(remaining) if m.start() <= offset < m.end()), None
            )
            if skipped is None or isinstance(value, Expression):
                words.update(_WORD.findall(text.value))
                break
            words.update(_WORD.findall(skipped[0]))
            blank = " " * len(skipped[0])
            remaining = remaining[: skipped.start()] + blank + remaining[skipped.end() :]
        else:
            for each in found:
                name = _TEST_NAME.match(each.message)
                if each.code == "unknown-test" and name is not None:
                    # The node begins at `is`; the name that is wrong follows.
                    each.offset = remaining.find(name[1], (each.offset or 0) + 2)
                errors.append(each.located(text))
            return Reading(tuple(errors), analysis, frozenset(words))
    return Reading(tuple(errors) or (first,), None, frozenset(words))


def _result(value: Text | Expression) -> Analysis | LocatedError:
    """The analysis, or why there is none. Both are kept: many checks ask for each text."""
    text = value.source.value
    if isinstance(value, Expression):
        return _expression_result(text)
    if has_markup(text):
        return _text_result(text)
    return _CONSTANT


@lru_cache(CACHE_SIZE)
def _text_result(value: str) -> Analysis | LocatedError:
    pieces = plain_pieces(value)
    if pieces is not None:
        paths = [piece for piece in pieces if isinstance(piece, PlainPath)]
        return Analysis(tuple(map(_reference, paths)), (), constant=False)
    from evaluator.language.parsing import parse_text
    from evaluator.language.walker import analyse_tree

    try:
        return analyse_tree(parse_text(value), is_expression=False)
    except LocatedError as error:
        return _without_frames(error)


@lru_cache(CACHE_SIZE)
def _expression_result(value: str) -> Analysis | LocatedError:
    path = plain_path(value)
    if path is not None:
        return Analysis((_reference(path),), (), constant=False)
    from evaluator.language.parsing import parse_expression
    from evaluator.language.walker import analyse_tree

    try:
        return analyse_tree(parse_expression(value), is_expression=True)
    except LocatedError as error:
        return _without_frames(error)


def _without_frames(error: LocatedError) -> LocatedError:
    """`error` without the frames of the parser, which hold the text and its tokens."""
    for each in (error, error.__cause__, error.__context__):
        if each is not None:
            each.with_traceback(None)
    return error


def _reference(path: PlainPath) -> Reference:
    return Reference(path.names[0], path.names[1:], offset=path.offset, optional=False)
