"""Opening and decoding: paths below a folder's descriptor, private folders, and texts.

Opens paths below a folder's descriptor, and folders that only this user can change.

On Linux this is one call of `openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
RESOLVE_NO_MAGICLINKS)`, which the kernel checks without a race. Where that call is missing (macOS,
old kernels, strict containers), each component is opened with `openat(O_NOFOLLOW)` relative to the
descriptor of the folder before it. Callers refuse `..` before; both ways refuse it again.

Opens a folder that only this user can change: owned by the user, not a link, not writable by
everybody.

Decodes text files: detects the encoding, refuses binary files, and encodes an edited text as it
was before.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import stat
import struct
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from evaluator import disk
from evaluator.errors import RecordError, RecordNotWritten, ToolError, advice_on
from evaluator.lazy_dataclass import frozen

_SYS_OPENAT2 = 437
_RESOLVE = 0x02 | 0x04 | 0x08  # NO_MAGICLINKS, NO_SYMLINKS, BENEATH
_NO_LINKS = 0x02 | 0x04
_AT_FDCWD = -100
_TRIES = 16
_LARGE_BYTES = 1 << 30
# A file system that compresses does not come near it.
_MOST_HOLES = 64

FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW
"""Flags for a folder; with `O_NOFOLLOW` a link is an error."""
# Without O_NONBLOCK, opening a named pipe would wait for a writer.
FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""Flags for reading a file. The caller checks with `os.fstat` that it is a regular one."""


class _OpenAt2(Protocol):
    def __call__(self, folder: int, path: bytes, flags: int, resolve: int) -> int: ...


@cache
def openat2() -> _OpenAt2 | None:
    """A function that makes the system call; None where the kernel or a system call filter does not
    allow it.
    """
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long

    def call(folder: int, path: bytes, flags: int, resolve: int) -> int:
        how = struct.pack("QQQ", flags, 0, resolve)  # struct open_how: flags, mode, resolve
        code = 0
        for _ in range(_TRIES):
            descriptor = syscall(
                ctypes.c_long(_SYS_OPENAT2),
                ctypes.c_long(folder),
                ctypes.c_char_p(path),
                ctypes.c_char_p(how),
                ctypes.c_size_t(len(how)),
            )
            if descriptor >= 0:
                return int(descriptor)
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: a rename happened during the call
                break
        raise OSError(code, os.strerror(code))

    try:
        os.close(call(_AT_FDCWD, b".", FOLDER, _RESOLVE))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG):
            return None
    return call


def open_regular(path: str | Path, *, max_bytes: int | None = None, flags: int = FILE) -> int:
    """A descriptor of a regular file, which is not followed if it is a link. For files in a folder
    that may come from somebody else.

    Raises: OSError, also for a link, a folder, a pipe, a device, and for more than `max_bytes`,
    with a reason as `strerror`.
    """
    try:
        descriptor = disk.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            error.strerror = "it is a symbolic link, which is not followed"
        elif error.errno == errno.ENXIO:
            error.strerror = "it is not a regular file"
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        reason = "it is not a regular file"
    elif max_bytes is not None and status.st_size > max_bytes:
        reason = f"it has {status.st_size:,} bytes; at most {max_bytes:,} are read"
    else:
        return descriptor
    disk.close(descriptor)
    raise OSError(errno.EINVAL, reason, os.fspath(path))


def read_regular(path: str | Path, max_bytes: int) -> bytes:
    """The content of a file. Raises: OSError, as `open_regular`."""
    return _bounded(open_regular(path, max_bytes=max_bytes), path, max_bytes)


