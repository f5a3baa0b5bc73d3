"""Starts processes, the threads of tools, and timers. No other module starts a process, except the
launcher, which is a program of its own.

Call the functions through the module (`starting.popen(…)`), so that simulations can replace them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Timer", "create_subprocess", "fork", "kill", "popen", "run", "start_thread"]

create_subprocess = asyncio.create_subprocess_exec
fork = os.fork
popen = subprocess.Popen
run = subprocess.run
Timer = threading.Timer


def kill(process: Process) -> None:
    """Kills a process of `create_subprocess`, unless it has ended.

    `Process.kill` would take the status of a process that has just ended from the event loop, which
    then reports 255.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def start_thread(work: Callable[[], None], name: str) -> None:
    """Calls `work` in a thread that does not delay the end of the program."""
    threading.Thread(target=work, name=name, daemon=True).start()
