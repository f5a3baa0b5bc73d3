"""Task files of other writers: the documented Markdown format and its close relatives.

A title `# TASK-1747`, fields as bullets (`- **Label**: value`, with `-`, `*` or `+`, bold or not), sections
`## Step 2 (retry): name` and `## Summary`, rules of any kind in between. A field's value stands in its line,
in the indented lines after it, or in a fence; JSON is read as such in a fence that says so and where it
begins like an object or array. Labels, headings and status words are read in any case; backslashes before
punctuation are taken off outside fences. What has no place of its own is kept under its label in `extra`.

Steps get the path `step[N]` and no fingerprint: such a file can be read and shown; nothing resumes from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from evaluator.errors import CorruptRecord
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

_TITLE = re.compile(r"#\s+(?:.*\s)?TASK[-_ ]?([0-9]{1,18})\b.*", re.I)
_STEP = re.compile(r"step\s+([0-9]{1,9})\s*(?:\(([^)]*)\))?\s*(?:[:.–—-]\s*(.*))?", re.I)
_FIELD = re.compile(
    r" {0,3}[-*+]\s+(?:\*\*|__)?(?P<label>[^\W_][^:*\n]{0,60}?)(?:\*\*|__)?\s*:(?:\*\*|__)?"
    r"(?:\s+(?P<value>.*))?"
)
_RULE = re.compile(r" {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})")
_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*((?:[^`\s][^`]*)?)")
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_ATTEMPT = re.compile(r"([0-9]{1,6})(?:\s*(?:/|of)\s*([0-9]{1,6}))?", re.I)
_TOTAL = re.compile(r"([0-9]{1,9})(?:\s+of\s+([0-9]{1,9}))?(?:\s+planned)?(?:\s*\(([0-9]{1,9})\s+retr\w+\))?.*", re.I)
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?)?", re.I)
_UNITS = {"": 0.001, "m": 60.0, "s": 1.0, "h": 3600.0}

_ENDED: dict[str, EndStatus] = {
    **dict.fromkeys(("success", "succeeded", "successful", "ok", "completed", "complete", "done"), "success"),
    **dict.fromkeys(("failed", "failure", "fail", "error"), "failed"),
    **dict.fromkeys(("aborted", "abort", "cancelled", "canceled"), "aborted"),
}  # fmt: skip
_FINAL: dict[EndStatus, FinalStatus] = {"success": "completed", "failed": "failed", "aborted": "aborted"}
_OPEN = frozenset({"running", "in progress", "in_progress", "pending", "started", "interrupted"})


@dataclass(slots=True)
class _Field:
    label: str
    value: Any
    line: int


@dataclass(slots=True)
class _Section:
    heading: str
    line: int
    fields: dict[str, _Field] = field(default_factory=dict[str, _Field])
    text: list[str] = field(default_factory=list[str])

    def take(self, *labels: str) -> _Field | None:
        for label in labels:
            if label in self.fields:
                return self.fields.pop(label)
        return None

    def rest(self) -> dict[str, Any]:
        """What nobody took, under the labels as written."""
        return {item.label: item.value for item in self.fields.values()}


class _Reader:
    def __init__(self, text: str, path: str) -> None:
        self.lines = text.split("\n")
        self.path = path
        self.warnings: list[str] = []

    def refuse(self, line: int, message: str) -> NoReturn:
        before = self.lines[: line - 1]
        raise CorruptRecord(self.path, line, sum(len(x.encode()) + 1 for x in before), message)

    def sections(self) -> list[_Section]:
        """The title's section first, then one for each heading of the second level."""
        found: list[_Section] = []
        last: _Field | None = None
        at = 0
        while at < len(self.lines):
            line, number = self.lines[at], at + 1
            fence = _FENCE.fullmatch(line)
            if fence is not None:
                at, block = self._block(at, fence)
                if last is not None and last.value in (None, ""):
                    last.value = self._typed(block, fence[3], number)
                elif found:
                    found[-1].text.append(block)
                last = None
                continue
            at += 1
            if not found:
                if not line.strip():
                    continue
                title = _one_spaced(line)
                if not _TITLE.fullmatch(title):
                    self.refuse(number, "a title such as `# TASK-12` was expected")
                found.append(_Section(title, number))
            elif line.startswith("## "):
                found.append(_Section(_unescape(_one_spaced(line[3:])).rstrip("# "), number))
                last = None
            elif not line.strip() or _RULE.fullmatch(line):
                continue
            elif match := _FIELD.fullmatch(line):
                last = self._add(found[-1], match, number)
            elif last is not None and line[:1] in " \t":
                last.value = f"{last.value}\n{line.strip()}" if last.value else line.strip()
            else:
                found[-1].text.append(line)
                last = None
        if not found:
            self.refuse(1, "the file holds no task")
        return found

    def _add(self, section: _Section, match: re.Match[str], line: int) -> _Field:
        label = _unescape(match["label"].strip())
        key, count = re.sub(r"[\s_-]+", " ", label).casefold(), 1
        while key in section.fields:
            count += 1
            key = f"{key.partition('#')[0]}#{count}"
        item = _Field(label if count == 1 else f"{label} ({count})", _inline((match["value"] or "").strip()), line)
        section.fields[key] = item
        return item

    def _block(self, at: int, fence: re.Match[str]) -> tuple[int, str]:
        """A fenced block's lines without the fence's indentation, and the line after it."""
        indent, mark = len(fence[1]), fence[2]
        closing = re.compile(rf"\s*{re.escape(mark[0])}{{{len(mark)},}}\s*")
        for end in range(at + 1, len(self.lines)):
            if closing.fullmatch(self.lines[end]):
                body = self.lines[at + 1 : end]
                return end + 1, "\n".join(x[indent:] if not x[:indent].strip() else x.lstrip() for x in body)
        self.refuse(at + 1, "this fence is never closed")

    def _typed(self, block: str, info: str, line: int) -> Any:
        if info.split(None, 1)[:1] not in (["json"], ["JSON"]):
            return block
        try:
            return json.loads(block)
        except (ValueError, RecursionError):
            self.warnings.append(f"line {line}: this block says json and is not; kept as text")
            return block

    def seconds(self, item: _Field) -> float:
        text = str(item.value).strip().replace(",", "")
        spans = list(_SPAN.finditer(text))
        if not spans or re.sub(r"\s", "", _SPAN.sub("", text)):
            self.refuse(item.line, f"{item.label} is no duration: {text!r}")
        total = 0.0
        for span in spans:
            unit = (span[2] or "").casefold()
            total += float(span[1]) * (0.001 if unit in ("ms", "millisecond", "milliseconds") else _UNITS[unit[:1]])
        return round(total, 6)

    def status(self, item: _Field) -> EndStatus | None:
        """How it ended; None where it has not."""
        # Marks and signs beside the word are decoration: ✅ **Success**.
        word = re.sub(r"[^\w -]|^_+|_+$", "", str(item.value)).strip().casefold()
        if word not in _ENDED and word not in _OPEN:
            self.refuse(item.line, f"{item.label} is no status: {str(item.value)!r}")
        return _ENDED.get(word)

    def step(self, section: _Section, match: re.Match[str], earlier: dict[int, int]) -> Step:
        number, retry = int(match[1]), "retry" in (match[2] or "").casefold()
        attempt, attempts = earlier.get(number, 0) + 1 if retry else 1, 1
        if item := section.take("attempt", "attempts"):
            parts = _ATTEMPT.fullmatch(str(item.value).strip())
            if parts is None:
                self.refuse(item.line, f"Attempt is no count: {item.value!r}")
            attempt, attempts = int(parts[1]), int(parts[2] or parts[1])
        earlier[number] = attempt
        backoff, args = section.take("backoff"), section.take("args", "arguments", "input")
        start = StepStart(
            path=f"step[{number}]",
            kind="tool",
            name=(match[3] or "").strip(),
            args=None if args is None else _value(args.value),
            attempt=attempt,
            max_attempts=max(attempt, attempts),
            backoff_s=None if backoff is None else self.seconds(backoff),
        )
        return Step(number, start, self._end(section))

    def _end(self, section: _Section) -> StepEnd | None:
        item = section.take("status")
        status = None if item is None else self.status(item)
        if status is None:
            if section.fields:
                labels = ", ".join(sorted(section.rest()))
                self.warnings.append(f"line {section.line}: a step without an end has {labels}")
            return None
        output, duration = section.take("output", "result"), section.take("duration")
        error = section.take("error") or section.take("reason", "abort reason")
        return StepEnd(
            status=status,
            output=None if output is None else output.value,
            duration_s=0.0 if duration is None else self.seconds(duration),
            error=None if error is None else str(error.value),
            extra=section.rest() or None,
        )

    def summary(self, section: _Section, steps: Iterable[Step]) -> Summary | None:
        status = section.take("final status", "status")
        if status is None:
            self.refuse(section.line, "the summary has no Final Status")
        ended = self.status(status)
        if ended is None:
            return None
        count = len({step.number for step in steps})
        retries, planned = sum(step.is_retry for step in steps), None
        if item := section.take("total steps", "steps"):
            total = _TOTAL.fullmatch(str(item.value).strip())
            if total is None:
                self.refuse(item.line, f"Total Steps is no count: {item.value!r}")
            count, retries = int(total[1]), int(total[3] or 0)
            planned = None if total[2] is None else int(total[2])
        duration = section.take("total duration", "duration")
        reason = section.take("abort reason", "reason", "error")
        return Summary(
            status=_FINAL[ended],
            steps=count,
            retries=retries,
            duration_s=0.0 if duration is None else self.seconds(duration),
            result=section.rest() or None,
            reason=None if reason is None else str(reason.value),
            planned=planned,
        )


