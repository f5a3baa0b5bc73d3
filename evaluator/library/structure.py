"""Checks of a single node that do not depend on its scope, its model's id among them.

A model's id names a model, never a host.
Some libraries take the address that they call from the model's id (`oobabooga/http://HOST/…`).
Hosts belong to handler profiles, so an id that is an address, or could be read as one after
decoding or normalisation, is refused.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from evaluator.errors import Diagnostic, ExpressionError
from evaluator.errors.messages import did_you_mean, listed, shortened
from evaluator.language.analysis import analyse
from evaluator.language.locating import LocatedError
from evaluator.language.scopes import is_type_name
from evaluator.language.syntax import has_markup
from evaluator.library.shapes import (
    SchemaFileError,
    declared_shape,
    folder_of,
    literal_fits,
    of_schema,
)
from evaluator.nodes import Call, Cond, Expression, Function, Node, Span, Task, Text, TopLevel
from evaluator.nodes.declare import FIELDS
from evaluator.nodes.values import VALUE_TYPES, Shape
from evaluator.patterns import Pattern

MAX_CHARS = 512
_OTHER_CHARACTER = Pattern(r"[^\w.:@+=,() /-]")
_SCHEME = Pattern(r".*:|(?:https?|wss?|ftp|file|unix|data):.*", "i")
_HOST_AND_PORT = Pattern(r"[\w-]+(?:\.[\w-]+)+:\d{2,5}|localhost(?::\d*)?", "i")
_IPV4 = Pattern(r"\d{1,3}(?:\.\d{1,3}){3}(?::\d*)?")
_USER_AND_HOST = Pattern(r".*@(?:.*\..*|localhost.*)", "i")


def host_in(model: str) -> str | None:
    """The reason why the id `model` is refused: what in it is an address or could become one. None
    for a usable id.

    Usable are names of letters and digits with `.`, `:`, `@`, `-` and the like, divided by single
    slashes: `openai/gpt-4o`, `qwen3:8b`, `@cf/meta/llama`, `/models/a.gguf`, an AWS ARN.
    """
    if len(model) > MAX_CHARS:
        return f"it is longer than {MAX_CHARS} characters"
    # Addresses are normalised before they are used: a full-width colon becomes a colon.
    plain = unicodedata.normalize("NFKC", model)
    if "//" in plain:
        return "it contains '//', as an address does"
    other = _OTHER_CHARACTER.search(plain)
    if other is not None:
        return f"it contains {other[0]!a}, which names of models do not have and addresses may have"
    for part in plain.strip().split("/"):
        if part in (".", ".."):
            return f"it contains the path {part!r}"
        if _SCHEME.fullmatch(part):
            return f"{part!r} has the scheme of an address"
        if (
            _HOST_AND_PORT.fullmatch(part)
            or _IPV4.fullmatch(part)
            or _USER_AND_HOST.fullmatch(part)
        ):
            return f"{part!r} is a host"
    return None


def check_structure(
    node: TopLevel | Node, known_tools: frozenset[str] | None
) -> Iterator[Diagnostic]:
    """Findings about `node` itself; its children are visited by the caller."""
    if isinstance(node, Function):
        yield from _function(node)
    elif isinstance(node, Cond):
        yield from _cond(node)
    elif not isinstance(node, Call):
        yield from _task(node, known_tools)


def _function(node: Function) -> Iterator[Diagnostic]:
    optional: str | None = None
    for param in node.params:
        what = f"parameter `{param.name}`"
        yield from _type_and_default(
            what, param.type, default=param.default, span=node.span, place=node.span
        )
        if param.default is not None:
            optional = param.name
        elif optional is not None:
            message = (
                f"parameter `{param.name}` has no default and follows `{optional}`, which has one"
            )
            yield _error("parameter-order", message, span=node.span)
    if node.returns is not None:
        yield from _returns(node, node.returns)


def _type_and_default(
    what: str, type_name: str, default: str | None, span: Span, place: Span
) -> Iterator[Diagnostic]:
    """Findings about the type that an input or a parameter declares, and the literal default at
    `place`.
    """
    if not is_type_name(type_name):
        hint = did_you_mean(type_name, VALUE_TYPES)
        yield _error(
            "unknown-type", f"{what} has the unknown type `{type_name}`", span=span, hint=hint
        )
    elif default is not None and not literal_fits(default, type_name):
        message = f"the default of {what} is not of type {type_name}: {shortened(default)}"
        yield _error("default-type", message, span=place)


def _returns(node: Function, returns: str) -> Iterator[Diagnostic]:
    try:
        shape = of_schema(returns, folder_of(node.span.file))
    except SchemaFileError as bad:
        yield _error(bad.code, f"`returns`: {bad.message}", span=node.span, hint=bad.hint)
        return
    body = node.body
    if isinstance(body, Call | Cond):
        output = None
    else:
        output = body.output
    if output is None or output.type != "json" or output.schema is None:
        return
    given = declared_shape(output.schema, output.span.file)
    if "any" not in (shape.kind, given.kind) and _differ(given, shape):
        message = (
            f"`{node.name}` returns {returns}, and its body's schema is {shortened(output.schema)}"
        )
        yield _error(
            "type-mismatch", message, span=output.span, hint="declare the same in both places"
        )


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
    yield from _model_parts(node)
    if node.output is not None and node.output.schema is not None:
        if node.output.type == "text" and node.output.schema.strip() not in ("string", "any"):
            message = "a schema has no effect on output of type text"
            yield _warning(
                "schema-without-effect", message, span=node.output.span, hint='write type="json"'
            )
        else:
            try:
                of_schema(node.output.schema, folder_of(node.output.span.file))
            except SchemaFileError as bad:
                yield _error(bad.code, bad.message, span=node.output.span, hint=bad.hint)
    if known_tools is not None:
        for tool in node.tools:
            if tool not in known_tools:
                hint = did_you_mean(tool, known_tools, otherwise=f"there are {listed(known_tools)}")
                yield _error("unknown-tool", f"unknown tool `{tool}`", span=node.span, hint=hint)
    if node.model is not None and not has_markup(node.model.value):
        reason = host_in(node.model.value)
        if reason is not None:
            yield model_with_host(node.model, reason)
    for field in FIELDS[type(node)]:
        value = getattr(node, field.name)
        if field.form == "condition" and value is not None and truth(value) is False:
            yield _warning("constant-test", f"the {field.element} never holds", span=value.span)
    for doubt in node.doubts():
        span = doubt.span or node.span
        yield Diagnostic(
            doubt.severity, doubt.code, message=doubt.message, span=span, hint=doubt.hint
        )


def model_with_host(model: Text, reason: str) -> Diagnostic:
    """The error for a template's `model` that names a host."""
    return _error(
        "model-with-host",
        f"a template names models, never hosts: {reason}",
        span=model.span,
        hint="name the model; its address belongs into <base_url> of a handler profile",
    )


