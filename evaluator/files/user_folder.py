"""The folders of this user: the configuration, which no project and no task can change, and the
caches.
"""

from __future__ import annotations

import os
from pathlib import Path


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
        return Path(given).absolute()
    base = os.environ.get(f"XDG_{kind}_HOME")
    # The specification says that a relative path is invalid and is ignored.
    if base and os.path.isabs(base):
        home = Path(base)
    else:
        home = Path.home() / default
    return home / "evaluator"
