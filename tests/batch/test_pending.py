"""The work that is left: what has changed of a result is named, and what stays is counted."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    BatchResult,
    HandlerConfig,
    ModelRequest,
    ModelResponse,
    Usage,
    run_batch,
    run_batch_sync,
)
from evaluator.batch import Cell, Identity, Sample, SampleResult, Variant, Verdict, open_batch
from evaluator.batch import pending as batch_pending
from evaluator.batch.folder import BatchFolder
from evaluator.batch.identity import (
    changed_settings,
    digest,
    handler_settings,
    seal_line,
    storable_settings,
)
from evaluator.batch.pending import PendingWork
from evaluator.batch.rows import RowSource
from tests.batch.conftest import ROWS, Calls, Run, Scripted
from tests.conftest import MakeEvaluator

SAMPLE = Sample("a", {"question": "Why?"})


def told(**settings: Any) -> dict[str, Any]:
    return storable_settings(handler_settings(HandlerConfig(**settings), "m", {}, []))


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({}, {}, []),
        ({}, {"temperature": 0.7}, ["temperature (was not set, is 0.7)"]),
        (
            {"temperature": 0.7, "seed": 1},
            {"seed": 2},
            ["temperature (was 0.7, is not set)", "seed (was 1, is 2)"],
        ),
        ({"tool_calling": "text"}, {}, ["tool_calling (was text, is native)"]),
        ({"system": "Be brief."}, {"system": "Be exact."}, ["system"]),
        ({}, {"base_url": "http://user:secret@there/v1"}, ["base_url"]),
    ],
)
def test_settings_that_differ_are_named(
    before: dict[str, Any], now: dict[str, Any], said: list[str]
) -> None:
    assert changed_settings(told(**before), told(**now)) == said


def test_settings_are_kept_without_their_texts() -> None:
    kept = str(
        told(system="Hush.", base_url="http://user:secret@there/v1", simulated={"wrong": 0.5})
    )
    assert "Hush" not in kept and "secret" not in kept and "'model': 'm'" in kept


@pytest.mark.parametrize("is_known", [True, False])
def test_a_result_of_another_handler_is_explained_as_far_as_its_settings_are_known(
    tmp_path: Path, is_known: bool
) -> None:
    before, now = told(), told(temperature=0.7)
    cells = {
        digest(settings): Cell("quiz", "v", "t", digest(settings), False)
        for settings in (before, now)
    }
    old, new = cells.values()
    identity = Identity.of(old, SAMPLE, 1)
    with BatchFolder.create(tmp_path / "b") as folder:
        folder.append(
            SampleResult(
                identity=identity.value,
                sample_id="a",
                place=0,
                epoch=1,
                template="quiz",
                variant="v",
                verdict=Verdict.PASSED,
                inputs=SAMPLE.inputs,
                parts=identity.parts,
            )
        )
        settings = {digest(before): before, digest(now): now} if is_known else {digest(now): now}
        variants = [(new, Variant("v", None, None))]
        pending = PendingWork(
            variants, 1, folder.index(), folder.read_at, lambda _: None, "", settings=settings
        )
        assert asyncio.run(_work_left(pending)) == []
    (changed,) = pending.counts.explained
    assert changed.what == (
        ("temperature (was not set, is 0.7)",) if is_known else ("model or handler",)
    )


async def _work_left(pending: PendingWork) -> list[Any]:
    async def rows():
        yield [SAMPLE]

    return [work async for work in pending.work(rows())]


@pytest.mark.parametrize("epochs", [1, 2, 9])
def test_the_epochs_of_many_rows_are_not_made_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    monkeypatch.setattr(batch_pending, "SLICE", 4)
    cell = Cell("quiz", "v", "t", "h", False)
    samples = [Sample(str(n), {"question": n}) for n in range(5)]
    folder = BatchFolder.create(tmp_path / "b")
    work = PendingWork([(cell, Variant("v"))], epochs, {}, folder.read_at, lambda _: None, "")

    async def rows():
        yield samples

    async def sizes() -> list[int]:
        return [len(works) async for works in work.work(rows())]

    with folder:
        found = asyncio.run(sizes())
    assert sum(found) == work.counts.samples == 5 * epochs
    assert max(found) == max(4, epochs)


def test_each_session_counts_what_a_reader_of_its_folder_counts(run: Run, calls: Calls) -> None:
    def check(result: BatchResult) -> None:
        assert result.summary == open_batch(result.folder).summarise()

    rows = [{**row, "level": f"l{place % 2}"} for place, row in enumerate(ROWS)]
    question = calls.otherwise
    calls.otherwise = lambda _: 1 / 0
    check(run(rows[:4], group_by="level", cluster="level"))
    calls.otherwise = question
    options: dict[str, Any] = {"group_by": "level", "cluster": "level", "resume": True}
    retried = run(rows[:6], retry_errors=True, **options)
    check(retried)
    assert retried.summary.replaced == 4 and retried.summary.counts.passed == 6
    again = run(rows[:6], **options)
    check(again)
    assert again.ended.ran == 0 and again.summary == retried.summary
    left_out = run(rows[2:8], **options)
    check(left_out)
    assert left_out.summary.left_out == 2 and left_out.summary.counts.passed == 6
    check(run(rows, scorers=["includes"], **options))


@pytest.mark.parametrize(
    "run_of_somebody",
    [
        1,
        {"task_id": [], "usage": 1},
        {"task_id": {}, "usage": {"cost_usd": "x", "input_tokens": 1.5}, "interrupted_calls": []},
        {"usage": {"cost_usd": 10**400, "input_tokens": True}, "interrupted_calls": -1},
        {"usage": {"cost_usd": -0.5, "output_tokens": -1, "else": []}},
    ],
)
def test_odd_values_of_an_abandoned_run_are_unknown(
    run: Run, calls: Calls, run_of_somebody: Any
) -> None:
    folder = run(ROWS[:2]).folder
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["sessions"][-1]["state"] = "incomplete"
    path.write_text(json.dumps(manifest | {"abandoned": [run_of_somebody]}))
    result = run(ROWS[:3], resume=True, repair=True)
    assert result.is_complete and result.summary == open_batch(folder).summarise()
    earlier = result.summary.replaced_spending
    assert earlier is not None and earlier.cost_usd.known == 0 < earlier.cost_usd.of
    assert earlier.input_tokens.known == earlier.output_tokens.known == 0


def test_a_run_that_was_abandoned_is_continued_where_its_row_is_back(
    run: Run, calls: Calls, tmp_path: Path
) -> None:
    first = run(ROWS[:3])
    spending = first.summary.spending
    lines = (first.folder / "results.jsonl").read_bytes().splitlines(keepends=True)
    lost = json.loads(lines[-1])["place"]
    # As a session that was killed before it wrote the last result.
    (first.folder / "results.jsonl").write_bytes(b"".join(lines[:-1]))
    without = run([row for place, row in enumerate(ROWS[:3]) if place != lost], resume=True)
    assert without.is_complete and len(calls) == 3
    stale = open_batch(first.folder).manifest["abandoned"]
    assert len(stale) == 1 and without.summary.replaced_spending is not None

    again = run(ROWS[:3], resume=True)
    assert again.is_complete and again.summary.counts.passed == 3
    assert len(calls) == 3, "the answer was paid for, and is read from its record"
    assert open_batch(first.folder).manifest["abandoned"] == []
    assert again.summary.replaced_spending is None
    assert again.summary.spending.output_tokens == spending.output_tokens
    # A process that was killed before it wrote the manifest leaves the run there.
    with BatchFolder.open(first.folder) as folder:
        folder.write_manifest({**folder.manifest(), "abandoned": stale})
    assert open_batch(first.folder).summarise().replaced_spending is None


def test_a_run_that_was_to_replace_an_error_is_counted_where_the_error_stays(
    run: Run, calls: Calls
) -> None:
    question = calls.otherwise
    calls.otherwise = lambda _: 1 / 0
    folder = run(ROWS[:2]).folder
    calls.otherwise = question
    retried = run(ROWS[:2], resume=True, retry_errors=True)
    assert retried.summary.counts.passed == 2
    used = retried.summary.spending.output_tokens
    _lose_last_lines(folder, 2)
    for _ in range(2):
        again = run(ROWS[:2], resume=True)
        earlier = again.summary.replaced_spending
        assert again.is_complete and again.summary.counts.error == 2 and earlier is not None
        assert earlier.output_tokens.total == used.total
    retried = run(ROWS[:2], resume=True, retry_errors=True)
    assert retried.summary.counts.passed == 2 and len(calls) == 4
    assert retried.summary.spending.output_tokens == used


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_a_session_has_not_used_what_runs_that_it_reads_back_had_used(
    run: Run, calls: Calls, engine: str
) -> None:
    first = run(ROWS[:4])
    used = first.ended.snapshot.usage
    assert used.turns == 4
    _lose_last_lines(first.folder, 2)
    again = run(ROWS[:4], resume=True, engine=engine, workers=None if engine == "local" else 1)
    assert again.is_complete and again.ended.ran == 2 and len(calls) == 4
    assert again.ended.snapshot.usage == again.ended.snapshot.known_usage == Usage()
    assert again.summary.spending.output_tokens == first.summary.spending.output_tokens


@pytest.mark.parametrize("earlier", [2, 3])
def test_a_session_has_used_only_its_own_calls_of_a_task_that_it_continues(
    make_evaluator: MakeEvaluator, calls: Calls, tmp_path: Path, earlier: int
) -> None:
    calls.otherwise = lambda prompt: "x"
    cancelled: list[asyncio.Future[BatchResult]] = []

    class Cancelling(Scripted):
        async def complete(self, request: ModelRequest, **options: Any) -> ModelResponse:
            if len(calls) == earlier and not cancelled[0].done():
                cancelled[0].cancel()
                await asyncio.Event().wait()
            return await super().complete(request, **options)

    steps = (
        f'<task type="atomic" name="{name}"><description>Ask</description>'
        f"<instructions>{name} {{{{ question }}}}</instructions></task>"
        for name in ("First", "Last")
    )
    twice = (
        '<task name="twice" type="sequential"><description>Ask twice</description>'
        '<inputs><input name="question" type="string" required="true">it</input></inputs>'
        f"<steps>{''.join(steps)}</steps></task>"
    )
    evaluator = make_evaluator(twice, backend=Cancelling(script=calls))
    options: dict[str, Any] = {"evaluator": evaluator, "output": tmp_path / "batch"}
    options |= {"scorers": ["exact"], "limits": {"concurrency": 1}}

    async def main() -> None:
        task = asyncio.ensure_future(run_batch("twice", ROWS[:2], **options))
        cancelled.append(task)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    before = len(calls)
    result = run_batch_sync("twice", ROWS[:2], resume=True, **options)
    made = len(calls) - before
    assert result.is_complete and (before, made) == (earlier, 4 - earlier)
    assert result.ended.snapshot.usage.turns == made
    assert sum(each.usage.turns for each in result.results()) == 4
    assert result.ended.snapshot.usage.output_tokens == made


def _lose_last_lines(folder: Path, count: int) -> None:
    """As a session that was killed before it wrote its last results."""
    path = folder / "results.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-count]))
    with BatchFolder.open(folder) as opened:
        manifest = opened.manifest()
        manifest["state"] = manifest["sessions"][-1]["state"] = "running"
        opened.write_manifest(manifest)


def test_the_usage_of_an_abandoned_run_stays_known_where_its_task_file_is_gone(
    run: Run, calls: Calls
) -> None:
    first = run(ROWS[:3], task_files="each")
    lines = (first.folder / "results.jsonl").read_bytes().splitlines(keepends=True)
    lost = json.loads(lines[-1])
    (first.folder / "results.jsonl").write_bytes(b"".join(lines[:-1]))
    rows = [row for place, row in enumerate(ROWS[:3]) if place != lost["place"]]
    known = run(rows, resume=True, task_files="each").summary.replaced_spending
    assert known is not None and known.output_tokens.known > 0 == known.interrupted_calls

    (first.folder / lost["task_file"]).unlink()
    for _ in range(2):
        again = run(rows, resume=True, task_files="each")
        spending = again.summary.replaced_spending
        assert again.is_complete and spending is not None
        assert spending.output_tokens == known.output_tokens
        assert spending.input_tokens == known.input_tokens
        assert spending.interrupted_calls == 1, "what it used since is not known"


def test_odd_names_of_abandoned_runs_are_names_of_no_run(run: Run, calls: Calls) -> None:
    first = run(ROWS[:2])
    runs = [
        {"label": label, "task_id": task_id, "usage": {"input_tokens": 3}}
        for label in ("\ud800", "x/judge", "")
        for task_id in (10**400, -1)
    ]
    with BatchFolder.open(first.folder) as folder:
        folder.write_manifest({**folder.manifest(), "abandoned": runs})
    again = run(ROWS[:2], resume=True)
    spending = again.summary.replaced_spending
    assert again.is_complete and spending is not None
    assert (spending.input_tokens.total, spending.scoring_input_tokens.total) == (12, 6)


def test_a_complete_batch_is_compared_with_its_rows_once(
    run: Run, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its rows, its templates, its scorers or its results are others."""
    compared: list[str] = []
    work_of = PendingWork._work_of  # pyright: ignore[reportPrivateUsage]

    def spy(self: PendingWork, sample: Sample) -> Any:
        compared.append(sample.id)
        return work_of(self, sample)

    monkeypatch.setattr(PendingWork, "_work_of", spy)
    rows = tmp_path / "rows.jsonl"
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    rows.write_text(text)

    def resume(**options: Any) -> tuple[int, int]:
        """How many rows were compared, and how many samples ran."""
        compared.clear()
        ended = run(str(rows), resume=True, **options).ended
        assert ended.state == "complete" and ended.total == 10
        return len(compared), ended.ran

    assert run(str(rows)).ended.ran == 10
    assert resume() == (0, 0) and resume() == (0, 0)
    assert resume(retry_errors=True) == (10, 0)
    assert resume(scorers=["includes"]) == (10, 10) and len(calls) == 10
    assert resume(scorers=["includes"]) == (0, 0)
    # The same number of bytes.
    rows.write_text(text.replace("What is 3 + 3?", "What is 4 + 3?"))
    assert resume(scorers=["includes"], on_changed="run") == (10, 1)
    results = tmp_path / "batch" / "results.jsonl"
    lines = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"".join(lines[:-1]))
    assert resume(scorers=["includes"], on_changed="run") == (10, 1)
    # Results were changed: the next session compares all of them.
    assert resume(scorers=["includes"]) == (10, 0)
    assert resume(scorers=["includes"]) == (0, 0)
    # Somebody else's folder.
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "another"))
    assert resume(scorers=["includes"]) == (10, 0)
    assert resume(scorers=["includes"]) == (0, 0)


