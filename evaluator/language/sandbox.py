"""Renders texts to strings and evaluates expressions to values: immutable, bounded, with located
errors.

A text sees plain data, and it can do what `compiler` has a closure for: it cannot reach a Python
attribute, function or module. Every text has the same bounds.

- An undefined name or field is an error, never an empty string, unless `is defined`, `default(…)`
  or a comparison with `undefined` provides for it. So is null, unless `default(…)` does.
- A value is written once and never read as a template: `{{` in it stays as it is. Strings are
  written as they are, booleans as `true` and `false`, numbers plainly, arrays and objects as JSON.
- `x if test` without `else` is an empty string if the test does not hold.
- A dot reads a key of a mapping. `d.items()` and the like call one of the methods listed in
  `methods`.
- Calls of function templates are awaited, one after the other, in the order of the text.

Compiles texts to closures that write them, and caches the compiled texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NoReturn, Protocol, TypeVar, cast

from jinja2 import nodes

from evaluator.errors import ExpressionError
from evaluator.language.expressions import ExpressionCompiler, label
from evaluator.language.fences import FencedScope, fence_value, tags_around
from evaluator.language.functions import Evaluate, Execute, Macro
from evaluator.language.locating import CAUGHT, LocatedError, guarded, raise_at
from evaluator.language.scopes import Scope, describe, plain
from evaluator.language.syntax import (
    CACHE_SIZE,
    has_markup,
    offset_of,
    parse_expression,
    parse_text,
)
from evaluator.language.values import (
    Loop,
    Namespace,
    PendingCall,
    Rendering,
    items_of,
    measure,
    text_of,
)
from evaluator.nodes import Expression, Span, Text


@lru_cache(CACHE_SIZE)
def compiled_text(value: str) -> Execute:
    """Returns the closure that writes a text. Raises: LocatedError."""
    tree = parse_text(value)
    return Compiler(tree).body(tree.body)


@lru_cache(CACHE_SIZE)
def compiled_expression(value: str) -> Evaluate:
    """Returns the closure that gives an expression's value. Raises: LocatedError."""
    tree = parse_expression(value)
    return ExpressionCompiler(tree).value(tree)


class Compiler(ExpressionCompiler):
    """Compiles the statements of one text."""

    def body(self, children: Sequence[nodes.Node]) -> Execute:
        """Compiles statements that run one after the other."""
        parts: list[Execute] = []
        for child in children:
            if isinstance(child, nodes.Output):
                parts.extend(self.output(part) for part in child.nodes)
            else:
                parts.append(getattr(self, f"run_{type(child).__name__.lower()}")(child))
        if len(parts) == 1:
            return parts[0]

        def execute(run: Rendering, out: list[str]) -> None:
            for part in parts:
                part(run, out)

        return execute

    def output(self, node: nodes.Node) -> Execute:
        offset = offset_of(node)
        if isinstance(node, nodes.TemplateData):
            length = len(node.data)
            data = node.data

            def constant(run: Rendering, out: list[str]) -> None:
                run.remaining -= length
                if run.remaining < 0:
                    raise run.too_long(offset)
                out.append(data)

            return constant
        value_of = self.value(node)
        what = label(node)

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

    def run_if(self, node: nodes.If) -> Execute:
        branches = [
            (self.value(branch.test), self.body(branch.body)) for branch in (node, *node.elif_)
        ]
        otherwise = self.body(node.else_)

        def execute(run: Rendering, out: list[str]) -> None:
            for test, body in branches:
                if test(run):
                    body(run, out)
                    return
            otherwise(run, out)

        return execute

    def run_for(self, node: nodes.For) -> Execute:
        iterable = self.value(node.iter)
        bind = self.target(node.target)
        otherwise = self.body(node.else_)
        body = self.body(node.body)
        test = None
        if node.test is not None:
            test = self.value(node.test)

        def passes(run: Rendering, outside: dict[str, Any], item: Any, test: Evaluate) -> bool:
            run.tick()
            run.names = dict(outside)
            bind(run, item)
            return bool(test(run))

        @guarded(offset_of(node.iter), "cannot loop")
        def execute(run: Rendering, out: list[str]) -> None:
            items = items_of(run, iterable(run))
            outside = run.names
            around = outside.get("loop")
            cost = 1 + (len(outside) >> 3)
            try:
                if test is not None:
                    items = [item for item in items if passes(run, outside, item, test)]
                loop = Loop(items, around.depth + 1 if isinstance(around, Loop) else 1)
                for index, value in enumerate(items):
                    run.tick(cost)
                    loop.index0 = index
                    run.names = {**outside, "loop": loop}
                    bind(run, value)
                    body(run, out)
            finally:
                run.names = outside
            if not items:
                otherwise(run, out)

        return execute

    def run_assign(self, node: nodes.Assign) -> Execute:
        value = self.value(node.node)
        bind = self.target(node.target)
        return lambda run, out: bind(run, value(run))

    def run_assignblock(self, node: nodes.AssignBlock) -> Execute:
        bind = self.target(node.target)
        captured = self.captured(node)
        return lambda run, out: bind(run, captured(run))

    def run_filterblock(self, node: nodes.FilterBlock) -> Execute:
        captured = self.captured(node)
        offset = offset_of(node)

        @guarded(offset, "the filtered text cannot be written")
        def execute(run: Rendering, out: list[str]) -> None:
            text = text_of(run, captured(run), what="the filtered text")
            run.remaining -= len(text)
            if run.remaining < 0:
                raise run.too_long(offset)
            out.append(text)

        return execute

    def captured(self, node: nodes.AssignBlock | nodes.FilterBlock) -> Evaluate:
        """Compiles a block to its text, filtered; names that are set inside stay inside."""
        inner = self.body(node.body)
        transform = None
        if node.filter is not None:
            transform = self.value(node.filter)

        @guarded(offset_of(node), "the block cannot be evaluated")
        def evaluate(run: Rendering) -> Any:
            parts: list[str] = []
            with run.inner_names(run.names):
                inner(run, parts)
            text = "".join(parts)
            run.charge(len(text))
            if transform is None:
                return text
            run.blocks.append(text)
            return transform(run)

        return evaluate

    def run_with(self, node: nodes.With) -> Execute:
        binds = [self.target(target) for target in node.targets]
        values = self.values(node.values)
        body = self.body(node.body)

        def execute(run: Rendering, out: list[str]) -> None:
            given = [value(run) for value in values]
            with run.inner_names(run.names):
                for bind, value in zip(binds, given, strict=True):
                    bind(run, value)
                body(run, out)

        return execute

    def run_macro(self, node: nodes.Macro) -> Execute:
        params = tuple(argument.name for argument in node.args)
        name = node.name
        defaults = self.values(node.defaults)
        body = self.body(node.body)

        def execute(run: Rendering, out: list[str]) -> None:
            run.names[name] = Macro(name, params, defaults=defaults, body=body, names=run.names)

        return execute

    def target(self, node: nodes.Node) -> Callable[[Rendering, Any], None]:
        """Compiles the target of an assignment: a name, several names, or a field of a
        namespace.
        """
        offset = offset_of(node)
        if isinstance(node, nodes.Name):
            name = node.name

            def bind(run: Rendering, value: Any) -> None:
                run.names[name] = value

            return bind
        if isinstance(node, nodes.NSRef):
            name = node.name
            field = node.attr

            def bind_field(run: Rendering, value: Any) -> None:
                namespace = run.names.get(name)
                if not isinstance(namespace, Namespace):
                    raise LocatedError(f"{name!r} is not a namespace", "wrong-type", offset=offset)
                namespace.fields[field] = value

            return bind_field
        items = cast(nodes.Tuple, node).items
        parts = [self.target(part) for part in items]
        first = offset_of(items[0]) if items else offset

        def unpack(run: Rendering, value: Any) -> None:
            if not isinstance(value, list | tuple) or len(value) != len(parts):
                count = ""
                if isinstance(value, list | tuple):
                    count = f" of {len(value)}"
                message = f"{len(parts)} names cannot be bound to {describe(value)}{count}"
                raise LocatedError(message, "wrong-type", offset=first)
            for part, piece in zip(parts, value, strict=True):
                part(run, piece)

        return unpack


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
    if has_markup(text.value):
        return _write(text, Rendering(scope))
    return text.value


