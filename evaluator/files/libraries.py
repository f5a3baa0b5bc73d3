"""Imports of large and optional packages, which leave the process's environment as it is.

A package may change `os.environ` while it is imported. LiteLLM does: it reads the `.env` file of
the nearest folder above its own one, which is the project's if that has a virtual environment in
it. Hosts, proxies and CA files would then be the project's choice. All such imports are here.

Imports what a user names as `module:name` or `file.py:name`.

A module is looked up as Python does, then in the current folder. Files are loaded from their
source, never from a compiled file.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from threading import RLock
from types import MappingProxyType, ModuleType
from typing import Any

from evaluator.errors import MissingExtra
from evaluator.files.project_code import CodeGuard, CodeLoader, guarded_import

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


FILE_NAMES: dict[str, str] = {}
"""The module names of imported files, which encode their paths, and the files' own names."""


def import_place(place: str, guard: CodeGuard | None = None) -> ModuleType:
    """The module called `place`, or the file, if it ends in `.py`. It is run once per process.

    `guard` is asked about what Python itself would not find.

    Raises: whatever importing it raises; FileNotFoundError and ModuleNotFoundError, if there is
    none; ConfigurationError, for code that a guard refuses.
    """
    if place.endswith(".py"):
        path = Path(place).resolve()
        if guard is not None:
            guard = replace(guard, folder=str(path.parent))
        with guarded_import(guard):
            return _file_module(path)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        top = place.partition(".")[0]
        here = os.getcwd()
        if (
            error.name != top
            or here in sys.path
            or not any(os.path.exists(f"{top}{end}") for end in ("", ".py"))
        ):
            raise
    with guarded_import(guard):
        sys.path.insert(0, here)
        try:
            importlib.invalidate_caches()
            return importlib.import_module(place)
        finally:
            sys.path.remove(here)


def _file_module(path: Path) -> ModuleType:
    name = f"{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    loader = CodeLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python module")
    module = importlib.util.module_from_spec(spec)
    FILE_NAMES[name] = path.name
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
