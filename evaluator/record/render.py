"""A recording as text for a terminal, with everything escaped that a terminal would act on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from evaluator.record.payload import is_plain
from evaluator.record.steps import Header, Recording, Step, Summary

_COLOURS = {
    "success": "32",
    "completed": "32",
    "failed": "31",
    "aborted": "33",
    "running": "36",
    "interrupted": "33",
    "heading": "1",
    "label": "2",
}
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def render_text(recording: Recording, colour: bool = False) -> str:
    """The whole recording, for a person: title, one section a step, summary, and what is wrong with the file.

    `colour` adds ANSI colours. Nothing is cut. Ends with a newline.
    """
    return "\n".join(_Renderer(colour).lines(recording)) + "\n"


class _Renderer:
    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if self.colour else text

    def lines(self, recording: Recording) -> Iterator[str]:
        header = recording.header
        title = "a task without a header" if header is None else f"TASK-{header.task_id}"
        yield f"{self.paint(title, 'heading')}  {self.paint(recording.status, recording.status)}"
        if header is not None:
            yield from self.header(header)
        for step in recording.steps:
            yield ""
            yield from self.step(step)
        if recording.summary is not None:
            yield ""
            yield from self.summary(recording.summary)
        for warning in recording.warnings:
            yield ""
            yield f"{self.paint('warning:', 'aborted')} {visible(warning)}"

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
            facts.append(f"after {_duration(start.backoff_s)}")
        if end is not None:
            facts.append(_duration(end.duration_s))
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
        yield f"  {summary.steps} steps{planned}{retries} in {_duration(summary.duration_s)}"
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
        elif isinstance(value, Mapping | list) and value and _has_lines(value):
            yield tag
            container = cast("Mapping[Any, Any] | list[Any]", value)
            for key, item in container.items() if isinstance(container, Mapping) else enumerate(container):
                name = visible(str(key), one_line=True) if isinstance(container, Mapping) else f"[{key}]"
                yield from self.field(name, item, indent + "  ")
        else:
            yield f"{tag} {visible(json.dumps(value, ensure_ascii=False, default=dict))}"


def visible(text: str, *, one_line: bool = False) -> str:
    """`text` with everything escaped that a terminal would act on."""
    if one_line:
        text = text.replace("\n", "\\n").replace("\t", "\\t")
    if is_plain(text) and text.isascii():
        return text
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _has_lines(value: Any) -> bool:
    if isinstance(value, str):
        return "\n" in value
    if isinstance(value, Mapping):
        return any(_has_lines(item) for item in cast("Mapping[Any, Any]", value).values())
    return isinstance(value, list) and any(_has_lines(item) for item in cast("list[Any]", value))


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{int(seconds // 60)} min {seconds % 60:.0f} s"


def _usage(usage: Mapping[str, Any]) -> str:
    """Only what was used: unknown values say so, zeros are left out."""
    parts = [
        f"{name.replace('_', ' ')} {'unknown' if value is None else value}"
        for name, value in usage.items()
        if value != 0
    ]
    return ", ".join(parts) or "none"
