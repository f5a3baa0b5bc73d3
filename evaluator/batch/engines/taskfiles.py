"""Task files of samples that other machines evaluate: where they are written, and how they get into
the batch's folder.

A node that sees the batch's folder at the same path, and the locks that are held there, writes task
files straight into it, and another node resumes what a lost one has started. Any other node writes
them into a folder of its own, under ids that no other node uses, and sends them with each result,
byte for byte.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from evaluator import clock, disk, randomness
from evaluator.batch.work import sample_label
from evaluator.batch.work_items import WorkItem
from evaluator.errors import RecordNotWritten, advice_on
from evaluator.files.atomic import NEW_FILE, lock, remove_if_free, try_lock
from evaluator.files.open_below import open_private_folder
from evaluator.lazy_dataclass import frozen
from evaluator.record.segments import labels_of
from evaluator.record.store import TaskStore
from evaluator.store.owners import Owner

_PROBE = ".probe-"
IDS_EACH = 1_000_000_000
_FILE = re.compile(r"TASK-([0-9]{1,18})\.md")
_WAIT_S = 30.0
_LOOK_S = 0.1


@frozen
class Probe:
    """A file with random bytes in the folder of task files, locked by the process that made it."""

    path: str
    token: bytes

    def is_visible(self) -> bool:
        """Whether this machine sees the file, and that it is locked."""
        try:
            fd = disk.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if os.read(fd, 64) != self.token:
                return False
            return not try_lock(fd)
        except OSError:
            return False
        finally:
            disk.close(fd)


@contextmanager
def make_probe(folder: Path) -> Generator[Probe]:
    """A probe in `folder`, removed when the context ends. Removes those of killed processes.

    Raises: RecordNotWritten.
    """
    path = folder / f"{_PROBE}{randomness.token_hex(8)}"
    token = randomness.token_bytes(32)
    try:
        os.close(open_private_folder(folder))
        for stale in folder.glob(f"{_PROBE}*"):
            remove_if_free(stale)  # the process that makes one holds its lock
        fd = disk.open(path, NEW_FILE, 0o600)
    except OSError as error:
        raise _not_written(path, error) from error
    try:
        try:
            lock(fd)
            disk.write(fd, token)
        except OSError as error:
            raise _not_written(path, error) from error
        yield Probe(str(path), token)
    finally:
        # One that stays is removed by the next process.
        with suppress(OSError):
            disk.unlink(path)
        disk.close(fd)


def _not_written(path: Path, error: OSError) -> RecordNotWritten:
    return RecordNotWritten(f"{path}: cannot be written: {error.strerror}; {advice_on(error)}")


class OwnFolder:
    """A node's folder of task files, until they are sent. Ids start at `first_id` + 1."""

    def __init__(self, first_id: int) -> None:
        self.path = disk.make_temporary_folder("evaluator-tasks-")
        # A store continues from the highest number that it finds.
        done = Path(self.path, "done")
        disk.mkdir(done, 0o700)
        disk.close(disk.open(done / f"TASK-{first_id}.md", NEW_FILE, 0o600))
        self._seen: dict[int, tuple[str, int | None]] = {first_id: ("", None)}

    def take_files(self, store: TaskStore, work: WorkItem) -> list[tuple[int, bytes]]:
        """The ended task files of `work`, of its judges and of their subtasks, by id. They are
        deleted here.
        """
        done = self._ended()
        for number in done - self._seen.keys():
            header = store.read(number).header
            self._seen[number] = (
                sample_label(labels_of(header)),
                None if header is None else header.parent,
            )
        identity = work.identity.value
        wanted = {n for n in done if self._seen[n][0].partition("/")[0] == identity}
        while more := {n for n in done - wanted if self._seen[n][1] in wanted}:
            wanted |= more
        files = self._contents(wanted)
        for number in wanted:
            disk.unlink(self._path(number))
            del self._seen[number]
        return files

    def all_files(self) -> list[tuple[int, bytes]]:
        """All ended task files, by id."""
        return self._contents(self._ended() - self._seen.keys())

    def _ended(self) -> set[int]:
        names = os.listdir(Path(self.path, "done"))
        return {int(match[1]) for name in names if (match := _FILE.fullmatch(name))}

    def _contents(self, numbers: Collection[int]) -> list[tuple[int, bytes]]:
        return [(number, self._path(number).read_bytes()) for number in sorted(numbers)]

    def _path(self, number: int) -> Path:
        return Path(self.path, "done", f"TASK-{number}.md")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def store_files(folder: Path, files: Collection[tuple[int, bytes]]) -> None:
    """Writes received task files into the batch's folder, for their owner only; never over another
    file.

    Raises: OSError, if that fails.
    """
    done = folder / "done"
    for parent in (folder, done):
        os.close(open_private_folder(parent))
    for number, data in files:
        with disk.fdopen(disk.open(done / f"TASK-{number}.md", NEW_FILE, 0o600)) as file:
            file.write(data)


async def find_unrecorded(
    store: TaskStore, after: int, identities: Collection[str], owner: Owner | None
) -> Mapping[str, dict[str, int]]:
    """The tasks that lost processes left for these samples: identity → label → the newest task's
    id, among ids above `after`. Where tasks are packed, only those of the process `owner`.

    Waits, at most half a minute, until no process works on any of them.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + _WAIT_S
    while True:
        found, is_running = await asyncio.to_thread(
            _look, store, after, identities=identities, owner=owner if store.is_packed else None
        )
        if not is_running or loop.time() > until:
            return found
        await clock.sleep(_LOOK_S)


def _look(
    store: TaskStore, after: int, identities: Collection[str], owner: Owner | None
) -> tuple[dict[str, dict[str, int]], bool]:
    found: dict[str, dict[str, int]] = {identity: {} for identity in identities}
    is_running = False
    for task_id, status, labels in store.labelled(after, packed_by=owner):
        label = sample_label(labels)
        identity = label.partition("/")[0]
        if identity in found:
            newest = max(task_id, found[identity].get(label, 0))
            found[identity][label] = newest
            is_running |= status == "running"
    return found, is_running
