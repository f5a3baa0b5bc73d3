"""The operations of a text that some types of values do not allow, found in its syntax tree.

A name whose declared type an operation does not take is an error before a run. What depends on the
value itself is left to the evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping

from jinja2 import nodes

from evaluator.language.functions import METHODS
from evaluator.language.parsing import offset_of
from evaluator.language.syntax import Use

_NUMBERS = frozenset({"number", "integer"})
_LISTED = frozenset({"string", "array", "object"})
_OBJECTS = frozenset({"object"})
_SUMMED = frozenset({"string", "array", *_NUMBERS})

_OF_FILTERS = {
    _LISTED: """batch count first groupby join last length list map max min reject rejectattr
    reverse select selectattr slice sort sum unique""",
    _NUMBERS: "abs round",
    _OBJECTS: "dictsort items",
}
_FILTERED: Mapping[str, frozenset[str]] = {
    name: kinds for kinds, names in _OF_FILTERS.items() for name in names.split()
}
"""The types of the values that a filter takes; one that is not here takes all."""
_TESTED: Mapping[str, frozenset[str]] = dict.fromkeys(("divisibleby", "even", "odd"), _NUMBERS)
_OPERATORS = {
    "add": ("+", _SUMMED),
    "sub": ("-", _NUMBERS),
    "mul": ("*", _SUMMED),
    "div": ("/", _NUMBERS),
    "floordiv": ("//", _NUMBERS),
    "mod": ("%", _NUMBERS),
    "pow": ("**", _NUMBERS),
    "neg": ("-", _NUMBERS),
    "pos": ("+", _NUMBERS),
    "lt": ("<", _SUMMED),
    "lteq": ("<=", _SUMMED),
    "gt": (">", _SUMMED),
    "gteq": (">=", _SUMMED),
}
_COMBINED = frozenset({"add", "lt", "lteq", "gt", "gteq"})
"""Operators whose sides have the same type."""


def of_filter(node: nodes.Filter) -> Use | None:
    """What a filter does with its value."""
    return _named("filter", node.name, _FILTERED.get(node.name), node)


def of_test(node: nodes.Test) -> Use | None:
    """What a test after `is` does with its value."""
    return _named("test", node.name, _TESTED.get(node.name), node)


def _named(what: str, name: str, kinds: frozenset[str] | None, node: nodes.Node) -> Use | None:
    if kinds is None:
        return None
    return Use(f"the {what} `{name}` does not take it", kinds, offset=offset_of(node))


def of_method(node: nodes.Getattr) -> Use | None:
    """The call of a method; None if no value has it, which is an error of its own."""
    kinds = frozenset(kind for kind, names in METHODS.items() if node.attr in names)
    if not kinds:
        return None
    # As in a run, the place is that of the name after the dot.
    offset = offset_of(node) + 1
    return Use(f"has no method `{node.attr}`", kinds, offset=offset, code="unknown-method")


def of_loop(node: nodes.For) -> Use:
    """What a loop goes over."""
    return Use("a loop cannot go over it", _LISTED, offset=offset_of(node.iter))


def of_item(node: nodes.Getitem) -> Use:
    """What an index or a slice takes an item of."""
    return Use("has no items", _LISTED, offset=offset_of(node))


def of_compared(node: nodes.Compare, index: int) -> Use | None:
    """What a comparison does with the side at `index`."""
    sides = [node.expr, *(operand.expr for operand in node.ops)]
    operator = node.ops[max(index - 1, 0)].op
    if index and operator in ("in", "notin"):
        return Use("`in` cannot look into it", _LISTED, offset=offset_of(sides[index]))
    return _operated(operator, sides[index], other=sides[index - 1 if index else 1])


def of_operand(node: nodes.Node, side: nodes.Node, other: nodes.Node | None) -> Use | None:
    """What an arithmetic operator does with one side; `other` is the other one."""
    return _operated(type(node).__name__.lower(), side, other=other)


def _operated(operator: str, side: nodes.Node, other: nodes.Node | None) -> Use | None:
    if operator not in _OPERATORS:
        return None
    sign, kinds = _OPERATORS[operator]
    what = f"`{sign}`"
    if operator in _COMBINED and isinstance(other, nodes.Const):
        if isinstance(other.value, str):
            kinds = frozenset({"string"})
            what += " with a text"
        elif isinstance(other.value, int | float) and not isinstance(other.value, bool):
            kinds = _NUMBERS
            what += " with a number"
    return Use(f"{what} does not take it", kinds, offset=offset_of(side))
