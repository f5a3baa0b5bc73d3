"""Tasks of several steps that people and models keep by hand: Markdown files `YYYY-MM-DD-name.md`.

They live beside the files of runs: in `active/` while there is something to do, in `done/` afterwards. Nothing is
deleted and no file takes another's place. Files are 0600, opened by the descriptor of their folder and never
through a link. A name stands for one file of the folder, whatever is in it.

A change replaces the whole file at once, under a lock that every process takes. Who changes a file in a role names
the version that the change is based on; where the file has become another one since, the change is refused. Someone
without a role may leave the version out, and then replaces whatever is there.

Line ends are written as line feeds; a byte order mark is dropped and a missing last line end added.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal

from evaluator.errors import RecordError, UsageError
from evaluator.record.folder import checked_folder
from evaluator.record.journal import CREATE_FLAGS
from evaluator.record.sections import Outline, TaskStep, check_new, check_update, read_outline, role_key

MAX_BYTES = 1_000_000
_DATED = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})-([a-z0-9][a-z0-9-]{0,99})")
_BEGINS_WITH_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(-|$)")
_BARE = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
_EXPECTED = "expected YYYY-MM-DD-name, or the name alone: lowercase letters, digits and hyphens, at most 100 of them"
_LOCK = ".named-lock"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a pipe of that name is refused, not waited for.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

State = Literal["active", "done"]


@dataclass(frozen=True, slots=True)
class NamedTask:
    """A task that is kept by hand, as its file was when it was read. `name` has the date and no `.md`.

    `version` stands for the exact bytes. `error` says why a file that is listed cannot be read; it then has no
    content, no steps and no version.
    """

    name: str
    path: Path
    state: State
    content: str = ""
    version: str = ""
    outline: Outline = Outline((), ())
    error: str | None = None

    @property
    def total(self) -> int:
        """How many steps there are."""
        return len(self.outline.steps)

    @property
    def done(self) -> int:
        """How many of them are done."""
        return sum(step.done for step in self.outline.steps)

    def next_step(self, role: str | None = None) -> TaskStep | None:
        """The first step that is not done; with `role`, the first of those that are this role's or everybody's."""
        return self.outline.next_step(role)

    def to_dict(self, role: str | None = None) -> dict[str, Any]:
        """All but the content, as JSON values. `next_of_role` is there where `role` is given."""
        shown: dict[str, Any] = {
            "name": self.name, "path": str(self.path), "state": self.state, "done": self.done, "total": self.total,
            "next": _step_dict(self.next_step()),
        }  # fmt: skip
        if role is not None:
            shown["next_of_role"] = _step_dict(self.next_step(role))
        return shown | ({"version": self.version} if self.error is None else {"error": self.error})


class NamedTasks:
    """The tasks kept by hand under `root`, the folder that the files of runs are in.

    Holds no descriptor between calls; safe to share between threads. The folders are made by the first `create`.
    Every method raises RecordError where the folder or a file is a link, is not ours, or cannot be read or written.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def list_active(self) -> list[NamedTask]:
        """The tasks in `active/` by name, the oldest date first; unreadable ones with their `error`."""
        with _existing(self.root, "active") as folder:
            names = sorted(_names(folder))
            found = [self._try(folder, name) for name in names]
        return [task for task in found if task is not None]

    def read(self, name: str) -> NamedTask:
        """A task, the active one first. `name` with its date, or without where one active task alone has it.

        Raises: UsageError, for what is no name, or is one of several. RecordError, if there is no such task.
        """
        full = self._resolve(name)
        for state in ("active", "done"):
            with _existing(self.root, state) as folder, contextlib.suppress(FileNotFoundError):
                if folder is not None:
                    return self._read(folder, full, state)
        raise self._missing(full)

    def create(self, name: str, content: str, *, role: str | None = None, today: date | None = None) -> NamedTask:
        """A new task. A name without a date gets today's (UTC), or `today`.

        A `role` may lay out sections for other roles, but mark no step as done in their name.

        Raises: UsageError, if there is a task of that name, active or done, or the content is empty, larger than
        MAX_BYTES, or no text (a NUL, half a surrogate pair).
        """
        full = _dated(name) or f"{(today or datetime.now(UTC).date()).isoformat()}-{_bare(name)}"
        data, outline = _checked_content(content)
        if role is not None:
            check_new(outline, _checked_role(role))
        with self._locked() as (active, done):
            for state, folder in (("active", active), ("done", done)):
                if _exists(folder, full):
                    raise UsageError(f"there is a task {full!r} already, in {state}/; take another name")
            self._put(active, full, data, new=True)
        return self._task(full, "active", data, outline)

    def update(self, name: str, content: str, *, role: str | None = None, if_unchanged: str | None = None) -> NamedTask:
        """Replaces the text of an active task.

        With `if_unchanged` (the `version` that `read` gave) only if the file is still that one; a `role` has to give
        it. A role may change its own sections and those without a role; all others stay as they are, see
        `sections.check_update`.

        Raises: UsageError, for content that is refused, as by `create`, or changes a section of another role.
        RecordError, if there is no such active task or its file has changed since.
        """
        data, outline = _checked_content(content)
        if role is not None:
            _checked_role(role)
            if if_unchanged is None:
                raise UsageError("a change in a role needs the version that it is based on; read the task first")
        full = self._resolve(name)
        with self._locked() as (active, done):
            before = self._active(active, done, full)
            if if_unchanged is not None and if_unchanged != before.version:
                raise RecordError(
                    f"{before.path}: the task has been changed since it was read: it is version {before.version} now, "
                    f"not {if_unchanged[:64]!r}; read it again and make the change to that text"
                )
            if role is not None:
                check_update(before.outline, outline, role)
            self._put(active, full, data, new=False)
        return self._task(full, "active", data, outline)

    def close(self, name: str, *, role: str | None = None, force: bool = False) -> NamedTask:
        """Moves an active task from `active/` to `done/`.

        `force` leaves open steps behind; a `role` may leave only its own and everybody's.

        Raises: UsageError, while steps are open, with the first of them, or if `done/` has a task of that name.
        RecordError, if there is no such active task.
        """
        if role is not None:
            _checked_role(role)
        full = self._resolve(name)
        with self._locked() as (active, done):
            task = self._active(active, done, full)
            left = [step for step in task.outline.steps if not step.done]
            if force:
                left = [s for s in left if s.role and role and role_key(s.role) != role_key(role)]
            if left:
                raise UsageError(f"{full} is not done: {_count(len(left))} open, the first at {str(left[0])[:500]}")
            if _exists(done, full):
                raise UsageError(f"{full}: done/ has a task of that name already; rename one of the two files")
            try:
                os.rename(f"{full}.md", f"{full}.md", src_dir_fd=active, dst_dir_fd=done)
            except OSError as error:
                raise RecordError(f"{task.path}: cannot be moved to done/: {error.strerror}") from error
        return replace(task, state="done", path=self._path(full, "done"))

    def _resolve(self, name: str) -> str:
        """The dated name that is meant."""
        full = _dated(name)
        if full is not None:
            if not self.root.exists():
                # Nothing to lock: a folder is made by `create` alone.
                raise self._missing(full)
            return full
        bare = _bare(name)
        with _existing(self.root, "active") as folder:
            found = sorted(full for full in _names(folder) if full[11:] == bare)
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"{len(found)} active tasks are called {bare!r}; name one: {', '.join(found[:10])}")
        raise RecordError(
            f"{self.root}: no active task is called {bare!r}; give a finished one its date. See: {self._see()}"
        )

    def _active(self, active: int, done: int, full: str) -> NamedTask:
        try:
            return self._read(active, full, "active")
        except FileNotFoundError:
            if _exists(done, full):
                closed = f"{self._path(full, 'done')}: the task is closed and stays as it is; create another one"
                raise RecordError(closed) from None
            raise self._missing(full) from None

    def _missing(self, full: str) -> RecordError:
        return RecordError(f"{self.root}: there is no task {full!r}; see: {self._see()}")

    def _see(self) -> str:
        return f"evaluator tasks list-active --tasks {self.root}"

    def _path(self, full: str, state: State) -> Path:
        return self.root / state / f"{full}.md"

    def _try(self, folder: int | None, full: str) -> NamedTask | None:
        assert folder is not None
        try:
            return self._read(folder, full, "active")
        except FileNotFoundError:
            return None  # closed since the folder was listed
        except RecordError as error:
            return NamedTask(full, self._path(full, "active"), "active", error=str(error))

    def _read(self, folder: int, full: str, state: State) -> NamedTask:
        """Raises FileNotFoundError too."""
        path = self._path(full, state)
        try:
            fd = os.open(f"{full}.md", _FILE, dir_fd=folder)
            with open(fd, "rb") as file:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise RecordError(f"{path}: not a regular file")
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            raise
        except OSError as error:
            why = "it is a link, which is never followed" if path.is_symlink() else error.strerror
            raise RecordError(f"{path}: cannot read the task: {why}") from error
        if len(data) > MAX_BYTES:
            raise RecordError(f"{path}: larger than {MAX_BYTES:,} bytes; split the task")
        try:
            text = _with_line_feeds(data.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise RecordError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error
        if "\0" in text:
            raise RecordError(f"{path}: holds a NUL (byte {data.index(0)}) and is no text; repair it by hand")
        return self._task(full, state, data, read_outline(text), text)

    def _task(self, full: str, state: State, data: bytes, outline: Outline, text: str | None = None) -> NamedTask:
        version = hashlib.sha256(data).hexdigest()[:16]
        return NamedTask(
            full, self._path(full, state), state, data.decode("utf-8") if text is None else text, version, outline
        )

    def _put(self, folder: int, full: str, data: bytes, *, new: bool) -> None:
        """The file whole or not at all, under the lock."""
        name, temporary = f"{full}.md", f".{full}.md.tmp"
        try:
            with contextlib.suppress(FileNotFoundError):
                # Nobody else is writing now: what is there was left by a process that was killed.
                os.unlink(temporary, dir_fd=folder)
            try:
                with open(os.open(temporary, CREATE_FLAGS, 0o600, dir_fd=folder), "wb") as file:
                    file.write(data)
                if new:
                    # Unlike a rename, a link never takes the place of a file that an editor put there meanwhile.
                    os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                else:
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
        except OSError as error:
            raise RecordError(f"{self._path(full, 'active')}: cannot write the task: {error.strerror}") from error

    @contextlib.contextmanager
    def _locked(self) -> Generator[tuple[int, int]]:
        """The two folders, made and checked, while no other process or thread changes a task."""
        with contextlib.ExitStack() as open_files:

            def keep(fd: int) -> int:
                open_files.callback(os.close, fd)
                return fd

            root = keep(checked_folder(self.root))
            active = keep(checked_folder(self.root / "active"))
            done = keep(checked_folder(self.root / "done"))
            try:
                # A file of its own: some network file systems lock no folder.
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                lock = keep(os.open(_LOCK, flags, 0o600, dir_fd=root))
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                raise RecordError(f"{self.root / _LOCK}: cannot be locked: {error.strerror}") from error
            yield active, done


@contextlib.contextmanager
def _existing(root: Path, state: State) -> Generator[int | None]:
    """A folder for reading, None where there is none yet."""
    fd = None
    try:
        above = os.open(root, _FOLDER)
        try:
            fd = os.open(state, _FOLDER, dir_fd=above)
        finally:
            os.close(above)
    except FileNotFoundError:
        pass
    except OSError as error:
        path = next((path for path in (root, root / state) if path.is_symlink()), None)
        if path is not None:
            raise RecordError(f"{path}: the task folder is a link; name the folder that it leads to") from error
        raise RecordError(f"{root / state}: cannot read the task folder: {error.strerror}") from error
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _names(folder: int | None) -> Iterator[str]:
    if folder is None:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name.removesuffix(".md")
            if name != entry.name and _DATED.fullmatch(name) and _is_date(name[:10]):
                yield name


def _exists(folder: int, full: str) -> bool:
    """Whether anything has that name, a link that leads nowhere too."""
    try:
        os.stat(f"{full}.md", dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _dated(name: object) -> str | None:
    """The name where it has a date; None where it may be one without.

    Raises: UsageError, for a date that there is not, or a date without a name.
    """
    if not isinstance(name, str):
        raise UsageError(f"{name!r} is no name of a task; {_EXPECTED}")
    text = name.removesuffix(".md")
    if not _BEGINS_WITH_DATE.match(text):
        return None
    if not _DATED.fullmatch(text) or not _is_date(text[:10]):
        raise UsageError(f"{name[:200]!r} is no name of a task; {_EXPECTED}")
    return text


def _bare(name: str) -> str:
    text = name.removesuffix(".md")
    if re.fullmatch(r"TASK-[0-9]+", text, re.IGNORECASE):
        raise UsageError(f"{name[:200]!r} is the file of a run (see: evaluator tasks show); {_EXPECTED}")
    if not _BARE.fullmatch(text):
        raise UsageError(f"{name[:200]!r} is no name of a task; {_EXPECTED}")
    return text


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _checked_role(role: str) -> str:
    if not role.strip():
        raise UsageError("the role is empty; leave it out, or give the one that stands in the headings")
    return role


def _checked_content(content: str) -> tuple[bytes, Outline]:
    text = _with_line_feeds(content)
    if not text.strip():
        raise UsageError("the text of the task is empty; give the whole text")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(f"line {line} of the text holds a NUL character; take it out")
    if not text.endswith("\n"):
        text += "\n"
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise UsageError(f"line {line} of the text holds half a surrogate pair, which is no character") from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"the text has {len(data):,} bytes, more than {MAX_BYTES:,}; split the task")
    return data, read_outline(text)


def _with_line_feeds(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _step_dict(step: TaskStep | None) -> dict[str, Any] | None:
    if step is None:
        return None
    return {"line": step.line, "text": step.text, "section": step.section, "role": step.role}


def _count(steps: int) -> str:
    return "1 step is" if steps == 1 else f"{steps} steps are"
