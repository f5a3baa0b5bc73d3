"""A task's view of the file system: the files beneath its roots, read by descriptor, never through a link.

What is refused, each with its reason: paths outside the roots (absolute, by `..`, or by a name that only
begins like a root), links at any place of the path, anything that is not a regular file (devices, pipes,
sockets), files with several hard links, which may be another folder's file under a second name, files
above the size bound, and what is closed, such as the record of the run. `writing` changes files under the same rules.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from evaluator.errors import ToolError
from evaluator.handler.tools.beneath import FILE, FOLDER
from evaluator.handler.tools.globbing import find_files
from evaluator.handler.tools.places import Places, check_path, parts_of, refuse_unless_plain, tool_error
from evaluator.handler.tools.texts import decode
from evaluator.handler.tools.threads import in_thread

MAX_FILE_BYTES = 10_000_000
MAX_ENTRIES = 10_000
_BIG_FILE_BYTES = 256_000
_T = TypeVar("_T")

EntryKind = Literal["file", "folder", "link", "other"]


@dataclass(frozen=True, slots=True)
class FileText:
    """A text file or a range of its lines. `first_line` counts from 1; `truncated`: lines after it are
    left.
    """

    path: str
    text: str
    encoding: str
    truncated: bool
    first_line: int = 1
    total_lines: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder; `size_bytes` is None for anything but a file."""

    name: str
    kind: EntryKind
    size_bytes: int | None


