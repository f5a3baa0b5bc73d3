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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import orjson

from evaluator.errors import UsageError
from evaluator.errors.messages import shortened
from evaluator.fields import FieldError, check_names, fields_of, kind_of, stored_fields
from evaluator.jobs.entries import QueueDocument, QueueEntry, StrategyAttempt, entry_number
from evaluator.lazy_dataclass import frozen
from evaluator.output.strict import read_strict

FILE = "task-queue.json"
VERSION = "1.0"
MAX_BYTES = 500_000_000
_MAX_PROBLEMS = 10
_INDENT = "    "


@frozen
class Reading:
    """What could be read of a file: the document with its valid entries, which stand at `indexes`
    of the file, and what is wrong with the rest.
    """

    document: QueueDocument
    indexes: Sequence[int]
    problems: Sequence[str]
    has_last_id: bool


_RENAMED = [
    (field.name, field.key) for field in fields_of(QueueEntry).values() if field.name != field.key
]


def read_document(data: bytes, name: str) -> QueueDocument:
    """The queue in the bytes of a file; `name` is for messages.

    Without `lastId` it is the highest id. Raises: UsageError, with the places of the problems.
    """
    try:
        reading = _read(data)
        if not reading.problems:
            return _with_checked_last_id(reading)
        problems = reading.problems
    except FieldError as error:
        problems = [_message(error)]
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
    except FieldError as error:
        raise UsageError(f"{name}: {_message(error)}") from error


def read_limited(path: Path) -> bytes:
    """The bytes of a file, at most one more than a queue may have. Raises: OSError."""
    with open(path, "rb") as file:
        return file.read(MAX_BYTES + 1)


def parse_entry(text: str) -> QueueEntry:
    """The entry that `entry_text` wrote, without a check."""
    values = orjson.loads(text)
    for name, key in _RENAMED:
        values[name] = values.pop(key)
    attempts = values["strategies_tried"]
    values["strategies_tried"] = tuple(StrategyAttempt(**attempt) for attempt in attempts)
    return QueueEntry(**values)


def check_text(text: str) -> QueueEntry:
    """The entry in a text that somebody else has written. Raises: ValueError, if `entry_text` would
    not write it.
    """
    entry = _read_entry(_read_json(text.encode()))
    if entry_text(entry) != text:
        raise ValueError("it is written otherwise than this program writes it")
    return entry


def entry_text(entry: QueueEntry) -> str:
    """The entry as JSON text, as it is in the file, without the indentation of its place."""
    return json.dumps(entry.to_dict(), ensure_ascii=False, indent=2)


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
    head = replace(document, tasks=()).to_dict()
    lines = json.dumps({"version": VERSION, **head}, ensure_ascii=False, indent=2)
    return (_with_items(lines.removesuffix("\n}"), entries, indent=_INDENT) + "\n}\n").encode()


def _with_items(text: str, items: Iterable[str], indent: str) -> str:
    """The JSON text, which ends with `[]`, with these items in that array."""
    # A JSON text has no line feed inside a string.
    body = ",\n".join(indent + item.replace("\n", "\n" + indent) for item in items)
    if body:
        return f"{text.removesuffix('[]')}[\n{body}\n{indent[2:]}]"
    return text


def _read_json(data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise FieldError(f"is larger than {MAX_BYTES:,} bytes", "$")
    try:
        return read_strict(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise FieldError(f"is not UTF-8 (byte {error.start})", "$") from error
    except RecursionError as error:
        raise FieldError("is nested too deeply", "$") from error
    except ValueError as error:
        raise FieldError(f"is not valid JSON: {error}", "$") from error


def _read(data: bytes, settings: QueueDocument | None = None) -> Reading:
    """Reads as much as can be read. Raises: FieldError, for anything else than a queue."""
    queue = _read_json(data)
    if not isinstance(queue, dict):
        raise FieldError('expected an object with "version", "lastId" and "tasks"', "$", queue)
    table = cast("dict[str, Any]", queue)
    if "version" not in table:
        raise FieldError("is missing", "$.version")
    if table["version"] != VERSION:
        raise FieldError(
            f'is {_shown(table["version"])}; this program reads version "{VERSION}"', "$.version"
        )
    declared = stored_fields(QueueDocument)
    problems: list[str] = []
    for name in table:
        try:
            check_names([name], ["version", *declared])
        except FieldError as error:
            problems.append(_message(error.inside("$")))
    values: dict[str, Any] = {}
    for key, field in declared.items():
        if key == "tasks":
            continue
        values[field.name] = field.default
        if settings is not None:
            values[field.name] = getattr(settings, field.name)
        if key in table:
            try:
                values[field.name] = field.accept(table[key])
            except FieldError as error:
                problems.append(_message(error.inside("$")))
    indexes: list[int] = []
    entries: list[QueueEntry] = []
    seen = set[str]()
    for index, item in enumerate(_tasks(table)):
        try:
            entry = _read_entry(item)
            if entry.id in seen:
                raise FieldError(
                    f"is {entry.id!r}, which an entry above has too; ids are unique", "id"
                )
        except FieldError as error:
            problems.append(_message(error.inside(f"$.tasks[{index}]")))
            continue
        seen.add(entry.id)
        indexes.append(index)
        entries.append(entry)
    document = QueueDocument(**values, tasks=tuple(entries))
    return Reading(document, tuple(indexes), problems, has_last_id="lastId" in table)


def _tasks(table: Mapping[str, Any]) -> list[Any]:
    if "tasks" not in table:
        raise FieldError("is missing", "$.tasks")
    if not isinstance(table["tasks"], list):
        raise FieldError("expected a list of tables", "$.tasks", table["tasks"])
    return cast("list[Any]", table["tasks"])


def _read_entry(value: Any) -> QueueEntry:
    """Raises: FieldError."""
    return kind_of(QueueEntry).accept(value)


def _message(error: FieldError) -> str:
    """The message of an error in the words of JSON."""
    problem = error.problem.replace("a table", "an object").replace("a list of", "an array of")
    return FieldError(problem.replace("tables", "objects"), error.path, error.value).message(_shown)


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
        raise FieldError(
            f"is {shown}, lower than the id {highest}; ids are never reused", "$.lastId"
        )
    return replace(document, last_id=highest)


def highest_id(entries: Iterable[QueueEntry]) -> str | None:
    """The highest id of the entries; None without one."""
    return max((entry.id for entry in entries), key=entry_number, default=None)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, list):
        return "an array"
    if isinstance(value, dict):
        return "an object"
    return f"{value!r:.60}"