def test_a_result_of_a_changed_question_that_was_kept_is_compared_again(
    run: Run, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    rows.write_text(text)
    run(str(rows))
    rows.write_text(text.replace("What is 3 + 3?", "What is 4 + 3?"))
    for _ in range(2):
        kept = run(str(rows), resume=True, on_changed="keep").ended
        assert (kept.state, kept.ran, kept.counts.changed) == ("complete", 0, 1)


def test_a_result_that_was_replaced_by_one_of_the_same_size_is_compared_again(
    run: Run, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    run(str(rows))
    results = tmp_path / "batch" / "results.jsonl"
    first, *others = results.read_text().splitlines(keepends=True)
    identity = json.loads(first)["identity"]
    body = "{" + first.rstrip("\n")[len('{"crc32":"00000000",') :].replace(identity, "0" * 32)
    results.write_bytes(seal_line(body) + "".join(others).encode())
    os.utime(results, (1, 1))
    ended = run(str(rows), resume=True).ended
    assert (ended.ran, ended.counts.changed) == (0, 1)


def test_a_row_that_is_added_after_the_check_of_the_rows_is_run_by_the_next_session(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"
    lines = [json.dumps(row) + "\n" for row in ROWS]
    rows.write_text("".join(lines[:-1]))
    check = RowSource.check

    def check_and_add(self: RowSource, *args: Any, **options: Any) -> None:
        check(self, *args, **options)
        rows.write_text("".join(lines))

    with monkeypatch.context() as patch:
        patch.setattr(RowSource, "check", check_and_add)
        assert run(str(rows)).ended.ran == 9
    ended = run(str(rows), resume=True).ended
    assert (ended.state, ended.ran, ended.total) == ("complete", 1, 10)
