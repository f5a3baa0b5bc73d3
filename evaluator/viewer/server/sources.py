"""Where the parts of a prompt come from, what changed between attempts, and when steps happened.

The lines of a template are shown around the place of an error. The place comes from a task file,
which may be somebody else's: only XML files of the project and shipped ones are read.

A record has the whole prompt, not the origin of its parts. They are found by their text: a line
that the template has in the same words, an input's value, an answer, or a block of context, which
names its source.

Each step and subtask has its place on an axis that begins with the run. The times are those of the
record: a step's start and duration, and the creation and duration of a subtask's file. The time
between the last step of an interrupted run and the process that resumed it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

from evaluator import clock
from evaluator.errors import ConfigurationError
from evaluator.fields.records import items_of, mapping_of
from evaluator.files.locations import shipped
from evaluator.lazy_dataclass import frozen
from evaluator.record.conversation import RecordedConversation, answered_steps, messages_of
from evaluator.record.steps import Recording, Step
from evaluator.viewer.server.state import pretty

MAX_BYTES = 5_000_000
MAX_FINDINGS = 50
_AROUND = 2


@frozen
class Line:
    number: int
    text: str
    is_place: bool


@frozen
class Finding:
    """A message about a place. `lines` are empty where the file is not shown."""

    message: str
    hint: str
    place: str
    lines: tuple[Line, ...]


def findings(result: Mapping[str, Any], root: Path) -> list[Finding]:
    """The place of an error and its violations, as `TaskError.to_dict` writes them."""
    found = [
        _finding(mapping_of(each), root)
        for each in items_of(result.get("violations"))[:MAX_FINDINGS]
    ]
    location = mapping_of(result.get("location"))
    if location and all(each.place != _place(location) for each in found):
        found.insert(0, _finding(location, root))
    return found


def excerpt(path: Path, line: int) -> tuple[Line, ...]:
    """The line and those around it; none if the file cannot be read or has no such line."""
    texts = read_lines(path)
    if not 1 <= line <= len(texts):
        return ()
    first = max(1, line - _AROUND)
    shown = enumerate(texts[first - 1 : line + _AROUND], first)
    return tuple(Line(number, text, is_place=number == line) for number, text in shown)


def read_lines(path: Path) -> list[str]:
    """The lines of a file; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return []


def _finding(data: Mapping[str, Any], root: Path) -> Finding:
    message, hint, file, line = (data.get(name) for name in ("message", "hint", "file", "line"))
    lines: tuple[Line, ...] = ()
    if isinstance(file, str) and type(line) is int and _is_readable(file, root):
        lines = excerpt(Path(file), line)
    return Finding(str(message or ""), str(hint or ""), place=_place(data), lines=lines)


def _place(data: Mapping[str, Any]) -> str:
    return ":".join(
        str(data[name]) for name in ("file", "line", "column") if data.get(name) is not None
    )


def _is_readable(file: str, root: Path) -> bool:
    try:
        path = (root / file).resolve()
        folders = [root, shipped("templates")]
        return (
            path.suffix == ".xml"
            and path.is_file()
            and any(path.is_relative_to(folder) for folder in folders)
        )
    except (OSError, ValueError, ConfigurationError):
        return False


MIN_VALUE_CHARS = 3
MIN_LINE_CHARS = 8
MAX_PROMPT_CHARS = 50_000
MAX_SPANS = 2_000
MAX_SOURCES = 200


_CONTEXT = re.compile(r'^<context source="([^"\n]{1,200})"[^>\n]*>\n.*?^</context>$', re.S | re.M)
_NO_TEXT = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|<<.*?>>|<!\[CDATA\[|\]\]>|<[^<>]*>")


@frozen
class PromptSpan:
    """A part of a prompt; `source` is empty where it is not known."""

    text: str
    source: str = ""


@frozen
class PromptSource:
    name: str
    text: str


def input_sources(inputs: Mapping[str, Any]) -> list[PromptSource]:
    """The values of inputs, as a prompt may have them."""
    return [PromptSource(f"input {name}", pretty(value)) for name, value in inputs.items()]


def answer_sources(conversations: Iterable[RecordedConversation]) -> list[PromptSource]:
    """The answers of conversations."""
    found: list[PromptSource] = []
    for each in conversations:
        answer = each.turns[-1].answer
        if answer is not None:
            name = f"answer of {each.path or 'the task'}"
            found.append(PromptSource(name, str(answer.get("content") or "")))
    return found


