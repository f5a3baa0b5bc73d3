"""`evaluate_batch` reports every error of the rows' iterator, and refuses values that give no rows."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evaluator import UsageError
from evaluator.interpreter.batch import evaluate_rows
from evaluator.processes.concurrency import TASKS_A_TURN

SAY = (
    '<task name="say" type="atomic"><description>Say a word</description>'
    '<inputs><input name="word" type="string" required="true">it</input></inputs>'
    "<instructions>Say {{ word }}</instructions></task>"
)


def outcomes(evaluator: Any, rows: Any) -> tuple[list[bool], BaseException | None]:
    """Whether each row came to an answer, and what ended them; fails where nothing ever does."""

    async def main() -> tuple[list[bool], BaseException | None]:
        seen: list[bool] = []
        async with asyncio.timeout(200):
            try:
                async for outcome in evaluator.evaluate_batch("say", rows):
                    seen.append(outcome.ok)
            except (UsageError, OSError, KeyboardInterrupt, SystemExit) as error:
                return seen, error
            return seen, None

    return asyncio.run(main())


def ending_with(error: BaseException) -> Any:
    yield {"word": "one"}
    raise error


async def ending_with_async(error: BaseException) -> Any:
    yield {"word": "one"}
    raise error


@pytest.mark.parametrize("rows", [ending_with, ending_with_async])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (asyncio.CancelledError(), UsageError),
        (GeneratorExit(), UsageError),
        (OSError("gone"), OSError),
        (SystemExit(3), SystemExit),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_rows_end_with_is_told_after_the_results_before_it(
    make_evaluator: Any,
    rows: Callable[[BaseException], Any],
    error: BaseException,
    told: type[BaseException],
) -> None:
    seen, ended = outcomes(make_evaluator(SAY, script=lambda request: "yes"), rows(error))
    assert seen == [True] and isinstance(ended, told)
    if told is UsageError:
        assert type(error).__name__ in str(ended) and ended.__cause__ is error


def test_rows_that_wait_for_what_was_cancelled_end_the_results(make_evaluator: Any) -> None:
    async def rows() -> Any:
        yield {"word": "one"}
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    seen, ended = outcomes(make_evaluator(SAY, script=lambda request: "yes"), rows())
    assert seen == [True] and isinstance(ended, UsageError)


class Frame:
    """As pandas, Polars and Arrow have it: what is iterated over is names of columns."""

    columns, shape = ("word",), (1, 1)

    def __iter__(self) -> Any:
        return iter(self.columns)


@pytest.mark.parametrize(
    "rows",
    ["rows.jsonl", b"rows", Path("rows.jsonl"), {"word": ["one"]}, Frame()],
    ids=lambda rows: type(rows).__name__,
)
def test_what_gives_no_rows_is_refused_at_once(make_evaluator: Any, rows: Any) -> None:
    with pytest.raises(UsageError, match=f"rows is a {type(rows).__name__}, .*batch") as refused:
        make_evaluator(SAY).evaluate_batch("say", rows)
    assert "mapping" in str(refused.value)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_is_refused(make_evaluator: Any, library: str) -> None:
    frame = pytest.importorskip(library).DataFrame({"word": ["one"]})
    with pytest.raises(UsageError, match="rows is a DataFrame"):
        make_evaluator(SAY).evaluate_batch("say", frame)


def test_rows_are_closed_when_nobody_wants_more(make_evaluator: Any) -> None:
    closed = False

    async def rows() -> Any:
        nonlocal closed
        try:
            for number in range(1_000):
                yield {"word": str(number)}
        finally:
            closed = True

    async def main() -> bool:
        results = make_evaluator(SAY, script=lambda request: "yes").evaluate_batch(
            "say", rows(), concurrency=1
        )
        assert (await anext(results)).ok
        await results.aclose()
        return closed

    assert asyncio.run(main())


@pytest.mark.parametrize("task_files", ["packed", "each"])
def test_tasks_are_packed_unless_each_is_to_have_a_file(
    make_evaluator: Any, tmp_path: Path, task_files: str
) -> None:
    evaluator = make_evaluator(SAY, script=lambda request: "yes", tasks_dir=tmp_path / "tasks")
    rows = [{"word": f"word {number}"} for number in range(5)]

    async def main() -> list[int]:
        found = evaluator.evaluate_batch("say", rows, task_files=task_files)
        return [outcome.task_id async for outcome in found]

    ids = asyncio.run(main())
    assert len(set(ids)) == 5
    files, segments = (len(list(tmp_path.glob(f"tasks/{name}/*"))) for name in ("done", "segments"))
    assert (files, segments) == ((0, 1) if task_files == "packed" else (5, 0))
    for number, row in zip(ids, rows, strict=True):
        recording = evaluator.services.store.read(number)
        assert recording.status == "completed" and recording.header.inputs == row
    single = evaluator.evaluate_sync("say", rows[0])
    assert (tmp_path / "tasks" / "done" / f"TASK-{single.task_id}.md").is_file()
    assert [task.id for task in evaluator.services.store.list()] == [6, 5, 4, 3, 2, 1]
    with pytest.raises(UsageError, match="task_files is 'one', expected one of packed, each"):
        evaluator.evaluate_batch("say", rows, task_files="one")


@pytest.mark.parametrize("is_eager", [False, True])
def test_results_that_were_taken_are_not_kept(is_eager: bool) -> None:
    """Also where tasks begin at once, as those of `asyncio.eager_task_factory`."""

    class Result:
        """As an outcome, but can be referenced weakly."""

    results: weakref.WeakSet[Result] = weakref.WeakSet()

    async def evaluate(row: Any) -> Any:
        result = Result()
        results.add(result)
        return result

    class Begun(asyncio.Future[Any]):
        def set_name(self, name: object) -> None:
            """Loops of Python 3.13 name what a factory makes."""

    def begin_at_once(loop: Any, coroutine: Any, **options: Any) -> Any:
        if getattr(coroutine, "__name__", "") != "one":
            return asyncio.Task(coroutine, loop=loop, **options)
        future = Begun(loop=loop)
        try:
            coroutine.send(None)
        except StopIteration as end:
            future.set_result(end.value)
        return future

    async def main() -> int:
        if is_eager:
            asyncio.get_running_loop().set_task_factory(begin_at_once)
        most = 0
        async for _ in evaluate_rows(evaluate, [{}] * 200, concurrency=2, at_end=lambda: None):
            most = max(most, len(results))
        return most

    assert asyncio.run(main()) < 20


def test_the_first_rows_go_on_before_the_last_of_many_begin() -> None:
    begun: list[int] = []

    async def evaluate(row: Any) -> Any:
        begun.append(row["number"])
        await asyncio.sleep(0)
        return len(begun)

    async def main() -> list[Any]:
        rows = [{"number": number} for number in range(2 * TASKS_A_TURN)]
        results = evaluate_rows(evaluate, rows, concurrency=1000, at_end=lambda: None)
        return [begun_at_second_step async for begun_at_second_step in results]

    assert asyncio.run(main()) == [
        *[TASKS_A_TURN] * TASKS_A_TURN,
        *[2 * TASKS_A_TURN] * TASKS_A_TURN,
    ]


def test_no_row_is_evaluated_after_the_results_are_closed() -> None:
    """Also where the rows' iterator catches the cancellation and continues."""
    evaluated: list[int] = []

    async def rows() -> Any:
        for number in range(100):
            waits = asyncio.get_running_loop().create_future()
            if number == 0:
                waits.set_result(None)
            with suppress(asyncio.CancelledError):
                await waits
            yield {"number": number}

    async def evaluate(row: Any) -> Any:
        evaluated.append(row["number"])
        return row

    async def main() -> None:
        results = evaluate_rows(evaluate, rows(), concurrency=2, at_end=lambda: None)
        async with asyncio.timeout(200):
            assert await anext(results) == {"number": 0}
            await results.aclose()

    asyncio.run(main())
    assert evaluated == [0]
