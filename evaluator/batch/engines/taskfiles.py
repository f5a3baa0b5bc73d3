"""Task files of samples that are evaluated on other machines: where they are written, and how they come home.

Where a node sees the batch's folder at the same path, and the locks that are held there, task files are written
straight into it, and what a lost node began is gone on with by another. Elsewhere they are written on the node, under
ids that no other node gives out, and come home with each result, byte for byte.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from evaluator.batch.work import SAMPLE_LABEL, Work
from evaluator.record.folder import checked_folder
from evaluator.record.journal import CREATE_FLAGS
from evaluator.record.store import TaskStore

IDS_EACH = 1_000_000_000
_FILE = re.compile(r"TASK-([0-9]{1,18})\.md")
_WAIT_S, _LOOK_S = 30.0, 0.1


@dataclass(frozen=True, slots=True)
class Probe:
    """A file with random bytes in the folder of task files, locked by whoever made it."""

    path: str
    token: bytes

    def is_seen(self) -> bool:
        """Whether this machine sees the file, and that it is locked."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if os.read(fd, 64) != self.token:
                return False
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(fd)
        return False


class HeldProbe:
    """The probe of `folder`, there as long as the context lasts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1
        self._path = folder / f".probe-{secrets.token_hex(8)}"

    def __enter__(self) -> Probe:
        os.close(checked_folder(self._folder))
        self._fd = os.open(self._path, CREATE_FLAGS, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        token = secrets.token_bytes(32)
        os.write(self._fd, token)
        return Probe(str(self._path), token)

    def __exit__(self, *_: object) -> None:
        os.unlink(self._path)
        os.close(self._fd)


class OwnFolder:
    """Task files on the node, until they are fetched. Ids are `first_id` + 1 and on."""

    def __init__(self, first_id: int) -> None:
        self.path = tempfile.mkdtemp(prefix="evaluator-tasks-")
        # A store goes on from the highest number that it finds.
        done = Path(self.path, "done")
        done.mkdir(mode=0o700)
        (done / f"TASK-{first_id}.md").touch(mode=0o600)
        self._seen: dict[int, tuple[str, int | None]] = {first_id: ("", None)}

    def files_of(self, store: TaskStore | None, work: Work) -> list[tuple[int, bytes]]:
        """The ended task files of `work`, of its judges and of their subtasks, by id; they are not kept here."""
        assert store is not None
        there = {int(match[1]) for name in os.listdir(store.root / "done") if (match := _FILE.fullmatch(name))}
        for number in there - self._seen.keys():
            header = store.read(number).header
            labels = {} if header is None else header.extra.get("labels", {})
            self._seen[number] = labels.get(SAMPLE_LABEL, ""), None if header is None else header.parent
        wanted = {n for n in there if belongs_to(self._seen[n][0], work.identity.value)}
        while more := {n for n in there - wanted if self._seen[n][1] in wanted}:
            wanted |= more
        files: list[tuple[int, bytes]] = []
        for number in sorted(wanted):
            path = store.root / "done" / f"TASK-{number}.md"
            files.append((number, path.read_bytes()))
            path.unlink()
            del self._seen[number]
        return files

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def bring_home(folder: Path, files: Collection[tuple[int, bytes]]) -> None:
    """Writes fetched task files into the batch's folder, for their owner only; never over another.

    Raises: OSError, if that cannot be done.
    """
    done = folder / "done"
    for parent in (folder, done):
        os.close(checked_folder(parent))
    for number, data in files:
        with open(os.open(done / f"TASK-{number}.md", CREATE_FLAGS, 0o600), "wb") as file:
            file.write(data)


def highest_id(store: TaskStore) -> int:
    """The newest task's id; 0 where there is none."""
    return next((task.id for task in store.list(limit=1)), 0)


def belongs_to(label: str, identity: str) -> bool:
    """Whether a task with that label is of the sample, or of a judge of it."""
    return label == identity or label.startswith(f"{identity}/")


async def begun_by(store: TaskStore, after: int, identities: Collection[str]) -> Mapping[str, dict[str, int]]:
    """What lost processes left of these samples: identity → label → the newest task's id, among ids above `after`.

    Waits, for half a minute at most, until no process has such a task any more.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + _WAIT_S
    while True:
        found, is_running = await asyncio.to_thread(_look, store, after, frozenset(identities))
        if not is_running or loop.time() > until:
            return found
        await asyncio.sleep(_LOOK_S)


def _look(store: TaskStore, after: int, identities: frozenset[str]) -> tuple[dict[str, dict[str, int]], bool]:
    found: dict[str, dict[str, int]] = {identity: {} for identity in identities}
    is_running = False
    for task in store.list():
        if task.id <= after:
            break
        label = "" if task.header is None else task.header.extra.get("labels", {}).get(SAMPLE_LABEL, "")
        identity = label.partition("/")[0]
        if identity in found:
            found[identity].setdefault(label, task.id)
            is_running |= task.status == "running"
    return found, is_running
