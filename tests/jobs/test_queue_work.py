"""Work: strategies are tried in turn, results are verified, and entries end as done or blocked with a reason."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evaluator import (
    ConfigurationError,
    ProviderError,
    SimulatedBackend,
    TaskStore,
    UsageError,
    load_profiles,
)
from evaluator.batch import Score
from evaluator.batch.queue_verifier import ScorerVerifier
from evaluator.jobs.document import read_document
from evaluator.jobs.entries import timestamp
from evaluator.jobs.queue_store import QueueStore
from evaluator.queue import GraderVerifier, TaskQueue

XML = """
<task name="summarise_text"><description>Summarise a text in one paragraph</description>
  <criteria>at most one paragraph</criteria><instructions>SUMMARISE</instructions></task>
<task name="shorten_text"><description>Shorten the text, or summarise it in a paragraph of one line</description>
  <instructions>SHORTEN</instructions></task>
<task name="grade"><description>Judge an answer</description>
  <inputs><input name="goal"/><input name="answer"/><input name="criteria"/></inputs>
  <instructions>GRADE {{goal}} | {{answer}} | {{criteria}}</instructions><output_format type="json"/></task>
<task name="classify"><description>Sort into classes</description>
  <inputs><input name="text"/><input name="labels" type="string[]"/></inputs>
  <instructions>CLASSIFY {{text}} {{labels}}</instructions><output_format type="json"/></task>
<task name="ask" type="atomic"><description>Answer a question</description>
  <inputs><input name="question"/><input name="guidance" required="false" default=""/></inputs>
  <instructions>QUESTION {{question}} {{guidance}}</instructions></task>
<task name="reads"><description>Reads files</description><instructions>READ</instructions>
  <file_paths source="literal"><path>queue/queue.sqlite</path><path>queue/task-queue.json</path>
  <path>queue/deliverables/T-01.md</path></file_paths></task>
