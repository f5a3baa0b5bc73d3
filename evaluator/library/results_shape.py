"""What a node's result looks like to the texts that come after it."""

from __future__ import annotations

from collections.abc import Mapping

from evaluator.library.shapes import ANY, NULL, OBJECT, STRING, BadSchema, Shape, folder_of, of_schema, record
from evaluator.nodes import (
    Atomic,
    Call,
    Cond,
    DirectorEvaluatorLoop,
    Function,
    Node,
    Reduce,
    Script,
    Sequential,
    Task,
    TopLevel,
)

_MAX_DEPTH = 20


def parsed_shape(node: TopLevel | Node, templates: Mapping[str, TopLevel], depth: int = 0) -> Shape:
    """The shape of `parsed`: what the output format declares; NULL where nothing is ever parsed."""
    if depth > _MAX_DEPTH or isinstance(node, Cond):
        return ANY
    if isinstance(node, Call):
        target = templates.get(node.template)
        return ANY if target is None else parsed_shape(target, templates, depth + 1)
    if isinstance(node, Function):
        if node.returns is None or node.returns.strip() in ("any", "string"):
            return parsed_shape(node.body, templates, depth + 1)
        return _declared(node.returns, node.span.file)
    return _of_task(node, templates, depth)


def _of_task(node: Task, templates: Mapping[str, TopLevel], depth: int) -> Shape:
    if node.output is not None:
        if node.output.type == "json":
            return ANY if node.output.schema is None else _declared(node.output.schema, node.output.span.file)
        return ANY if node.output.type == "xml" or node.output.schema is not None else NULL
    if isinstance(node, Atomic | Script):
        return NULL
    if isinstance(node, Sequential) and node.steps:
        return parsed_shape(node.steps[-1], templates, depth + 1)
    if isinstance(node, DirectorEvaluatorLoop):
        return parsed_shape(node.director, templates, depth + 1)
    # A reduction over no items gives the initial value.
    if isinstance(node, Reduce) and parsed_shape(node.reduction_task, templates, depth + 1) is NULL:
        return NULL
    return ANY


def _declared(schema: str, file: str | None) -> Shape:
    try:
        return of_schema(schema, folder_of(file))
    except BadSchema:
        return ANY


def value_shape(parsed: Shape) -> Shape:
    """The shape of a result as a value: what was parsed, else the text."""
    return STRING if parsed.kind == "null" else parsed


def step_shape(parsed: Shape, what: str) -> Shape:
    return record(what, content=STRING, parsed=parsed, notes=OBJECT)
