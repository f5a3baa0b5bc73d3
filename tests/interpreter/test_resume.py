"""An interrupted run continues from its task file: answered calls are not repeated, and changes are reported."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from evaluator import (
    HandlerConfig,
    InMemoryIndex,
    ProviderError,
    SimulatedBackend,
    StepChanged,
    StepUnfinished,
    TaskBusy,
    TaskError,
    TaskStore,
    UsageError,
    tool,
)
from evaluator.record.journal import Journal
from evaluator.record.redact import Redactor
from tests.interpreter.crashes import cut, file_of, reading

STORY = """
<task name="story" type="sequential"><description>Write a story about a topic</description>
  <inputs><input name="topic" required="true"/></inputs>
  <context_management><accumulate_data>false</accumulate_data></context_management>
  <steps>
    <task name="plan" type="atomic"><description>plan</description><instructions>Plan {{ topic }}</instructions></task>
    <task name="draft" type="atomic"><description>draft</description>
      <instructions>Draft of {{ steps.plan.content }}</instructions></task>
    <task name="finish" type="atomic"><description>finish</description>
      <instructions>Finish {{ steps.draft.content }}</instructions></task>
  </steps></task>
"""


def run(make_evaluator, xml=STORY, name="story", inputs=None, script=None, **options):
    evaluator = make_evaluator(xml, script=script, **options)
    outcome = asyncio.run(evaluator.evaluate(name, {"topic": "cats"} if inputs is None else inputs))
    return evaluator, outcome


def echo(prompt: str) -> str:
    return f"<{prompt}>"


@pytest.fixture
def echoing(scripted):
    """A script that answers with the prompt and keeps what it was asked."""
    return scripted({"": echo})


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


# -- what changed in between ------------------------------------------------------------------------------------


def test_a_template_edited_in_between_stops_at_the_step_that_shows_it_and_nothing_is_written(
    make_evaluator, echoing, tmp_path
):
    run(make_evaluator, script=echoing)
    cut(tmp_path, "steps[3]/turn[1]")
    before = file_of(tmp_path, 1).read_bytes()
    echoing.seen.clear()
    edited = make_evaluator(STORY.replace("Draft of", "Draft for"), script=echoing)
    error = asyncio.run(edited.resume(1))
    assert isinstance(error, TaskError)
    assert isinstance(error.cause, StepChanged)
    assert error.cause.path == "steps[2]/turn[1]"
    assert "'story' was edited" in error.message
    assert '"Draft of <Plan cats>"' in str(error.cause.recorded)
    assert '"Draft for <Plan cats>"' in str(error.cause.now)
    assert echoing.seen == []
    assert file_of(tmp_path, 1).read_bytes() == before


def test_a_template_edited_where_nothing_was_done_yet_stops_too(make_evaluator, echoing, tmp_path):
    run(make_evaluator, script=echoing)
    cut(tmp_path, "steps[3]/turn[1]")
    edited = make_evaluator(STORY.replace("Finish", "End"), script=echoing)
    error = asyncio.run(edited.resume(1))
    assert isinstance(error, TaskError) and isinstance(error.cause, StepChanged)
    assert error.cause.path == "steps[3]/turn[1]"
    assert "No recorded step differs" in error.message


def test_another_task_of_the_same_file_may_be_edited(make_evaluator, echoing, tmp_path):
    other = '<task name="other" type="atomic"><description>{}</description></task>'
    run(make_evaluator, other.format("one") + STORY, script=echoing)
    cut(tmp_path, "steps[3]/turn[1]")
    edited = make_evaluator(
        other.format("two, and longer") + "\n<!-- a comment -->\n" + STORY, script=echoing
    )
    result = asyncio.run(edited.resume(1)).unwrap()
    assert not any("edited" in warning for warning in result.notes["warnings"])


def test_allowed_changes_run_again_and_the_rest_is_taken(make_evaluator, echoing, tmp_path):
    run(make_evaluator, script=echoing)
    cut(tmp_path, "steps[3]/turn[1]")
    echoing.seen.clear()
    edited = make_evaluator(STORY.replace("Draft of", "Draft for"), script=echoing)
    result = asyncio.run(edited.resume(1, allow_changed=True)).unwrap()
    assert echoing.prompts == ["Draft for <Plan cats>", "Finish <Draft for <Plan cats>>"]
    assert result.content == "<Finish <Draft for <Plan cats>>>"
    assert any("was edited" in warning for warning in result.notes["warnings"])
    assert reading(tmp_path).resumptions[0].allowed == "any change"


CALLING = """
<template name="shout" params="text"><description>Shout</description>
  <task type="atomic"><description>shout</description><instructions>{how} {{{{ text }}}}</instructions></task></template>
