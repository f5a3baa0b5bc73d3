"""Finds the files that ship with the code: in the wheel, or next to the package in a checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from evaluator.errors import ConfigurationError

Shipped = Literal["schemas", "templates", "handlers", "examples"]

_PACKAGE = Path(__file__).resolve().parent.parent


@cache
def shipped(kind: Shipped) -> Path:
    """The folder of the shipped `kind`.

    An installed wheel has it inside the package, a checkout beside it.
    Raises: ConfigurationError, if neither is there (a damaged installation).
    """
    for folder in (_PACKAGE / "_shipped" / kind, _PACKAGE.parent / kind):
        if folder.is_dir():
            return folder
    raise ConfigurationError(f"the shipped {kind} are missing; reinstall evaluator")


def schemas_dir() -> Path:
    """The folder of task.xsd and handler.xsd."""
    return shipped("schemas")
