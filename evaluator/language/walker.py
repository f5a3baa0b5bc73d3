"""Finds the names and calls in Jinja's syntax tree of a text."""

from __future__ import annotations

from collections.abc import Iterable

from jinja2 import nodes

from evaluator.language import uses
from evaluator.language.locating import LocatedError
from evaluator.language.parsing import free_path, is_undefined_name, offset_of
from evaluator.language.syntax import CONSTANTS, GLOBALS, Analysis, CallReference, Reference, Use

_Guards = frozenset[tuple[str, tuple[str | int, ...], bool]]
"""Names, with their paths, that are known to be defined at a place, and whether a test has asked
for their type.
"""
_NONE: _Guards = frozenset()
_TYPE_TESTS = frozenset(
    {"boolean", "float", "integer", "iterable", "mapping", "number", "sequence", "string"}
)


def analyse_tree(tree: nodes.Node, *, is_expression: bool) -> Analysis:
    """The names and calls in a tree. Raises: LocatedError."""
    walker = _Walker()
    walker.walk(tree, set(), guards=_NONE)
    references = sorted(walker.free_references(), key=lambda reference: reference.offset)
    calls = sorted(walker.free_calls(), key=lambda call: call.offset)
    constant = is_expression and not references and not calls
    return Analysis(tuple(references), tuple(calls), constant=constant)