def read_named(path: str | Path, max_bytes: int) -> bytes:
    """The content of a regular file that the user has named; it may be a link to one.

    Raises: OSError, also for anything else and for more than `max_bytes`, with a reason as
    `strerror`.
    """
    descriptor = os.open(path, FILE & ~os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    return _bounded(descriptor, path, max_bytes)


def _bounded(descriptor: int, path: str | Path, max_bytes: int) -> bytes:
    """The content. A file may grow while it is read, or report no size, as those of /proc."""
    with open(descriptor, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes", os.fspath(path))
    return data


def hole_problem(status: os.stat_result) -> str | None:
    """Why a file is a trap: it seems to be large, and next to nothing of it is on the disk. None,
    if it is not one.
    """
    on_disk = status.st_blocks * 512
    if status.st_size > _LARGE_BYTES and on_disk < status.st_size // _MOST_HOLES:
        return f"it has {status.st_size:,} bytes, and only {on_disk:,} are on the disk"
    return None


def open_root(path: str) -> int:
    """A descriptor of a folder by its resolved absolute path. Raises: OSError, also if a component
    is now a link.
    """
    call = openat2()
    if call is not None:
        return call(_AT_FDCWD, os.fsencode(path), FOLDER, _NO_LINKS)
    top = os.open("/", FOLDER)
    try:
        return _walk(top, [part for part in path.split("/") if part], flags=FOLDER)
    finally:
        os.close(top)


def open_beneath(folder: int, parts: Sequence[str], flags: int) -> int:
    """A descriptor of the path with the components `parts` below the folder; of the folder itself
    without parts.

    Raises: OSError; ELOOP or ENOTDIR for a link, EXDEV for a path that leaves the folder.
    """
    call = openat2()
    if call is not None:
        return call(folder, os.fsencode("/".join(parts) or "."), flags, _RESOLVE)
    return _walk(folder, parts, flags=flags)


def make_beneath(folder: int, parts: Sequence[str]) -> int:
    """A descriptor of the folder `parts` below `folder`; missing folders are created (mode 0777 and
    the umask).

    Raises: OSError, as `open_beneath`.
    """
    current = os.open(".", FOLDER, dir_fd=folder)
    for part in parts:
        try:
            with contextlib.suppress(FileExistsError):
                disk.mkdir(part, dir_fd=current)
            below = open_beneath(current, [part], flags=FOLDER)  # refuses everything but a folder
        finally:
            os.close(current)
        current = below
    return current


def _walk(folder: int, parts: Sequence[str], flags: int) -> int:
    if any(part in ("..", "", ".") or "/" in part for part in parts):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    current = os.open(".", FOLDER, dir_fd=folder)
    for index, part in enumerate(parts, 1):
        try:
            below = os.open(
                part, flags | os.O_NOFOLLOW if index == len(parts) else FOLDER, dir_fd=current
            )
        finally:
            os.close(current)
        current = below
    return current


def open_private_folder(path: Path, noun: str = "task folder", *, sync: bool = False) -> int:
    """A descriptor of the folder, which is created (mode 0700, with the folders above it) if it is
    missing. Messages call it `noun`. `sync`: its name is on the disk.

    Raises: RecordError, if it is a link, belongs to another user, is writable by everybody, or
    cannot be written.
    """
    try:
        if not os.path.lexists(path) or (sync and os.path.isdir(path)):
            disk.make_folders(path, 0o700, sync=sync)
        descriptor = os.open(path, FOLDER)
    except OSError as error:
        if os.path.islink(path):
            raise RecordError(
                f"{path}: the {noun} is a link; name the folder that it leads to"
            ) from error
        raise RecordNotWritten(
            f"{path}: the {noun} cannot be opened or created: {error.strerror}; {advice_on(error)}"
        ) from error
    problem = _problem(path, os.fstat(descriptor))
    if problem is not None:
        os.close(descriptor)
        raise RecordNotWritten(f"{path}: the {noun} {problem}")
    return descriptor


def _problem(path: Path, status: os.stat_result) -> str | None:
    if status.st_uid != os.geteuid():
        return (
            f"belongs to user {status.st_uid}, not to this user ({os.geteuid()}); choose a "
            "folder of your own"
        )
    if status.st_mode & stat.S_IWOTH:
        return f"can be written by everybody; run: chmod o-w '{path}'"
    if os.access(path, os.W_OK | os.X_OK):
        return None
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return "is on a read-only file system; choose another folder"
    return f"cannot be written; run: chmod u+wx '{path}', or choose another folder"


def not_writable(path: Path, error: OSError) -> RecordNotWritten:
    """The error for a task file that cannot be created at `path`."""
    return RecordNotWritten(
        f"{path}: no task file can be created: {error.strerror}; {advice_on(error)}"
    )


# A byte order mark, the name of the encoding it announces, and the codec of the bytes after it.
_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32", "utf-32-be"),
    (b"\xef\xbb\xbf", "utf-8-sig", "utf-8"),
    (b"\xff\xfe", "utf-16", "utf-16-le"),
    (b"\xfe\xff", "utf-16", "utf-16-be"),
)
# Codecs of names and of source code, not of files; the first two take quadratic time.
_NO_FILE_ENCODINGS = ("punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined")


@frozen
class FileEncoding:
    """The encoding of a text file: the byte order mark `mark`, then text in `codec`. `name` is for
    messages.
    """

    name: str
    codec: str
    mark: bytes = b""

    def encode(self, text: str, path: str) -> bytes:
        """The bytes of the file. Raises: ToolError, where the encoding does not have a character of
        `text`.
        """
        try:
            return self.mark + text.encode(self.codec)
        except UnicodeEncodeError as error:
            found = error.object[error.start]
            raise ToolError(
                f"{found!r} (U+{ord(found):04X}) cannot be written in {path!r}, a {self.name} file"
            ) from error


UTF_8 = FileEncoding("utf-8", "utf-8")


def decode(data: bytes, path: str, encoding: str | None = None) -> tuple[str, FileEncoding]:
    """The text of a file and its encoding; without `encoding` by the byte order mark, else UTF-8,
    else Latin-1.

    Raises: ToolError, for an encoding that is unknown or cannot decode these bytes, and for a
    binary file.
    """
    if encoding is not None:
        found = FileEncoding(encoding, _known(encoding))
        return _decode(data, path, encoding=found), found
    for mark, name, codec in _MARKS:
        if data.startswith(mark):
            found = FileEncoding(name, codec, mark=mark)
            return _decode(data[len(mark) :], path, encoding=found), found
    if b"\0" in data:
        raise ToolError(
            f"{path!r} is a binary file (it contains NUL bytes); name its encoding if it is text"
        )
    try:
        return data.decode("utf-8"), UTF_8
    except UnicodeDecodeError:
        return data.decode("latin-1"), FileEncoding("latin-1", "latin-1")


def _decode(data: bytes, path: str, encoding: FileEncoding) -> str:
    try:
        return data.decode(encoding.codec)
    except UnicodeError as error:
        raise ToolError(f"{path!r} cannot be read as {encoding.name}: {error}") from error


def _known(name: str) -> str:
    try:
        found = codecs.lookup(name).name
        "".encode(found)  # refuses codecs that do not encode text, such as base64
    except (LookupError, ValueError) as error:
        raise ToolError(
            f"{name[:100]!r} is not a known encoding; try utf-8, utf-16 or latin-1"
        ) from error
    if found in _NO_FILE_ENCODINGS:
        raise ToolError(f"{name[:100]!r} is not an encoding of files; try utf-8, utf-16 or latin-1")
    return found
