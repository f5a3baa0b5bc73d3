"""A published file is the old one or the new one, never a part, and a failed write leaves nothing behind."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from evaluator import ConfigurationError, RecordError, disk
from evaluator.files.atomic import atomic_file, write_atomic


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_published_file_is_private_and_has_the_content(tmp_path):
    write_atomic(tmp_path / "a", b"one")
    assert (tmp_path / "a").read_bytes() == b"one"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("sync", [True, False])
def test_the_old_file_is_there_until_the_block_ends(tmp_path, sync):
    (tmp_path / "a").write_text("old")
    with atomic_file(tmp_path / "a", sync=sync) as file:
        file.write(b"new")
        file.flush()
        assert (tmp_path / "a").read_text() == "old"
    assert (tmp_path / "a").read_text() == "new"


def test_after_an_exception_nothing_is_published(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_file(tmp_path / "a") as file:
        file.write(b"%d" % (1 // len(b"")))
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_link_is_replaced_and_its_target_is_not_touched(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "a").symlink_to("target")
    write_atomic(tmp_path / "a", b"new")
    assert not (tmp_path / "a").is_symlink()
    assert (tmp_path / "target").read_text() == "old"


def test_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordError, match="a device or a pipe is not replaced"):
        write_atomic(tmp_path / "pipe", b"x")
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_without_replace_an_existing_file_stays(tmp_path):
    write_atomic(tmp_path / "a", b"first", replace=False)
    with pytest.raises(FileExistsError):
        write_atomic(tmp_path / "a", b"second", replace=False)
    assert (tmp_path / "a").read_bytes() == b"first"
    assert (tmp_path / "a").stat().st_nlink == 1
    assert names(tmp_path) == ["a"]


def test_a_name_may_be_relative_to_an_open_folder(tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        write_atomic("é" * 120, b"one", dir_fd=folder)
    finally:
        os.close(folder)
    assert names(tmp_path) == ["é" * 120]


def test_under_a_lock_the_temporary_file_of_a_killed_writer_is_removed(tmp_path):
    (tmp_path / ".a.tmp").write_text("half of")
    write_atomic(tmp_path / "a", b"one", under_lock=True)
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, RecordError),
        ({"error": ConfigurationError}, ConfigurationError),
        ({"error": None}, FileNotFoundError),
    ],
)
def test_a_file_that_cannot_be_written_is_the_error_that_the_caller_names(tmp_path, options, error):
    with pytest.raises(error, match="No such file"):
        write_atomic(tmp_path / "none" / "a", b"one", **options)


def test_the_content_is_on_the_disk_before_the_name_and_the_name_at_the_end(tmp_path, monkeypatch):
    done = []
    sync, rename = disk.fsync, disk.rename

    def synced(descriptor):
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def renamed(*args, **more):
        done.append("name")
        rename(*args, **more)

    monkeypatch.setattr(disk, "fsync", synced)
    monkeypatch.setattr(disk, "rename", renamed)
    write_atomic(tmp_path / "a", b"new")
    assert done == ["file", "name", "folder"]
    done.clear()
    write_atomic(tmp_path / "a", b"new", sync=False)
    assert done == ["name"]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "fsync", full)
    with pytest.raises(
        RecordError, match="a: cannot be written: No space left on device; free space"
    ):
        write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]
