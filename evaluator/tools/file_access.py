"""A task's access to the file system: reads files below its roots, by descriptor, never through a
symbolic link.

Each refusal states its reason. Refused are paths outside the roots (absolute, by `..`, or by a name
that only begins like a root), links anywhere in a path, everything that is not a regular file
(devices, pipes, sockets), files with several hard links, which may be a second name of a file
elsewhere, files above the size limit, and denied paths, such as the record of the run. `writing`
changes files under the same rules; `replace_text` and `diff` are for both, and access no file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from evaluator.errors import ToolError
from evaluator.errors.messages import amount
from evaluator.files.open_below import FILE, FOLDER, decode
from evaluator.files.roots import (
    Roots,
    check_path,
    find_files,
    parts_of,
    refuse_unless_plain,
    tool_error,
)
from evaluator.lazy_dataclass import frozen
from evaluator.patterns import Pattern
from evaluator.processes.concurrency import in_thread

_NEAR_LINES = 5_000
_NEAR_CHARS = 200
_DIFFED_LINES = 1_000
_CONTEXT = 3
_LINE = Pattern(r"[^\n]*\n|[^\n]+")
_BARE_LF = Pattern(r"(?<!\r)\n")


def replace_text(text: str, old: str, new: str, count: int, path: str) -> tuple[str, int]:
    """`text` with each `old` replaced by `new`, and the number of replacements.

    In a text whose lines all end in CR LF, a line feed in `old` and `new` means that too. Raises
    ToolError where `old` does not occur, with the nearest lines, or more than `count` times.
    """
    if not old:
        raise ToolError("old is empty; give the text to replace, or write the whole file")
    if "\r\n" in text and not _BARE_LF.search(text):
        old = _BARE_LF.sub("\r\n", old)
        new = _BARE_LF.sub("\r\n", new)
    if old == new:
        raise ToolError("old and new are the same text; nothing would change")
    found = text.count(old)
    if found == 0:
        raise ToolError(f"old does not occur in {path!r}{_help(text, old)}")
    if found > count:
        raise ToolError(
            f"old occurs {found} times in {path!r} and count is {count}; give more of the lines "
            f"around it, or count={found} to change them all"
        )
    return text.replace(old, new), found


def _help(text: str, old: str) -> str:
    """A hint for a text that does not occur: similar lines among the first 5,000."""
    lines = text.split("\n", _NEAR_LINES)[:_NEAR_LINES]
    if " ".join(old.split()) in " ".join(" ".join(lines).split()):
        hint = "; it occurs with different white space or line ends"
    else:
        hint = ""
    wanted = next((line.strip()[:_NEAR_CHARS] for line in old.split("\n") if line.strip()), "")
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        numbers.setdefault(line.strip()[:_NEAR_CHARS], number)
    import difflib

    near = difflib.get_close_matches(wanted, [line for line in numbers if line], n=3, cutoff=0.6)
    if not near:
        return hint or "; no line is similar"
    shown = "; ".join(f"line {numbers[line]}: {line!r}" for line in near)
    return f"{hint}. Nearest to its first line: {shown}"


def diff(before: str, after: str) -> str:
    """The changed lines, marked with `-` and `+`, with three unchanged lines around them.

    If there are more than 1,000 lines from the first to the last change, all of them are shown as
    replaced.
    """
    old = _lines(before)
    new = _lines(after)
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    tail = 0
    while tail < min(len(old), len(new)) - same and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    start = max(same - _CONTEXT, 0)
    left = old[start : len(old) - max(tail - _CONTEXT, 0)]
    right = new[start : len(new) - max(tail - _CONTEXT, 0)]
    if max(len(left), len(right)) > _DIFFED_LINES:
        shown = [f"-{line}" for line in left] + [f"+{line}" for line in right]
        return "\n".join([f"@@ from line {start + 1} @@", *shown])
    import difflib

    hunks: list[str] = []
    for group in difflib.SequenceMatcher(None, left, right, autojunk=False).get_grouped_opcodes(
        _CONTEXT
    ):
        hunks.append(f"@@ from line {start + group[0][1] + 1} @@")
        for kind, i1, i2, j1, j2 in group:
            if kind == "equal":
                hunks += [f" {line}" for line in left[i1:i2]]
            else:
                hunks += [f"-{line}" for line in left[i1:i2]] + [
                    f"+{line}" for line in right[j1:j2]
                ]
    return "\n".join(hunks)


def lines_of(text: str) -> list[str]:
    """Lines with their line feed; only the last may have none."""
    return _LINE.findall(text)


def _lines(text: str) -> list[str]:
    """Lines without their line feed; a last line without one is marked."""
    return [
        line[:-1] if line[-1] == "\n" else f"{line}  (no line feed at the end)"
        for line in lines_of(text)
    ]


MAX_FILE_BYTES = 10_000_000
MAX_ENTRIES = 10_000
_LARGE_FILE_BYTES = 256_000

EntryKind = Literal["file", "folder", "link", "other"]


@frozen
class FileText:
    """A text file or a range of its lines.

    `truncated`: the file has lines after the range.
    """

    path: str
    text: str
    encoding: str
    truncated: bool
    total_lines: int = 0


@frozen
class FolderEntry:
    """A name in a folder. `size_bytes` is None for everything except a regular file."""

    name: str
    kind: EntryKind
    size_bytes: int | None


class FileAccess:
    """The files below the root folders, without the `denied` paths and the files below them.

    A relative path is looked up in each root in turn. Keeps no descriptor between calls; tasks and
    threads may share one object.
    """

    def __init__(self, folders: Sequence[str | Path], denied: Iterable[str | Path] = ()) -> None:
        self.roots = Roots(folders, denied)

    def without(self, denied: Iterable[str | Path]) -> FileAccess:
        """The same access, with these paths denied as well."""
        return FileAccess(self.roots.folders, (*self.roots.denied_paths, *denied))

    def __repr__(self) -> str:
        return f"FileAccess({[str(folder) for folder in self.roots.folders]})"

    def read_bytes(self, path: str | Path, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """The bytes of a regular file. Raises: ToolError, for a file that this module refuses."""
        with self._opened(str(path)) as (_, descriptor):
            return read_all(descriptor, str(path), max_bytes=max_bytes)

    def read_text(
        self,
        path: str | Path,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        start_line: int = 1,
        max_lines: int | None = None,
        encoding: str | None = None,
    ) -> FileText:
        """A text file, or `max_lines` lines of it from `start_line` (1-based) on; line ends stay as
        they are.

        Without `encoding`: by the byte order mark, else UTF-8, else Latin-1. A start past the end
        gives an empty text. Raises: ToolError, also for a binary file (with a NUL byte) and an
        encoding that is unknown or does not fit.
        """
        if start_line < 1 or (max_lines is not None and max_lines < 1):
            raise ToolError("start_line and max_lines count from 1")
        text, found = decode(
            self.read_bytes(path, max_bytes=max_bytes), str(path), encoding=encoding
        )
        lines = lines_of(text)
        if max_lines is None:
            stop = len(lines)
        else:
            stop = start_line - 1 + max_lines
        part = "".join(lines[start_line - 1 : stop])
        return FileText(
            str(path),
            part,
            encoding=found.name,
            truncated=stop < len(lines),
            total_lines=len(lines),
        )

    def name_of(self, path: str) -> str:
        """The one name of a file, however `path` spells it: relative in the first root, absolute in
        the others.

        `path` itself, where no root has it.
        """
        try:
            index, parts, descriptor = next(self.roots.open_each(path, FILE))
        except (ToolError, StopIteration):
            return path
        os.close(descriptor)
        return self.roots.name(index, parts)

    def path_of(self, path: str) -> Path:
        """The absolute path of a regular file. Raises: ToolError, for a file that this module
        refuses.
        """
        with self._opened(path) as (found, _):
            return found

    def list(self, path: str | Path = ".", *, limit: int = MAX_ENTRIES) -> tuple[FolderEntry, ...]:
        """A folder's entries, sorted by name; links are listed and not followed.

        Raises: ToolError, above `limit` entries.
        """
        descriptor = self.roots.open(str(path), FOLDER)
        try:
            entries: list[FolderEntry] = []
            with os.scandir(descriptor) as scan:
                for item in scan:
                    if len(entries) == limit:
                        raise ToolError(
                            f"{str(path)!r} has more than {limit} entries; use a pattern instead"
                        )
                    entries.append(_entry(item))
        except OSError as error:
            raise tool_error(str(path), error) from error
        finally:
            os.close(descriptor)
        return tuple(sorted(entries, key=lambda entry: entry.name))

    def glob(self, pattern: str, *, limit: int = MAX_ENTRIES) -> tuple[str, ...]:
        """Paths of the regular files that match, sorted: relative in the first root, absolute in
        the others.

        `*`, `?` and `[…]` match within a name, `**` matches any number of folders. As in a shell, a
        wildcard does not match a name that begins with a dot. Links are neither followed nor
        returned.

        Raises: ToolError, above `limit` matches and above 200,000 examined names.
        """
        found: list[str] = []
        for index, parts in self.roots.candidates(pattern):
            root = self.roots.open_root(index)
            try:
                for path in find_files(root, parts, denied=self.roots.denied()):
                    if len(found) == limit:
                        files = amount(limit, "file")
                        raise ToolError(f"more than {files} match {pattern!r}; narrow the pattern")
                    found.append(self.roots.name(index, [path]))
            finally:
                os.close(root)
        return tuple(sorted(set(found)))

    def find(self, path: str = ".", pattern: str = "**") -> Generator[str, None, None]:
        """Paths of the regular files below the folder `path`, or `path` itself if it is a file, in
        the form of `glob`.

        A pattern without `/` matches at any depth. Nothing is read and no link is followed.

        Raises: ToolError, above 200,000 examined names in one root.
        """
        check_path(pattern)
        if pattern.startswith("/"):
            raise ToolError(
                f"{pattern[:1000]!r} begins with '/'; a pattern is relative to the folder that is "
                "searched"
            )
        wanted = parts_of(pattern)
        if "/" not in pattern:
            wanted = ["**", *wanted]
        for index, parts, descriptor in self.roots.open_each(path, FILE):
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISDIR(status.st_mode):
                    refuse_unless_plain(path, status, action="read")
                    yield self.roots.name(index, parts)
                    continue
                for below in find_files(descriptor, wanted, denied=self.roots.denied()):
                    yield self.roots.name(index, [*parts, below])
            finally:
                os.close(descriptor)

    async def aread_bytes(self, path: str | Path) -> bytes:
        """`read_bytes` without blocking the event loop: in a thread if the file is large."""
        with self._opened(str(path)) as (_, descriptor):
            if os.fstat(descriptor).st_size <= _LARGE_FILE_BYTES:
                return read_all(descriptor, str(path), max_bytes=MAX_FILE_BYTES)
        return await in_thread(lambda: self.read_bytes(path))

    async def aglob(self, pattern: str) -> tuple[str, ...]:
        """`glob` in a thread."""
        return await in_thread(lambda: self.glob(pattern))

    @contextmanager
    def _opened(self, path: str) -> Generator[tuple[Path, int]]:
        """The absolute path of a regular file, and its descriptor. Raises: ToolError, for what this
        module refuses.
        """
        index, parts, descriptor = next(self.roots.open_each(path, FILE))
        try:
            refuse_unless_plain(path, os.fstat(descriptor), action="read")
            yield self.roots.folders[index].joinpath(*parts), descriptor
        finally:
            os.close(descriptor)


def read_all(descriptor: int, path: str, max_bytes: int) -> bytes:
    """The rest of an open file. Raises: ToolError, above `max_bytes`, also where `fstat` reports a
    smaller size.
    """
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


def _entry(item: os.DirEntry[str]) -> FolderEntry:
    try:
        status = item.stat(follow_symlinks=False)
    except OSError:  # deleted since the folder was read
        return FolderEntry(item.name, "other", size_bytes=None)
    if stat.S_ISREG(status.st_mode):
        return FolderEntry(item.name, "file", size_bytes=status.st_size)
    kinds: dict[int, EntryKind] = {stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    return FolderEntry(item.name, kinds.get(stat.S_IFMT(status.st_mode), "other"), size_bytes=None)
