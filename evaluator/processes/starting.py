"""Starts processes. No other module does, except the launcher, which is a program of its own.

Call the functions through the module (`starting.popen(…)`), so that simulations can replace them.
"""

from __future__ import annotations

import asyncio
import os
import subprocess

__all__ = ["create_subprocess", "fork", "popen", "run"]

create_subprocess = asyncio.create_subprocess_exec
fork = os.fork
popen = subprocess.Popen
run = subprocess.run
