"""Merges shards: the folders of batches that each evaluated a part of the rows (`Selection.shard`).

The merged folder is that of one batch: every current result, every task file under its own id,
every label, and one manifest. It is written beside its final place and renamed when it is whole and
on the disk, so that an interrupted merge leaves no batch, and the shards may be removed after it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from evaluator import disk
from evaluator.batch.folder import TASKS, BatchFolder
from evaluator.batch.labels import copy_labels
from evaluator.batch.permissions import is_own, sign
from evaluator.batch.reading import Batch, open_batch
from evaluator.batch.rows.object_rows import Shard
from evaluator.batch.summary import Columns
from evaluator.errors import RecordError, UsageError
from evaluator.errors.messages import amount, listed
from evaluator.fields.records import items_of
from evaluator.files.atomic import NEW_FILE
from evaluator.files.open_below import open_private_folder, open_regular
from evaluator.lazy_dataclass import frozen
from evaluator.record.blobs import FOLDER as ATTACHMENTS
from evaluator.record.journal import now
from evaluator.record.segments import FOLDER as SEGMENTS
from evaluator.record.store import TaskStore

_WRITE_BYTES = 1_000_000
# Everything that has to be equal in the manifests of shards of one batch.
_SAME = (
    "schema",
    "name",
    "rows",
    "select",
    "templates",
    "cells",
    "epochs",
    "scorers",
    "judges",
    "count_as_failed",
    "limited",
    "thresholds",
    "cluster",
    "group_by",
    "reducers",
    "fewshot",
    "metrics",
)
_SAME_ARGUMENTS = ("inputs", "id", "target", "answers", "shuffle_choices", "metadata")


@frozen
class _ShardBatch:
    folder: Path
    shard: Shard
    batch: Batch
    manifest: Mapping[str, Any]


def merge_shards(folders: Sequence[str | Path], output: str | Path) -> Batch:
    """The batch in the new folder `output`, with everything in the folders of its shards, which
    stay as they are.

    If shards are missing or incomplete, so is the merged batch, and resuming it runs the rest.

    Raises: UsageError, for folders that are not shards, are the same shard or are shards of
    different batches; RecordError, for a folder that was changed or cannot be read, or an `output`
    that exists or cannot be written; TaskBusy, if a process works on a shard.
    """
    output = Path(os.path.abspath(output))
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RecordError(f"{output}: exists already; name a new folder for the merged batch")
    paths = [Path(folder) for folder in folders]
    for folder in paths:
        if sum(os.path.realpath(other) == os.path.realpath(folder) for other in paths) > 1:
            raise UsageError(f"{folder} is named twice; name each shard once")
        if output.is_relative_to(os.path.abspath(folder)):
            raise UsageError(
                f"{output} is inside of the shard {folder}; name a folder outside of it"
            )
    with ExitStack() as stack:
        parts: list[_ShardBatch] = []
        for folder in paths:
            # Locked, so that nobody works on it meanwhile.
            stack.enter_context(BatchFolder.open(folder))
            parts.append(_read_part(folder))
        _check(parts)
        parts.sort(key=lambda part: part.shard.number)
        try:
            disk.make_folders(output.parent)
            building = Path(disk.make_temporary_folder(f".{output.name}-", output.parent))
        except OSError as error:
            raise RecordError(f"{output}: cannot be created: {error.strerror}") from error
        try:
            _write(parts, building)
            disk.rename(building, output)
            disk.sync_folder(output.parent)
        except OSError as error:
            raise RecordError(
                f"{output}: the merged batch cannot be written: {error.strerror}"
            ) from error
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return open_batch(output)


def _read_part(folder: Path) -> _ShardBatch:
    batch = open_batch(folder)
    shard = batch.manifest.get("shard")
    if not isinstance(shard, str):
        raise UsageError(
            f"{folder}: not a shard; merge folders of batches that were run with --shard K/N"
        )
    return _ShardBatch(folder, Shard.parse(shard), batch=batch, manifest=batch.manifest)


def _check(parts: Sequence[_ShardBatch]) -> None:
    """Raises: UsageError, if `parts` are not different shards of one batch."""
    if not parts:
        raise UsageError("name the folders of the shards")
    first = parts[0]
    seen = dict[int, Path]()
    for part in parts:
        if part.shard.of != first.shard.of:
            raise UsageError(
                f"{first.folder} is shard {first.shard} and {part.folder} is shard {part.shard}; "
                "merge shards of one "
                "division"
            )
        if part.shard.number in seen:
            raise UsageError(
                f"{seen[part.shard.number]} and {part.folder} are both shard {part.shard}; name one"
            )
        seen[part.shard.number] = part.folder
        ours = _definition(first.manifest)
        theirs = _definition(part.manifest)
        differences = [name for name in ours if ours[name] != theirs[name]]
        if differences:
            raise UsageError(
                f"{first.folder} and {part.folder} are shards of different batches: they differ in "
                f"{listed(differences, len(differences))}; run one of them again, with the "
                "definition of the other"
            )


def _definition(manifest: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: manifest.get(name) for name in _SAME}
    # The same file may be at another place on another machine.
    found["rows"] = _without_path(found["rows"] or {})
    if found["fewshot"]:
        found["fewshot"] = {**found["fewshot"], "rows": _without_path(found["fewshot"]["rows"])}
    arguments = manifest.get("arguments") or {}
    return found | {name: arguments.get(name) for name in _SAME_ARGUMENTS}


def _without_path(rows: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in rows.items() if name != "path"}


def _write(parts: Sequence[_ShardBatch], path: Path) -> None:
    with BatchFolder.create(path) as folder:
        lost: list[str] = []
        first = parts[0].manifest
        columns = Columns(first.get("cluster"), first.get("group_by"))
        for part in parts:
            lost += _copy_results(part, folder, columns)
            _copy_tasks(part.folder / TASKS, path / TASKS)
            copy_labels(part.folder, path)
        manifest = _merged_manifest(parts, lost)
        manifest["left_out"] = [
            key for key in manifest["left_out"] if columns.keys.find(key) is None
        ]
        folder.write_manifest(manifest)
        folder.write_summary(open_batch(path).summarise_columns(columns).to_dict())
        folder.sync()


def _copy_results(part: _ShardBatch, folder: BatchFolder, columns: Columns) -> list[str]:
    """Copies the lines of results, also of those that were replaced or left out, and adds them to
    `columns`. Returns: what the shard has lost.

    Raises: UsageError, if another shard has one of the results.
    """
    records = set(TaskStore(part.folder / TASKS).ids())
    is_left_out = part.batch.is_left_out()
    first = len(columns)
    size = 0
    without_record: set[int] = set()
    lines: list[bytes] = []

    def add(line: bytes, result: Mapping[str, Any]) -> None:
        nonlocal size
        if is_left_out(result["template"], result["variant"], result["key"]):
            if columns.keys.find(result["key"]) is not None:
                return  # another shard has the row now
            columns.leave_out(result)
        else:
            row = columns.add(result)
            if row < first:
                raise UsageError(
                    f"{part.folder}: sample {result['sample_id']!r} (epoch {result['epoch']}, "
                    f"{result['template']}, {result['variant']}) is in another shard too; were the "
                    "rows changed between them?"
                )
            task_id = result["task_id"]
            if task_id is None or task_id in records:
                without_record.discard(row)
            else:
                without_record.add(row)
        lines.append(line)
        size += len(line)
        if size >= _WRITE_BYTES:
            folder.append_lines(b"\n".join(lines) + b"\n")
            lines.clear()
            size = 0

    BatchFolder.reader(part.folder).give_stored_lines(add)
    if lines:
        folder.append_lines(b"\n".join(lines) + b"\n")
    count = len(columns) - first
    lost: list[str] = []
    total = part.manifest.get("total")
    if part.manifest.get("state") == "complete" and isinstance(total, int) and count < total:
        lost.append(
            f"shard {part.shard} has lost {total - count:,} of its {amount(total, 'result')}"
        )
    if without_record:
        lost.append(
            f"shard {part.shard} has lost the records of {amount(len(without_record), 'task')}"
        )
    return lost


def _copy_tasks(source: Path, target: Path) -> None:
    """Copies task files and attachments. Raises: RecordError, if a task is there already."""
    for name in ("active", "done", SEGMENTS, ATTACHMENTS):
        files = list(_files_in(source / name))
        for folder in (target, target / name) if files else ():
            os.close(open_private_folder(folder, sync=True))
        for file in files:
            # A segment that has ended is never written again. Another file system has its own copy.
            if name == SEGMENTS:
                with suppress(OSError):
                    disk.link(file, target / name / file.name, follow_symlinks=False)
                    continue
            try:
                copy = disk.open(target / name / file.name, NEW_FILE, 0o600)
            except FileExistsError:
                if name == ATTACHMENTS:
                    # Its name is the hash of its content.
                    continue
                raise RecordError(f"{file}: another shard has a task file of this name") from None
            with (
                open(open_regular(file), "rb") as original,
                disk.fdopen(copy) as written,
            ):
                shutil.copyfileobj(original, written)
                written.flush()
                disk.fsync(written.fileno())
        if files:
            disk.sync_folder(target / name)


def _files_in(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        with os.scandir(folder) as entries:
            yield from (
                Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False)
            )


def _merged_manifest(parts: Sequence[_ShardBatch], lost: Sequence[str]) -> dict[str, Any]:
    first = parts[0]
    manifests = [part.manifest for part in parts]
    reason = "; ".join([*_reasons(parts), *lost])
    state = "incomplete" if reason else "complete"
    total = None
    if len(parts) == first.shard.of and all(
        isinstance(each.get("total"), int) for each in manifests
    ):
        total = sum(each["total"] for each in manifests)
    arguments = {
        name: value
        for name, value in (first.manifest.get("arguments") or {}).items()
        if name != "output"
    }
    if "select" in arguments:
        arguments["select"] = {
            name: value for name, value in arguments["select"].items() if name != "shard"
        }
    sessions = sorted(
        (
            {**session, "shard": str(part.shard)}
            for part in parts
            for session in part.manifest.get("sessions", [])
        ),
        key=lambda session: session.get("started") or "",
    )
    merged = {"started": now(), "ended": now(), "state": state, "reason": reason, "ran": 0}
    manifest = {
        **first.manifest,
        "shard": None,
        "merged": [{"shard": str(part.shard), "folder": str(part.folder)} for part in parts],
        "created": min(each.get("created") or "" for each in manifests),
        "state": state,
        "total": total,
        "left_out": sorted({key for each in manifests for key in each.get("left_out", [])}),
        "abandoned": [run for each in manifests for run in items_of(each.get("abandoned"))],
        "unrecorded": [run for each in manifests for run in items_of(each.get("unrecorded"))],
        "settings": {
            name: value for each in manifests for name, value in each.get("settings", {}).items()
        },
        "sessions": [*sessions, merged],
        "arguments": arguments,
        "signature": None,
    }
    # What somebody else's shard names still needs a permission.
    if all(map(is_own, manifests)):
        return sign(manifest)
    return manifest


def _reasons(parts: Sequence[_ShardBatch]) -> list[str]:
    """Why the merged batch is incomplete."""
    number = parts[0].shard.of
    there = {part.shard.number for part in parts}
    missing = [f"{each}/{number}" for each in range(1, number + 1) if each not in there]
    if missing:
        return [f"missing shards: {', '.join(missing)}"]
    unfinished = [str(part.shard) for part in parts if part.manifest.get("state") != "complete"]
    if unfinished:
        return [f"incomplete shards: {', '.join(unfinished)}"]
    return []
