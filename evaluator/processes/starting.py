"""Starts processes, the threads of tools, and timers. No other module starts a process, except the
launcher, which is a program of its own.

Call the functions through the module (`starting.popen(…)`), so that simulations can replace them.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable

__all__ = ["Timer", "create_subprocess", "fork", "popen", "run", "start_thread"]

create_subprocess = asyncio.create_subprocess_exec
fork = os.fork
popen = subprocess.Popen
run = subprocess.run
Timer = threading.Timer


def start_thread(work: Callable[[], None], name: str) -> None:
    """Calls `work` in a thread that does not delay the end of the program."""
    threading.Thread(target=work, name=name, daemon=True).start()
