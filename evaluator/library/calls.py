"""Calls of templates: do they exist, do their arguments fit, do they end."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from evaluator.errors import Diagnostic, ExpressionError
from evaluator.library.near import did_you_mean, listed, shortened
from evaluator.library.shapes import Shape, literal_fits, mismatch, of_type
from evaluator.library.syntax import CallReference, analyse, analyse_expression, has_markup
from evaluator.nodes import (
    Call,
    Cond,
    DirectorEvaluatorLoop,
    Expression,
    Function,
    Node,
    Reduce,
    Script,
    Span,
    Task,
    Text,
    TopLevel,
    children,
)


def check_call(
    node: Call, values: Sequence[Shape | str], templates: Mapping[str, TopLevel], broken: Collection[str] = ()
) -> Iterator[Diagnostic]:
    """Findings about a `<call>`; `values` are its arguments' shapes, or their texts where literal."""
    target = templates.get(node.template)
    if target is None:
        yield _unknown(node.template, node.span, templates, broken)
        return
    positional = sum(1 for argument in node.args if argument.name is None)
    keywords = [(argument.name, argument.span) for argument in node.args if argument.name is not None]
    yield from _arity(target, node.template, positional, keywords, False, node.span)
    types = _types(target)
    at = 0
    for argument, value in zip(node.args, values, strict=True):
        name = argument.name
        if name is None:
            name, at = (list(types)[at] if at < len(types) else None), at + 1
        declared = types.get(name) if name is not None else None
        want = None if declared is None else of_type(declared)
        if want is None:
            continue
        if isinstance(value, str):
            if not literal_fits(value, want):
                said = shortened(value)
                message = f"argument `{name}` of `{node.template}` must be {declared}, not the text {said}"
                yield Diagnostic("error", "argument-type", message, argument.value.span)
        elif mismatch(value, want):
            given = f"a value of type {value.kind}"
            message = f"argument `{name}` of `{node.template}` must be {declared}, and gets {given}"
            yield Diagnostic("error", "argument-type", message, argument.value.span)


def check_call_in_text(
    call: CallReference, text: Text, templates: Mapping[str, TopLevel], broken: Collection[str] = ()
) -> Iterator[Diagnostic]:
    """Findings about a call inside a text or an expression."""
    span = text.locate(call.offset)
    target = templates.get(call.name)
    if target is None:
        yield _unknown(call.name, span, templates, broken)
        return
    keywords = [(name, span) for name in call.keywords]
    yield from _arity(target, call.name, call.positional, keywords, call.star, span)


def _unknown(name: str, span: Span, templates: Mapping[str, TopLevel], broken: Collection[str]) -> Diagnostic:
    if name in broken:
        message = f"call of `{name}`, which has errors"
        return Diagnostic("error", "uses-broken-template", message, span, f"mend `{name}` first")
    hint = did_you_mean(name, templates, "no template of that name is loaded")
    return Diagnostic("error", "unknown-template", f"call of an unknown template `{name}`", span, hint)


def _types(target: TopLevel) -> dict[str, str]:
    if isinstance(target, Function):
        return {param.name: param.type for param in target.params}
    return {declared.name: declared.type for declared in target.inputs}


def _arity(
    target: TopLevel, name: str, positional: int, keywords: list[tuple[str, Span]], star: bool, span: Span
) -> Iterator[Diagnostic]:
    if isinstance(target, Function):
        word, names = "parameter", [param.name for param in target.params]
        required = [param.name for param in target.params if param.default is None]
    else:
        word, names = "input", [declared.name for declared in target.inputs]
        required = [
            i.name for i in target.inputs if i.required and i.default is None and i.source is None and i.task is None
        ]
    takes = f"it takes {', '.join(names)}" if names else "it takes nothing"
    if positional > len(names):
        message = f"`{name}` takes {len(names)} {word}(s), and {positional} are given"
        yield Diagnostic("error", "wrong-arity", message, span, takes)
    given = set(names[:positional])
    for keyword, at in keywords:
        if keyword not in names:
            message = f"`{name}` has no {word} `{keyword}`"
            yield Diagnostic("error", "wrong-arity", message, at, did_you_mean(keyword, names, takes))
        elif keyword in given:
            yield Diagnostic("error", "wrong-arity", f"`{name}` is given `{keyword}` twice", at)
        given.add(keyword)
    missing = [n for n in required if n not in given]
    if missing and not star:
        yield Diagnostic(
            "error", "wrong-arity", f"the call of `{name}` gives no value for {listed(missing)}", span, takes
        )


# Do calls end?

