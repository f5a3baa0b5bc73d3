"""Finds, opens and lists paths in a task's root folders, and explains why a path is refused."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from pathlib import Path
from typing import Literal

from evaluator.errors import ToolError, UsageError
from evaluator.files.open_below import FOLDER, open_beneath, open_root
from evaluator.lazy_dataclass import frozen

_MAX_PATH_BYTES = 4095
# O_PATH also opens a folder that may be passed through but not listed, which is enough to look
# names up.
_LOOKUP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Action = Literal["read", "written", "deleted"]
Identity = tuple[int, int]
"""Device and inode of a file."""


@frozen
class Denied:
    """Files and folders that no tool may touch.

    `identities` are those that exist; `names` are names in existing folders, also of files that do
    not exist yet.
    """

    identities: frozenset[Identity] = frozenset()
    names: frozenset[tuple[Identity, str]] = frozenset()

    @classmethod
    def of(cls, paths: Iterable[str]) -> Denied:
        """What the absolute `paths` denote at this moment."""
        identities: set[Identity] = set()
        names: set[tuple[Identity, str]] = set()
        for path in paths:
            folder, name = os.path.split(path)
            for place in (path, folder):
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

    def denies(self, folder: int, name: str) -> bool:
        """Whether the entry `name` of the folder with the descriptor `folder` is denied."""
        if (identity_of(os.fstat(folder)), name) in self.names:
            return True
        try:
            return (
                identity_of(os.stat(name, dir_fd=folder, follow_symlinks=False)) in self.identities
            )
        except OSError:
            return False

    def encloses(self, folder: int) -> bool:
        """Whether the folder with the descriptor `folder`, or one above it, is denied."""
        above = "."
        seen = None
        while (now := identity_of(os.stat(above, dir_fd=folder))) != seen:
            if now in self.identities:
                return True
            seen = now
            above = f"{above}/.."
        return False


def identity_of(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


class Roots:
    """The root folders of a task. A relative path is looked up in each of them in turn.

    The roots and the folders above them are trusted: symbolic links in them are resolved once, in
    the constructor. The paths `denied`, and all files below them, cannot be reached, whatever path
    leads to them.
    """

    def __init__(self, folders: Sequence[str | Path], denied: Iterable[str | Path] = ()) -> None:
        if isinstance(folders, str):
            raise UsageError("roots is a sequence of folders, not one string")
        self.folders: tuple[Path, ...] = tuple([Path(os.path.abspath(each)) for each in folders])
        resolved = map(os.path.realpath, self.folders)
        self.spellings: tuple[tuple[str, str], ...] = tuple(
            zip(map(str, self.folders), resolved, strict=True)
        )
        """Each root as it was given and with its links resolved."""
        # A path with a NUL character cannot exist.
        paths = [os.path.realpath(path) for path in denied if "\0" not in str(path)]
        self.denied_paths: tuple[str, ...] = tuple(dict.fromkeys(paths))

    def denied(self) -> Denied:
        """What is denied at this moment."""
        return Denied.of(self.denied_paths)

    def refuse_denied(self, folder: int, name: str | None, path: str) -> None:
        """Raises ToolError if the entry `name` of the folder is denied; with `name` None, the
        folder itself.
        """
        denied = self.denied()
        if denied and (
            denied.encloses(folder) or (name is not None and denied.denies(folder, name))
        ):
            raise ToolError(
                f"{path[:1000]!r} belongs to the program itself (its task files or its index); "
                "file tools cannot use it"
            )

    def candidates(self, path: str) -> Iterator[tuple[int, list[str]]]:
        """The roots that `path` may lie in: the root's index and the path's components below it.

        Raises: ToolError, for a path that no file can have or that lies outside all roots.
        """
        check_path(path)
        parts = parts_of(path)
        if path.startswith("/"):
            found = list(self._containing(parts))
        else:
            found = [(index, parts) for index in range(len(self.folders))]
        if not found:
            roots = ", ".join(map(str, self.folders)) or "it has none"
            raise ToolError(f"{path[:1000]!r} lies outside the folders of this task ({roots})")
        yield from found

    def _containing(self, parts: list[str]) -> Iterator[tuple[int, list[str]]]:
        for index, spellings in enumerate(self.spellings):
            for spelling in spellings:
                root = parts_of(spelling)
                if parts[: len(root)] == root:
                    yield index, parts[len(root) :]
                    break

    def name(self, index: int, parts: Sequence[str]) -> str:
        """The path of a file as a model sees it: relative in the first root, absolute in the
        others.
        """
        path = "/".join(parts) or "."
        if index == 0:
            return path
        return str(self.folders[index] / path)

    def open_root(self, index: int) -> int:
        """A descriptor of a root. Raises: ToolError."""
        try:
            return open_root(self.spellings[index][1])
        except OSError as error:
            raise tool_error(str(self.folders[index]), error) from error

    def open_each(self, path: str, flags: int) -> Iterator[tuple[int, list[str], int]]:
        """Root index, components and a descriptor of `path` in each root that has it; the caller
        closes them.

        Raises: ToolError, if no root has it, and at once if a root has it behind a symbolic link.
        """
        failure: ToolError | None = None
        found = False
        for index, parts in self.candidates(path):
            try:
                root = self.open_root(index)
            except ToolError as error:
                failure = failure or error
                continue
            try:
                descriptor = self._open(root, parts, flags=flags, path=path)
            except OSError as error:
                wrong = tool_error(path, error, action="read", root=root, parts=parts)
                if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    raise wrong from error
                failure = failure or wrong
                continue
            finally:
                os.close(root)
            found = True
            yield index, parts, descriptor
        if not found and failure is not None:
            raise failure

    def _open(self, root: int, parts: list[str], flags: int, path: str) -> int:
        if not self.denied_paths:
            return open_beneath(root, parts, flags=flags)
        folder = open_beneath(root, parts[:-1], flags=_LOOKUP)
        try:
            self.refuse_denied(folder, parts[-1] if parts else None, path=path)
            return open_beneath(folder, parts[-1:], flags=flags)
        finally:
            os.close(folder)

    def open(self, path: str, flags: int) -> int:
        """A descriptor of `path` in the first root that has it. Raises: ToolError, as
        `open_each`.
        """
        return next(self.open_each(path, flags))[2]


def check_path(path: str) -> None:
    """Raises ToolError for a text that cannot be a path below a root, whatever the roots are."""
    if not path:
        raise ToolError("the path is empty")
    if "\0" in path:
        raise ToolError("the path contains a NUL character")
    if ".." in path.split("/"):
        raise ToolError(
            f"{path[:1000]!r} contains '..', which is refused; name the file from the root"
        )
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError as error:
        raise ToolError("the path contains a character that the file system cannot take") from error
    if size > _MAX_PATH_BYTES:
        raise ToolError(
            f"{path[:1000]!r}… is too long a path: {size:,} bytes, at most {_MAX_PATH_BYTES:,}"
        )


def parts_of(path: str) -> list[str]:
    """The components of a path, without empty ones and `.`."""
    return [part for part in path.split("/") if part not in ("", ".")]


def refuse_unless_plain(path: str, status: os.stat_result, action: Action) -> None:
    """Raises ToolError unless `status` is that of a regular file with one name (one hard link)."""
    if stat.S_ISLNK(status.st_mode):
        raise _link_error(path)
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(
            f"{path!r} is {_KINDS.get(stat.S_IFMT(status.st_mode), 'special')}, not a regular file"
        )
    if status.st_nlink > 1:
        raise ToolError(
            f"{path!r} has {status.st_nlink} hard links and may be a file from outside; it is not "
            f"{action}"
        )


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


def tool_error(
    path: str,
    error: OSError,
    action: Action = "read",
    root: int | None = None,
    parts: Sequence[str] = (),
) -> ToolError:
    """The ToolError for a failed system call on `path`.

    `root` and `parts`, where given, tell a symbolic link from a file where a folder was expected.
    """
    code = error.errno
    if code == errno.ELOOP or (
        root is not None and code == errno.ENOTDIR and _contains_link(root, parts)
    ):
        return _link_error(path)
    words = {
        errno.ENOENT: "does not exist",
        errno.ENOTDIR: "is not a folder, or goes through a file",
        errno.EXDEV: "leads out of its root",
        errno.ENXIO: "is a socket or a device without a reader, not a regular file",
        errno.EACCES: f"may not be {action} (permission denied)",
        errno.ENAMETOOLONG: "is too long a path",
        errno.ENOSPC: f"cannot be {action}: the disk is full",
        errno.EDQUOT: f"cannot be {action}: the disk quota is used up",
    }
    return ToolError(
        f"{path[:1000]!r} {words.get(code or 0, f'cannot be {action}: {error.strerror or error}')}"
    )


def _link_error(path: str) -> ToolError:
    return ToolError(f"{path[:1000]!r} goes through a symbolic link; links are never followed")


def _contains_link(root: int, parts: Sequence[str]) -> bool:
    """For the text of an error only: no access depends on the answer."""
    for end in range(1, len(parts) + 1):
        try:
            mode = os.stat("/".join(parts[:end]), dir_fd=root, follow_symlinks=False).st_mode
        except OSError:
            return False
        if stat.S_ISLNK(mode):
            return True
    return False


MAX_VISITED = 200_000
_MAX_DEPTH = 64


def find_files(root: int, parts: Sequence[str], denied: Denied) -> Iterator[str]:
    """Paths, relative to the descriptor `root`, of the regular files that match the pattern and are
    not denied.

    `parts` are the pattern's components; `**` stands for any number of folders. Depth first, at
    most 64 folders deep; folders that cannot be listed are skipped. Raises: ToolError, above
    200,000 examined names.
    """
    matchers = [None if part == "**" else re.compile(translate(part)) for part in parts]
    visited = 0

    def match(name: str, index: int) -> bool:
        matcher = matchers[index]
        if matcher is None:
            return not name.startswith(".")
        return (not name.startswith(".") or parts[index].startswith(".")) and bool(
            matcher.match(name)
        )

    def advance(states: frozenset[int], name: str) -> frozenset[int]:
        """The states after the name: indices of the components that may match the next name below
        it.
        """
        after: set[int] = set()
        for index in _closure(states, parts):
            if index < len(parts) and match(name, index):
                after.add(index if parts[index] == "**" else index + 1)
        return frozenset(after)

    def walk(folder: int, prefix: str, states: frozenset[int], depth: int) -> Iterator[str]:
        nonlocal visited
        try:
            with os.scandir(folder) as scan:
                items = sorted(
                    (
                        item.name,
                        item.is_dir(follow_symlinks=False),
                        item.is_file(follow_symlinks=False),
                    )
                    for item in scan
                )
        except OSError:
            return
        visited += len(items)
        if visited > MAX_VISITED:
            raise ToolError(
                f"more than {MAX_VISITED:,} names would have to be examined; narrow the pattern"
            )
        for name, is_folder, is_file in items:
            after = advance(states, name)
            # The whole pattern is matched. A final `**` matches files too, unlike in a shell.
            is_match = is_file and len(parts) in _closure(after, parts)
            if is_match and not (denied and denied.denies(folder, name)):
                yield prefix + name
            if (
                is_folder
                and depth < _MAX_DEPTH
                and any(i < len(parts) for i in _closure(after, parts))
            ):
                try:
                    below = open_beneath(folder, [name], flags=FOLDER)
                except OSError:
                    continue  # not readable, or replaced by a link since it was listed
                try:
                    if identity_of(os.fstat(below)) in denied.identities:
                        continue
                    yield from walk(below, f"{prefix}{name}/", after, depth + 1)
                finally:
                    os.close(below)

    if not (denied and denied.encloses(root)):
        yield from walk(root, "", frozenset({0}), 0)


def _closure(states: frozenset[int], parts: Sequence[str]) -> set[int]:
    """The states, and after each `**` the next one too, since `**` also matches no folder at
    all.
    """
    reached = set(states)
    for index in states:
        while index < len(parts) and parts[index] == "**":
            index += 1
            reached.add(index)
    return reached
