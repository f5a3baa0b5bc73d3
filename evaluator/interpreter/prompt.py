"""Builds the messages that a model receives for an atomic task; nothing is added to them
afterwards.

`prepare_prompt` does what is the same for every row, once; `build_messages` the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any

from evaluator.errors import Diagnostic, ExpressionError, TemplateError, UsageError
from evaluator.errors.results import TaskError
from evaluator.interpreter.binding import BoundInputs, BoundTask, bind_values
from evaluator.interpreter.calls import functions_in_text
from evaluator.interpreter.context import attachments_of, format_items
from evaluator.interpreter.frame import Run
from evaluator.interpreter.notes import REQUEST
from evaluator.language.analysis import analyse
from evaluator.language.fences import block
from evaluator.language.inputs import unnamed_inputs
from evaluator.language.sandbox import as_text, render_prompt
from evaluator.language.scopes import read_typed
from evaluator.language.syntax import before_markup, has_markup
from evaluator.lazy_dataclass import frozen
from evaluator.models.attachments import Attachment
from evaluator.models.backend import Hints, Message, Role
from evaluator.nodes import Atomic, Example, Input, OutputFormat, Text, Turn
from evaluator.nodes.values import VALUE_TYPES
from evaluator.output.schema import schema_text

_content_of = itemgetter(1)
MAX_SHOTS = 64
"""Texts of few-shot examples that are kept for each task."""


class SharedBeginning:
    """The texts at the beginning of a task's prompts that were the same in all of them so far."""

    __slots__ = ("_texts",)

    def __init__(self) -> None:
        self._texts: list[str] | None = None

    def count(self, texts: list[str]) -> int | None:
        """How many of the first `texts` every prompt has had; None for the first prompt."""
        known = self._texts
        if known is None:
            self._texts = texts
            return None
        if known == texts:
            return len(texts)
        same = 0
        for known_text, text in zip(known, texts, strict=False):
            if known_text != text:
                break
            same += 1
        if same < len(known):
            self._texts = known[:same]
        return same


@frozen(eq=False)
class PreparedPrompt:
    """The parts of an atomic task's messages that are the same for every row.

    `system` is the system prompt; None where it holds a variable. `head` is the opening before its
    first variable. `unnamed` are the inputs that no text names. `later` are the turns after the
    first message. `ending` is what the last message ends with. `is_plain_text`: an answer is text
    without a schema. `may_ask_for_notes`: the answer may have text around it, and the last message
    is the author's. `opening_names` are the names that the opening reads; None where it calls a
    function. `shots` are the texts of few-shot examples that depend on nothing else, by their
    inputs as JSON. `beginning` has what was the same in all prompts so far.
    """

    system: str | None
    opening: Text
    head: str
    unnamed: tuple[Input, ...]
    later: tuple[Turn, ...]
    ending: str
    is_plain_text: bool
    may_ask_for_notes: bool
    opening_names: frozenset[str] | None
    shots: dict[str, str]
    beginning: SharedBeginning


def prepare_prompt(task: Atomic, profile_system: str) -> PreparedPrompt:
    """The prompt of `task` below the system prompt of its profile."""
    system: str | None = profile_system
    if task.system is not None:
        system = None
        if not has_markup(task.system.value):
            system = _joined(profile_system, task.system.value)
    is_plain = is_plain_text(task.output)
    opening = task.opening()
    return PreparedPrompt(
        system,
        opening=opening,
        head=before_markup(opening.value),
        unnamed=unnamed_inputs(task),
        later=task.later_turns(),
        ending=format_instruction(task.output),
        is_plain_text=is_plain,
        may_ask_for_notes=is_plain and not (task.turns and task.turns[-1].node is not None),
        opening_names=_names_in(opening),
        shots={},
        beginning=SharedBeginning(),
    )


def _names_in(text: Text) -> frozenset[str] | None:
    try:
        analysis = analyse(text)
    except ExpressionError:
        return None  # rendering the text says why
    if analysis.calls:
        return None
    return frozenset(reference.name for reference in analysis.references)


async def build_messages(
    run: Run, task: Atomic, prompt: PreparedPrompt, bound: BoundTask
) -> tuple[Message, ...]:
    """System prompt (the profile's, then the task's), few-shot turns, then context, prompt and
    answer format.

    The prompt of a task with several turns is the first; `later_messages` has the others, and the
    answer format.
    """
    system = prompt.system
    if system is None and task.system is not None:
        task_system = await _resolve(run, task.system, bound=bound, field="system")
        system = _joined(bound.config.system, task_system)
    before: list[tuple[Role, str]] = []
    if system:
        before.append(("system", system))
    if task.shots:
        for example in task.examples:
            shot = await _shot(run, prompt, example=example, bound=bound)
            before.append(("user", shot))
            before.append(("assistant", example.output))
    if run.options.shots and not bound.frame.path:
        for inputs, answer in run.options.shots:
            shot = await _row_shot(run, prompt, inputs=inputs, bound=bound)
            before.append(("user", shot))
            before.append(("assistant", answer))
    text = bound.description
    if prompt.opening is not task.description:
        functions = None
        if prompt.opening_names is None:
            functions = functions_in_text(run, bound.frame, field="instructions")
        text = await render_prompt(prompt.opening, bound.scope, functions=functions)
    if prompt.unnamed:
        text = _with_inputs(text, prompt, values=bound.values)
    if not prompt.later:
        text = _with_ending(text, prompt, bound=bound)
    attachments: tuple[Attachment, ...] = ()
    items = bound.context.items
    shown = ""
    if items:
        attachments = attachments_of(items)
        if context := format_items(items):
            shown = f"{context}\n\n"
    beginning = list(map(_content_of, before))
    beginning.append(shown)
    same = prompt.beginning.count(beginning)
    if same is None:
        # Nothing is known of other rows: the context may be another one, the rest rarely is.
        same = len(before) + (not shown)
    if task.tools_from is not None:
        same = 0  # the functions of each row come before its messages
    messages: list[Message] = []
    for at, (role, content) in enumerate(before):
        shared = len(content) if at < same else 0
        messages.append(Message(role, content, shared=shared))
    shared = 0
    if same > len(before):
        shared = len(shown)
        if text.startswith(prompt.head):
            shared += len(prompt.head)
    messages.append(Message("user", shown + text, attachments=attachments, shared=shared))
    return tuple(messages)


