"""Imports of large and optional packages, which leave the process's environment as it is.

A package may change `os.environ` while it is imported. LiteLLM does: it reads the `.env` file of
the nearest folder above its own one, which is the project's if that has a virtual environment in
it. Hosts, proxies and CA files would then be the project's choice. All such imports are here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from threading import RLock
from types import MappingProxyType
from typing import Any

from evaluator.errors import MissingExtra

# Read by packages while they are imported: no `.env`, no download, no report of use.
_WHILE_IMPORTING: Mapping[str, str] = MappingProxyType(
    {
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
)
_NOTHING: Mapping[str, str] = MappingProxyType({})
_lock = RLock()


def import_library(module: str, settings: Mapping[str, str] = _NOTHING) -> Any:
    """A module of an installed package; `os.environ` is the same before and after.

    `settings` are environment variables that only the import sees, in addition to those that every
    import sees.

    Raises: whatever importing it raises.
    """
    if module in sys.modules:
        return import_module(module)
    with _lock, _same_environment():
        os.environ.update(_WHILE_IMPORTING)
        os.environ.update(settings)
        return import_module(module)


def import_extra(module: str, extra: str, settings: Mapping[str, str] = _NOTHING) -> Any:
    """A module of an optional package, as `import_library`. Raises: MissingExtra, which names the
    `extra` to install.
    """
    try:
        return import_library(module, settings)
    except ImportError as error:
        raise MissingExtra(module.partition(".")[0].replace("_", "-"), extra) from error


@contextmanager
def _same_environment() -> Generator[None]:
    """Takes back all changes of `os.environ`."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
