"""Builds the messages that a model receives for an atomic task; nothing is added to them
afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evaluator.errors import Diagnostic, TemplateError, UsageError
from evaluator.errors.results import TaskError
from evaluator.interpreter.binding import BoundInputs, BoundTask, bind_values
from evaluator.interpreter.calls import functions_in_text
from evaluator.interpreter.context import attachments_of, format_items
from evaluator.interpreter.frame import Run
from evaluator.interpreter.notes import REQUEST
from evaluator.language.fences import block
from evaluator.language.inputs import unnamed_inputs
from evaluator.language.sandbox import as_text, render_prompt
from evaluator.language.types import read_typed
from evaluator.models.backend import Hints, Message
from evaluator.nodes import Atomic, Example, OutputFormat, Task, Text, Turn
from evaluator.nodes.values import VALUE_TYPES
from evaluator.output.schema import schema_text


async def build_messages(run: Run, task: Atomic, bound: BoundTask) -> tuple[Message, ...]:
    """System prompt (the profile's, then the task's), few-shot turns, then context, prompt and
    answer format.

    The prompt of a task with several turns is the first; `later_messages` has the others, and the
    answer format.
    """
    system = bound.config.system
    if task.system is not None:
        task_system = await _resolve(run, task.system, bound=bound, field="system")
        system = f"{system}\n\n{task_system}" if system else task_system
    messages = [Message("system", system)] if system else []
    if task.shots:
        for example in task.examples:
            messages.append(Message("user", await _shot(run, task, example=example, bound=bound)))
            messages.append(Message("assistant", example.output))
    if not bound.frame.path:
        for inputs, answer in run.options.shots:
            messages.append(Message("user", await _row_shot(run, task, inputs=inputs, bound=bound)))
            messages.append(Message("assistant", answer))
    prompt = await _prompt(run, task, bound=bound)
    if shown := format_items(bound.context.items):
        prompt = f"{shown}\n\n{prompt}"
    messages.append(Message("user", prompt, attachments=attachments_of(bound.context.items)))
    return tuple(messages)


async def later_messages(run: Run, task: Atomic, bound: BoundTask) -> tuple[Message | Turn, ...]:
    """The messages of the user that follow the first answer, each sent after the answer to the one
    before.

    A turn that another task writes stays as it is. Raises: TemplateError, for a text that is empty.
    """
    later = task.later_turns()
    messages: list[Message | Turn] = []
    for at, turn in enumerate(later, 2):
        if turn.text is None:
            messages.append(turn)
            continue
        body = await _resolve(run, turn.text, bound=bound, field=f"turns[{at}]")
        if not body.strip():
            raise TemplateError(
                [
                    Diagnostic(
                        "error", "empty-turn", message="this turn is empty", span=turn.text.span
                    )
                ]
            )
        messages.append(
            Message("user", _with_ending(body, task, bound=bound) if turn is later[-1] else body)
        )
    return tuple(messages)


async def _prompt(run: Run, task: Atomic, bound: BoundTask) -> str:
    body = bound.description
    opening = task.opening()
    if opening is not task.description:
        body = await _resolve(run, opening, bound=bound, field="instructions")
    prompt = _with_inputs(body, task, values=bound.values)
    if task.later_turns():
        return prompt
    return _with_ending(prompt, task, bound=bound)


def _with_ending(body: str, task: Task, bound: BoundTask) -> str:
    prompt = _with_format(body, task)
    if asks_for_notes(task, bound):
        return f"{prompt}\n\n{REQUEST}"
    return prompt


def asks_for_notes(task: Task, bound: BoundTask) -> bool:
    """Whether the prompt asks for notes: a later step sees only them, and the answer may have text
    around it.
    """
    is_played = isinstance(task, Atomic) and bool(task.turns) and task.turns[-1].node is not None
    return bound.frame.wants_notes and is_plain_text(task.output) and not is_played


def is_plain_text(output: OutputFormat | None) -> bool:
    """Whether an answer is text without a schema."""
    return output is None or (output.type == "text" and output.schema is None)


def _with_inputs(body: str, task: Task, values: Mapping[str, Any]) -> str:
    """`body`, followed by each input with a value that no text of the task names, in a block with
    its name.
    """
    unnamed = [(one.name, values.get(one.name)) for one in unnamed_inputs(task)]
    return "\n\n".join(
        [
            body,
            *(
                block("input", as_text(value), name=name)
                for name, value in unnamed
                if value is not None
            ),
        ]
    )


async def _shot(run: Run, task: Task, example: Example, bound: BoundTask) -> str:
    types = {declared.name: declared.type for declared in task.inputs}
    values = {
        name: read_typed(text, types.get(name, "any")) for name, text in example.inputs.items()
    }
    return await _shot_text(
        run, task, bound=bound, inputs_bound=BoundInputs(bound.scope.child(values), values)
    )


async def _row_shot(run: Run, task: Task, inputs: Mapping[str, Any], bound: BoundTask) -> str:
    """The prompt for the inputs of another row. Only the results of nested tasks are those of this
    row.
    """
    nested = {
        each.name: bound.values.get(each.name) for each in task.inputs if each.task is not None
    }
    inputs_bound = await bind_values(
        run, bound.prepared, frame=replace(bound.frame, arguments=nested | dict(inputs))
    )
    if isinstance(inputs_bound, TaskError):
        raise UsageError(f"a few-shot example: {inputs_bound.message}")
    return await _shot_text(run, task, bound=bound, inputs_bound=inputs_bound)


async def _shot_text(run: Run, task: Task, bound: BoundTask, inputs_bound: BoundInputs) -> str:
    functions = functions_in_text(run, bound.frame, field="shot")
    if isinstance(task, Atomic):
        opening = task.opening()
    else:
        opening = task.instructions or task.description
    body = await render_prompt(opening, inputs_bound.scope, functions=functions)
    return _with_format(_with_inputs(body, task, values=inputs_bound.values), task)


def _with_format(body: str, task: Task) -> str:
    instruction = format_instruction(task.output)
    if instruction:
        return f"{body}\n\n{instruction}"
    return body


async def _resolve(run: Run, text: Text, bound: BoundTask, field: str) -> str:
    return await render_prompt(
        text, bound.scope, functions=functions_in_text(run, bound.frame, field=field)
    )


def format_instruction(output: OutputFormat | None) -> str:
    """One line that tells the model the declared format; empty for text."""
    if output is None or output.type == "text":
        return ""
    if output.type == "xml":
        return "Answer with XML only."
    if output.schema is None:
        return "Answer with JSON only."
    if output.schema.lstrip().startswith("{"):
        return f"Answer with JSON only, valid against this JSON Schema:\n{output.schema.strip()}"
    name = _in_words(output.schema)
    if name is not None:
        return f"Answer with JSON only: {name}."
    shown = schema_text(output.schema)
    if shown:
        return f"Answer with JSON only, valid against this JSON Schema:\n{shown}"
    return "Answer with JSON only."


_WORDS = {
    "object": "an object",
    "array": "an array",
    "[]": "an array",
    "string": "a string",
    "number": "a number",
    "integer": "an integer",
    "boolean": "true or false",
}


def _in_words(type_name: str) -> str | None:
    if type_name in _WORDS:
        return _WORDS[type_name]
    if type_name in VALUE_TYPES and type_name != "any":
        return f"an array of {type_name[:-2]}s"
    return None


def _output_type(task: Task) -> str:
    if isinstance(task, Atomic) and task.tools_from is not None:
        return "calls"
    if task.output:
        return task.output.type
    return "text"


def hints_for(run: Run, task: Task, values: Any) -> Hints:
    """Hints from which the simulated model may build its answer."""
    return Hints(
        task=task.name,
        examples=tuple((example.inputs, example.output) for example in task.examples),
        inputs=values,
        output_type=_output_type(task),
        schema=task.output.schema if task.output else None,
        target=run.options.target,
    )