def read_foreign(data: bytes, path: str = "<bytes>") -> Recording:
    """The recording in a file of the documented format. `result` of its summary holds the fields left over.

    Raises: CorruptRecord, with the line and the reason, where it cannot be read.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CorruptRecord(path, line, error.start, "the file is not UTF-8 text") from error
    if "\r\n" in text.partition("\n")[0] + "\n":
        text = text.replace("\r\n", "\n")
    reader = _Reader(text, path)
    top, *others = reader.sections()
    title = cast("re.Match[str]", _TITLE.fullmatch(top.heading))
    steps: list[Step] = []
    attempts: dict[int, int] = {}
    summary: Summary | None = None
    extra: dict[str, Any] = {}
    for section in others:
        if match := _STEP.fullmatch(section.heading):
            steps.append(reader.step(section, match, attempts))
        elif section.heading.casefold().startswith("summary"):
            summary = reader.summary(section, steps)
        else:
            extra[section.heading] = {
                **section.rest(),
                **({"text": "\n".join(section.text)} if section.text else {}),
            }
            continue
        if section.text:
            reader.warnings.append(f"line {section.line}: text outside the fields of this section is left out")
    header, said = _header(reader, top, int(title[1]), extra)
    status: RunStatus = said if summary is None else summary.status
    if summary is not None and said not in ("running", status):
        reader.warnings.append(f"the title says {said}, the summary says {status}")
    return Recording(header, tuple(steps), summary, status, "clean", None, tuple(reader.warnings))


def _header(reader: _Reader, top: _Section, task_id: int, extra: dict[str, Any]) -> tuple[Header, RunStatus]:
    created, status = top.take("created", "created at", "date"), top.take("status")
    said: RunStatus = "running"
    if status is not None and (ended := reader.status(status)) is not None:
        said = _FINAL[ended]
    template, model, request = top.take("template"), top.take("model"), top.take("request")
    header = Header(
        task_id=task_id,
        created="" if created is None else str(created.value),
        request="" if request is None else str(request.value),
        template=None if template is None else str(template.value),
        model=None if model is None else str(model.value),
        version=0,
        extra={**top.rest(), **extra},
    )
    return header, said


def _one_spaced(text: str) -> str:
    """With runs of spaces as one: a heading of spaces alone must not keep the expressions busy."""
    return " ".join(text.split())


def _unescape(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)


def _inline(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == "`" and "`" not in text[1:-1]:
        return text[1:-1]
    # JSON has backslashes of its own.
    return text if text[:1] in ("{", "[") else _unescape(text)


def _value(value: Any) -> Any:
    """An inline value: JSON where it begins like an object or array and is one, else the text."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value