async def later_messages(
    run: Run, prompt: PreparedPrompt, bound: BoundTask
) -> tuple[Message | Turn, ...]:
    """The messages of the user that follow the first answer, each sent after the answer to the one
    before.

    A turn that another task writes stays as it is. Raises: TemplateError, for a text that is empty.
    """
    messages: list[Message | Turn] = []
    for at, turn in enumerate(prompt.later, 2):
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
        if turn is prompt.later[-1]:
            body = _with_ending(body, prompt, bound=bound)
        messages.append(Message("user", body))
    return tuple(messages)


def _joined(profile_system: str, task_system: str) -> str:
    if profile_system:
        return f"{profile_system}\n\n{task_system}"
    return task_system


def _with_ending(body: str, prompt: PreparedPrompt, bound: BoundTask) -> str:
    if prompt.ending:
        body = f"{body}\n\n{prompt.ending}"
    if asks_for_notes(prompt, bound):
        return f"{body}\n\n{REQUEST}"
    return body


def asks_for_notes(prompt: PreparedPrompt, bound: BoundTask) -> bool:
    """Whether the prompt asks for notes: a later step sees only them, and the answer may have text
    around it.
    """
    return bound.frame.wants_notes and prompt.may_ask_for_notes


def is_plain_text(output: OutputFormat | None) -> bool:
    """Whether an answer is text without a schema."""
    return output is None or (output.type == "text" and output.schema is None)


def _with_inputs(body: str, prompt: PreparedPrompt, values: Mapping[str, Any]) -> str:
    """`body`, followed by each input with a value that no text of the task names, in a block with
    its name.
    """
    parts = [body]
    for declared in prompt.unnamed:
        value = values.get(declared.name)
        if value is not None:
            parts.append(block("input", as_text(value), name=declared.name))
    return "\n\n".join(parts)


async def _shot(run: Run, prompt: PreparedPrompt, example: Example, bound: BoundTask) -> str:
    types = {declared.name: declared.type for declared in bound.task.inputs}
    values = {
        name: read_typed(text, types.get(name, "any")) for name, text in example.inputs.items()
    }
    inputs = BoundInputs(bound.scope.child(values), values)
    return await _shot_text(run, prompt, bound=bound, inputs=inputs)


async def _row_shot(
    run: Run, prompt: PreparedPrompt, inputs: Mapping[str, Any], bound: BoundTask
) -> str:
    """The prompt for the inputs of another row. Only the results of nested tasks are those of this
    row.
    """
    nested = {
        each.name: bound.values.get(each.name)
        for each in bound.task.inputs
        if each.task is not None
    }
    frame = replace(bound.frame, arguments=nested | dict(inputs))
    shot = await bind_values(run, bound.prepared, frame=frame)
    if isinstance(shot, TaskError):
        raise UsageError(f"a few-shot example: {shot.message}")
    return await _shot_text(run, prompt, bound=bound, inputs=shot)


async def _shot_text(
    run: Run, prompt: PreparedPrompt, bound: BoundTask, inputs: BoundInputs
) -> str:
    """The prompt for these inputs. Rows often have the same examples, so their texts are kept."""
    values = inputs.values
    names = prompt.opening_names
    key = None
    if names is not None and names <= values.keys():
        key = json.dumps(dict(values))
        text = prompt.shots.get(key)
        if text is not None:
            return text
    functions = functions_in_text(run, bound.frame, field="shot")
    text = await render_prompt(prompt.opening, inputs.scope, functions=functions)
    text = _with_inputs(text, prompt, values=values)
    if prompt.ending:
        text = f"{text}\n\n{prompt.ending}"
    if key is not None:
        if len(prompt.shots) >= MAX_SHOTS:
            prompt.shots.clear()
        prompt.shots[key] = text
    return text


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


def hints_for(task: Atomic) -> Hints:
    """Hints from which the simulated model may build its answer, without those that depend on the
    row.
    """
    output = task.output
    if task.tools_from is not None:
        output_type = "calls"
    elif output is not None:
        output_type = output.type
    else:
        output_type = "text"
    return Hints(
        task.name,
        tuple((example.inputs, example.output) for example in task.examples),
        output_type=output_type,
        schema=None if output is None else output.schema,
    )
