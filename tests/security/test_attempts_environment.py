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

from evaluator import ConfigurationError, OpenAICompatibleBackend
from evaluator.models.key_transport import proxy_of
from evaluator.testing import LoopbackServer, json_reply
from tests.security.certificates import Authority

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
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
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


def without_proxies() -> dict[str, str]:
    """The environment without the proxies of the machine that runs the tests."""
    return {n: value for n, value in os.environ.items() if not n.lower().endswith("_proxy")}


def evaluate(project: Path, *command: str, **exported: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **without_proxies(),
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
    "command", [RUN, (*BATCH, "--engine", "processes", "--workers", "1")], ids=["run", "workers"]
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


# One call of each backend to each address; prints what became of it.
CALLS = """
import asyncio, json, sys
from evaluator.errors import ProviderError
from evaluator.models.litellm_backend import LiteLLMBackend
from evaluator.models.openai_compatible import OpenAICompatibleBackend
from evaluator.testing import a_request

async def call(kind, url):
    backend = kind(base_url=url, api_key="sk-the-users-own-key")
    try:
        await backend.complete(a_request(model="openai/m"))
        return "answered"
    except ProviderError as error:
        return f"{error.kind}: {error}"
    finally:
        await backend.aclose()

async def main():
    kinds = (OpenAICompatibleBackend, LiteLLMBackend)
    print(json.dumps({url: [await call(kind, url) for kind in kinds] for url in sys.argv[1:]}))

asyncio.run(main())
"""


def test_certificates_are_checked_and_only_an_exported_proxy_is_used(
    tmp_path: Path, proxy: tuple[str, list[str]]
) -> None:
    address, lines = proxy
    own = Authority(tmp_path, "own")
    other = Authority(tmp_path, "other")
    with (
        LoopbackServer(tls=own.server()) as good,
        LoopbackServer(tls=own.server("127.0.0.2")) as wrong_host,
        LoopbackServer(tls=own.server(days=-1)) as expired,
        LoopbackServer(tls=other.server()) as unknown,
        LoopbackServer() as evil,
    ):
        refused = (wrong_host, expired, unknown)
        far = "https://models.example/v1"
        (tmp_path / ".env").write_text(
            f"SSL_VERIFY=False\nSSL_CERT_FILE={other.file}\nALL_PROXY=http://127.0.0.1:{evil.port}\n"
        )
        exported = {"SSL_CERT_FILE": str(own.file), "HTTPS_PROXY": address, "NO_PROXY": "127.0.0.1"}
        done = subprocess.run(
            [sys.executable, "-c", CALLS, good.base_url, far, *(s.base_url for s in refused)],
            cwd=tmp_path,
            env={**without_proxies(), **exported},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        outcomes = json.loads(done.stdout)
        assert outcomes[good.base_url] == ["answered", "answered"], "the control"
        for server in refused:
            assert server.posts == 0
            for outcome in outcomes[server.base_url]:
                assert "certificate" in outcome.lower(), outcome
        assert evil.posts == 0
    assert lines == ["CONNECT models.example:443 HTTP/1.1"] * 2
    assert "answered" not in outcomes[far]


@pytest.mark.parametrize(
    ("url", "variables", "expected"),
    [
        ("https://a.example/v1", {}, None),
        ("https://a.example/v1", {"https_proxy": "http://p:1"}, "http://p:1"),
        ("https://a.example/v1", {"ALL_PROXY": "p:1"}, "http://p:1"),
        ("http://a.example/v1", {"https_proxy": "http://p:1"}, None),
        ("https://a.example/v1", {"https_proxy": "http://p:1", "no_proxy": ".example"}, None),
        ("https://127.0.0.1:1/v1", {"https_proxy": "http://p:1"}, None),
        ("http://localhost/v1", {"http_proxy": "http://p:1"}, None),
    ],
)
def test_the_proxy_of_an_address_is_the_exported_one(
    url: str, variables: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in os.environ.keys() - without_proxies().keys():
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_of(url) == expected


def test_a_proxy_that_does_not_speak_http_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="is not an HTTP proxy; set https_proxy to one"):
        OpenAICompatibleBackend("https://a.example/v1", KEY)
    OpenAICompatibleBackend("https://127.0.0.1:1/v1", KEY)
