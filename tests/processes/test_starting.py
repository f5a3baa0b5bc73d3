"""A process is killed without taking its status from the event loop that waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from evaluator.processes import starting


@pytest.mark.parametrize(
    ("program", "has_ended", "status"),
    [("raise SystemExit(7)", True, 7), ("input()", False, -signal.SIGKILL)],
)
def test_a_kill_leaves_the_status_to_who_waits_for_it(program, has_ended, status):
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        if has_ended:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        starting.kill(process)
        assert process.returncode is None
        process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        assert process.returncode == status
        starting.kill(process)
