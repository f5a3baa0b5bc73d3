"""A background task whose process was killed continues from its task file: nothing is lost, nothing is paid for twice."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluator.background import BackgroundStore
from evaluator.testing import Answer, HttpReply, LoopbackServer

PROFILE = """<handler name="wire"><backend>openai_compatible</backend><model>m</model>
<base_url>{url}</base_url></handler>"""
READS = """<task name="reads" type="atomic"><description>Read a note</description>
  <instructions>Read note.txt</instructions><tools><tool name="read_file"/></tools></task>"""
STEPS = """<task name="steps" type="sequential"><description>Two steps</description><steps>
  <task name="one" type="atomic"><description>One</description><instructions>First</instructions></task>
  <task name="two" type="atomic"><description>Two</description><instructions>Second</instructions></task>
</steps></task>"""
FIRST = {
    "a": Answer("", "tool_calls", tool_calls=(("c1", "read_file", '{"path": "note.txt"}'),)),
    "w": Answer("the first step"),
    "t": Answer("the first reply"),
}
WORDS = {"a": ("--template", "reads"), "w": ("--template", "steps"), "t": ("--session",)}


@pytest.fixture
def server(write: Any) -> Iterator[LoopbackServer]:
    """Answers the first request, then hangs once, then answers everything."""
    with LoopbackServer(default=Answer("the last answer")) as running:
        write("handlers/wire.xml", PROFILE.format(url=running.base_url))
        write("templates/tasks.xml", f"<library>{READS}{STEPS}</library>")
        write("note.txt", "a note")
        yield running


@pytest.mark.parametrize(
    ("kind", "command"),
    [("a", "tasks resume 1"), ("w", "tasks resume 1 --tasks"), ("t", "chat --resume 1")],
)
def test_a_killed_evaluation_continues_with_the_command_that_its_end_names(
    cli: Any, process: Any, server: LoopbackServer, tmp_path: Path, kind: str, command: str
) -> None:
    server.enqueue(FIRST[kind], HttpReply(end="hang", silent=True))
    folder = "runs" if kind == "w" else "tasks"
    option = ("--tasks", folder)
    started = process("start", *WORDS[kind], "--handler", "wire", "--json", *option)
    assert started.code == 0, started.err
    task, store = json.loads(started.out), BackgroundStore(tmp_path / folder / "background")
    if kind == "t":
        store.send(task["id"], "first")
        store.send(task["id"], "second")
    server.wait_for_posts(2)
    os.kill(task["owner"], signal.SIGKILL)
    ended = cli("wait", task["id"], *option)
    assert task["id"][0] == kind and ended.code == 1
    if kind == "w":
        command += f" {tmp_path / folder}"
    assert ended.out.splitlines()[1] == f"Continue it with: evaluator {command}"
    listed = store.get(task["id"])
    assert (listed.status, listed.task_file) == ("failed", "TASK-1") and "is gone" in (
        listed.reason or ""
    )
    continued = process(*command.split())
    assert continued.code == 0, continued.err
    assert "the last answer" in continued.out and (
        kind != "t" or "the first reply" in continued.out
    )
    assert (
        server.posts == 3
    )  # the request that was open when the process died was sent again, and no other
    store.close()