<task name="story" type="sequential"><description>Write a story</description>
  <inputs><input name="topic" required="true"/></inputs>
  <steps>
    <task name="plan" type="atomic"><description>plan</description><instructions>Plan {{{{ topic }}}}</instructions></task>
    <call template="shout"><arg name="text">{{{{ steps.plan.content }}}}</arg></call>
  </steps></task>
"""


def test_a_template_that_is_only_called_counts_as_the_run_s_own(make_evaluator, echoing, tmp_path):
    run(make_evaluator, CALLING.format(how="Shout"), script=echoing)
    cut(tmp_path, "steps[2]/call.shout/turn[1]")
    error = asyncio.run(make_evaluator(CALLING.format(how="Cry"), script=echoing).resume(1))
    assert isinstance(error, TaskError)
    assert "'shout' was edited" in error.message


def test_another_model_is_a_change(make_evaluator, echoing, tmp_path):
    run(make_evaluator, script=echoing)
    cut(tmp_path, "steps[2]/turn[1]")

    class Other(SimulatedBackend):
        name = "other"

    error = asyncio.run(make_evaluator(STORY, backend=Other(script=echoing)).resume(1))
    assert isinstance(error, TaskError)
    assert error.message.startswith("steps[1]/turn[1]: the step has changed at model")
    assert '"simulated", now "other"' in error.message


READING = """
<task name="sum" type="sequential"><description>Sum up files</description>
  <steps>
    <task name="one" type="atomic"><description>one</description><file_paths source="literal"><path>a.txt</path></file_paths>
      <instructions>First</instructions></task>
    <task name="two" type="atomic"><description>two</description><instructions>Second</instructions></task>
  </steps></task>
"""


def test_an_input_file_that_changed_stops_at_the_step_that_shows_it(
    make_evaluator, echoing, tmp_path
):
    (tmp_path / "a.txt").write_text("one\ntwo\nthree")
    run(make_evaluator, READING, "sum", {}, echoing)
    cut(tmp_path, "steps[2]/turn[1]")
    (tmp_path / "a.txt").write_text("one\n2\nthree")
    error = asyncio.run(make_evaluator(READING, script=echoing).resume(1))
    assert isinstance(error, TaskError) and isinstance(error.cause, StepChanged)
    assert (error.cause.path, error.cause.recorded, error.cause.now) == (
        "steps[1]/turn[1]",
        '"two"',
        '"2"',
    )


def test_another_root_is_reported(make_evaluator, echoing, tmp_path):
    run(make_evaluator, script=echoing)
    cut(tmp_path, "steps[2]/turn[1]")
    (tmp_path / "other").mkdir()
    error = asyncio.run(make_evaluator(STORY, script=echoing, roots=[tmp_path / "other"]).resume(1))
    assert isinstance(error, TaskError)
    assert f"ran with the root {tmp_path}" in error.message


def test_profile_target_and_depth_of_the_call_are_those_of_the_run(make_evaluator, tmp_path):
    evaluator = make_evaluator(STORY, backend=None, max_depth=3)
    whole = asyncio.run(
        evaluator.evaluate("story", {"topic": "x"}, handler="offline", target="the answer")
    )
    cut(tmp_path, "steps[2]/turn[1]")
    again = asyncio.run(make_evaluator(STORY, backend=None).resume(1)).unwrap()
    assert again.content == whole.content == "the answer"
    header = reading(tmp_path).header
    assert header is not None
    assert (header.extra["handler"], header.extra["max_depth"], header.extra["target"]) == (
        "offline",
        3,
        "the answer",
    )


# -- side effects -----------------------------------------------------------------------------------------------

TOOLED = """
<task name="act" type="atomic"><description>Act</description><tools><tool name="press"/></tools>
  <instructions>Act now</instructions></task>