async def render(text: Text, scope: Scope, *, functions: FunctionCaller | None = None) -> str:
    """Does the same as `render_sync`, with calls of function templates awaited through
    `functions`.
    """
    if not has_markup(text.value):
        return text.value
    if functions is None:
        return _write(text, Rendering(scope))
    return await _awaiting(text, _write, scope=scope, functions=functions)


async def render_prompt(
    text: Text, scope: Scope, *, functions: FunctionCaller | None = None
) -> str:
    """Does the same as `render`, for a text that a model reads: no value can close a tag that the
    text puts around it.

    See `fences`.
    """
    names = tags_around(text.value)
    if not names:
        return await render(text, scope, functions=functions)
    return await render(text, FencedScope(scope, names), functions=_fenced(functions, names))


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
    return _evaluate(expression.source, Rendering(scope))


async def evaluate_expression(
    expression: Expression, scope: Scope, *, functions: FunctionCaller | None
) -> Any:
    """Does the same as `evaluate_expression_sync`, with calls of function templates awaited through
    `functions`.
    """
    if functions is None:
        return evaluate_expression_sync(expression, scope)
    return await _awaiting(expression.source, _evaluate, scope=scope, functions=functions)


def _write(text: Text, run: Rendering) -> str:
    out: list[str] = []
    try:
        compiled_text(text.value)(run, out)
    except CAUGHT as error:
        _raise_in(text, error)
    return "".join(out)


def _evaluate(text: Text, run: Rendering) -> Any:
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
    text: Text, work: Callable[[Text, Rendering], T], scope: Scope, functions: FunctionCaller
) -> T:
    """Starts again each time a call has returned its result; a call is never made twice."""
    results: list[Any] = []
    while True:
        try:
            return work(text, Rendering(scope, results))
        except PendingCall as pending:
            call = pending
        span = text.locate(call.offset)
        result = await functions(call.name, call.args_, call.kwargs, span, call.index)
        results.append(_plain_result(call.name, result, span=span))


def _plain_result(name: str, result: Any, span: Span) -> Any:
    try:
        return plain(result, f"{name}()")
    except Exception as error:
        raise ExpressionError(str(error), span, code="wrong-type") from error
