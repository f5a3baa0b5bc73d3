"""Parsed texts → closures that write them; the entry points, with their caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import nodes

from evaluator.binding.bounds import Namespace, Run
from evaluator.binding.callables import Evaluate, Execute, Macro
from evaluator.binding.expressions import ExpressionCompiler
from evaluator.binding.locating import label, placed, written
from evaluator.binding.operations import Loop, items_of
from evaluator.binding.types import describe
from evaluator.library.syntax import CACHE_SIZE, Fault, offset_of, parse_expression, parse_text


@lru_cache(CACHE_SIZE)
def compiled_text(value: str) -> Execute:
    """What writes a text, kept by its value. Raises: Fault."""
    tree = parse_text(value)
    return Compiler(tree).body(tree.body)


@lru_cache(CACHE_SIZE)
def compiled_expression(value: str) -> Evaluate:
    """What gives an expression's value, kept by its source. Raises: Fault."""
    tree = parse_expression(value)
    return ExpressionCompiler(tree).value(tree)


class Compiler(ExpressionCompiler):
    """Statements besides expressions."""

    def body(self, children: Sequence[nodes.Node]) -> Execute:
        """What runs statements one after the other."""
        parts: list[Execute] = []
        for child in children:
            if isinstance(child, nodes.Output):
                parts.extend(self.output(part) for part in child.nodes)
            else:
                parts.append(getattr(self, f"run_{type(child).__name__.lower()}")(child))
        if len(parts) == 1:
            return parts[0]

        def execute(run: Run, out: list[str]) -> None:
            for part in parts:
                part(run, out)

        return execute

    def output(self, node: nodes.Node) -> Execute:
        if isinstance(node, nodes.TemplateData):
            data, length = node.data, len(node.data)

            def constant(run: Run, out: list[str]) -> None:
                run.write(length)
                out.append(data)

            return constant
        value_of, what, offset = self.value(node), label(node), offset_of(node)

        def write(run: Run, out: list[str]) -> None:
            text = value_of(run)
            if text.__class__ is not str:
                text = written(run, text, what, offset)
            run.remaining -= len(text)
            if run.remaining < 0:
                raise Fault(
                    f"the result is longer than {run.bounds.output_chars:,} characters",
                    offset,
                    "too-large",
                    True,
                )
            out.append(text)

        return write

    def run_if(self, node: nodes.If) -> Execute:
        branches = [(self.value(branch.test), self.body(branch.body)) for branch in (node, *node.elif_)]
        otherwise = self.body(node.else_)

        def execute(run: Run, out: list[str]) -> None:
            for test, body in branches:
                if test(run):
                    body(run, out)
                    return
            otherwise(run, out)

        return execute

    def run_for(self, node: nodes.For) -> Execute:
        iterable, offset = self.value(node.iter), offset_of(node.iter)
        bind, body, otherwise = self.target(node.target), self.body(node.body), self.body(node.else_)
        test = None if node.test is None else self.value(node.test)

        def passing(run: Run, items: Sequence[Any], outside: dict[str, Any]) -> list[Any]:
            kept: list[Any] = []
            assert test is not None
            for candidate in items:
                run.tick()
                run.names = dict(outside)
                bind(run, candidate)
                if test(run):
                    kept.append(candidate)
            return kept

        def execute(run: Run, out: list[str]) -> None:
            try:
                items = items_of(run, iterable(run))
            except Fault as fault:
                raise placed(fault, offset) from None
            outside = run.names
            around = outside.get("loop")
            try:
                if test is not None:
                    items = passing(run, items, outside)
                loop = Loop(items, around.depth + 1 if isinstance(around, Loop) else 1)
                cost = 1 + (len(outside) >> 3)
                for index, value in enumerate(items):
                    try:
                        run.tick(cost)
                    except Fault as fault:
                        raise placed(fault, offset) from None
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
        value, bind = self.value(node.node), self.target(node.target)
        return lambda run, out: bind(run, value(run))

    def run_assignblock(self, node: nodes.AssignBlock) -> Execute:
        bind, captured = self.target(node.target), self.captured(node.body, node.filter)
        return lambda run, out: bind(run, captured(run))

    def run_filterblock(self, node: nodes.FilterBlock) -> Execute:
        captured, offset = self.captured(node.body, node.filter), offset_of(node)

        def execute(run: Run, out: list[str]) -> None:
            text = written(run, captured(run), "the filtered text", offset)
            run.write(len(text))
            out.append(text)

        return execute

    def captured(self, body: Sequence[nodes.Node], filtering: nodes.Filter | None) -> Evaluate:
        """What gives the text of a block, filtered; names set inside stay inside."""
        inner = self.body(body)
        transform = None if filtering is None else self.value(filtering)

        def evaluate(run: Run) -> Any:
            outside, run.names = run.names, dict(run.names)
            parts: list[str] = []
            try:
                inner(run, parts)
            finally:
                run.names = outside
            text = "".join(parts)
            run.charge(len(text))
            if transform is None:
                return text
            run.blocks.append(text)
            return transform(run)

        return evaluate

    def run_with(self, node: nodes.With) -> Execute:
        binds = [self.target(target) for target in node.targets]
        values, body = self.values(node.values), self.body(node.body)

        def execute(run: Run, out: list[str]) -> None:
            given = [value(run) for value in values]
            outside, run.names = run.names, dict(run.names)
            try:
                for bind, value in zip(binds, given, strict=True):
                    bind(run, value)
                body(run, out)
            finally:
                run.names = outside

        return execute

    def run_macro(self, node: nodes.Macro) -> Execute:
        name, params = node.name, tuple(argument.name for argument in node.args)
        defaults, body = self.values(node.defaults), self.body(node.body)

        def execute(run: Run, out: list[str]) -> None:
            run.names[name] = Macro(name, params, defaults, body, run.names)

        return execute

    def target(self, node: nodes.Node) -> Callable[[Run, Any], None]:
        """What binds a value to a name, to several, or to a field of a namespace."""
        offset = offset_of(node)
        if isinstance(node, nodes.Name):
            name = node.name

            def bind(run: Run, value: Any) -> None:
                run.names[name] = value

            return bind
        if isinstance(node, nodes.NSRef):
            name, field = node.name, node.attr

            def bind_field(run: Run, value: Any) -> None:
                namespace = run.names.get(name)
                if not isinstance(namespace, Namespace):
                    raise Fault(f"{name!r} is not a namespace", offset, "wrong-type")
                namespace.fields[field] = value

            return bind_field
        assert isinstance(node, nodes.Tuple)
        parts = [self.target(part) for part in node.items]
        first = offset_of(node.items[0]) if node.items else offset

        def unpack(run: Run, value: Any) -> None:
            if not isinstance(value, list | tuple) or len(value) != len(parts):
                count = f" of {len(value)}" if isinstance(value, list | tuple) else ""
                message = f"{len(parts)} names cannot be bound to {describe(value)}{count}"
                raise Fault(message, first, "wrong-type")
            for part, piece in zip(parts, value, strict=True):
                part(run, piece)

        return unpack
