"""The command line: `evaluator COMMAND`. `main` is the entry point.

Exit codes: 0 all well; 1 the task failed, or what was checked has errors; 2 wrong usage; 3 configuration
(a profile, a key, a folder); 130 interrupted.
"""

from evaluator.cli.main import main

__all__ = ["main"]
