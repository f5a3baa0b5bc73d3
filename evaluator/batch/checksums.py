"""Checksums of what a batch writes: each line of its results, and its manifest.

They show that bytes were changed after they were written: by a disk, a transfer or an editor. They
do not protect against somebody who computes them again.

A line is `{"crc32":"0a1b2c3d",…}` and a manifest begins likewise: the CRC-32 of all bytes after the
one's digits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast
from zlib import crc32

from evaluator.errors.messages import json_problem, type_of

ALTERED = "was changed after it was written, or was written by an earlier version"
REPAIR = "resume the batch with --repair (in Python: repair=True)"

_LINE = b'{"crc32":"'
_DIGITS = 8
_LINE_BODY = len(_LINE) + _DIGITS
_MANIFEST = b'{\n  "crc32": "'
_MANIFEST_BODY = len(_MANIFEST) + _DIGITS


def seal_line(text: str) -> bytes:
    """The line of `text`, a JSON object with at least one member, with its checksum."""
    body = b'",' + text.encode()[1:]
    return b"%b%08x%b\n" % (_LINE, crc32(body), body)


def is_sealed(line: bytes) -> bool:
    """Whether a line, with its line end, is as `seal_line` made it."""
    return line.startswith(_LINE) and line[len(_LINE) : _LINE_BODY] == b"%08x" % crc32(
        memoryview(line)[_LINE_BODY:-1]
    )


def seal_manifest(manifest: Mapping[str, Any]) -> bytes:
    """The manifest as indented JSON, with its checksum as the first member."""
    body = indented_json({"crc32": "0" * _DIGITS, **manifest})[_MANIFEST_BODY:]
    return b"%b%08x%b" % (_MANIFEST, crc32(body), body)


def indented_json(value: Mapping[str, Any]) -> bytes:
    """`value` as UTF-8. A lone surrogate, which UTF-8 lacks, is written as JSON's own escape for
    it.
    """
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def read_manifest(data: bytes, *, repair: bool = False) -> dict[str, Any]:
    """The manifest in `data`. `repair`: it may have been changed.

    Raises: ValueError, with the reason.
    """
    if not repair and (
        not data.startswith(_MANIFEST)
        or data[len(_MANIFEST) : _MANIFEST_BODY]
        != b"%08x" % crc32(memoryview(data)[_MANIFEST_BODY:])
    ):
        raise ValueError(f"{ALTERED}; to use it as it is, {REPAIR}")
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ValueError(
            f"invalid JSON: {json_problem(error)}; restore it, or run the batch into a new folder"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type_of(value)}")
    found = cast("dict[str, Any]", value)
    found.pop("crc32", None)
    return found
