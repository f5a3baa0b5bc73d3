"""Bytes that steps refer to by their SHA-256: the images of tools' answers, which nobody could get a second time.

They lie in the folder `attachments` beside those of task files, one file (0600) for each content, shared by all tasks
and never changed. A file has its name only when it is whole, so a crash leaves nothing that could be taken for it;
what is read is held against its name. Secrets cannot be taken out of an image.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from pathlib import Path

from evaluator.record.folder import checked_folder, unusable

FOLDER = "attachments"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def keep(root: Path, data: bytes, *, durable: bool) -> str:
    """Keeps `data` under `root`; on the disk itself when this returns, if `durable`.

    Returns: its SHA-256. Raises: RecordError, where it cannot be written.
    """
    name = hashlib.sha256(data).hexdigest()
    if read(root, name) is not None:
        return name
    folder = checked_folder(root / FOLDER)
    partial = f".{name}.{secrets.token_hex(4)}"
    try:
        with open(os.open(partial, _NEW, 0o600, dir_fd=folder), "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        if durable:
            os.fsync(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(partial, dir_fd=folder)
        raise unusable(root / FOLDER, error) from error
    finally:
        os.close(folder)
    return name


def read(root: Path, sha256: str) -> bytes | None:
    """The bytes of that SHA-256; None where they are not there, or not what they were."""
    if not _SHA256.fullmatch(sha256):
        return None
    try:
        with open(os.open(root / FOLDER / sha256, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            data = file.read()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == sha256 else None