class _Walker:
    """Finds free names by Jinja's scoping: loops, macros and `with` have a scope of their own, `if`
    has none.
    """

    def __init__(self) -> None:
        self.references: list[Reference] = []
        self.calls: list[CallReference] = []
        # The references and the calls in each macro, and the names of the scope around it: a
        # macro sees what is bound where it is called, which may be below it.
        self._macros: list[tuple[range, range, set[str]]] = []

    def free_references(self) -> list[Reference]:
        """The references, without those in macros to names that are bound below the macro."""
        return [
            reference
            for index, reference in enumerate(self.references)
            if not any(index in own and reference.name in names for own, _, names in self._macros)
        ]

    def free_calls(self) -> list[CallReference]:
        """The calls, without those in macros of names that are bound below the macro."""
        return [
            call
            for index, call in enumerate(self.calls)
            if not any(index in own and call.name in names for _, own, names in self._macros)
        ]

    def walk(
        self,
        node: nodes.Node,
        bound: set[str],
        guards: _Guards,
        optional: bool = False,
        use: Use | None = None,
    ) -> None:
        method = getattr(self, f"walk_{type(node).__name__.lower()}", None)
        if method is None:
            self.walk_all(node.iter_child_nodes(), bound, guards=guards)
        elif isinstance(node, nodes.Name | nodes.Getattr | nodes.Getitem):
            self.path(node, bound, guards=guards, optional=optional, use=use)
        else:
            method(node, bound, guards)

    def walk_all(self, children: Iterable[nodes.Node], bound: set[str], guards: _Guards) -> None:
        for child in children:
            self.walk(child, bound, guards=guards)

    def path(
        self,
        node: nodes.Node,
        bound: set[str],
        guards: _Guards,
        optional: bool,
        use: Use | None,
    ) -> None:
        base, path = free_path(node)
        if not isinstance(base, nodes.Name):
            if isinstance(base, nodes.Getitem):
                item = uses.of_item(base)
                self.walk(base.node, bound, guards=guards, optional=optional, use=item)
                self.walk(base.arg, bound, guards=guards)
            else:
                self.walk(base, bound, guards=guards, optional=optional)
            return
        if base.name in bound or base.name in CONSTANTS or base.ctx != "load":
            return
        asked = [
            asks_type
            for name, at, asks_type in guards
            if name == base.name and path[: len(at)] == at
        ]
        # `default` and `defined` take what has no items, and a text may ask for a type first.
        if optional or any(asked):
            use = None
        guarded = optional or bool(asked)
        self.references.append(
            Reference(base.name, path, offset=offset_of(base), optional=guarded, use=use)
        )

    walk_name = walk_getattr = walk_getitem = path

    def walk_call(self, node: nodes.Call, bound: set[str], guards: _Guards) -> None:
        target = node.node
        if isinstance(target, nodes.Name):
            if target.name not in bound and target.name not in GLOBALS:
                keywords = tuple(keyword.key for keyword in node.kwargs)
                star = node.dyn_args is not None or node.dyn_kwargs is not None
                call = CallReference(
                    target.name,
                    len(node.args),
                    keywords=keywords,
                    star=star,
                    offset=offset_of(target),
                )
                self.calls.append(call)
        elif isinstance(target, nodes.Getattr):
            self.walk(target.node, bound, guards=guards, use=uses.of_method(target))
        else:
            self.walk(target, bound, guards=guards)
        self.walk_all(
            (child for child in node.iter_child_nodes() if child is not target),
            bound,
            guards=guards,
        )

    def walk_filter(
        self, node: nodes.Filter | nodes.Test, bound: set[str], guards: _Guards
    ) -> None:
        # In the filter of a block the innermost node is None.
        if isinstance(node.node, nodes.Node):
            if isinstance(node, nodes.Filter):
                use = uses.of_filter(node)
            else:
                use = uses.of_test(node)
            self.walk(
                node.node,
                bound,
                guards=guards,
                optional=node.name in ("d", "default", "defined", "undefined"),
                use=use,
            )
        self.walk_all(
            (child for child in node.iter_child_nodes() if child is not node.node),
            bound,
            guards=guards,
        )

    walk_test = walk_filter

    def walk_compare(self, node: nodes.Compare, bound: set[str], guards: _Guards) -> None:
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        optional = any(is_undefined_name(side) for side in sides)
        for index, side in enumerate(sides):
            use = uses.of_compared(node, index)
            self.walk(side, bound, guards=guards, optional=optional, use=use)

    def walk_add(self, node: nodes.BinExpr, bound: set[str], guards: _Guards) -> None:
        left = uses.of_operand(node, node.left, other=node.right)
        self.walk(node.left, bound, guards=guards, use=left)
        right = uses.of_operand(node, node.right, other=node.left)
        self.walk(node.right, bound, guards=guards, use=right)

    walk_sub = walk_mul = walk_div = walk_floordiv = walk_mod = walk_pow = walk_add

    def walk_neg(self, node: nodes.UnaryExpr, bound: set[str], guards: _Guards) -> None:
        self.walk(node.node, bound, guards=guards, use=uses.of_operand(node, node.node, other=None))

    walk_pos = walk_neg

    def walk_and(self, node: nodes.And | nodes.Or, bound: set[str], guards: _Guards) -> None:
        when_true, when_false = _facts(node.left)
        self.walk(node.left, bound, guards=guards)
        self.walk(
            node.right,
            bound,
            guards=guards | (when_true if isinstance(node, nodes.And) else when_false),
        )

    walk_or = walk_and

    def walk_condexpr(self, node: nodes.CondExpr, bound: set[str], guards: _Guards) -> None:
        when_true, when_false = _facts(node.test)
        self.walk(node.test, bound, guards=guards)
        self.walk(node.expr1, bound, guards=guards | when_true)
        if node.expr2 is not None:
            self.walk(node.expr2, bound, guards=guards | when_false)

    def walk_if(self, node: nodes.If, bound: set[str], guards: _Guards) -> None:
        for branch in (node, *node.elif_):
            when_true, when_false = _facts(branch.test)
            self.walk(branch.test, bound, guards=guards)
            self.walk_all(branch.body, bound, guards=guards | when_true)
            guards = guards | when_false
        self.walk_all(node.else_, bound, guards=guards)

    def walk_for(self, node: nodes.For, bound: set[str], guards: _Guards) -> None:
        self.walk(node.iter, bound, guards=guards, use=uses.of_loop(node))
        inner = bound | _names(node.target)
        # `else` runs outside the loop.
        self.walk_all(node.else_, set(bound), guards=guards)
        if node.test is not None:
            self.walk(node.test, inner, guards=guards)
            guards = guards | _facts(node.test)[0]
        self.walk_all(node.body, inner | {"loop"}, guards=guards)

    def walk_assign(self, node: nodes.Assign, bound: set[str], guards: _Guards) -> None:
        self.walk(node.node, bound, guards=guards)
        self.target(node.target, bound)

    def walk_assignblock(self, node: nodes.AssignBlock, bound: set[str], guards: _Guards) -> None:
        self.walk_all(node.body, set(bound), guards=guards)
        if node.filter is not None:
            self.walk(node.filter, bound, guards=guards)
        self.target(node.target, bound)

    def target(self, target: nodes.Node, bound: set[str]) -> None:
        if isinstance(target, nodes.NSRef) and target.name not in bound:
            message = (
                f"{target.name!r} is not a namespace; make one with {{% set {target.name} = "
                f"namespace() %}}"
            )
            raise LocatedError(message, "undefined-variable", offset=offset_of(target))
        bound |= _names(target)

    def walk_macro(self, node: nodes.Macro, bound: set[str], guards: _Guards) -> None:
        bound.add(node.name)
        inner = set(bound)
        references = len(self.references)
        calls = len(self.calls)
        self.walk_all(node.defaults, inner, guards=guards)
        inner |= {argument.name for argument in node.args}
        self.walk_all(node.body, inner, guards=guards)
        own_references = range(references, len(self.references))
        self._macros.append((own_references, range(calls, len(self.calls)), bound))

    def walk_with(self, node: nodes.With, bound: set[str], guards: _Guards) -> None:
        self.walk_all(node.values, bound, guards=guards)
        inner = set(bound)
        for target in node.targets:
            inner |= _names(target)
        self.walk_all(node.body, inner, guards=guards)

    def walk_filterblock(self, node: nodes.FilterBlock, bound: set[str], guards: _Guards) -> None:
        self.walk(node.filter, bound, guards=guards)
        self.walk_all(node.body, set(bound), guards=guards)


