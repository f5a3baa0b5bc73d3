"""Checks of calls: whether templates exist, arguments fit, and recursion ends.

Graphs of names, walked without recursion, so that a chain may have any length. Every function
takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, TypeVar

from evaluator.errors import Diagnostic, ExpressionError
from evaluator.errors.messages import amount, correction, did_you_mean, listed, shortened
from evaluator.language.analysis import analyse
from evaluator.language.syntax import CallReference
from evaluator.lazy_dataclass import frozen
from evaluator.library.shapes import is_file, is_model, literal_fits, mismatch
from evaluator.nodes import Atomic, Call, Expression, Function, Node, Span, Task, Text, TopLevel
from evaluator.nodes.values import Shape, of_type, type_text
from evaluator.nodes.walk import children, descendants, operands, tasks, texts

MAX_CYCLE = 50
_Targets = TypeVar("_Targets", bound=Collection[str])


def reachable(
    starts: Iterable[str], targets_of: Callable[[str], _Targets | None]
) -> dict[str, _Targets]:
    """The names that `starts` lead to, themselves included, each with its targets.

    A name for which `targets_of` returns None is left out.
    """
    found: dict[str, _Targets] = {}
    waiting = [*starts]
    while waiting:
        name = waiting.pop()
        if name not in found and (targets := targets_of(name)) is not None:
            found[name] = targets
            waiting += targets
    return found


def components(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The strongly connected components of a graph, each after those that it leads to.

    A name that is on no cycle is a component of its own. Names without an entry in `graph` are left
    out.

    Source: Tarjan, "Depth-first search and linear graph algorithms", SIAM Journal on Computing
    1(2), 1972.
    """
    found: list[list[str]] = []
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    pending: dict[str, None] = {}
    for start in graph:
        if start in numbers:
            way = []
        else:
            way = [(start, iter(graph[start]))]
        while way:
            name, targets = way[-1]
            if name not in numbers:
                numbers[name] = lowest[name] = len(numbers)
                pending[name] = None
            for target in targets:
                if target in graph and target not in numbers:
                    way.append((target, iter(graph[target])))
                    break
                if target in pending:
                    lowest[name] = min(lowest[name], numbers[target])
            else:
                way.pop()
                if way:
                    lowest[way[-1][0]] = min(lowest[way[-1][0]], lowest[name])
                if lowest[name] == numbers[name]:
                    component = [pending.popitem()[0]]
                    while component[-1] != name:
                        component.append(pending.popitem()[0])
                    found.append(component[::-1])
    return found


