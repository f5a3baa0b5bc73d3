"""A session that ends before its rows: stopped, out of time, or interrupted; and what it leaves."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, UsageError, run_batch, run_batch_sync
from evaluator.batch import NoDisplay, Stop, open_batch
from evaluator.batch.display import SafeDisplay
from evaluator.batch.engines import ClusterLost, LocalEngine
from evaluator.batch.folder import BatchFolder
from evaluator.batch.rows import RowError
from tests.batch.conftest import QUIZ, ROWS, Calls, Run, Scripted

WITHIN_S = 200
pytestmark = pytest.mark.timeout(600)


class Live:
    """Rows as a queue gives them: those that there are, and then nobody knows. `waits` is set when it waits."""

    def __init__(
        self, rows: list[dict[str, Any]], *, then: Callable[[], None] = lambda: None
    ) -> None:
        self.rows, self.then = rows, then
        self.waits = asyncio.Event()
        self.is_closed = False

    async def __call__(self) -> AsyncIterator[dict[str, Any]]:
        try:
            for row in self.rows:
                yield row
            self.waits.set()
            self.then()
            await asyncio.get_running_loop().create_future()
        finally:
            self.is_closed = True


class Again:
    """The same, to be gone through as often as one likes."""

    def __init__(self, live: Live) -> None:
        self.live = live

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        return self.live()


def within(evaluator: Evaluator, rows: Any, **options: Any) -> Any:
    """A batch of the quiz that ends, or a failed test."""

    async def main() -> Any:
        async with asyncio.timeout(WITHIN_S):
            return await run_batch("quiz", rows, evaluator=evaluator, scorers=["exact"], **options)

    return asyncio.run(main())


@pytest.mark.parametrize("way", ["in the loop", "in a thread"])
@pytest.mark.parametrize("form", [lambda live: live(), Again], ids=["generator", "iterable"])
def test_asked_to_stop_it_does_not_wait_for_rows(
    quiz: Evaluator, tmp_path: Path, way: str, form: Callable[[Live], Any]
) -> None:
    stop = Stop()

    def ask() -> None:
        # As another callback of the loop does it, or another thread, while the rows are waited for.
        asyncio.get_running_loop().call_soon(
            stop.ask if way == "in the loop" else threading.Thread(target=stop.ask).start
        )

    live = Live(ROWS[:3], then=ask)
    result = within(quiz, form(live), stop=stop, output=tmp_path / "b")
    assert (result.ended.state, result.ended.ran, result.ended.total) == ("stopped", 3, None)
    assert live.is_closed
    assert json.loads((tmp_path / "b/manifest.json").read_text())["state"] == "stopped"


def test_a_stop_between_rows_does_not_read_live_rows_to_their_end(
    quiz: Evaluator, calls: Calls, tmp_path: Path
) -> None:
    stop = Stop()
    calls.otherwise = lambda prompt: stop.ask() or "x"
    result = within(
        quiz, Again(Live(ROWS[:2])), stop=stop, limits={"concurrency": 1}, output=tmp_path / "b"
    )
    assert (result.ended.state, result.ended.ran, result.ended.total) == ("stopped", 1, None)


@pytest.mark.parametrize("rows", [ROWS[:2], []], ids=["after some", "before the first"])
def test_time_is_up_also_while_rows_are_waited_for(
    quiz: Evaluator, tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    live = Live(rows)
    result = within(quiz, live(), limits={"max_time": 0.3}, output=tmp_path / "b")
    assert (result.ended.state, result.ended.ran) == ("budget", len(rows))
    assert result.ended.reason == "the batch has used its 0.3 s" and live.is_closed


def test_a_row_that_is_given_in_spite_of_the_stop_is_not_begun(
    quiz: Evaluator, calls: Calls, tmp_path: Path
) -> None:
    stop = Stop()

    async def rows() -> Any:
        yield ROWS[0]
        asyncio.get_running_loop().call_soon(stop.ask)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            yield ROWS[1]

    result = within(quiz, rows(), stop=stop, output=tmp_path / "b")
    assert (result.ended.state, result.ended.ran) == ("stopped", 1) and len(calls) == 1


def test_an_iterator_that_fails_because_its_wait_ended_is_no_error_of_the_rows(
    quiz: Evaluator, tmp_path: Path
) -> None:
    stop = Stop()

    async def rows() -> Any:
        yield ROWS[0]
        asyncio.get_running_loop().call_soon(stop.ask)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise ConnectionError("the stream was closed")

    assert within(quiz, rows(), stop=stop, output=tmp_path / "b").ended.state == "stopped"


def test_what_is_in_flight_is_finished_when_the_wait_for_rows_ends(
    quiz: Evaluator, make_evaluator: Any, tmp_path: Path
) -> None:
    stop, ended = Stop(), asyncio.Event()

    class Slow(Scripted):
        async def complete(self, request: Any, *, on_text: Any = None) -> Any:
            await ended.wait()
            return await super().complete(request, on_text=on_text)

    class Watching(NoDisplay):
        """Lets the answers come when the rows were given up."""

        def progress(self, snapshot: Any) -> None:
            if live.is_closed:
                ended.set()

    live = Live(ROWS[:2], then=lambda: asyncio.get_running_loop().call_soon(stop.ask))
    evaluator = make_evaluator(QUIZ, backend=Slow(script=lambda request: "x"))
    result = within(evaluator, live(), stop=stop, display=Watching(), output=tmp_path / "b")
    assert (result.ended.state, result.ended.ran) == ("stopped", 2)


def test_rows_are_closed_when_enough_of_them_are_taken(quiz: Evaluator, tmp_path: Path) -> None:
    live = Live(ROWS)

    async def main() -> bool:
        result = await run_batch(
            "quiz", live(), evaluator=quiz, select={"limit": 2}, output=tmp_path / "b"
        )
        assert result.ended.ran == 2
        return live.is_closed

    assert asyncio.run(main())


@pytest.mark.parametrize("is_async", [True, False])
def test_rows_that_cancel_themselves_end_the_session_after_what_was_begun(
    quiz: Evaluator, tmp_path: Path, is_async: bool
) -> None:
    async def rows_async() -> Any:
        yield ROWS[0]
        raise asyncio.CancelledError

    def rows() -> Any:
        yield ROWS[0]
        raise asyncio.CancelledError

    with pytest.raises(UsageError, match="reading the rows raised CancelledError"):
        within(quiz, rows_async() if is_async else rows(), output=tmp_path / "b")
    assert len(list(open_batch(tmp_path / "b").results())) == 1


# -- interrupted ----------------------------------------------------------------------------------------------------------


def last_session(folder: Path) -> dict[str, Any]:
    manifest = json.loads((folder / "manifest.json").read_text())
    last = manifest["sessions"][-1]
    assert last["ended"] and manifest["state"] == last["state"]
    return last


def test_a_cancelled_session_has_ended_in_its_folder(
    quiz: Evaluator, calls: Calls, tmp_path: Path
) -> None:
    told: list[str] = []

    class Told(NoDisplay):
        def end(self, snapshot: Any, state: str) -> None:
            told.append(state)

    async def main() -> None:
        task = asyncio.ensure_future(
            run_batch(
                "quiz",
                ROWS,
                evaluator=quiz,
                scorers=["exact"],
                output=tmp_path / "b",
                display=Told(),
                limits={"concurrency": 1},
            )
        )
        calls.otherwise = lambda prompt: task.cancel() and "x" if len(calls) == 3 else "x"
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    last = last_session(tmp_path / "b")
    assert (last["state"], last["reason"]) == (
        "stopped",
        "interrupted: calls in flight were cancelled",
    )
    assert last["ran"] == len(list(open_batch(tmp_path / "b").results())) < 10
    assert told == ["stopped"]
    summary = open_batch(tmp_path / "b").summarise()
    assert not summary.complete and "interrupted" in summary.unfinished
    calls.otherwise = lambda prompt: "x"
    again = within(quiz, ROWS, output=tmp_path / "b", resume=True)
    assert again.is_complete and again.ended.ran == 10 - last["ran"]


def test_wait_for_ends_a_batch_as_it_ends_anything(quiz: Evaluator, tmp_path: Path) -> None:
    async def main() -> None:
        live = Live(ROWS[:2])
        task = asyncio.create_task(run_batch("quiz", live(), evaluator=quiz, output=tmp_path / "b"))
        async with asyncio.timeout(WITHIN_S):
            while not (tmp_path / "b" / "manifest.json").exists():  # noqa: ASYNC110  (the batch makes it)
                await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task, 0.1)

    asyncio.run(main())
    assert last_session(tmp_path / "b")["state"] == "stopped"


def test_ctrl_c_in_the_sync_form_ends_the_session_in_its_folder(
    quiz: Evaluator, tmp_path: Path
) -> None:
    live = Live(ROWS[:2], then=lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run_batch_sync("quiz", live(), evaluator=quiz, output=tmp_path / "b")
    last = last_session(tmp_path / "b")
    assert last["state"] == "stopped" and last["ran"] == len(
        list(open_batch(tmp_path / "b").results())
    )


def test_a_session_that_breaks_has_ended_in_its_folder_too(quiz: Evaluator, tmp_path: Path) -> None:
    class Broken:
        name = "broken"

        def in_flight(self) -> int:
            return 0

        async def run(self, *_: Any) -> None:
            raise OSError("no such node")

    with pytest.raises(OSError, match="no such node"):
        within(quiz, ROWS, engine=Broken(), output=tmp_path / "b")
    last = last_session(tmp_path / "b")
    assert (last["state"], last["reason"], last["ran"]) == (
        "incomplete",
        "OSError: no such node",
        0,
    )


def test_a_session_whose_engine_loses_all_processes_has_a_summary_and_can_be_resumed(
    quiz: Evaluator, tmp_path: Path
) -> None:
    class Losing(LocalEngine):
        async def run(self, worker: Any, next_work: Any, on_done: Any, is_stopping: Any) -> None:
            [work] = await next_work(1)
            on_done(await worker.perform(work))
            raise ClusterLost("no process is left; resume the batch")

    lost = within(quiz, ROWS, engine=Losing(1), output=tmp_path / "b")
    assert (lost.ended.state, lost.ended.reason) == (
        "incomplete",
        "no process is left; resume the batch",
    )
    assert (lost.summary.counts.passed, lost.summary.counts.pending) == (1, 9)
    assert (tmp_path / "b" / "summary.json").exists()
    assert last_session(tmp_path / "b")["ran"] == 1
    rest = within(quiz, ROWS, output=tmp_path / "b", resume=True)
    assert rest.is_complete and rest.ended.ran == len(ROWS) - 1


# -- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["b", None])
def test_results_are_found_from_anywhere(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(ROWS[:2], output=output)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir("sub")
    assert len(list(result.results())) == 2 and result.folder.is_absolute()


@pytest.mark.parametrize("method", ["start", "result", "progress", "notice", "end"])
def test_a_display_that_fails_is_told_of_once_and_the_batch_goes_on(
    quiz: Evaluator, tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    called: list[str] = []

    def failing(*_: Any) -> None:
        called.append(method)
        raise BrokenPipeError("nobody\x1b[2J listens")

    display = NoDisplay()
    setattr(display, method, failing)
    if method == "notice":
        within(quiz, ROWS[:1], output=tmp_path / "b")
        with open(tmp_path / "b/results.jsonl", "a") as file:
            file.write("torn")
    with caplog.at_level(logging.WARNING, "evaluator"):
        limits = {"max_time": 1} if method == "progress" else {}
        rows = Live(ROWS[:4])() if method == "progress" else ROWS[:4]
        result = within(
            quiz,
            rows,
            display=display,
            resume=method == "notice",
            output=tmp_path / "b",
            limits=limits,
        )
    assert result.is_complete or method == "progress"
    assert called == [method]
    (line,) = [record.getMessage() for record in caplog.records if "display" in record.getMessage()]
    assert "BrokenPipeError: nobody" in line and "\x1b" not in line


def test_a_display_that_lacks_a_method_is_one_that_fails(quiz: Evaluator, tmp_path: Path) -> None:
    assert within(quiz, ROWS[:2], display=object(), output=tmp_path / "b").is_complete


def test_a_display_may_still_interrupt() -> None:
    class Impatient(NoDisplay):
        def notice(self, line: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SafeDisplay(Impatient()).show("notice", "more")


# -- backends that end more than their call --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError(), SystemExit(2)], ids=lambda error: type(error).__name__
)
def test_a_backend_that_cancels_or_exits_fails_its_call_only(
    run: Run, calls: Calls, error: BaseException
) -> None:
    def answer(prompt: str) -> str:
        if prompt.endswith("2 + 2?"):
            raise error
        return "x"

    calls.otherwise = answer
    result = run(ROWS[:4])
    assert result.is_complete and result.ended.ran == 4
    (failed,) = [each for each in result.results() if each.failure is not None]
    assert failed.sample_id == "r2" and failed.failure is not None
    assert (
        failed.failure.kind == "provider_failure" and type(error).__name__ in failed.failure.message
    )


@pytest.mark.parametrize("is_stopped", [False, True])
def test_another_process_can_read_the_progress_while_the_session_runs_and_not_afterwards(
    quiz: Evaluator, tmp_path: Path, is_stopped: bool
) -> None:
    folder, stop = tmp_path / "b", Stop()
    seen: list[Any] = []

    class Reading(NoDisplay):
        def result(self, result: Any) -> None:
            seen.append(BatchFolder.reader(folder).progress())
            if is_stopped:
                stop.ask("stopped", "enough")

    run_batch_sync(
        "quiz",
        ROWS,
        evaluator=quiz,
        output=folder,
        display=Reading(),
        stop=stop,
        limits={"max_time": 600, "concurrency": 1},
    )
    assert seen[0]["total"] == len(ROWS)
    assert seen[0]["limits"]["max_time"] == 600
    assert (seen[0]["stop"], seen[0]["endpoints"]) == ("", [])
    assert BatchFolder.reader(folder).progress() is None
    assert not (folder / "progress.json").exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "text", "list"])
def test_a_progress_that_is_no_object_in_a_file_is_none(tmp_path: Path, kind: str) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "other.json").write_text('{"at": 1}')
    path = tmp_path / "progress.json"
    match kind:
        case "link":
            path.symlink_to(tmp_path / "other.json")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case _:
            path.write_text({"text": "{", "list": "[1]"}[kind])
    assert BatchFolder.reader(tmp_path).progress() is None


def test_an_input_that_is_not_json_is_an_error_of_its_row(run: Run, tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "x": 1e308 if n == 5 else n} for n in range(10)]
    inputs = {"question": "{{ x * 10 }}"}
    with pytest.raises(RowError, match=r"row 5 \(id 'r5'\): the input `question` is not a JSON"):
        run(iter(rows), inputs=inputs)
    # The samples in flight were finished.
    assert len(list(BatchFolder.reader(tmp_path / "batch").results())) == 5