def _inputs(node: Task) -> Iterator[Diagnostic]:
    for declared in node.inputs:
        default = declared.default
        if default is not None and not declared.is_given:
            message = (
                f"the default of input `{declared.name}` is never used: its value comes "
                "from elsewhere"
            )
            yield _warning("default-without-effect", message, span=declared.span)
        if default is None or has_markup(default.value):
            literal = None
        else:
            literal = default.value
        if default is None:
            place = declared.span
        else:
            place = default.span
        yield from _type_and_default(
            f"input `{declared.name}`",
            declared.type,
            default=literal,
            span=declared.span,
            place=place,
        )


def _examples(node: Task) -> Iterator[Diagnostic]:
    known = {declared.name: declared for declared in node.inputs}
    for example in node.examples:
        for name, value in example.inputs.items():
            declared = known.get(name)
            if declared is None:
                hint = did_you_mean(name, known, otherwise=f"the inputs are {listed(known)}")
                message = f"the example gives `{name}`, which is not an input of this task"
                place = example.places.get(name, example.span)
                yield _error("example-input", message, span=place, hint=hint)
                continue
            if is_type_name(declared.type) and not literal_fits(value, declared.type):
                message = (
                    f"the example's `{name}` is not of type {declared.type}: {shortened(value)}"
                )
                yield _error("example-type", message, span=example.places.get(name, example.span))
        missing = [n for n, d in known.items() if d.must_be_given and n not in example.inputs]
        if missing:
            message = f"the example gives no value for the required {listed(missing)}"
            yield _warning("example-incomplete", message, span=example.span)


