"""Compiles expressions to closures over a `Run`. Nothing is compiled to Python code.

Jinja's compiler writes Python, folds constants while it does, and hands Python objects to
templates. Here each node becomes one closure that knows its offset: a template can do what these
closures do and nothing else, every error is located to the character, and compiling costs about as
much as parsing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import nodes

from evaluator.language.closures import Evaluate, field_value, label_of, name_value
from evaluator.language.filters import FILTERS
from evaluator.language.functions import GLOBAL_FUNCTIONS, Macro, method_of
from evaluator.language.locating import CAUGHT, LocatedError, guarded, raise_at
from evaluator.language.operators import BINARY, COMPARE, TESTS
from evaluator.language.parsing import free_path, is_undefined_name, offset_of
from evaluator.language.scopes import MISSING, describe
from evaluator.language.syntax import CONSTANTS
from evaluator.language.values import Rendering, absent, item, items_of, measure, text_of

Arguments = Callable[[Rendering], tuple[tuple[Any, ...], dict[str, Any]]]


def _constant(value: Any) -> Evaluate:
    return lambda run: value


def _block(run: Rendering) -> str:
    return run.blocks.pop()


def label(node: nodes.Node) -> str:
    """Returns how messages name an expression: by its path, if it has one."""
    base, path = free_path(node)
    if not isinstance(base, nodes.Name):
        return "the value"
    return label_of(base.name, path)


class ExpressionCompiler:
    """Compiles the expressions of one text. Recursion is bounded by the parser's bound on depth."""

    def __init__(self, tree: nodes.Node) -> None:
        bound = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
        bound |= {macro.name for macro in tree.find_all(nodes.Macro)}
        if tree.find(nodes.For) is not None:
            bound.add("loop")
        self.bound = bound

    def value(self, node: nodes.Node, soft: bool = False) -> Evaluate:
        """Compiles an expression; with `soft`, an undefined name or field is MISSING instead of an
        error.
        """
        if isinstance(node, nodes.BinExpr) and type(node).__name__ in BINARY:
            return self.binary(node)
        method = getattr(self, f"value_{type(node).__name__.lower()}")
        if isinstance(node, nodes.Name | nodes.Getattr | nodes.Getitem):
            return method(node, soft)
        return method(node)

    def values(self, children: Sequence[nodes.Node]) -> tuple[Evaluate, ...]:
        return tuple(self.value(child) for child in children)

    # Names and fields

    def value_const(self, node: nodes.Const) -> Evaluate:
        return _constant(node.value)

    def value_name(self, node: nodes.Name, soft: bool = False) -> Evaluate:
        is_local = node.name in self.bound
        if node.name in CONSTANTS and not is_local:
            return _constant(None)
        return name_value(node.name, offset_of(node), is_local=is_local, is_soft=soft)

    def value_getattr(self, node: nodes.Getattr, soft: bool = False) -> Evaluate:
        base = self.value(node.node, soft)
        return field_value(
            base, node.attr, what=label(node.node), offset=offset_of(node), is_soft=soft
        )

    def value_getitem(self, node: nodes.Getitem, soft: bool = False) -> Evaluate:
        base = self.value(node.node, soft)
        key_of = self.value(node.arg)
        what = label(node.node)
        offset = offset_of(node) + 1

        def load(run: Rendering) -> Any:
            value = base(run)
            key = key_of(run)
            if soft and (value is MISSING or value is None):
                return MISSING
            try:
                found = item(run, value, key=key, what=what)
                if found is MISSING and not soft:
                    raise absent(value, key, what=what)
            except CAUGHT as error:
                raise_at(offset, "index", error=error)
            return found

        return load

    def value_slice(self, node: nodes.Slice) -> Evaluate:
        parts = [
            _constant(None) if part is None else self.value(part)
            for part in (node.start, node.stop, node.step)
        ]
        return lambda run: slice(*(part(run) for part in parts))

    # Operators

    def value_condexpr(self, node: nodes.CondExpr) -> Evaluate:
        test = self.value(node.test)
        yes = self.value(node.expr1)
        if node.expr2 is None:
            no = _constant("")
        else:
            no = self.value(node.expr2)
        return lambda run: yes(run) if test(run) else no(run)

    def value_and(self, node: nodes.And) -> Evaluate:
        left = self.value(node.left)
        right = self.value(node.right)
        return lambda run: left(run) and right(run)

    def value_or(self, node: nodes.Or) -> Evaluate:
        left = self.value(node.left)
        right = self.value(node.right)
        return lambda run: left(run) or right(run)

    def value_not(self, node: nodes.Not) -> Evaluate:
        inner = self.value(node.node)
        return lambda run: not inner(run)

    def value_neg(self, node: nodes.Neg | nodes.Pos) -> Evaluate:
        inner = self.value(node.node)
        operation = BINARY["Sub" if isinstance(node, nodes.Neg) else "Add"]
        return guarded(offset_of(node), "cannot compute")(lambda run: operation(run, 0, inner(run)))

    value_pos = value_neg

    def binary(self, node: nodes.BinExpr) -> Evaluate:
        left = self.value(node.left)
        right = self.value(node.right)
        operation = BINARY[type(node).__name__]
        offset = offset_of(node)

        def operate(run: Rendering) -> Any:
            try:
                return operation(run, left(run), right(run))
            except CAUGHT as error:
                raise_at(offset, "cannot compute", error=error)

        return operate

    def value_compare(self, node: nodes.Compare) -> Evaluate:
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        soft = any(is_undefined_name(side) for side in sides)
        first, *others = [self.value(side, soft) for side in sides]
        rest = [(COMPARE[operand.op], side) for operand, side in zip(node.ops, others, strict=True)]
        offset = offset_of(node.expr)

        def compare(run: Rendering) -> bool:
            left = first(run)
            for operation, side in rest:
                right = side(run)
                if soft:
                    left, right = (None if value is MISSING else value for value in (left, right))
                try:
                    if not operation(run, left, right):
                        return False
                except CAUGHT as error:
                    raise_at(offset, "cannot compare", error=error)
                left = right
            return True

        return compare

    def value_concat(self, node: nodes.Concat) -> Evaluate:
        parts = [self.text(part) for part in node.nodes]

        @guarded(offset_of(node), "cannot join")
        def concat(run: Rendering) -> str:
            texts = [part(run) for part in parts]
            run.charge(sum(map(len, texts)))
            return "".join(texts)

        return concat

    def text(self, node: nodes.Node) -> Evaluate:
        """Compiles an expression to its value as text."""
        value_of = self.value(node)
        what = label(node)
        return guarded(offset_of(node), f"{what} cannot be written")(
            lambda run: text_of(run, value_of(run), what=what)
        )

    # Lists and objects

    def value_list(self, node: nodes.List | nodes.Tuple) -> Evaluate:
        parts = self.values(node.items)

        @guarded(offset_of(node), "cannot make a list")
        def build(run: Rendering) -> list[Any]:
            run.charge_items(len(parts))
            return [part(run) for part in parts]

        return build

    value_tuple = value_list

    def value_dict(self, node: nodes.Dict) -> Evaluate:
        pairs = [
            (self.value(pair.key), self.value(pair.value), offset_of(pair)) for pair in node.items
        ]

        @guarded(offset_of(node), "cannot make an object")
        def build(run: Rendering) -> dict[str, Any]:
            run.charge_items(len(pairs) * 2)
            result: dict[str, Any] = {}
            for key_of, value_of, offset in pairs:
                key = key_of(run)
                if not isinstance(key, str):
                    raise LocatedError(
                        f"a key is a string, not {describe(key)}", "wrong-type", offset=offset
                    )
                result[key] = value_of(run)
            return result

        return build

    # Filters and tests

    def value_filter(self, node: nodes.Filter) -> Evaluate:
        soft = node.name in ("d", "default")
        # In the filter of a block the innermost node is None.
        if isinstance(node.node, nodes.Node):
            subject = self.value(node.node, soft)
        else:
            subject = _block
        if soft:
            return self.default(node, subject)
        arguments = self.arguments(node)
        function = FILTERS[node.name]
        offset = offset_of(node)
        problem = f"filter {node.name!r} cannot be applied"

        def apply(run: Rendering) -> Any:
            value = subject(run)
            try:
                run.tick()
                args, kwargs = arguments(run)
                return function(run, value, *args, **kwargs)
            except CAUGHT as error:
                raise_at(offset, problem, error=error)

        return apply

    def default(self, node: nodes.Filter, subject: Evaluate) -> Evaluate:
        """Compiles `default(value, boolean)`, for undefined and null values, with `boolean` also
        for false ones.
        """
        given: dict[str, nodes.Expr] = {str(keyword.key): keyword.value for keyword in node.kwargs}
        given.update(zip(("default_value", "boolean"), node.args, strict=False))
        if (
            len(node.args) > 2
            or given.keys() - {"default_value", "boolean"}
            or node.dyn_args
            or node.dyn_kwargs
        ):
            raise LocatedError(
                "default takes a value and a boolean", "wrong-arity", offset=offset_of(node)
            )
        if "default_value" in given:
            fallback = self.value(given["default_value"])
        else:
            fallback = _constant("")
        if "boolean" in given:
            falsy = self.value(given["boolean"])
        else:
            falsy = _constant(False)

        def apply(run: Rendering) -> Any:
            value = subject(run)
            if value is MISSING or value is None or (not value and falsy(run)):
                return fallback(run)
            return value

        return apply

    def value_test(self, node: nodes.Test) -> Evaluate:
        if node.name in ("defined", "undefined"):
            subject = self.value(node.node, True)
            wanted = node.name == "defined"
            return lambda run: (subject(run) is not MISSING) is wanted
        subject = self.value(node.node)
        arguments = self.arguments(node)
        test = TESTS[node.name]

        @guarded(offset_of(node), f"test {node.name!r} cannot be applied")
        def apply(run: Rendering) -> bool:
            value = subject(run)
            args, kwargs = arguments(run)
            return bool(test(run, value, *args, **kwargs))

        return apply

    # Calls

    def arguments(self, node: nodes.Call | nodes.Filter | nodes.Test) -> Arguments:
        """Compiles the arguments of a call to positional and keyword arguments."""
        if not (node.args or node.kwargs or node.dyn_args or node.dyn_kwargs):
            return lambda run: ((), {})
        positional = self.values(node.args)
        keywords = [(str(keyword.key), self.value(keyword.value)) for keyword in node.kwargs]
        if node.dyn_args is None:
            star = _constant(())
        else:
            star = self.value(node.dyn_args)
        if node.dyn_kwargs is None:
            stars = _constant({})
        else:
            stars = self.value(node.dyn_kwargs)

        @guarded(offset_of(node), "cannot pass the arguments")
        def evaluate(run: Rendering) -> tuple[tuple[Any, ...], dict[str, Any]]:
            args = tuple([part(run) for part in positional])
            kwargs = {key: part(run) for key, part in keywords}
            further = stars(run)
            if not isinstance(further, Mapping) or not all(isinstance(key, str) for key in further):
                raise LocatedError(f"** takes an object, not {describe(further)}", "wrong-type")
            if further.keys() & kwargs.keys():
                raise LocatedError("an argument is given twice", "wrong-arity")
            return (*args, *items_of(run, star(run))), {**kwargs, **further}

        return evaluate

    def value_call(self, node: nodes.Call) -> Evaluate:
        target = node.node
        arguments = self.arguments(node)
        if isinstance(target, nodes.Getattr):
            return self.method_call(target, arguments)
        if not isinstance(target, nodes.Name):
            raise LocatedError(
                "only a function, a macro or a method is called",
                "unknown-function",
                offset=offset_of(node),
            )
        local = target.name in self.bound
        offset = offset_of(target)
        name = target.name

        @guarded(offset, f"{name!r} cannot be called")
        def call(run: Rendering) -> Any:
            if local:
                value = run.names.get(name, MISSING)
            else:
                value = MISSING
            args, kwargs = arguments(run)
            if isinstance(value, Macro):
                return value.call(run, args, kwargs)
            if value is not MISSING:
                raise LocatedError(
                    f"{name!r} is {describe(value)}, not a function", "unknown-function"
                )
            if name in GLOBAL_FUNCTIONS:
                return GLOBAL_FUNCTIONS[name](run, *args, **kwargs)
            measure(run, [*args, kwargs])
            return run.call(name, args, kwargs, offset)

        return call

    def method_call(self, target: nodes.Getattr, arguments: Arguments) -> Evaluate:
        subject = self.value(target.node)
        name = target.attr
        what = label(target.node)

        offset = offset_of(target) + 1

        def call(run: Rendering) -> Any:
            value = subject(run)
            args, kwargs = arguments(run)
            try:
                run.tick()
                return method_of(value, name, what=what)(run, value, *args, **kwargs)
            except CAUGHT as error:
                raise_at(offset, f"{name!r} cannot be called", error=error)

        return call
