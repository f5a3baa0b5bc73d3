"""Generic walks over trees: each asks the declarations of the node classes."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Call, Node, Task, TopLevel
from evaluator.nodes.declare import fields_with, values
from evaluator.nodes.tree import Expression, Repeats, Span, Text


def children(node: Any) -> Iterator[Node]:
    """The nodes directly inside a node or a part, in document order."""
    for field, _, value in values(node, "node", "part"):
        if field.role == "node":
            yield value
        else:
            yield from children(value)


@frozen
class Operand:
    """A child that a node runs. With `one_of` it is an alternative, chosen if `guard` is None or
    holds. `may_fail`: the node may succeed though the child failed.
    """

    node: Node
    repeats: Repeats
    one_of: bool
    guard: Expression | None
    may_fail: bool = False


def operands(node: TopLevel | Node, given: Mapping[str, Any]) -> Iterator[Operand]:
    """The children that a node runs itself with the inputs `given`: all but those nested in inputs
    and turns.
    """
    for field, _, value in values(node, "node", "part"):
        if field.role == "node":
            if isinstance(node, Task):
                repeats = node.repeats_of(field.name, given)
            else:
                repeats = Repeats(1, 1)
            yield Operand(value, repeats, one_of=field.one_of, guard=None, may_fail=field.may_fail)
        else:
            for branch, _, child in values(value, "node"):
                if branch.one_of:
                    if branch.guard is None:
                        guard = None
                    else:
                        guard = getattr(value, branch.guard)
                    yield Operand(child, Repeats(1, 1), one_of=True, guard=guard)


def descendants(node: TopLevel | Node) -> Iterator[TopLevel | Node]:
    """`node` and every node inside it."""
    yield node
    for child in children(node):
        yield from descendants(child)


def texts(node: Any) -> Iterator[Text | Expression]:
    """The texts and expressions of `node` itself that are resolved when it runs, not those of its
    children.
    """
    for field, _, value in values(node, "text", "part"):
        if field.role == "text":
            if field.resolved:
                yield value
        else:
            yield from texts(value)


def replace_children(node: Any, change: Callable[[Any], Any]) -> Any:
    """`node` with `change` applied to each child; `node` itself where every child stays the same
    object.
    """

    def replaced(one: Any, role: str) -> Any:
        if role == "node":
            return change(one)
        return replace_children(one, change)

    changes: dict[str, Any] = {}
    for field in fields_with(type(node), "node", "part"):
        old: Any = getattr(node, field.name)
        if old is None or old == ():
            continue
        if isinstance(old, tuple):
            items = cast("tuple[Any, ...]", old)
            new = tuple(replaced(one, field.role) for one in items)
            is_same = all(map(operator.is_, items, new))
        else:
            new = replaced(old, field.role)
            is_same = new is old
        if not is_same:
            changes[field.name] = new
    if changes:
        return dataclasses.replace(node, **changes)
    return node


def tasks(node: TopLevel | Node) -> Iterator[Task]:
    """Every task in `node`, itself included."""
    return (one for one in descendants(node) if isinstance(one, Task))


def stand_in(span: Span) -> Node:
    """The placeholder for a required part that a task with a `ref` leaves to the referenced
    template.
    """
    return Call("", (), None, span)


def is_stand_in(node: object) -> bool:
    """Whether `node` is a part to be taken from the template that its parent's `ref` names."""
    return isinstance(node, Call) and not node.template
