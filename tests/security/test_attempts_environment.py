"""Attempts of a project to choose where keys go: its `.env` file names hosts, proxies and CA files.

The libraries are where a virtual environment in the project has them, above which LiteLLM looks for
the file. Control: the same address, exported before the start, is used.
"""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from evaluator.testing.loopback import LoopbackServer, json_reply

MODEL = "anthropic/claude-sonnet-4-5"
KEY = "sk-ant-the-users-own-key"
ANSWER = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "Paris"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
RUN = ("run", "--template", "answer_question", "--input", "question=q")
BATCH = ("batch", "--template", "answer_question", "--rows", "rows.jsonl")


class Refusing(socketserver.StreamRequestHandler):
    """A proxy that connects to nobody. `lines`: the first line of each request."""

    lines: list[str]

    def handle(self) -> None:
        self.lines.append(self.rfile.readline().decode("latin-1").strip())
        while self.rfile.readline().strip():
            pass
        self.wfile.write(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@pytest.fixture
def proxy() -> Iterator[tuple[str, list[str]]]:
    """A proxy's address, and what it was asked for."""
    lines: list[str] = []
    handler = type("OneProxy", (Refusing,), {"lines": lines})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", lines
        server.shutdown()
        thread.join()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a virtual environment in it."""
    folder = tmp_path / "project"
    site = folder / ".venv/lib/site-packages"
    site.parent.mkdir(parents=True)
    spec = find_spec("litellm")
    assert spec is not None and spec.origin is not None
    site.symlink_to(Path(spec.origin).parents[1])
    (folder / "handlers").mkdir()
    (folder / "handlers/once.xml").write_text(
        '<handler name="once"><description>No retries</description><backend>litellm</backend>'
        '<retries max="0"/></handler>'
    )
    (folder / "rows.jsonl").write_text('{"question": "q"}\n')
    return folder


def evaluate(project: Path, *command: str, **exported: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
    }
    environment |= {
        "PYTHONPATH": str(project / ".venv/lib/site-packages"),
        "ANTHROPIC_API_KEY": KEY,
        **exported,
    }
    return subprocess.run(
        [sys.executable, "-m", "evaluator", *command, "--handler", "once", "--model", MODEL],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.parametrize(
    "command", [RUN, (*BATCH, "--engine", "processes")], ids=["run", "workers"]
)
def test_the_env_file_of_a_project_names_no_host(
    command: tuple[str, ...], project: Path, proxy: tuple[str, list[str]]
) -> None:
    address, lines = proxy
    with LoopbackServer() as evil:
        host = f"http://127.0.0.1:{evil.port}"
        names = ("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL", "HTTPS_PROXY", "HTTP_PROXY")
        hostile = [*(f"{name}={host}" for name in names), f"SSL_CERT_FILE={project}/ca.pem"]
        (project / ".env").write_text("\n".join([*hostile, "LITELLM_MODE=DEV"]) + "\n")
        done = evaluate(project, *command, https_proxy=address)
        assert evil.posts == 0, done.stderr
    assert lines and set(lines) == {"CONNECT api.anthropic.com:443 HTTP/1.1"}, done.stderr
    assert done.returncode != 0 and "Traceback" not in done.stderr


def test_control_an_exported_host_gets_the_key(project: Path) -> None:
    with LoopbackServer(json_reply(ANSWER)) as own, LoopbackServer() as evil:
        (project / ".env").write_text(f"ANTHROPIC_API_BASE=http://127.0.0.1:{evil.port}\n")
        done = evaluate(project, *RUN, ANTHROPIC_API_BASE=f"http://127.0.0.1:{own.port}")
        assert done.returncode == 0, done.stderr
        assert "Paris" in done.stdout
        assert own.posts == 1 and KEY in json.dumps(own.headers)
        assert evil.posts == 0
