"""Calls and conditions: `<call>` of a function or a named task, functions called inside texts,
`<cond>`.

A function sees only its parameters and inherits no context. A named task is a standard template: it
sees the whole lexical scope of its caller. The schema that a function returns, and that of a task's
output, is read by `usable_schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evaluator.errors import Diagnostic, ExpressionError, TemplateError, UsageError
from evaluator.errors.messages import amount
from evaluator.errors.results import Outcome, Status, TaskError, TaskFailed, TaskResult
from evaluator.interpreter.frame import Frame, Run, Services, join, value_of
from evaluator.language.inputs import bind_arguments, single_expression
from evaluator.language.sandbox import (
    FunctionCaller,
    evaluate_expression,
    evaluate_expression_sync,
    render,
)
from evaluator.language.scopes import Scope, read_typed
from evaluator.library.shapes import SchemaFileError, folder_of, is_file, is_model, read_schema
from evaluator.nodes import Argument, Call, Cond, Expression, Function, Span, Task

MAX_CALL_DEPTH = 50


async def run_cond(run: Run, node: Cond, frame: Frame) -> Outcome:
    """The result of the first case whose test holds, else of the default, else an empty COMPLETE
    result.
    """
    for number, case in enumerate(node.cases, 1):
        functions = functions_in_text(run, frame, field=f"case[{number}].test")
        if await evaluate_expression(case.test, frame.scope, functions=functions):
            inner = frame.at(f"case[{number}]", wants_notes=frame.wants_notes)
            return await run.services.evaluate(run, case.body, inner)
    if node.default is not None:
        return await run.services.evaluate(
            run, node.default, frame.at("default", wants_notes=frame.wants_notes)
        )
    return TaskResult(
        Status.COMPLETE, "", notes={"cond": "no case held and there is no default", "warnings": []}
    )


async def run_call(run: Run, node: Call, frame: Frame) -> Outcome:
    """The result of the called template; its arguments are resolved in the caller's scope."""
    types = _expected_types(run, node)
    values = [
        await argument_value(run, argument, frame=frame, expected_type=expected_type)
        for argument, expected_type in zip(node.args, types, strict=True)
    ]
    positional = [
        value for argument, value in zip(node.args, values, strict=True) if argument.name is None
    ]
    named = {
        a.name: value for a, value in zip(node.args, values, strict=True) if a.name is not None
    }
    inner = frame.at(f"call.{node.template}", wants_notes=frame.wants_notes)
    return await call_template(
        run, node.template, positional=positional, named=named, span=node.span, frame=inner
    )


async def call_template(
    run: Run, name: str, positional: list[Any], named: Mapping[str, Any], span: Span, frame: Frame
) -> Outcome:
    """Calls the template `name`; `frame` is the frame of the body, with the caller's scope.

    Raises: ExpressionError, for an unknown template, a wrong arity, or calls nested too deeply.
    """
    if len(frame.calls) >= MAX_CALL_DEPTH:
        raise ExpressionError(
            f"{name!r} is called {MAX_CALL_DEPTH} levels deep: do the calls end?",
            span,
            code="call-depth",
        )
    frame = replace(frame, calls=(*frame.calls, name))
    if name not in run.services.library:
        raise ExpressionError(f"no template is called {name!r}", span, code="unknown-template")
    target = run.services.library.get(name).node
    if isinstance(target, Function):
        return await call_function(
            run, target, positional=positional, named=named, span=span, frame=frame
        )
    names = [declared.name for declared in target.inputs]
    if len(positional) > len(names):
        raise ExpressionError(
            f"{name!r} takes {amount(len(names), 'input')}, {len(positional)} were given",
            span,
            code="wrong-arity",
        )
    arguments = dict(zip(names, positional, strict=False))
    for key, value in named.items():
        if key in arguments:
            raise ExpressionError(f"{name!r} was given {key!r} twice", span, code="wrong-arity")
        arguments[key] = value
    return await run.services.evaluate(run, target, replace(frame, arguments=arguments))


async def call_function(
    run: Run,
    function: Function,
    positional: list[Any],
    named: Mapping[str, Any],
    span: Span,
    frame: Frame,
) -> Outcome:
    """Runs the body in a scope with only its parameters, and reads its result as `returns`
    declares.
    """
    bound = bind_arguments(function.params, positional, kwargs=named, name=function.name, span=span)
    inner = replace(
        frame, scope=Scope(bound), context=(), arguments=_arguments(function.body, bound)
    )
    outcome = await run.services.evaluate(run, function.body, inner)
    if isinstance(outcome, TaskError):
        return outcome
    return _returned(run, function, outcome=outcome, span=span)


