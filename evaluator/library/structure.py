"""What can be found wrong in one node alone, without knowing what is in scope."""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes as jinja

from evaluator.errors import Diagnostic, ExpressionError
from evaluator.library.near import did_you_mean, listed, shortened
from evaluator.library.shapes import (
    SCHEMA_NAMES,
    BadSchema,
    Shape,
    folder_of,
    literal_fits,
    of_schema,
    of_type,
)
from evaluator.library.syntax import Fault, analyse_expression, has_markup, parse_expression
from evaluator.nodes import (
    Call,
    Cond,
    DirectorEvaluatorLoop,
    Expression,
    Function,
    Input,
    Node,
    Reduce,
    Sequential,
    Span,
    Task,
    TopLevel,
)


def check_structure(node: TopLevel | Node, known_tools: frozenset[str] | None) -> Iterator[Diagnostic]:
    """Findings about `node` itself; its children are visited by the caller."""
    if isinstance(node, Function):
        yield from _function(node)
    elif isinstance(node, Cond):
        yield from _cond(node)
    elif not isinstance(node, Call):
        yield from _task(node, known_tools)


def _function(node: Function) -> Iterator[Diagnostic]:
    seen: set[str] = set()
    optional: str | None = None
    for param in node.params:
        if param.name in seen:
            yield _error("duplicate-name", f"parameter `{param.name}` is declared twice", node.span)
        seen.add(param.name)
        shape = of_type(param.type)
        if shape is None:
            hint = did_you_mean(param.type, SCHEMA_NAMES)
            yield _error("unknown-type", f"parameter `{param.name}` has unknown type `{param.type}`", node.span, hint)
        elif param.default is not None and not literal_fits(param.default, shape):
            message = f"the default of parameter `{param.name}` is no {param.type}: {shortened(param.default)}"
            yield _error("default-type", message, node.span)
        if param.default is not None:
            optional = param.name
        elif optional is not None:
            message = f"parameter `{param.name}` has no default and follows `{optional}`, which has one"
            yield _error("parameter-order", message, node.span)
    if node.returns is not None:
        yield from _returns(node, node.returns)


def _returns(node: Function, returns: str) -> Iterator[Diagnostic]:
    try:
        shape = of_schema(returns, folder_of(node.span.file))
    except BadSchema as bad:
        yield _error(bad.code, f"`returns`: {bad.message}", node.span, bad.hint)
        return
    body = node.body
    output = None if isinstance(body, Call | Cond) else body.output
    if output is None or output.type != "json" or output.schema is None:
        return
    try:
        given = of_schema(output.schema, folder_of(output.span.file))
    except BadSchema:
        return
    if "any" not in (shape.kind, given.kind) and _differ(given, shape):
        message = f"`{node.name}` returns {returns}, and its body's schema is {shortened(output.schema)}"
        yield _error("type-mismatch", message, output.span, "declare the same in both places")


def _differ(have: Shape, want: Shape) -> bool:
    if have.kind != want.kind:
        return not (want.kind == "number" and have.kind == "integer")
    if have.item is None or want.item is None or "any" in (have.item.kind, want.item.kind):
        return False
    return _differ(have.item, want.item)


def _task(node: Task, known_tools: frozenset[str] | None) -> Iterator[Diagnostic]:
    yield from _inputs(node)
    yield from _examples(node)
    yield from _context(node)
    if node.output is not None and node.output.schema is not None:
        if node.output.type == "text" and node.output.schema.strip() not in ("string", "any"):
            message = "a schema has no effect on output of type text"
            yield _warning("schema-without-effect", message, node.output.span, 'write type="json"')
        else:
            try:
                of_schema(node.output.schema, folder_of(node.output.span.file))
            except BadSchema as bad:
                yield _error(bad.code, bad.message, node.output.span, bad.hint)
    if known_tools is not None:
        for tool in node.tools:
            if tool not in known_tools:
                hint = did_you_mean(tool, known_tools, f"there are {listed(known_tools)}")
                yield _error("unknown-tool", f"unknown tool `{tool}`", node.span, hint)
    if isinstance(node, Sequential):
        yield from _steps(node)
    elif isinstance(node, Reduce):
        names = [declared.name for declared in node.inputs]
        for name in node.over:
            if name not in names:
                hint = did_you_mean(name, names, f"the inputs are {listed(names)}")
                yield _error("unknown-input", f"`over` names no input of this task: `{name}`", node.span, hint)
        if not names:
            yield _warning("nothing-to-reduce", "reduce has no inputs, so there is nothing to go over", node.span)
    elif isinstance(node, DirectorEvaluatorLoop):
        yield from _loop(node)


def _inputs(node: Task) -> Iterator[Diagnostic]:
    seen: set[str] = set()
    for declared in node.inputs:
        if declared.name in seen:
            yield _error("duplicate-name", f"input `{declared.name}` is declared twice", declared.span)
        seen.add(declared.name)
        shape = of_type(declared.type)
        if shape is None:
            hint = did_you_mean(declared.type, SCHEMA_NAMES)
            message = f"input `{declared.name}` has unknown type `{declared.type}`"
            yield _error("unknown-type", message, declared.span, hint)
            continue
        yield from _default(declared, shape)


def _default(declared: Input, shape: Shape) -> Iterator[Diagnostic]:
    default = declared.default
    if declared.source is not None and declared.task is not None:
        message = f"input `{declared.name}` has both `from` and a nested task"
        yield _error("two-sources", message, declared.span, "keep one of them")
    if default is None:
        return
    if declared.source is not None or declared.task is not None:
        message = f"the default of input `{declared.name}` is never used: its value comes from elsewhere"
        yield _warning("default-without-effect", message, declared.span)
    if not has_markup(default.value) and not literal_fits(default.value, shape):
        message = f"the default of input `{declared.name}` is no {declared.type}: {shortened(default.value)}"
        yield _error("default-type", message, default.span)


