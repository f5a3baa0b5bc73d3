"""Changes files beneath a task's roots: writes, edits, deletes, by descriptor, never through a link.

A file is never opened for writing where it stands. What is new goes into a temporary file in the same folder, which
is then renamed onto the name: a reader sees the old file or the new one, a full disk or a killed process leaves the
old one whole, and a link that is put there meanwhile is itself replaced and never followed. What `files` does not
read is not changed either; nor is a file that somebody else changed between the look at it and the change.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from evaluator.errors import ToolError
from evaluator.handler.tools.beneath import FILE, FOLDER, make_beneath, open_beneath
from evaluator.handler.tools.editing import changed
from evaluator.handler.tools.files import MAX_FILE_BYTES, FileAccess, read_all
from evaluator.handler.tools.places import Deed, Places, refuse_unless_plain, tool_error
from evaluator.handler.tools.texts import UTF_8, FileEncoding, decode

_MAX_DEPTH = 64  # no search looks further down
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Change:
    """What a call makes of a text file. `before` is None for a new file and for one that is no text.

    `size_before` is None for a new file alone. `count`: how many places an edit changed.
    """

    path: str
    before: str | None
    after: str
    encoding: FileEncoding
    encoding_before: FileEncoding | None = None
    size_before: int | None = None
    count: int = 0


@dataclass(frozen=True, slots=True)
class _Target:
    """The folder of a path as a descriptor, the last name in it, and what stands there (None: nothing)."""

    folder: int
    name: str
    status: os.stat_result | None


def write_file(
    access: FileAccess,
    path: str,
    content: str,
    *,
    create_only: bool = False,
    sync: bool = False,
    max_bytes: int = MAX_FILE_BYTES,
) -> Change:
    """Puts `content` as UTF-8 into a file, which keeps its mode where it exists.

    A relative path is the file that `read_file` would read; a new one is made in the first root, with the folders
    above it, which stay also where the write then fails. `create_only`: never replaces. `sync`: on the disk, not only
    with the system, when this returns.

    Raises: ToolError, for what this module refuses, above `max_bytes`, and where the file cannot be written.
    """
    data = _encoded(content, path, max_bytes)
    with _existing_or_new(access.places, path) as target:
        change = _rewrite(target, path, content, create_only)
        _replace(target, path, data, create_only=create_only, sync=sync)
    return change


def preview_write(access: FileAccess, path: str, content: str, *, create_only: bool = False) -> Change:
    """What `write_file` would do. Raises ToolError as it would, as far as that can be known without doing it."""
    _encoded(content, path, MAX_FILE_BYTES)
    try:
        with _existing(access.places, path, "written") as target:
            return _rewrite(target, path, content, create_only)
    except ToolError as error:
        if _errno(error) != errno.ENOENT:
            raise
        return Change(path, None, content, UTF_8)


def edit_file(access: FileAccess, path: str, old: str, new: str, *, count: int = 1, sync: bool = False) -> Change:
    """Replaces every occurrence of the exact text `old`, of which there are at least 1 and at most `count`.

    Encoding, byte order mark and mode stay. In a file whose lines all end in CR LF, a line feed in `old` and `new`
    means that too.

    Raises: ToolError, for what this module refuses, and where `old` does not occur, with the nearest lines, or more
    often than `count`.
    """
    with _existing(access.places, path, "written") as target:
        change, looked_at = _edit(target, path, old, new, count)
        data = change.encoding.encode(change.after, path)
        if len(data) > MAX_FILE_BYTES:
            raise ToolError(f"{path!r} would be too large: {len(data):,} bytes, at most {MAX_FILE_BYTES:,} are written")
        _replace(looked_at, path, data, create_only=False, sync=sync)
    return change


def preview_edit(access: FileAccess, path: str, old: str, new: str, *, count: int = 1) -> Change:
    """What `edit_file` would do. Raises ToolError as it would."""
    with _existing(access.places, path, "written") as target:
        return _edit(target, path, old, new, count)[0]


def delete_file(access: FileAccess, path: str) -> str:
    """Deletes one regular file or one empty folder; says which, "file" or "folder".

    Raises: ToolError, for what this module refuses, for a folder with anything in it, and for a root.
    """
    with _existing(access.places, path, "deleted") as target:
        kind = _kind(target, path)
        try:
            if kind == "folder":
                os.rmdir(target.name, dir_fd=target.folder)
            else:
                os.unlink(target.name, dir_fd=target.folder)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise _not_empty(path) from error
            raise tool_error(path, error, "deleted") from error
        return kind


def preview_delete(access: FileAccess, path: str) -> str:
    """What `delete_file` would delete. Raises ToolError as it would."""
    with _existing(access.places, path, "deleted") as target:
        return _kind(target, path)


def _encoded(content: str, path: str, max_bytes: int) -> bytes:
    data = UTF_8.encode(content, path)
    if len(data) > max_bytes:
        raise ToolError(f"the content of {path!r} is too large: {len(data):,} bytes, at most {max_bytes:,} are written")
    return data


def _rewrite(target: _Target, path: str, content: str, create_only: bool) -> Change:
    if target.status is None:
        return Change(path, None, content, UTF_8)
    refuse_unless_plain(path, target.status, "written")
    if create_only:
        raise _exists(path)
    if not os.access(target.name, os.W_OK, dir_fd=target.folder):
        raise tool_error(path, PermissionError(errno.EACCES, ""), "written")
    size = target.status.st_size
    try:
        before, encoding = decode(_read(target, path)[0], path)
    except ToolError:  # a binary file, or one that is too large to be read
        return Change(path, None, content, UTF_8, size_before=size)
    return Change(path, before, content, UTF_8, encoding, size)


def _edit(target: _Target, path: str, old: str, new: str, count: int) -> tuple[Change, _Target]:
    """The change, and the target as it was when it was read."""
    data, status = _read(target, path)
    if not os.access(target.name, os.W_OK, dir_fd=target.folder):
        raise tool_error(path, PermissionError(errno.EACCES, ""), "written")
    before, encoding = decode(data, path)
    after, places = changed(before, old, new, count, path)
    change = Change(path, before, after, encoding, encoding, status.st_size, places)
    return change, replace(target, status=status)


def _read(target: _Target, path: str) -> tuple[bytes, os.stat_result]:
    try:
        descriptor = os.open(target.name, FILE, dir_fd=target.folder)
    except OSError as error:
        raise tool_error(path, error) from error
    try:
        status = os.fstat(descriptor)
        refuse_unless_plain(path, status, "read")
        return read_all(descriptor, path, MAX_FILE_BYTES), status
    finally:
        os.close(descriptor)


def _kind(target: _Target, path: str) -> str:
    assert target.status is not None
    if stat.S_ISDIR(target.status.st_mode):
        try:
            descriptor = os.open(target.name, FOLDER, dir_fd=target.folder)
        except OSError as error:
            raise tool_error(path, error, "deleted") from error
        try:
            if os.listdir(descriptor):
                raise _not_empty(path)
        finally:
            os.close(descriptor)
        return "folder"
    refuse_unless_plain(path, target.status, "deleted")
    return "file"


@contextmanager
def _existing(places: Places, path: str, deed: Deed) -> Generator[_Target, None, None]:
    target = _find(places, path, deed)
    try:
        yield target
    finally:
        os.close(target.folder)


@contextmanager
def _existing_or_new(places: Places, path: str) -> Generator[_Target, None, None]:
    if path.endswith("/"):
        raise ToolError(f"{path[:1000]!r} names a folder; name a file")
    try:
        target = _find(places, path, "written")
    except ToolError as error:
        if _errno(error) != errno.ENOENT:
            raise
        target = _new(places, path)
    try:
        yield target
    finally:
        os.close(target.folder)


def _find(places: Places, path: str, deed: Deed) -> _Target:
    """Where `path` stands, in the first root that has it. Raises ToolError; its cause is ENOENT where none has it."""
    missing: ToolError | None = None
    for index, parts in places.placed(path):
        if not parts:
            raise ToolError(f"{path!r} is a root folder of this task, not a file in it")
        try:
            return _look(places, index, parts, path, deed)
        except ToolError as error:
            if _errno(error) not in (errno.ENOENT, errno.ENOTDIR):
                raise
            missing = missing or error
    assert missing is not None
    raise missing


def _look(places: Places, index: int, parts: list[str], path: str, deed: Deed) -> _Target:
    root = places.open_root(index)
    try:
        folder = open_beneath(root, parts[:-1], FOLDER)
        try:
            places.refuse_closed(folder, parts[-1], path)
            return _Target(folder, parts[-1], os.stat(parts[-1], dir_fd=folder, follow_symlinks=False))
        except BaseException:
            os.close(folder)
            raise
    except OSError as error:
        raise tool_error(path, error, deed, root, parts) from error
    finally:
        os.close(root)


def _new(places: Places, path: str) -> _Target:
    """A name that is not there yet, in the first root; the folders above it are made."""
    index, parts = next(places.placed(path))
    if len(parts) > _MAX_DEPTH:
        raise ToolError(f"{path[:1000]!r} lies more than {_MAX_DEPTH} folders deep")
    root = places.open_root(index)
    try:
        _refuse_closed(places, root, parts, path)
        return _Target(make_beneath(root, parts[:-1]), parts[-1], None)
    except OSError as error:
        raise tool_error(path, error, "written", root, parts) from error
    finally:
        os.close(root)


def _refuse_closed(places: Places, root: int, parts: list[str], path: str) -> None:
    """Raises ToolError where the nearest folder above a new file that is there already is closed, or the next name."""
    for depth in range(len(parts) - 1, -1, -1):
        try:
            folder = open_beneath(root, parts[:depth], FOLDER)
        except FileNotFoundError:
            continue
        try:
            return places.refuse_closed(folder, parts[depth], path)
        finally:
            os.close(folder)


def _errno(error: ToolError) -> int | None:
    return error.__cause__.errno if isinstance(error.__cause__, OSError) else None


def _replace(target: _Target, path: str, data: bytes, *, create_only: bool, sync: bool) -> None:
    """Puts a new file in the place of what stands there. Leaves nothing behind where it fails."""
    temporary = f".evaluator-{secrets.token_hex(8)}.tmp"
    try:
        descriptor = os.open(temporary, _NEW, 0o666 if target.status is None else 0o600, dir_fd=target.folder)
    except OSError as error:
        raise tool_error(path, error, "written") from error
    try:
        _fill(descriptor, data, target.status, sync)
        if create_only:
            os.link(temporary, target.name, src_dir_fd=target.folder, dst_dir_fd=target.folder, follow_symlinks=False)
            os.unlink(temporary, dir_fd=target.folder)
        else:
            _refuse_if_changed(target, path)
            os.rename(temporary, target.name, src_dir_fd=target.folder, dst_dir_fd=target.folder)
        if sync:
            os.fsync(target.folder)
    except FileExistsError as error:
        _discard(temporary, target.folder)
        raise _exists(path) from error
    except OSError as error:
        _discard(temporary, target.folder)
        raise tool_error(path, error, "written") from error
    except BaseException:
        _discard(temporary, target.folder)
        raise


def _fill(descriptor: int, data: bytes, replaced: os.stat_result | None, sync: bool) -> None:
    try:
        if replaced is not None:
            os.fchmod(descriptor, replaced.st_mode & 0o777)  # never a set-user-id bit for what a model wrote
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(temporary: str, folder: int) -> None:
    try:
        os.unlink(temporary, dir_fd=folder)
    except OSError:
        pass  # renamed already, or the disk refuses even that; the first error is the one to tell


def _refuse_if_changed(target: _Target, path: str) -> None:
    try:
        now = os.stat(target.name, dir_fd=target.folder, follow_symlinks=False)
    except FileNotFoundError:
        now = None
    if _identity(now) != _identity(target.status):
        raise ToolError(f"{path!r} was changed by somebody else meanwhile; read it again")


def _identity(status: os.stat_result | None) -> tuple[int, ...] | None:
    if status is None:
        return None
    return (status.st_dev, status.st_ino, status.st_mode, status.st_nlink, status.st_size, status.st_mtime_ns)


def _exists(path: str) -> ToolError:
    return ToolError(f"{path!r} exists already and is to be created only; nothing was written")


def _not_empty(path: str) -> ToolError:
    return ToolError(f"{path!r} is a folder that is not empty; delete what is in it first")
