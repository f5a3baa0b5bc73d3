"""A recording as text for a terminal, with control characters escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from evaluator.errors.messages import amount, duration_text, visible
from evaluator.record.conversation import RecordedConversation, conversations, json_text
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


def render_text(recording: Recording, colour: bool = False) -> str:
    """The whole recording for a person: title, a section for each step, summary, and warnings about
    the file.

    `colour` adds ANSI colours. Nothing is cut. Ends with a newline.
    """
    return "\n".join(_Renderer(colour).recording(recording)) + "\n"


def render_messages(recording: Recording, colour: bool = False) -> str:
    """The conversations of a recording, message by message. As `render_text`."""
    return "\n".join(_Renderer(colour).conversations(recording)) + "\n"


class Painter:
    """Gives a text the colour of a status or a part, or leaves it as it is."""

    __slots__ = ("colour",)

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def paint(self, text: str, style: str) -> str:
        code = None
        if self.colour:
            code = _COLOURS.get(style)
        if code is None:
            return text
        return f"\x1b[{code}m{text}\x1b[0m"

    def title(self, recording: Recording) -> str:
        """The task's id and status."""
        header = recording.header
        if header is None:
            name = "a task without a header"
        else:
            name = f"TASK-{header.task_id}"
        if header is not None and not header.task_id:
            name = _one_line(str(header.extra.get("ID") or "a task without a number"))
        return f"{self.paint(name, 'heading')}  {self.paint(recording.status, recording.status)}"


class _Renderer(Painter):
    __slots__ = ()

    def recording(self, recording: Recording) -> Iterator[str]:
        yield self.title(recording)
        if recording.header is not None:
            yield from self.header(recording.header)
        for resumption in recording.resumptions:
            yield from self.field("resumed", _resumption_text(resumption))
        numbers = dict.fromkeys(step.subtask_id for step in recording.steps)
        children = ", ".join(f"TASK-{number}" for number in numbers if number)
        if children:
            yield from self.field("subtasks", children)
        if recording.summary is None and (used := total_usage(recording.steps)):
            yield from self.field("used so far", _usage_text(used))
        for step in recording.steps:
            yield ""
            yield from self.step(step)
        if recording.summary is not None:
            yield ""
            yield from self.summary(recording.summary)
        for warning in recording.warnings:
            yield ""
            yield f"{self.paint('warning:', 'aborted')} {visible(warning)}"

    def conversations(self, recording: Recording) -> Iterator[str]:
        yield self.title(recording)
        found = conversations(recording)
        if not found:
            yield "  no model was called"
        for conversation in found:
            yield ""
            yield from self.conversation(conversation)

    def conversation(self, conversation: RecordedConversation) -> Iterator[str]:
        if conversation.path:
            place = f" {_one_line(conversation.path)}"
        else:
            place = ""
        heading = self.paint(f"Conversation{place}", "heading")
        yield f"{heading}  {self.paint(_one_line(conversation.model), 'label')}"
        if conversation.settings:
            yield from self.field("settings", conversation.settings)
        for message in conversation.messages:
            yield ""
            yield from self.message(message)
        step = conversation.unanswered
        if step is None:
            return
        yield ""
        if step.end is None or step.end.error is None:
            error = ""
        else:
            error = f"  {visible(step.end.error)}"
        yield f"{self.paint('no answer:', 'heading')} {self.paint(step.status, step.status)}{error}"
        if step.end is not None and step.end.output:
            yield from self.field("partial answer", step.end.output)

    def message(self, message: Mapping[str, Any]) -> Iterator[str]:
        role = message.get("role")
        call_id = message.get("tool_call_id")
        if isinstance(role, str):
            role = _one_line(role)
        else:
            role = "a message without a role"
        if isinstance(call_id, str):
            answered = f" {_one_line(call_id)}"
        else:
            answered = ""
        yield (
            self.paint(role, role if role in ("system", "user", "assistant", "tool") else "heading")
            + answered
        )
        if message.get("reasoning"):
            yield from self.field("reasoning", message["reasoning"])
        content = message.get("content")
        if isinstance(content, str):
            yield from _indented(content, "  ") if content else ()
        elif content is not None:
            yield from self.field("content", content)
        elif "content_of" in message:
            yield from self.field("the record has no answer of", message["content_of"])
        for item in _list(message.get("attachments")):
            yield from self.field("attached", item)
        for call in _list(message.get("tool_calls")):
            yield from self.call(call)

    def call(self, call: Any) -> Iterator[str]:
        if isinstance(call, Mapping):
            fields = cast("Mapping[str, Any]", call)
        else:
            fields = {}
        parts = [fields.get(name) for name in ("name", "id", "arguments")]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) < len(parts):
            yield from self.field("calls", call)
            return
        name, number, arguments = texts
        yield (
            f"  {self.paint('calls', 'label')} {self.paint(_one_line(name), 'tool')} "
            f"{_one_line(number)}"
        )
        yield from _indented(arguments, "    ")

    def header(self, header: Header) -> Iterator[str]:
        for label in ("created", "template", "model", "parent", "request", "inputs", "extra"):
            value = getattr(header, label)
            if value:
                yield from self.field(label, f"TASK-{value}" if label == "parent" else value)

    def step(self, step: Step) -> Iterator[str]:
        start = step.start
        end = step.end
        name = f"Step {step.number}{' (retry)' if step.is_retry else ''}: {_one_line(start.name)}"
        yield f"{self.paint(name, 'heading')}  {self.paint(step.status, step.status)}"
        facts = [start.kind, _one_line(start.path)]
        if start.max_attempts > 1:
            facts.append(f"attempt {start.attempt}/{start.max_attempts}")
        if start.backoff_s is not None:
            facts.append(f"after {duration_text(start.backoff_s)}")
        if end is not None:
            facts.append(duration_text(end.duration_s))
        if (child := step.subtask_id) is not None:
            facts.append(f"in TASK-{child}")
        yield "  " + self.paint(" · ".join(fact for fact in facts if fact), "label")
        values: dict[str, Any] = {"args": start.args}
        if end is not None:
            usage = None
            if end.usage:
                usage = _usage_text(end.usage)
            values |= {
                "output": end.output,
                "error": end.error,
                "usage": usage,
                "extra": end.extra or None,
            }
        for label, value in values.items():
            if value is not None:
                yield from self.field(label, value)

    def summary(self, summary: Summary) -> Iterator[str]:
        yield f"{self.paint('Summary', 'heading')}  {self.paint(summary.status, summary.status)}"
        if summary.planned is None:
            planned = ""
        else:
            planned = f" of {summary.planned} planned"
        if not summary.retries:
            retries = ""
        else:
            retries = f", {summary.retries} retried"
        steps = amount(summary.steps, "step")
        yield f"  {steps}{planned}{retries} in {duration_text(summary.duration_s)}"
        if summary.usage:
            usage = _usage_text(summary.usage)
        else:
            usage = None
        for label, value in (
            ("reason", summary.reason),
            ("usage", usage),
            ("interrupted calls, which may be billed too", summary.interrupted_calls or None),
            ("result", summary.result),
        ):
            if value is not None:
                yield from self.field(label, value)

    def field(self, label: str, value: Any, indent: str = "  ") -> Iterator[str]:
        """A label and its value; a value with more than one line, or with such texts inside, is
        below it.
        """
        tag = indent + self.paint(f"{label}:", "label")
        if isinstance(value, str) and "\n" not in value:
            yield f"{tag} {visible(value)}"
        elif isinstance(value, str):
            yield tag
            yield from _indented(value, f"{indent}  ")
        elif len(indent) <= 2 * _MAX_EXPANDED and _has_lines(value):
            yield tag
            container = cast("Mapping[Any, Any] | list[Any]", value)
            for key, item in (
                container.items() if isinstance(container, Mapping) else enumerate(container)
            ):
                if isinstance(container, Mapping):
                    name = _one_line(str(key))
                else:
                    name = f"[{key}]"
                yield from self.field(name, item, indent=indent + "  ")
        else:
            yield f"{tag} {visible(json_text(value))}"