"""


def presser(effects: list[str], **settings: bool):
    @tool(**settings)
    def press(button: str) -> str:
        """Press a button."""
        effects.append(button)
        if button == "broken":
            raise ValueError("it is stuck")
        return f"pressed {button}"

    return press


def pressing(*buttons: str):
    """A model that presses the buttons in its first turn and then says what came of it."""

    def script(request):
        answers = [m.content for m in request.messages if m.role == "tool"]
        if not answers:
            return [{"tool": "press", "arguments": {"button": b}} for b in buttons]
        return " and ".join(answers)

    return script


def test_a_completed_tool_call_is_never_run_again(make_evaluator, tmp_path):
    effects: list[str] = []
    options = {"script": pressing("a", "broken"), "tools": [presser(effects)]}
    _, whole = run(make_evaluator, TOOLED, "act", {}, **options)
    assert effects == ["a", "broken"]
    cut(tmp_path, "turn[2]")
    again = asyncio.run(make_evaluator(TOOLED, **options).resume(1)).unwrap()
    assert effects == ["a", "broken"]
    assert again.content == whole.content
    assert "stuck" in again.content


@pytest.mark.parametrize("asked", [False, True])
def test_an_unfinished_tool_call_stops_the_run_unless_somebody_decides(
    make_evaluator, tmp_path, asked
):
    class Asker:
        def __init__(self) -> None:
            self.questions: list[str] = []

        async def ask(self, question: str) -> str:
            self.questions.append(question)
            return "no idea"

    effects: list[str] = []
    asker = Asker()
    options = {"script": pressing("a"), "tools": [presser(effects)]}
    run(make_evaluator, TOOLED, "act", {}, **options)
    cut(tmp_path, "turn[1]/tool[1]", begun=True)
    before = file_of(tmp_path, 1).read_bytes()
    error = asyncio.run(make_evaluator(TOOLED, **options, asker=asker if asked else None).resume(1))
    assert isinstance(error, TaskError) and isinstance(error.cause, StepUnfinished)
    assert (error.cause.path, error.cause.name) == ("turn[1]/tool[1]", "press")
    assert effects == ["a"]
    assert file_of(tmp_path, 1).read_bytes() == before
    assert bool(asker.questions) == asked
    if asked:
        assert "press" in asker.questions[0] and "button" in asker.questions[0]


@pytest.mark.parametrize(
    ("how", "pressed", "says"),
    [("repeat", ["a", "a"], "pressed a"), ("tell", ["a"], "whether it took effect is not known")],
)
def test_an_unfinished_tool_call_is_repeated_or_reported_as_decided(
    make_evaluator, tmp_path, how, pressed, says
):
    effects: list[str] = []
    options = {"script": pressing("a"), "tools": [presser(effects)]}
    run(make_evaluator, TOOLED, "act", {}, **options)
    cut(tmp_path, "turn[1]/tool[1]", begun=True)
    result = asyncio.run(make_evaluator(TOOLED, **options).resume(1, unfinished=how)).unwrap()
    assert effects == pressed
    assert says in result.content


@pytest.mark.parametrize("settings", [{"retryable": True}, {"effect": False}])
def test_a_tool_that_is_safe_to_repeat_is_repeated_unasked(make_evaluator, tmp_path, settings):
    effects: list[str] = []
    options = {"script": pressing("a"), "tools": [presser(effects, **settings)]}
    run(make_evaluator, TOOLED, "act", {}, **options)
    cut(tmp_path, "turn[1]/tool[1]", begun=True)
    assert asyncio.run(make_evaluator(TOOLED, **options).resume(1)).ok
    assert effects == ["a", "a"]


SCRIPTED = """
<task name="act" type="script"><description>Act</description>
  <command>sh -c "echo ran >> effects; cat effects"</command></task>
