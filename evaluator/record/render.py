"""A recording as text for a terminal, with everything escaped that a terminal would act on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from evaluator.record.conversation import Conversation, conversations, json_text
from evaluator.record.payload import is_plain
from evaluator.record.steps import Header, Recording, Resumption, Step, Summary

_COLOURS = {
    "success": "32",
    "completed": "32",
    "failed": "31",
    "aborted": "33",
    "running": "36",
    "interrupted": "33",
    "unreadable": "31",
    "heading": "1",
    "label": "2",
    "system": "35",
    "user": "36",
    "assistant": "32",
    "tool": "33",
}
_MAX_EXPANDED = 40
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def render_text(recording: Recording, colour: bool = False) -> str:
    """The whole recording, for a person: title, one section a step, summary, and what is wrong with the file.

    `colour` adds ANSI colours. Nothing is cut. Ends with a newline.
    """
    return "\n".join(_Renderer(colour).lines(recording)) + "\n"


def render_messages(recording: Recording, colour: bool = False) -> str:
    """The conversations of a recording, role by role, as the model saw and said them. As `render_text`."""
    return "\n".join(_Renderer(colour).talks(recording)) + "\n"


class Painter:
    """Gives a text the colour of a status or a part, or leaves it as it is."""

    __slots__ = ("colour",)

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def paint(self, text: str, style: str) -> str:
        code = _COLOURS.get(style) if self.colour else None
        return text if code is None else f"\x1b[{code}m{text}\x1b[0m"

    def title(self, recording: Recording) -> str:
        header = recording.header
        name = "a task without a header" if header is None else f"TASK-{header.task_id}"
        return f"{self.paint(name, 'heading')}  {self.paint(recording.status, recording.status)}"


class _Renderer(Painter):
    __slots__ = ()

    def lines(self, recording: Recording) -> Iterator[str]:
        yield self.title(recording)
        if recording.header is not None:
            yield from self.header(recording.header)
        for resumption in recording.resumptions:
            yield from self.field("resumed", _resumption_text(resumption))
        children = ", ".join(f"TASK-{child}" for child in dict.fromkeys(map(linked_task, recording.steps)) if child)
        if children:
            yield from self.field("subtasks", children)
        if recording.summary is None and (used := _used(recording.steps)):
            yield from self.field("used so far", _usage(used))
        for step in recording.steps:
            yield ""
            yield from self.step(step)
        if recording.summary is not None:
            yield ""
            yield from self.summary(recording.summary)
        for warning in recording.warnings:
            yield ""
            yield f"{self.paint('warning:', 'aborted')} {visible(warning)}"

    def talks(self, recording: Recording) -> Iterator[str]:
        yield self.title(recording)
        found = conversations(recording)
        if not found:
            yield "  no model was called"
        for conversation in found:
            yield ""
            yield from self.talk(conversation)

    def talk(self, conversation: Conversation) -> Iterator[str]:
        place = f" {visible(conversation.path, one_line=True)}" if conversation.path else ""
        model = visible(conversation.model, one_line=True)
        yield f"{self.paint(f'Conversation{place}', 'heading')}  {self.paint(model, 'label')}"
        if conversation.settings:
            yield from self.field("settings", conversation.settings)
        for message in conversation.messages:
            yield ""
            yield from self.message(message)
        step = conversation.unanswered
        if step is None:
            return
        yield ""
        error = "" if step.end is None or step.end.error is None else f"  {visible(step.end.error)}"
        yield f"{self.paint('no answer:', 'heading')} {self.paint(step.status, step.status)}{error}"
        if step.end is not None and step.end.output:
            yield from self.field("heard", step.end.output)

    def message(self, message: Mapping[str, Any]) -> Iterator[str]:
        role = message.get("role")
        role = visible(role, one_line=True) if isinstance(role, str) else "a message without a role"
        call = message.get("tool_call_id")
        answered = f" {visible(call, one_line=True)}" if isinstance(call, str) else ""
        yield self.paint(role, role if role in ("system", "user", "assistant", "tool") else "heading") + answered
        if message.get("reasoning"):
            yield from self.field("reasoning", message["reasoning"])
        content = message.get("content")
        if isinstance(content, str):
            if content:
                yield from (f"  {line}" for line in visible(content).split("\n"))
        elif content is not None:
            yield from self.field("content", content)
        elif "content_of" in message:
            yield from self.field("the record holds no answer of", message["content_of"])
        attached = message.get("attachments")
        for item in cast("list[Any]", attached) if isinstance(attached, list) else ():
            yield from self.field("attached", item)
        calls = message.get("tool_calls")
        for call in cast("list[Any]", calls) if isinstance(calls, list) else ():
            yield from self.call(call)

    def call(self, call: Any) -> Iterator[str]:
        known = cast("Mapping[str, Any]", call) if isinstance(call, Mapping) else {}
        name, number, arguments = known.get("name"), known.get("id"), known.get("arguments")
        if not isinstance(name, str) or not isinstance(number, str) or not isinstance(arguments, str):
            yield from self.field("calls", call)
            return
        name, number = visible(name, one_line=True), visible(number, one_line=True)
        yield f"  {self.paint('calls', 'label')} {self.paint(name, 'tool')} {number}"
        yield from (f"    {line}" for line in visible(arguments).split("\n"))

    def header(self, header: Header) -> Iterator[str]:
        parent = None if header.parent is None else f"TASK-{header.parent}"
        for label, value in (
            ("created", header.created),
            ("template", header.template),
            ("model", header.model),
            ("parent", parent),
            ("request", header.request),
            ("inputs", header.inputs),
            ("extra", header.extra),
        ):
            if value:
                yield from self.field(label, value)

    def step(self, step: Step) -> Iterator[str]:
        start, end = step.start, step.end
        name = f"Step {step.number}{' (retry)' if step.is_retry else ''}: {visible(start.name, one_line=True)}"
        yield f"{self.paint(name, 'heading')}  {self.paint(step.status, step.status)}"
        facts = [start.kind, visible(start.path, one_line=True)]
        if start.max_attempts > 1:
            facts.append(f"attempt {start.attempt}/{start.max_attempts}")
        if start.backoff_s is not None:
            facts.append(f"after {duration_text(start.backoff_s)}")
        if end is not None:
            facts.append(duration_text(end.duration_s))
        if (child := linked_task(step)) is not None:
            facts.append(f"in TASK-{child}")
        yield "  " + self.paint(" · ".join(fact for fact in facts if fact), "label")
        if start.args is not None:
            yield from self.field("args", start.args)
        if end is None:
            return
        if end.output is not None:
            yield from self.field("output", end.output)
        if end.error is not None:
            yield from self.field("error", end.error)
        if end.usage:
            yield from self.field("usage", _usage(end.usage))
        if end.extra:
            yield from self.field("extra", end.extra)

    def summary(self, summary: Summary) -> Iterator[str]:
        yield f"{self.paint('Summary', 'heading')}  {self.paint(summary.status, summary.status)}"
        planned = "" if summary.planned is None else f" of {summary.planned} planned"
        retries = "" if not summary.retries else f", {summary.retries} retried"
        yield f"  {summary.steps} steps{planned}{retries} in {duration_text(summary.duration_s)}"
        if summary.reason is not None:
            yield from self.field("reason", summary.reason)
        if summary.usage:
            yield from self.field("usage", _usage(summary.usage))
        if summary.result is not None:
            yield from self.field("result", summary.result)

    def field(self, label: str, value: Any, indent: str = "  ") -> Iterator[str]:
        """A label and its value; a value of several lines, or with such texts inside, below it."""
        tag = indent + self.paint(f"{label}:", "label")
        if isinstance(value, str) and "\n" not in value:
            yield f"{tag} {visible(value)}"
        elif isinstance(value, str):
            yield tag
            yield from (f"{indent}  {line}" for line in visible(value).split("\n"))
        elif len(indent) <= 2 * _MAX_EXPANDED and _has_lines(value):
            yield tag
            container = cast("Mapping[Any, Any] | list[Any]", value)
            for key, item in container.items() if isinstance(container, Mapping) else enumerate(container):
                name = visible(str(key), one_line=True) if isinstance(container, Mapping) else f"[{key}]"
                yield from self.field(name, item, indent + "  ")
        else:
            yield f"{tag} {visible(json_text(value))}"


def _resumption_text(resumption: Resumption) -> str:
    by = "" if resumption.owner is None else f" by process {resumption.owner.pid} on {resumption.owner.host}"
    cut = f", {resumption.cut_bytes} bytes cut off its end" if resumption.cut_bytes else ""
    return f"{resumption.at}{by}{cut}{f', with {resumption.allowed} allowed' if resumption.allowed else ''}"


def visible(text: str, *, one_line: bool = False) -> str:
    """`text` with everything escaped that a terminal would act on."""
    if one_line:
        text = text.replace("\n", "\\n").replace("\t", "\\t")
    if is_plain(text) and text.isascii():
        return text
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def linked_task(step: Step) -> int | None:
    """The id of the task whose own file a step of kind "subtask" leads to; None where it leads to none."""
    args = step.start.args
    if step.start.kind != "subtask" or not isinstance(args, Mapping):
        return None
    number = cast("Mapping[str, Any]", args).get("task_id")
    return number if type(number) is int and number > 0 else None


def duration_text(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{int(seconds // 60)} min {seconds % 60:.0f} s"


def tokens_text(usage: Mapping[str, Any] | None) -> str:
    """Tokens in and out; `?` where their number is unknown, nothing where nobody counts any."""
    if usage is None:
        return ""
    each = [usage.get("input_tokens"), usage.get("output_tokens")]
    counts = [count for count in each if type(count) is int]
    return f"{sum(counts):,}" if len(counts) == len(each) else "?"


def cost_text(usage: Mapping[str, Any] | None) -> str:
    """The cost in US dollars; `?` where it is unknown, nothing where nobody counts it."""
    return "" if usage is None else _dollars(usage.get("cost_usd"))


def _dollars(cost: Any) -> str:
    if type(cost) not in (int, float) or not abs(cost) < 1e15:
        return "?"
    if cost == 0:
        return "$0"
    if 0 < cost < 0.000001:
        return "<$0.000001"
    if abs(cost) >= 1:
        return f"${cost:,.2f}"
    whole, _, part = f"{cost:.6f}".partition(".")
    return f"${whole}.{part.rstrip('0').ljust(2, '0')}"


def _has_lines(value: Any) -> bool:
    """Whether a text of several lines is anywhere in an object or a list."""
    waiting = [value] if isinstance(value, Mapping | list) else []
    while waiting:
        container = cast("Mapping[Any, Any] | list[Any]", waiting.pop())
        for item in container.values() if isinstance(container, Mapping) else container:
            if isinstance(item, str) and "\n" in item:
                return True
            if isinstance(item, Mapping | list):
                waiting.append(item)
    return False


def _used(steps: Iterable[Step]) -> dict[str, Any]:
    """What ended steps used together; None for what one of them does not know."""
    total: dict[str, Any] = {}
    for step in steps:
        for name, value in (step.end.usage or {}).items() if step.end is not None else ():
            before = total.get(name, 0)
            total[name] = before + value if before is not None and type(value) in (int, float) else None
    return total


def _usage(usage: Mapping[str, Any]) -> str:
    """Only what was used: unknown values say so, zeros are left out."""
    parts: list[str] = []
    for name, value in usage.items():
        if value == 0:
            continue
        shown = "unknown" if value is None else _dollars(value) if name == "cost_usd" else json_text(value)
        parts.append(f"{name.removesuffix('_usd').replace('_', ' ')} {shown}")
    return ", ".join(parts) or "none"
