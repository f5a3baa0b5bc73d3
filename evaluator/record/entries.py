"""The records of a task as values, before they are written.

A task file has them as Markdown (`encoding`). A segment has them as JSON, from which that Markdown
is made when somebody reads the task: a batch writes many tasks and reads few.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple, cast

from evaluator.errors import UsageError
from evaluator.record.redact import BETWEEN_TEXTS, find_texts
from evaluator.record.steps import (
    Header,
    Resumption,
    Scrub,
    StepEnd,
    StepStart,
    Summary,
    plain_json,
)
from evaluator.store.owners import Owner

EntryKind = Literal["header", "begin", "end", "note", "resume", "summary"]


class Note:
    """A step without an effect, which begins and ends at once. The note of many tasks is encoded
    once: it keeps its JSON after the number, the texts in it as one, and its Markdown.
    """

    __slots__ = ("end", "json", "markdown", "start", "text")

    def __init__(self, start: StepStart, end: StepEnd) -> None:
        self.start = start
        self.end = end
        self.json = b""
        self.text = ""
        self.markdown: str | None = None


class Entry(NamedTuple):
    """One record. `parts` are what `_PARTS` names for its kind.

    `number` is that of the step; of a summary, that of the step that has the result's content, or
    0. `name` restates the step of an end that other records separate from its beginning. `note` is
    what the parts of a note are from.
    """

    kind: EntryKind
    number: int
    parts: tuple[Any, ...]
    name: str | None = None
    note: Note | None = None


_PARTS: dict[EntryKind, tuple[type, ...]] = {
    "header": (Header,),
    "begin": (StepStart,),
    "end": (StepEnd,),
    "note": (StepStart, StepEnd),
    "summary": (Summary,),
}
_VALUES = cast(
    "dict[type, Callable[[Any], tuple[Any, ...]]]",
    {
        part: attrgetter(*(field.name for field in fields(part)))
        for part in (Header, StepStart, StepEnd, Summary, Owner)
    },
)


# The fields that hold texts of others: of templates, users, models and tools.
_FIELDS_OF_OTHERS: dict[type, tuple[str, ...]] = {
    Header: ("request", "inputs", "extra"),
    StepStart: ("name", "args"),
    StepEnd: ("output", "error", "usage", "extra"),
    Summary: ("result", "reason", "usage", "models"),
    Resumption: ("allowed",),
}
values_of_others: Mapping[type, Callable[[Any], tuple[Any, ...]]] = {
    Resumption: lambda part: (part.allowed,),
    **{
        part: cast("Callable[[Any], tuple[Any, ...]]", attrgetter(*names))
        for part, names in _FIELDS_OF_OTHERS.items()
        if part is not Resumption
    },
}
"""Returns the values of these fields, in which `scrubbed` looks for secrets."""


@lru_cache(maxsize=1)
def _dumps() -> tuple[Callable[[Any, Callable[[Any], Any], int], bytes], int]:
    # Only segments need orjson.
    from orjson import OPT_PASSTHROUGH_DATACLASS, OPT_PASSTHROUGH_DATETIME, dumps

    return dumps, OPT_PASSTHROUGH_DATACLASS | OPT_PASSTHROUGH_DATETIME


def to_json(
    kind: EntryKind,
    number: int,
    parts: tuple[Any, ...],
    name: str | None,
    note: Note | None,
    known: set[str] | frozenset[str],
    texts: list[str],
) -> bytes:
    """An `Entry` of a segment, which `read_entry` reads. The texts in it that `scrubbed` searches
    are added to `texts`, except those of `known`.

    Raises: UsageError, if a value in it is not JSON.
    """
    if note is None:
        if name is not None:
            texts.append(name)
        return _encoded([kind, number, name], parts, known, texts)
    if not note.json:
        found: list[str] = []
        data = _encoded([], parts, frozenset(), found)
        # In this order: another thread that sees the JSON needs the texts too.
        note.text = BETWEEN_TEXTS.join(found)
        note.json = data[1:]
    if note.text not in known:
        texts.append(note.text)
    return b'["note",%d,null,%b' % (number, note.json)


def _encoded(
    row: list[Any], parts: tuple[Any, ...], known: set[str] | frozenset[str], texts: list[str]
) -> bytes:
    """`row`, followed by the values of `parts`, whose texts are added to `texts`."""
    of_others: list[Any] = []
    for part in parts:
        kind = type(part)
        row.append(_VALUES[kind](part))
        of_others += values_of_others[kind](part)
    dumps, options = _dumps()
    try:
        try:
            data = dumps(row, _to_plain, options)
        except TypeError:
            # orjson refuses integers past 64 bits and lone surrogates.
            data = json.dumps(row, default=_to_plain, separators=(",", ":")).encode()
        if find_texts(of_others, known, texts) == "other":
            # orjson writes NaN as null, and types that a task file refuses, such as UUID.
            data = json.dumps(row, default=_to_plain, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"a record of a step is not a JSON value: {error}") from error
    return data


def _to_plain(value: object) -> object:
    if type(value) is Owner:
        return _VALUES[Owner](value)
    return plain_json(value)


def read_entry(row: Any) -> Entry:
    """The entry that `to_json` wrote, read as JSON. Raises: ValueError, TypeError or LookupError,
    for anything else.
    """
    kind, number, name, *values = row
    parts = tuple(part(*value) for part, value in zip(_PARTS[kind], values, strict=True))
    first = parts[0]
    if isinstance(first, Header) and first.owner is not None:
        owner = cast("tuple[Any, ...]", first.owner)
        parts = (replace(first, owner=Owner(*owner)),)
    return Entry(kind, int(number), parts, name)


def scrubbed(entry: Entry, scrub: Scrub) -> Entry:
    """`entry` without the secrets that `scrub` knows."""
    name = entry.name
    if name is not None:
        name = scrub.redact(name)
    parts = tuple(_scrubbed(part, scrub) for part in entry.parts)
    return Entry(entry.kind, entry.number, parts, name)


def _scrubbed(part: Any, scrub: Scrub) -> Any:
    names = _FIELDS_OF_OTHERS[type(part)]
    changes: dict[str, Any] = {name: scrub.redact_value(getattr(part, name)) for name in names}
    if isinstance(part, Header) and part.parent is None:
        removed = _removed_secrets(part, scrub)
        changes["extra"] = scrub.redact_value({**part.extra, **removed})
    if isinstance(part, Summary):
        changes["models"] = tuple(changes["models"])
    return replace(part, **changes)


def _removed_secrets(header: Header, scrub: Scrub) -> dict[str, Any]:
    """Names what a run that starts again lacks, because it is secret."""
    removed: dict[str, Any] = {}
    inputs = [name for name, value in header.inputs.items() if scrub.redact_value(value) != value]
    if inputs:
        removed["redacted_inputs"] = inputs
    shots = header.extra.get("shots")
    if scrub.redact_value(shots) != shots:
        removed["redacted_shots"] = True
    return removed
