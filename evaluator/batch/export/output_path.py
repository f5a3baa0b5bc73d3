"""Opens the output file of an export or report, which must not overwrite a batch's own record."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any, BinaryIO, cast

from evaluator.batch.folder import (
    CHANGED,
    DAMAGED,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    RESULTS,
    SUMMARY,
    TASKS,
)
from evaluator.batch.identity import SCHEMA
from evaluator.errors import UsageError
from evaluator.files.atomic import atomic_file
from evaluator.files.open_below import read_regular

_RECORDS = frozenset({MANIFEST, RESULTS, SUMMARY, CHANGED, DAMAGED})


@contextlib.contextmanager
def output_file(path: str | Path) -> Generator[BinaryIO]:
    """`atomic_file`, except for a file of a batch's record.

    Raises: UsageError, as `check_not_record`; RecordError, if it cannot be written.
    """
    check_not_record(path)
    with atomic_file(path) as file:
        yield file


def check_not_record(path: str | Path) -> None:
    """Raises: UsageError, where `path` is a file of a batch's record, or a link to one: the batch
    could not be opened without it.
    """
    path = Path(path)
    try:
        places = {path.parent.resolve() / path.name, path.resolve()}
    except (OSError, RuntimeError, ValueError):
        # Links in a circle lead to no file.
        return
    for place in places:
        for folder in place.parents:
            below = place.relative_to(folder).parts
            if (below[0] == TASKS or (len(below) == 1 and below[0] in _RECORDS)) and _is_batch(
                folder
            ):
                raise UsageError(
                    f"{path}: belongs to the record of the batch {folder}; choose another "
                    "output file"
                )


def _is_batch(folder: Path) -> bool:
    try:
        manifest = json.loads(read_regular(folder / MANIFEST, MAX_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    if isinstance(manifest, dict):
        schema = cast("dict[str, Any]", manifest).get("schema")
    else:
        schema = None
    return isinstance(schema, str) and schema.partition("/")[0] == SCHEMA.partition("/")[0]
