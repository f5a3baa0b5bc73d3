"""The folder of this user's own caches: whatever is in it can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`EVALUATOR_CACHE_DIR`, else `evaluator` in `XDG_CACHE_HOME` or in `~/.cache`. It need not exist."""
    given = os.environ.get("EVALUATOR_CACHE_DIR")
    if given:
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    # The specification says that a relative path is invalid and is ignored.
    home = Path(base) if base and os.path.isabs(base) else Path.home() / ".cache"
    return home / "evaluator"
