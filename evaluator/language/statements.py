"""Compiles the statements of a text to closures that write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from jinja2 import nodes

from evaluator.language.closures import Evaluate, Execute, data_writer, sequence, value_writer
from evaluator.language.expressions import ExpressionCompiler, label
from evaluator.language.functions import Macro
from evaluator.language.locating import LocatedError, guarded
from evaluator.language.parsing import offset_of, parse_expression, parse_text
from evaluator.language.scopes import describe
from evaluator.language.values import Group, Loop, Namespace, Rendering, items_of, text_of


def compile_text(value: str) -> Execute:
    """Returns the closure that writes a text. Raises: LocatedError."""
    tree = parse_text(value)
    return Compiler(tree).body(tree.body)


def compile_expression(value: str) -> Evaluate:
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
        return sequence(parts)

    def output(self, node: nodes.Node) -> Execute:
        offset = offset_of(node)
        if isinstance(node, nodes.TemplateData):
            return data_writer(node.data, offset)
        return value_writer(self.value(node), label(node), offset)

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
        if node.test is None:
            test = None
        else:
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
        if node.filter is None:
            transform = None
        else:
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
            if isinstance(value, Group):
                value = list(value.values())
            if not isinstance(value, list | tuple) or len(value) != len(parts):
                if isinstance(value, list | tuple):
                    count = f" of {len(value)}"
                else:
                    count = ""
                message = f"{len(parts)} names cannot be bound to {describe(value)}{count}"
                raise LocatedError(message, "wrong-type", offset=first)
            for part, piece in zip(parts, value, strict=True):
                part(run, piece)

        return unpack
