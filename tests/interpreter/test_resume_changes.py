"""What changed between a run and its continuation: templates, models, files, roots."""

from __future__ import annotations

import asyncio

from evaluator import (
    SimulatedBackend,
    StepChanged,
    TaskError,
)
from tests.interpreter.crashes import cut, file_of, reading
from tests.interpreter.resume_runs import STORY, run


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


def test_a_file_that_is_gone_is_reported_where_it_changes_a_step(make_evaluator, echoing, tmp_path):
    (tmp_path / "a.txt").write_text("one")
    run(make_evaluator, READING, "sum", {}, echoing)
    cut(tmp_path, "steps[2]/turn[1]")
    (tmp_path / "a.txt").unlink()
    error = asyncio.run(make_evaluator(READING, script=echoing).resume(1))
    assert isinstance(error, TaskError) and isinstance(error.cause, StepChanged)
    assert any("a.txt was not read" in warning for warning in error.notes["warnings"])
