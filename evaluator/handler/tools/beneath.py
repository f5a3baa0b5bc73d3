"""Opens a path beneath a folder's descriptor without ever following a link or leaving the folder.

On Linux one `openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)`, which no race can
win; where that call is missing (macOS, old kernels, strict containers) one `openat(O_NOFOLLOW)` a
component, which opens each folder by the descriptor of the one before and so cannot be led out either. The
caller has already refused `..`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Protocol

_SYS_OPENAT2 = 437
_RESOLVE = 0x02 | 0x04 | 0x08  # NO_MAGICLINKS, NO_SYMLINKS, BENEATH
_NO_LINKS = 0x02 | 0x04
_AT_FDCWD = -100
_TRIES = 16

FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW
FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _Call(Protocol):
    def __call__(self, folder: int, path: bytes, flags: int, resolve: int) -> int: ...


@cache
def openat2() -> _Call | None:
    """The system call, or None where the kernel or a filter does not let it through."""
    if not sys.platform.startswith("linux"):
        return None
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long

    def call(folder: int, path: bytes, flags: int, resolve: int) -> int:
        how = _OpenHow(flags, 0, resolve)
        code = 0
        for _ in range(_TRIES):
            descriptor = syscall(
                ctypes.c_long(_SYS_OPENAT2),
                ctypes.c_long(folder),
                ctypes.c_char_p(path),
                ctypes.byref(how),
                ctypes.c_size_t(ctypes.sizeof(how)),
            )
            if descriptor >= 0:
                return int(descriptor)
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: something was renamed meanwhile
                break
        raise OSError(code, os.strerror(code))

    try:
        os.close(call(_AT_FDCWD, b".", FOLDER, _RESOLVE))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG):
            return None
    return call


def open_root(path: str) -> int:
    """Opens a root folder by its resolved absolute path; a component that has become a link is refused."""
    call = openat2()
    if call is not None:
        return call(_AT_FDCWD, os.fsencode(path), FOLDER, _NO_LINKS)
    top = os.open("/", FOLDER)
    try:
        return _walk(top, [part for part in path.split("/") if part], FOLDER)
    finally:
        os.close(top)


def open_beneath(folder: int, parts: Sequence[str], flags: int, *, by_steps: bool = False) -> int:
    """Opens `parts`, joined, beneath the descriptor `folder`; no parts: the folder itself again.

    `by_steps` takes the road without openat2. Raises OSError: ELOOP or ENOTDIR for a link, EXDEV for an
    escape.
    """
    call = None if by_steps else openat2()
    if call is not None:
        return call(folder, os.fsencode("/".join(parts) or "."), flags, _RESOLVE)
    return _walk(folder, parts, flags)


def make_beneath(folder: int, parts: Sequence[str]) -> int:
    """Opens the folders `parts` beneath the descriptor `folder`, making those that are missing (mode 0777, umask).

    Raises OSError as `open_beneath` does.
    """
    current = os.open(".", FOLDER, dir_fd=folder)
    try:
        for part in parts:
            try:
                below = open_beneath(current, [part], FOLDER)
            except FileNotFoundError:
                try:
                    os.mkdir(part, dir_fd=current)
                except FileExistsError:
                    pass  # made meanwhile; whether it is a folder is seen at the next line
                below = open_beneath(current, [part], FOLDER)
            os.close(current)
            current = below
        return os.dup(current)
    finally:
        os.close(current)


def _walk(folder: int, parts: Sequence[str], flags: int) -> int:
    if any(part in ("..", "", ".") or "/" in part for part in parts):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    current = os.open(".", FOLDER, dir_fd=folder)
    try:
        for part in parts[:-1]:
            below = os.open(part, FOLDER, dir_fd=current)
            os.close(current)
            current = below
        if not parts:
            return os.dup(current)
        return os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=current)
    finally:
        os.close(current)
