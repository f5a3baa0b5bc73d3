"""The program that compares expressions with math-verify: a process of its own, as SymPy's time has
no bound.

Standard input has pairs of LaTeX expressions, one JSON array in each line; for each pair a line
with `true`, `false` or an error's text, as JSON, is written. SIGPROF ends the process when a pair
has used its processor time, also in C code.
"""

import json
import logging
import signal
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    math_verify: Any = import_module("math_verify")
    logging.disable()
    seconds = float(sys.argv[1])
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            expected, found = (
                math_verify.parse(f"${text}$", parsing_timeout=None) for text in json.loads(line)
            )
            result: object = bool(math_verify.verify(expected, found, timeout_seconds=None))
        except Exception as error:
            result = f"{type(error).__name__}: {error}"[:500]
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
