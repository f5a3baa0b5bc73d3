"""The command `evaluator`, also as `python -m evaluator`."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

_GC_THRESHOLD = 50_000
"""Allocations between two garbage collections. Python's default, 700, costs a command a tenth of
its time, most of it during imports. Samples leave no reference cycles, so frequent collections free
nothing.
"""


def main() -> None:
    """Runs `cli.main` in a process of its own. Ctrl-C outside its own handling, as while its
    modules are imported, prints no traceback.
    """
    gc.set_threshold(_GC_THRESHOLD)
    try:
        from evaluator.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


def _forget_current_folder() -> None:
    """Removes the current folder from the places where modules are looked up. `python -m` puts it
    there, so that a project's `click.py` would be imported.
    """
    here = os.getcwd()
    is_own = Path(here) == Path(__file__).parents[1]  # not installed: this package is found there
    if not sys.flags.safe_path and not is_own and sys.path[:1] == [here]:
        del sys.path[0]


if __name__ == "__main__":
    _forget_current_folder()
    main()
