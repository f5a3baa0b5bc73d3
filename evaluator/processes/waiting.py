"""Whether a program waits for its standard input, or for a terminal, as Linux's `/proc` tells."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from evaluator import this_process
from evaluator.processes import launcher

# The number of the system call `read`.
_READ = {"x86_64": "0", "aarch64": "63", "riscv64": "63"}.get(this_process.machine())
_TERMINALS = ("/dev/tty", "/dev/pts/", "/dev/console")


def is_waiting(root: int, pipe: int | None) -> bool | None:
    """Whether a descendant of the process `root` is in a `read` of the pipe with the inode `pipe`,
    or of a terminal. None: the system does not tell.
    """
    if not sys.platform.startswith("linux") or _READ is None:
        return None
    found: bool | None = None
    for pid, _ in launcher.members(root):
        for target in _read_now(pid):
            if target.startswith(_TERMINALS) or target == f"pipe:[{pipe}]":
                return True
            found = False
    return found


def _read_now(pid: int) -> Iterator[str]:
    """What the threads of a process read at this moment, each as the target of its descriptor; ""
    for a thread that reads nothing.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/syscall", encoding="ascii") as file:
                call = file.read().split()
            if len(call) > 1 and call[0] == _READ:
                yield os.readlink(f"/proc/{pid}/fd/{int(call[1], 16)}")
            elif call:
                yield ""
        except (OSError, ValueError):
            continue  # it has ended, or this process may not look
