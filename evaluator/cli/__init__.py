"""The command line: `evaluator COMMAND`. `main` is the entry point.

Exit codes: 0 all well; 1 the task failed, or what was checked has errors; 2 wrong usage; 3
configuration (a profile, a key, a folder); 130 interrupted (Ctrl-C or SIGTERM). With `--json`, an
error that leaves nothing else to print is `{"error": {"message": …, "exit_code": …}}` on standard
output.
"""

from evaluator.cli.main import main

__all__ = ["main"]
