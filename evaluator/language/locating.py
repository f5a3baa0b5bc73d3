"""Errors of texts and expressions, located by their offset in the text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NoReturn, TypeVar

from evaluator.errors import ExpressionError, SandboxError
from evaluator.errors.messages import did_you_mean
from evaluator.nodes import Text
from evaluator.patterns import Pattern

_F = TypeVar("_F", bound=Callable[..., Any])
_FUNCTION = Pattern(r"[\w.<>]+\(\)")
_LISTED = 12
# Keys of data may be many and long.
_COMPARED = 1000
_COMPARED_CHARS = 100

FOREIGN = (
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
)
"""The exceptions that Python may raise in operations on plain values."""


class LocatedError(Exception):
    """A text cannot be read or evaluated; `offset` is the position of the error (None: not yet
    known).

    `forbidden` makes it a SandboxError for the caller.
    """

    def __init__(
        self,
        message: str,
        code: str,
        *,
        offset: int | None = None,
        forbidden: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.code = code
        self.forbidden = forbidden

    def located(self, text: Text) -> ExpressionError:
        """Returns the error for callers, at its position in the author's file."""
        if self.forbidden:
            kind = SandboxError
        else:
            kind = ExpressionError
        offset = min(self.offset or 0, len(text.value))
        return kind(self.message, text.locate(offset), self.code)


CAUGHT = (LocatedError, *FOREIGN)
"""The exceptions that a closure catches and passes to `raise_at`."""


def guarded(offset: int, problem: str) -> Callable[[_F], _F]:
    """Decorates a closure: an exception in CAUGHT becomes a LocatedError at `offset`, if it has no
    offset yet.

    A closure that runs often catches for itself, which spares it the second call.
    """

    def decorate(function: _F) -> _F:
        def call(*args: Any) -> Any:
            try:
                return function(*args)
            except CAUGHT as error:
                raise_at(offset, problem, error=error)

        return call  # type: ignore[return-value]

    return decorate


def raise_at(offset: int, problem: str, error: Exception) -> NoReturn:
    """Raises `error` as a LocatedError, at `offset` if it has no offset yet."""
    if isinstance(error, LocatedError):
        if error.offset is None:
            error.offset = offset
        raise error
    raise _from_python(offset, problem, error=error) from error


def _from_python(offset: int, problem: str, error: Exception) -> LocatedError:
    if isinstance(error, RecursionError):
        return LocatedError("nested too deeply", "too-deep", offset=offset, forbidden=True)
    if isinstance(error, MemoryError):
        return LocatedError("takes too much memory", "too-large", offset=offset, forbidden=True)
    if isinstance(error, ZeroDivisionError):
        return LocatedError("division by zero", "division-by-zero", offset=offset)
    if isinstance(error, OverflowError):
        return LocatedError("the number is too large", "too-large", offset=offset, forbidden=True)
    # The names of Python functions mean nothing to an author.
    return LocatedError(
        f"{problem}: {_FUNCTION.sub('it', str(error))}", "wrong-type", offset=offset
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns ``"; did you mean `x`?"`` for names close to `name`, or an empty string."""
    if len(name) > _COMPARED_CHARS:
        return ""
    compared = [each for each in islice(known, _COMPARED) if len(each) <= _COMPARED_CHARS]
    hint = did_you_mean(name, compared)
    if hint:
        return f"; {hint}"
    return ""


def undefined_name(name: str, known: list[str]) -> str:
    """Returns the message for a name that nothing defines, with the names that are defined."""
    exist = "nothing is defined here"
    if known:
        exist = f"defined here: {first_names(known)}"
    return f"{name!r} is not defined{nearest(name, known)} ({exist})"


def first_names(names: list[str]) -> str:
    """Returns the first names of a list for a message, in their order."""
    return ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
