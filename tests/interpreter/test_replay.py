"""A recorded run is evaluated again from its record alone; the first difference is reported with both sides."""

from __future__ import annotations

import asyncio

import pytest

from evaluator import (
    ConfigurationError,
    ProviderError,
    RecordError,
    SimulatedBackend,
    TaskError,
    UsageError,
    tool,
)
from tests.interpreter.crashes import cut, file_of

STORY = """
<task name="story" type="sequential"><description>Write a story about a topic</description>
  <inputs><input name="topic" required="true"/></inputs>
  <context_management><accumulate_data>false</accumulate_data></context_management>
  <steps>
    <task name="plan" type="atomic"><description>plan</description><instructions>Plan {{ topic }}</instructions></task>
    <task name="note" type="script"><description>note</description><command>sh -c "echo ran >> effects; echo noted"</command></task>
    <task name="act" type="atomic"><description>act</description><tools><tool name="press"/><tool name="helper"/></tools>
      <instructions>Act on {{ steps.plan.content }} and {{ steps.note.content }}</instructions></task>
    <task name="rate" type="atomic"><description>rate</description><instructions>Rate it</instructions>
      <output_format type="json" schema="object"/></task>
  </steps></task>
<task name="helper" type="atomic"><description>Help with a part</description>
  <inputs><input name="part" required="true"/></inputs><instructions>Help with {{ part }}</instructions></task>
"""


class Silent(SimulatedBackend):
    """A backend that must not be asked."""

    async def complete(self, request, *, on_text=None):
        raise AssertionError("a replay made a call")


@pytest.fixture
def effects() -> list[str]:
    return []


@pytest.fixture
def recorded(make_evaluator, effects):
    """`recorded()` runs the story; `again(xml)` is an evaluator that must not call anything."""

    @tool
    def press(button: str) -> str:
        """Press a button."""
        effects.append(button)
        if button == "broken":
            raise ValueError("stuck")
        return f"pressed {button}"

    def script(request):
        prompt = request.messages[0].content
        if prompt.startswith("Act"):
            answers = [m.content for m in request.messages if m.role == "tool"]
            return " / ".join(answers) or [
                {"tool": "press", "arguments": {"button": "a"}},
                {"tool": "press", "arguments": {"button": "broken"}},
                {"tool": "helper", "arguments": {"part": "b"}},
            ]
        return '{"score": 3}' if prompt.startswith("Rate") else f"<{prompt}>"

    def make(xml=STORY, **options):
        return make_evaluator(xml, tools=[press], **options)

    def run():
        return asyncio.run(make(script=script).evaluate("story", {"topic": "cats"}))

    run.again = lambda xml=STORY: make(xml, backend=Silent())
    return run


def test_a_replay_gives_what_was_recorded_and_does_nothing(recorded, effects, tmp_path):
    whole = recorded().unwrap()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = list(effects)
    replay = asyncio.run(recorded.again().replay(1))
    assert (replay.ok, replay.divergence, replay.task_id) == (True, None, 1)
    assert (replay.outcome.content, replay.outcome.parsed_content) == (whole.content, {"score": 3})
    assert replay.outcome.usage == whole.usage
    assert effects == done
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_replay_reads_a_file_by_its_path_too(recorded, tmp_path):
    recorded()
    assert recorded.again().replay_sync(file_of(tmp_path, 1)).ok


def test_the_first_step_that_differs_is_reported_with_both_sides(recorded):
    recorded()
    replay = asyncio.run(recorded.again(STORY.replace("Act on", "Please act on")).replay(1))
    found = replay.divergence
    assert found is not None and not replay.ok
    assert found.path == "steps[3]/turn[1]"
    assert '"Act on <Plan cats>' in str(found.recorded)
    assert '"Please act on <Plan cats>' in str(found.now)
    assert replay.to_dict()["divergence"]["path"] == "steps[3]/turn[1]"


def test_template_changes_show_what_the_model_would_see_differently_and_go_on(recorded, effects):
    recorded()
    done = list(effects)
    edited = (
        STORY.replace("Plan {{", "Make a plan of {{")
        .replace("Rate it", "Rate it now")
        .replace("Help with {{", "Do {{")
    )
    replay = asyncio.run(recorded.again(edited).replay(1, template_changes=True))
    assert replay.divergence is None and not replay.ok
    assert [change.path for change in replay.changes] == ["steps[1]/turn[1]", "steps[4]/turn[1]"]
    first = replay.changes[0]
    assert (first.recorded["messages"][0]["content"], first.now["messages"][0]["content"]) == (
        "Plan cats",
        "Make a plan of cats",
    )
    assert replay.outcome.parsed_content == {"score": 3}
    assert effects == done


def test_steps_that_are_new_or_gone_are_reported(recorded):
    recorded()
    shorter = STORY.replace('<task name="rate"', '<task name="last"').replace(
        '<task name="note" type="script"><description>note</description><command>sh -c "echo ran >> effects; echo noted"'
        "</command></task>",
        '<task name="note" type="atomic"><description>note</description><instructions>Note</instructions></task>',
    )
    replay = asyncio.run(recorded.again(shorter).replay(1, template_changes=True))
    assert replay.divergence is not None
    assert replay.divergence.path == "steps[2]/turn[1]"
    assert "no such step" in replay.divergence.message
    cond = STORY.replace('<task name="rate"', '<cond><case test="false"><task name="rate"').replace(
        'schema="object"/></task>',
        'schema="object"/></task></case><default><task name="none" type="script">'
        "<description>none</description><command>true</command></task></default></cond>",
    )
    replay = asyncio.run(recorded.again(cond).replay(1, template_changes=True))
    assert not replay.ok


