"""Reads task files of other writers: the documented Markdown format and its close relatives.

A title `# TASK-1747`, fields as bullets (`- **Label**: value`, with `-`, `*` or `+`, bold or not),
sections `## Step 2 (retry): name` and `## Summary`, rules of any kind in between. A field's value
is in its line, in the indented lines after it, or in a fence; JSON is read as such in a fence of
that language and where it begins like an object or array. Labels, headings and status words are
read in any case; backslashes before punctuation are removed outside fences. Unknown fields and
sections are read into `extra` under their labels.

A second dialect has the title `# Task: name`, its id as a field, and `## Steps` with `### Step 2:
name ✅`. A step's `Attempts` is their count and `Result` its status; there is no summary. Errors
have several lines, up to the next field of the step.

Outputs are fenced as they are, in both dialects, with fences of their own: a block ends at the
fence that the next field, section or rule follows.

Steps get the path `step[N]` and no fingerprint: such a file can be read and shown, but not resumed.
An id that is not a number is in `extra["ID"]`, and the recording has the number 0.
"""

from __future__ import annotations

import json
import re
from dataclasses import field
from math import isfinite
from typing import Any

from evaluator.errors import CorruptRecord
from evaluator.lazy_dataclass import dataclass
from evaluator.patterns import Match, Pattern
from evaluator.record.steps import (
    EndStatus,
    FinalStatus,
    Header,
    Recording,
    RunStatus,
    Step,
    StepEnd,
    StepStart,
    Summary,
)

_TITLE = Pattern(r"#\s+(?:.*\s)?TASK[-_ ]?([0-9]{1,18})\b.*", "i")
_NAMED = Pattern(r"#\s+Task:\s*(.*)", "i")
_ID = Pattern(r"(?:TASK[-_ ]?)?([0-9]{1,18})", "i")
_STEP = Pattern(r"step\s+([0-9]{1,9})\s*(?:\(([^)]*)\))?\s*(?:[:.–—-]\s*(.*))?", "i")
_FIELD = Pattern(
    r" {0,3}[-*+]\s+(?:\*\*|__)?(?P<label>[^\W_][^:*\n]{0,60}?)(?:\*\*|__)?\s*:(?:\*\*|__)?"
    r"(?:\s+(?P<value>.*))?"
)
# The fields that may follow the block of another one.
_AFTER_A_BLOCK = frozenset(
    {"output", "duration", "status", "error", "reason", "abort reason", "attempt", "attempts"}
    | {"backoff", "result", "args", "arguments", "input"}
)
_RULE = Pattern(r" {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})")
_FENCE = Pattern(r"([ \t]*)(`{3,}|~{3,})[ \t]*((?:[^`\s][^`]*)?)")
_ESCAPED = Pattern(r"\\([!-/:-@\[-`{-~])")
_ATTEMPT = Pattern(r"([0-9]{1,6})(?:\s*(?:/|of)\s*([0-9]{1,6}))?", "i")
_TOTAL = Pattern(
    r"([0-9]{1,9})(?:\s+of\s+([0-9]{1,9}))?(?:\s+planned)?(?:\s*\(([0-9]{1,9})\s+retr\w+\))?.*",
    "i",
)
_TIME = Pattern(
    r"([0-9]+(?:\.[0-9]+)?)\s*(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?)?", "i"
)
_MAX_SHOWN = 100
_SECONDS = {"": 0.001, "m": 60.0, "s": 1.0, "h": 3600.0}

_ENDED: dict[str, EndStatus] = {
    **dict.fromkeys(
        ("success", "succeeded", "successful", "ok", "completed", "complete", "done"), "success"
    ),
    **dict.fromkeys(("failed", "failure", "fail", "error"), "failed"),
    **dict.fromkeys(("aborted", "abort", "cancelled", "canceled", "stopped"), "aborted"),
}
_MARKS: dict[str, EndStatus | None] = {
    "✅": "success",
    "✔": "success",
    "❌": "failed",
    "✖": "failed",
    "⏹": "aborted",
    "⏳": None,
}
_FINAL: dict[EndStatus, FinalStatus] = {
    "success": "completed",
    "failed": "failed",
    "aborted": "aborted",
}
_OPEN = frozenset({"running", "in progress", "in_progress", "pending", "started", "interrupted"})