def cycles(graph: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """For each name that is on a cycle a shortest one, from the name back to it.

    In a component of more than MAX_CYCLE names each cycle is shown by its first two names.
    """
    found: dict[str, list[str]] = {}
    for component in components(graph):
        members = frozenset(component)
        for name in component:
            inside = [target for target in graph[name] if target in members]
            if len(component) > MAX_CYCLE:
                found[name] = [name, inside[0], "…", name]
            elif inside:
                found[name] = _shortest_cycle(graph, name, members=members)
    return {name: found[name] for name in graph if name in found}


def _shortest_cycle(
    graph: Mapping[str, Collection[str]], start: str, members: Collection[str]
) -> list[str]:
    """A shortest path from `start` back to it inside `members`, which has one."""
    before: dict[str, str] = {}
    waiting = [start]
    for name in waiting:
        for target in graph[name]:
            if target == start:
                way = [start, name]
                while way[-1] != start:
                    way.append(before[way[-1]])
                return way[::-1]
            if target in members and target not in before:
                before[target] = name
                waiting.append(target)
    raise ValueError(f"{start!r} is on no cycle")


def check_call(
    node: Call,
    values: Sequence[Shape | str],
    templates: Mapping[str, TopLevel],
    broken: Collection[str] = (),
) -> Iterator[Diagnostic]:
    """Findings about a `<call>`; `values` are its arguments' shapes, or their texts where
    literal.
    """
    target = templates.get(node.template)
    if target is None:
        yield _unknown(node.template, node.span, templates=templates, broken=broken)
        return
    keywords = [
        (argument.name, argument.span) for argument in node.args if argument.name is not None
    ]
    positional = len(node.args) - len(keywords)
    yield from _arity(
        target, node.template, positional=positional, keywords=keywords, star=False, span=node.span
    )
    types = {name: declared for name, (declared, _) in parameters(target).items()}
    by_position = iter(types)
    for argument, value in zip(node.args, values, strict=True):
        if argument.name is None:
            name = next(by_position, "")
        else:
            name = argument.name
        declared = types.get(name, "")
        want = of_type(declared)
        if want is None:
            continue
        if isinstance(value, str):
            fits = literal_fits(value, declared)
            given = f"not the text {shortened(value)}"
        else:
            fits = not mismatch(value, want)
            given = f"and gets a value of type {type_text(value)}"
        if not fits:
            message = f"argument `{name}` of `{node.template}` must be {declared}, {given}"
            yield Diagnostic("error", "argument-type", message=message, span=argument.value.span)


def check_call_in_text(
    call: CallReference, text: Text, templates: Mapping[str, TopLevel], broken: Collection[str] = ()
) -> Iterator[Diagnostic]:
    """Findings about a call inside a text or an expression."""
    span = text.locate(call.offset)
    target = templates.get(call.name)
    if target is None:
        yield _unknown(call.name, span, templates=templates, broken=broken)
        return
    keywords: list[tuple[str, Span]] = []
    for name in call.keywords:
        keyword = re.compile(rf"\b{re.escape(name)}(?=\s*=)").search(text.value, call.offset)
        offset = call.offset if keyword is None else keyword.start()
        keywords.append((name, text.locate(offset)))
    yield from _arity(
        target, call.name, positional=call.positional, keywords=keywords, star=call.star, span=span
    )


def _unknown(
    name: str, span: Span, templates: Mapping[str, TopLevel], broken: Collection[str]
) -> Diagnostic:
    if name in broken:
        return uses_broken(f"call of `{name}`, which has errors", name, span=span)
    hint = did_you_mean(name, templates, otherwise="no template of that name is loaded")
    message = f"call of an unknown template `{name}`"
    return Diagnostic("error", "unknown-template", message, span=span, hint=hint)


def uses_broken(message: str, name: str, span: Span) -> Diagnostic:
    """The finding about a use of the template `name`, which has errors."""
    hint = f"fix `{name}` first"
    return Diagnostic("error", "uses-broken-template", message, span=span, hint=hint)


def parameters(target: TopLevel) -> dict[str, tuple[str, bool]]:
    """The type of each parameter or input, and whether a call has to give its value."""
    if isinstance(target, Function):
        return {param.name: (param.type, param.default is None) for param in target.params}
    return {declared.name: (declared.type, declared.must_be_given) for declared in target.inputs}


def _arity(
    target: TopLevel,
    name: str,
    positional: int,
    keywords: list[tuple[str, Span]],
    star: bool,
    span: Span,
) -> Iterator[Diagnostic]:
    wrong = partial(Diagnostic, "error", "wrong-arity")
    wanted = parameters(target)
    word = "input"
    if isinstance(target, Function):
        word = "parameter"
    names = list(wanted)
    takes = f"it takes {', '.join(names) or 'nothing'}"
    if positional > len(names):
        message = f"`{name}` takes {amount(len(names), word)}, and {positional} are given"
        yield wrong(message, span, hint=takes)
    given = set(names[:positional])
    stated = {keyword for keyword, _ in keywords}
    for keyword, at in keywords:
        if keyword not in names:
            meant = correction(keyword, [each for each in names if each not in given | stated])
            fix = None
            if meant is not None:
                given.add(meant)
                fix = (keyword, meant)
            hint = did_you_mean(keyword, names, otherwise=takes)
            yield wrong(f"`{name}` has no {word} `{keyword}`", at, hint=hint, fix=fix)
        elif keyword in given:
            yield wrong(f"`{name}` is given `{keyword}` twice", at)
        given.add(keyword)
    missing = [one for one, (_, is_required) in wanted.items() if is_required and one not in given]
    if missing and not star:
        message = f"the call of `{name}` gives no value for {listed(missing)}"
        yield wrong(message, span, hint=takes)


# Recursion

EdgeKind = Literal["always", "text", "sometimes"]
_RANK: dict[EdgeKind, int] = {"always": 0, "text": 1, "sometimes": 2}
Graph = Mapping[str, Mapping[str, tuple[EdgeKind, Span]]]


def calls_of(node: TopLevel | Node) -> dict[str, tuple[EdgeKind, Span]]:
    """The templates that `node` calls, each with the certainty that a run makes the call.

    `always`: a `<call>` outside any cond; `text`: a call in a text, which `{% if %}` may skip;
    `sometimes`: below a cond, or below an operator that may run a child not at all, as for the
    items of an empty list.
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
        if any(each.one_of or each.repeats.least == 0 for each in operands(inner, {})):
            below = "sometimes"  # a run may skip a child
        for child in children(inner):
            visit(child, below)

    visit(node, "always")
    return found


def text_calls(node: TopLevel | Node) -> Iterator[tuple[CallReference, Span]]:
    """The calls in the texts and expressions of `node` itself."""
    for text in texts(node):
        for call in calls_in(text):
            yield call, text.source.locate(call.offset)


def calls_in(text: Text | Expression) -> tuple[CallReference, ...]:
    """The calls in a text or an expression; none where it cannot be read."""
    if "(" not in text.source.value:
        return ()
    try:
        return analyse(text).calls
    except ExpressionError:
        return ()


def endless_calls(graph: Graph) -> Iterator[tuple[str, Diagnostic]]:
    """Findings about recursive calls, by template.

    A cycle is an error if each run makes all of its calls, so that no run can end. It is a warning
    if one of the calls is in a text. It is not reported if one of the calls is below a cond.
    """
    endless = _cycles(graph, "always")
    for name, cycle in (_cycles(graph, "text") | endless).items():
        path = " → ".join(cycle)
        span = graph[name][cycle[1]][1]
        if name in endless:
            message = f"the call never ends: {path}"
            hint = "put a <cond> around it"
            yield name, Diagnostic("error", "endless-call", message, span=span, hint=hint)
        else:
            message = f"the template calls itself: {path}"
            hint = "make sure that an {% if %} or a <cond> ends it"
            yield name, Diagnostic("warning", "call-cycle", message, span=span, hint=hint)


def _cycles(graph: Graph, weakest: EdgeKind) -> dict[str, list[str]]:
    """For each name that is on a cycle of calls at least as certain as `weakest` a shortest one,
    with its ends.
    """
    return cycles(
        {
            name: [target for target, (kind, _) in targets.items() if _RANK[kind] <= _RANK[weakest]]
            for name, targets in graph.items()
        }
    )


def roles_of(node: TopLevel | Node) -> Iterator[str]:
    """The model roles that the tasks in `node` name."""
    return (task.model_role for task in tasks(node) if task.model_role is not None)


@frozen
class Needs:
    """What a run may need: the model roles that its tasks name, and those of its tasks and
    functions that name tools or declare a schema other than a type, which may be unknown or
    invalid.
    """

    roles: frozenset[str]
    doubtful: tuple[Task | Function, ...]


def needs_of(nodes: Iterable[TopLevel | Node]) -> Needs:
    """What the tasks in `nodes` need."""
    roles: set[str] = set()
    doubtful: list[Task | Function] = []
    for node in nodes:
        if isinstance(node, Function) and _is_document(node.returns):
            doubtful.append(node)
        for task in tasks(node):
            if task.model_role is not None:
                roles.add(task.model_role)
            if (task.tools and isinstance(task, Atomic)) or _declares_document(task):
                doubtful.append(task)
    return Needs(frozenset(roles), tuple(doubtful))


def _declares_document(task: Task) -> bool:
    """Whether the output of a task is read by a JSON Schema or a class."""
    output = task.output
    return output is not None and output.type != "text" and _is_document(output.schema)


def _is_document(schema: str | None) -> bool:
    """Whether a declared schema is a JSON Schema, inline or in a file, or a class of a module."""
    return schema is not None and (
        schema.lstrip().startswith("{") or is_file(schema) or is_model(schema)
    )


def schema_places(nodes: Iterable[TopLevel]) -> list[str]:
    """The modules, and paths of files, of the schemas (`module:Model`) of the outputs and of what
    functions return.
    """
    names = (name for node in nodes for name in _schemas(node) if is_model(name))
    return list(dict.fromkeys(name.strip().rpartition(":")[0] for name in names))


def _schemas(node: TopLevel) -> Iterator[str]:
    for inner in descendants(node):
        if isinstance(inner, Function):
            yield inner.returns or ""
        elif isinstance(inner, Task) and inner.output is not None:
            yield inner.output.schema or ""