def _one_line(text: str) -> str:
    return visible(text, one_line=True)


def _indented(text: str, indent: str) -> Iterator[str]:
    return (f"{indent}{line}" for line in visible(text).split("\n"))


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return cast("list[Any]", value)
    return []


def _resumption_text(resumption: Resumption) -> str:
    if resumption.owner is None:
        by = ""
    else:
        by = f" by process {resumption.owner.pid} on {resumption.owner.host}"
    if resumption.cut_bytes:
        cut = f", {resumption.cut_bytes} bytes cut off its end"
    else:
        cut = ""
    allowed = ""
    if resumption.allowed:
        allowed = f", with {resumption.allowed} allowed"
    return f"{resumption.at}{by}{cut}{allowed}"


def tokens_text(usage: Mapping[str, Any] | None) -> str:
    """Input and output tokens together; `?` where unknown, nothing where they were not counted. A
    figure that is not there is 0, see `Usage.non_zero`.
    """
    if usage is None:
        return ""
    each = [usage.get("input_tokens", 0), usage.get("output_tokens", 0)]
    counts = [count for count in each if type(count) is int]
    if len(counts) == len(each):
        return f"{sum(counts):,}"
    return "?"


def cost_text(usage: Mapping[str, Any] | None, interrupted_calls: int = 0) -> str:
    """The cost in US dollars; `?` where it is unknown, nothing where it was not counted. With
    `interrupted_calls`, which may be billed too, it is a lower bound.
    """
    if usage is None:
        return ""
    text = _dollars(usage.get("cost_usd", 0))
    if interrupted_calls and text != "?":
        return f"at least {text}"
    return text


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
    """Whether an object or a list contains a text of several lines, at any depth."""
    if isinstance(value, Mapping | list):
        waiting = [value]
    else:
        waiting = []
    while waiting:
        container = cast("Mapping[Any, Any] | list[Any]", waiting.pop())
        for item in container.values() if isinstance(container, Mapping) else container:
            if isinstance(item, str) and "\n" in item:
                return True
            if isinstance(item, Mapping | list):
                waiting.append(item)
    return False


def total_usage(steps: Iterable[Step]) -> dict[str, Any]:
    """The sum of what ended steps used; None for what is unknown for one of them."""
    total: dict[str, Any] = {}
    for step in steps:
        for name, value in (step.end.usage or {}).items() if step.end is not None else ():
            before = total.get(name, 0)
            if before is not None and type(value) in (int, float):
                total[name] = before + value
            else:
                total[name] = None
    return total


def _usage_text(usage: Mapping[str, Any]) -> str:
    """The usage as text, without zeros; unknown values are shown as unknown."""
    parts: list[str] = []
    for name, value in usage.items():
        if value == 0:
            continue
        if value is None:
            shown = "unknown"
        elif name == "cost_usd":
            shown = _dollars(value)
        else:
            shown = json_text(value)
        parts.append(f"{name.removesuffix('_usd').replace('_', ' ')} {shown}")
    return ", ".join(parts) or "none"
