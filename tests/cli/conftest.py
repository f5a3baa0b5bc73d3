"""The command line, in the test's process and as a process of its own. No command shows a traceback."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from evaluator.cli import main

PROGRAM = str(Path(sysconfig.get_path("scripts")) / "evaluator")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


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
            "cwd": tmp_path,
            "env": environment,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
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
def process(start: Any, environment: dict[str, str]) -> Run:
    """`process(*args, stdin=…)`: as `cli`, in a process of its own."""

    def run(
        *args: Any, stdin: bytes | None = None, env: dict[str, str] | None = None, **options: Any
    ) -> Ran:
        if stdin is not None:
            options["stdin"] = subprocess.PIPE
        process = start(*args, env=environment | (env or {}), **options)
        out, err = process.communicate(stdin, timeout=200)
        ran = Ran(
            process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        )
        assert "Traceback" not in ran.err + ran.out, ran.err
        assert "bug of evaluator" not in ran.err, ran.err
        return ran

    return run


@pytest.fixture
def cli(tmp_path: Path, environment: dict[str, str]) -> Run:
    """`cli(*args, stdin=…, env=…, cwd=…)`: a command that runs in this process, in `tmp_path`, and its result.

    A process of its own takes half a second; tests of streams, signals and processes use `process` or `start`.
    """

    def run(
        *args: Any,
        stdin: bytes = b"",
        env: dict[str, str] | None = None,
        cwd: str | Path = tmp_path,
    ) -> Ran:
        streams = {
            name: io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
            for name in ("stdout", "stderr")
        }
        with (
            contextlib.chdir(cwd),
            mock.patch.dict(os.environ, environment | (env or {}), clear=True),
            # A batch freezes what there is: its process ends with it, and this one does not.
            mock.patch.object(gc, "freeze"),
            mock.patch.multiple(sys, stdin=io.TextIOWrapper(io.BytesIO(stdin), "utf-8"), **streams),
            pytest.raises(SystemExit) as ended,
        ):
            main([os.fsdecode(arg) if isinstance(arg, bytes) else str(arg) for arg in args])
        out, err = (
            stream.buffer.getvalue().decode("utf-8", "replace") for stream in streams.values()
        )
        assert "bug of evaluator" not in err, err
        return Ran(int(ended.value.code or 0), out, err)

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
