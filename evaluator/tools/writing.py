"""Changes files below a task's roots: writes, edits and deletes, by descriptor, never through a
symbolic link.

No file is opened for writing in place. The new content goes into a temporary file in the same
folder, which is then
renamed: a reader sees the old file or the new one, a full disk or a killed process leaves the old
one complete, and a link that another process puts there meanwhile is replaced and not followed.
Files that `file_access` does not read are not changed either, nor is a file that another process
changed between the check and the rename.

Each function also has a dry run, which returns the same value and raises the same errors as far as
they can be known without doing anything.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import replace

from evaluator import disk
from evaluator.errors import ToolError
from evaluator.files.atomic import atomic_file
from evaluator.files.open_below import (
    FILE,
    FOLDER,
    UTF_8,
    FileEncoding,
    decode,
    make_beneath,
    open_beneath,
)
from evaluator.files.roots import Action, Roots, refuse_unless_plain, tool_error
from evaluator.lazy_dataclass import frozen
from evaluator.tools.file_access import MAX_FILE_BYTES, FileAccess, diff, read_all, replace_text

_MAX_DEPTH = 64  # the depth to which files are searched


@frozen
class FileChange:
    """What a call makes of a text file.

    `before` is None for a new file and for one that is not text; `size_before` is None only for a
    new file. `count`: how many places an edit changed.
    """

    path: str
    before: str | None
    after: str
    encoding: FileEncoding
    encoding_before: FileEncoding | None = None
    size_before: int | None = None
    count: int = 0

    def preview(self, does: str) -> str:
        """The path, what the call does, and the changed lines."""
        return (
            f"{json.dumps(self.path, ensure_ascii=False)}: "
            f"{does}\n{diff(self.before or '', self.after)}"
        )


@frozen
class _Target:
    """A name in an open folder, and the file with that name (None: there is none). A block closes
    the folder.
    """

    folder: int
    name: str
    status: os.stat_result | None

    def __enter__(self) -> _Target:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.folder)


def write_file(
    access: FileAccess, path: str, content: str, *, create_only: bool = False, dry_run: bool = False
) -> FileChange:
    """Writes `content` as UTF-8 into a file, which keeps its mode if it exists.

    A relative path means the file that `read_file` would read. A new file is created in the first
    root, with the folders above it, which remain even if the write fails. `create_only`: an
    existing file is an error.

    Raises: ToolError, for what this module refuses, above 10 MB, and where the file cannot be
    written.
    """
    data = UTF_8.encode(content, path)
    if len(data) > MAX_FILE_BYTES:
        raise ToolError(
            f"the content of {path!r} is too large: {len(data):,} bytes, at most "
            f"{MAX_FILE_BYTES:,} are written"
        )
    if path.endswith("/"):
        raise ToolError(f"{path[:1000]!r} names a folder; name a file")
    try:
        target = _existing(access.roots, path, action="written")
    except ToolError as error:
        if _errno(error) != errno.ENOENT:
            raise
        if dry_run:
            return FileChange(path, None, after=content, encoding=UTF_8)
        target = _new(access.roots, path)
    with target:
        change = _rewrite(target, path, content=content, create_only=create_only)
        if not dry_run:
            _publish(target, path, data=data, create_only=create_only)
    return change


def edit_file(
    access: FileAccess, path: str, old: str, new: str, *, count: int = 1, dry_run: bool = False
) -> FileChange:
    """Replaces every occurrence of the exact text `old`; there must be at least 1 and at most
    `count`.

    Encoding, byte order mark and mode stay. In a file whose lines all end in CR LF, a line feed in
    `old` and `new` means that too.

    Raises: ToolError, for what this module refuses, and where `old` does not occur, with the
    nearest lines, or more often than `count`.
    """
    with _existing(access.roots, path, action="written") as target:
        data, status = _read(target, path)
        _require_writable(target, path)
        before, encoding = decode(data, path)
        after, places = replace_text(before, old, new=new, count=count, path=path)
        data = encoding.encode(after, path)
        if len(data) > MAX_FILE_BYTES:
            raise ToolError(
                f"{path!r} would be too large: {len(data):,} bytes, at most {MAX_FILE_BYTES:,} "
                "are written"
            )
        if not dry_run:
            _publish(replace(target, status=status), path, data=data, create_only=False)
    return FileChange(
        path,
        before,
        after=after,
        encoding=encoding,
        encoding_before=encoding,
        size_before=status.st_size,
        count=places,
    )


def delete_file(access: FileAccess, path: str, *, dry_run: bool = False) -> str:
    """Deletes one regular file or one empty folder; returns "file" or "folder".

    Raises: ToolError, for what this module refuses, for a folder that is not empty, and for a root.
    """
    with _existing(access.roots, path, action="deleted") as target:
        kind = _kind(target, path)
        try:
            if dry_run:
                pass
            elif kind == "folder":
                disk.rmdir(target.name, dir_fd=target.folder)
            else:
                disk.unlink(target.name, dir_fd=target.folder)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise _not_empty(path) from error
            raise tool_error(path, error, action="deleted") from error
        return kind


def _rewrite(target: _Target, path: str, content: str, create_only: bool) -> FileChange:
    if target.status is None:
        return FileChange(path, None, after=content, encoding=UTF_8)
    refuse_unless_plain(path, target.status, action="written")
    if create_only:
        raise _exists(path)
    _require_writable(target, path)
    size = target.status.st_size
    try:
        before, encoding = decode(_read(target, path)[0], path)
    except ToolError:  # a binary file, or one that is too large to be read
        return FileChange(path, None, after=content, encoding=UTF_8, size_before=size)
    return FileChange(
        path, before, after=content, encoding=UTF_8, encoding_before=encoding, size_before=size
    )


def _require_writable(target: _Target, path: str) -> None:
    if not os.access(target.name, os.W_OK, dir_fd=target.folder):
        raise tool_error(path, PermissionError(errno.EACCES, ""), action="written")


def _read(target: _Target, path: str) -> tuple[bytes, os.stat_result]:
    try:
        descriptor = os.open(target.name, FILE, dir_fd=target.folder)
    except OSError as error:
        raise tool_error(path, error) from error
    try:
        status = os.fstat(descriptor)
        refuse_unless_plain(path, status, action="read")
        return read_all(descriptor, path, max_bytes=MAX_FILE_BYTES), status
    finally:
        os.close(descriptor)


def _kind(target: _Target, path: str) -> str:
    if target.status is None:
        raise tool_error(path, FileNotFoundError(errno.ENOENT, ""), action="deleted")
    if not stat.S_ISDIR(target.status.st_mode):
        refuse_unless_plain(path, target.status, action="deleted")
        return "file"
    try:
        descriptor = os.open(target.name, FOLDER, dir_fd=target.folder)
    except OSError as error:
        raise tool_error(path, error, action="deleted") from error
    try:
        if os.listdir(descriptor):
            raise _not_empty(path)
    finally:
        os.close(descriptor)
    return "folder"


def _existing(roots: Roots, path: str, action: Action) -> _Target:
    """The file `path` in the first root that has it. Raises ToolError; its cause is ENOENT if no
    root has it.
    """
    missing: ToolError | None = None
    for index, parts in roots.candidates(path):
        if not parts:
            raise ToolError(f"{path!r} is a root folder of this task, not a file in it")
        try:
            return _look_up(roots, index, parts=parts, path=path, action=action)
        except ToolError as error:
            if _errno(error) not in (errno.ENOENT, errno.ENOTDIR):
                raise
            missing = missing or error
    raise missing or ToolError(f"{path!r} does not exist")


def _look_up(roots: Roots, index: int, parts: list[str], path: str, action: Action) -> _Target:
    root = roots.open_root(index)
    try:
        folder = open_beneath(root, parts[:-1], flags=FOLDER)
        try:
            roots.refuse_denied(folder, parts[-1], path)
            return _Target(
                folder, parts[-1], status=os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            )
        except BaseException:
            os.close(folder)
            raise
    except OSError as error:
        raise tool_error(path, error, action=action, root=root, parts=parts) from error
    finally:
        os.close(root)


def _new(roots: Roots, path: str) -> _Target:
    """A name that does not exist yet, in the first root; missing folders above it are created."""
    index, parts = next(roots.candidates(path))
    if len(parts) > _MAX_DEPTH:
        raise ToolError(f"{path[:1000]!r} lies more than {_MAX_DEPTH} folders deep")
    root = roots.open_root(index)
    try:
        _refuse_denied(roots, root, parts=parts, path=path)
        return _Target(make_beneath(root, parts[:-1]), parts[-1], status=None)
    except OSError as error:
        raise tool_error(path, error, action="written", root=root, parts=parts) from error
    finally:
        os.close(root)


def _refuse_denied(roots: Roots, root: int, parts: list[str], path: str) -> None:
    """Raises ToolError if the nearest existing folder above a new file is denied, or the next name
    in it.
    """
    for depth in range(len(parts) - 1, -1, -1):
        try:
            folder = open_beneath(root, parts[:depth], flags=FOLDER)
        except FileNotFoundError:
            continue
        try:
            return roots.refuse_denied(folder, parts[depth], path)
        finally:
            os.close(folder)


def _errno(error: ToolError) -> int | None:
    if isinstance(error.__cause__, OSError):
        return error.__cause__.errno
    return None


def _publish(target: _Target, path: str, data: bytes, *, create_only: bool) -> None:
    """Replaces the target by a new file, which keeps the target's permissions."""
    mode = 0o600
    if target.status is None:
        mode = 0o666
    try:
        with atomic_file(
            target.name,
            dir_fd=target.folder,
            mode=mode,
            sync=False,
            replace=not create_only,
            error=None,
        ) as file:
            if target.status is not None:
                # Never a set-user-id bit for a file that a model wrote.
                os.fchmod(file.fileno(), target.status.st_mode & 0o777)
            file.write(data)
            if not create_only:
                _refuse_if_changed(target, path)
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        raise tool_error(path, error, action="written") from error


def _refuse_if_changed(target: _Target, path: str) -> None:
    try:
        now = os.stat(target.name, dir_fd=target.folder, follow_symlinks=False)
    except FileNotFoundError:
        now = None
    if _version(now) != _version(target.status):
        raise ToolError(f"{path!r} was changed by another process in the meantime; read it again")


def _version(status: os.stat_result | None) -> tuple[int, ...] | None:
    if status is None:
        return None
    return (
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_nlink,
        status.st_size,
        status.st_mtime_ns,
    )


def _exists(path: str) -> ToolError:
    return ToolError(f"{path!r} exists already, and create_only was given; nothing was written")


def _not_empty(path: str) -> ToolError:
    return ToolError(f"{path!r} is a folder that is not empty; delete its contents first")
