"""The names and calls that a text or an expression refers to, found without evaluating it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from jinja2 import nodes

from evaluator.errors import ExpressionError
from evaluator.language.locating import LocatedError
from evaluator.language.syntax import (
    CACHE_SIZE,
    CONSTANTS,
    GLOBALS,
    free_path,
    has_markup,
    is_undefined_name,
    offset_of,
    parse_expression,
    parse_text,
)
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Argument, Expression, Text
from evaluator.nodes.declare import values
from evaluator.patterns import Pattern


@frozen
class Reference:
    """A free name that is read, with the constant part of its path. `offset` is where the name
    begins.

    `optional`: the text itself provides for the name being undefined (`is defined`, `default`).
    """

    name: str
    path: tuple[str | int, ...]
    offset: int
    optional: bool


@frozen
class CallReference:
    """A call of a function template. `star`: further arguments come from `*x` or `**x`."""

    name: str
    positional: int
    keywords: tuple[str, ...]
    star: bool
    offset: int


@frozen
class Analysis:
    """The free names and calls of a text, in the order of their offsets.

    `constant`: a text that is its own rendering, or an expression that depends on nothing.
    """

    references: tuple[Reference, ...]
    calls: tuple[CallReference, ...]
    constant: bool


_CONSTANT = Analysis((), (), constant=True)


def analyse(text: Text) -> Analysis:
    """Returns the names and calls in a text.

    Raises: ExpressionError at the exact place, with code `syntax`, `forbidden-statement`,
    `unknown-filter`, `unknown-test` or `too-deep`.
    """
    if has_markup(text.value):
        return _located(_text_analysis, text)
    return _CONSTANT


def analyse_expression(expression: Expression) -> Analysis:
    """Returns the names and calls in an expression; raises as `analyse` does."""
    return _located(_expression_analysis, expression.source)


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
                yield from analysis_of(
                    Expression(value) if bare and isinstance(value, Text) else value
                ).references
            except ExpressionError:
                continue


def analysis_of(value: Text | Expression) -> Analysis:
    """Returns the names and calls in a text or an expression; raises as `analyse` does."""
    if isinstance(value, Text):
        return analyse(value)
    return analyse_expression(value)


@frozen
class Reading:
    """What a text with errors still says: its errors, the analysis of the rest (None where nothing
    certain is known), and every word in what could not be read.
    """

    errors: tuple[ExpressionError, ...]
    analysis: Analysis | None
    words: frozenset[str] = frozenset()


_WORD = re.compile(r"[^\W\d]\w*")
_PLACEHOLDER = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_TEST_NAME = Pattern(r"there is no test '(\w+)'")
_MAX_ERRORS = 20


def read_all(value: Text | Expression) -> Reading:
    """Every error of a text or an expression, and what the rest of it refers to.

    A placeholder that cannot be read is skipped. Without it the rest is read, unless a statement
    cannot be read, which may bind names.
    """
    try:
        return Reading((), analysis_of(value))
    except ExpressionError as error:
        first = error
    if isinstance(value, Text):
        text = value
    else:
        text = value.source
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
            analysis = _Walker().analysis(tree, isinstance(value, Expression))
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


def _located(function: Callable[[str], Analysis], text: Text) -> Analysis:
    try:
        return function(text.value)
    except LocatedError as error:
        raise error.located(text) from error.__cause__


@lru_cache(CACHE_SIZE)
def _text_analysis(value: str) -> Analysis:
    return _Walker().analysis(parse_text(value), False)


@lru_cache(CACHE_SIZE)
def _expression_analysis(value: str) -> Analysis:
    return _Walker().analysis(parse_expression(value), True)


_Guards = frozenset[tuple[str, tuple[str | int, ...]]]
"""Names, with their paths, that are known to be defined at a place."""
_NONE: _Guards = frozenset()


class _Walker:
    """Finds free names by Jinja's scoping: loops, macros and `with` have a scope of their own, `if`
    has none.
    """

    def __init__(self) -> None:
        self.references: list[Reference] = []
        self.calls: list[CallReference] = []

    def analysis(self, tree: nodes.Node, expression: bool) -> Analysis:
        self.walk(tree, set(), guards=_NONE)
        constant = expression and not self.references and not self.calls
        self.references.sort(key=lambda reference: reference.offset)
        self.calls.sort(key=lambda call: call.offset)
        return Analysis(tuple(self.references), tuple(self.calls), constant=constant)

    def walk(
        self, node: nodes.Node, bound: set[str], guards: _Guards, optional: bool = False
    ) -> None:
        method = getattr(self, f"walk_{type(node).__name__.lower()}", None)
        if method is None:
            self.walk_all(node.iter_child_nodes(), bound, guards=guards)
        elif isinstance(node, nodes.Name | nodes.Getattr | nodes.Getitem):
            self.path(node, bound, guards=guards, optional=optional)
        else:
            method(node, bound, guards)

    def walk_all(self, children: Iterable[nodes.Node], bound: set[str], guards: _Guards) -> None:
        for child in children:
            self.walk(child, bound, guards=guards)

    def path(self, node: nodes.Node, bound: set[str], guards: _Guards, optional: bool) -> None:
        base, path = free_path(node)
        if isinstance(base, nodes.Getitem):
            self.walk(base.node, bound, guards=guards, optional=optional)
            return self.walk(base.arg, bound, guards=guards)
        if not isinstance(base, nodes.Name):
            return self.walk(base, bound, guards=guards, optional=optional)
        if base.name in bound or base.name in CONSTANTS or base.ctx != "load":
            return
        guarded = optional or any(
            name == base.name and path[: len(at)] == at for name, at in guards
        )
        self.references.append(Reference(base.name, path, offset=offset_of(base), optional=guarded))

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
        else:
            if isinstance(target, nodes.Getattr):
                base = target.node
            else:
                base = target
            self.walk(base, bound, guards=guards)
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
            self.walk(
                node.node,
                bound,
                guards=guards,
                optional=node.name in ("d", "default", "defined", "undefined"),
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
        for side in sides:
            self.walk(side, bound, guards=guards, optional=optional)

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
        self.walk(node.iter, bound, guards=guards)
        inner = bound | _names(node.target)
        if node.test is not None:
            self.walk(node.test, inner, guards=guards)
        # `else` runs outside the loop.
        self.walk_all(node.else_, set(bound), guards=guards)
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
        self.walk_all(node.defaults, inner, guards=guards)
        inner |= {argument.name for argument in node.args}
        self.walk_all(node.body, inner, guards=guards)

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
    """Returns the names that are defined if a test holds, and those that are defined if it does
    not.
    """
    if isinstance(test, nodes.Not):
        when_true, when_false = _facts(test.node)
        return when_false, when_true
    if isinstance(test, nodes.And | nodes.Or):
        left = _facts(test.left)
        right = _facts(test.right)
        if isinstance(test, nodes.And):
            return left[0] | right[0], left[1] & right[1]
        return left[0] & right[0], left[1] | right[1]
    if isinstance(test, nodes.Test) and test.name in ("defined", "undefined"):
        base, path = free_path(test.node)
        if isinstance(base, nodes.Name):
            known = frozenset({(base.name, path)})
        else:
            known = _NONE
        if test.name == "defined":
            return (known, _NONE)
        return (_NONE, known)
    return _NONE, _NONE