def _names(target: nodes.Node) -> set[str]:
    if isinstance(target, nodes.Name):
        return {target.name}
    return {name.name for name in target.find_all(nodes.Name)}


def _facts(test: nodes.Node) -> tuple[_Guards, _Guards]:
    """Returns what is known of names if a test holds, and what is known if it does not."""
    if isinstance(test, nodes.Not):
        when_true, when_false = _facts(test.node)
        return when_false, when_true
    if isinstance(test, nodes.And | nodes.Or):
        left = _facts(test.left)
        right = _facts(test.right)
        always = left[0] & left[1]  # the left side is always evaluated
        if isinstance(test, nodes.And):
            return left[0] | right[0], left[1] & right[1] | always
        return left[0] & right[0] | always, left[1] | right[1]
    if isinstance(test, nodes.Test):
        base, path = free_path(test.node)
        if not isinstance(base, nodes.Name):
            return _NONE, _NONE
        asks_type = test.name in _TYPE_TESTS
        known: _Guards = frozenset({(base.name, path, asks_type)})
        if asks_type:
            return known, known
        if test.name == "defined":
            return known, _NONE
        if test.name == "undefined":
            return _NONE, known
    return _NONE, _NONE


def truth_of(node: nodes.Node) -> bool | None:
    """Whether a constant test holds; None if it depends on a variable."""
    if isinstance(node, nodes.Const):
        return bool(node.value)
    if isinstance(node, nodes.Not):
        inner = truth_of(node.node)
        if inner is None:
            return None
        return not inner
    if isinstance(node, nodes.And | nodes.Or):
        sides = (truth_of(node.left), truth_of(node.right))
        decisive = isinstance(node, nodes.Or)
        if decisive in sides:
            return decisive
        if None in sides:
            return None
        return not decisive
    if isinstance(node, nodes.Compare) and len(node.ops) == 1:
        left = node.expr
        right = node.ops[0].expr
        if isinstance(left, nodes.Const) and isinstance(right, nodes.Const):
            same = left.value == right.value
            return {"eq": same, "ne": not same}.get(node.ops[0].op)
    return None
