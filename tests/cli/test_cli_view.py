"""`evaluator view` as a process: it prints its address, serves only there, and Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def test_it_prints_an_address_that_answers_until_ctrl_c(start: Any, tmp_path: Path) -> None:
    process = start("view", "--port", "0")
    address = process.stdout.readline().decode().strip()
    assert address.startswith("http://127.0.0.1:")
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(address) as answer:
        assert '"has_anything":false' in answer.read().decode()
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        urllib.request.urlopen(address.partition("?")[0])
    refused.value.close()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert (process.returncode, b"Traceback" in err, b"stopped" in err) == (0, False, True)
    assert list(tmp_path.iterdir()) == []


def test_a_request_that_is_not_http_is_refused_and_nothing_is_written_to_the_terminal(
    start: Any,
) -> None:
    process = start("view", "--port", "0")
    address = process.stdout.readline().decode().partition("?")[0]
    host, _, port = address.removeprefix("http://").rstrip("/").partition(":")
    for request in (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n\r\n", b"\x16\x03\x01 hello\r\n\r\n"):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(request)
            assert b" 400 " in connection.recv(100)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert err.decode().splitlines() == ["Ctrl-C ends the server", "stopped"]


def test_a_port_in_use_is_an_error(start: Any, cli: Any) -> None:
    process = start("view")
    port = process.stdout.readline().decode().partition("?")[0].rstrip("/").rpartition(":")[2]
    ran = cli("view", "--port", port)
    assert ran.code == 2
    assert f"--port {port}: " in ran.err and "choose another port" in ran.err


@pytest.fixture
def view(start: Any, tmp_path: Path, environment: dict[str, str]) -> Iterator[Any]:
    """`view()`: the server's process, which has a terminal and a browser that does nothing."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "project").mkdir()
    terminals: list[int] = []

    def begin() -> Any:
        ours, theirs = os.openpty()
        terminals.extend((ours, theirs))
        env = {**environment, "BROWSER": "true %s", "TMPDIR": str(tmp_path / "temporary")}
        process = start("view", "project", stdout=theirs, env=env)
        assert b"token=" in os.read(ours, 1_000)
        # The second line of standard error comes from the browser's part.
        assert b"Ctrl-C ends the server" in process.stderr.readline()
        return process

    yield begin
    for descriptor in terminals:
        os.close(descriptor)


def test_the_file_with_the_token_is_removed_with_the_server_and_after_a_kill(
    view: Any, tmp_path: Path
) -> None:
    def files() -> list[Path]:
        return sorted((tmp_path / "temporary").glob("evaluator-view-*/open.html"))

    def wait_for(count: int) -> None:
        while len(files()) != count:
            assert process.poll() is None
            time.sleep(0.01)

    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "open.html").write_text("of somebody else")
    (tmp_path / "temporary" / "evaluator-view-link").symlink_to(outside)
    process = view()
    wait_for(2)
    (first,) = (path for path in files() if "link" not in path.parent.name)
    assert "token=" in first.read_text()
    assert first.parent.stat().st_mode & 0o077 == 0
    process.kill()
    process.wait()
    assert first.exists()
    process = view()
    wait_for(2)
    (second,) = (path for path in files() if "link" not in path.parent.name)
    assert second != first and not first.parent.exists()
    third = view()
    process_before, process = process, third
    wait_for(3)
    assert second.exists(), "the file of a running server was removed"
    for server, number in ((process_before, signal.SIGINT), (third, signal.SIGTERM)):
        server.send_signal(number)
        server.wait(200)
    assert [path.parent.name for path in files()] == ["evaluator-view-link"]
    assert (outside / "open.html").read_text() == "of somebody else"