def line_numbers(template: Sequence[str]) -> dict[str, int]:
    """The number of each line of a template by its texts between tags and variables; of equal ones
    the first.
    """
    found: dict[str, int] = {}
    for number, line in enumerate(template, 1):
        for part in _NO_TEXT.split(line):
            text = unescape(part.strip())
            if len(text) >= MIN_LINE_CHARS:
                found.setdefault(text, number)
    return found


def spans(
    prompt: str, sources: Sequence[PromptSource], lines: Mapping[str, int]
) -> list[PromptSpan]:
    """The prompt in parts with their sources; longer sources first, where they overlap. Empty for
    one without any.
    """
    if len(prompt) > MAX_PROMPT_CHARS:
        return []
    parts = _by_context(prompt)
    usable = [each for each in sources[:MAX_SOURCES] if len(each.text.strip()) >= MIN_VALUE_CHARS]
    for source in sorted(usable, key=lambda each: len(each.text), reverse=True):
        parts = [
            inner
            for part in parts
            for inner in ([part] if part.source else _split(part.text, source))
        ]
        if len(parts) > MAX_SPANS:
            return []
    found = [
        inner for part in parts for inner in ([part] if part.source else _by_line(part.text, lines))
    ]
    if any(part.source for part in found):
        return found
    return []


def _split(text: str, source: PromptSource) -> list[PromptSpan]:
    wanted = source.text.strip()
    found: list[PromptSpan] = []
    for piece in text.split(wanted, MAX_SPANS):
        found += [PromptSpan(wanted, source.name), PromptSpan(piece)]
    return [span for span in found[1:] if span.text]


def _by_line(text: str, lines: Mapping[str, int]) -> list[PromptSpan]:
    found: list[PromptSpan] = []
    for line in text.splitlines(keepends=True):
        number = lines.get(line.strip())
        if number is None:
            found.append(PromptSpan(line))
        else:
            body = line.rstrip("\r\n")
            found += [PromptSpan(body, f"template line {number}"), PromptSpan(line[len(body) :])]
    return [each for each in found if each.text]


def _by_context(prompt: str) -> list[PromptSpan]:
    """Blocks of context are marked as a whole; what is in one cannot end it."""
    found: list[PromptSpan] = []
    end = 0
    for match in _CONTEXT.finditer(prompt):
        found += [
            PromptSpan(prompt[end : match.start()]),
            PromptSpan(match[0], f"context {match[1]}"),
        ]
        end = match.end()
    return [each for each in (*found, PromptSpan(prompt[end:])) if each.text]


@frozen
class Bar:
    """A part of the axis, in seconds since the start of the run. `is_open`: it has not ended."""

    start_s: float
    end_s: float
    is_open: bool = False

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


class Timeline:
    """The axis of the run in `recording`. A bar is None where the record has no time, as in files
    of other programs.
    """

    def __init__(self, recording: Recording) -> None:
        header = recording.header
        self._now = clock.wall()
        if header is None:
            self._start = None
        else:
            self._start = _moment(header.created)
        self._pauses: list[tuple[float, float]] = []
        if self._start is not None:
            self._pauses = list(_pauses(recording, self._start))

    def of_step(self, step: Step, *, is_running: bool) -> Bar | None:
        return self._bar(
            step.start.started,
            None if step.end is None else step.end.duration_s,
            is_running=is_running,
        )

    def of_task(self, recording: Recording) -> Bar | None:
        if recording.header is None:
            return None
        summary = recording.summary
        duration_s = None if summary is None else summary.duration_s
        return self._bar(
            recording.header.created, duration_s, is_running=recording.status == "running"
        )

    def _bar(self, started: str | None, duration_s: float | None, is_running: bool) -> Bar | None:
        """Without a duration it lasts until now, or, where nothing runs any more, no time."""
        start = _moment(started)
        if start is None or self._start is None:
            return None
        until = self._now if is_running else start
        start_s = self._seconds(start, self._start)
        end_s = self._seconds(until if duration_s is None else start + duration_s, self._start)
        return Bar(start_s, max(start_s, end_s), is_open=duration_s is None)

    def _seconds(self, moment: float, start: float) -> float:
        left_out = sum(min(moment, end) - begin for begin, end in self._pauses if moment > begin)
        return max(0.0, moment - start - left_out)