def _arguments(body: object, bound: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The parameters that are arguments of the function's body, because it declares inputs of the
    same names.
    """
    if not isinstance(body, Task) or not body.inputs:
        return None
    return {i.name: bound[i.name] for i in body.inputs if i.name in bound}


def _returned(run: Run, function: Function, outcome: TaskResult, span: Span) -> Outcome:
    """The result, read as the function's `returns` declares unless its body has parsed it
    already.
    """
    if function.returns in (None, "any", "string") or outcome.parsed_content is not None:
        return outcome
    from evaluator.output import parse_output

    parsed = parse_output(
        outcome.content,
        "json",
        schema=usable_schema(run.services, function.returns or "any", span=function.span),
    )
    if parsed.error is not None:
        return TaskError(
            "INVALID_OUTPUT",
            f"{function.name!r} returns {function.returns}: {parsed.error.message}",
            reason="output_format_failure",
            location=span,
            content=outcome.content,
            notes=outcome.notes,
            usage=outcome.usage,
        )
    return replace(outcome, parsed_content=parsed.value)


def _expected_types(run: Run, call: Call) -> list[str]:
    """The declared type of each argument of a call; `any` where none is known."""
    types: dict[str, str] = {}
    if call.template in run.services.library:
        node = run.services.library.get(call.template).node
        if isinstance(node, Function):
            types = {param.name: param.type for param in node.params}
        else:
            types = {declared.name: declared.type for declared in node.inputs}
    by_position = [*types.values(), *(["any"] * len(call.args))]
    return [
        by_position[position] if argument.name is None else types.get(argument.name, "any")
        for position, argument in enumerate(call.args)
    ]


async def argument_value(run: Run, argument: Argument, frame: Frame, expected_type: str) -> Any:
    """The variable of that name (dotted and indexed access too) if there is one, else the text read
    as `expected_type`.
    """
    text = argument.value
    bare = text.value.strip()
    root = bare.split(".", 1)[0].split("[", 1)[0]
    if root.isidentifier() and root in frame.scope:
        return evaluate_expression_sync(Expression(text), frame.scope)
    inner = single_expression(text)
    functions = functions_in_text(run, frame, field=f"arg.{argument.name or ''}")
    if inner is not None:
        return await evaluate_expression(Expression(inner), frame.scope, functions=functions)
    literal = await render(text, frame.scope, functions=functions)
    if expected_type in ("any", "string"):
        return literal
    try:
        return read_typed(literal, expected_type)
    except UsageError as error:
        raise ExpressionError(
            f"argument {argument.name or literal!r}: {error}", text.span, code="wrong-type"
        ) from error


def functions_in_text(run: Run, frame: Frame, field: str) -> FunctionCaller:
    """A caller of the function templates in a text. The path of each call is stable: field and
    position.
    """

    async def call(
        name: str, args: tuple[Any, ...], kwargs: dict[str, Any], span: Span, index: int
    ) -> Any:
        inner = replace(
            frame,
            path=join(frame.path, f"{field}.{name}[{index}]"),
            arguments=None,
            wants_notes=False,
        )
        outcome = await call_template(
            run, name, positional=list(args), named=kwargs, span=span, frame=inner
        )
        if isinstance(outcome, TaskError):
            raise TaskFailed(outcome)
        return value_of(outcome)

    return call


def usable_schema(services: Services, declared: str, span: Span) -> str | None:
    """A declared schema without access to files. None in a preview for a `module:Model`, which
    would be imported.

    Raises: TemplateError, for a file that is outside of the template's folder and of the roots, or
    cannot be read.
    """
    if is_file(declared):
        try:
            return read_schema(
                declared.strip(), folder_of(span.file), roots=services.files.roots.folders
            )
        except SchemaFileError as bad:
            raise TemplateError(
                [Diagnostic("error", bad.code, message=bad.message, span=span, hint=bad.hint)]
            ) from bad
    if services.dry_run and is_model(declared):
        services.notice(
            f"the schema {declared.strip()} is not imported; a run also shows its JSON Schema to "
            "the model"
        )
        return None
    return declared
