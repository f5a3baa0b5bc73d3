"""A file that is there whole or not at all: written beside its place, then renamed into it.

A reader, and whoever comes after a crash, sees the old file or the new one. The file is on the disk before it gets
its name. A crash leaves a `.NAME.…` beside it, and nothing reads that. A link at the place itself is replaced; what it
points to is left alone. What a batch wrote of itself is never the place.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, BinaryIO, cast

from evaluator.batch.folder import CHANGED, MANIFEST, RESULTS, SUMMARY, TASKS
from evaluator.batch.identity import SCHEMA
from evaluator.errors import RecordError, UsageError

_RECORDS = frozenset({MANIFEST, RESULTS, SUMMARY, CHANGED})


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Generator[BinaryIO]:
    """An open binary file, empty; it becomes `path` (0600) where the block ends well, and nothing otherwise.

    Raises: UsageError, as `expect_free`; RecordError, if it cannot be written.
    """
    path = Path(path)
    expect_free(path)
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


def expect_free(path: str | Path) -> None:
    """Raises: UsageError, where `path` is, or a link at it leads to, a file of a batch's own record: without it the
    batch could not be opened again."""
    path = Path(path)
    try:
        places = {path.parent.resolve() / path.name, path.resolve()}
    except (OSError, RuntimeError, ValueError):
        # Links in a circle: there is nothing.
        return
    for place in places:
        for folder in place.parents:
            below = place.relative_to(folder).parts
            if (below[0] == TASKS or (len(below) == 1 and below[0] in _RECORDS)) and _is_batch(folder):
                raise UsageError(f"{path}: is part of the record of the batch {folder}; give the output another name")


def _is_batch(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    schema = cast("dict[str, Any]", manifest).get("schema") if isinstance(manifest, dict) else None
    return isinstance(schema, str) and schema.partition("/")[0] == SCHEMA.partition("/")[0]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
