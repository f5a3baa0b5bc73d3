"""The command line as a user has it: a real process, whose standard error never shows a traceback."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evaluator.cli.main import main

PROGRAM = str(Path(sysconfig.get_path("scripts")) / "evaluator")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """No key and no model; a plain, narrow terminal; a user's folder of its own. The user trusts the test's folder, in
    which the files of projects are."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "EVALUATOR_CONFIG_DIR")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    return found | {"COLUMNS": "100", "EVALUATOR_TRUST": str(tmp_path)}


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Any:
    """`start(*args)`: the running process, its streams pipes, in `tmp_path`."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        settings: dict[str, Any] = {
            "cwd": tmp_path, "env": environment, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }  # fmt: skip
        command = [PROGRAM, *(a if isinstance(a, bytes) else str(a) for a in args)]
        process = subprocess.Popen(command, **(settings | options))
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def cli(start: Any, environment: dict[str, str]) -> Callable[..., Ran]:
    """`cli(*args, stdin=…)`: what it came to. Fails where a traceback reached the user."""

    def run(*args: Any, stdin: bytes | None = None, env: dict[str, str] | None = None, **options: Any) -> Ran:
        if stdin is not None:
            options["stdin"] = subprocess.PIPE
        process = start(*args, env=environment | (env or {}), **options)
        out, err = process.communicate(stdin, timeout=200)
        ran = Ran(
            process.returncode,
            (out or b"").decode("utf-8", "replace"),
            (err or b"").decode("utf-8", "replace"),
        )
        assert "Traceback" not in ran.err + ran.out, ran.err
        assert "bug of evaluator" not in ran.err, ran.err
        return ran

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """`write(name, content)`: a file in `tmp_path`."""

    def make(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`here(*args)`: as `cli`, in this process, for tests without closed streams and signals."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALUATOR_TRUST", str(tmp_path))

    def run(*args: Any) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        said = capsys.readouterr()
        return Ran(int(str(ended.value.code)), said.out, said.err)

    return run
