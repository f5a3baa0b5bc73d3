"""Handlers and composite templates in the background: a transcript, an outcome, and an abort that closes the record."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from evaluator import TaskStore
from evaluator.background import BackgroundTasks, EvaluationWork
from evaluator.jobs.in_process import type_of
from evaluator.jobs.output import window_start

ONE = """<task name="one" type="atomic"><description>One</description><inputs><input name="word"/></inputs>
  <instructions>Say {{ word }}</instructions></task>"""
TWO = """<task name="two" type="sequential"><description>Two</description><steps>
  <task type="atomic" name="first"><description>F</description><instructions>First</instructions></task>
  <task type="atomic" name="second"><description>S</description><instructions>Second</instructions></task>
</steps></task>"""
SLOW = """<task name="slow" type="sequential"><description>Slow</description><steps>
  <task type="atomic" name="first"><description>F</description><instructions>First</instructions></task>
  <task type="script" name="sleep"><description>S</description><command shell="true">touch started; sleep 600</command></task>
</steps></task>"""


def work_for(evaluator, name, inputs=None):
    node = evaluator.library.get(name).node

    async def evaluate(on_message, on_begin):
        return await evaluator.evaluate(name, inputs, on_message=on_message, on_begin=on_begin)

    return EvaluationWork(type_of(node), evaluate, evaluator.services.redactor)


def lines(task):
    return [
        json.loads(line) for line in Path(task.output_file).read_text(encoding="utf-8").splitlines()
    ]


@pytest.mark.parametrize(("name", "kind", "messages"), [("one", "a", 2), ("two", "w", 4)])
def test_a_template_leaves_a_transcript_and_its_outcome(
    make_evaluator, tmp_path, name, kind, messages
):
    evaluator = make_evaluator(ONE + TWO, script=lambda request: "hello")

    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            started = tasks.start(
                work_for(evaluator, name, {"word": "hello"} if name == "one" else {}), name
            )
            return await tasks.wait(started.id)

    task = asyncio.run(work())
    found = lines(task)
    assert (task.type, task.status, task.summary, task.task_file) == (
        kind,
        "completed",
        "hello",
        "TASK-1",
    )
    assert [each["type"] for each in found] == ["message"] * messages + ["outcome"]
    assert [each["role"] for each in found[:2]] == ["user", "assistant"] and found[1][
        "content"
    ] == "hello"
    answers = [each for each in found if each.get("role") == "assistant"]
    assert task.output_tokens == sum(each["usage"]["output_tokens"] for each in answers)
    assert task.input_tokens == sum(
        each["usage"]["input_tokens"] for each in answers
    )  # one request in each session


def test_input_tokens_are_those_of_the_last_request_of_a_session_and_output_tokens_are_summed(
    tmp_path,
):
    async def evaluate(on_message, on_begin):
        for path, used, made in (("a", 10, 1), ("a", 30, 2), ("b", 5, 4)):
            usage = {"input_tokens": used, "output_tokens": made}
            on_message(path, {"role": "assistant", "content": "", "usage": usage})
        raise ValueError("wrong")

    async def work():
        from evaluator.record.redact import Redactor

        async with BackgroundTasks(tmp_path) as tasks:
            evaluation = EvaluationWork("w", evaluate, Redactor())
            ended = await tasks.wait(tasks.start(evaluation, "x").id)
            assert evaluation.tokens == (35, 7)
            assert ended.status == "failed" and ended.reason == "ValueError: wrong"

    asyncio.run(work())


def test_a_kill_aborts_the_evaluation_and_closes_its_record(make_evaluator, tmp_path):
    evaluator = make_evaluator(SLOW, script=lambda request: "fine")

    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            task = tasks.start(work_for(evaluator, "slow"), "slow")
            async with asyncio.timeout(200):
                while not (tmp_path / "started").exists():  # noqa: ASYNC110  (a script makes it)
                    await asyncio.sleep(0.01)
            return await tasks.kill(task.id, "enough", timeout_s=200)

    task = asyncio.run(work())
    assert (task.status, task.reason) == ("killed", "enough")
    assert lines(task)[-1]["type"] == "aborted"
    (record,) = TaskStore(tmp_path / "tasks").list()
    assert record.status == "aborted"
    summary = TaskStore(tmp_path / "tasks").read(record.id).summary
    assert summary is not None and summary.reason == "cancelled — enough"


def test_a_failed_template_says_why(make_evaluator, tmp_path):
    evaluator = make_evaluator(ONE)

    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            return await tasks.wait(tasks.start(work_for(evaluator, "one"), "one").id)

    task = asyncio.run(work())
    assert task.status == "failed" and "word" in (task.reason or "")


@pytest.mark.parametrize(("count", "shown"), [(0, 0), (1, 1), (50, 50), (51, 50), (4_000, 50)])
def test_a_window_is_the_last_fifty_messages(tmp_path, count, shown):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"n": n, "x": "é" * (n % 90)}) + "\n" for n in range(count)))
    found = path.read_bytes()[window_start(path) :].decode().splitlines()
    assert [json.loads(line)["n"] for line in found] == list(range(count - shown, count))