"""


def test_an_unfinished_script_is_repeated_only_when_asked_to(make_evaluator, tmp_path):
    run(make_evaluator, SCRIPTED, "act", {})
    cut(tmp_path, "script", begun=True)
    evaluator = make_evaluator(SCRIPTED)
    for decision in ("ask", "stop", "tell"):
        error = asyncio.run(evaluator.resume(1, unfinished=decision))
        assert isinstance(error, TaskError) and isinstance(error.cause, StepUnfinished)
    assert (tmp_path / "effects").read_text() == "ran\n"
    assert asyncio.run(evaluator.resume(1, unfinished="repeat")).unwrap().content == "ran\nran\n"


COMMANDED = """
<task name="sum" type="sequential"><description>Sum up files</description><steps>
  <task name="one" type="atomic"><description>one</description>
    <file_paths source="command"><command>sh -c "echo ran >> effects; echo a.txt"</command></file_paths>
    <instructions>First</instructions></task>
  <task name="two" type="atomic"><description>two</description><instructions>Second</instructions></task></steps></task>
"""


def test_a_command_that_lists_files_is_a_step_and_not_run_again(make_evaluator, echoing, tmp_path):
    (tmp_path / "a.txt").write_text("the text")
    run(make_evaluator, COMMANDED, "sum", {}, echoing)
    cut(tmp_path, "steps[2]/turn[1]")
    assert asyncio.run(make_evaluator(COMMANDED, script=echoing).resume(1)).ok
    assert (tmp_path / "effects").read_text() == "ran\n"


FRESH = """
<task name="ask" type="sequential"><description>Ask</description><steps>
  <task name="one" type="atomic"><description>facts about lakes</description>
    <context_management><fresh_context>enabled</fresh_context></context_management><instructions>First</instructions></task>
  <task name="two" type="atomic"><description>two</description><instructions>Second</instructions></task></steps></task>
"""


def test_what_memory_found_is_a_step_so_that_a_new_index_changes_nothing(
    make_evaluator, echoing, tmp_path
):
    (tmp_path / "lakes.md").write_text("Lake Baikal")
    memory = InMemoryIndex({"lakes.md": "facts about lakes"})
    run(make_evaluator, FRESH, "ask", {}, echoing, memory=memory)
    cut(tmp_path, "steps[2]/turn[1]")
    again = make_evaluator(FRESH, script=echoing, memory=InMemoryIndex({}))
    assert asyncio.run(again.resume(1)).ok


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


def test_nodes_are_written_down_so_that_they_can_be_evaluated_again(
    make_evaluator, echoing, tmp_path
):
    evaluator = make_evaluator(CALLING.format(how="Shout"), script=echoing)
    story, function = evaluator.library.get("story").node, evaluator.library.get("shout").node
    for task_id, (node, inputs) in enumerate(
        [
            (story, {"topic": "cats"}),
            (story.steps[1], {"steps": {"plan": {"content": "x"}}}),
            (function, {"text": "hi"}),
        ],
        1,
    ):
        whole = asyncio.run(evaluator.evaluate(node, inputs)).unwrap()
        path = next(
            s.start.path
            for s in reversed(reading(tmp_path, task_id).steps)
            if s.start.kind == "model"
        )
        cut(tmp_path, path, task_id=task_id)
        again = asyncio.run(evaluator.resume(task_id)).unwrap()
        assert again.content == whole.content


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


def test_somebody_who_mistypes_is_asked_again_and_of_a_script_nobody_can_be_told(
    make_evaluator, tmp_path
):
    class Asker:
        questions: list[str]

        def __init__(self, *answers: str) -> None:
            self.answers, self.questions = list(answers), []

        async def ask(self, question: str) -> str:
            self.questions.append(question)
            return self.answers.pop(0)

    run(make_evaluator, SCRIPTED, "act", {})
    cut(tmp_path, "script", begun=True)
    asker = Asker("what", "t", "r")
    assert asyncio.run(make_evaluator(SCRIPTED, asker=asker).resume(1)).ok
    assert len(asker.questions) == 3
    assert "tell the model" not in asker.questions[0]


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


def test_a_file_that_is_gone_is_reported_where_it_changes_a_step(make_evaluator, echoing, tmp_path):
    (tmp_path / "a.txt").write_text("one")
    run(make_evaluator, READING, "sum", {}, echoing)
    cut(tmp_path, "steps[2]/turn[1]")
    (tmp_path / "a.txt").unlink()
    error = asyncio.run(make_evaluator(READING, script=echoing).resume(1))
    assert isinstance(error, TaskError) and isinstance(error.cause, StepChanged)
    assert any("a.txt was not read" in warning for warning in error.notes["warnings"])


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
