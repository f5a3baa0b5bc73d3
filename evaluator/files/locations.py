"""Where files are: what ships with the code, this user's folders, paths that a Python caller gives.

The folders of this user: the configuration, which no project and no task can change, and the
caches.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from evaluator.errors import ConfigurationError, UsageError
from evaluator.errors.messages import type_of

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


def user_folder() -> Path:
    """`EVALUATOR_CONFIG_DIR`, else `evaluator` in `XDG_CONFIG_HOME` or in `~/.config`. It need not
    exist.
    """
    return _folder("CONFIG", ".config")


def cache_folder() -> Path:
    """`EVALUATOR_CACHE_DIR`, else `evaluator` in `XDG_CACHE_HOME` or in `~/.cache`: whatever is in
    it can be made again. It need not exist.
    """
    return _folder("CACHE", ".cache")


def _folder(kind: str, default: str) -> Path:
    given = os.environ.get(f"EVALUATOR_{kind}_DIR")
    if given:
        if os.path.isabs(given):
            return _absolute(given)
        return Path(given).absolute()
    return _folder_below(os.environ.get(f"XDG_{kind}_HOME"), os.environ.get("HOME"), default)


_absolute = lru_cache(maxsize=8)(Path)


@lru_cache(maxsize=8)
def _folder_below(base: str | None, home: str | None, default: str) -> Path:
    # The specification says that a relative path is invalid and is ignored. `home` is only a part
    # of the key: Path.home reads it.
    if base and os.path.isabs(base):
        return Path(base) / "evaluator"
    return Path.home() / default / "evaluator"


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