EdgeKind = Literal["always", "text", "sometimes"]
_RANK: dict[EdgeKind, int] = {"always": 0, "text": 1, "sometimes": 2}
Graph = Mapping[str, Mapping[str, tuple[EdgeKind, Span]]]


def calls_of(node: TopLevel) -> dict[str, tuple[EdgeKind, Span]]:
    """The templates that `node` calls, each with how surely a run of it makes the call.

    `always`: a `<call>` outside any cond; `text`: a call in a text, which `{% if %}` may skip; `sometimes`:
    below a cond, or for the items of a reduce, of which there may be none.
    """
    found: dict[str, tuple[EdgeKind, Span]] = {}

    def add(name: str, kind: EdgeKind, span: Span) -> None:
        if name not in found or _RANK[kind] < _RANK[found[name][0]]:
            found[name] = (kind, span)

    def visit(inner: TopLevel | Node, below: EdgeKind) -> None:
        if isinstance(inner, Call):
            add(inner.template, below, inner.span)
        for call, span in text_calls(inner):
            add(call.name, "sometimes" if below == "sometimes" else "text", span)
        lower: EdgeKind = "sometimes" if isinstance(inner, Cond | Reduce) else below
        for child in children(inner):
            visit(child, lower)

    visit(node, "always")
    return found


def text_calls(node: TopLevel | Node) -> Iterator[tuple[CallReference, Span]]:
    """The calls in the texts and expressions of `node` itself; texts that cannot be read have none."""
    for text in texts_of(node):
        try:
            if isinstance(text, Expression):
                source = text.source
                if "(" not in source.value:
                    continue
                calls = analyse_expression(text).calls
            else:
                source = text
                if "(" not in source.value or not has_markup(source.value):
                    continue
                calls = analyse(text).calls
        except ExpressionError:
            continue
        for call in calls:
            yield call, source.locate(call.offset)


def texts_of(node: TopLevel | Node) -> Iterator[Text | Expression]:
    """Every text and expression of `node` itself that is resolved when it runs, not those of its children."""
    if isinstance(node, Function):
        return
    if isinstance(node, Call):
        yield from (argument.value for argument in node.args)
        return
    if isinstance(node, Cond):
        yield from (case.test for case in node.cases)
        return
    yield from (t for t in (node.description, node.instructions, node.system, node.model) if t is not None)
    if node.file_paths is not None:
        yield from node.file_paths.items
    yield from _input_texts(node)
    if isinstance(node, Script):
        yield from node.command
    elif isinstance(node, Reduce) and node.initial_value is not None:
        yield node.initial_value
    elif isinstance(node, DirectorEvaluatorLoop) and node.termination_condition is not None:
        yield node.termination_condition


def _input_texts(node: Task) -> Iterator[Text | Expression]:
    for declared in node.inputs:
        if declared.source is not None:
            yield declared.source
        elif declared.default is not None:
            yield declared.default


def endless_calls(graph: Graph) -> Iterator[tuple[str, Diagnostic]]:
    """Calls that lead back to the template that makes them, by template.

    An error where each run makes them all, so that none can end; a warning where a text makes one of them;
    nothing where one of them stands below a cond.
    """
    for name in graph:
        cycle = _cycle(graph, name, "always")
        if cycle is not None:
            chain = " → ".join(cycle)
            message = f"the call never ends: {chain}"
            yield (
                name,
                Diagnostic("error", "endless-call", message, graph[name][cycle[1]][1], "put a <cond> around it"),
            )
            continue
        cycle = _cycle(graph, name, "text")
        if cycle is not None:
            chain = " → ".join(cycle)
            message = f"the template calls itself: {chain}"
            hint = "make sure that an {% if %} or a <cond> ends it"
            yield name, Diagnostic("warning", "call-cycle", message, graph[name][cycle[1]][1], hint)


def _cycle(graph: Graph, start: str, weakest: EdgeKind) -> list[str] | None:
    """A shortest way from `start` back to it over calls at least as sure as `weakest`."""
    if not graph[start]:
        return None
    ways: list[list[str]] = [[start]]
    seen: set[str] = set()
    for way in ways:
        for target, (kind, _) in graph.get(way[-1], {}).items():
            if _RANK[kind] > _RANK[weakest]:
                continue
            if target == start:
                return [*way, target]
            if target not in seen:
                seen.add(target)
                ways.append([*way, target])
    return None


def roles_of(node: TopLevel | Node) -> Iterator[str]:
    """The roles of models that the tasks in `node` name."""
    if isinstance(node, Task) and node.model_role is not None:
        yield node.model_role
    for child in children(node):
        yield from roles_of(child)
