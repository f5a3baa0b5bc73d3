"""A blob beside the task files is whole or missing, stored once for each content, and never another's."""

from __future__ import annotations

import asyncio
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evaluator import RecordError, TaskStore
from evaluator.record import blobs
from evaluator.record.journal import Sync
from evaluator.record.step_log import StepLog

DATA = bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_kept_is_read_back_from_one_private_file(tmp_path: Path, durable: bool) -> None:
    assert (
        blobs.write_blob(tmp_path, DATA, durable=durable)
        == blobs.write_blob(tmp_path, DATA, durable=durable)
        == DIGEST
    )
    (path,) = (tmp_path / blobs.FOLDER).iterdir()
    assert (path.name, path.stat().st_mode & 0o777) == (DIGEST, 0o600)
    assert blobs.read_blob(tmp_path, DIGEST) == DATA


def test_many_threads_that_keep_the_same_leave_one_whole_file(tmp_path: Path) -> None:
    def write_blob(data: bytes) -> str:
        return blobs.write_blob(tmp_path, data, durable=False)

    with ThreadPoolExecutor(8) as threads:
        names = set(threads.map(write_blob, [DATA] * 40))
    assert names == {DIGEST}
    assert [path.name for path in (tmp_path / blobs.FOLDER).iterdir()] == [DIGEST]


@pytest.mark.parametrize(
    "name", ["../active/TASK-1.md", "", ".", "a" * 63, DIGEST.upper(), DIGEST + "\n", "/etc/passwd"]
)
def test_an_invalid_hash_is_never_used_as_a_path(tmp_path: Path, name: str) -> None:
    blobs.write_blob(tmp_path, DATA, durable=False)
    assert blobs.read_blob(tmp_path, name) is None


def test_a_file_that_was_changed_is_not_given_out_and_is_kept_again(tmp_path: Path) -> None:
    blobs.write_blob(tmp_path, DATA, durable=False)
    (tmp_path / blobs.FOLDER / DIGEST).write_bytes(DATA[:-1])
    assert blobs.read_blob(tmp_path, DIGEST) is None
    blobs.write_blob(tmp_path, DATA, durable=False)
    assert blobs.read_blob(tmp_path, DIGEST) == DATA


def test_a_folder_that_cannot_be_trusted_is_refused(tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (tmp_path / blobs.FOLDER).symlink_to(elsewhere)
    with pytest.raises(RecordError, match="link"):
        blobs.write_blob(tmp_path, DATA, durable=False)
    (tmp_path / blobs.FOLDER).unlink()
    (tmp_path / blobs.FOLDER).mkdir()
    os.chmod(tmp_path / blobs.FOLDER, 0o777)
    with pytest.raises(RecordError, match="written by everybody"):
        blobs.write_blob(tmp_path, DATA, durable=False)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("sync", ["off", "task", "step"])
def test_steps_store_bytes_for_every_task_of_their_folder(tmp_path: Path, sync: Sync) -> None:
    store = TaskStore(tmp_path / "tasks", sync=sync)
    with store.create("one") as first, store.create("two") as second:
        asyncio.run(StepLog(first).write_blob(DATA))
        assert StepLog(second).read_blob(DIGEST) == DATA
        assert StepLog(second).read_blob("0" * 64) is None
    assert {task.id for task in store.list()} == {1, 2}
