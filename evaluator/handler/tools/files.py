"""A task's view of the file system: the files beneath its roots, read by descriptor, never through a link.

What is refused, each with its reason: paths outside the roots (absolute, by `..`, or by a name that only
begins like a root), links at any place of the path, anything that is not a regular file (devices, pipes,
sockets), files with several hard links, which may be another folder's file under a second name, and files
above the size bound. The roots and the folders above them are the caller's word: links in them are resolved
once, when they are named.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from evaluator.errors import ToolError, UsageError
from evaluator.handler.tools.beneath import FILE, FOLDER, open_beneath, open_root
from evaluator.handler.tools.globbing import find_files
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
    """The files beneath `roots`. A relative path is looked for in each root in turn.

    Holds no descriptor between calls; safe to share between tasks and threads.
    """

    def __init__(self, roots: Sequence[str | Path]) -> None:
        if isinstance(roots, str):
            raise UsageError("roots is a sequence of folders, not one string")
        self.roots: tuple[Path, ...] = tuple(Path(os.path.abspath(root)) for root in roots)
        self._resolved = tuple(os.path.realpath(root) for root in self.roots)

    def __repr__(self) -> str:
        return f"FileAccess({[str(root) for root in self.roots]})"

    def read_bytes(self, path: str | Path, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """A regular file's bytes. Raises ToolError for whatever this module refuses."""
        descriptor = self._open_file(str(path))
        try:
            return _read_all(descriptor, str(path), max_bytes)
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
        gives an empty text. Raises ToolError also for a binary file (a NUL byte) and for bytes that
        `encoding` cannot read.
        """
        if start_line < 1 or (max_lines is not None and max_lines < 1):
            raise ToolError("start_line and max_lines count from 1")
        text, used = _decode(self.read_bytes(path, max_bytes=max_bytes), str(path), encoding)
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
        descriptor = self._open(str(path), FOLDER)
        try:
            entries: list[Entry] = []
            with os.scandir(descriptor) as scan:
                for item in scan:
                    if len(entries) == limit:
                        raise ToolError(f"{str(path)!r} holds more than {limit} entries; use a pattern instead")
                    entries.append(_entry(item))
        except OSError as error:
            raise _tool_error(str(path), error) from error
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
        matched = False
        for index, parts in self._placed(pattern):
            try:
                root = open_root(self._resolved[index])
            except OSError as error:
                raise _tool_error(str(self.roots[index]), error) from error
            matched = True
            try:
                for path in find_files(root, parts):
                    if len(found) == limit:
                        raise ToolError(f"more than {limit} files match {pattern!r}; narrow the pattern")
                    found.append(path if index == 0 else str(self.roots[index] / path))
            finally:
                os.close(root)
        if not matched:
            raise ToolError(_outside(pattern, self.roots))
        return tuple(sorted(set(found)))

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
        descriptor = self._open(path, FILE)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise ToolError(f"{path!r} is {_what(status.st_mode)}, not a regular file")
        if status.st_nlink > 1:
            os.close(descriptor)
            raise ToolError(f"{path!r} has {status.st_nlink} hard links and may be a file from outside; it is not read")
        return descriptor

    def _open(self, path: str, flags: int) -> int:
        """A descriptor of `path` in the first root that has it."""
        failure: ToolError | None = None
        for index, parts in self._placed(path):
            try:
                root = open_root(self._resolved[index])
            except OSError as error:
                failure = failure or _tool_error(str(self.roots[index]), error)
                continue
            try:
                return open_beneath(root, parts, flags)
            except OSError as error:
                wrong = _tool_error(path, error, root, parts)
                if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    raise wrong from error
                failure = failure or wrong
            finally:
                os.close(root)
        raise failure or ToolError(_outside(path, self.roots))

    def _placed(self, path: str) -> Iterator[tuple[int, Sequence[str]]]:
        """The roots that `path` may lie in, each with the components below it."""
        _check_path(path)
        if not path.startswith("/"):
            parts = _parts(path)
            yield from ((index, parts) for index in range(len(self.roots)))
            return
        parts = _parts(path)
        for index, (given, resolved) in enumerate(zip(self.roots, self._resolved, strict=True)):
            for spelling in dict.fromkeys((str(given), resolved)):
                above = _parts(spelling)
                if parts[: len(above)] == above:
                    yield index, parts[len(above) :]
                    break


def _check_path(path: str) -> None:
    if not path:
        raise ToolError("the path is empty")
    if "\0" in path:
        raise ToolError("the path holds a NUL character")
    if ".." in path.split("/"):
        raise ToolError(f"{path!r} holds '..', which is refused; name the file from the root")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise ToolError("the path holds a character that the file system cannot take") from error


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _outside(path: str, roots: Sequence[Path]) -> str:
    named = ", ".join(str(root) for root in roots) or "none is given to this task"
    return f"{path!r} lies outside the folders that may be read ({named})"


def _tool_error(path: str, error: OSError, root: int | None = None, parts: Sequence[str] = ()) -> ToolError:
    code = error.errno
    if code == errno.ELOOP or (root is not None and code == errno.ENOTDIR and _holds_link(root, parts)):
        return ToolError(f"{path!r} goes through a symbolic link, which is never followed")
    words = {
        errno.ENOENT: "does not exist",
        errno.ENOTDIR: "is not a folder, or goes through a file",
        errno.EXDEV: "leads out of its root",
        errno.ENXIO: "is a socket or a device without a reader, not a regular file",
        errno.EACCES: "may not be read (permission denied)",
        errno.ENAMETOOLONG: "is too long a path",
    }
    return ToolError(f"{path[:1000]!r} {words.get(code or 0, f'cannot be read: {error.strerror or error}')}")


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


def _read_all(descriptor: int, path: str, max_bytes: int) -> bytes:
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
        raise _tool_error(path, error) from error
    if left <= 0:
        raise ToolError(f"{path!r} is too large: more than {max_bytes:,} bytes")
    return b"".join(pieces)


_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


def _decode(data: bytes, path: str, encoding: str | None) -> tuple[str, str]:
    marked = next((name for mark, name in _MARKS if data.startswith(mark)), None)
    chosen = encoding or marked
    try:
        if chosen is not None:
            return data.decode(chosen), chosen
    except (LookupError, UnicodeError) as error:
        raise ToolError(f"{path!r} cannot be read as {chosen}: {error}") from error
    if b"\0" in data:
        raise ToolError(f"{path!r} is a binary file (it holds NUL bytes); name its encoding if it is text")
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


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