class _UnreadableLine(Exception):
    """Why `line`, from 1, cannot be read."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True)
class _Bullet:
    label: str
    value: Any
    line: int

    def match(self, pattern: Pattern, what: str) -> Match:
        found = pattern.fullmatch(str(self.value).strip())
        if found is None:
            raise _UnreadableLine(self.line, f"{self.label} is not a {what}: {self.value!r}")
        return found


@dataclass(slots=True)
class _Section:
    """A heading with its fields. `text` has what is not a field, each part with its line."""

    heading: str
    line: int
    fields: dict[str, _Bullet] = field(default_factory=dict[str, _Bullet])
    text: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    def take(self, *labels: str) -> _Bullet | None:
        """The first field of these labels, which is removed."""
        label = next((label for label in labels if label in self.fields), None)
        if label is None:
            return None
        return self.fields.pop(label)

    def take_text(self, *labels: str) -> str | None:
        item = self.take(*labels)
        if item is None:
            return None
        return str(item.value)

    def take_seconds(self, *labels: str) -> float | None:
        item = self.take(*labels)
        if item is None:
            return None
        text = str(item.value).strip().replace(",", "")
        times = list(_TIME.finditer(text))
        if not times or re.sub(r"\s", "", _TIME.sub("", text)):
            raise _UnreadableLine(item.line, f"{item.label} is not a duration: {text!r}")
        units = (
            "" if (time[2] or "ms").casefold().startswith(("ms", "milli")) else time[2][:1]
            for time in times
        )
        seconds = sum(
            float(time[1]) * _SECONDS[unit.casefold()]
            for time, unit in zip(times, units, strict=True)
        )
        if not isfinite(seconds):
            raise _UnreadableLine(item.line, f"{item.label} is too long a duration")
        return round(seconds, 6)

    def take_status(self, *labels: str) -> EndStatus | None:
        """The status of the end; None if there is no end."""
        item = self.take(*labels)
        if item is None:
            return None
        word = _word(item.value)
        if word not in _ENDED and word not in _OPEN:
            raise _UnreadableLine(item.line, f"{item.label} is not a status: {str(item.value)!r}")
        return _ENDED.get(word)

    def rest(self) -> dict[str, Any]:
        """The fields that were not taken, under their labels."""
        return {item.label: item.value for item in self.fields.values()}

    def has_status(self, label: str) -> bool:
        """Whether the field of this label holds a status."""
        return label in self.fields and _word(self.fields[label].value) in {*_ENDED, *_OPEN}


class _SectionReader:
    """Splits a file into sections: the title's first, then one for each heading of the second
    level.

    `is_named`: the title is `# Task: name`; a heading `### Step` then begins a section too.
    """

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.warnings: list[str] = []
        self.is_named = False

    def sections(self) -> list[_Section]:
        found: list[_Section] = []
        last: _Bullet | None = None
        at = 0
        while at < len(self.lines):
            line = self.lines[at]
            number = at + 1
            fence = _FENCE.fullmatch(line)
            if fence is not None:
                at, block = self._block(at, fence)
                if last is not None and last.value in (None, ""):
                    last.value = self._typed(block, fence[3], line=number)
                elif found:
                    found[-1].text.append((number, block))
                last = None
                continue
            at += 1
            if not line.strip() or (found and not line.startswith("## ") and _RULE.fullmatch(line)):
                continue
            if not found:
                title = " ".join(line.split())
                self.is_named = _NAMED.fullmatch(title) is not None
                if not self.is_named and not _TITLE.fullmatch(title):
                    raise _UnreadableLine(
                        number, "a title such as `# TASK-12` or `# Task: name` was expected"
                    )
                found.append(_Section(title, number))
            elif line.startswith("## ") or (self.is_named and re.match(r"### Step [0-9]", line)):
                # Runs of spaces count as one: a heading of spaces alone must not keep the
                # expressions busy.
                found.append(
                    _Section(_unescape(" ".join(line.lstrip("#").split())).rstrip("# "), number)
                )
                last = None
            elif match := _FIELD.fullmatch(line):
                last = _add_field(found[-1], match, line=number)
            elif last is not None and line[:1] in " \t":
                if last.value:
                    last.value = f"{last.value}\n{line.strip()}"
                else:
                    last.value = line.strip()
            elif last is not None and self.is_named and last.label.casefold() == "error":
                last.value = f"{last.value}\n{line}"
            else:
                found[-1].text.append((number, line))
                last = None
        if not found:
            raise _UnreadableLine(1, "the file has no task")
        return found

    def _block(self, at: int, fence: Match) -> tuple[int, str]:
        """A fenced block's lines without the fence's indentation, and the line after it."""
        indent = len(fence[1])
        mark = fence[2]
        closing = Pattern(rf"(\s*){re.escape(mark[0])}{{{len(mark)},}}\s*")
        first: int | None = None
        for end in range(at + 1, len(self.lines)):
            match = closing.fullmatch(self.lines[end])
            if match is not None and self._may_end(end, len(match[1]), indent):
                return self._inside(at, end, indent)
            if match is not None and first is None:
                first = end
            if first is not None and not self.is_named and self._begins_section(end):
                break
        if first is None or self.is_named:
            raise _UnreadableLine(at + 1, "this fence is never closed")
        return self._inside(at, first, indent)

    def _inside(self, start: int, end: int, indent: int) -> tuple[int, str]:
        body = self.lines[start + 1 : end]
        return end + 1, "\n".join(
            line[indent:] if not line[:indent].strip() else line.lstrip() for line in body
        )

    def _may_end(self, fence: int, its_indent: int, indent: int) -> bool:
        """Whether the block may end at this line: only before what follows an output, because an
        output may hold fences of its own.
        """
        following = next((line for line in self.lines[fence + 1 :] if line.strip()), None)
        if self.is_named:
            return following is None or following.startswith(
                ("- **Error:**", "- **Result:**", "### Step ", "## ")
            )
        if its_indent > indent:
            return False
        if following is None or following.startswith("## ") or _RULE.fullmatch(following):
            return True
        match = _FIELD.fullmatch(following)
        is_outside = len(following) - len(following.lstrip()) < max(indent, 1)
        return (
            match is not None
            and is_outside
            and (indent > 0 or match["label"].strip().casefold() in _AFTER_A_BLOCK)
        )

    def _begins_section(self, line: int) -> bool:
        """Whether a step or the summary begins at this line, below a rule."""
        if not re.match(r"## (?:Step [0-9]|Summary)", self.lines[line]):
            return False
        above = next((x for x in reversed(self.lines[:line]) if x.strip()), "")
        return _RULE.fullmatch(above) is not None

    def _typed(self, block: str, info: str, line: int) -> Any:
        if info.split(None, 1)[:1] not in (["json"], ["JSON"]):
            return block
        try:
            return _json(block)
        except (ValueError, RecursionError):
            self.warnings.append(
                f"line {line}: this block is marked as json and is not JSON; read as text"
            )
            return block

    def step(self, section: _Section, match: Match, attempts: dict[int, int]) -> Step:
        """The step in `section`; `attempts` counts those at each step so far."""
        number = int(match[1])
        is_retry = "retry" in (match[2] or "").casefold()
        attempt = 1
        if is_retry:
            attempt = attempts.get(number, 0) + 1
        most = 1
        if item := section.take("attempt", "attempts"):
            parts = item.match(_ATTEMPT, "count")
            # A call that was denied has no attempt.
            attempt = max(1, int(parts[1]))
            most = int(parts[2] or parts[1])
        attempts[number] = attempt
        name, mark = _without_mark((match[3] or "").strip())
        args = section.take("args", "arguments", "input")
        start = StepStart(
            f"step[{number}]",
            "tool",
            name,
            None if args is None else _value(args.value),
            attempt=attempt,
            max_attempts=max(attempt, most),
            backoff_s=section.take_seconds("backoff"),
        )
        has_status = "status" in section.fields or section.has_status("result")
        if has_status:
            status = section.take_status("status" if "status" in section.fields else "result")
        else:
            status = mark
        if status is None:
            if section.fields:
                labels = ", ".join(sorted(section.rest()))
                self.warnings.append(f"line {section.line}: a step without an end has {labels}")
            return Step(number, start)
        output = section.take("output", "result")
        duration_s = section.take_seconds("duration") or 0.0
        error = section.take_text("error") or section.take_text("reason", "abort reason")
        end = StepEnd(
            status,
            None if output is None else output.value,
            duration_s,
            error,
            extra=section.rest() or None,
        )
        return Step(number, start, end)


def read_other(data: bytes, path: str = "<bytes>") -> Recording:
    """The recording in a file of the documented format. `result` of its summary has the unknown
    fields.

    Raises: CorruptRecord, with the line and the reason, where it cannot be read.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CorruptRecord(
            path, line, offset=error.start, message="the file is not UTF-8 text"
        ) from error
    if "\r\n" in text.partition("\n")[0] + "\n":
        text = text.replace("\r\n", "\n")
    reader = _SectionReader(text)
    try:
        return _read(reader)
    except _UnreadableLine as error:
        offset = sum(len(line.encode()) + 1 for line in reader.lines[: error.line - 1])
        raise CorruptRecord(path, error.line, offset=offset, message=str(error)) from error


