"""A Host sends the result of each sample, whatever ended it; after closing it sends nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    ConfigurationError,
    Evaluator,
    HandlerConfig,
    SimulatedBackend,
    ToolGrant,
    disk,
)
from evaluator.background import BackgroundStore, BackgroundTools
from evaluator.batch import Cell, Identity, Sample, Score, Shot, Variant, Verdict, WorkItem
from evaluator.batch.engines import LocalEngine, process_worker
from evaluator.batch.engines.host import Host, make_recipe
from evaluator.batch.engines.packing import Job, pack_jobs, unpack_jobs
from evaluator.batch.engines.process_engine import ProcessHost
from evaluator.batch.engines.taskfiles import make_probe
from evaluator.batch.identity import decode_line, is_sealed, parse_line
from evaluator.batch.scorers import scorer
from evaluator.batch.summary.rows import ResultBlock, ResultRows
from evaluator.errors import RecordNotWritten
from tests.batch.engines.engine_checks import Bench, serving


@asynccontextmanager
async def a_host(judged_by: Any, folder: Path) -> AsyncIterator[tuple[Host, Bench]]:
    async with serving() as server:
        bench = Bench(LocalEngine(1), server, folder, scorers=[judged_by])
        async with bench.worker() as worker:
            worker.cluster = "of"
            host = Host()
            opened = await host.open(pickle.dumps(make_recipe(worker)[0]), None, 1)
            assert not isinstance(opened, Exception)
            yield host, bench
            await host.close()


async def result_message(host: Host) -> tuple[Any, ...]:
    """The message about the sample. Permits for its calls are granted meanwhile."""
    while True:
        for kind, *rest in pickle.loads(await host.listen()):
            if kind == "acquire":
                await host.post(pickle.dumps([("acquired", rest[0], False)]))
            elif kind in ("done", "raised"):
                return kind, *rest


async def message_of_a_sample(judged_by: Any, folder: Path) -> tuple[Any, ...]:
    async with a_host(judged_by, folder) as (host, bench):
        await host.post(pickle.dumps([("work", pack_jobs([Job(1, bench.work(0), {})]))]))
        return await result_message(host)


def test_a_scorer_that_awaits_a_cancelled_future_is_an_error_of_its_sample(tmp_path: Path) -> None:
    @scorer
    async def waits(output: str) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    kind, _, line, *_ = asyncio.run(message_of_a_sample(waits, tmp_path))
    result = parse_line(line)
    assert kind == "done" and result.verdict is Verdict.ERROR
    assert "CancelledError" in str(result.scores["waits"].error)


def test_a_sample_whose_task_cancels_itself_is_reported(tmp_path: Path) -> None:
    @scorer
    async def cancels(output: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    kind, number, error = asyncio.run(message_of_a_sample(cancels, tmp_path))
    assert (kind, number, type(error), str(error)) == (
        "raised",
        1,
        ConfigurationError,
        "CancelledError",
    )


@pytest.mark.parametrize("is_secret", [True, False])
def test_a_line_and_what_is_counted_of_it_hold_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_secret: bool
) -> None:
    text = "sk-" + "a1B2" * 8
    if is_secret:
        monkeypatch.setenv("SOME_API_KEY", text)
    else:
        text = "an ordinary text"

    async def run() -> tuple[Any, ...]:
        async with a_host("exact", tmp_path) as (host, bench):
            work = bench.work(0)
            sample = replace(work.sample, inputs={"question": text}, metadata={"of": text})
            work = replace(work, sample=sample)
            await host.post(pickle.dumps([("work", pack_jobs([Job(1, work, {})]))]))
            _, numbers, line, totals, block = await result_message(host)
            assert numbers == [1]
            return line, repr(totals), block

    line, totals, block = asyncio.run(run())
    assert is_sealed(line) and parse_line(line).content != ""
    for value in (line.decode(), totals, repr(block)):
        assert (text not in value) or not is_secret
    assert (text in line.decode()) is not is_secret
    # What is counted is what a later session reads from the line.
    assert block == ResultBlock.of([ResultRows("of", None).row_of(decode_line(line))])
    assert (block.fields[0][0] == text) is not is_secret


def test_messages_that_a_process_cannot_read_are_an_error_of_the_batch() -> None:
    class Heard(Exception):
        pass

    def deliver(packed: bytes) -> None:
        raise Heard(pickle.loads(packed))

    async def main() -> None:
        host = ProcessHost()
        try:
            await host.call("post", b"no pickle")
            await asyncio.wait_for(host.listen(deliver), 30)
        finally:
            await host.finish()

    with pytest.raises(Heard) as caught:
        asyncio.run(main())
    (((kind, error),),) = caught.value.args
    assert kind == "failed" and isinstance(error, ConfigurationError)


def test_a_closing_host_cancels_its_samples_and_sends_nothing_about_them(tmp_path: Path) -> None:
    async def run() -> None:
        async with a_host("exact", tmp_path) as (host, bench):
            bench.server.hold()
            await host.post(pickle.dumps([("work", pack_jobs([Job(1, bench.work(0), {})]))]))
            receiving = asyncio.ensure_future(result_message(host))
            await bench.server.until(lambda: bench.server.open == 1)
            await host.close()
            await bench.server.until(lambda: bench.server.open == 0)
            for _ in range(10):
                await asyncio.sleep(0)
            assert not receiving.done()
            receiving.cancel()

    asyncio.run(run())


def test_a_probe_removes_those_of_killed_processes_and_no_others(tmp_path: Path) -> None:
    (tmp_path / ".probe-0123456789abcdef").write_bytes(b"left behind")
    with make_probe(tmp_path) as first, make_probe(tmp_path) as second:
        assert first.is_visible() and second.is_visible()
        assert {str(path) for path in tmp_path.iterdir()} == {first.path, second.path}
    assert not list(tmp_path.iterdir())


def test_a_failing_disk_does_not_replace_the_error_of_a_batch_with_that_of_its_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk, "unlink", fail)
    with pytest.raises(KeyError, match="of the batch"), make_probe(tmp_path):
        raise KeyError("of the batch")
    monkeypatch.setattr(disk, "write", fail)
    with pytest.raises(RecordNotWritten, match="No space left"), make_probe(tmp_path):
        pytest.fail("there is no probe")


async def messages_after_opening(folder: Path, tmp_path: Path) -> list[Any]:
    """The first messages of a host whose caller works in `folder`."""
    async with serving() as server, Bench(LocalEngine(1), server, tmp_path).worker() as worker:
        host = Host()
        recipe = make_recipe(worker)[0]
        recipe = replace(recipe, evaluator=replace(recipe.evaluator, folder=str(folder)))
        await host.open(pickle.dumps(recipe), None, 1)
        listening = asyncio.ensure_future(host.listen())
        await asyncio.sleep(0)
        await host.close()
        if not listening.done():
            listening.cancel()
            return []
        return pickle.loads(listening.result())


def test_a_host_works_in_the_callers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert asyncio.run(messages_after_opening(tmp_path / "there", tmp_path)) == []
    assert Path.cwd() == tmp_path / "there"


def test_a_folder_that_is_missing_on_a_node_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [(kind, text)] = asyncio.run(messages_after_opening(tmp_path / "gone", tmp_path))
    assert (
        kind == "notice"
        and "gone cannot be entered" in text
        and f"relative paths begin in {tmp_path}" in text
    )


@pytest.mark.parametrize("is_here", [True, False])
def test_tasks_in_a_worker_process_may_start_background_tasks_on_the_machine_of_the_batch(
    tmp_path: Path, is_here: bool
) -> None:
    calls = [
        {"tool": "start_script", "arguments": {"command": ["echo", "from a worker"]}},
        "question 0",
    ]

    async def run() -> Any:
        async with serving() as server:
            bench = Bench(LocalEngine(1), server, tmp_path)
            profile = HandlerConfig(
                name="test", backend="simulated", tools=(ToolGrant("start_script", "allow"),)
            )
            async with bench.worker() as worker:
                evaluator = Evaluator(
                    worker.evaluator.library,
                    profile,
                    profiles={},
                    backend=SimulatedBackend(script=calls),
                    roots=[tmp_path],
                    background=BackgroundTools(tmp_path / "bg"),
                    tasks_dir=tmp_path / "tasks",
                )
                recipe = make_recipe(replace(worker, evaluator=evaluator))[0]
                host = Host()
                if not is_here:
                    elsewhere = replace(recipe.evaluator, machine="another")
                    recipe = replace(recipe, evaluator=elsewhere)
                assert not isinstance(await host.open(pickle.dumps(recipe), None, 1), Exception)
                await host.post(pickle.dumps([("work", pack_jobs([Job(1, bench.work(0), {})]))]))
                message = await result_message(host)
                await host.close()
                return message

    kind, _, line, *_ = asyncio.run(run())
    result = parse_line(line)
    assert kind == "done"
    if is_here:
        assert result.verdict is Verdict.PASSED
        store = BackgroundStore(tmp_path / "bg")
        assert [task.type for task in store.list()] == ["b"]
        store.close()
    else:
        assert (
            result.verdict is Verdict.ERROR
            and "cannot start background tasks on another machine" in result.failure.message
        )
        assert not (tmp_path / "bg").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"identity": Identity("key", "value", {"inputs": "i"}), "resumes": 7},
        {"retry_of": 8, "keeps": {"exact": Score(1.0, True)}},
    ],
)
def test_packed_work_is_the_same_work(changes: dict[str, Any]) -> None:
    cell = Cell("ask", "v", "t", "h", is_simulated=True)
    shots = (Shot({"q": "Why?"}, "so"),)
    sample = Sample("a", {"q": "How?"}, ["x"], {"level": 1}, 3, answer="y", shots=shots)
    identity = Identity.of(cell, sample, 2)
    work = WorkItem(
        sample, 2, cell=cell, variant=Variant("v", "m"), identity=identity, scored_by="by"
    )
    work = replace(work, **changes)
    (sent,) = unpack_jobs(pickle.loads(pickle.dumps(pack_jobs([Job(5, work, {"label": 6})]))))
    unpacked = sent.work
    assert (sent.number, sent.unrecorded) == (5, {"label": 6})
    assert replace(unpacked, identity=work.identity) == work
    for name in ("key", "value", "parts"):
        assert getattr(unpacked.identity, name) == getattr(work.identity, name)


def test_work_for_a_sample_as_data_is_the_work_for_the_sample() -> None:
    cell = Cell("ask", "v", "t", "h", is_simulated=True)
    variant = Variant("v", "m")
    sample = Sample("a", {"q": "How?"}, ["x"], {"level": 1}, 3, shots=(Shot({"q": "Why?"}, "so"),))
    whole, packed = (
        WorkItem.of(given, 2, cell=cell, variant=variant, scoring_part="by")
        for given in (sample, sample.pack())
    )
    jobs = [Job(5, packed, {}), Job(6, replace(whole, epoch=3), {}), Job(7, packed, {"label": 8})]
    sent = [*unpack_jobs(pickle.loads(pickle.dumps(pack_jobs(jobs))))]
    assert [(job.number, job.work.epoch, job.unrecorded) for job in sent] == [
        (5, 2, {}),
        (6, 3, {}),
        (7, 2, {"label": 8}),
    ]
    for work in (packed, sent[0].work, sent[2].work):
        assert work.sample == sample and work.judged_by() == whole.judged_by()
        for name in ("key", "value", "parts"):
            assert getattr(work.identity, name) == getattr(whole.identity, name)
    again = replace(packed, resumes=7)
    assert (again.sample, again.resumes, again.identity) == (sample, 7, packed.identity)
    assert not hasattr(packed, "result_of_nothing")


def test_a_worker_process_ends_without_a_word_when_nobody_takes_its_answers() -> None:
    """A parent that was killed takes no answer, and may not have closed the other direction yet."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        program = (
            "import sys; from evaluator.batch.engines.process_worker import main; "
            "main(int(sys.argv[1]))"
        )
        worker = subprocess.Popen(
            [sys.executable, "-c", program, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
        )
        theirs.close()
        ours.shutdown(socket.SHUT_RD)
        for message in ({}, (1, "no_such_method", ())):
            packed = pickle.dumps(message)
            ours.sendall(process_worker.HEAD.pack(len(packed)) + packed)
        _, errors = worker.communicate(timeout=100)
    assert (worker.returncode, errors) == (0, b"")
