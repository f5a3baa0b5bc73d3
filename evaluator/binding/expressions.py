"""Parsed expressions → closures over a `Run`. Nothing is compiled to Python code.

Jinja's compiler writes Python, folds constants while it does, and hands templates Python objects to reach
around in. Here each node becomes one closure that knows its offset: a template can do what these closures do
and nothing else, every error is located to the character, and compiling costs about as much as parsing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import nodes

from evaluator.binding.bounds import Run
from evaluator.binding.callables import GLOBAL_FUNCTIONS, Evaluate, Macro
from evaluator.binding.filters import FILTERS
from evaluator.binding.locating import label, located, placed, written
from evaluator.binding.methods import method_of
from evaluator.binding.operations import (
    BINARY,
    COMPARE,
    FOREIGN,
    Loop,
    absent,
    attribute,
    item,
    items_of,
    settled,
)
from evaluator.binding.predicates import TESTS
from evaluator.binding.scopes import MISSING
from evaluator.binding.types import describe
from evaluator.library.syntax import (
    CONSTANTS,
    GLOBALS,
    Fault,
    is_undefined_name,
    offset_of,
    raise_unknown_name,
)

Arguments = Callable[[Run], tuple[tuple[Any, ...], dict[str, Any]]]


def _no_arguments(run: Run) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (), {}


def _constantly(value: Any) -> Evaluate:
    return lambda run: value


class ExpressionCompiler:
    """One text's closures. Recursion is bounded by the parser's bound on depth."""

    def __init__(self, tree: nodes.Node) -> None:
        bound = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
        bound |= {macro.name for macro in tree.find_all(nodes.Macro)}
        if any(True for _ in tree.find_all(nodes.For)):
            bound.add("loop")
        self.bound = bound

    def value(self, node: nodes.Node, soft: bool = False) -> Evaluate:
        """What gives an expression's value; `soft` gives MISSING in place of an undefined name or field."""
        kind = type(node).__name__
        if isinstance(node, nodes.BinExpr) and kind in BINARY:
            return self.binary(node, kind)
        if isinstance(node, nodes.Name | nodes.Getattr | nodes.Getitem):
            method = getattr(self, f"value_{kind.lower()}")
            return method(node, soft)
        return getattr(self, f"value_{kind.lower()}")(node)

    def values(self, children: Sequence[nodes.Node]) -> tuple[Evaluate, ...]:
        return tuple(self.value(child) for child in children)

    def value_const(self, node: nodes.Const) -> Evaluate:
        value = node.value
        return _constantly(value)

    def value_name(self, node: nodes.Name, soft: bool = False) -> Evaluate:
        name, offset = node.name, offset_of(node)
        if name in self.bound:

            def load(run: Run) -> Any:
                value = run.look_up(name)
                if value is MISSING and not soft:
                    raise_unknown_name(name, offset, run.visible())
                return value

            return load
        if name in CONSTANTS:
            return _constantly(None)

        def load_free(run: Run) -> Any:
            value = run.scope.get(name)
            if value is MISSING and not soft:
                raise_unknown_name(name, offset, run.visible())
            return value

        return load_free

    def value_getattr(self, node: nodes.Getattr, soft: bool = False) -> Evaluate:
        base, name, what = self.value(node.node, soft), node.attr, label(node.node)
        offset = offset_of(node) + 1

        def load(run: Run) -> Any:
            value = base(run)
            if value.__class__ is dict and name in value:
                return value[name]
            if soft and (value is MISSING or value is None):
                return MISSING
            try:
                found = attribute(run, value, name, what)
                if found is MISSING and not soft:
                    raise absent(value, name, what) if not isinstance(value, Loop) else no_neighbour(name)
            except Fault as fault:
                raise placed(fault, offset) from None
            return found

        return load

    def value_getitem(self, node: nodes.Getitem, soft: bool = False) -> Evaluate:
        base, key_of, what = self.value(node.node, soft), self.value(node.arg), label(node.node)
        offset = offset_of(node) + 1

        def load(run: Run) -> Any:
            value, key = base(run), key_of(run)
            if soft and (value is MISSING or value is None):
                return MISSING
            try:
                found = item(run, value, key, what)
                if found is MISSING and not soft:
                    raise absent(value, key, what)
            except Fault as fault:
                raise placed(fault, offset) from None
            except FOREIGN as error:
                raise located(offset, "index", error) from error
            return found

        return load

    def value_slice(self, node: nodes.Slice) -> Evaluate:
        parts = [None if part is None else self.value(part) for part in (node.start, node.stop, node.step)]
        return lambda run: slice(*(None if part is None else part(run) for part in parts))

    def value_condexpr(self, node: nodes.CondExpr) -> Evaluate:
        test, yes = self.value(node.test), self.value(node.expr1)
        if node.expr2 is None:
            return lambda run: yes(run) if test(run) else ""
        no = self.value(node.expr2)
        return lambda run: yes(run) if test(run) else no(run)

    def value_and(self, node: nodes.And) -> Evaluate:
        left, right = self.value(node.left), self.value(node.right)
        return lambda run: left(run) and right(run)

    def value_or(self, node: nodes.Or) -> Evaluate:
        left, right = self.value(node.left), self.value(node.right)
        return lambda run: left(run) or right(run)

    def value_not(self, node: nodes.Not) -> Evaluate:
        inner = self.value(node.node)
        return lambda run: not inner(run)

    def value_neg(self, node: nodes.Neg) -> Evaluate:
        return self._signed(node, "Sub")

    def value_pos(self, node: nodes.Pos) -> Evaluate:
        return self._signed(node, "Add")

    def _signed(self, node: nodes.UnaryExpr, kind: str) -> Evaluate:
        inner, operation, offset = self.value(node.node), BINARY[kind], offset_of(node)

        def signed(run: Run) -> Any:
            try:
                return operation(run, 0, inner(run))
            except Fault as fault:
                raise placed(fault, offset) from None

        return signed

    def binary(self, node: nodes.BinExpr, kind: str) -> Evaluate:
        left, right = self.value(node.left), self.value(node.right)
        operation, offset = BINARY[kind], offset_of(node)

        def operate(run: Run) -> Any:
            try:
                return operation(run, left(run), right(run))
            except Fault as fault:
                raise placed(fault, offset) from None
            except FOREIGN as error:
                raise located(offset, "cannot compute", error) from error

        return operate

    def value_compare(self, node: nodes.Compare) -> Evaluate:
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        soft = any(is_undefined_name(side) for side in sides)
        first = self.value(node.expr, soft)
        rest = [(COMPARE[operand.op], self.value(operand.expr, soft)) for operand in node.ops]
        offset = offset_of(node.expr)

        def compare(run: Run) -> bool:
            left = first(run)
            for operation, side in rest:
                right = side(run)
                if soft:
                    left, right = (None if value is MISSING else value for value in (left, right))
                try:
                    if not operation(run, left, right):
                        return False
                except Fault as fault:
                    raise placed(fault, offset) from None
                except FOREIGN as error:
                    raise located(offset, "cannot compare", error) from error
                left = right
            return True

        return compare

    def value_concat(self, node: nodes.Concat) -> Evaluate:
        parts = [(self.value(part), label(part), offset_of(part)) for part in node.nodes]

        def concat(run: Run) -> str:
            texts = [written(run, value(run), what, offset) for value, what, offset in parts]
            run.charge(sum(map(len, texts)))
            return "".join(texts)

        return concat

    def value_list(self, node: nodes.List | nodes.Tuple) -> Evaluate:
        parts = self.values(node.items)

        def build(run: Run) -> list[Any]:
            run.charge_items(len(parts))
            return [part(run) for part in parts]

        return build

    value_tuple = value_list

    def value_dict(self, node: nodes.Dict) -> Evaluate:
        pairs = [(self.value(pair.key), self.value(pair.value), offset_of(pair)) for pair in node.items]

        def build(run: Run) -> dict[str, Any]:
            run.charge_items(len(pairs) * 2)
            result: dict[str, Any] = {}
            for key_of, value_of, offset in pairs:
                key = key_of(run)
                if not isinstance(key, str):
                    raise Fault(f"a key is a string, not {describe(key)}", offset, "wrong-type")
                result[key] = value_of(run)
            return result

        return build

    def value_filter(self, node: nodes.Filter) -> Evaluate:
        if isinstance(node.node, nodes.Node):
            soft = node.name in ("d", "default")
            return self.filtered(node, self.value(node.node, soft))
        return self.filtered(node, lambda run: run.blocks.pop())

    def filtered(self, node: nodes.Filter, subject: Evaluate) -> Evaluate:
        name, offset = node.name, offset_of(node)
        arguments = self.arguments(node)
        if name in ("d", "default"):
            return self.default(node, subject)
        function = FILTERS[name]

        def apply(run: Run) -> Any:
            value = subject(run)
            try:
                run.tick()
                if arguments is None:
                    return function(run, value)
                args, kwargs = arguments(run)
                return function(run, value, *args, **kwargs)
            except Fault as fault:
                raise placed(fault, offset) from None
            except FOREIGN as error:
                raise located(offset, f"filter {name!r} cannot be applied", error) from error

        return apply

    def default(self, node: nodes.Filter, subject: Evaluate) -> Evaluate:
        """`default(value, boolean)`: for what is undefined or null, with `boolean` also for what is false."""
        given: dict[str, nodes.Expr] = {str(keyword.key): keyword.value for keyword in node.kwargs}
        given.update(zip(("default_value", "boolean"), node.args, strict=False))
        if len(node.args) > 2 or given.keys() - {"default_value", "boolean"} or node.dyn_args or node.dyn_kwargs:
            raise Fault("default takes a value and a boolean", offset_of(node), "wrong-arity")
        fallback = self.value(given["default_value"]) if "default_value" in given else _constantly("")
        falsy = self.value(given["boolean"]) if "boolean" in given else _constantly(False)

        def apply(run: Run) -> Any:
            value = subject(run)
            if value is MISSING or value is None or (not value and falsy(run)):
                return fallback(run)
            return value

        return apply

    def value_test(self, node: nodes.Test) -> Evaluate:
        name, offset = node.name, offset_of(node)
        if name in ("defined", "undefined"):
            subject, wanted = self.value(node.node, True), name == "defined"
            return lambda run: (subject(run) is not MISSING) is wanted
        subject, arguments, test = self.value(node.node), self.arguments(node), TESTS[name]

        def apply(run: Run) -> bool:
            value = subject(run)
            try:
                args, kwargs = ((), {}) if arguments is None else arguments(run)
                return bool(test(run, value, *args, **kwargs))
            except Fault as fault:
                raise placed(fault, offset) from None
            except FOREIGN as error:
                raise located(offset, f"test {name!r} cannot be applied", error) from error

        return apply

    def arguments(self, node: nodes.Call | nodes.Filter | nodes.Test) -> Arguments | None:
        """What gives the arguments of a call, or None where there are none."""
        if not (node.args or node.kwargs or node.dyn_args or node.dyn_kwargs):
            return None
        positional = self.values(node.args)
        keywords = [(str(keyword.key), self.value(keyword.value)) for keyword in node.kwargs]
        star = None if node.dyn_args is None else self.value(node.dyn_args)
        stars = None if node.dyn_kwargs is None else self.value(node.dyn_kwargs)
        offset = offset_of(node)

        def evaluate(run: Run) -> tuple[tuple[Any, ...], dict[str, Any]]:
            args = tuple([part(run) for part in positional])
            kwargs = {key: part(run) for key, part in keywords}
            if star is not None:
                args += tuple(items_of(run, star(run)))
            if stars is not None:
                further = stars(run)
                if not isinstance(further, Mapping) or not all(isinstance(key, str) for key in further):
                    raise Fault(f"** takes an object, not {describe(further)}", offset, "wrong-type")
                if further.keys() & kwargs.keys():
                    raise Fault("an argument is given twice", offset, "wrong-arity")
                kwargs.update(further)
            return args, kwargs

        return evaluate

    def value_call(self, node: nodes.Call) -> Evaluate:
        target = node.node
        arguments = self.arguments(node) or _no_arguments
        if isinstance(target, nodes.Getattr):
            return self.method_call(target, arguments)
        if not isinstance(target, nodes.Name):
            raise Fault("only a function, a macro or a method is called", offset_of(node), "unknown-function")
        name, offset, local = target.name, offset_of(target), target.name in self.bound

        def call(run: Run) -> Any:
            value = run.names.get(name, MISSING) if local else MISSING
            args, kwargs = arguments(run)
            try:
                if isinstance(value, Macro):
                    return value.call(run, args, kwargs)
                if value is not MISSING:
                    raise Fault(f"{name!r} is {describe(value)}, not a function", None, "unknown-function")
                if name in GLOBALS:
                    return GLOBAL_FUNCTIONS[name](run, *args, **kwargs)
                settled(run, list(args))
                settled(run, kwargs)
                return run.call(name, args, kwargs, offset)
            except Fault as fault:
                raise placed(fault, offset) from None
            except FOREIGN as error:
                raise located(offset, f"{name!r} cannot be called", error) from error

        return call

    def method_call(self, target: nodes.Getattr, arguments: Arguments) -> Evaluate:
        subject, name, what, offset = (
            self.value(target.node),
            target.attr,
            label(target.node),
            offset_of(target) + 1,
        )

        def call(run: Run) -> Any:
            value = subject(run)
            args, kwargs = arguments(run)
            try:
                run.tick()
                return method_of(value, name, what)(run, value, *args, **kwargs)
            except Fault as fault:
                raise placed(fault, offset) from None
            except FOREIGN as error:
                raise located(offset, f"{name!r} cannot be called", error) from error

        return call


def no_neighbour(name: str) -> Fault:
    return Fault(f"loop.{name} is not there on this turn; test it with 'is defined'", None, "undefined-attribute")
