"""The folder of this user's own configuration, which no project and no task can change."""

from __future__ import annotations

import os
from pathlib import Path


def user_folder() -> Path:
    """`EVALUATOR_CONFIG_DIR`, else `evaluator` in `XDG_CONFIG_HOME` or in `~/.config`. It need not exist."""
    given = os.environ.get("EVALUATOR_CONFIG_DIR")
    if given:
        return Path(given).absolute()
    base = os.environ.get("XDG_CONFIG_HOME")
    # The specification says that a relative path is invalid and is ignored.
    home = Path(base) if base and os.path.isabs(base) else Path.home() / ".config"
    return home / "evaluator"
