"""Bytes beside the task files: whole or not there, once for each content, and never another's."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evaluator.errors import RecordError
from evaluator.record import kept
from evaluator.record.journal import Sync
from evaluator.record.store import TaskStore

DATA = bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_kept_is_read_back_from_one_private_file(tmp_path: Path, durable: bool) -> None:
    assert kept.keep(tmp_path, DATA, durable=durable) == kept.keep(tmp_path, DATA, durable=durable) == DIGEST
    (path,) = (tmp_path / kept.FOLDER).iterdir()
    assert (path.name, path.stat().st_mode & 0o777) == (DIGEST, 0o600)
    assert kept.read(tmp_path, DIGEST) == DATA


def test_many_threads_that_keep_the_same_leave_one_whole_file(tmp_path: Path) -> None:
    def keep(data: bytes) -> str:
        return kept.keep(tmp_path, data, durable=False)

    with ThreadPoolExecutor(8) as threads:
        names = set(threads.map(keep, [DATA] * 40))
    assert names == {DIGEST}
    assert [path.name for path in (tmp_path / kept.FOLDER).iterdir()] == [DIGEST]


@pytest.mark.parametrize(
    "name", ["../active/TASK-1.md", "", ".", "a" * 63, DIGEST.upper(), DIGEST + "\n", "/etc/passwd"]
)
def test_what_is_no_hash_is_never_taken_for_a_path(tmp_path: Path, name: str) -> None:
    kept.keep(tmp_path, DATA, durable=False)
    assert kept.read(tmp_path, name) is None


def test_a_file_that_was_changed_is_not_given_out_and_is_kept_anew(tmp_path: Path) -> None:
    kept.keep(tmp_path, DATA, durable=False)
    (tmp_path / kept.FOLDER / DIGEST).write_bytes(DATA[:-1])
    assert kept.read(tmp_path, DIGEST) is None
    kept.keep(tmp_path, DATA, durable=False)
    assert kept.read(tmp_path, DIGEST) == DATA


def test_a_folder_that_cannot_be_trusted_is_refused(tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (tmp_path / kept.FOLDER).symlink_to(elsewhere)
    with pytest.raises(RecordError, match="link"):
        kept.keep(tmp_path, DATA, durable=False)
    (tmp_path / kept.FOLDER).unlink()
    (tmp_path / kept.FOLDER).mkdir()
    os.chmod(tmp_path / kept.FOLDER, 0o777)
    with pytest.raises(RecordError, match="written by everybody"):
        kept.keep(tmp_path, DATA, durable=False)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("sync", ["off", "task", "step"])
def test_a_journal_keeps_for_every_task_of_its_folder(tmp_path: Path, sync: Sync) -> None:
    store = TaskStore(tmp_path / "tasks", sync=sync)
    with store.create("one") as first, store.create("two") as second:
        first.keep(DATA)
        assert second.kept(DIGEST) == DATA
        assert second.kept("0" * 64) is None
    assert {task.id for task in store.list()} == {1, 2}
