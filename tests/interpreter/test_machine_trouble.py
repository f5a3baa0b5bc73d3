"""This machine's own trouble ends a run: it is no tool's answer, and the run can be resumed."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    ProviderError,
    SimulatedBackend,
    TaskError,
    TaskStore,
    Tool,
    ToolError,
    disk,
    tool,
)
from evaluator.errors import MachineError, RecordNotWritten, machine_error, machine_trouble
from tests.conftest import MakeEvaluator

LOCAL = [
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ENOMEM,
    errno.EROFS,
]
LIBRARY = """
<task name="boss" type="atomic"><description>delegate work</description><tools><tool name="capital"/></tools>
  <instructions>boss</instructions></task>
<task name="capital" type="atomic"><description>Name the capital city of a country</description>
  <instructions>capital</instructions></task>
<task name="caller" type="atomic"><description>call a tool</description><tools><tool name="broken"/></tools>
  <instructions>caller</instructions></task>
<task name="reader" type="atomic"><description>read</description><file_paths><path>notes.txt</path></file_paths>
  <instructions>reader</instructions></task>
"""


class Asked(list[str]):
    """Answers as a model that calls a tool once; keeps the prompts."""

    def __call__(self, request: Any) -> Any:
        prompt = next(m.content for m in request.messages if m.role == "user")
        answered = any(m.role == "tool" for m in request.messages)
        self.append(prompt + (" answered" if answered else ""))
        if prompt == "boss" and not answered:
            return {"tool": "capital", "arguments": {}}
        if prompt == "caller" and not answered:
            return {"tool": "broken", "arguments": {}}
        return f"done {prompt}"


def failing_tool(code: int) -> Tool:
    @tool(effect=False)
    def broken() -> str:
        """Reads something."""
        raise OSError(code, os.strerror(code))

    return broken


def no_file(code: int) -> Callable[..., int]:
    real = os.open

    def fails(path: Any, *args: Any, **more: Any) -> int:
        if str(path) == "TASK-2.md":
            raise OSError(code, os.strerror(code))
        return real(path, *args, **more)

    return fails


def no_write(code: int) -> Callable[..., int]:
    real = os.pwrite

    def fails(fd: int, data: bytes, at: int) -> int:
        if data.startswith(b"# TASK-2"):
            raise OSError(code, os.strerror(code))
        return real(fd, data, at)

    return fails


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("at", ["open", "pwrite"])
def test_a_subtask_whose_file_cannot_be_written_ends_the_run_before_the_next_call(
    make_evaluator: MakeEvaluator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    code: int,
) -> None:
    asked = Asked()
    evaluator = make_evaluator(LIBRARY, script=asked)
    with monkeypatch.context() as trouble:
        if at == "open":
            trouble.setattr(disk, "open", no_file(code))
        else:
            trouble.setattr(disk, "pwrite", no_write(code))
        outcome = asyncio.run(evaluator.evaluate("boss"))
    assert isinstance(outcome, TaskError) and isinstance(outcome.cause, RecordNotWritten), outcome
    assert outcome.reason == "execution_halted" and os.strerror(code) in outcome.message
    assert asked == ["boss"]
    assert TaskStore(tmp_path / "tasks").read(1).status == "aborted"
    resumed = asyncio.run(evaluator.resume(1))
    assert resumed.unwrap().content == "done boss"
    assert asked == ["boss", "capital", "boss answered"]


def test_an_answer_that_cannot_be_recorded_was_paid_nevertheless(
    make_evaluator: MakeEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: Any) -> str:
        monkeypatch.setattr(disk, "pwrite", no_disk)
        return "an answer"

    def no_disk(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    outcome = asyncio.run(make_evaluator(LIBRARY, script=answer).evaluate("capital"))
    monkeypatch.undo()
    assert isinstance(outcome, TaskError) and outcome.reason == "execution_halted", outcome
    assert outcome.usage.turns == 1 and (outcome.usage.output_tokens or 0) > 0


@pytest.mark.parametrize("code", LOCAL)
def test_a_tool_that_meets_trouble_of_this_machine_gives_the_model_no_answer(
    make_evaluator: MakeEvaluator, code: int
) -> None:
    asked = Asked()
    evaluator = make_evaluator(LIBRARY, script=asked, tools=[failing_tool(code)])
    outcome = asyncio.run(evaluator.evaluate("caller"))
    if code == errno.EROFS:  # a root may be read-only on purpose
        assert asked == ["caller", "caller answered"]
        return
    assert isinstance(outcome, TaskError) and isinstance(outcome.cause, MachineError)
    assert asked == ["caller"]


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ECONNREFUSED])
def test_other_errors_of_a_tool_are_answers(make_evaluator: MakeEvaluator, code: int) -> None:
    asked = Asked()
    evaluator = make_evaluator(LIBRARY, script=asked, tools=[failing_tool(code)])
    asyncio.run(evaluator.evaluate("caller")).unwrap()
    assert asked == ["caller", "caller answered"]


class NoSocket(SimulatedBackend):
    """Cannot connect until there is a descriptor again."""

    tries = 0
    code: int | None = errno.EMFILE

    async def complete(self, request: Any, **more: Any) -> Any:
        self.tries += 1
        if self.code is None:
            return await super().complete(request, **more)
        try:
            raise OSError(self.code, os.strerror(self.code))
        except OSError as error:
            raise ProviderError(str(error), kind="connection", retryable=True) from error


def test_a_call_that_this_machine_cannot_make_is_not_retried_and_is_made_on_resume(
    make_evaluator: MakeEvaluator, tmp_path: Path
) -> None:
    backend = NoSocket()
    evaluator = make_evaluator(LIBRARY, backend=backend)
    outcome = asyncio.run(evaluator.evaluate("capital"))
    assert isinstance(outcome, TaskError) and isinstance(outcome.cause, MachineError)
    assert "ulimit -n" in outcome.message and backend.tries == 1
    backend.code = None
    assert asyncio.run(evaluator.resume(1)).ok and backend.tries == 2


def test_a_file_of_the_context_that_cannot_be_opened_now_ends_the_run(
    make_evaluator: MakeEvaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("n")
    asked = Asked()
    evaluator = make_evaluator(LIBRARY, script=asked)

    async def read(*_: object) -> bytes:
        try:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except OSError as error:
            raise ToolError("notes.txt cannot be read") from error

    monkeypatch.setattr(type(evaluator.services.files), "aread_bytes", read)
    outcome = asyncio.run(evaluator.evaluate("reader"))
    assert isinstance(outcome, TaskError) and isinstance(outcome.cause, MachineError)
    assert not asked
    monkeypatch.undo()
    assert asyncio.run(evaluator.evaluate("reader")).ok and len(asked) == 1


@pytest.mark.parametrize("code", LOCAL)
def test_trouble_is_found_behind_other_exceptions_with_advice(code: int) -> None:
    try:
        try:
            raise OSError(code, os.strerror(code))
        except OSError as error:
            raise ProviderError("cannot connect") from error
    except ProviderError as error:
        trouble, found = machine_trouble(error), machine_error(error)
    assert trouble is not None and trouble.errno == code
    assert str(found).startswith("cannot connect; ") and len(str(found)) > 20


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOENT, "x"),
        ConnectionRefusedError(errno.ECONNREFUSED, "x"),
        TimeoutError(),
        ValueError("x"),
        OSError(),
    ],
    ids=repr,
)
def test_other_errors_are_no_trouble_of_this_machine(error: Exception) -> None:
    assert machine_trouble(error) is None and machine_error(error) is None


def test_the_number_of_a_tls_error_is_no_error_number_of_the_system() -> None:
    import ssl

    # SSL_ERROR_SYSCALL and EIO are both 5.
    assert machine_trouble(ssl.SSLSyscallError(5, "the peer closed the connection")) is None
