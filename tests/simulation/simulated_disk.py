"""A disk below `evaluator.disk` that keeps what was written apart from what is certain to stay.

The files are real ones in memory (`/dev/shm`), so that reading needs no simulation. Each change is
logged. At a loss of power the files are made again from what was synced, and of the rest a random
part, by one of the rules of `Loss`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any, Literal

PAGE = 512
MARK = re.compile(r"ANS-[0-9a-f]{16}|FX\[[a-z0-9-]+\]")
SUBTASK = "SUBTASK-"
# Also before it has its name; not a torn end that is set aside.
_TASK_FILE = re.compile(r"\.md(?:\.[0-9a-f]{16}\.tmp)?$")
# The ends of steps in a task file, and in a frame of a segment.
_END = re.compile(rb'<!-- (?:end|note) |\["(?:end|note)",[0-9]+,')
_SUBTASK = re.compile(
    rb'(?:: subtask <!-- begin .*?|"subtask","[^"]*",\{[^{}]*?)"task_id": ?([0-9]+)', re.DOTALL
)
_RESULT = re.compile(rb'"identity":"([0-9a-f]{32})"')

LAST = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 60_000) - 64
# Where possible above the descriptors of other tests, some of which open a thousand connections.
FIRST = 4096 if LAST > 8192 else 256
_STARTS = cycle(range(FIRST, LAST, 61))

DISK_FUNCTIONS = (
    *("open", "close", "dup", "write", "pwrite", "ftruncate", "fsync", "fdatasync"),
    *("rename", "link", "unlink", "mkdir", "fdopen", "make_temporary_folder"),
)
"""The functions of `evaluator.disk` that `SimulatedDisk` replaces."""

How = Literal["before", "half", "after"]


class Dead(BaseException):
    """The process was killed."""


@dataclass(frozen=True)
class Loss:
    """What a loss of power does to what was not synced.

    `names`: "ordered" as ext4, where each sync makes all earlier changes of names certain and the
    others are lost from the end; "folders", where a sync of a folder makes its own names certain;
    "none", where also a file's name is certain only by its folder, and any other subset is lost.
    `data`: the writes that stay are the first ones ("prefix"), any ("any"), or all with some pages
    zero ("zero").
    """

    names: Literal["ordered", "folders", "none"]
    data: Literal["prefix", "any", "zero"]


@dataclass(eq=False)
class Inode:
    writes: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: cut at the offset
    synced: int = 0
    answers: list[tuple[int, frozenset[str]]] = field(default_factory=list)


@dataclass
class NameChange:
    kind: Literal["create", "rename", "unlink", "folder"]
    path: str
    target: str
    inode: Inode | None
    is_certain: bool = False

    def is_in(self, folder: str) -> bool:
        return folder in (os.path.dirname(self.path), os.path.dirname(self.target))


@dataclass(eq=False)
class Life:
    """What the disk knows of one process. It is killed at its change number `crash_at`, or from there on
    each of its writes fails with the error `fails`.
    """

    crash_at: int | None = None
    how: How = "before"
    fails: int = 0
    changes: int = 0
    is_dead: bool = False


LIFE: ContextVar[Life | None] = ContextVar("LIFE", default=None)
"""The process that runs, where several do in one loop."""


class SimulatedDisk:
    """Its public methods replace the functions of `evaluator.disk`.

    `written` are the answers and results whose records were written, and `recorded` those whose
    records no loss of power can take.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._next = next(_STARTS)
        self._ended: set[int] = set()
        self._folders = 0
        self.generation = 0
        self.recorded: set[str] = set()
        self.written: set[str] = set()
        self.begin_disk()
        self.begin_process(None, "before")

    def begin_disk(self) -> None:
        """What is on the disk now is certain."""
        self._inodes: dict[str, Inode] = {}
        self._names: list[NameChange] = []
        self._synced_names = 0
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    self._inodes[path] = Inode([(0, file.read())], synced=1)
        self._certain = dict(self._inodes)
        self._certain_folders = {folder for folder, _, _ in os.walk(self.root)}

    def begin_process(self, crash_at: int | None, how: How, fails: int = 0) -> None:
        self._only = Life(crash_at, how, fails)
        self._open: dict[int, str] = {}
        self._opened_by: dict[int, Life] = {}

    @property
    def life(self) -> Life:
        return LIFE.get() or self._only

    @property
    def is_dead(self) -> bool:
        return self.life.is_dead

    @property
    def changes(self) -> int:
        return self.life.changes

    # -- what happens at each change ---------------------------------------------------------------

    def change(self, do: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        life = self.life
        if life.is_dead:
            raise Dead
        life.changes += 1
        if life.crash_at is None or life.changes < life.crash_at:
            return do()
        if life.fails:
            raise OSError(life.fails, os.strerror(life.fails))
        life.is_dead = True
        if life.how == "half" and half is not None:
            half()
        elif life.how == "after":
            do()
        raise Dead

    def end_process(self) -> None:
        """Closes what the process had open, which releases its locks."""
        life = self.life
        for descriptor in [each for each in self._open if self._opened_by[each] is life]:
            os.close(descriptor)
            self._ended.add(descriptor)
            del self._open[descriptor]

    def _path(self, path: Any, dir_fd: int | None) -> str:
        text = os.fspath(path)
        if dir_fd is not None and not text.startswith("/"):
            text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
        return os.path.abspath(text)

    # -- the functions -----------------------------------------------------------------------------

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        whole = self._path(path, dir_fd)
        if self.is_dead:
            raise Dead
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return os.open(path, flags, mode, dir_fd=dir_fd)
        if not flags & os.O_CREAT or os.path.lexists(whole):
            descriptor = os.open(path, flags & ~os.O_TRUNC, mode, dir_fd=dir_fd)
            descriptor = self._keep(descriptor, whole)
            if flags & os.O_TRUNC:
                self.ftruncate(descriptor, 0)
            return descriptor

        def create() -> int:
            descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
            self.created(whole)
            return self._keep(descriptor, whole)

        return self.change(create)

    def created(self, path: str) -> None:
        """Notes a new file."""
        inode = Inode()
        self._inodes[path] = inode
        self._names.append(NameChange("create", path, path, inode))

    def removed(self, path: str) -> None:
        """Notes that a name is gone."""
        self._names.append(NameChange("unlink", path, path, self._inodes.pop(path)))

    def inode_of(self, path: str) -> Inode:
        return self._inodes[path]

    def _keep(self, descriptor: int, path: str) -> int:
        """A number that no process of this disk had before: a dead one's objects may still close theirs."""
        self._next = FIRST if self._next >= LAST else self._next + 1
        unique = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, self._next)
        os.close(descriptor)
        # Another number was in use.
        self._next = unique
        self._open[unique] = path
        self._opened_by[unique] = self.life
        return unique

    def close(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        if descriptor not in self._ended:
            os.close(descriptor)

    def dup(self, descriptor: int) -> int:
        return self._keep(os.dup(descriptor), self._open[descriptor])

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        data = bytes(data)
        path = self._open[descriptor]
        inode = self._inodes[path]
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND:
            offset = os.fstat(descriptor).st_size

        def write(part: bytes) -> int:
            written = os.pwrite(descriptor, part, offset)
            inode.writes.append((offset, part))
            answers = _answers_in(path, part) if len(part) == len(data) else None
            if answers:
                inode.answers.append((len(inode.writes), answers))
                self.written |= answers
            return written

        return self.change(lambda: write(data), lambda: write(data[: len(data) // 2]))

    def write(self, descriptor: int, data: bytes) -> int:
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        written = self.pwrite(descriptor, data, offset)
        os.lseek(descriptor, offset + written, os.SEEK_SET)
        return written

    def ftruncate(self, descriptor: int, size: int) -> None:
        inode = self._inodes[self._open[descriptor]]

        def cut() -> None:
            os.ftruncate(descriptor, size)
            inode.writes.append((size, None))

        self.change(cut)

    def fsync(self, descriptor: int) -> None:
        path = self._open.get(descriptor)
        if path is None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.change(lambda: self.synced(path))

    fdatasync = fsync

    def synced(self, path: str) -> None:
        """Notes that a file or the names in a folder are certain."""
        inode = self._inodes.get(path)
        if inode is None:  # a folder
            for change in self._names:
                if not change.is_certain and change.is_in(path):
                    change.is_certain = True
        else:
            inode.synced = len(inode.writes)
        # As a program may rely on it: an answer is kept once its file and the file's name are.
        for name, each in self._inodes.items():
            if each.answers and each.answers[0][0] <= each.synced and self._is_named(name):
                for at, answers in each.answers:
                    if at <= each.synced:
                        self.recorded |= answers
                each.answers = [(at, answers) for at, answers in each.answers if at > each.synced]
        self._synced_names = len(self._names)

    def _is_named(self, path: str) -> bool:
        """Whether a file's name is certain, wherever it was moved since."""
        inode = self._inodes[path]
        return inode in self._certain.values() or any(
            change.is_certain and change.inode is inode for change in self._names
        )

    def rename(
        self, a: Any, b: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        source = self._path(a, src_dir_fd)
        target = self._path(b, dst_dir_fd)

        def move() -> None:
            os.rename(source, target)
            if os.path.isdir(target):
                self._moved_folder(source, target)
                return
            inode = self._inodes.pop(source)
            self._inodes[target] = inode
            self._names.append(NameChange("rename", source, target, inode))
            for descriptor, path in self._open.items():
                if path == source:
                    self._open[descriptor] = target

        self.change(move)

    def _moved_folder(self, source: str, target: str) -> None:
        """Notes that a folder made since the last loss of power has another name. Until that is certain, a loss of
        power takes the folder.
        """

        def moved(path: str) -> str:
            return target + path.removeprefix(source) if path_in(path, source) else path

        self._inodes = {moved(path): inode for path, inode in self._inodes.items()}
        self._open = {descriptor: moved(path) for descriptor, path in self._open.items()}
        for change in self._names:
            change.path = moved(change.path)
            change.target = moved(change.target)
        (made,) = (each for each in self._names if each.path == source)
        if self._names.index(made) < self._synced_names:
            self._synced_names -= 1
        self._names.remove(made)
        self._names.append(NameChange("folder", target, target, None))

    def make_temporary_folder(self, prefix: str, parent: Any = None) -> str:
        self._folders += 1
        path = f"{os.fspath(parent or self.root)}/{prefix}{self._folders}"
        self.mkdir(path, 0o700)
        return path

    def link(
        self,
        a: Any,
        b: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        **_: Any,
    ) -> None:
        source = self._path(a, src_dir_fd)
        target = self._path(b, dst_dir_fd)

        def add() -> None:
            os.link(source, target)
            inode = self._inodes[target] = self._inodes[source]
            self._names.append(NameChange("create", target, target, inode))

        self.change(add)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        whole = self._path(path, dir_fd)

        def remove() -> None:
            os.unlink(whole)
            self.removed(whole)

        self.change(remove)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        whole = self._path(path, dir_fd)

        def make() -> None:
            os.mkdir(whole, mode)
            self._names.append(NameChange("folder", whole, whole, None))

        self.change(make)

    def fdopen(self, descriptor: int, mode: str = "wb") -> Any:
        return _File(self, descriptor)

    # -- a loss of power ---------------------------------------------------------------------------

    def lose_power(self, random: Random, loss: Loss) -> None:
        """Makes the files as they are after a loss of power."""
        names, folders = self._names_after(random, loss)
        of_inode: dict[Inode, bytes] = {}
        for inode in names.values():
            if inode not in of_inode:
                of_inode[inode] = _content_after(inode, random, loss)
        contents = {path: of_inode[inode] for path, inode in names.items()}
        shutil.rmtree(self.root)
        for folder in sorted(folders):
            os.makedirs(folder, 0o700, exist_ok=True)
        for path, content in contents.items():
            if os.path.dirname(path) in folders:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
                os.write(descriptor, content)
                os.close(descriptor)
        self.begin_disk()

    def _names_after(self, random: Random, loss: Loss) -> tuple[dict[str, Inode], set[str]]:
        certain = [change.is_certain for change in self._names]
        if loss.names == "ordered":
            kept_to = random.randint(self._synced_names, len(self._names))
            kept = [place < kept_to for place in range(len(self._names))]
        else:
            share = random.choice([0.0, 0.5, 1.0])
            kept = [each or random.random() < share for each in certain]
            if loss.names == "folders":
                # A file that was synced has its name.
                for place, change in enumerate(self._names):
                    if change.kind == "create" and change.inode is not None and change.inode.synced:
                        kept[place] = True
            self._keep_what_others_need(kept, certain)
        names = dict(self._certain)
        folders = set(self._certain_folders)
        for change, is_kept in zip(self._names, kept, strict=True):
            if not is_kept:
                continue
            if change.kind == "folder":
                folders.add(change.path)
            elif change.kind == "create":
                names[change.path] = change.inode  # type: ignore[assignment]
            elif change.kind == "rename":
                names.pop(change.path, None)
                names[change.target] = change.inode  # type: ignore[assignment]
            else:
                names.pop(change.path, None)
        # What is in a folder that is lost is lost.
        folders = {
            each
            for each in folders
            if all(
                above in folders
                for above in map(str, Path(each).parents)
                if above.startswith(self.root)
            )
        }
        return names, folders

    def _keep_what_others_need(self, kept: list[bool], certain: list[bool]) -> None:
        """A change of a name includes the earlier ones of the same file and name."""
        for place in range(len(self._names) - 1, -1, -1):
            if not certain[place] and not kept[place]:
                continue
            change = self._names[place]
            for before in range(place):
                other = self._names[before]
                is_same_file = other.inode is not None and other.inode is change.inode
                if is_same_file or {other.path, other.target} & {change.path, change.target}:
                    kept[before] = True


def _content_after(inode: Inode, random: Random, loss: Loss) -> bytes:
    content = bytearray()

    def write(offset: int, data: bytes | None) -> None:
        size = offset + (0 if data is None else len(data))
        if len(content) < size:
            content.extend(bytes(size - len(content)))
        if data is None:
            del content[offset:]
        else:
            content[offset:size] = data

    for offset, data in inode.writes[: inode.synced]:
        write(offset, data)
    rest = inode.writes[inode.synced :]
    if loss.data == "prefix":
        count = random.randint(0, len(rest))
        for offset, data in rest[:count]:
            write(offset, data)
        if count < len(rest) and rest[count][1]:
            offset, data = rest[count]
            assert data is not None
            write(offset, data[: random.randint(0, len(data))])
    elif loss.data == "any":
        share = random.choice([0.3, 0.7, 0.95])
        for offset, data in rest:
            if data is None or random.random() < share:
                write(offset, data)
    else:
        before = len(content)
        for offset, data in rest:
            write(offset, data)
        first = -(-before // PAGE) * PAGE
        share = random.choice([0.2, 1.0])
        for page in range(first, len(content), PAGE):
            if random.random() < share:
                end = min(page + PAGE, len(content))
                content[page:end] = bytes(end - page)
    return bytes(content)


def _answers_in(path: str, part: bytes) -> frozenset[str]:
    """The answers whose records a write completes, the subtasks that it names, and the results of a batch."""
    if _TASK_FILE.search(path):
        found = {f"{SUBTASK}{number.decode()}" for number in _SUBTASK.findall(part)}
        if _END.search(part):
            found.update(MARK.findall(part.decode("utf-8", "replace")))
        return frozenset(found)
    if "results.jsonl" in path:
        return frozenset(f"RESULT-{found.decode()}" for found in _RESULT.findall(part))
    return frozenset()


class _File:
    """What `disk.fdopen` returns: unbuffered, so that each write is a change."""

    def __init__(self, disk: SimulatedDisk, descriptor: int) -> None:
        self._disk = disk
        self._descriptor = descriptor

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._disk.close(self._descriptor)

    def write(self, data: bytes) -> int:
        return self._disk.write(self._descriptor, data)

    def writelines(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self.write(line)

    def fileno(self) -> int:
        return self._descriptor

    def flush(self) -> None:
        pass


DISK_FULL = errno.ENOSPC
DISK_FAILS = errno.EIO


def path_in(path: str, root: str) -> bool:
    return path.startswith(f"{root}/")
