"""Renders texts to strings and evaluates expressions to values: immutable, bounded, with located
errors.

A text sees plain data, and it can do what `closures`, `expressions` and `statements` have a closure
for: it cannot reach a Python attribute, function or module. Every text has the same bounds.

- An undefined name or field is an error, never an empty string, unless `is defined`, `default(…)`
  or a comparison with `undefined` provides for it. So is null, unless `default(…)` does.
- A value is written once and never read as a template: `{{` in it stays as it is. Strings are
  written as they are, booleans as `true` and `false`, numbers plainly, arrays and objects as JSON.
- `x if test` without `else` is an empty string if the test does not hold.
- A dot reads a key of a mapping. `d.items()` and the like call one of the methods in
  `functions`.
- Calls of function templates are awaited, one after the other, in the order of the text.

Caches the compiled texts.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, NoReturn, Protocol, TypeVar

from evaluator.errors import ExpressionError
from evaluator.language.closures import Evaluate, Execute, plain_expression, plain_text
from evaluator.language.fences import FencedScope, fence_value, tags_around
from evaluator.language.locating import CAUGHT, LocatedError, raise_at
from evaluator.language.scopes import Scope, plain
from evaluator.language.syntax import CACHE_SIZE, has_markup
from evaluator.language.values import PendingCall, Rendering, measure
from evaluator.nodes import Expression, Span, Text


@lru_cache(CACHE_SIZE)
def compiled_text(value: str) -> Execute | None:
    """Returns the closure that writes a text; None for literal text. Raises: LocatedError."""
    if not has_markup(value):
        return None
    plain = plain_text(value)
    if plain is not None:
        return plain
    from evaluator.language.statements import compile_text

    return compile_text(value)


@lru_cache(CACHE_SIZE)
def compiled_expression(value: str) -> Evaluate:
    """Returns the closure that gives an expression's value. Raises: LocatedError."""
    plain = plain_expression(value)
    if plain is not None:
        return plain
    from evaluator.language.statements import compile_expression

    return compile_expression(value)


T = TypeVar("T")


class FunctionCaller(Protocol):
    """Calls function templates. `index` counts the calls of one text from 0; `span` is the call's
    place.

    It returns plain data; what it raises reaches the caller of `render` unchanged.
    """

    async def __call__(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], span: Span, index: int
    ) -> Any: ...


def render_sync(text: Text, scope: Scope) -> str:
    """Returns a text with its variables resolved.

    Raises: ExpressionError, located, for whatever cannot be resolved, a call of a function template
    included; SandboxError, its subclass, for what is forbidden or passes the bounds.
    """
    return _write(text, scope)


async def render(text: Text, scope: Scope, *, functions: FunctionCaller | None = None) -> str:
    """Does the same as `render_sync`, with calls of function templates awaited through
    `functions`.
    """
    if functions is None:
        return _write(text, scope)
    return await _awaiting(text, _write, scope=scope, functions=functions)


def render_prompt(
    text: Text, scope: Scope, *, functions: FunctionCaller | None = None
) -> Coroutine[Any, Any, str]:
    """Does the same as `render`, for a text that a model reads: no value can close a tag that the
    text puts around it.

    See `fences`.
    """
    names = tags_around(text.value)
    if not names:
        return render(text, scope, functions=functions)
    return render(text, FencedScope(scope, names), functions=_fenced(functions, names))


def _fenced(functions: FunctionCaller | None, names: tuple[str, ...]) -> FunctionCaller | None:
    """`functions` with the texts of their results fenced."""
    if functions is None:
        return None

    async def call(
        name: str, args: tuple[Any, ...], kwargs: dict[str, Any], span: Span, index: int
    ) -> Any:
        return fence_value(await functions(name, args, kwargs, span, index), names)

    return call


def as_text(value: Any) -> str:
    """The text that `{{ value }}` writes; a string as it is. Raises: as `render_sync`."""
    if isinstance(value, str):
        return value
    return render_sync(_VALUE, Scope({"value": value}))


_VALUE = Text("{{ value }}", Span())


def evaluate_expression_sync(expression: Expression, scope: Scope) -> Any:
    """Returns an expression's value, as plain data. Raises as `render_sync` does."""
    return _evaluate(expression.source, scope)


async def evaluate_expression(
    expression: Expression, scope: Scope, *, functions: FunctionCaller | None
) -> Any:
    """Does the same as `evaluate_expression_sync`, with calls of function templates awaited through
    `functions`.
    """
    if functions is None:
        return evaluate_expression_sync(expression, scope)
    return await _awaiting(expression.source, _evaluate, scope=scope, functions=functions)


def _write(text: Text, scope: Scope, results: list[Any] | None = None) -> str:
    out: list[str] = []
    try:
        execute = compiled_text(text.value)
        if execute is None:
            return text.value
        execute(Rendering(scope, results), out)
    except CAUGHT as error:
        _raise_in(text, error)
    return "".join(out)


def _evaluate(text: Text, scope: Scope, results: list[Any] | None = None) -> Any:
    run = Rendering(scope, results)
    try:
        value = compiled_expression(text.value)(run)
        measure(run, value)  # only plain data within the bounds may leave the text
    except CAUGHT as error:
        _raise_in(text, error)
    return value


def _raise_in(text: Text, error: Exception) -> NoReturn:
    """Raises the error for callers, at its position in the author's file."""
    try:
        raise_at(0, "cannot be resolved", error=error)
    except LocatedError as located:
        raise located.located(text) from located.__cause__


async def _awaiting(
    text: Text, work: Callable[[Text, Scope, list[Any]], T], scope: Scope, functions: FunctionCaller
) -> T:
    """Starts again each time a call has returned its result; a call is never made twice."""
    results: list[Any] = []
    while True:
        try:
            return work(text, scope, results)
        except PendingCall as pending:
            call = pending
        span = text.locate(call.offset)
        result = await functions(call.name, call.args_, call.kwargs, span, call.index)
        try:
            results.append(plain(result, f"{call.name}()"))
        except Exception as error:
            raise ExpressionError(str(error), span, code="wrong-type") from error
