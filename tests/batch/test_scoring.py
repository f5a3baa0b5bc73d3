"""Scorers are added to a batch: no answer is asked for again, and no score is lost."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from evaluator import BatchResult, TaskStore, Usage, UsageError
from evaluator.batch import Stop, Verdict, control_batch, open_batch, score_batch_sync
from evaluator.batch.abandoned import recorded_use
from evaluator.batch.display import NoDisplay
from evaluator.batch.folder import BatchFolder
from evaluator.batch.identity import encode_results
from evaluator.batch.pending import find_unrecorded
from evaluator.batch.progress import Snapshot
from evaluator.batch.records import Failure
from evaluator.batch.scoring import history_table
from evaluator.batch.thresholds import check_thresholds, parse_threshold
from evaluator.record.steps import Summary
from tests.batch.conftest import QUIZ, ROWS, Calls, Run, Scripted
from tests.batch.labelled import judged_batch
from tests.conftest import MakeEvaluator

JUDGE = (
    '<task name="judge" type="atomic"><description>Judge an answer</description>'
    '<model role="grader"/><inputs><input name="answer" type="string" required="true">it</input>'
    "</inputs><instructions>Judge: {{ answer }}</instructions>"
    '<output_format type="json">{"type": "object"}</output_format></task>'
)
GRADED = {"type": "graded", "template": "judge", "inputs": {"answer": "output"}}


@pytest.fixture
def score(make_evaluator: MakeEvaluator, calls: Calls, tmp_path: Path) -> Any:
    evaluator = make_evaluator(QUIZ + JUDGE, backend=Scripted(script=calls))

    def score(*scorers: Any, **options: Any) -> BatchResult:
        return score_batch_sync(tmp_path / "batch", scorers, evaluator=evaluator, **options)

    return score


def _scores(result: BatchResult) -> list[dict[str, Any]]:
    return [
        {name: one.passed for name, one in sample.scores.items()} for sample in result.results()
    ]


def test_a_scorer_is_added_without_a_call_and_without_the_rows(
    run: Run, score: Any, calls: Calls
) -> None:
    first = run(iter(ROWS[:3]), scorers=["exact"])
    before = [one.scores["exact"] for one in first.results()]
    calls.clear()
    second = score("includes", "f1")
    assert calls == [] and second.is_complete and second.ended.ran == 3
    assert _scores(second) == [{"exact": True, "includes": True, "f1": True}] * 3
    assert [one.scores["exact"] for one in second.results()] == before
    assert set(open_batch(second.folder).manifest["scorers"]) == {"exact", "includes", "f1"}
    assert "missing" not in str(second.summary) and score("f1").ended.ran == 0


def test_a_resumed_batch_keeps_the_scores_that_were_added(
    run: Run, score: Any, calls: Calls
) -> None:
    run(ROWS[:3], scorers=["exact"])
    score("includes")
    again = run(ROWS[:4], scorers=["exact", "includes"], resume=True)
    assert again.ended.ran == 1 and len(calls) == 4
    assert _scores(again) == [{"exact": True, "includes": True}] * 4


def test_a_judge_is_asked_once_for_each_answer_also_when_another_scorer_changes(
    run: Run, score: Any, calls: Calls
) -> None:
    run(ROWS[:3])
    calls.clear()
    calls.otherwise = lambda prompt: '{"score": 1}'
    score(GRADED)
    assert len(calls) == 3
    score("includes")
    score("includes:ignore_case=true", replace=True)
    assert len(calls) == 3


def test_the_summary_has_the_tokens_of_judges_beside_those_of_the_tasks(
    run: Run, score: Any, calls: Calls
) -> None:
    first = run(ROWS[:3])
    text = first.summary.to_text()
    assert first.summary.spending.scoring_input_tokens.total == 0 and ", and scoring" not in text
    calls.otherwise = lambda prompt: '{"score": 1}'
    judged = score(GRADED)
    used = [one.scores["graded"].usage for one in judged.results()]
    sent = sum(usage.input_tokens or 0 for usage in used)
    received = sum(usage.output_tokens or 0 for usage in used)
    spending = judged.summary.spending
    assert 0 < received < sent
    assert (spending.scoring_input_tokens.total, spending.scoring_output_tokens.total) == (
        sent,
        received,
    )
    assert spending.input_tokens == first.summary.spending.input_tokens
    assert f" out, and scoring {sent:,} in, {received:,} out" in judged.summary.to_text()
    assert open_batch(judged.folder).summarise().spending == spending


def test_the_tokens_of_a_judge_count_once_also_when_another_scorer_changes(
    run: Run, score: Any, calls: Calls
) -> None:
    run(ROWS[:3])
    calls.otherwise = lambda prompt: '{"score": 1}'
    judged = score(GRADED).summary
    for again in (score("includes"), score("includes:ignore_case=true", replace=True)):
        assert again.ended.ran == 3
        for summary in (again.summary, open_batch(again.folder).summarise()):
            assert summary.spending.scoring_input_tokens == judged.spending.scoring_input_tokens
            assert summary.replaced_spending is None


def test_a_session_that_only_scores_has_used_what_its_judges_used(
    run: Run, score: Any, calls: Calls
) -> None:
    answered = run(ROWS[:3]).ended.snapshot.usage
    assert (answered.input_tokens or 0) > 0
    calls.clear()
    assert score("includes").ended.snapshot.usage == Usage() and calls == []
    calls.otherwise = lambda prompt: '{"score": 1}'
    judged = score(GRADED)
    used = [each.scores["graded"].usage for each in judged.results()]
    assert judged.ended.snapshot.usage == used[0] + used[1] + used[2]
    again = score("includes:ignore_case=true", replace=True)
    assert again.ended.ran == 3 and again.ended.snapshot.usage == Usage()


def test_judges_of_changed_scorers_whose_scores_a_kill_lost_are_spending_of_earlier_runs(
    run: Run, score: Any, calls: Calls
) -> None:
    first = run(ROWS[:3])
    calls.otherwise = lambda prompt: '{"score": 1}'
    judged = score(GRADED).results()
    used = sum(each.scores["graded"].usage.input_tokens or 0 for each in judged)
    path = first.folder / "results.jsonl"
    # As a session that was killed before it wrote the last score.
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    with BatchFolder.open(first.folder) as folder:
        manifest = folder.manifest()
        manifest["sessions"][-1]["state"] = "running"
        folder.write_manifest(manifest)
    lost = json.loads(lines[-1])
    calls.clear()
    for _ in range(2):
        again = score({**GRADED, "pass_at": 0.9}, replace=True)
        assert len(calls) == 3
        for summary in (again.summary, open_batch(again.folder).summarise()):
            assert summary.complete and summary.replaced_spending is not None
            assert summary.replaced_spending.scoring_input_tokens.total == used > 0
    (run_of_judge,) = open_batch(first.folder).manifest["abandoned"]
    assert run_of_judge["label"].startswith(lost["identity"] + "/")


def test_judges_count_once_where_earlier_scorers_judge_again_after_a_kill(
    run: Run, score: Any, calls: Calls
) -> None:
    run(ROWS[:3])
    calls.otherwise = lambda prompt: '{"score": 1}'
    calls.clear()
    spending = score(GRADED).summary.spending
    for_each = spending.scoring_input_tokens.known / len(calls)
    assert len(calls) == 3 and for_each > 0
    # The answers of the first judges are used again.
    for scorer, asked in (({**GRADED, "pass_at": 0.9}, 6), (GRADED, 6), ("includes", 6)):
        again = score(scorer, replace=True)
        _look_killed(again.folder)
        assert len(calls) == asked
        for summary in (again.summary, open_batch(again.folder).summarise()):
            assert summary.counts.passed == 3
            earlier = summary.replaced_spending
            assert earlier is not None
            both = (summary.spending, earlier)
            counted = sum(each.scoring_input_tokens.known for each in both)
            assert counted == for_each * len(calls), scorer


def _look_killed(folder: Path) -> None:
    """As a session that was killed after it wrote the last result."""
    with BatchFolder.open(folder) as batch:
        manifest = batch.manifest()
        manifest["state"] = manifest["sessions"][-1]["state"] = "running"
        batch.write_manifest(manifest)


def test_the_answer_to_a_row_that_is_changed_back_is_used_again_and_counted_once(
    make_evaluator: MakeEvaluator, run: Run, calls: Calls
) -> None:
    judging = make_evaluator(QUIZ + JUDGE, backend=Scripted(script=calls))
    calls.otherwise = lambda prompt: '{"score": 1}' if prompt.startswith("Judge") else "0"
    rows = ROWS[:2]
    changed = [{**ROWS[0], "question": "What is 0 + 0 + 0?"}, ROWS[1]]
    first = run(rows, evaluator=judging, scorers=[GRADED])
    store = TaskStore(first.folder / "tasks")
    for given, more in ((changed, []), (rows, []), (rows, ["includes"]), (changed, [])):
        _look_killed(first.folder)
        again = run(
            given, evaluator=judging, scorers=[GRADED, *more], resume=True, on_changed="run"
        )
        assert len(calls) == 6 and again.summary.counts.error == 0
        used = recorded_use(store, set(store.ids())).usage
        for summary in (again.summary, open_batch(again.folder).summarise()):
            earlier = summary.replaced_spending
            assert earlier is not None
            both = (summary.spending, earlier)
            tokens = sum(each.input_tokens.known + each.scoring_input_tokens.known for each in both)
            assert tokens == used.input_tokens


def test_an_answer_whose_scoring_has_ended_its_process_is_scored_again_and_counted_once(
    run: Run, calls: Calls
) -> None:
    first = run(ROWS[:1])
    (result,) = first.results()
    crashed = replace(
        result,
        verdict=Verdict.ERROR,
        scores={},
        content="",
        failure=Failure("TASK_FAILURE", "unexpected_error", message="the process ended"),
        usage=Usage(),
        task_id=None,
        task_file=None,
    )
    with BatchFolder.open(first.folder) as batch:
        batch.append(crashed)
    for options in ({"retry_errors": True}, {"scorers": ["exact", "includes"]}):
        again = run(ROWS[:1], resume=True, **options)
        assert len(calls) == 1 and again.summary.counts.passed == 1
        earlier = again.summary.replaced_spending
        assert earlier is not None and again.summary.spending.input_tokens.known == 0
        assert earlier.input_tokens.known == result.usage.input_tokens


def test_judges_of_results_of_an_earlier_version_are_counted_once_and_asked_again(
    run: Run, score: Any, calls: Calls
) -> None:
    """Its lines do not say which judges they count."""
    run(ROWS[:2])
    calls.otherwise = lambda prompt: "unsure" if "Judge: 0" in prompt else '{"score": 1}'
    folder = score(GRADED).folder
    path = folder / "results.jsonl"
    with BatchFolder.open(folder) as batch:
        lines = [replace(line, judge_tasks=()) for line in batch.lines()]
        path.write_bytes(b"".join(encode_results(lines, None)[0]))
        manifest = batch.manifest()
        del manifest["unrecorded"]
        batch.write_manifest(manifest)
    _look_killed(folder)
    calls.clear()
    calls.otherwise = lambda prompt: '{"score": 1}'
    for scorers in ([GRADED], [{**GRADED, "pass_at": 0.9}]):
        again = score(*scorers, replace=True)
        assert again.summary.counts.passed == 2
        _look_killed(folder)
        store = TaskStore(folder / "tasks")
        used = recorded_use(store, set(store.ids())).usage
        earlier = again.summary.replaced_spending
        assert earlier is not None
        both = (again.summary.spending, earlier)
        tokens = sum(each.input_tokens.known + each.scoring_input_tokens.known for each in both)
        assert tokens == used.input_tokens
    assert len(calls) == 3


def test_a_judge_that_an_earlier_session_found_without_a_result_stays_known(
    run: Run, score: Any, calls: Calls
) -> None:
    """Its label is that of the result, which keeps a score of another task instead."""
    run(ROWS[:1])
    calls.otherwise = lambda prompt: '{"score": 1}'
    folder = score(GRADED).folder
    (result,) = open_batch(folder).results()
    (judge,) = result.judge_tasks
    store = TaskStore(folder / "tasks", is_packed=True)
    (labels,) = (labels for task, _, labels in store.labelled() if task == judge)
    journal = store.create("judge", extra={"labels": labels})
    journal.close(Summary("completed", 0, 0, 0.5, {"turns": 1}, {"status": "COMPLETE"}))
    store.close()
    run_of_judge = (labels["sample"], journal.id) if labels is not None else ("", 0)
    batch = BatchFolder.reader(folder)
    for before in ([], [run_of_judge], [(run_of_judge[0], judge)]):
        found = find_unrecorded(TaskStore(store.root), batch.index(), batch, before)
        assert found.runs == found.ended == [run for run in before if run == run_of_judge]


def test_only_runs_that_may_not_be_found_again_are_kept_in_the_manifest(run: Run) -> None:
    """The others can be as many as the samples: those that wait for a provider batch."""
    first = run(ROWS[:2])
    store = TaskStore(first.folder / "tasks", is_packed=True)
    ids: dict[str, int] = {}
    for has_ended in (True, False):
        labels = {"sample": "ab12" if has_ended else "cd34"}
        journal = store.create("quiz", extra={"labels": labels})
        if has_ended:
            journal.close(Summary("completed", 0, 0, 0.5, {"turns": 1}, {"status": "COMPLETE"}))
        else:
            journal.abandon()
        ids[labels["sample"]] = journal.id
    store.close()
    batch = BatchFolder.reader(first.folder)
    found = find_unrecorded(TaskStore(store.root), batch.index(), batch)
    assert found.runs == list(ids.items()) and dict(found.ended) == {"ab12": ids["ab12"]}


def test_a_task_that_a_loss_of_power_took_is_counted_and_not_continued(run: Run) -> None:
    first = run(ROWS[:2])
    identities = [result.identity for result in first.results()]
    tasks = [result.task_id for result in first.results()]
    (first.folder / "results.jsonl").write_bytes(b"")
    batch = BatchFolder.reader(first.folder)
    kept = sorted(zip(identities, tasks, strict=True), key=itemgetter(1))
    assert None not in tasks
    gone = ("0" * 32, 999)
    # Its id is that of a later task now.
    taken = (identities[0], tasks[1])
    store = TaskStore(first.folder / "tasks")
    found = find_unrecorded(store, batch.index(), batch, [gone, taken])
    assert found.runs == [*kept, gone]
    assert found.newest == dict(kept)


def test_an_answer_whose_task_file_is_gone_is_still_that_of_its_task(run: Run, score: Any) -> None:
    first = run(ROWS[:2])
    tasks = [result.task_id for result in first.results()]
    shutil.rmtree(first.folder / "tasks")
    scored = score("includes")
    assert scored.ended.ran == 2 and [each.task_id for each in scored.results()] == tasks
    for summary in (scored.summary, open_batch(scored.folder).summarise()):
        assert summary.spending == first.summary.spending
        assert summary.replaced_spending is None


def test_a_judge_of_a_skipped_sample_is_spending_of_earlier_runs(
    make_evaluator: MakeEvaluator, run: Run, calls: Calls
) -> None:
    judging = make_evaluator(QUIZ + JUDGE, backend=Scripted(script=calls))
    calls.otherwise = lambda prompt: '{"score": 1}' if prompt.startswith("Judge") else "0"
    first = run(ROWS[:1], evaluator=judging, scorers=[GRADED])
    spending = first.summary.spending
    assert spending.scoring_output_tokens.known > 0
    path = first.folder / "results.jsonl"
    path.write_bytes(b"")
    with BatchFolder.open(first.folder) as folder:
        manifest = folder.manifest()
        manifest["state"] = manifest["sessions"][-1]["state"] = "running"
        folder.write_manifest(manifest)
    control_batch(first.folder, "skip", ["r0"], wait_s=0)
    for _ in range(2):
        skipped = run(ROWS[:1], evaluator=judging, scorers=[GRADED], resume=True).summary
        assert skipped.complete and skipped.counts.error == 1
        earlier = skipped.replaced_spending
        assert earlier is not None
        assert earlier.output_tokens.known == spending.output_tokens.known > 0
        assert earlier.scoring_output_tokens.known == spending.scoring_output_tokens.known > 0


@pytest.mark.parametrize("lost", [1, 2])
def test_a_session_has_used_what_its_own_judges_used_where_the_scorers_have_changed(
    make_evaluator: MakeEvaluator, run: Run, calls: Calls, lost: int
) -> None:
    judging = make_evaluator(QUIZ + JUDGE, backend=Scripted(script=calls))
    calls.otherwise = lambda prompt: '{"score": 1}' if prompt.startswith("Judge") else "0"
    first = run(ROWS[:2], evaluator=judging, scorers=[GRADED])
    path = first.folder / "results.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-lost]))
    with BatchFolder.open(first.folder) as folder:
        manifest = folder.manifest()
        manifest["state"] = manifest["sessions"][-1]["state"] = "running"
        folder.write_manifest(manifest)
    calls.clear()
    other = {**GRADED, "name": "other"}
    again = run(ROWS[:2], evaluator=judging, scorers=[other, "exact"], resume=True)
    assert again.is_complete and len(calls) > 0
    assert again.ended.snapshot.usage.turns == len(calls)


def test_a_score_that_is_an_error_is_made_again(run: Run, score: Any, calls: Calls) -> None:
    run(ROWS[:2])
    calls.otherwise = lambda prompt: "unsure" if "Judge: 0" in prompt else '{"score": 1}'
    first = score(GRADED)
    assert first.summary.counts.error == 1
    calls.clear()
    calls.otherwise = lambda prompt: '{"score": 1}'
    assert score(GRADED).summary.counts.passed == 2
    assert [prompt.splitlines()[0] for prompt in calls] == ["Judge: 0"]


def test_another_scorer_of_the_same_name_replaces_only_if_it_is_told_to(
    run: Run, score: Any
) -> None:
    run(ROWS[:2], scorers=["exact"])
    other = "exact:ignore_case=true"
    with pytest.raises(UsageError, match=r"another scorer `exact` already; replace it \(--replace"):
        score(other)
    replaced = score(other, replace=True)
    versions = {one.scores["exact"].version for one in replaced.results()}
    assert len(versions) == 1
    lines = [one.scores["exact"] for one in BatchFolder.reader(replaced.folder).lines()]
    assert len({one.version for one in lines}) == 2 and all(one.at for one in lines)
    rows = history_table(open_batch(replaced.folder)).rows
    assert [(row[0], row[3], row[4]) for row in rows] == [("exact", "2", "0"), ("exact", "2", "2")]


def test_an_interrupted_session_asks_no_judge_twice(run: Run, score: Any, calls: Calls) -> None:
    run(ROWS[:4])
    calls.clear()
    calls.otherwise = lambda prompt: '{"score": 1}'

    class StopAfterOne:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

        def result(self, result: Any) -> None:
            stop.ask()

    stop = Stop()
    first = score(GRADED, stop=stop, display=StopAfterOne(), limits={"concurrency": 1})
    assert first.ended.state == "stopped" and first.ended.total == 4
    # Another scorer completes the batch, but not the work of the first one.
    assert score("includes").is_complete
    assert _statuses(first) == ["incomplete", "incomplete", "met", "met"]
    assert "graded: 3 not scored yet, of 4" in str(open_batch(first.folder).summarise())
    assert score(GRADED).is_complete
    assert _statuses(first) == ["met"] * 4
    asked = [prompt.splitlines()[0] for prompt in calls]
    assert sorted(asked) == sorted(f"Judge: {row['target']}" for row in ROWS[:4])


def test_progress_counts_an_answer_as_done_when_it_is_scored(run: Run, score: Any) -> None:
    run(ROWS[:4])
    done: list[int] = []

    class Progress(NoDisplay):
        def start(self, name: str, snapshot: Snapshot) -> None:
            done.append(snapshot.done)

        def end(self, snapshot: Snapshot, state: str) -> None:
            done.append(snapshot.done)

    score("includes", display=Progress())
    assert done == [0, 4]


def _statuses(result: BatchResult) -> list[str]:
    names = ("mean(graded)", "accuracy", "mean(includes)", "input_tokens")
    thresholds = [parse_threshold(f"{name} >= 0") for name in names]
    found = check_thresholds(open_batch(result.folder).summarise(), thresholds)
    return [each.status.value for each in found]


def test_a_batch_that_is_not_finished_stays_so(run: Run, score: Any) -> None:
    run(ROWS, select={"limit": 2})
    folder = run(ROWS[:1], resume=True).folder
    assert score("includes").ended.total == 1
    manifest = open_batch(folder).manifest
    with BatchFolder.open(folder) as batch:
        batch.write_manifest({**manifest, "total": None})
    with pytest.raises(UsageError, match="not read to their end; resume the batch first"):
        score("f1")


def test_what_the_user_has_not_signed_stays_unsigned(score: Any, tmp_path: Path) -> None:
    folder = judged_batch(tmp_path / "batch", samples=2, arguments={"rows": "x"}).folder
    score("regex:pattern=right")
    assert "signature" not in json.loads((folder / "manifest.json").read_bytes())


def test_numbers_by_group_and_of_related_rows_are_those_of_the_batch(run: Run, score: Any) -> None:
    rows = [{**row, "topic": f"topic {place // 2}"} for place, row in enumerate(ROWS)]
    run(rows[:4], scorers=["exact"], cluster="topic", group_by="topic")
    second = score("includes")
    (group,) = second.summary.groups
    assert list(group.by) == ["topic 0", "topic 1"]
    assert second.summary == open_batch(second.folder).summarise()


def test_results_of_a_model_that_the_batch_has_no_more_are_not_counted(
    run: Run, score: Any
) -> None:
    folder = run(ROWS[:2], models=["m1", "m2"]).folder
    with BatchFolder.open(folder) as batch:
        # A session with one model was killed before it knew whose results it leaves out.
        manifest = batch.manifest()
        batch.write_manifest(
            {**manifest, "cells": manifest["cells"][:1], "total": 2, "state": "running"}
        )
    second = score("includes")
    assert [group.variant for group in second.summary.groups] == ["m1"]
    assert second.summary == open_batch(folder).summarise()
