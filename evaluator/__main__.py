"""The command `evaluator`, also as `python -m evaluator`."""

from __future__ import annotations

import sys

_GC_THRESHOLD = 50_000
"""Allocations between two garbage collections. Python's default, 700, costs a command a tenth of
its time. Samples leave no reference cycles, so frequent collections free nothing. There is no
collection before the command is imported.
"""


def main() -> None:
    """Runs `cli.main` in a process of its own, and ends that process. Ctrl-C outside its own
    handling, as while its modules are imported, prints no traceback. What is imported before this
    function runs is kept to a millisecond.
    """
    try:
        _run()
    except SystemExit as ending:
        _end_process(ending.code)
        raise


def _run() -> None:
    try:
        import gc

        from evaluator.lazy_names import check_platform

        check_platform()
        gc.set_threshold(_GC_THRESHOLD)
        gc.disable()  # `get_command` enables it
        from evaluator.cli import main as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except ImportError as error:
        if sys.platform != "win32":
            raise
        raise SystemExit(f"error: {error}") from None
    finally:
        import signal

        # A second Ctrl-C, while the process ends, ends it at once and silently.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_process(code: object) -> None:
    """Ends the process without freeing its objects, which takes 10 ms after a run. What Python does
    at its end happens before: it waits for threads and for the work of pools, which may run in
    daemon threads, and runs what is registered for the end of the process.

    Returns if Python has more to do: a program around the command, as a profiler or a debugger is,
    output that cannot be written, a prompt (`python -i`), and databases, which remove their files
    when they are closed.
    """
    import atexit
    import os
    import threading

    caller = sys._getframe(1).f_back  # pyright: ignore[reportPrivateUsage]
    while caller is not None:
        if caller.f_code.co_name != "<module>" and caller.f_code.co_filename != "<frozen runpy>":
            return
        caller = caller.f_back
    if sys.flags.inspect or not isinstance(code, int):
        return
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    if any(name in sys.modules for name in ("sqlite3", "apsw", "multiprocessing")):
        return
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    os._exit(code)


def _forget_current_folder() -> None:
    """Removes the current folder from the places where modules are looked up. `python -m` puts it
    there, so that a project's `click.py` would be imported.
    """
    import os

    here = os.getcwd()
    # Not installed: this package is found there.
    is_own = here == os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not sys.flags.safe_path and not is_own and sys.path[:1] == [here]:
        del sys.path[0]


if __name__ == "__main__":
    _forget_current_folder()
    main()
