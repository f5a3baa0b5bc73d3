"""Finding and reading template files without leaving their folder.

A library folder is untrusted as far as links go: every component below it is opened with O_NOFOLLOW from the
folder's own descriptor, so a link swapped in between cannot lead outside. Hard links are accepted, because
package installers make them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evaluator.errors import Diagnostic, TemplateError, UsageError
from evaluator.nodes import Span

MAX_FILE_BYTES = 4 * 1024 * 1024
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes when a file does. Equal stamps mean that the file need not be read again."""

    mtime_ns: int
    size: int
    inode: int

    @classmethod
    def of(cls, info: os.stat_result) -> Stamp:
        return cls(info.st_mtime_ns, info.st_size, info.st_ino)


@dataclass(frozen=True, slots=True)
class Root:
    """One folder or single file that was given to `load`. `shown` names it in diagnostics."""

    folder: str
    shown: str
    only: str | None = None

    @classmethod
    def of(cls, given: str | os.PathLike[str]) -> Root:
        """Raises: UsageError where there is nothing at `given`, or neither a folder nor a file."""
        shown = os.fspath(given)
        path = Path(shown)
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(f"no template folder or file at {printable(shown)!r}: {_why(error)}") from error
        if real.is_dir():
            return cls(str(real), shown)
        if not real.is_file():
            raise UsageError(f"{printable(shown)!r} is neither a folder nor a file")
        return cls(str(real.parent), str(path.parent), real.name)

    def name_of(self, relative: str) -> str:
        """How a file of this root is named in diagnostics; always encodable."""
        if self.only is not None and self.shown in ("", "."):
            return printable(relative)
        return printable(os.path.join(self.shown, relative))


@dataclass(frozen=True, slots=True)
class Found:
    """A template file: its path below the root, without links, and its name in diagnostics."""

    relative: str
    shown: str


def scan(root: Root) -> tuple[list[Found], list[Diagnostic]]:
    """The template files below `root`, in the order of their paths, and what was refused.

    Files and folders whose names begin with `.` or `_` are left out: partials for `<include>` go there.
    A link to a file inside the folder is read as that file; one that leads outside is refused.
    """
    if root.only is not None:
        return [Found(root.only, root.name_of(root.only))], []
    found: list[Found] = []
    refused: list[Diagnostic] = []
    for relative, is_link in _walk(root, "", 0, refused):
        shown = root.name_of(relative)
        if not is_link:
            found.append(Found(relative, shown))
            continue
        target = os.path.realpath(os.path.join(root.folder, relative))
        inside = beneath(root.folder, target)
        if inside is None or not os.path.exists(target):
            why = "leads out of its library folder" if inside is None else "leads nowhere"
            refused.append(Diagnostic("error", "link-refused", f"{shown} is a link that {why}", Span(shown)))
        else:
            found.append(Found(inside, shown))
    return found, refused


def _walk(root: Root, below: str, depth: int, refused: list[Diagnostic]) -> Iterator[tuple[str, bool]]:
    here = os.path.join(root.folder, below)
    try:
        with os.scandir(here) as listing:
            entries = sorted(listing, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        shown = root.name_of(below) if below else printable(root.shown)
        refused.append(Diagnostic("error", "unreadable", f"cannot list {shown}: {_why(error)}", Span(shown)))
        return
    for entry in entries:
        if entry.name.startswith((".", "_")):
            continue
        relative = os.path.join(below, entry.name) if below else entry.name
        if entry.is_dir(follow_symlinks=False):
            if depth < _MAX_DEPTH:
                yield from _walk(root, relative, depth + 1, refused)
        elif entry.name.endswith(".xml"):
            yield relative, entry.is_symlink()
        elif entry.is_symlink() and entry.is_dir():
            shown = root.name_of(relative)
            message = f"{shown} is a link to a folder; links to folders are not followed"
            refused.append(Diagnostic("warning", "link-refused", message, Span(shown)))


def beneath(folder: str, target: str) -> str | None:
    """`target` relative to `folder` where it lies below it, else None. Both are real, absolute paths."""
    prefix = folder if folder.endswith(os.sep) else folder + os.sep
    return target[len(prefix) :] if target.startswith(prefix) else None


def read_beneath(root: Root, relative: str, at: Span) -> tuple[bytes, Stamp]:
    """The bytes of a regular file below `root`, no component of whose path is a link.

    Raises: TemplateError at `at`, where the file is missing, a link, no regular file or above MAX_FILE_BYTES.
    """
    try:
        descriptor = _open_beneath(root.folder, relative)
        try:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                raise _refusal("unreadable", f"{root.name_of(relative)} is not a regular file", at)
            if info.st_size > MAX_FILE_BYTES:
                message = f"{root.name_of(relative)} has {info.st_size:,} bytes; the limit is {MAX_FILE_BYTES:,}"
                raise _refusal("too-large", message, at)
            return _read_all(descriptor, info.st_size, root.name_of(relative), at), Stamp.of(info)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise _refusal("unreadable", f"cannot read {root.name_of(relative)}: {_why(error)}", at) from error


def stamp_of(root: Root, relative: str) -> Stamp | None:
    """The file's stamp now; None where there is no such file."""
    try:
        return Stamp.of(os.stat(os.path.join(root.folder, relative), follow_symlinks=False))
    except (OSError, ValueError):
        return None


def _open_beneath(folder: str, relative: str) -> int:
    parts = [part for part in relative.split(os.sep) if part not in ("", ".")]
    if not parts or ".." in parts:
        raise OSError("the path leaves its library folder")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    current = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            below = os.open(part, flags | os.O_DIRECTORY, dir_fd=current)
            os.close(current)
            current = below
        # Without O_NONBLOCK a FIFO in the folder would stop the load for ever.
        return os.open(parts[-1], flags | os.O_NONBLOCK, dir_fd=current)
    finally:
        os.close(current)


def _read_all(descriptor: int, size: int, shown: str, at: Span) -> bytes:
    chunks: list[bytes] = []
    total = 0
    while chunk := os.read(descriptor, max(size + 1 - total, 1) if total <= size else 65_536):
        chunks.append(chunk)
        total += len(chunk)
        if total > MAX_FILE_BYTES:
            raise _refusal("too-large", f"{shown} grew past {MAX_FILE_BYTES:,} bytes while it was read", at)
    return b"".join(chunks)


def printable(path: str) -> str:
    """`path` with what UTF-8 cannot hold, and control characters, written as escapes."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _refusal(code: str, message: str, at: Span) -> TemplateError:
    return TemplateError([Diagnostic("error", code, message, at)])


def _why(error: BaseException) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
