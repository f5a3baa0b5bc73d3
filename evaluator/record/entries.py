"""The records of a task as values, before they are written.

A task file has them as Markdown (`encoding`). A segment has them as JSON, from which that Markdown
is made when somebody reads the task: a batch writes many tasks and reads few.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple, cast

from evaluator.errors import UsageError
from evaluator.patterns import Match, Pattern
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


class Entry(NamedTuple):
    """One record. `parts` are what `_PARTS` names for its kind.

    `number` is that of the step; of a summary, that of the step that has the result's content, or
    0. `name` restates the step of an end that other records separate from its beginning.
    """

    kind: EntryKind
    number: int
    parts: tuple[Any, ...]
    name: str | None = None


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


class FixedValue:
    """A JSON value that many records have, which is encoded once. `fields` has its Markdown by the
    label of the field, `json` an `orjson.Fragment`.
    """

    __slots__ = ("fields", "json", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.fields: dict[str, str] = {}
        self.json: object = None


@lru_cache(maxsize=1)
def _dumps() -> Callable[[Any], bytes]:
    # Only segments need orjson.
    from orjson import OPT_PASSTHROUGH_DATACLASS, OPT_PASSTHROUGH_DATETIME, dumps

    options = OPT_PASSTHROUGH_DATACLASS | OPT_PASSTHROUGH_DATETIME
    return partial(dumps, default=_to_fragment, option=options)


def to_json(entry: Entry) -> bytes:
    """An entry of a segment, which `read_entry` reads.

    Raises: UsageError, if a value in it is not JSON.
    """
    values = [_VALUES[type(part)](part) for part in entry.parts]
    row = (entry.kind, entry.number, entry.name, *values)
    try:
        data = _dumps()(row)
    except TypeError:
        data = None
    # orjson writes NaN as null, and refuses integers past 64 bits and lone surrogates.
    if data is not None:
        nulls = data.count(b"null")
        is_exact = nulls == sum([value.count(None) for value in values], entry.name is None)
        if is_exact or nulls == _count_none(row):
            return data
    try:
        return json.dumps(row, default=_to_plain, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"a record of a step is not a JSON value: {error}") from error


_ESCAPE = Pattern(r'\\([\\"ntr])')
_ESCAPED = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "r": "\r"}


def texts_of(entries: bytes) -> str:
    """What `to_json` wrote, with its texts as they are. Secrets may be escaped or broken into lines
    themselves; a search then finds in the texts what it finds in the values.
    """
    return _ESCAPE.sub(_character, entries.decode())


def _character(escape: Match) -> str:
    return _ESCAPED[escape[1]]


def _count_none(values: Any) -> int:
    """How often None is in values of JSON. A mapping that is not a dict counts for nothing."""
    count = 0
    for value in values:
        if value is None:
            count += 1
        elif type(value) is dict:
            count += _count_none(value.values())  # pyright: ignore[reportUnknownArgumentType]
        elif type(value) is list or type(value) is tuple:
            count += _count_none(value)
    return count


def _to_fragment(value: object) -> object:
    if type(value) is not FixedValue:
        return _to_plain(value)
    if value.json is None:
        from orjson import Fragment

        value.json = Fragment(json.dumps(value.value))
    return value.json


def _to_plain(value: object) -> object:
    if type(value) is FixedValue:
        return value.value
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
    return entry._replace(parts=parts, name=name)


def _scrubbed(part: Any, scrub: Scrub) -> Any:
    def redacted(value: Any) -> Any:
        if type(value) is FixedValue:
            value = value.value
        return scrub.redact_value(value)

    match part:
        case Header():
            extra = part.extra
            if part.parent is None:
                extra = {**extra, **_removed_secrets(part, scrub)}
            return replace(
                part,
                request=scrub.redact(part.request),
                inputs=redacted(part.inputs),
                extra=redacted(extra),
            )
        case StepStart():
            return replace(part, name=scrub.redact(part.name), args=redacted(part.args))
        case StepEnd():
            return replace(
                part,
                output=redacted(part.output),
                error=redacted(part.error),
                usage=redacted(part.usage),
                extra=redacted(part.extra),
            )
        case Summary():
            return replace(
                part,
                result=redacted(part.result),
                reason=redacted(part.reason),
                usage=redacted(part.usage),
                models=tuple(redacted(part.models)),
            )
        case Resumption():
            return replace(part, allowed=redacted(part.allowed))
        case _:
            raise TypeError(f"a record has no part {type(part).__name__}")


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
