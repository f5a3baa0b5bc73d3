"""Reads the JSON Schema files that templates name: below the template's own folder or the roots of
the run, bounded.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from evaluator.errors import ToolError
from evaluator.errors.messages import json_problem
from evaluator.files.open_below import FILE
from evaluator.files.roots import Roots

MAX_SCHEMA_BYTES = 1_000_000
OUTSIDE = "schema-outside"
"""The code of the finding for a file that is in none of the folders."""


class SchemaFileError(Exception):
    """A declared schema that cannot be used: a stable code, a message and a hint."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


def read_schema(href: str, folder: str | None, roots: Sequence[str | Path]) -> str:
    """The JSON Schema in the file `href` as compact JSON.

    `folder` is that of the template's file, to which a relative path refers; without one it refers
    to the roots. The file is a regular one below `folder` or one of `roots`, reached without a
    symbolic link.

    Raises: SchemaFileError.
    """
    folders = [*([] if folder is None else [folder or "."]), *roots]
    path = os.path.normpath(os.path.join("" if folder is None else os.path.abspath(folder), href))
    places = Roots(folders)
    try:
        # A list: `candidates` raises for a path outside when it is consumed.
        list(places.candidates(path))
    except ToolError as error:
        shown = ", ".join(map(str, places.folders))
        message = (
            f"the schema file `{href}` is outside of the template's folder and of the roots "
            f"({shown})"
        )
        hint = "move the file there, or name its folder as a root"
        raise SchemaFileError(OUTSIDE, message, hint=hint) from error
    try:
        data = _read(places.open(path, FILE))
    except ToolError as error:
        message = f"cannot read the schema file: {error}"
        raise SchemaFileError(
            "missing-schema", message, hint="the path is relative to the template's file"
        ) from error
    if len(data) > MAX_SCHEMA_BYTES:
        raise SchemaFileError(
            "bad-schema", f"the schema file `{href}` is above {MAX_SCHEMA_BYTES:,} bytes"
        )
    return _compact(data, href)


def _read(descriptor: int) -> bytes:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ToolError("it is not a regular file")
    with open(descriptor, "rb") as file:
        return file.read(MAX_SCHEMA_BYTES + 1)


@lru_cache(maxsize=64)
def _compact(data: bytes, href: str) -> str:
    try:
        schema = json.loads(data.decode("utf-8-sig"))
        if not isinstance(schema, dict):
            raise SchemaFileError("bad-schema", f"the schema file `{href}` is not a JSON object")
        return json.dumps(schema, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise SchemaFileError(
            "bad-schema", f"the schema file `{href}` is not JSON: {json_problem(error)}"
        ) from error
