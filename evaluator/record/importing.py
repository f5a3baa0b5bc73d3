"""Takes over task files and task lists of other programs: each becomes a file of this folder.

Nothing of the source is changed. What cannot be read is returned with its line and its reason, and
so is every part of a file that is left out. A file that was taken over before is not taken over
again.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from evaluator.errors import CorruptRecord, RecordError, UsageError
from evaluator.fields import JsonForm
from evaluator.lazy_dataclass import frozen
from evaluator.record import grammar
from evaluator.record.other_writers import read_other
from evaluator.record.steps import Recording, StepEnd, Summary
from evaluator.record.store import TaskStore
from evaluator.record.task_list_outline import is_dated
from evaluator.record.task_lists import TaskLists

MAX_BYTES = 100_000_000
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_ENDED = "it had not ended when it was imported"

ImportState = Literal["imported", "known", "unreadable", "ignored"]


@frozen
class ImportedFile(JsonForm):
    """What was done with a file.

    `name` is the task's or list's own name here, such as TASK-12. `reason` is why it was not taken
    over, with `line` where a line is the cause. `warnings` name what was left out.
    """

    path: Path
    state: ImportState
    name: str | None = None
    reason: str | None = None
    line: int | None = None
    warnings: tuple[str, ...] = ()


def import_files(store: TaskStore, paths: Iterable[Path]) -> Iterator[ImportedFile]:
    """Takes over the files of `paths`. A folder stands for its files, and those of its `active/`
    and `done/`.

    Raises: UsageError, for a path that does not exist; RecordError, if the folder of `store` cannot
    be written.
    """
    known = _known(store)
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: there is no such file or folder")
        for file in _files(path) if path.is_dir() else [path]:
            found = _import_file(store, file, known=known)
            if found is not None:
                yield found


def _known(store: TaskStore) -> dict[str, str]:
    """The names of the tasks that were taken over, by the checksum of their source."""
    known: dict[str, str] = {}
    for task in store.list():
        if task.header is None:
            source = None
        else:
            source = task.header.extra.get("imported")
        if isinstance(source, Mapping):
            known[str(cast("Mapping[str, Any]", source).get("sha256"))] = f"TASK-{task.id}"
    return known


def _files(folder: Path) -> Iterator[Path]:
    for place in (folder, folder / "active", folder / "done"):
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RecordError(f"{place}: cannot list the folder: {error.strerror}") from error
        yield from (
            place / entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)
        )


def _import_file(store: TaskStore, path: Path, known: dict[str, str]) -> ImportedFile | None:
    if path.name.startswith("."):
        return None
    if path.suffix != ".md":
        return ImportedFile(path, "ignored", reason="it is not a Markdown file")
    try:
        data = _read(path)
    except OSError as error:
        return ImportedFile(path, "unreadable", reason=f"it cannot be read: {error.strerror}")
    if is_dated(path.stem):
        return _import_list(store, path, data=data)
    digest = hashlib.sha256(data).hexdigest()
    if digest in known:
        return ImportedFile(path, "known", name=known[digest], reason="it was imported before")
    if data.strip() and grammar.is_own(data):
        return ImportedFile(
            path, "ignored", reason="this program wrote it; name its folder with --tasks"
        )
    try:
        recording = read_other(data, str(path))
    except CorruptRecord as error:
        return ImportedFile(path, "unreadable", reason=error.message, line=error.line)
    name = known[digest] = _write(store, recording, path=path, digest=digest)
    return ImportedFile(path, "imported", name=name, warnings=recording.warnings)


def _read(path: Path) -> bytes:
    with open(os.open(path, _FILE), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "it is not a regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(0, f"it is larger than {MAX_BYTES:,} bytes")
    return data


def _import_list(store: TaskStore, path: Path, data: bytes) -> ImportedFile:
    lists = TaskLists(store.root)
    if any((store.root / state / path.name).exists() for state in ("active", "done")):
        return ImportedFile(
            path, "known", name=path.stem, reason="there is a task list of that name"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return ImportedFile(path, "unreadable", reason="the file is not UTF-8 text", line=line)
    try:
        lists.create(path.stem, text)
        if path.parent.name == "done":
            lists.close(path.stem, force=True)
    except UsageError as error:
        return ImportedFile(path, "unreadable", reason=str(error))
    return ImportedFile(path, "imported", name=path.stem)


def _write(store: TaskStore, recording: Recording, path: Path, digest: str) -> str:
    """Writes a recording as a finished task. Returns: its name."""
    header = recording.known_header()
    source = {"path": str(path), "sha256": digest}
    if header.task_id:
        source["id"] = f"TASK-{header.task_id}"
    with store.create(
        header.request,
        header.inputs,
        template=header.template,
        model=header.model,
        created=header.created or None,
        extra={**header.extra, "imported": source},
        is_own=False,
    ) as journal:
        for step in recording.steps:
            number = journal.begin(step.start)
            journal.end(number, step.end or StepEnd("aborted", None, 0.0, _NOT_ENDED))
        retries = sum(step.is_retry for step in recording.steps)
        summary = recording.summary or Summary(
            "aborted", journal.steps, retries, 0.0, reason=_NOT_ENDED
        )
        journal.close(replace(summary, steps=max(summary.steps, journal.steps)))
        return f"TASK-{journal.id}"
