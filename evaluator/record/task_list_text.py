"""The names and the text of task lists: what is accepted, and the form in which it is written."""

from __future__ import annotations

import re
from datetime import date

from evaluator.errors import UsageError

MAX_BYTES = 1_000_000
_DATED = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})-([a-z0-9][a-z0-9-]{0,99})")
_BEGINS_WITH_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(-|$)")
_BARE = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
_EXPECTED = (
    "expected YYYY-MM-DD-name, or the name alone: lowercase letters, digits and hyphens, "
    "at most 100 of them"
)


def parse_name(name: object) -> tuple[str | None, str]:
    """The name with its date, if it has one, and the name without.

    Raises: UsageError, for an invalid name or date.
    """
    if not isinstance(name, str):
        raise UsageError(f"{name!r} is not a name of a task; {_EXPECTED}")
    text = name.removesuffix(".md")
    shown = repr(name[:200])
    if re.fullmatch(r"TASK-[0-9]+", text, re.IGNORECASE):
        raise UsageError(f"{shown} is the file of a run (see: evaluator tasks show); {_EXPECTED}")
    if not _BEGINS_WITH_DATE.match(text):
        if not _BARE.fullmatch(text):
            raise UsageError(f"{shown} is not a name of a task; {_EXPECTED}")
        return None, text
    if not is_dated(text):
        raise UsageError(f"{shown} is not a name of a task; {_EXPECTED}")
    return text, text[11:]


def is_dated(text: str) -> bool:
    """Whether `text` is a whole name with a date."""
    if not _DATED.fullmatch(text):
        return False
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True


def checked_content(content: str) -> bytes:
    """The bytes of a text, with line feeds and an end to its last line.

    Raises: UsageError, for a text that is empty, too large or holds what is not a character.
    """
    text = with_line_feeds(content)
    if not text.strip():
        raise UsageError("the text of the task is empty; give the whole text")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(f"line {line} of the text has a NUL character; remove it")
    if not text.endswith("\n"):
        text += "\n"
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise UsageError(
            f"line {line} of the text has half a surrogate pair, which is not a character"
        ) from error
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"the text has {len(data):,} bytes, more than {MAX_BYTES:,}; split the task"
        )
    return data


def with_line_feeds(text: str) -> str:
    """`text` without a byte order mark, its line ends as line feeds."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
