"""Where the parts of a prompt come from, and the lines of a template around a place.

The lines of a template around the place of an error.
The place comes from a task file, which may be somebody else's: only XML files of the project and
shipped ones are read.

earlier steps.

A record has the whole prompt, not the origin of its parts. They are found by their text: a line
that the template has in the same words, an input's value, an answer, or a block of context, which
names its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any

from evaluator.errors import ConfigurationError
from evaluator.files.locations import shipped
from evaluator.lazy_dataclass import dataclass
from evaluator.record.conversation import RecordedConversation
from evaluator.viewer.server.state import items, mapping, pretty

MAX_BYTES = 5_000_000
MAX_FINDINGS = 50
_AROUND = 2


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    text: str
    is_place: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """A message about a place. `lines` are empty where the file is not shown."""

    message: str
    hint: str
    place: str
    lines: tuple[Line, ...]


def findings(result: Mapping[str, Any], root: Path) -> list[Finding]:
    """The place of an error and its violations, as `TaskError.to_dict` writes them."""
    found = [
        _finding(mapping(each), root) for each in items(result.get("violations"))[:MAX_FINDINGS]
    ]
    location = mapping(result.get("location"))
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


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """A part of a prompt; `source` is empty where it is not known."""

    text: str
    source: str = ""


@dataclass(frozen=True, slots=True)
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
            found.append(
                PromptSource(
                    f"answer of {each.path or 'the task'}", str(answer.get("content") or "")
                )
            )
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
    for place, piece in enumerate(text.split(wanted, MAX_SPANS)):
        found += ([PromptSpan(wanted, source.name)] if place else []) + (
            [PromptSpan(piece)] if piece else []
        )
    return found


def _by_line(text: str, lines: Mapping[str, int]) -> list[PromptSpan]:
    found: list[PromptSpan] = []
    for line in text.splitlines(keepends=True):
        number = lines.get(line.strip())
        body = line.rstrip("\r\n")
        if number is None:
            found.append(PromptSpan(line))
        else:
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
