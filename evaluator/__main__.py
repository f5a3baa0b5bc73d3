"""The command `evaluator`, also as `python -m evaluator`."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs `cli.main`. Ctrl-C outside its own handling, as while its modules are imported, prints no traceback."""
    try:
        from evaluator.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
