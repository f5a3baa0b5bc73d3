"""Finds and reads template files without leaving their folder.

The links in a library folder are not trusted: each file is opened below the folder's own descriptor
and no link is followed, so a link that replaces a file in between cannot lead outside. Hard links
are accepted, because package installers make them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from evaluator.errors import Diagnostic, TemplateError, UsageError
from evaluator.errors.messages import visible
from evaluator.files.locations import given_path
from evaluator.files.open_below import FILE, open_beneath, open_root
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Span

MAX_FILE_BYTES = 4 * 1024 * 1024
_MAX_DEPTH = 16

Stamp = tuple[int, int, int]
"""A file's modification time in ns, size and inode. A file with an equal stamp need not be read
again.
"""


@frozen
class Root:
    """One folder or single file that was given to `load`. `shown` names its folder in
    diagnostics.
    """

    folder: str
    shown: str
    only: str | None = None

    @classmethod
    def of(cls, given: str | os.PathLike[str]) -> Root:
        """Raises: UsageError where there is nothing at `given`, or neither a folder nor a file."""
        shown = os.fspath(given_path(given, "the folder or file of templates"))
        try:
            real = Path(shown).resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"no template folder or file at {_printable(shown)!r}: {_reason(error)}"
            ) from error
        if real.is_dir():
            return cls(str(real), shown)
        if not real.is_file():
            raise UsageError(f"{_printable(shown)!r} is neither a folder nor a file")
        return cls(str(real.parent), os.path.dirname(shown), real.name)

    def name_of(self, relative: str) -> str:
        """The name of a file of this root in diagnostics; always encodable."""
        return _printable(os.path.join(self.shown, relative))

    def relative(self, path: str) -> str | None:
        """The absolute `path` of a file relative to the folder; None if it is none of this root."""
        relative = beneath(self.folder, path)
        if self.only in (None, relative):
            return relative
        return None


@frozen
class TemplateFile:
    """A template file: its path below the root, without links, and its name in diagnostics."""

    relative: str
    shown: str


def scan(root: Root) -> tuple[list[TemplateFile], list[Diagnostic]]:
    """The template files below `root`, in the order of their paths, and what was refused.

    Files and folders whose names begin with `.` or `_` are left out: partials for `<include>` go
    there. A link to a file inside the folder is read as that file; one that leads outside is
    refused.
    """
    if root.only is not None:
        return [TemplateFile(root.only, root.name_of(root.only))], []
    found: list[TemplateFile] = []
    refused: list[Diagnostic] = []
    _scan_folder(root, "", depth=0, found=found, refused=refused)
    return found, refused


def _scan_folder(
    root: Root, below: str, depth: int, found: list[TemplateFile], refused: list[Diagnostic]
) -> None:
    try:
        with os.scandir(os.path.join(root.folder, below)) as listing:
            entries = sorted(listing, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        shown = root.name_of(below)
        message = f"cannot list {shown}: {_reason(error)}"
        refused.append(Diagnostic("error", "unreadable", message=message, span=Span(shown)))
        return
    for entry in entries:
        if entry.name.startswith((".", "_")):
            continue
        relative = os.path.join(below, entry.name)
        if entry.is_dir(follow_symlinks=False):
            if depth < _MAX_DEPTH:
                _scan_folder(root, relative, depth=depth + 1, found=found, refused=refused)
        elif entry.name.endswith(".xml"):
            shown = root.name_of(relative)
            if entry.is_symlink():
                target = _link_target(root, relative)
            else:
                target = relative
            if target is not None:
                found.append(TemplateFile(target, shown))
            else:
                message = f"{shown} is a link that leads out of its library folder, or to nothing"
                refused.append(
                    Diagnostic("error", "link-refused", message=message, span=Span(shown))
                )
        elif entry.is_symlink() and entry.is_dir():
            shown = root.name_of(relative)
            message = f"{shown} is a link to a folder; links to folders are not followed"
            refused.append(Diagnostic("warning", "link-refused", message=message, span=Span(shown)))


def _link_target(root: Root, relative: str) -> str | None:
    """The path below the root that a link leads to; None where there is nothing, or it is
    outside.
    """
    target = os.path.realpath(os.path.join(root.folder, relative))
    if os.path.exists(target):
        return beneath(root.folder, target)
    return None


def beneath(folder: str, target: str) -> str | None:
    """`target` relative to `folder` where it is below it, else None. Both are absolute paths
    without links.
    """
    prefix = os.path.join(folder, "")
    if target.startswith(prefix):
        return target.removeprefix(prefix)
    return None


def read_beneath(root: Root, relative: str, at: Span) -> tuple[bytes, Stamp]:
    """The bytes and the stamp of a regular file below `root`, no component of whose path is a link.

    Raises: TemplateError at `at`, where the file is missing, a link, not a regular file or above
    MAX_FILE_BYTES.
    """
    shown = root.name_of(relative)
    try:
        folder = open_root(root.folder)
        try:
            descriptor = open_beneath(
                folder, [part for part in relative.split(os.sep) if part], flags=FILE
            )
        finally:
            os.close(folder)
        with open(descriptor, "rb") as file:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                raise TemplateError.of("unreadable", f"{shown} is not a regular file", span=at)
            data = file.read(min(info.st_size, MAX_FILE_BYTES) + 1)
            if len(data) > info.st_size:  # it grew
                data += file.read(MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        message = f"cannot read {shown}: {_reason(error)}"
        raise TemplateError.of("unreadable", message, span=at) from error
    if len(data) > MAX_FILE_BYTES:
        message = f"{shown} has more than {MAX_FILE_BYTES:,} bytes, which is the limit"
        raise TemplateError.of("too-large", message, span=at)
    return data, _stamp(info)


def stamp_of(root: Root, relative: str) -> Stamp | None:
    """The file's stamp now; None where there is no such file."""
    try:
        return _stamp(os.stat(os.path.join(root.folder, relative), follow_symlinks=False))
    except (OSError, ValueError):
        return None


def _stamp(info: os.stat_result) -> Stamp:
    return info.st_mtime_ns, info.st_size, info.st_ino


def _printable(path: str) -> str:
    """`path` with what UTF-8 cannot hold, and control characters, written as escapes."""
    return visible(os.fsencode(path).decode("utf-8", "backslashreplace"), one_line=True)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
