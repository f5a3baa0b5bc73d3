"""Reads and writes `task-queue.json`: exactly the fields of the published format, checked one by
one.

A file from elsewhere is read whole or refused with the places of its problems, such as
`$.tasks[2].status`; of a file that a person has edited, what is right is read. An
optional field that is missing takes its default. A field that the format does not have is refused,
also where only its spelling differs (`max_retries`): dropping it would lose data, and two spellings
could contradict each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from evaluator.errors import UsageError
from evaluator.errors.messages import did_you_mean, shortened
from evaluator.output.strict import read_strict
from evaluator.queue.entries import (
    MAX_INTEGER,
    STATUSES,
    TYPES,
    QueueDocument,
    QueueEntry,
    StrategyAttempt,
    entry_number,
    parse_timestamp,
)

FILE = "task-queue.json"
VERSION = "1.0"
MAX_BYTES = 500_000_000
_MAX_PROBLEMS = 10
_INDENT = "    "

_Check: TypeAlias = "Callable[[Any, str], Any]"


class _Invalid(Exception):
    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place} {problem}")


@dataclass(frozen=True, slots=True)
class Reading:
    """What could be read of a file: the document with its valid entries, which stand at `indexes`
    of the file, and what is wrong with the rest.
    """

    document: QueueDocument
    indexes: Sequence[int]
    problems: Sequence[str]
    has_last_id: bool


_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of the file: its name there, the attribute that holds it, its check, and its default
    if it has one.
    """

    name: str
    attribute: str
    check: _Check
    default: Any = _REQUIRED


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise _Invalid(place, f"is {_shown(value)}, expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _Invalid(
            place, "holds half of a surrogate pair; write the character whole"
        ) from error
    return value


def _integer(least: int) -> _Check:
    def check(value: Any, place: str) -> int:
        if type(value) is not int or value < least:
            raise _Invalid(place, f"is {_shown(value)}, expected an integer, {least} or more")
        if value > MAX_INTEGER:
            raise _Invalid(place, f"is {_shown(value)}, expected an integer up to {MAX_INTEGER}")
        return value

    return check


def _choice(noun: str, choices: Sequence[str]) -> _Check:
    def check(value: Any, place: str) -> str:
        if value not in choices or not isinstance(value, str):
            raise _Invalid(
                place,
                f"is {_shown(value)}, which is not a {noun} of the queue; use {', '.join(choices)}",
            )
        return value

    return check


def _time(value: Any, place: str) -> str:
    try:
        parse_timestamp(_text(value, place))
    except ValueError as error:
        raise _Invalid(
            place, f"is {_shown(value)}, expected a time in ISO 8601, such as 2026-02-17T09:00:00Z"
        ) from error
    return value


def _id(value: Any, place: str) -> str:
    try:
        entry_number(_text(value, place))
    except UsageError as error:
        raise _Invalid(
            place, f"is {_shown(value)}, expected an id such as T-01, T-99 or T-100"
        ) from error
    return value


def _or_null(check: _Check) -> _Check:
    return lambda value, place: None if value is None else check(value, place)


def _version(value: Any, place: str) -> str:
    if value != VERSION:
        raise _Invalid(place, f'is {_shown(value)}; this program reads version "{VERSION}"')
    return value


def _attempts(value: Any, place: str) -> tuple[StrategyAttempt, ...]:
    return tuple(
        StrategyAttempt(**_read_object(item, f"{place}[{index}]", fields=_ATTEMPT))
        for index, item in enumerate(_array(value, place))
    )


