"""Bytes that steps refer to by their SHA-256: the images in tools' answers, which cannot be fetched
a second time.

They are in the folder `attachments` beside those of task files, one file (0600) for each content,
shared by all tasks and never changed. A file gets its name only when it is whole, so a crash leaves
nothing that could be taken for it; what is read is compared with its name. Secrets cannot be
removed from an image.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from evaluator.files.atomic import write_atomic
from evaluator.files.open_below import not_writable, open_private_folder, read_regular
from evaluator.patterns import Pattern

FOLDER = "attachments"
_MAX_BYTES = 64_000_000
_SHA256 = Pattern(r"[0-9a-f]{64}")


def write_blob(root: Path, data: bytes, *, durable: bool) -> str:
    """Stores `data` below `root`; on the disk itself when this returns, if `durable`.

    Returns: its SHA-256. Raises: RecordError, where it cannot be written.
    """
    name = hashlib.sha256(data).hexdigest()
    if read_blob(root, name) is not None:
        return name
    folder = open_private_folder(root / FOLDER)
    try:
        write_atomic(name, data, dir_fd=folder, sync=durable, error=None)
    except OSError as error:
        raise not_writable(root / FOLDER, error) from error
    finally:
        os.close(folder)
    return name


def read_blob(root: Path, sha256: str) -> bytes | None:
    """The bytes of that SHA-256; None where they are missing or have been changed."""
    if not _SHA256.fullmatch(sha256):
        return None
    try:
        data = read_regular(root / FOLDER / sha256, _MAX_BYTES)
    except OSError:
        return None
    if hashlib.sha256(data).hexdigest() == sha256:
        return data
    return None