class FileAccess:
    """The files beneath `roots`, without those that `closed` names and those below them.

    A relative path is looked for in each root in turn. Holds no descriptor between calls; safe to share between tasks
    and threads.
    """

    def __init__(self, roots: Sequence[str | Path], closed: Iterable[str | Path] = ()) -> None:
        self.places = Places(roots, closed)
        self.roots = self.places.roots

    def without(self, closed: Iterable[str | Path]) -> FileAccess:
        """The same view, with these closed as well."""
        return FileAccess(self.roots, (*self.places.closed_paths, *closed))

    def __repr__(self) -> str:
        return f"FileAccess({[str(root) for root in self.roots]})"

    def read_bytes(self, path: str | Path, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """A regular file's bytes. Raises ToolError for whatever this module refuses."""
        descriptor = self._open_file(str(path))
        try:
            return read_all(descriptor, str(path), max_bytes)
        finally:
            os.close(descriptor)

    def read_text(
        self,
        path: str | Path,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        start_line: int = 1,
        max_lines: int | None = None,
        encoding: str | None = None,
    ) -> FileText:
        """A text file, or `max_lines` lines of it from `start_line` (1-based) on, line ends as they are.

        Without `encoding`: what a byte order mark says, else UTF-8, else Latin-1. A start past the end
        gives an empty text. Raises ToolError also for a binary file (a NUL byte), for an encoding that is
        unknown and for one that cannot read these bytes.
        """
        if start_line < 1 or (max_lines is not None and max_lines < 1):
            raise ToolError("start_line and max_lines count from 1")
        text, found = decode(self.read_bytes(path, max_bytes=max_bytes), str(path), encoding)
        used = found.name
        if start_line == 1 and max_lines is None:
            return FileText(str(path), text, used, False, 1, _count_lines(text))
        lines = text.split("\n")
        ends = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
        stop = len(ends) if max_lines is None else start_line - 1 + max_lines
        part = "".join(ends[start_line - 1 : stop])
        return FileText(str(path), part, used, stop < len(ends), start_line, len(ends))

    def list(self, path: str | Path = ".", *, limit: int = MAX_ENTRIES) -> tuple[Entry, ...]:
        """A folder's entries by name; links are named and not followed. Raises ToolError above `limit`
        entries.
        """
        descriptor = self.places.open(str(path), FOLDER)
        try:
            entries: list[Entry] = []
            with os.scandir(descriptor) as scan:
                for item in scan:
                    if len(entries) == limit:
                        raise ToolError(f"{str(path)!r} holds more than {limit} entries; use a pattern instead")
                    entries.append(_entry(item))
        except OSError as error:
            raise tool_error(str(path), error) from error
        finally:
            os.close(descriptor)
        return tuple(sorted(entries, key=lambda entry: entry.name))

    def glob(self, pattern: str, *, limit: int = MAX_ENTRIES) -> tuple[str, ...]:
        """Paths of the regular files that match, sorted: relative in the first root, absolute in the
        others.

        `*`, `?` and `[…]` match within a name, `**` any number of folders. As in a shell, a wildcard
        matches no name that begins with a dot. Links are neither followed nor returned. Raises ToolError
        above `limit` matches, and above 200,000 names looked at.
        """
        found: list[str] = []
        for index, parts in self.places.placed(pattern):
            root = self.places.open_root(index)
            try:
                for path in find_files(root, parts, self.places.closed()):
                    if len(found) == limit:
                        raise ToolError(f"more than {limit} files match {pattern!r}; narrow the pattern")
                    found.append(self.places.name(index, [path]))
            finally:
                os.close(root)
        return tuple(sorted(set(found)))

    def find(self, path: str = ".", pattern: str = "**") -> Generator[str, None, None]:
        """Paths of the regular files below the folder `path`, or `path` itself where it is a file, as `glob` names
        them.

        A pattern without `/` may match at any depth. Nothing is read and no link is followed. Raises ToolError above
        200,000 names looked at in one root.
        """
        check_path(pattern)
        if pattern.startswith("/"):
            raise ToolError(f"{pattern[:1000]!r} begins with '/'; a pattern is relative to the folder that is searched")
        wanted = parts_of(pattern)
        wanted = wanted if "/" in pattern else ["**", *wanted]
        for index, parts, descriptor in self.places.open_each(path, FILE):
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISDIR(status.st_mode):
                    refuse_unless_plain(path, status, "read")
                    yield self.places.name(index, parts)
                    continue
                for below in find_files(descriptor, wanted, self.places.closed()):
                    yield self.places.name(index, [*parts, below])
            finally:
                os.close(descriptor)

    async def aread_bytes(self, path: str | Path, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """`read_bytes` that does not block the event loop: in a thread where the file is large."""
        return await self._apart(path, lambda: self.read_bytes(path, max_bytes=max_bytes))

    async def aread_text(
        self,
        path: str | Path,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        start_line: int = 1,
        max_lines: int | None = None,
        encoding: str | None = None,
    ) -> FileText:
        """`read_text` that does not block the event loop: in a thread where the file is large."""
        return await self._apart(
            path,
            lambda: self.read_text(
                path, max_bytes=max_bytes, start_line=start_line, max_lines=max_lines, encoding=encoding
            ),
        )

    async def aglob(self, pattern: str, *, limit: int = MAX_ENTRIES) -> tuple[str, ...]:
        """`glob` in a thread."""
        return await in_thread(lambda: self.glob(pattern, limit=limit))

    async def _apart(self, path: str | Path, read: Callable[[], _T]) -> _T:
        descriptor = self._open_file(str(path))
        try:
            big = os.fstat(descriptor).st_size > _BIG_FILE_BYTES
        finally:
            os.close(descriptor)
        return await in_thread(read) if big else read()

    def _open_file(self, path: str) -> int:
        descriptor = self.places.open(path, FILE)
        try:
            refuse_unless_plain(path, os.fstat(descriptor), "read")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def read_all(descriptor: int, path: str, max_bytes: int) -> bytes:
    """Raises ToolError above `max_bytes`, also where the file says that it is smaller."""
    size = os.fstat(descriptor).st_size
    if size > max_bytes:
        raise ToolError(f"{path!r} is too large: {size:,} bytes, at most {max_bytes:,} are read")
    pieces: list[bytes] = []
    left = max_bytes + 1  # the file may grow while it is read
    try:
        while left > 0 and (piece := os.read(descriptor, min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
    except OSError as error:
        raise tool_error(path, error) from error
    if left <= 0:
        raise ToolError(f"{path!r} is too large: more than {max_bytes:,} bytes")
    return b"".join(pieces)


def _count_lines(text: str) -> int:
    return text.count("\n") + (0 if not text or text.endswith("\n") else 1)


def _entry(item: os.DirEntry[str]) -> Entry:
    try:
        status = item.stat(follow_symlinks=False)
    except OSError:  # gone since the folder was read
        return Entry(item.name, "other", None)
    if stat.S_ISREG(status.st_mode):
        return Entry(item.name, "file", status.st_size)
    if stat.S_ISDIR(status.st_mode):
        return Entry(item.name, "folder", None)
    return Entry(item.name, "link" if stat.S_ISLNK(status.st_mode) else "other", None)
