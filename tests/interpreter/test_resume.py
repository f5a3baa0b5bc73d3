"""An interrupted run continues from its task file: answered calls are not repeated, and changes are reported."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from evaluator import (
    HandlerConfig,
    ProviderError,
    SimulatedBackend,
    TaskBusy,
    TaskError,
    TaskStore,
    UsageError,
)
from evaluator.record.journal import Journal
from evaluator.record.redact import Redactor
from tests.interpreter.crashes import cut, file_of, reading
from tests.interpreter.resume_runs import SCRIPTED, STORY, run


def test_what_was_completed_is_not_asked_again_and_the_result_is_the_same(
    make_evaluator, echoing, tmp_path
):
    evaluator, whole = run(make_evaluator, script=echoing)
    echoing.seen.clear()
    cut(tmp_path, "steps[2]/turn[1]")
    assert TaskStore(tmp_path / "tasks").read(1).status == "interrupted"
    again = asyncio.run(evaluator.resume(1)).unwrap()
    assert echoing.prompts == ["Draft of <Plan cats>", "Finish <Draft of <Plan cats>>"]
    assert (again.content, again.usage, again.task_id) == (whole.content, whole.usage, 1)
    assert again.notes["resumed"] == {"steps_from_record": 1, "steps_run": 2}
    read = reading(tmp_path)
    assert (read.status, len(read.resumptions)) == ("completed", 1)
    assert [s.start.path for s in read.steps].count("steps[1]/resolve") == 1
    assert not (tmp_path / "tasks" / "active" / "TASK-1.md").exists()


def test_a_call_in_flight_is_made_again_as_a_further_attempt_with_a_warning(
    make_evaluator, echoing, tmp_path
):
    evaluator, _ = run(make_evaluator, script=echoing)
    echoing.seen.clear()
    cut(tmp_path, "steps[3]/turn[1]", begun=True)
    again = asyncio.run(evaluator.resume(1)).unwrap()
    assert len(echoing.seen) == 1
    assert any("steps[3]/turn[1]" in w and "billed twice" in w for w in again.notes["warnings"])
    # A simulated call costs nothing.
    assert "interrupted_calls" not in again.notes
    attempts = [
        (s.start.attempt, s.status, s.number)
        for s in reading(tmp_path).steps
        if s.start.path == "steps[3]/turn[1]"
    ]
    assert [a[:2] for a in attempts] == [(1, "aborted"), (2, "success")]
    assert attempts[0][2] == attempts[1][2]


def test_a_torn_end_is_cut_off_kept_and_reported(make_evaluator, echoing, tmp_path):
    evaluator, whole = run(make_evaluator, script=echoing)
    cut(tmp_path, "steps[2]/turn[1]", extra=b"\n---\n\n## Step 4: si")
    again = asyncio.run(evaluator.resume(1)).unwrap()
    assert again.content == whole.content
    assert any("ends inside a record" in w for w in again.notes["warnings"])
    read = reading(tmp_path)
    assert read.resumptions[0].cut_bytes == len(b"\n---\n\n## Step 4: si")
    aside = tmp_path / "tasks" / "active" / "TASK-1.md.torn-1"
    assert aside.read_bytes() == b"\n---\n\n## Step 4: si"
    assert [task.id for task in TaskStore(tmp_path / "tasks").list()] == [1]


def test_a_completed_run_gives_its_recorded_result_without_a_call(
    make_evaluator, echoing, tmp_path
):
    evaluator, whole = run(make_evaluator, script=echoing)
    echoing.seen.clear()
    before = file_of(tmp_path, 1).read_bytes()
    again = asyncio.run(evaluator.resume(1)).unwrap()
    assert (again.content, again.usage, dict(again.notes)) == (
        whole.content,
        whole.usage,
        dict(whole.notes),
    )
    assert echoing.seen == []
    assert file_of(tmp_path, 1).read_bytes() == before


def test_a_run_that_was_killed_while_its_file_was_moved_is_completed(
    make_evaluator, echoing, tmp_path
):
    evaluator, whole = run(make_evaluator, script=echoing)
    done = file_of(tmp_path, 1)
    active = tmp_path / "tasks" / "active" / done.name
    done.rename(active)
    assert asyncio.run(evaluator.resume(1)).unwrap().content == whole.content
    assert done.exists() and not active.exists()


def test_a_failed_run_is_tried_again_from_where_it_failed(make_evaluator, scripted, tmp_path):
    fails = scripted({"Draft": ProviderError("down", kind="auth")}, default="fine")
    _, error = run(make_evaluator, script=fails)
    assert isinstance(error, TaskError)
    works = scripted(default="fine")
    outcome = asyncio.run(make_evaluator(STORY, script=works).resume(1)).unwrap()
    assert outcome.content == "fine"
    assert [prompt.split()[0] for prompt in works.prompts] == ["Draft", "Finish"]


def test_an_aborted_run_says_how_much_was_planned_and_continues(make_evaluator, scripted, tmp_path):
    async def cancelled(evaluator):
        task = asyncio.ensure_future(evaluator.evaluate("story", {"topic": "cats"}))
        await asyncio.wait_for(reached.wait(), 200)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    reached = asyncio.Event()

    class Hanging(SimulatedBackend):
        async def complete(self, request, *, on_text=None):
            if "Draft" in request.messages[-1].content:
                reached.set()
                await asyncio.Event().wait()
            return await super().complete(request, on_text=on_text)

    asyncio.run(cancelled(make_evaluator(STORY, backend=Hanging(script=scripted(default="fine")))))
    summary = reading(tmp_path).summary
    assert summary is not None
    assert (summary.status, summary.steps, summary.planned, summary.reason) == (
        "aborted",
        4,
        6,
        "interrupted",
    )
    works = scripted(default="fine")
    assert asyncio.run(make_evaluator(STORY, backend=SimulatedBackend(script=works)).resume(1)).ok
    assert len(works.seen) == 2


# -- subtasks ---------------------------------------------------------------------------------------------------

SPAWNING = """
<task name="lead" type="atomic"><description>Lead</description><tools><tool name="helper"/></tools>
  <instructions>Lead now</instructions></task>
