"""What a person says to a queue: words that control it, and messages that a model reads.

`skip T-02`, `retry T-03 use channel #research` control; any number of them, one a line. A message
that asks for work becomes entries, with the shipped template `read_message`: their goals, types,
dates, priority, and the earlier entries whose results they need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast

from evaluator.errors import UsageError
from evaluator.errors.messages import shortened
from evaluator.errors.results import TaskError
from evaluator.interpreter.evaluator import Evaluator
from evaluator.queue.entries import EntryType
from evaluator.queue.intake import checked_text, type_named

READER = "read_message"
_IDS = r"(?P<ids>T-\d+(?:(?:\s*,\s*(?:and\s+)?|\s+and\s+)T-\d+)*)"
_SKIP = re.compile(rf"(?:please\s+)?(?:skip|cancel)\s+{_IDS}\s*[.!]?", re.I)
_RETRY = re.compile(
    rf"(?:please\s+)?(?:retry|try\s+again)\s+{_IDS}(?:\s*[,:;]\s*|\s+|$)(?P<guidance>.*)", re.I
)


@dataclass(frozen=True, slots=True)
class ControlWord:
    """A word that controls the queue, for one entry."""

    verb: Literal["skip", "retry"]
    id: str
    guidance: str | None = None


def read_controls(words: str) -> list[ControlWord]:
    """The words of a person, one control a line. Raises: UsageError, for any other line."""
    found: list[ControlWord] = []
    for line in filter(None, map(str.strip, words.splitlines())):
        if match := _SKIP.fullmatch(line):
            found += [ControlWord("skip", id_) for id_ in _ids(match)]
        elif match := _RETRY.fullmatch(line):
            guidance = match["guidance"].strip() or None
            found += [ControlWord("retry", id_, guidance) for id_ in _ids(match)]
        else:
            raise UsageError(
                f"{shortened(line)} does not control the queue; write skip T-02, or retry T-03 and "
                "what to do differently. New work is for: evaluator queue add"
            )
    if not found:
        raise UsageError("there are no words; write skip T-02, or retry T-03 and what to change")
    return found


def _ids(match: re.Match[str]) -> list[str]:
    return [found.upper() for found in re.findall(r"T-\d+", match["ids"], re.I)]


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """An entry that a model read out of a message. `after`: indexes of entries before it."""

    text: str
    goal: str
    type: EntryType
    priority: int = 0
    not_before: datetime | None = None
    after: Sequence[int] = ()


async def read_message(evaluator: Evaluator, message: str, now: datetime) -> list[ReadEntry]:
    """The entries in a message, by the model of the evaluator.

    Raises: UsageError, if the model's answer cannot be used; the message is unchanged then.
    """
    inputs = {"message": message, "now": now.isoformat(timespec="seconds")}
    outcome = await evaluator.evaluate(READER, inputs)
    if isinstance(outcome, TaskError):
        raise UsageError(f"the message was not read: {outcome}")
    answer = cast("Mapping[str, Sequence[Mapping[str, Any]]]", outcome.parsed_data)
    return [_entry(fields, index, now) for index, fields in enumerate(answer["entries"])]


def _entry(fields: Mapping[str, Any], index: int, now: datetime) -> ReadEntry:
    moment: str | None = fields.get("not_before")
    after = [number - 1 for number in fields.get("after", ())]
    if any(number >= index for number in after):
        raise UsageError("the message was not read: an entry is to follow one that comes later")
    return ReadEntry(
        checked_text(fields["text"]),
        checked_text(fields["goal"], "goal"),
        type=type_named(fields["type"]),
        priority=fields.get("priority", 0),
        not_before=None if moment is None else _time(moment, now),
        after=after,
    )


def _time(text: str, now: datetime) -> datetime:
    """The time in the text; without a zone it has that of the present."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"the message was not read: {shortened(text)} is not a time in ISO 8601"
        ) from None
    if moment.tzinfo is None:
        return moment.replace(tzinfo=now.tzinfo)
    return moment