<task name="unsafe" type="script"><description>Deletes everything</description><command>true</command></task>
"""


SUMMARY = "summarise the text in one paragraph"


def work(queue, evaluator, **options):
    options.setdefault("until_empty", True)
    return asyncio.run(queue.work(evaluator, **options))


async def refuse_summaries(result):
    return None if "SHORT" in result.outcome.content else f"{result.entry.id} has no short line"


def test_an_entry_is_done_with_what_was_delivered(queue, make_evaluator, scripted, tmp_path):
    queue.add(SUMMARY)
    evaluator = make_evaluator(XML, script=scripted({"SUMMARISE": "the summary"}))
    assert work(queue, evaluator).ended == {"done": 1}
    (entry,) = queue.list()
    (attempt,) = entry.strategies_tried
    assert (entry.status, entry.deliverable, entry.retries) == ("done", "the summary", 0)
    assert (tmp_path / "queue" / "deliverables" / "T-01.md").read_text() == "the summary"
    assert entry.deliverable_path == str(tmp_path / "queue" / "deliverables" / "T-01.md")
    assert (attempt.strategy, attempt.result, attempt.verification_failure) == (
        "summarise_text",
        "TASK-1: the summary (simulated)",
        None,
    )
    header = TaskStore(tmp_path / "tasks").read(1).header
    assert (header.extra["labels"]["queue_entry"], header.extra["labels"]["queue_attempt"]) == (
        "T-01",
        "1",
    )
    queue.publish()
    assert read_document((tmp_path / "queue" / "task-queue.json").read_bytes(), "q").tasks == (
        entry,
    )


def test_a_result_that_is_refused_leads_to_the_next_template(queue, make_evaluator, scripted):
    queue.add(SUMMARY)
    evaluator = make_evaluator(XML, script=scripted({"SHORTEN": "SHORT"}, "long"))
    work(queue, evaluator, verifiers=[refuse_summaries])
    (entry,) = queue.list()
    assert [(a.attempt, a.strategy, a.verification_failure) for a in entry.strategies_tried] == [
        (1, "summarise_text", "T-01 has no short line"),
        (2, "shorten_text", None),
    ]
    assert (entry.status, entry.retries, entry.deliverable) == ("done", 1, "SHORT")


def test_an_entry_is_blocked_when_nothing_is_left_and_is_tried_again_with_guidance(
    queue, make_evaluator, scripted
):
    queue.add(SUMMARY)
    script = scripted({}, "long")
    evaluator = make_evaluator(XML, script=script)
    work(queue, evaluator, verifiers=[refuse_summaries])
    (entry,) = queue.list()
    assert (entry.status, entry.retries) == ("blocked", 3)
    assert [attempt.strategy for attempt in entry.strategies_tried] == [
        "summarise_text",
        "shorten_text",
        "summarise_text",
    ]
    assert entry.blocked_reason == "attempt 3 with 'summarise_text' failed: T-01 has no short line"
    assert "evaluator queue retry T-01" in entry.user_action_required
    queue.retry("T-01", "make it SHORT")
    work(queue, evaluator, verifiers=[])
    (entry,) = queue.list()
    assert entry.status == "done" and [a.attempt for a in entry.strategies_tried] == [1, 2, 3, 4]
    assert '<context source="guidance">\nmake it SHORT\n</context>' in script.prompts[-1]
    assert f'<context source="request">\n{SUMMARY}\n</context>' in script.prompts[-1]


def test_an_entry_keeps_the_text_and_the_times_of_its_beginning(tmp_path, clock, make_evaluator):
    text = "Hi!  Summarise the Text\nin one paragraph. "
    began = []

    def slowly(request):
        began.append(timestamp(clock.now))
        clock.now += 60
        return "long" if len(began) == 1 else "SHORT"

    with TaskQueue(tmp_path / "queue") as queue:
        queue.add(text)
        clock.now += 60
        evaluator = make_evaluator(XML, script=slowly)
        work(queue, evaluator, verifiers=[refuse_summaries])
        (entry,) = queue.list()
    assert (entry.description, entry.goal) == (text, "Summarise the Text in one paragraph.")
    assert [attempt.attempted_at for attempt in entry.strategies_tried] == began
    # It was started once, though it was tried twice.
    assert (entry.started_at, entry.added_at) == (began[0], "2026-03-08T09:00:00Z")
    assert entry.completed_at == timestamp(clock.now)


def test_a_refused_result_is_tried_again_with_the_reason_by_the_only_template_that_fits(
    queue, make_evaluator, scripted
):
    queue.add(SUMMARY, max_retries=3)
    script = scripted({"has no short line": "SHORT"}, "long")
    only = XML.partition('<task name="shorten')[0]
    work(queue, make_evaluator(only, script=script), verifiers=[refuse_summaries])
    (entry,) = queue.list()
    assert (entry.status, entry.retries, entry.deliverable) == ("done", 1, "SHORT")
    assert [attempt.tool for attempt in entry.strategies_tried] == ["model", "model"]
    assert "refused" not in script.prompts[0]
    assert "An earlier result was refused: T-01 has no short line" in script.prompts[1]


def test_a_text_that_no_template_fits_is_blocked_without_an_attempt(queue, make_evaluator):
    queue.add("zzz qqq")
    work(queue, make_evaluator(XML))
    (entry,) = queue.list()
    assert (entry.status, entry.blocked_reason, entry.strategies_tried) == (
        "blocked",
        "no template fits the text",
        (),
    )


@pytest.mark.parametrize(
    ("retryable", "expected"), [(True, ("done", 1, 2)), (False, ("blocked", 1, 1))]
)
def test_only_a_failure_that_may_pass_leaves_its_template_to_be_tried_again(
    queue, make_evaluator, retryable, expected
):
    failures = [ProviderError("busy", kind="timeout", retryable=retryable)]

    def script(request):
        if failures:
            raise failures.pop()
        return "fine"

    queue.add(SUMMARY)
    profiles = {"offline": load_profiles()["offline"].override(backoff_s=())}
    work(
        queue,
        make_evaluator(XML.partition('<task name="shorten')[0], script=script, profiles=profiles),
    )
    (entry,) = queue.list()
    assert (entry.status, entry.retries, len(entry.strategies_tried)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "unsafe",
        "<task name='x' type='script'><description>d</description><command>false</command></task>",
    ],
)
def test_a_text_is_never_run_as_a_template_or_as_xml(queue, make_evaluator, text):
    queue.add(text)
    work(queue, make_evaluator(XML))
    (entry,) = queue.list()
    assert entry.status == "blocked" and entry.strategies_tried == ()


def test_an_entry_may_name_its_template_and_inputs(queue, make_evaluator, scripted):
    queue.add("ask", template="ask", inputs={"question": "why?"}, max_retries=2)
    script = scripted({}, "because")
    evaluator = make_evaluator(XML, script=script)

    async def refuse(result):
        return "no"

    work(queue, evaluator, verifiers=[refuse])
    assert [a.strategy for a in queue.list()[0].strategies_tried] == ["ask", "ask"]
    queue.retry("T-01", "look it up")
    work(queue, evaluator)
    assert queue.list()[0].status == "done" and "QUESTION why? look it up" in script.prompts[-1]


def test_a_grader_template_verifies_with_the_criteria_of_the_template(
    queue, make_evaluator, scripted
):
    queue.add(SUMMARY)
    script = scripted(
        {
            "| long | at most one paragraph": json.dumps(
                {"success": False, "feedback": "too long"}
            ),
            "GRADE": '{"success": true}',
            "SHORTEN": "line",
            "SUMMARISE": "long",
        }
    )
    evaluator = make_evaluator(XML, script=script)
    work(queue, evaluator, verifiers=[GraderVerifier(evaluator, "grade")])
    assert [a.verification_failure for a in queue.list()[0].strategies_tried] == ["too long", None]
    with pytest.raises(UsageError, match="needs the input 'text'"):
        GraderVerifier(evaluator, "classify")


def test_the_shipped_grader_gets_the_order_the_criteria_and_the_inputs(
    queue, make_evaluator, scripted
):
    shipped = Path(__file__).parents[2] / "templates"
    text = (shipped / "judge" / "verify_result.xml").read_text().partition("?>")[2]
    for name in ("judging", "evaluation"):
        partial = (shipped / "_partials" / f"{name}.xml").read_text()
        body = partial.partition("<partial>")[2].partition("</partial>")[0]
        text = text.replace(f'<include href="../_partials/{name}.xml"/>', body)
    script = scripted(
        {
            "can be handed over": json.dumps({"success": False, "feedback": "it is too long"}),
            "QUESTION": "an answer",
        }
    )
    evaluator = make_evaluator(
        XML.replace("<description>Answer", "<criteria>one line</criteria><description>Answer")
        + text,
        script=script,
    )
    queue.add(
        "ask about the </order> sky", template="ask", inputs={"question": "why?"}, max_retries=1
    )
    work(queue, evaluator, verifiers=[GraderVerifier(evaluator, "verify_result")])
    assert queue.list()[0].strategies_tried[0].verification_failure == "it is too long"
    sent = script.prompts[-1]
    for part in (
        "sky\n</order>",
        "<criteria>\none line\n",
        '<material>\n{"question": "why?"}\n',
        "<result>\nan answer\n",
    ):
        assert part in sent
    assert sent.count("</order>") == 1


def test_a_script_may_verify_a_result(queue, make_evaluator, scripted):
    grader = """<task name="check" type="script"><description>Check the answer</description>
      <inputs><input name="answer"/></inputs>
      <command>PYTHON -c "import json, sys; n = len(sys.argv[1]); print(json.dumps({'success': n &lt; 5, 'feedback': f'{n} characters'}))" {{answer}}</command>
    </task>"""
    queue.add(SUMMARY)
    script = scripted({"SHORTEN": "line", "SUMMARISE": "long text"})
    evaluator = make_evaluator(XML + grader.replace("PYTHON", sys.executable), script=script)
    work(queue, evaluator, verifiers=[GraderVerifier(evaluator, "check")])
    assert [a.verification_failure for a in queue.list()[0].strategies_tried] == [
        "9 characters",
        None,
    ]


def test_scorers_verify_a_result(queue, make_evaluator, scripted):
    def short(output, metadata):
        return Score(
            float(len(output) < 5), len(output) < 5, explanation=f"not {metadata['goal']}: {output}"
        )

    queue.add(SUMMARY, goal="a line")
    evaluator = make_evaluator(XML, script=scripted({"SHORTEN": "line", "SUMMARISE": "long text"}))
    work(queue, evaluator, verifiers=[ScorerVerifier([short])])
    failures = [a.verification_failure for a in queue.list()[0].strategies_tried]
    assert failures == ["not a line: long text", None]


def test_a_check_that_fails_refuses_the_result(queue, make_evaluator):
    async def broken(result):
        raise ValueError("no such file")

    queue.add(SUMMARY)
    work(queue, make_evaluator(XML), verifiers=[broken])
    assert "ValueError: no such file" in queue.list()[0].strategies_tried[0].verification_failure


@pytest.mark.parametrize(("label", "expected"), [("messaging", "messaging"), ("else", "unknown")])
def test_a_model_may_be_asked_for_an_unknown_type(queue, make_evaluator, scripted, label, expected):
    queue.add(SUMMARY, type="unknown")
    script = scripted({"CLASSIFY": json.dumps({"label": label})})
    work(queue, make_evaluator(XML, script=script), ask_model=True)
    assert queue.list()[0].type == expected and "unknown" in script.prompts[0]


def test_a_missing_key_stops_the_worker_and_releases_the_entry(queue, make_evaluator):
    def script(request):
        raise ConfigurationError("the key is missing")

    queue.add(SUMMARY)
    with pytest.raises(ConfigurationError, match="the key is missing"):
        work(queue, make_evaluator(XML, script=script))
    (entry,) = queue.list()
    assert (entry.status, entry.retries) == ("pending", 0)
    assert entry.strategies_tried[0].result.startswith("released: ")


def test_a_worker_that_is_cancelled_releases_what_runs(queue, make_evaluator, tmp_path):
    async def cancelled():
        started = asyncio.Event()
        evaluator = make_evaluator(XML, backend=Hanging(started))
        working = asyncio.create_task(queue.work(evaluator, workers=1))
        await started.wait()
        assert queue.list()[0].status == "running"
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    queue.add(SUMMARY)
    asyncio.run(cancelled())
    (entry,) = queue.list()
    assert (entry.status, entry.retries, entry.subagent_session) == ("pending", 0, None)
    assert TaskStore(tmp_path / "tasks").read(1).status == "aborted"
    work(queue, make_evaluator(XML))
    first, second = queue.list()[0].strategies_tried
    assert (first.strategy, second.strategy) == ("summarise_text", "summarise_text")
    assert (
        first.result.startswith("released: ") and "; not resumed: TASK-1: turn[1]: " in first.result
    )


def test_a_worker_that_lost_its_lease_stops_and_changes_nothing(queue, make_evaluator, tmp_path):
    async def lose():
        started = asyncio.Event()
        evaluator = make_evaluator(XML, backend=Hanging(started))
        working = asyncio.create_task(
            queue.work(evaluator, workers=1, until_empty=True, lease_s=0.2)
        )
        await started.wait()
        with closing(QueueStore(tmp_path / "queue" / "queue.sqlite")) as other:
            other.put(1, replace(other.get(1).entry, status="done"), lease=None)
        return await working

    queue.add(SUMMARY)
    summary = asyncio.run(lose())
    assert (summary.ended, summary.lost) == ({}, 1)
    assert queue.list("done")[0].strategies_tried == ()


def test_a_step_of_the_clock_during_a_call_does_not_run_the_entry_again(
    make_evaluator, tmp_path, monkeypatch, clock
):
    calls = []
    recover = QueueStore.recover

    class Stepping(Hanging):
        async def complete(self, request, on_text=None):
            calls.append(request)
            clock.now += 3600
            looks = []
            looked = asyncio.Event()

            def look(store):
                looks.append(recover(store))
                if len(looks) == 3:
                    looked.set()
                return looks[-1]

            monkeypatch.setattr(QueueStore, "recover", look)
            await looked.wait()
            return await SimulatedBackend(script=lambda request: "fine").complete(request)

    evaluator = make_evaluator(XML, backend=Stepping(asyncio.Event()))
    with TaskQueue(tmp_path / "queue") as queue:
        queue.add(SUMMARY)
        summary = queue.work_sync(evaluator, workers=2, until_empty=True)
        (entry,) = queue.list()
    assert (len(calls), summary.ended, summary.lost) == (1, {"done": 1}, 0)
    assert (entry.retries, len(entry.strategies_tried)) == (0, 1)


class Hanging:
    """A model that never answers."""

    name = "hanging"

    def __init__(self, started):
        self.started = started

    async def complete(self, request, on_text=None):
        self.started.set()
        await asyncio.Event().wait()

    async def aclose(self):
        pass


def test_a_worker_archives_while_it_runs_and_works_on_where_it_cannot(
    make_evaluator, tmp_path, clock
):
    notices = []

    async def a_week_per_entry(result):
        clock.now += 8 * 86_400
        return None

    with TaskQueue(tmp_path / "queue", notice=notices.append) as queue:
        for _ in range(3):
            queue.add(SUMMARY)
        work(queue, make_evaluator(XML), workers=1, verifiers=[a_week_per_entry])
        assert (queue.stats().entries["archived"], [e.id for e in queue.list()]) == (2, ["T-03"])
        (tmp_path / "queue" / "archive" / "2026-04.json").write_text("[]")
        queue.add(SUMMARY)
        assert work(queue, make_evaluator(XML), workers=1, verifiers=[a_week_per_entry]).ended == {
            "done": 1
        }
        assert queue.stats().entries["archived"] == 2
    assert any(
        "old entries are not archived" in line and "2026-04.json: $ is an array" in line
        for line in notices
    )


def test_a_key_adds_an_entry_once_also_after_it_was_archived(queue, make_evaluator, tmp_path):
    first = queue.add(SUMMARY, key="minutes.md 1")
    assert queue.add("another text", key="minutes.md 1") == first
    assert queue.add(SUMMARY, key="minutes.md 2").id == "T-02"
    work(queue, make_evaluator(XML))
    assert list(queue.archive(days=0).values()) == [["T-01", "T-02"]]
    with TaskQueue(tmp_path / "queue") as other:
        again = other.add(SUMMARY, key="minutes.md 1")
    assert (again.id, again.status, again.deliverable) == (
        "T-01",
        "done",
        queue.show("T-01").entry.deliverable,
    )
    assert queue.list() == [] and queue.stats().last_id == "T-02"


def test_more_workers_than_the_queue_allows_are_refused(queue, make_evaluator):
    with pytest.raises(
        UsageError,
        match=r"3 workers, but the queue runs at most 2 entries at once \(maxConcurrent\)",
    ):
        work(queue, make_evaluator(XML), workers=3)
    queue.configure(max_concurrent=3)
    assert work(queue, make_evaluator(XML), workers=3).ended == {}


def test_what_cannot_run_yet_does_not_keep_a_worker(queue, make_evaluator):
    queue.add(SUMMARY, not_before=datetime(2999, 1, 1, tzinfo=UTC))
    queue.add("zzz qqq")
    queue.add(SUMMARY, needs=["T-02"])
    assert work(queue, make_evaluator(XML)).ended == {"blocked": 1}
    assert [e.status for e in queue.list()] == ["pending", "blocked", "pending"]


def test_tasks_read_deliverables_and_not_the_files_of_the_queue(queue, make_evaluator, scripted):
    script = scripted({}, "a deliverable")
    evaluator = make_evaluator(XML, script=script)
    queue.add(SUMMARY)
    work(queue, evaluator)
    queue.publish()
    queue.add("reads", template="reads")
    work(queue, evaluator)
    assert queue.list()[1].status == "done"
    (read,) = [prompt for prompt in script.prompts if "READ" in prompt]
    assert "a deliverable" in read and "maxConcurrent" not in read and "SQLite" not in read


@pytest.mark.parametrize(
    "options",
    [{"template": "nosuch"}, {"template": "ask", "inputs": {"question": "why?", "other": 1}}],
)
def test_a_failure_that_needs_no_model_is_not_repeated(queue, make_evaluator, options):
    queue.add("do it", **options)
    work(queue, make_evaluator(XML))
    (entry,) = queue.list()
    assert (entry.status, len(entry.strategies_tried)) == ("blocked", 1)


def test_an_edit_of_the_published_file_is_imported_from_its_place(queue, tmp_path):
    queue.add(SUMMARY)
    queue.publish()
    path = tmp_path / "queue" / "task-queue.json"
    path.write_text(path.read_text().replace('"pending"', '"skipped"'))
    assert queue.import_file().changed == ("T-01",)
    assert queue.publish() and queue.list()[0].status == "skipped"
    assert path.read_bytes() == queue.export()
    stats = queue.stats()
    assert (stats.entries["skipped"], stats.last_id, stats.ready, sum(stats.types.values())) == (
        1,
        "T-01",
        0,
        1,
    )
