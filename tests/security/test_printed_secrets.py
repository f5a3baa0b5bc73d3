"""A key that a server repeats is in no message about a failure; an answer is printed as it came."""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from evaluator.cli.main import cli
from evaluator.errors import ProviderError
from evaluator.errors.results import TaskError, TaskFailed
from evaluator.interpreter.failures import redacted
from evaluator.testing import HttpReply, LoopbackServer
from evaluator.testing.loopback import json_reply

KEY = "zq3f9d8a7b6c5d4e3f2a1b"
ENCODED = base64.b64encode(f"Bearer {KEY}".encode()).decode()
PROFILE = """<handler name="wire"><backend>openai_compatible</backend><model>m</model>
<base_url>{url}</base_url><api_key_env>WIRE_KEY</api_key_env><limits timeout="60"/></handler>"""
TASK = """<task name="ask"><description>Ask.</description>
<output_format type="json" schema="integer"/></task>"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackServer]:
    monkeypatch.setenv("EVALUATOR_TRUST", str(tmp_path))
    monkeypatch.setenv("WIRE_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    with LoopbackServer() as server:
        (tmp_path / "handlers").mkdir()
        (tmp_path / "handlers" / "wire.xml").write_text(PROFILE.format(url=server.base_url))
        (tmp_path / "templates").mkdir()
        (tmp_path / "templates" / "ask.xml").write_text(TASK)
        yield server


@pytest.fixture
def run() -> Callable[..., str]:
    """`run(*args)`: everything that the command prints on both streams."""

    def call(*args: str) -> str:
        ran = CliRunner().invoke(cli, ["run", "--template", "ask", "--handler", "wire", *args])
        return ran.output + ran.stderr

    return call


@pytest.mark.parametrize("form", [KEY, ENCODED], ids=["plain", "encoded"])
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_a_key_in_the_error_of_a_server_is_not_printed(
    server: LoopbackServer, run: Callable[..., str], form: str, options: tuple[str, ...]
) -> None:
    body = json.dumps({"error": {"message": f"wrong credentials: {form}"}}).encode()
    server.default = HttpReply((body,), 401)
    printed = run(*options)
    assert "wrong credentials" in printed and form not in printed


def test_an_answer_with_a_key_is_printed_as_it_came_and_not_quoted(
    server: LoopbackServer, run: Callable[..., str]
) -> None:
    answer = json.dumps(KEY)
    server.default = json_reply({"choices": [{"message": {"content": answer}}]})
    outcome = json.loads(run("--json"))
    assert outcome["type"] == "INVALID_OUTPUT"
    assert outcome["content"] == answer, "an answer is never changed"
    said = json.dumps({name: outcome[name] for name in ("message", "violations", "cause")})
    assert KEY not in said


def test_no_exception_behind_a_failure_says_a_key() -> None:
    secret = f"/keys/{KEY}"

    def fail() -> None:
        try:
            raise FileNotFoundError(2, "No such file", secret)
        except OSError as error:
            raise ProviderError(f"no certificate: {error}", kind="connection") from error

    with pytest.raises(ProviderError) as raised:
        fail()
    error = TaskError("TASK_FAILURE", f"failed: {raised.value}", cause=raised.value)
    with pytest.raises(TaskFailed) as failed:
        redacted(error, lambda text: text.replace(KEY, "[redacted]")).unwrap()
    printed = "".join(traceback.format_exception(failed.value))
    assert KEY not in printed and "FileNotFoundError: [Errno 2] No such file: '/keys/[r" in printed
    assert raised.value.message.endswith("'/keys/[redacted]'")