def enclosing(bars: Iterable[Bar]) -> Bar | None:
    """The bar from the earliest start to the latest end; None without bars."""
    found = list(bars)
    if not found:
        return None
    return Bar(
        min(bar.start_s for bar in found),
        max(bar.end_s for bar in found),
        is_open=any(bar.is_open for bar in found),
    )


def _pauses(recording: Recording, start: float) -> Iterable[tuple[float, float]]:
    ends = [
        begun + (0.0 if step.end is None else step.end.duration_s)
        for step in recording.steps
        if (begun := _moment(step.start.started)) is not None
    ]
    for resumption in recording.resumptions:
        resumed = _moment(resumption.at)
        if resumed is not None:
            yield max((end for end in ends if end <= resumed), default=min(start, resumed)), resumed


def _moment(text: str | None) -> float | None:
    """An ISO time in seconds since 1970; None where it is none."""
    try:
        if text is None:
            return None
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


MAX_CHANGES = 50
MAX_CHARS = 20_000
_ITERATION = re.compile(r"(.*\biterations\[)([0-9]{1,6})(\]/.*)", re.S)


@frozen
class Change:
    """Two texts of a conversation that differ; `title` says which they are."""

    title: str
    before: str
    after: str


def changes(
    recording: Recording, conversations: Sequence[RecordedConversation]
) -> dict[str, list[Change]]:
    """The changes by the path of the conversation that has the later text."""
    by_path = {each.path: each for each in conversations}
    attempts: dict[str, list[Step]] = {}
    for step in recording.steps:
        if step.start.kind == "model":
            attempts.setdefault(step.start.path, []).append(step)
    answers = answered_steps(recording.steps)
    found: dict[str, list[Change]] = {}
    left = MAX_CHANGES
    for each in conversations:
        its = [
            *_repeated(each, attempts, answers=answers),
            *_corrected(each),
            *_iterated(each, by_path),
        ][: max(0, left)]
        if its:
            found[each.path] = its
            left -= len(its)
    return found


def _change(title: str, before: str, after: str) -> list[Change]:
    if before == after or not before or not after:
        return []
    return [Change(title, before[:MAX_CHARS], after[:MAX_CHARS])]


def _repeated(
    conversation: RecordedConversation,
    attempts: Mapping[str, Sequence[Step]],
    answers: Mapping[str, Step],
) -> list[Change]:
    """A turn that was called again with other messages or gave another answer, as after a resume
    with changes.
    """
    found: list[Change] = []
    for turn in conversation.turns:
        path = turn.step.start.path
        for one, other in pairwise(attempts[path]):
            title = f"of {path}, steps {one.number} and {other.number}"
            sent = [_joined(messages_of(step, answers)) for step in (one, other)]
            found += _change(f"Request {title}", *sent)
            found += _change(f"Answer {title}", _output(one), after=_output(other))
    return found


def _output(step: Step) -> str:
    if step.end is None:
        output = None
    else:
        output = step.end.output
    if mapping_of(output):
        output = mapping_of(output).get("content")
    return pretty(output)


def _corrected(conversation: RecordedConversation) -> list[Change]:
    """An answer that was asked for again: without a tool call, and with another turn after it."""
    found: list[Change] = []
    for one, other in pairwise(conversation.turns):
        answers = [turn.answer for turn in (one, other)]
        if any(answer is None or answer.get("tool_calls") for answer in answers):
            continue
        texts = [str((answer or {}).get("content") or "") for answer in answers]
        found += _change(f"Answer in {one.step.start.path} and {other.step.start.path}", *texts)
    return found


def _iterated(
    conversation: RecordedConversation, by_path: dict[str, RecordedConversation]
) -> list[Change]:
    """The same part of a loop in the iteration before."""
    match = _ITERATION.fullmatch(conversation.path)
    if match:
        before = by_path.get(f"{match[1]}{int(match[2]) - 1}{match[3]}")
    else:
        before = None
    if before is None:
        return []
    both = (before, conversation)
    prompts = [_joined(each.turns[0].sent) for each in both]
    answers = [str((each.turns[-1].answer or {}).get("content") or "") for each in both]
    title = f"in {before.path} and here"
    return [*_change(f"Request {title}", *prompts), *_change(f"Answer {title}", *answers)]


def _joined(messages: Iterable[Mapping[str, Any]]) -> str:
    return "\n\n".join(str(message.get("content", "")) for message in messages)