def _array(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise _Invalid(place, f"is {_shown(value)}, expected an array")
    return cast("list[Any]", value)


_ATTEMPT = (
    _Field("attempt", "attempt", check=_integer(1)),
    _Field("strategy", "strategy", check=_text),
    _Field("tool", "tool", check=_text),
    _Field("attempted_at", "attempted_at", check=_time),
    _Field("result", "result", check=_text),
    _Field("verification_failure", "verification_failure", check=_or_null(_text), default=None),
)
_ENTRY = (
    _Field("id", "id", check=_id),
    _Field("description", "description", check=_text),
    _Field("goal", "goal", check=_text),
    _Field("type", "type", check=_choice("type", TYPES)),
    _Field("status", "status", check=_choice("status", STATUSES)),
    _Field("retries", "retries", check=_integer(0)),
    _Field("maxRetries", "max_retries", check=_integer(0)),
    _Field("subagent_session", "subagent_session", check=_or_null(_text), default=None),
    _Field("strategies_tried", "strategies_tried", check=_attempts),
    _Field("deliverable", "deliverable", check=_or_null(_text), default=None),
    _Field("deliverable_path", "deliverable_path", check=_or_null(_text), default=None),
    _Field("blocked_reason", "blocked_reason", check=_or_null(_text), default=None),
    _Field("user_action_required", "user_action_required", check=_or_null(_text), default=None),
    _Field("added_at", "added_at", check=_time),
    _Field("started_at", "started_at", check=_or_null(_time), default=None),
    _Field("completed_at", "completed_at", check=_or_null(_time), default=None),
)
_DOCUMENT = (
    _Field("version", "version", check=_version),
    _Field("maxConcurrent", "max_concurrent", check=_integer(1), default=2),
    _Field("maxRetries", "max_retries", check=_integer(0), default=3),
    _Field("archiveDays", "archive_days", check=_integer(0), default=7),
    _Field("taskRunnerDir", "task_runner_dir", check=_text, default=""),
    _Field("lastId", "last_id", check=_or_null(_id), default=None),
    _Field("tasks", "tasks", check=_array),
)


def read_document(data: bytes, name: str) -> QueueDocument:
    """The queue in the bytes of a file; `name` is for messages.

    Without `lastId` it is the highest id. Raises: UsageError, with the places of the problems.
    """
    try:
        reading = _read(data)
        if not reading.problems:
            return _with_checked_last_id(reading)
        problems = reading.problems
    except _Invalid as error:
        problems = [str(error)]
    more = len(problems) - _MAX_PROBLEMS
    shown = [*problems[:_MAX_PROBLEMS], *([f"and {more:,} more"] if more > 0 else ())]
    raise UsageError(f"{name}: {'; '.join(shown)}; nothing was imported")


def read_edit(data: bytes, name: str, settings: QueueDocument) -> Reading:
    """The queue in a file that a person has edited: what can be read of it, with the problems of
    the rest. A setting that cannot be read is that of `settings`.

    Raises: UsageError, if the file as a whole is not a queue.
    """
    try:
        return _read(data, settings)
    except _Invalid as error:
        raise UsageError(f"{name}: {error}") from error


def read_limited(path: Path) -> bytes:
    """The bytes of a file, at most one more than a queue may have. Raises: OSError."""
    with open(path, "rb") as file:
        return file.read(MAX_BYTES + 1)


def parse_entry(text: str) -> QueueEntry:
    """The entry that `entry_text` wrote, without a check."""
    return _known_entry(json.loads(text))


def parse_entries(texts: Iterable[str]) -> list[QueueEntry]:
    """The entries that `entry_text` wrote, decoded at once, which takes two thirds of the time."""
    return [_known_entry(fields) for fields in json.loads(f"[{','.join(texts)}]")]


def _known_entry(fields: dict[str, Any]) -> QueueEntry:
    values = {field.attribute: fields[field.name] for field in _ENTRY}
    values["strategies_tried"] = tuple(
        StrategyAttempt(**attempt) for attempt in values["strategies_tried"]
    )
    return QueueEntry(**values)


def check_text(text: str) -> QueueEntry:
    """The entry in a text that somebody else has written. Raises: ValueError, if `entry_text` would
    not write it.
    """
    try:
        fields = _read_object(_read_json(text.encode()), "$", fields=_ENTRY)
    except _Invalid as error:
        raise ValueError(str(error)) from error
    entry = QueueEntry(**fields)
    if entry_text(entry) != text:
        raise ValueError("it is written otherwise than this program writes it")
    return entry


def entry_fields(entry: QueueEntry) -> dict[str, Any]:
    """The entry as an object of the file."""
    fields = _to_object(entry, _ENTRY)
    fields["strategies_tried"] = [
        _to_object(attempt, _ATTEMPT) for attempt in entry.strategies_tried
    ]
    return fields


def entry_text(entry: QueueEntry) -> str:
    """The entry as JSON text, as it is in the file, without the indentation of its place."""
    return json.dumps(entry_fields(entry), ensure_ascii=False, indent=2)


def document_bytes(document: QueueDocument) -> bytes:
    """The bytes of the file."""
    return join_document(document, map(entry_text, document.tasks))


def array_text(entries: Iterable[str]) -> str:
    """The JSON text of an array of entries, each as `entry_text` wrote it."""
    return _with_items("[]", entries, indent="  ")


def join_document(document: QueueDocument, entries: Iterable[str]) -> bytes:
    """The bytes of the file with these entries, each as `entry_text` wrote it, in place of
    `document.tasks`.
    """
    head = _to_object(document, _DOCUMENT[1:-1])
    lines = json.dumps({"version": VERSION, **head, "tasks": []}, ensure_ascii=False, indent=2)
    return (_with_items(lines.removesuffix("\n}"), entries, indent=_INDENT) + "\n}\n").encode()


def _with_items(text: str, items: Iterable[str], indent: str) -> str:
    """The JSON text, which ends with `[]`, with these items in that array."""
    # A JSON text has no line feed inside a string.
    body = ",\n".join(indent + item.replace("\n", "\n" + indent) for item in items)
    if body:
        return f"{text.removesuffix('[]')}[\n{body}\n{indent[2:]}]"
    return text


def _to_object(record: Any, fields: Sequence[_Field]) -> dict[str, Any]:
    return {field.name: getattr(record, field.attribute) for field in fields}


def _read_json(data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise _Invalid("$", f"is larger than {MAX_BYTES:,} bytes")
    try:
        return read_strict(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _Invalid("$", f"is not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise _Invalid("$", "is nested too deeply") from error
    except ValueError as error:
        raise _Invalid("$", f"is not valid JSON: {error}") from error


def _read(data: bytes, settings: QueueDocument | None = None) -> Reading:
    """Reads as much as can be read. Raises: _Invalid, for anything else than a queue."""
    value = _read_json(data)
    if not isinstance(value, dict):
        raise _Invalid(
            "$", f'is {_shown(value)}, expected an object with "version", "lastId" and "tasks"'
        )
    queue = cast("dict[str, Any]", value)
    problems: list[str] = []
    fields: dict[str, Any] = {}
    for name in _unknown_fields(queue, _DOCUMENT):
        problems.append(str(_unknown(name, "$", _DOCUMENT)))
    for field in _DOCUMENT:
        default = field.default
        if settings is not None and default is not _REQUIRED:
            default = getattr(settings, field.attribute)
        try:
            fields[field.attribute] = _read_field(queue, field, "$", default)
        except _Invalid as error:
            if field.default is _REQUIRED:
                raise
            problems.append(str(error))
            fields[field.attribute] = default
    del fields["version"]
    indexes: list[int] = []
    entries: list[QueueEntry] = []
    seen = set[str]()
    for index, item in enumerate(fields["tasks"]):
        place = f"$.tasks[{index}]"
        try:
            entry = QueueEntry(**_read_object(item, place, fields=_ENTRY))
            if entry.id in seen:
                raise _Invalid(
                    f"{place}.id",
                    f"is {entry.id!r}, which an entry above has too; ids are unique",
                )
        except _Invalid as error:
            problems.append(str(error))
            continue
        seen.add(entry.id)
        indexes.append(index)
        entries.append(entry)
    fields["tasks"] = tuple(entries)
    return Reading(QueueDocument(**fields), tuple(indexes), problems, has_last_id="lastId" in queue)


def _read_object(value: Any, place: str, fields: Sequence[_Field]) -> dict[str, Any]:
    """The checked fields by attribute."""
    if not isinstance(value, Mapping):
        raise _Invalid(place, f"is {_shown(value)}, expected an object")
    given = cast("Mapping[str, Any]", value)
    for name in _unknown_fields(given, fields):
        raise _unknown(name, place, fields)
    return {field.attribute: _read_field(given, field, place, field.default) for field in fields}


def _read_field(given: Mapping[str, Any], field: _Field, place: str, default: Any) -> Any:
    if field.name in given:
        return field.check(given[field.name], f"{place}.{field.name}")
    if default is _REQUIRED:
        raise _Invalid(f"{place}.{field.name}", "is missing")
    return default


def _unknown_fields(given: Mapping[str, Any], fields: Sequence[_Field]) -> list[str]:
    known = {field.name for field in fields}
    return [name for name in given if name not in known]


def _unknown(name: str, place: str, fields: Sequence[_Field]) -> _Invalid:
    hint = _spelling_hint(name, {field.name for field in fields})
    return _Invalid(f"{place}.{name[:60]}", f"is not a field of the queue{hint}")


def _with_checked_last_id(reading: Reading) -> QueueDocument:
    document = reading.document
    highest = highest_id(document.tasks)
    if document.last_id is None:
        last = 0
    else:
        last = entry_number(document.last_id)
    if highest is None or last >= entry_number(highest):
        return document
    if reading.has_last_id:
        shown = _shown(document.last_id)
        raise _Invalid("$.lastId", f"is {shown}, lower than the id {highest}; ids are never reused")
    return replace(document, last_id=highest)


def highest_id(entries: Iterable[QueueEntry]) -> str | None:
    """The highest id of the entries; None without one."""
    return max((entry.id for entry in entries), key=entry_number, default=None)


def _spelling_hint(name: str, known: Collection[str]) -> str:
    # `max_retries` and `MaxRetries` are `maxRetries` in another style.
    folded = {field.replace("_", "").lower(): field for field in known}
    same = folded.get(name.replace("_", "").replace("-", "").lower())
    if same:
        hint = f"did you mean `{same}`?"
    else:
        hint = did_you_mean(name, known)
    if hint:
        return f"; {hint}"
    return ""


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        if value:
            return "true"
        return "false"
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, (list, dict)):
        if isinstance(value, list):
            return "an array"
        return "an object"
    return f"{value!r:.60}"
