"""What is logged: calls at DEBUG, retries, failures and repairs at INFO, notices at WARNING; silent by default, no secret."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evaluator import HandlerConfig, ProviderError, SimulatedBackend, tool
from evaluator.cli import main
from evaluator.errors.messages import LOGGER

SECRET = "correct-horse-battery-staple"
JSON_TASK = """<task name="t" type="atomic"><description>d</description><instructions>go</instructions>
<output_format type="json" schema="object"/></task>"""
TOOL_TASK = """<task name="t" type="atomic"><description>d</description><instructions>go</instructions>
<tools><tool name="look_up"/></tools></task>"""


def scripted(*items: Any) -> SimulatedBackend:
    return SimulatedBackend(script=list(items))


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [f"{r.name}: {r.getMessage()}" for r in caplog.records if r.levelno == level]


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_TOKEN", SECRET)


def test_a_retry_and_a_repair_are_info_and_each_call_is_debug(make_evaluator, caplog):
    failing = ProviderError(f"HTTP 429 for key {SECRET}\x1b[2J", kind="rate_limit", retryable=True)
    evaluator = make_evaluator(
        JSON_TASK,
        backend=scripted(failing, "Here: {'a': 1,}"),
        handler=HandlerConfig(name="quick", backoff_s=(0.0,)),
    )
    with caplog.at_level(logging.DEBUG, "evaluator"):
        assert evaluator.evaluate_sync("t").unwrap().parsed_content == {"a": 1}
    info, debug = lines(caplog, logging.INFO), lines(caplog, logging.DEBUG)
    assert [
        line.partition(", after")[0] for line in info if line.startswith("evaluator.models")
    ] == [
        "evaluator.models: call of simulated: failed, rate_limit: HTTP 429 for key [redacted:VAULT_TOKEN]\\x1b[2J",
        "evaluator.models: retry: call of simulated, attempt 2",
    ]
    assert any(line.startswith("evaluator.output: ") for line in info)
    (called,) = [line for line in debug if "attempt 2: stop" in line]
    assert " tokens in, " in called and called.endswith(" s")
    assert any(line.startswith("evaluator.tasks: task t (TASK-1): COMPLETE") for line in debug)
    assert SECRET not in caplog.text


def test_a_tool_call_and_its_failure_are_logged_without_arguments(make_evaluator, caplog):
    @tool(policy="allow", effect=False)
    def look_up(word: str) -> str:
        """Looks a word up."""
        if word == "bad":
            raise ValueError(f"no entry {SECRET}")
        return "found"

    calls = [{"tool": "look_up", "arguments": {"word": word}} for word in ("good", "bad")]
    evaluator = make_evaluator(TOOL_TASK, backend=scripted(*calls, "done"), tools=[look_up])
    with caplog.at_level(logging.DEBUG, "evaluator"):
        evaluator.evaluate_sync("t").unwrap()
    assert any("tool look_up: done, after" in line for line in lines(caplog, logging.DEBUG))
    assert any(
        "tool look_up: failed" in line and "redacted" in line
        for line in lines(caplog, logging.INFO)
    )
    assert SECRET not in caplog.text


def test_a_failed_task_is_info_because_its_error_is_returned(make_evaluator, caplog):
    evaluator = make_evaluator(JSON_TASK, backend=scripted("no JSON"))
    with caplog.at_level(logging.INFO, "evaluator"):
        assert not evaluator.evaluate_sync("t").ok
    assert any("failed, output_format_failure" in line for line in lines(caplog, logging.INFO))
    assert lines(caplog, logging.WARNING) == []


def test_nothing_is_logged_and_no_span_is_made_unless_asked(make_evaluator, caplog):
    with caplog.at_level(logging.WARNING, "evaluator"):
        evaluator = make_evaluator(JSON_TASK, backend=scripted("{}"))
        evaluator.evaluate_sync("t").unwrap()
        tracer = evaluator.services.tracer
        assert "Logged" not in type(tracer.task("t", None, None)).__name__
    assert caplog.records == []


def test_a_program_without_logging_sees_nothing_on_its_streams(tmp_path: Path) -> None:
    program = "from evaluator.errors.messages import LOGGER; LOGGER.warning('seen'); LOGGER.getChild('models').error('seen')"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout + ran.stderr == ""


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),
    [
        ([], [], ["begin: task", "evaluator"]),
        (["-vv"], ["debug: begin: task keywords", "debug: call of simulated/default: stop"], []),
        (["-v"], [], ["debug:"]),
    ],
)
@pytest.mark.parametrize("is_before", [True, False])
def test_the_command_line_logs_what_v_asks_for(
    tmp_path, monkeypatch, capsys, words, shown, hidden, is_before
):
    monkeypatch.chdir(tmp_path)
    before = LOGGER.level, list(LOGGER.handlers)
    command = ["run", "--template", "keywords", "--input", "document=a b", "--handler", "offline"]
    with pytest.raises(SystemExit) as ended:
        main([*words, *command] if is_before else [*command, *words])
    assert not ended.value.code
    error = capsys.readouterr().err
    assert [text for text in shown if text not in error] == []
    assert [text for text in hidden if text in error] == []
    assert (LOGGER.level, LOGGER.handlers) == before
