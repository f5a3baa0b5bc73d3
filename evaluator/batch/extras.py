"""Imports of optional packages."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from evaluator.errors import MissingExtra


def import_extra(module: str, extra: str) -> Any:
    """A module of an optional package. Raises: MissingExtra, which names the `extra` to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(module.partition(".")[0].replace("_", "-"), extra) from error
