"""Where in a task's roots a path lies, and in what words it is refused."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evaluator.errors import ToolError, UsageError
from evaluator.handler.tools.beneath import open_beneath, open_root

_MAX_PATH_BYTES = 4095
# Enough to look from, also where a folder may be passed through and not be listed.
_THROUGH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Deed = Literal["read", "written", "deleted"]


Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Closed:
    """Files and folders that are there and that no tool touches: device and inode, and the place of their names."""

    identities: frozenset[Identity] = frozenset()
    names: frozenset[tuple[Identity, str]] = frozenset()

    @classmethod
    def of(cls, paths: Iterable[str]) -> Closed:
        """What now stands at absolute `paths`, and what may come to stand there."""
        identities: set[Identity] = set()
        names: set[tuple[Identity, str]] = set()
        for path in paths:
            above, name = os.path.split(path)
            for place in (path, above):
                try:
                    identity = identity_of(os.stat(place))
                except OSError:
                    continue
                if place == path:
                    identities.add(identity)
                else:
                    names.add((identity, name))
        return cls(frozenset(identities), frozenset(names))

    def __bool__(self) -> bool:
        return bool(self.identities or self.names)

    def holds(self, folder: int, name: str) -> bool:
        """Whether the entry `name` of the folder with the descriptor `folder` is closed."""
        if (identity_of(os.fstat(folder)), name) in self.names:
            return True
        try:
            return identity_of(os.stat(name, dir_fd=folder, follow_symlinks=False)) in self.identities
        except OSError:
            return False

    def is_within(self, folder: int) -> bool:
        """Whether the folder with the descriptor `folder`, or one above it, is closed."""
        above, seen = ".", None
        while (now := identity_of(os.stat(above, dir_fd=folder))) != seen:
            if now in self.identities:
                return True
            seen, above = now, f"{above}/.."
        return False


def identity_of(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


class Places:
    """The roots of a task. A relative path is looked for in each in turn.

    The roots and the folders above them are the caller's word: links in them are resolved once, here. What `closed`
    names, and all below it, is in none of them, by whatever way a path leads there.
    """

    def __init__(self, roots: Sequence[str | Path], closed: Iterable[str | Path] = ()) -> None:
        if isinstance(roots, str):
            raise UsageError("roots is a sequence of folders, not one string")
        self.roots: tuple[Path, ...] = tuple(Path(os.path.abspath(root)) for root in roots)
        self._resolved = tuple(os.path.realpath(root) for root in self.roots)
        # A path with a NUL is nowhere; whoever wants to write there is told.
        places = (os.path.realpath(path) for path in closed if "\0" not in str(path))
        self.closed_paths: tuple[str, ...] = tuple(dict.fromkeys(places))

    def closed(self) -> Closed:
        """What is closed at this moment."""
        return Closed.of(self.closed_paths)

    def refuse_closed(self, folder: int, name: str | None, path: str) -> None:
        """Raises: ToolError, where the entry `name` of a folder, or the folder itself, is closed."""
        closed = self.closed()
        if closed and (closed.is_within(folder) or (name is not None and closed.holds(folder, name))):
            raise ToolError(
                f"{path[:1000]!r} belongs to what the program itself keeps (its task files, its index), which is not "
                "for tools on files"
            )

    def spellings(self) -> tuple[tuple[str, str], ...]:
        """Each root as it was given and with its links resolved."""
        return tuple((str(given), resolved) for given, resolved in zip(self.roots, self._resolved, strict=True))

    def placed(self, path: str) -> Iterator[tuple[int, list[str]]]:
        """The roots that `path` may lie in, each with the components below it.

        Raises: ToolError, for a path that no file can have, or that lies outside all roots.
        """
        check_path(path)
        parts = parts_of(path)
        if not path.startswith("/"):
            found = [(index, parts) for index in range(len(self.roots))]
        else:
            found = list(self._below(parts))
        if not found:
            named = ", ".join(str(root) for root in self.roots) or "none is given to this task"
            raise ToolError(f"{path[:1000]!r} lies outside the folders of this task ({named})")
        yield from found

    def _below(self, parts: list[str]) -> Iterator[tuple[int, list[str]]]:
        for index, spellings in enumerate(self.spellings()):
            for spelling in spellings:
                above = parts_of(spelling)
                if parts[: len(above)] == above:
                    yield index, parts[len(above) :]
                    break

    def name(self, index: int, parts: Sequence[str]) -> str:
        """How a file is called to a model: relative in the first root, absolute in the others."""
        path = "/".join(parts) or "."
        return path if index == 0 else str(self.roots[index] / path)

    def open_root(self, index: int) -> int:
        try:
            return open_root(self._resolved[index])
        except OSError as error:
            raise tool_error(str(self.roots[index]), error) from error

    def open_each(self, path: str, flags: int, deed: Deed = "read") -> Iterator[tuple[int, list[str], int]]:
        """Root, components and a descriptor of `path` in each root that has it; the caller closes them.

        Raises: ToolError, where no root has it, and at once where one has it behind a link.
        """
        failure: ToolError | None = None
        found = False
        for index, parts in self.placed(path):
            try:
                root = self.open_root(index)
            except ToolError as error:
                failure = failure or error
                continue
            try:
                descriptor = self._open(root, parts, flags, path)
            except OSError as error:
                wrong = tool_error(path, error, deed, root, parts)
                if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    raise wrong from error
                failure = failure or wrong
                continue
            finally:
                os.close(root)
            found = True
            yield index, parts, descriptor
        if not found:
            assert failure is not None
            raise failure

    def _open(self, root: int, parts: list[str], flags: int, path: str) -> int:
        if not self.closed_paths:
            return open_beneath(root, parts, flags)
        folder = open_beneath(root, parts[:-1], _THROUGH)
        try:
            self.refuse_closed(folder, parts[-1] if parts else None, path)
            return open_beneath(folder, parts[-1:], flags)
        finally:
            os.close(folder)

    def open(self, path: str, flags: int) -> int:
        """A descriptor of `path` in the first root that has it."""
        return next(self.open_each(path, flags))[2]


def check_path(path: str) -> None:
    """Raises ToolError for what is no path beneath a root, whatever the roots are."""
    if not path:
        raise ToolError("the path is empty")
    if "\0" in path:
        raise ToolError("the path holds a NUL character")
    if ".." in path.split("/"):
        raise ToolError(f"{path[:1000]!r} holds '..', which is refused; name the file from the root")
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError as error:
        raise ToolError("the path holds a character that the file system cannot take") from error
    if size > _MAX_PATH_BYTES:
        raise ToolError(f"{path[:1000]!r}… is too long a path: {size:,} bytes, at most {_MAX_PATH_BYTES:,}")


def parts_of(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def refuse_unless_plain(path: str, status: os.stat_result, deed: Deed) -> None:
    """Raises ToolError for anything but a regular file with one name."""
    if stat.S_ISLNK(status.st_mode):
        raise _link_error(path)
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{path!r} is {_what(status.st_mode)}, not a regular file")
    if status.st_nlink > 1:
        raise ToolError(f"{path!r} has {status.st_nlink} hard links and may be a file from outside; it is not {deed}")


def tool_error(
    path: str, error: OSError, deed: Deed = "read", root: int | None = None, parts: Sequence[str] = ()
) -> ToolError:
    """What went wrong with `path`, in words; `root` and `parts` tell a link from a file in the way."""
    code = error.errno
    if code == errno.ELOOP or (root is not None and code == errno.ENOTDIR and _holds_link(root, parts)):
        return _link_error(path)
    words = {
        errno.ENOENT: "does not exist",
        errno.ENOTDIR: "is not a folder, or goes through a file",
        errno.EXDEV: "leads out of its root",
        errno.ENXIO: "is a socket or a device without a reader, not a regular file",
        errno.EACCES: f"may not be {deed} (permission denied)",
        errno.ENAMETOOLONG: "is too long a path",
        errno.ENOSPC: f"cannot be {deed}: the disk is full",
        errno.EDQUOT: f"cannot be {deed}: the disk quota is used up",
    }
    return ToolError(f"{path[:1000]!r} {words.get(code or 0, f'cannot be {deed}: {error.strerror or error}')}")


def _link_error(path: str) -> ToolError:
    return ToolError(f"{path[:1000]!r} goes through a symbolic link, which is never followed")


def _holds_link(root: int, parts: Sequence[str]) -> bool:
    """Only for the words of an error: nothing is opened by what this says."""
    for end in range(1, len(parts) + 1):
        try:
            mode = os.stat("/".join(parts[:end]), dir_fd=root, follow_symlinks=False).st_mode
        except OSError:
            return False
        if stat.S_ISLNK(mode):
            return True
    return False


def _what(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