def test_steps_that_are_not_reached_are_reported_as_gone(make_evaluator):
    xml = """<task name="t" type="sequential"><description>t</description>
      <context_management><accumulate_data>false</accumulate_data></context_management><steps>
      <task name="a" type="atomic"><description>a</description><instructions>A</instructions></task>{more}</steps></task>"""
    more = '<task name="b" type="atomic"><description>b</description><instructions>B</instructions></task>'
    asyncio.run(make_evaluator(xml.format(more=more), script=lambda r: "same").evaluate("t"))
    replay = make_evaluator(xml.format(more=""), backend=Silent()).replay_sync(1)
    assert (replay.divergence, replay.gone, replay.ok) == (None, ("steps[2]/turn[1]",), False)


def test_another_result_of_the_same_answers_is_a_divergence(recorded):
    recorded()
    replay = asyncio.run(
        recorded.again(STORY.replace(' type="json" schema="object"', ' type="text"')).replay(1)
    )
    assert replay.divergence is not None
    # The declared schema is shown to the model, so the step itself differs first.
    assert replay.divergence.path == "steps[4]/turn[1]"
    replay = asyncio.run(
        recorded.again(STORY.replace(' type="json" schema="object"', ' type="text"')).replay(
            1, template_changes=True
        )
    )
    assert replay.divergence is not None
    assert (replay.divergence.path, replay.divergence.now) == ("result", "null")


def test_a_failed_run_fails_again_as_it_did(make_evaluator, scripted):
    xml = """<task name="t" type="atomic"><description>t</description><instructions>Do</instructions></task>"""
    down = ProviderError("the key is wrong", kind="authentication", status=401)
    error = asyncio.run(make_evaluator(xml, script=lambda r: down).evaluate("t"))
    assert isinstance(error, TaskError)
    replay = make_evaluator(xml, backend=Silent()).replay_sync(1)
    assert replay.ok
    assert isinstance(replay.outcome, TaskError)
    assert replay.outcome.message == error.message


def test_a_run_without_an_end_replays_to_where_it_ends(recorded, tmp_path):
    recorded()
    cut(tmp_path, "steps[3]/turn[2]", begun=True)
    replay = asyncio.run(recorded.again().replay(1))
    assert (replay.ok, replay.divergence, replay.ends_at) == (True, None, "steps[3]/turn[2]")


def test_words_need_no_model_and_no_key_to_be_replayed(make_evaluator, scripted):
    xml = """<task name="mood" type="atomic"><description>Say whether a review is positive or negative</description>
      <inputs><input name="review" required="true"/></inputs><instructions>review {{ review }}</instructions></task>"""
    answers = scripted({"<request>": '{"review": "lovely"}'}, "positive")
    words = "is this review positive or negative: lovely"
    asyncio.run(make_evaluator(xml, script=answers).evaluate(words))
    assert make_evaluator(xml, backend=Silent()).replay_sync(1).ok


def test_what_cannot_be_replayed_is_reported(make_evaluator, recorded, tmp_path):
    recorded()
    with pytest.raises(RecordError, match="there is no task 9"):
        make_evaluator(STORY).replay_sync(9)
    with pytest.raises(UsageError, match="tasks_dir=None"):
        make_evaluator(STORY, tasks_dir=None).replay_sync(1)
    with pytest.raises(RecordError, match="not loaded"):
        make_evaluator("").replay_sync(1)


def test_a_profile_that_is_gone_is_not_a_divergence(make_evaluator, scripted):
    xml = """<task name="t" type="atomic"><description>t</description><handler ref="{}"/><instructions>T</instructions></task>"""
    asyncio.run(
        make_evaluator(xml.format("offline"), script=scripted(default="x"), handler=None).evaluate(
            "t"
        )
    ).unwrap()
    with pytest.raises(ConfigurationError, match="no handler profile is called 'gone'"):
        make_evaluator(xml.format("gone"), backend=Silent(), handler=None).replay_sync(1)


def test_a_new_step_is_shown_with_what_the_model_would_see(make_evaluator):
    xml = """<task name="t" type="sequential"><description>t</description>
      <context_management><accumulate_data>false</accumulate_data></context_management><steps>
      <task name="a" type="atomic"><description>a</description><instructions>A</instructions></task>{more}</steps></task>"""
    more = '<task name="b" type="atomic"><description>b</description><instructions>Something new</instructions></task>'
    asyncio.run(make_evaluator(xml.format(more=""), script=lambda r: "same").evaluate("t"))
    replay = make_evaluator(xml.format(more=more), backend=Silent()).replay_sync(
        1, template_changes=True
    )
    assert replay.divergence is not None
    (change,) = replay.changes
    assert (change.path, change.recorded) == ("steps[2]/turn[1]", None)
    assert change.now["messages"][-1]["content"] == "Something new"
