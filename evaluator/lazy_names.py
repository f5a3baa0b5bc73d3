"""Loads the public names of a package when they are first used (PEP 562)."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in `evaluator/__init__.py`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any


def check_platform() -> None:
    """Raises: ImportError, on Windows, which lacks the file locks and process groups that this
    package needs.
    """
    if sys.platform == "win32":
        raise ImportError(
            "evaluator runs on Linux and macOS, not on Windows itself; install and start it in the "
            "Windows Subsystem for Linux (WSL)"
        )


def lazy_names(package: str, homes: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of `package`: `homes` has its names by module, absolute or relative
    (`.module`).

    A type checker has to see imports in its place, so that it reports every other name as an error.
    """
    home = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        check_platform()
        from importlib import import_module

        value = getattr(import_module(home[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