def _read(reader: _SectionReader) -> Recording:
    top, *others = reader.sections()
    steps: list[Step] = []
    attempts: dict[int, int] = {}
    summary: Summary | None = None
    extra: dict[str, Any] = {}
    for section in others:
        if (
            reader.is_named
            and section.heading.casefold() == "steps"
            and not section.fields
            and not section.text
        ):
            continue
        if match := _STEP.fullmatch(section.heading):
            steps.append(reader.step(section, match, attempts))
        elif section.heading.casefold().startswith("summary"):
            summary = _summary(section, steps)
        else:
            if section.text:
                text = {"text": "\n".join(text for _, text in section.text)}
            else:
                text = {}
            extra[section.heading] = {**section.rest(), **text}
            continue
        reader.warnings += _left_out(section)
    reader.warnings += _left_out(top)
    ended = top.take_status("status")
    status: RunStatus
    if ended is None:
        status = "running"
    else:
        status = _FINAL[ended]
    header = _header(top, extra)
    if summary is None and reader.is_named and ended is not None:
        summary = _count_up(steps, _FINAL[ended])
    elif summary is not None:
        if ended is not None and status != summary.status:
            reader.warnings.append(f"the title says {status}, the summary says {summary.status}")
        status = summary.status
    return Recording(header, tuple(steps), summary, status, warnings=tuple(reader.warnings))


