"""A lock keeps other processes out and ends with the process that holds it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from evaluator.files.atomic import lock, locked, locked_file, try_lock, unlock

HOLD = """
import sys
from evaluator.files.atomic import locked_file
with locked_file(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held_by_another_process(tmp_path):
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "locked\n"
        yield path, holder
        holder.kill()


def test_a_lock_of_another_process_is_seen_and_ends_when_it_is_killed(held_by_another_process):
    path, holder = held_by_another_process
    descriptor = os.open(path, os.O_RDWR)
    try:
        assert not try_lock(descriptor)
        assert not try_lock(descriptor, shared=True)
        holder.kill()
        lock(descriptor)
    finally:
        os.close(descriptor)


def test_a_shared_lock_lets_others_share_and_keeps_the_exclusive_one_out(tmp_path):
    path = tmp_path / "lock"
    path.touch()
    one, other = (os.open(path, os.O_RDWR) for _ in range(2))
    try:
        assert try_lock(one, shared=True)
        assert try_lock(other, shared=True)
        assert not try_lock(other)
        unlock(one)
        with locked(other):
            assert not try_lock(one)
        assert try_lock(one)
    finally:
        os.close(one)
        os.close(other)


def test_a_lock_file_is_private_and_never_a_link(tmp_path):
    with locked_file(tmp_path / "lock"):
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic links"), locked_file(tmp_path / "link"):
        pass
    assert not (tmp_path / "elsewhere").exists()
