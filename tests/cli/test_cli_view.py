"""`evaluator view` as a process: it prints its address, serves only there, and Ctrl-C ends it."""

from __future__ import annotations

import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest


def test_it_prints_an_address_that_answers_until_ctrl_c(start: Any, tmp_path: Path) -> None:
    process = start("view", "--port", "0")
    address = process.stdout.readline().decode().strip()
    assert address.startswith("http://127.0.0.1:")
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(address) as answer:
        assert "There are no task files here yet" in answer.read().decode()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(address.partition("?")[0])
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert (process.returncode, b"Traceback" in err, b"stopped" in err) == (0, False, True)
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_an_error(start: Any, cli: Any) -> None:
    process = start("view")
    port = process.stdout.readline().decode().partition("?")[0].rstrip("/").rpartition(":")[2]
    ran = cli("view", "--port", port)
    assert ran.code == 2
    assert f"--port {port}: " in ran.err and "choose another port" in ran.err
