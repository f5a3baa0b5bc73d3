"""A batch runs what is asked, once, counts all of it, and goes on where it was left."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from pathlib import Path

import pytest

from evaluator import (
    Evaluator,
    HandlerConfig,
    ProviderError,
    RecordError,
    SimulatedBackend,
    TaskStore,
    UsageError,
    run_batch,
)
from evaluator.batch import BatchLimits, Score, Stop, Verdict, open_batch
from tests.batch.conftest import QUIZ, ROWS, Calls, Run, Scripted
from tests.patience import with_enough_time


def verdicts(result) -> dict[str, str]:
    return {each.sample_id: each.verdict.value for each in result.results()}


def test_each_row_is_asked_once_scored_and_written_down(
    run: Run, calls: Calls, tmp_path: Path
) -> None:
    result = run()
    assert result.ok and result.is_complete
    assert len(calls) == len(set(calls)) == 10
    assert set(verdicts(result).values()) == {"passed"}
    one = next(each for each in result.results() if each.sample_id == "r3")
    assert (one.content, one.target, one.epoch, one.template, one.place) == ("6", "6", 1, "quiz", 3)
    assert one.task_id is not None and one.task_file is None
    assert TaskStore(result.folder / "tasks").read(one.task_id).status == "completed"
    manifest = json.loads((result.folder / "manifest.json").read_text())
    assert manifest["state"] == "complete" and manifest["total"] == 10
    assert set(manifest["scorers"]) == {"exact"} and manifest["versions"]["evaluator"]
    assert json.loads((result.folder / "summary.json").read_text())


def test_each_task_has_its_file_if_that_is_asked_for(run: Run) -> None:
    result = run(task_files="each")
    for one in result.results():
        assert one.task_file == f"tasks/done/TASK-{one.task_id}.md"
        assert (result.folder / one.task_file).is_file()
    assert not (result.folder / "tasks" / "segments").exists()


def test_four_outcomes_are_four_things(run: Run, calls: Calls) -> None:
    calls.answers = {
        "Answer in a word: What is 1 + 1?": "eleven",
        "Answer in a word: What is 2 + 2?": ProviderError("down", kind="auth"),
    }
    rows = [*ROWS[:3], {"id": "open", "question": "What is 4 + 4?"}]
    result = run(rows)
    assert verdicts(result) == {"r0": "passed", "r1": "failed", "r2": "error", "open": "unscored"}
    counts = result.summary.counts
    assert (counts.passed, counts.failed, counts.error, counts.unscored, counts.pending) == (
        1,
        1,
        1,
        1,
        0,
    )


def test_a_complete_batch_is_not_run_again(run: Run, calls: Calls) -> None:
    run()
    calls.clear()
    again = run(resume=True)
    assert again.is_complete and again.ended.ran == 0 and calls == []
    assert len(list(again.results())) == 10


def test_more_rows_epochs_and_models_run_only_what_is_new(run: Run, calls: Calls) -> None:
    run(ROWS[:4], models=["m1"])
    calls.clear()
    assert run(ROWS[:6], models=["m1"], resume=True).ended.ran == 2
    assert run(ROWS[:6], models=["m1"], epochs=3, resume=True).ended.ran == 12
    grown = run(ROWS[:6], models=["m1", "m2"], epochs=3, resume=True)
    assert grown.ended.ran == 18 and grown.ended.total == 36 and len(calls) == 32
    assert len({each.key for each in grown.results()}) == 36


def test_rows_in_another_order_are_the_same_rows(run: Run, calls: Calls) -> None:
    plain = [{"question": row["question"], "target": row["target"]} for row in ROWS]
    run(plain)
    calls.clear()
    assert run(plain[::-1], resume=True).ended.ran == 0
    assert calls == []


def test_a_changed_row_is_named_left_alone_run_or_kept_as_is_said(run: Run, calls: Calls) -> None:
    run()
    calls.clear()
    rows = [{**ROWS[0], "question": "What is 50 + 50?"}, *ROWS[1:]]
    left = run(rows, resume=True)
    assert calls == [] and not left.is_complete and left.ended.state == "incomplete"
    assert [str(changed) for changed in left.ended.counts.explained] == [
        "r0 (epoch 1, quiz, scripted): changed input 'question'"
    ]
    assert "r0" not in verdicts(left)
    kept = run(rows, resume=True, on_changed="keep")
    assert calls == [] and kept.is_complete and verdicts(kept)["r0"] == "passed"
    ran = run(rows, resume=True, on_changed="run")
    assert len(calls) == 1 and ran.is_complete and verdicts(ran)["r0"] == "failed"


def test_a_changed_template_is_named_for_each_sample(
    run: Run, make_evaluator, calls: Calls, tmp_path: Path
) -> None:
    run()
    calls.clear()
    other = make_evaluator(
        QUIZ.replace("in a word", "in two words"), backend=Scripted(script=calls)
    )
    left = run(evaluator=other, resume=True)
    assert calls == [] and left.ended.counts.changed == 10
    assert "changed template 'quiz'" in str(left.ended.counts.explained[0])


def test_a_changed_scorer_or_target_judges_anew_without_a_call(run: Run, calls: Calls) -> None:
    run(ROWS[:3])
    calls.clear()
    rows = [{**ROWS[0], "target": "5"}, *ROWS[1:3]]
    again = run(rows, resume=True)
    assert again.ended.counts.judged_anew == 1 and verdicts(again)["r0"] == "failed"
    other = run(rows, resume=True, scorers=["includes"])
    assert other.ended.counts.judged_anew == 3 and other.ended.ran == 3 and calls == []
    assert all("includes" in each.scores for each in again.results())


def test_a_scorer_of_ones_own_sees_the_whole_result_and_its_record(run: Run) -> None:
    seen = []

    def shape(output, target, inputs, metadata, result, recording) -> Score:
        seen.append(
            (output, target, inputs["question"][:4], result.usage.turns, len(recording.steps) > 0)
        )
        return Score(0.5, True, explanation="fine")

    result = run([{**ROWS[1], "subject": "sums"}], scorers=["exact", shape])
    assert seen == [("2", "2", "What", 1, True)]
    (one,) = result.results()
    assert one.scores["shape"].value == 0.5 and one.metadata == {"subject": "sums"}


def test_a_scorer_that_crashes_is_an_error_and_is_judged_again_without_asking_the_model_again(
    run: Run, calls: Calls
) -> None:
    broken = True

    def picky(output: str) -> bool:
        if broken and output == "4":
            raise RuntimeError("no idea")
        return True

    first = run(ROWS[:4], scorers=[picky])
    assert verdicts(first) == {"r0": "passed", "r1": "passed", "r2": "error", "r3": "passed"}
    assert (
        "RuntimeError: no idea"
        in next(e for e in first.results() if e.sample_id == "r2").scores["picky"].error
    )
    calls.clear()
    broken = False
    second = run(ROWS[:4], scorers=[picky], resume=True, retry_errors=True)
    assert calls == [] and set(verdicts(second).values()) == {"passed"}


JUDGE = (
    '<task name="judge" type="atomic"><description>Judge an answer</description><model role="grader"/>'
    '<inputs><input name="answer" type="string" required="true">it</input></inputs>'
    '<instructions>Judge: {{ answer }}</instructions><output_format type="json">{"type": "object"}</output_format></task>'
)


def test_another_judge_judges_anew_and_asks_no_question_again(
    run: Run, make_evaluator, calls: Calls
) -> None:
    calls.otherwise = lambda prompt: '{"score": 1}' if prompt.startswith("Judge") else "an answer"
    graded = {"type": "graded", "template": "judge", "inputs": {"answer": "output"}}

    def judged_by(model: str):
        return make_evaluator(
            QUIZ + JUDGE, backend=Scripted(script=calls), model_roles={"grader": model}
        )

    assert set(verdicts(run(ROWS[:3], evaluator=judged_by("a"), scorers=[graded])).values()) == {
        "passed"
    }
    assert len(calls) == 6
    calls.clear()
    calls.otherwise = lambda prompt: '{"score": 0}'
    again = run(ROWS[:3], evaluator=judged_by("b"), scorers=[graded], resume=True)
    assert again.ended.counts.judged_anew == 3 and set(verdicts(again).values()) == {"failed"}
    assert len(calls) == 3 and all(prompt.startswith("Judge") for prompt in calls)


def test_one_name_is_a_list_of_one(run: Run) -> None:
    result = run(ROWS[:1], models="mod3", thresholds="accuracy >= 0.5")
    assert result.ended.total == 1 and result.ok


def test_errors_are_tried_again_only_when_asked(run: Run, calls: Calls) -> None:
    prompt = "Answer in a word: What is 2 + 2?"
    calls.answers = {prompt: ProviderError("down", kind="auth")}
    run(ROWS[:4])
    calls.answers.clear()
    calls.clear()
    assert verdicts(run(ROWS[:4], resume=True))["r2"] == "error" and calls == []
    again = run(ROWS[:4], resume=True, retry_errors=True)
    assert calls == [prompt] and verdicts(again)["r2"] == "passed" and again.ended.ran == 1


def test_where_only_a_scorer_failed_no_model_is_asked_again(run: Run, calls: Calls) -> None:
    is_broken = True

    def strict(output: str, target: str) -> bool:
        if is_broken:
            raise RuntimeError("the scorer's server is down")
        return output == target

    assert set(verdicts(run(ROWS[:2], scorers=[strict])).values()) == {"error"}
    calls.clear()
    is_broken = False
    again = run(ROWS[:2], scorers=[strict], resume=True, retry_errors=True)
    assert set(verdicts(again).values()) == {"passed"} and calls == []


def test_the_same_error_again_and_again_ends_the_session(run: Run, calls: Calls) -> None:
    calls.otherwise = lambda prompt: ProviderError("bad key 123", kind="auth")
    rows = [{"id": str(n), "question": f"What is {n} + 1?"} for n in range(100)]
    ended = run(rows, limits=BatchLimits(concurrency=2, stop_after=5)).ended
    assert ended.state == "repeated error" and 5 <= ended.ran <= 7 and ended.total == 100
    assert "bad key #" in ended.reason


def test_errors_of_different_kinds_are_not_the_same_error(run: Run, calls: Calls) -> None:
    kinds = {0: ("auth", "bad key"), 1: ("auth", "no such model"), 2: ("not_found", "bad key")}

    def answer(prompt: str) -> ProviderError:
        kind, message = kinds[int(prompt.split()[-3]) % 3]
        return ProviderError(f"{message} at 0x{len(calls):x}ef", kind=kind)  # type: ignore[arg-type]

    calls.otherwise = answer
    rows = [{"id": str(n), "question": f"What is {n} + 1?"} for n in range(30)]
    ended = run(rows, limits=BatchLimits(concurrency=1, stop_after=2)).ended
    assert (ended.state, ended.ran) == ("complete", 30)


def test_an_answer_between_them_begins_the_count_of_errors_again(run: Run, calls: Calls) -> None:
    calls.otherwise = lambda prompt: (
        "4" if " 3 " in prompt else ProviderError(f"bad key 0x{len(calls):x}ef", kind="auth")
    )
    rows = [{"id": str(n), "question": f"What is {n} + 1?"} for n in range(30)]
    ended = run(rows, limits=BatchLimits(concurrency=1, stop_after=4)).ended
    assert (ended.state, ended.ran) == ("repeated error", 8)
    assert (
        ended.reason
        == "4 samples in a row ended with: provider_failure: model call failed: bad key #"
    )


def test_errors_of_a_kind_that_is_counted_as_failed_are_failed(
    run: Run, make_evaluator, calls: Calls
) -> None:
    strict = make_evaluator(
        QUIZ.replace("</task>", '<output_format type="json" schema="number"/></task>'),
        backend=Scripted(script=calls),
    )
    calls.otherwise = lambda prompt: "no number"
    counted = run(ROWS[:2], evaluator=strict, count_as_failed=["output_format_failure"])
    assert set(verdicts(counted).values()) == {"failed"}
    (one, _) = counted.results()
    assert (
        one.failure is not None
        and one.scores["exact"].explanation == "counted as failed: output_format_failure"
    )


def test_asked_to_stop_it_finishes_what_is_in_flight_and_goes_on_later(
    run: Run, calls: Calls
) -> None:
    stop = Stop()

    def answer(prompt: str) -> str:
        if len(calls) == 3:
            stop.ask()
        return "x"

    calls.otherwise = answer
    first = run(stop=stop, limits={"concurrency": 1})
    assert first.ended.state == "stopped" and first.ended.ran == 3 and first.ended.total == 10
    calls.otherwise = lambda prompt: "x"
    second = run(resume=True)
    assert second.is_complete and second.ended.ran == 7 and len(calls) == 10


def test_asked_to_stop_it_does_not_wait_for_calls_that_are_not_due_yet(
    run: Run, calls: Calls
) -> None:
    stop = Stop()
    calls.otherwise = lambda prompt: stop.ask() or "x"
    first = run(stop=stop, limits={"concurrency": 5, "requests_per_minute": 1})
    assert (first.ended.state, first.ended.ran, len(calls)) == ("stopped", 1, 1)
    second = run(resume=True, limits={"concurrency": 5})
    assert second.is_complete and second.ended.ran == 9 and len(calls) == 10


def test_waiting_for_a_calls_turn_is_not_in_a_samples_duration(run: Run, tmp_path: Path) -> None:
    def attempt(between_s: float) -> tuple[float, float, float]:
        """The longest wait for a call's turn, that sample's duration, and the time of the batch."""
        started = time.perf_counter()
        result = run(
            [{**ROWS[0], "id": str(n)} for n in range(11)],
            limits={"requests_per_minute": 60 / between_s},
            output=tmp_path / str(between_s),
        )
        elapsed_s = time.perf_counter() - started
        store = TaskStore(result.folder / "tasks")
        waited = {}
        for sample in result.results():
            summary = store.read(sample.task_id).summary
            assert summary is not None
            waited[sample.sample_id] = (
                summary.result["notes"].get("waited_s", 0.0),
                sample.duration_s,
            )
        return *max(waited.values()), elapsed_s

    longest_s, duration_s, elapsed_s = with_enough_time(attempt, lambda times: times[0] > 0, 0.1)
    assert longest_s > 0
    assert duration_s <= elapsed_s - longest_s


def test_cancelled_it_keeps_what_was_done_and_makes_no_call_twice_but_those_in_flight(
    quiz: Evaluator, calls: Calls, tmp_path: Path
) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(
            run_batch(
                "quiz",
                ROWS,
                evaluator=quiz,
                scorers=["exact"],
                output=tmp_path / "b",
                limits={"concurrency": 2},
            )
        )
        calls.otherwise = lambda prompt: task.cancel() and "x" if len(calls) == 5 else "x"
        with pytest.raises(asyncio.CancelledError):
            await task
        calls.otherwise = lambda prompt: "x"
        result = await run_batch(
            "quiz", ROWS, evaluator=quiz, scorers=["exact"], output=tmp_path / "b", resume=True
        )
        assert result.is_complete and len(calls) <= 12

    asyncio.run(main())


def test_a_budget_ends_the_session_and_the_rest_is_pending(
    run: Run, make_evaluator, calls: Calls
) -> None:
    short = make_evaluator(
        QUIZ, backend=Scripted(script=calls), handler=HandlerConfig(max_output_tokens=100)
    )
    run = partial(run, evaluator=short)
    first = run(limits=BatchLimits(concurrency=1, max_tokens=200))
    assert first.ended.state == "budget" and 0 < first.ended.ran < 10 and first.ended.total == 10
    assert "tokens" in first.ended.reason
    made = len(calls)
    second = run(resume=True)
    assert (
        second.is_complete and second.ended.ran == 10 - first.ended.ran and len(calls) == 10 >= made
    )


def test_a_gate_brings_the_reducer_that_it_needs(run: Run) -> None:
    result = run(ROWS[:3], epochs=2, thresholds=["pass@2 >= 0.5"])
    assert result.ok and [threshold.met for threshold in result.thresholds] == [True]


def test_gates_hold_or_not_and_an_incomplete_batch_passes_none(run: Run) -> None:
    good = run(ROWS[:4], thresholds=["accuracy >= 0.9", "errors <= 0"])
    assert good.ok and [threshold.met for threshold in good.thresholds] == [True, True]
    stop = Stop()
    stop.ask()
    assert not run(resume=True, thresholds=["accuracy >= 0.9"], stop=stop).ok


def test_a_bad_row_in_the_middle_of_a_stream_ends_the_session_after_what_was_begun(
    run: Run, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"row 3 .*not unique"):
        run(iter([*ROWS[:3], ROWS[0], *ROWS[4:]]))
    unfinished = open_batch(tmp_path / "batch").summarise()
    assert not unfinished.complete and "row 3 " in unfinished.unfinished
    assert run(ROWS, resume=True).ended.ran == 7


def test_a_bad_row_in_the_middle_of_a_file_is_found_before_the_first_call(
    run: Run, calls: Calls, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "\n".join([*(json.dumps(row) for row in ROWS[:3]), "{broken", json.dumps(ROWS[4])])
    )
    with pytest.raises(UsageError, match=r"rows\.jsonl:4"):
        run(rows)
    assert not calls and not (tmp_path / "batch").exists()


def test_rows_from_an_async_iterator_are_taken_as_they_come(run: Run) -> None:
    async def rows():
        for row in ROWS:
            yield row

    result = run(rows())
    assert result.is_complete and result.ended.total == 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"templates": "quizz"}, "quiz"),
        ({"templates": []}, "name a template"),
        ({"epochs": 0}, "epochs is 0"),
        ({"scorers": ["exactly"]}, "exact"),
        ({"inputs": {"question": "questoin"}}, "question"),
        ({"inputs": {"quest": "question"}}, "no input"),
        ({"limits": {"concurrency": 0}}, "concurrency is 0"),
        ({"limits": {"max_costs": 1}}, "max_cost"),
        ({"select": {"limits": 1}}, "limit"),
        ({"thresholds": ["accuracy is good"]}, "accuracy is good"),
        ({"thresholds": ["mean(f1) >= 0.5"]}, "f1"),
        ({"thresholds": ["pass@2 >= 0.5"]}, "pass@2"),
        ({"handlers": ["none"]}, "no handler profile"),
        ({"engine": "cloud"}, "engine is 'cloud'"),
        ({"on_changed": "ask"}, "on_changed"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is(
    run: Run, calls: Calls, tmp_path, options, said: str
) -> None:
    with pytest.raises(Exception, match=said):
        run(**options)
    assert calls == [] and not (tmp_path / "batch").exists()


def test_a_folder_with_a_batch_in_it_is_not_written_over(run: Run) -> None:
    run(ROWS[:1])
    with pytest.raises(RecordError, match="resume"):
        run(ROWS[:1])


def test_several_templates_take_each_the_inputs_that_they_declare(
    run: Run, make_evaluator, calls: Calls
) -> None:
    other = QUIZ.replace('name="quiz"', 'name="other"').replace("question", "hint")
    both = make_evaluator(QUIZ + other, backend=Scripted(script=calls))
    rows = [{"id": "a", "question": "What is 1 + 1?", "hint": "What is 2 + 2?", "target": "2"}]
    result = run(rows, evaluator=both, templates=["quiz", "other"])
    assert {each.template: each.verdict for each in result.results()} == {
        "quiz": Verdict.PASSED,
        "other": Verdict.FAILED,
    }


def test_the_display_is_told_of_everything(run: Run) -> None:
    told: list[str] = []

    class Told:
        def start(self, name, snapshot):
            told.append(f"begun {name} {snapshot.total}")

        def result(self, result):
            told.append(result.sample_id)

        def progress(self, snapshot):
            pass

        def notice(self, line):
            told.append(line)

        def end(self, snapshot, state):
            told.append(f"{state} {snapshot.done} {dict(snapshot.verdicts)}")

    run(ROWS[:2], display=Told(), limits={"concurrency": 1})
    assert told == ["begun quiz 2", "r0", "r1", "complete 2 {'passed': 2}"]


def test_a_retryable_error_is_tried_again_in_its_own_run_and_keeps_what_was_answered(
    run: Run, make_evaluator, calls: Calls
) -> None:
    steps = """<task name="quiz" type="sequential"><description>Answer in two steps</description>
      <inputs><input name="question" type="string" required="true">it</input></inputs>
      <context_management><accumulate_data>false</accumulate_data></context_management><steps>
      <task name="think" type="atomic"><description>Think</description><instructions>Think: {{ question }}</instructions></task>
      <task name="say" type="atomic"><description>Say</description><instructions>Say: {{ question }}</instructions></task>
      </steps></task>"""
    calls.answers = {
        "Say: What is 0 + 0?": ProviderError("down", kind="connection", retryable=True)
    }
    profile = HandlerConfig(name="offline", backend="simulated", backoff_s=())
    evaluator = make_evaluator(steps, handler=profile, backend=Scripted(script=calls))
    assert verdicts(run(ROWS[:1], evaluator=evaluator)) == {"r0": "error"}
    assert calls == ["Think: What is 0 + 0?", "Say: What is 0 + 0?"]
    calls.answers.clear()
    calls.clear()
    again = run(ROWS[:1], evaluator=evaluator, resume=True, retry_errors=True)
    assert calls == ["Say: What is 0 + 0?"]
    assert verdicts(again) == {"r0": "passed"}


def test_a_cache_keeps_the_judgements_of_epochs_and_of_repeats_apart(
    make_evaluator, run: Run, tmp_path: Path
) -> None:
    judged: list[str] = []

    class Model(SimulatedBackend):
        @property
        def name(self) -> str:
            return "scripted"

    def script(request):
        prompt = request.messages[-1].content
        if "Judge" in prompt:
            judged.append(prompt)
            return "true"
        return "an answer"

    xml = """<task name="own_judge" type="atomic"><description>Judge an answer</description><model role="grader"/>
      <inputs><input name="reply" type="string" required="true">it</input></inputs>
      <instructions>Judge {{ reply }}</instructions><output_format type="json" schema="boolean"/></task>"""
    evaluator = make_evaluator(QUIZ + xml, backend=Model(script=script))
    grader = {"type": "graded", "template": "own_judge", "inputs": {"reply": "output"}}
    scorers = [{**grader, "judge_epochs": 2}]
    cache = tmp_path / "cache.db"
    result = run(ROWS[:1], evaluator=evaluator, scorers=scorers, epochs=3, cache=cache)
    assert result.is_complete
    assert len(judged) == 6, "each epoch and each repeat is a judgement of its own"
    again = run(
        ROWS[:1],
        evaluator=evaluator,
        scorers=scorers,
        epochs=3,
        cache=cache,
        output=tmp_path / "second",
    )
    assert again.is_complete
    assert len(judged) == 6, "the same judgements come from the cache"