def _context(node: Task) -> Iterator[Diagnostic]:
    settings = node.context
    may_accumulate = node.default_context.accumulate_data
    accumulates = may_accumulate and settings.accumulate_data is not False
    if settings.accumulate_data is not None and not may_accumulate:
        yield _without_effect(
            f"accumulate_data has no effect on a task of type {node.type}: it has no steps that "
            "follow others",
            settings.span,
        )
    if settings.accumulation_format is not None and not accumulates:
        if may_accumulate:
            hint = "set accumulate_data to true"
        else:
            hint = None
        yield _without_effect(
            "accumulation_format has no effect where nothing is accumulated",
            settings.span,
            hint=hint,
        )
    if node.runs_process and (settings.inherit_context or settings.fresh_context):
        yield _without_effect(
            f"context settings have no effect on a {node.type}: a process reads its inputs only",
            settings.span,
        )
    is_closed = (settings.inherit_context, settings.fresh_context) == ("none", "disabled")
    if (
        is_closed
        and may_accumulate
        and settings.accumulate_data is False
        and node.file_paths is None
    ):
        yield _warning(
            "no-context",
            "with inherit_context none, accumulate_data false and fresh_context disabled no "
            "step sees any context",
            span=settings.span,
            hint="change one of them, or name files in <file_paths>",
        )


_OF_A_MODEL = (
    "instructions",
    "system",
    "model",
    "criteria",
    "tools",
    "manual_xml",
    "disable_reparsing",
)
"""The parts of a task that only one that asks a model uses itself."""


def _model_parts(node: Task) -> Iterator[Diagnostic]:
    """A finding for each part that has no effect because the task has no conversation of its
    own.
    """
    if node.asks_model or node.ref is not None:
        return
    parts = [name for name in _OF_A_MODEL if getattr(node, name)]
    parts += ["file_paths"] if node.runs_process and node.file_paths is not None else []
    for name in parts:
        if name == "criteria":
            why = "only atomic templates are matched"
        else:
            why = "it asks no model itself"
        if node.runs_process or name == "criteria":
            hint = None
        else:
            hint = "move it into the tasks inside"
        place = getattr(getattr(node, name), "span", node.span)
        yield _without_effect(
            f"<{name}> has no effect on a task of type {node.type}: {why}", place, hint=hint
        )


def _cond(node: Cond) -> Iterator[Diagnostic]:
    tests: dict[str, Span] = {}
    always: Span | None = None
    for case in node.cases:
        written = " ".join(case.test.source.value.split())
        value = truth(case.test)
        if always is not None:
            message = f"this case is never reached: the one in line {always.line} always holds"
            yield _warning("unreachable-case", message, span=case.span)
        elif value is False:
            yield _warning(
                "unreachable-case",
                f"this case never holds: {shortened(written)}",
                span=case.test.span,
            )
        elif written in tests:
            message = (
                f"this case is never reached: the one in line {tests[written].line} has the "
                "same test"
            )
            yield _warning("unreachable-case", message, span=case.test.span)
        tests.setdefault(written, case.test.span)
        if value is True and always is None:
            always = case.test.span
    if always is not None and node.default is not None:
        message = f"the default is never reached: the case in line {always.line} always holds"
        yield _warning("unreachable-case", message, span=node.default.span)


def truth(test: Expression) -> bool | None:
    """Whether a test always or never holds; None if it depends on a variable or cannot be read."""
    try:
        # Most tests name a variable. The cached analysis shows this without parsing again.
        if not analyse(test).constant:
            return None
        from evaluator.language.parsing import parse_expression
        from evaluator.language.walker import truth_of

        return truth_of(parse_expression(test.source.value))
    except (ExpressionError, LocatedError):
        return None


def _error(code: str, message: str, span: Span, hint: str | None = None) -> Diagnostic:
    return Diagnostic("error", code, message=message, span=span, hint=hint)


def _warning(code: str, message: str, span: Span, hint: str | None = None) -> Diagnostic:
    return Diagnostic("warning", code, message=message, span=span, hint=hint)


def _without_effect(message: str, span: Span, hint: str | None = None) -> Diagnostic:
    return _warning("setting-without-effect", message, span=span, hint=hint)