def _examples(node: Task) -> Iterator[Diagnostic]:
    known = {declared.name: declared for declared in node.inputs}
    for example in node.examples:
        for name, value in example.inputs.items():
            declared = known.get(name)
            if declared is None:
                hint = did_you_mean(name, known, f"the inputs are {listed(known)}")
                message = f"the example gives `{name}`, which is no input of this task"
                yield _error("example-input", message, example.span, hint)
                continue
            shape = of_type(declared.type)
            if shape is not None and not literal_fits(value, shape):
                message = f"the example's `{name}` is no {declared.type}: {shortened(value)}"
                yield _error("example-type", message, example.span)
        missing = [n for n, d in known.items() if must_be_given(d) and n not in example.inputs]
        if missing:
            message = f"the example gives no value for the required {listed(missing)}"
            yield _warning("example-incomplete", message, example.span)


def must_be_given(declared: Input) -> bool:
    return declared.required and declared.default is None and declared.source is None and declared.task is None


_ACCUMULATES = frozenset({"sequential", "reduce", "director_evaluator_loop"})


def _context(node: Task) -> Iterator[Diagnostic]:
    settings = node.context
    accumulates = settings.accumulate_data
    if node.type not in _ACCUMULATES:
        if accumulates:
            message = f"accumulate_data has no effect on a task of type {node.type}: it has no steps"
            yield _warning("setting-without-effect", message, settings.span)
        accumulates = False
    elif accumulates is None:
        accumulates = True
    if settings.accumulation_format is not None and not accumulates:
        message = "accumulation_format has no effect where nothing is accumulated"
        hint = "set accumulate_data to true" if node.type in _ACCUMULATES else None
        yield _warning("setting-without-effect", message, settings.span, hint)
    if node.type == "script" and (settings.inherit_context or settings.fresh_context == "enabled"):
        message = "context settings have no effect on a script: a process reads its inputs only"
        yield _warning("setting-without-effect", message, settings.span)


def _steps(node: Sequential) -> Iterator[Diagnostic]:
    seen: dict[str, Span] = {}
    for step in node.steps:
        if step.name is None:
            continue
        if step.name in seen:
            first = seen[step.name]
            message = f"two steps are called `{step.name}`; the first is in line {first.line}"
            yield _error("duplicate-name", message, step.span, "give each step a name of its own")
        seen.setdefault(step.name, step.span)
    if not node.steps:
        yield _warning("no-steps", "the sequence has no steps", node.span)


def _loop(node: DirectorEvaluatorLoop) -> Iterator[Diagnostic]:
    most = node.max_iterations
    if isinstance(most, int) and most < 1:
        yield _error("no-iterations", f"max_iterations is {most}; it must be at least 1", node.span)
    # A stated 5 is the default too, and reads the same from the tree.
    if node.termination_condition is None and most == 5:
        message = "the loop states no termination_condition; it ends when the evaluator reports success, or after 5"
        hint = "add <termination_condition> or <max_iterations>"
        yield _warning("loop-by-default", message, node.span, hint)
    if node.termination_condition is not None and truth(node.termination_condition) is False:
        message = "the termination_condition never holds: every iteration always runs"
        yield _warning("constant-test", message, node.termination_condition.span)


def _cond(node: Cond) -> Iterator[Diagnostic]:
    tests: dict[str, Span] = {}
    always: Span | None = None
    for case in node.cases:
        written = " ".join(case.test.source.value.split())
        value = truth(case.test)
        if always is not None:
            message = f"this case is never reached: the one in line {always.line} always holds"
            yield _warning("unreachable-case", message, case.span)
        elif value is False:
            yield _warning("unreachable-case", f"this case never holds: {shortened(written)}", case.test.span)
        elif written in tests:
            message = f"this case is never reached: the one in line {tests[written].line} has the same test"
            yield _warning("unreachable-case", message, case.test.span)
        tests.setdefault(written, case.test.span)
        if value is True and always is None:
            always = case.test.span
    if always is not None and node.default is not None:
        message = f"the default is never reached: the case in line {always.line} always holds"
        yield _warning("unreachable-case", message, node.default.span)


def truth(test: Expression) -> bool | None:
    """Whether a test always or never holds; None where that depends on something or cannot be read."""
    try:
        # Most tests name something: the cached analysis says so without parsing again.
        if not analyse_expression(test).constant:
            return None
        return _truth(parse_expression(test.source.value))
    except (ExpressionError, Fault):
        return None


def _truth(node: jinja.Node) -> bool | None:
    if isinstance(node, jinja.Const):
        return bool(node.value)
    if isinstance(node, jinja.Not):
        inner = _truth(node.node)
        return None if inner is None else not inner
    if isinstance(node, jinja.And | jinja.Or):
        sides = (_truth(node.left), _truth(node.right))
        decisive = isinstance(node, jinja.Or)
        if decisive in sides:
            return decisive
        return None if None in sides else not decisive
    if isinstance(node, jinja.Compare) and len(node.ops) == 1:
        left, right = node.expr, node.ops[0].expr
        if isinstance(left, jinja.Const) and isinstance(right, jinja.Const):
            same = left.value == right.value
            return {"eq": same, "ne": not same}.get(node.ops[0].op)
    return None


def _error(code: str, message: str, span: Span, hint: str | None = None) -> Diagnostic:
    return Diagnostic("error", code, message, span, hint)


def _warning(code: str, message: str, span: Span, hint: str | None = None) -> Diagnostic:
    return Diagnostic("warning", code, message, span, hint)
