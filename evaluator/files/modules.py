"""Imports what a user names as `module:name` or `file.py:name`.

A module is looked up as Python does, then in the current folder. Files are loaded from their
source, never from a compiled file.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from evaluator.files.project_code import CodeGuard, CodeLoader, guarded_import

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
