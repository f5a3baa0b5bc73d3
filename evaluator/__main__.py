"""The command `evaluator`, also as `python -m evaluator`."""

from __future__ import annotations

import gc
import sys

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


if __name__ == "__main__":
    main()
