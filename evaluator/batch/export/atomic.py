"""A file that is there whole or not at all: written beside its place, then renamed into it.

A reader, and whoever comes after a crash, sees the old file or the new one. The file is on the disk before it gets
its name. A crash leaves a `.NAME.…` beside it, and nothing reads that. A link at the place itself is replaced; what it
points to is left alone.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from evaluator.errors import RecordError


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Generator[BinaryIO]:
    """An open binary file, empty; it becomes `path` (0600) where the block ends well, and nothing otherwise.

    Raises: RecordError, if it cannot be written.
    """
    path = Path(path)
    temporary: str | None = None
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
        with contextlib.suppress(OSError):
            _sync_folder(path.parent)
    except OSError as error:
        raise RecordError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