<task name="helper" type="atomic"><description>Help with a part</description>
  <inputs><input name="part" required="true"/></inputs>
  <instructions>Help with {{ part }}</instructions></task>
"""


def leading(request):
    prompt = request.messages[0].content
    if "Lead now" not in prompt:
        asked.append(prompt)
        return f"helped: {prompt}"
    answers = [m.content for m in request.messages if m.role == "tool"]
    if not answers:
        return [{"tool": "helper", "arguments": {"part": part}} for part in ("a", "b")]
    return " and ".join(answers)


asked: list[str] = []


def test_a_subtask_continues_in_its_own_file(make_evaluator, tmp_path):
    asked.clear()
    _, whole = run(make_evaluator, SPAWNING, "lead", {}, leading)
    assert sorted(asked) == ["Help with a", "Help with b"]
    parent = reading(tmp_path)
    links = {
        s.start.path: s.start.args["task_id"] for s in parent.steps if s.start.kind == "subtask"
    }
    second = links["turn[1]/tool[2]/subtask"]
    cut(tmp_path, "turn[1]/tool[2]/subtask", begun=True)
    cut(tmp_path, "turn[1]", task_id=second, begun=True)
    asked.clear()
    evaluator = make_evaluator(SPAWNING, script=leading)
    assert {task.id for task in evaluator.interrupted()} == {1}
    refused = asyncio.run(evaluator.resume(second))
    assert (
        isinstance(refused, TaskError) and "resume the task that asked for it: 1" in refused.message
    )
    again = asyncio.run(evaluator.resume(1)).unwrap()
    assert asked == ["Help with b"]
    assert (again.content, again.usage) == (whole.content, whole.usage)
    assert {task.status for task in TaskStore(tmp_path / "tasks").list()} == {"completed"}
    assert len(list(TaskStore(tmp_path / "tasks").list())) == 3


# -- where runs come from ---------------------------------------------------------------------------------------


def test_words_that_were_matched_keep_their_template_and_the_inputs_found_in_them(
    make_evaluator, scripted, tmp_path
):
    xml = """<task name="translate" type="atomic"><description>Translate a text into another language</description>
      <inputs><input name="text" required="true"/><input name="language" required="true"/></inputs>
      <instructions>{{ text }} in {{ language }}</instructions></task>"""
    script = scripted({"<request>": '{"text": "Good day", "language": "French"}'}, "Bonjour")
    words = 'translate the text "Good day" into the language French'
    whole = asyncio.run(make_evaluator(xml, script=script).evaluate(words)).unwrap()
    cut(tmp_path, "turn[1]")
    script.seen.clear()
    again = asyncio.run(make_evaluator(xml, script=script).resume(1)).unwrap()
    assert script.prompts == ["Good day in French"]
    assert again.content == whole.content
    assert again.notes["matched"] == whole.notes["matched"]


def test_secrets_are_not_in_the_record_and_have_to_be_given_again(
    make_evaluator, echoing, tmp_path, monkeypatch
):
    monkeypatch.setenv("MY_API_TOKEN", "correct-horse-battery")
    inputs = {"topic": "correct-horse-battery"}
    evaluator, _ = run(make_evaluator, inputs=inputs, script=echoing)
    cut(tmp_path, "steps[3]/turn[1]")
    assert b"correct-horse" not in file_of(tmp_path, 1).read_bytes()
    echoing.seen.clear()
    error = asyncio.run(evaluator.resume(1))
    assert isinstance(error, TaskError) and "give topic again" in error.message
    error = asyncio.run(evaluator.resume(1, {"topic": "x", "other": 1}))
    assert isinstance(error, TaskError) and "'other' is recorded" in error.message
    again = asyncio.run(evaluator.resume(1, inputs)).unwrap()
    assert len(echoing.seen) == 1
    assert any("a secret was removed" in w for w in again.notes["warnings"])


TAKING = (
    '<task name="take" type="atomic"><description>d</description><inputs><input name="held" type="any"/>'
    '<input name="open" type="any"/></inputs><instructions>{{ held }} {{ open }}</instructions></task>'
)


@pytest.mark.parametrize(
    "secret", ["correct-horse-battery", 'correct "horse"\nbattery é'], ids=["plain", "escaped"]
)
@pytest.mark.parametrize(
    "held",
    [lambda text: f"so: {text}", lambda text: ["x", {"y": text}], lambda text: {text: 1}],
    ids=["text", "list", "key"],
)
def test_inputs_with_a_secret_anywhere_are_named_in_the_header(
    make_evaluator, echoing, tmp_path, monkeypatch, secret, held
):
    monkeypatch.setenv("MY_API_TOKEN", secret)
    run(
        make_evaluator,
        TAKING,
        "take",
        {"held": held(secret), "open": ["correct", "horse"]},
        script=echoing,
    )
    assert reading(tmp_path, 1).known_header().extra["redacted_inputs"] == ["held"]


def test_searches_for_secrets_do_not_grow_with_the_texts_of_a_row(
    make_evaluator, echoing, tmp_path, monkeypatch
):
    searched: list[int] = []
    suspects = Redactor.suspects
    suspects_any = Redactor.suspects_any
    monkeypatch.setattr(
        Redactor, "suspects", lambda self, text: searched.append(1) or suspects(self, text)
    )
    monkeypatch.setattr(
        Redactor,
        "suspects_any",
        lambda self, texts: searched.append(1) or suspects_any(self, texts),
    )
    counts: list[int] = []
    for size in (1, 1_000):
        run(
            make_evaluator,
            TAKING,
            "take",
            {"held": "x", "open": [f"text {n}" for n in range(size)]},
            script=echoing,
        )
        counts.append(len(searched))
        searched.clear()
    assert counts[0] == counts[1] <= 10


# -- what cannot be gone on with --------------------------------------------------------------------------------


def test_what_cannot_be_resumed_is_reported(make_evaluator, echoing, tmp_path):
    evaluator, _ = run(make_evaluator, script=echoing)
    for task_id, says in ((99, "there is no task 99"), ("1", "a whole number")):
        error = asyncio.run(evaluator.resume(task_id))
        assert isinstance(error, TaskError) and says in error.message
    cut(tmp_path, "steps[2]/turn[1]")
    error = asyncio.run(make_evaluator("", script=echoing).resume(1))
    assert isinstance(error, TaskError) and "--library" in error.message
    file = file_of(tmp_path, 1)
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"Plan cats", b"Plan cots"))
    error = asyncio.run(evaluator.resume(1))
    assert isinstance(error, TaskError) and "has been changed" in error.message
    file.write_bytes(b"# TASK-1\n\n- **Status**: running\n")
    error = asyncio.run(evaluator.resume(1))
    assert isinstance(error, TaskError) and "not written by this program" in error.message
    file.write_bytes(whole[:20])
    error = asyncio.run(evaluator.resume(1))
    assert isinstance(error, TaskError) and "run the task again" in error.message
    with pytest.raises(UsageError, match="ask, repeat, tell, stop"):
        asyncio.run(evaluator.resume(1, unfinished="maybe"))


def test_a_task_that_somebody_runs_is_left_alone(make_evaluator, tmp_path):
    journal = TaskStore(tmp_path / "tasks").create("story", template="story")
    journal.flush()
    error = asyncio.run(make_evaluator(STORY).resume(1))
    journal.abandon()
    assert isinstance(error, TaskError) and isinstance(error.cause, TaskBusy)
    assert "is run by process" in error.message


def test_interrupted_runs_are_reported_once_and_never_resumed_unasked(
    make_evaluator, echoing, tmp_path
):
    run(make_evaluator, script=echoing)
    cut(tmp_path, "steps[2]/turn[1]")
    before = file_of(tmp_path, 1).read_bytes()
    told: list[str] = []
    evaluator = make_evaluator(STORY, script=echoing, notice=told.append)
    for _ in range(2):
        assert asyncio.run(evaluator.evaluate("story", {"topic": "dogs"})).ok
    assert len(told) == 1
    assert "TASK-1;" in told[0]
    assert file_of(tmp_path, 1).read_bytes() == before


def test_a_run_that_was_resumed_twice_is_resumed_again(make_evaluator, echoing, tmp_path):
    evaluator, whole = run(make_evaluator, script=echoing)
    for _ in range(3):
        cut(tmp_path, "steps[3]/turn[1]", begun=True)
        assert asyncio.run(evaluator.resume(1)).unwrap().content == whole.content
    assert len(reading(tmp_path).resumptions) == 3


def test_without_a_folder_there_is_nothing_to_resume(make_evaluator):
    error = asyncio.run(make_evaluator(STORY, tasks_dir=None).resume(1))
    assert isinstance(error, TaskError) and "tasks_dir=None" in error.message


def test_the_sync_form_resumes_too(make_evaluator, echoing, tmp_path: Path):
    evaluator, whole = run(make_evaluator, script=echoing)
    cut(tmp_path, "steps[2]/turn[1]")
    assert evaluator.resume_sync(1).unwrap().content == whole.content
    evaluator.close()


# -- what was found by trying ----------------------------------------------------------------------------------


def test_a_resume_that_a_profile_or_an_input_hinders_leaves_the_run_as_it_was(
    make_evaluator, echoing, tmp_path
):
    typed = STORY.replace('name="topic"', 'name="topic" type="{}"')
    run(make_evaluator, typed.format("string"), script=echoing)
    cut(tmp_path, "steps[2]/turn[1]")
    before = file_of(tmp_path, 1).read_bytes()
    error = asyncio.run(
        make_evaluator(typed.format("integer"), script=echoing).resume(1, allow_changed=True)
    )
    assert isinstance(error, TaskError) and error.reason == "input_validation_failure"
    assert file_of(tmp_path, 1).read_bytes() == before
    assert reading(tmp_path).status == "interrupted"


def test_the_summary_of_a_resumed_run_covers_what_was_paid_for_answers_that_are_not_used(
    make_evaluator, echoing, tmp_path
):
    _, whole = run(make_evaluator, script=echoing)
    cut(tmp_path, "steps[3]/turn[1]")
    edited = make_evaluator(STORY.replace("Draft of", "Draft for"), script=echoing)
    again = asyncio.run(edited.resume(1, allow_changed=True)).unwrap()
    assert again.usage.turns == whole.usage.turns + 1
    summary = reading(tmp_path).summary
    assert summary is not None and summary.usage is not None
    steps = [
        s.end.usage["turns"]
        for s in reading(tmp_path).steps
        if s.start.kind == "model" and s.end and s.end.usage
    ]
    assert summary.usage["turns"] == sum(steps) == 4


def test_the_duration_of_a_resumed_run_includes_that_of_its_earlier_steps(make_evaluator, tmp_path):
    run(make_evaluator, SCRIPTED, "act", {})
    took = next(
        s.end.duration_s for s in reading(tmp_path).steps if s.start.kind == "script" and s.end
    )
    file = file_of(tmp_path, 1)
    data = file.read_bytes()
    file.unlink()
    (tmp_path / "tasks" / "active" / file.name).write_bytes(
        data[: data.index(b"\n---\n\n## Result")]
    )
    asyncio.run(make_evaluator(SCRIPTED).resume(1)).unwrap()
    summary = reading(tmp_path).summary
    assert summary is not None and summary.duration_s >= took


def test_a_copy_under_another_number_is_not_a_task(make_evaluator, echoing, tmp_path):
    evaluator, _ = run(make_evaluator, script=echoing)
    file = file_of(tmp_path, 1)
    (tmp_path / "tasks" / "done" / "TASK-5.md").write_bytes(file.read_bytes())
    error = asyncio.run(evaluator.resume(5))
    assert isinstance(error, TaskError) and "its title is TASK-1" in error.message


def test_what_is_wrong_is_in_the_details_for_programs(make_evaluator, echoing, tmp_path):
    run(make_evaluator, script=echoing)
    cut(tmp_path, "steps[3]/turn[1]")
    error = asyncio.run(
        make_evaluator(STORY.replace("Draft of", "Draft for"), script=echoing).resume(1)
    )
    assert isinstance(error, TaskError)
    assert error.details["path"] == "steps[2]/turn[1]"
    assert "Draft for" in error.details["now"]
    assert error.task_id == 1


@pytest.mark.parametrize("wrong", [{"inputs": 5}, {"inputs": "abc"}, {"allow_changed": "no"}])
def test_arguments_of_the_wrong_type_are_refused(make_evaluator, wrong):
    with pytest.raises(UsageError):
        asyncio.run(make_evaluator(STORY).resume(1, **wrong))


def test_what_was_paid_for_answers_that_are_not_used_counts_however_often_a_run_is_resumed(
    make_evaluator, echoing, tmp_path
):
    _, whole = run(make_evaluator, script=echoing)
    cut(tmp_path, "steps[3]/turn[1]")
    xml = STORY.replace("Draft of", "Draft for")
    asyncio.run(make_evaluator(xml, script=echoing).resume(1, allow_changed=True)).unwrap()
    file = file_of(tmp_path, 1)
    data = file.read_bytes()
    file.unlink()
    (tmp_path / "tasks" / "active" / file.name).write_bytes(
        data[: data.rindex(b"\n---\n\n## Result")]
    )
    again = asyncio.run(make_evaluator(xml, script=echoing).resume(1, allow_changed=True)).unwrap()
    assert again.usage.turns == whole.usage.turns + 1


def test_a_resumption_that_is_cancelled_while_the_file_is_opened_releases_it(
    make_evaluator, echoing, tmp_path, monkeypatch
):
    evaluator, _ = run(make_evaluator, script=echoing)
    cut(tmp_path, "steps[2]/turn[1]")
    opened, go_on, released = threading.Event(), threading.Event(), threading.Event()
    reopen, abandon = TaskStore.reopen, Journal.abandon

    def slow(store, task_id, **options):
        found = reopen(store, task_id, **options)
        opened.set()
        assert go_on.wait(200)
        return found

    def watched(journal):
        abandon(journal)
        released.set()

    async def resume_twice():
        with monkeypatch.context() as patch:
            patch.setattr(TaskStore, "reopen", slow)
            patch.setattr(Journal, "abandon", watched)
            first = asyncio.create_task(evaluator.resume(1))
            try:
                assert await asyncio.to_thread(opened.wait, 200)
                first.cancel()
                await asyncio.wait([first])
            finally:
                go_on.set()
            assert first.cancelled()
            assert await asyncio.to_thread(released.wait, 200)
        return await evaluator.resume(1)

    assert asyncio.run(resume_twice()).ok


class Lossy(SimulatedBackend):
    """Its first answer is lost after it was billed."""

    name = "lossy"
    is_new = True

    async def complete(self, request, *, on_text=None):
        if self.is_new:
            self.is_new = False
            raise ProviderError("lost", kind="connection", retryable=True, maybe_billed=True)
        return await super().complete(request, on_text=on_text)


def test_a_cost_that_was_unknown_before_a_kill_stays_unknown(make_evaluator, tmp_path):
    handler = HandlerConfig(name="h", model="m", backoff_s=(0.0,))
    evaluator = make_evaluator(STORY, backend=Lossy(), handler=handler)
    whole = asyncio.run(evaluator.evaluate("story", {"topic": "cats"})).unwrap()
    assert whole.usage.cost_usd is None and "interrupted_calls" not in whole.notes
    cut(tmp_path, "steps[2]/turn[1]", begun=True)
    resumed = asyncio.run(evaluator.resume(1)).unwrap()
    assert resumed.usage == whole.usage
    assert resumed.notes["interrupted_calls"] == 1
    summary = evaluator.services.store.read(1).summary
    assert summary.interrupted_calls == 1, "a list of runs does not read the notes"
