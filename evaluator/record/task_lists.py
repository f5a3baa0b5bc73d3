"""Task lists: plans of several steps, as Markdown files `YYYY-MM-DD-name.md` that people and models
edit.

They are beside the files of runs: in `active/` while there is something to do, in `done/`
afterwards. Nothing is deleted and no file replaces another. Files are 0600, opened by the
descriptor of their folder and never through a link. A name identifies one file of the folder,
whatever it contains.

The role that creates a task list owns it: its text names that role, and only it changes the list.
Other roles read it. A list that names no owner, and a caller without a role (a person), have no
such restriction.

A change replaces the whole file at once, under a lock that every process takes. A change in a role
names the version that it is based on; if the file has changed since, it is refused. A change
without a role may leave the version out, and then replaces any version.

Line ends are written as line feeds; a byte order mark is dropped and a missing last line end added.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Generator, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, Literal

from evaluator import clock, disk
from evaluator.errors import RecordError, UsageError
from evaluator.files.atomic import NEW_FILE, locked_file, write_atomic
from evaluator.files.open_below import open_private_folder
from evaluator.lazy_dataclass import frozen
from evaluator.record.task_list_outline import (
    MAX_BYTES,
    Outline,
    TaskStep,
    checked_content,
    is_dated,
    parse_name,
    read_outline,
    role_key,
    with_line_feeds,
    with_owner,
)

_LOCK = ".named-lock"
_MAX_OPEN_SHOWN = 5
# The folders are committed to git with their task lists: empty ones too, and without the files that
# only this machine needs.
_KEEP = ".gitkeep"
_IGNORE = ".gitignore"
_IGNORED = (
    b"# Written by evaluator: files that only this machine "
    b"needs.\n.named-lock\n.last-id\n.*.tmp\n.gitignore\n"
)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a pipe of that name is refused, not waited for.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

ListState = Literal["active", "done"]


@frozen
class TaskList:
    """A task list as its file was when it was read. `name` has the date and no `.md`.

    `version` identifies the exact bytes. `error` is why a file in the list cannot be read; it then
    has no content, no steps and no version.
    """

    name: str
    path: Path
    state: ListState
    content: str = ""
    version: str = ""
    outline: Outline = Outline()
    error: str | None = None

    @property
    def total(self) -> int:
        """How many steps there are."""
        return len(self.outline.steps)

    @property
    def done(self) -> int:
        """How many steps are done."""
        return sum(step.done for step in self.outline.steps)

    @property
    def owner(self) -> str | None:
        """The role that may change it; None where the text names none."""
        return self.outline.owner

    def next_step(self, role: str | None = None) -> TaskStep | None:
        """The first step that is not done; with `role`, the first that this role or any role
        does.
        """
        return self.outline.next_step(role)

    def to_dict(self, role: str | None = None) -> dict[str, Any]:
        """All except the content, as JSON values; `next_of_role` only where `role` is given."""
        shown: dict[str, Any] = {
            "name": self.name,
            "path": str(self.path),
            "state": self.state,
            "owner": self.owner,
            "done": self.done,
            "total": self.total,
            "next": _step_dict(self.next_step()),
        }
        if role is not None:
            shown["next_of_role"] = _step_dict(self.next_step(role))
        return shown | ({"version": self.version} if self.error is None else {"error": self.error})


class TaskLists:
    """The task lists below `root`, the folder that the files of runs are in.

    Keeps no descriptor open between calls; safe to share between threads. The folders are made by
    the first `create`. Every method raises RecordError where the folder or a file is a link, is not
    ours, or cannot be read or written.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def list_active(self) -> list[TaskList]:
        """The tasks in `active/` by name, the oldest date first; unreadable ones with their
        `error`.
        """
        with _existing(self.root, "active") as folder:
            if folder is None:
                return []
            found = [self._try(folder, name) for name in sorted(_names(folder))]
        return [task for task in found if task is not None]

    def read(self, name: str) -> TaskList:
        """A task, the active one first. `name` with its date, or without where one active task
        alone has it.

        Raises: UsageError, for an invalid or an ambiguous name. RecordError, if there is no such
        task.
        """
        full = self._resolve(name)
        for state in ("active", "done"):
            with _existing(self.root, state) as folder, contextlib.suppress(FileNotFoundError):
                if folder is not None:
                    return self._read(folder, full, state=state)
        raise self._missing(full)

    def name_at(self, path: Path) -> str | None:
        """The name of the task list whose file `path` is, or was before it was closed; None for any
        other path.
        """
        place = Path(os.path.abspath(path))
        if (
            place.suffix != ".md"
            or not is_dated(place.stem)
            or place.parent.name not in ("active", "done")
        ):
            return None
        if place.parent.parent == Path(os.path.abspath(self.root)):
            return place.stem
        return None

    def create(
        self, name: str, content: str, *, role: str | None = None, today: date | None = None
    ) -> TaskList:
        """A new task. A name without a date gets today's (UTC), or `today`.

        A `role` owns the new task: where the text names no owner, a line that names it is added
        below the title.

        Raises: UsageError, if there is a task of that name, active or done, the text names another
        role as its owner, or the content is empty, larger than MAX_BYTES, or not text (a NUL, half
        a surrogate pair).
        """
        full, bare = parse_name(name)
        full = full or f"{(today or clock.now().date()).isoformat()}-{bare}"
        if role is not None:
            checked_content(content)
            content = _owned(content, _checked_role(role))
        data = checked_content(content)
        with self._locked() as (root, active, done):
            self._prepare_for_git(root, active, done=done)
            for state, folder in (("active", active), ("done", done)):
                if _exists(folder, full):
                    raise UsageError(
                        f"there is a task {full!r} already, in {state}/; take another name"
                    )
            self._put(active, full, data=data, new=True)
        return self._task(full, "active", data=data)

    def update(
        self, name: str, content: str, *, role: str | None = None, if_unchanged: str | None = None
    ) -> TaskList:
        """Replaces the text of an active task.

        With `if_unchanged` (the `version` that `read` gave) only if the file is still that one; a
        `role` has to give it. The owner stays the same: a line that names it is added where the new
        text lacks it.

        Raises: UsageError, if another role owns the task, or for content that is refused, as by
        `create`. RecordError, if there is no such active task or its file has changed since.
        """
        checked_content(content)
        if role is not None:
            _checked_role(role)
            if if_unchanged is None:
                raise UsageError(
                    "a change in a role needs the version that it is based on; read the task first"
                )
        full = self._resolve(name)
        with self._locked() as (_, active, done):
            before = self._active(active, done, full=full)
            _check_owner(before, role)
            if if_unchanged is not None and if_unchanged != before.version:
                raise RecordError(
                    f"{before.path}: the task has been changed since it was read: its version is "
                    f"now {before.version}, "
                    f"not {if_unchanged[:64]!r}; read it again and make the change to that text"
                )
            data = checked_content(content if role is None else _owned(content, before.owner))
            self._put(active, full, data=data, new=False)
        return self._task(full, "active", data=data)

    def close(self, name: str, *, role: str | None = None, force: bool = False) -> TaskList:
        """Moves an active task from `active/` to `done/`.

        `force` closes it although steps are open.

        Raises: UsageError, while steps are open, with the first of them, if another role owns the
        task, or if `done/` has a task of that name. RecordError, if there is no such active task.
        """
        if role is not None:
            _checked_role(role)
        full = self._resolve(name)
        with self._locked() as (_, active, done):
            task = self._active(active, done, full=full)
            _check_owner(task, role)
            if force:
                left = []
            else:
                left = [step for step in task.outline.steps if not step.done]
            if left:
                shown = "; ".join(str(step)[:500] for step in left[:_MAX_OPEN_SHOWN])
                if len(left) > _MAX_OPEN_SHOWN:
                    more = f"; and {len(left) - _MAX_OPEN_SHOWN} more"
                else:
                    more = ""
                raise UsageError(f"{full} is not done: {_count(len(left))} open: {shown}{more}")
            if _exists(done, full):
                raise UsageError(
                    f"{full}: done/ has a task of that name already; rename one of the two files"
                )
            try:
                disk.rename(f"{full}.md", f"{full}.md", src_dir_fd=active, dst_dir_fd=done)
            except OSError as error:
                raise RecordError(
                    f"{task.path}: cannot be moved to done/: {error.strerror}"
                ) from error
        return replace(task, state="done", path=self._path(full, "done"))

    def _resolve(self, name: str) -> str:
        """The dated name that `name` means."""
        full, bare = parse_name(name)
        if full is not None:
            if not self.root.exists():
                # Only `create` makes a folder.
                raise self._missing(full)
            return full
        with _existing(self.root, "active") as folder:
            if folder is None:
                found = []
            else:
                found = sorted(full for full in _names(folder) if full[11:] == bare)
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(
                f"{len(found)} active tasks are called {bare!r}; name one: {', '.join(found[:10])}"
            )
        raise RecordError(
            f"{self.root}: no active task is called {bare!r}; give a finished one its date. See: "
            f"{self._see()}"
        )

    def _active(self, active: int, done: int, full: str) -> TaskList:
        try:
            return self._read(active, full, state="active")
        except FileNotFoundError:
            if _exists(done, full):
                closed = (
                    f"{self._path(full, 'done')}: the task is closed and cannot be changed; "
                    "create another one"
                )
                raise RecordError(closed) from None
            raise self._missing(full) from None

    def _missing(self, full: str) -> RecordError:
        return RecordError(f"{self.root}: there is no task {full!r}; see: {self._see()}")

    def _see(self) -> str:
        return f"evaluator tasks list-active --tasks {self.root}"

    def _path(self, full: str, state: ListState) -> Path:
        return self.root / state / f"{full}.md"

    def _try(self, folder: int, full: str) -> TaskList | None:
        try:
            return self._read(folder, full, state="active")
        except FileNotFoundError:
            return None  # closed since the folder was listed
        except RecordError as error:
            return TaskList(full, self._path(full, "active"), state="active", error=str(error))

    def _read(self, folder: int, full: str, state: ListState) -> TaskList:
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
            if path.is_symlink():
                why = "it is a link, and links are never followed"
            else:
                why = error.strerror
            raise RecordError(f"{path}: cannot read the task: {why}") from error
        if len(data) > MAX_BYTES:
            raise RecordError(f"{path}: larger than {MAX_BYTES:,} bytes; split the task")
        try:
            text = with_line_feeds(data.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise RecordError(
                f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8"
            ) from error
        if "\0" in text:
            raise RecordError(
                f"{path}: has a NUL (byte {data.index(0)}) and is not text; repair it by hand"
            )
        return self._task(full, state, data=data, text=text)

    def _task(self, full: str, state: ListState, data: bytes, text: str | None = None) -> TaskList:
        version = hashlib.sha256(data).hexdigest()[:16]
        if text is None:
            text = data.decode("utf-8")
        return TaskList(
            full,
            self._path(full, state),
            state=state,
            content=text,
            version=version,
            outline=read_outline(text),
        )

    def _prepare_for_git(self, root: int, active: int, done: int) -> None:
        """Makes both folders last in a repository, and the files of this machine invisible
        there.
        """
        for folder, name, content in (
            (active, _KEEP, b""),
            (done, _KEEP, b""),
            (root, _IGNORE, _IGNORED),
        ):
            try:
                with disk.fdopen(disk.open(name, NEW_FILE, 0o600, dir_fd=folder)) as file:
                    file.write(content)
            except FileExistsError:
                continue
            except OSError as error:
                raise RecordError(f"{self.root}: cannot write {name}: {error.strerror}") from error

    def _put(self, folder: int, full: str, data: bytes, *, new: bool) -> None:
        """The file whole or not at all, under the lock."""
        try:
            # A new task never replaces a file that an editor created in the meantime.
            write_atomic(
                f"{full}.md",
                data,
                dir_fd=folder,
                sync=False,
                replace=not new,
                under_lock=True,
                error=None,
            )
        except OSError as error:
            raise RecordError(
                f"{self._path(full, 'active')}: cannot write the task: {error.strerror}"
            ) from error

    @contextlib.contextmanager
    def _locked(self) -> Generator[tuple[int, int, int]]:
        """The root and the two folders, made and checked; no other process or thread changes a task
        meanwhile.
        """
        with contextlib.ExitStack() as open_files:

            def keep(fd: int) -> int:
                open_files.callback(os.close, fd)
                return fd

            root = keep(open_private_folder(self.root))
            active = keep(open_private_folder(self.root / "active"))
            done = keep(open_private_folder(self.root / "done"))
            try:
                # A file of its own: some network file systems lock no folder.
                open_files.enter_context(locked_file(_LOCK, dir_fd=root))
            except OSError as error:
                raise RecordError(
                    f"{self.root / _LOCK}: cannot be locked: {error.strerror}"
                ) from error
            yield root, active, done


@contextlib.contextmanager
def _existing(root: Path, state: ListState) -> Generator[int | None]:
    """A folder for reading; None where it does not exist yet."""
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
            raise RecordError(
                f"{path}: the task folder is a link; name the folder that it leads to"
            ) from error
        raise RecordError(
            f"{root / state}: cannot read the task folder: {error.strerror}"
        ) from error
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _names(folder: int) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name.removesuffix(".md")
            if name != entry.name and is_dated(name):
                yield name


def _exists(folder: int, full: str) -> bool:
    """Whether anything has that name, including a broken link."""
    try:
        os.stat(f"{full}.md", dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _checked_role(role: str) -> str:
    if not role.strip():
        raise UsageError("the role is empty; leave it out, or give the one in the headings")
    return role


def _check_owner(task: TaskList, role: str | None) -> None:
    if role is not None and not task.outline.is_owned_by(role):
        raise UsageError(
            f"{task.name} belongs to {task.owner}, which alone changes it; as {role} you may "
            "read it"
        )


def _owned(text: str, owner: str | None) -> str:
    """`text` with a line that names `owner`, where it names none.

    Raises: UsageError, if it names another owner.
    """
    text = with_line_feeds(text)
    named = read_outline(text).owner
    if named is None:
        if owner is None:
            return text
        return with_owner(text, owner)
    if owner is None or role_key(named) != role_key(owner):
        right = owner or "nobody"
        raise UsageError(
            f"the text names {named} as its owner, which is {right}; leave that line as it was"
        )
    return text


def _step_dict(step: TaskStep | None) -> dict[str, Any] | None:
    if step is None:
        return None
    return {"line": step.line, "text": step.text, "section": step.section, "role": step.role}


def _count(steps: int) -> str:
    if steps == 1:
        return "1 step is"
    return f"{steps} steps are"
