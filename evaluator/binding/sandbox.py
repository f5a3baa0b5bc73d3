"""Texts → strings and expressions → values: immutable, bounded, every error located in the author's file.

What a text sees is plain data, and what it can do is what `compiler` has a closure for: no Python attribute,
no Python function and no Python code is reachable from it. The same bounds hold for every text, whoever
wrote it.

- A name or field that is not there is an error, never an empty string, unless `is defined`, `default(…)` or a
  comparison with `undefined` provides for it. So is null, unless `default(…)` does.
- A value is written once and never read as a template: `{{` in it stays as it is. Strings are written as
  they are, booleans as `true` and `false`, numbers plainly, arrays and objects as JSON.
- `x if test` without `else` is an empty string where the test does not hold.
- A dot reads a key of a mapping. `d.items()` and the like call one of the methods listed in `methods`.
- Calls of function templates are awaited, one after the other, in the order of the text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from evaluator.binding.bounds import Bounds, Pending, Run
from evaluator.binding.compiler import compiled_expression, compiled_text
from evaluator.binding.locating import located
from evaluator.binding.operations import FOREIGN, settled
from evaluator.binding.scopes import Scope, plain
from evaluator.errors import ExpressionError
from evaluator.library.syntax import Fault, has_markup
from evaluator.nodes import Expression, Span, Text

T = TypeVar("T")

DEFAULT_BOUNDS = Bounds()


class FunctionCaller(Protocol):
    """Who calls function templates. `index` counts the calls of one text from 0; `span` is the call's place.

    What it returns is plain data; what it raises reaches the caller of `render` unchanged.
    """

    async def __call__(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], span: Span, index: int
    ) -> Any: ...


def render_sync(text: Text, scope: Scope, bounds: Bounds = DEFAULT_BOUNDS) -> str:
    """A text with its variables resolved.

    Raises: ExpressionError, located, for whatever cannot be resolved, a call of a function template included;
    SandboxError, its subclass, for what is forbidden or passes the bounds.
    """
    if not has_markup(text.value):
        return text.value
    return _once(text, lambda: _write(text, Run(scope, bounds)))


async def render(
    text: Text, scope: Scope, *, functions: FunctionCaller | None = None, bounds: Bounds = DEFAULT_BOUNDS
) -> str:
    """As `render_sync`, with calls of function templates awaited through `functions`."""
    if functions is None or not has_markup(text.value):
        return render_sync(text, scope, bounds)
    return await _awaiting(text, scope, functions, bounds, lambda run: _write(text, run))


def evaluate_expression_sync(expression: Expression, scope: Scope, bounds: Bounds = DEFAULT_BOUNDS) -> Any:
    """An expression's value, as plain data. Raises as `render_sync` does."""
    source = expression.source
    return _once(source, lambda: _evaluate(source, Run(scope, bounds)))


async def evaluate_expression(
    expression: Expression,
    scope: Scope,
    *,
    functions: FunctionCaller | None = None,
    bounds: Bounds = DEFAULT_BOUNDS,
) -> Any:
    """As `evaluate_expression_sync`, with calls of function templates awaited through `functions`."""
    if functions is None:
        return evaluate_expression_sync(expression, scope, bounds)
    source = expression.source
    return await _awaiting(source, scope, functions, bounds, lambda run: _evaluate(source, run))


def _write(text: Text, run: Run) -> str:
    out: list[str] = []
    compiled_text(text.value)(run, out)
    return "".join(out)


def _evaluate(source: Text, run: Run) -> Any:
    return settled(run, compiled_expression(source.value)(run))


def _once(text: Text, work: Callable[[], T]) -> T:
    try:
        return work()
    except Fault as fault:
        raise fault.located(text) from fault.__cause__
    except FOREIGN as error:
        raise located(0, "cannot be resolved", error).located(text) from error


async def _awaiting(text: Text, scope: Scope, functions: FunctionCaller, bounds: Bounds, work: Callable[[Run], T]) -> T:
    """Work from the start each time a call's result has come in; calls already made are not made again."""
    results: list[Any] = []
    while True:
        run = Run(scope, bounds, results)
        try:
            return _once(text, lambda run=run: work(run))
        except Pending as pending:
            call = pending
        span = text.locate(call.offset)
        result = await functions(call.name, call.args_, call.kwargs, span, call.index)
        results.append(_plain_result(call.name, result, span))


def _plain_result(name: str, result: Any, span: Span) -> Any:
    try:
        return plain(result, f"{name}()")
    except Exception as error:
        raise ExpressionError(str(error), span, "wrong-type") from error