def _left_out(section: _Section) -> list[str]:
    """A warning for each part of a section that is not a field."""
    return [
        f"line {line}: this is not a field and is left out: {' '.join(text.split())[:_MAX_SHOWN]!r}"
        for line, text in section.text
    ]


def _header(top: _Section, extra: dict[str, Any]) -> Header:
    numbered = _TITLE.fullmatch(top.heading)
    named = _NAMED.fullmatch(top.heading)
    request = top.take_text("request")
    if numbered is not None and named is None:
        number = int(numbered[1])
    else:
        request = request or (named[1] if named is not None else "")
        item = top.fields.get("id")
        if item is None:
            found = None
        else:
            found = _ID.fullmatch(str(item.value).strip())
        number = 0
        if found is not None:
            number = int(found[1])
            top.take("id")
    return Header(
        number,
        top.take_text("created", "created at", "date") or "",
        request or "",
        template=top.take_text("template"),
        model=top.take_text("model"),
        version=0,
        extra={**top.rest(), **extra},
    )


def _count_up(steps: list[Step], status: FinalStatus) -> Summary:
    """The summary of a file that has none."""
    retries = sum(step.start.attempt - 1 for step in steps)
    duration_s = round(sum(step.end.duration_s for step in steps if step.end is not None), 6)
    errors = (
        step.end.error
        for step in reversed(steps)
        if step.end is not None and step.end.error is not None
    )
    if status == "completed":
        reason = None
    else:
        reason = next(errors, None)
    return Summary(status, len(steps), retries, duration_s, reason=reason)


def _word(value: Any) -> str:
    """A status word. Marks and signs around it are decoration: ✅ **Success**."""
    return re.sub(r"[^\w -]|^_+|_+$", "", str(value)).strip().casefold()


def _without_mark(name: str) -> tuple[str, EndStatus | None]:
    """A step's name without the mark that may end it, and the status that the mark stands for."""
    bare = name.rstrip("\ufe0f")
    if bare[-1:] in _MARKS and bare:
        return bare[:-1].rstrip(), _MARKS[bare[-1]]
    return name, None


def _summary(section: _Section, steps: list[Step]) -> Summary | None:
    if not section.fields.keys() & {"final status", "status"}:
        raise _UnreadableLine(section.line, "the summary has no Final Status")
    status = section.take_status("final status", "status")
    if status is None:
        return None
    count = len({step.number for step in steps})
    retries = sum(step.is_retry for step in steps)
    planned = None
    if item := section.take("total steps", "steps"):
        total = item.match(_TOTAL, "count")
        count = int(total[1])
        retries = int(total[3] or 0)
        planned = None
        if total[2] is not None:
            planned = int(total[2])
    duration_s = section.take_seconds("total duration", "duration") or 0.0
    reason = section.take_text("abort reason", "reason", "error")
    return Summary(
        _FINAL[status],
        count,
        retries,
        duration_s,
        result=section.rest() or None,
        reason=reason,
        planned=planned,
    )


def _add_field(section: _Section, match: Match, line: int) -> _Bullet:
    label = _unescape(match["label"].strip())
    key = re.sub(r"[\s_-]+", " ", label).casefold()
    count = 1
    while key in section.fields:
        count += 1
        key = f"{key.partition('#')[0]}#{count}"
    item = _Bullet(
        label if count == 1 else f"{label} ({count})",
        _inline((match["value"] or "").strip()),
        line=line,
    )
    section.fields[key] = item
    return item


def _unescape(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)


def _inline(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == "`" and ("`" not in text[1:-1] or text[1] in "{["):
        return text[1:-1]
    # JSON has backslashes of its own.
    if text[:1] in ("{", "["):
        return text
    return _unescape(text)


def _value(value: Any) -> Any:
    """An inline value: JSON if it is a valid object or array, else the text."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return _json(value)
        except (ValueError, RecursionError):
            return value
    return value


def _json(text: str) -> Any:
    """The value. Raises: ValueError or RecursionError, if it is not JSON, which NaN and 1e999 are
    not.
    """
    value = json.loads(text)
    json.dumps(value, allow_nan=False)
    return value
