"""Paths that a Python caller gives."""

from __future__ import annotations

import os
from pathlib import Path

from evaluator.errors import UsageError
from evaluator.errors.messages import type_of


def given_path(value: object, what: str) -> Path:
    """`value` as a path; `what` names it in messages.

    Raises: UsageError, for a value that is not a path, and for a text that no file system can have.
    """
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
    else:
        path = value
    if not isinstance(path, str):
        raise UsageError(f"{what} is {type_of(value)}, expected a path")
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what} is {path!r}, which has a character that no path can have; use another one"
        ) from error
    if b"\0" in encoded:
        raise UsageError(f"{what} is {path!r}, which has a null byte; use another path")
    return Path(path)
