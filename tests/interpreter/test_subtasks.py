"""A subtask is a tool call for the model and a task with its own file for the Evaluator."""

from __future__ import annotations

import asyncio
import json

import pytest

from evaluator import HandlerConfig, TaskError, TaskStore, ToolGrant
from evaluator.record.journal import Journal
from evaluator.record.task_lists import TaskLists
from evaluator.tools import PolicyRule

LIBRARY = """
<task name="boss" type="atomic"><description>delegate work</description><tools><tool name="subtask"/></tools>
  <handler max_turns="{turns}"/><instructions>boss</instructions></task>
<task name="capital" type="atomic"><description>Name the capital city of a country</description>
  <inputs><input name="country" required="true"/></inputs><instructions>capital of {{{{ country }}}}</instructions></task>
<task name="nested" type="atomic"><description>think again about the same thing</description>
  <tools><tool name="subtask"/></tools><inputs><input name="n" type="integer"/></inputs>
  <instructions>nested {{{{ n }}}}</instructions></task>
<task name="direct" type="atomic"><description>d</description><tools><tool name="capital"/></tools>
  <instructions>direct</instructions></task>
"""


def call(description="Name the capital city of a country", inputs=None, **more):
    arguments = {"type": "atomic", "description": description, "inputs": inputs or {}, **more}
    return {"tool": "subtask", "arguments": arguments}


def evaluate(make_evaluator, script, name="boss", turns=5, **options):
    evaluator = make_evaluator(LIBRARY.format(turns=turns), script=script, **options)
    return asyncio.run(evaluator.evaluate(name, {"n": 0} if name == "nested" else {}))


def last_tool_answer(request):
    return next(m.content for m in reversed(request.messages) if m.role == "tool")


def script_of(seen, boss, **others):
    def script(request):
        seen.append(request)
        prompt = next(m.content for m in request.messages if m.role == "user")
        told = any(m.role == "tool" for m in request.messages)
        if prompt.startswith(("boss", "direct")):
            return "finished" if told else boss
        return next(
            (answer for key, answer in others.items() if prompt.startswith(key)), "sub answer"
        )

    return script


def test_a_subtask_is_matched_run_and_answered_in_the_same_session(make_evaluator, tmp_path):
    seen = []
    result = evaluate(
        make_evaluator, script_of(seen, call(inputs={"country": "Peru"}), capital="Lima")
    ).unwrap()
    assert result.content == "finished"
    assert seen[1].messages[-1].content == "capital of Peru"
    assert last_tool_answer(seen[2]) == "Lima"
    assert result.usage.turns == 3
    assert result.usage.tool_calls == 1
    store = TaskStore(tmp_path / "tasks")
    parent = store.read(1)
    link = next(s for s in parent.steps if s.start.kind == "subtask")
    assert link.start.args["task_id"] == 2
    assert store.read(2).header.parent == 1


def test_several_subtasks_of_one_turn_are_answered_in_the_order_of_the_calls(make_evaluator):
    seen = []
    calls = [call(inputs={"country": "Peru"}), call(inputs={"country": "Chad"})]
    answers = {"capital of Peru": "Lima", "capital of Chad": "N'Djamena"}

    def script(request):
        seen.append(request)
        prompt = next(m.content for m in request.messages if m.role == "user")
        if prompt == "boss":
            return "finished" if any(m.role == "tool" for m in request.messages) else calls
        return answers[prompt]

    evaluate(make_evaluator, script).unwrap()
    assert [m.content for m in seen[-1].messages if m.role == "tool"] == ["Lima", "N'Djamena"]


def test_a_template_named_as_a_tool_has_its_inputs_as_parameters(make_evaluator):
    seen = []
    boss = {"tool": "capital", "arguments": {"country": "Peru"}}
    evaluate(make_evaluator, script_of(seen, boss, capital="Lima"), "direct").unwrap()
    spec = seen[0].tools[0]
    assert spec.parameters["required"] == ["country"]
    assert last_tool_answer(seen[-1]) == "Lima"


def test_a_failed_subtask_is_an_answer_with_the_whole_request(make_evaluator):
    seen = []
    evaluate(make_evaluator, script_of(seen, call(inputs={"country": "Peru"}), capital="")).unwrap()
    told = last_tool_answer(seen[-1])
    failure = json.loads(told[told.index("{") :])
    assert failure["reason"] == "subtask_failure"
    assert failure["request"]["inputs"] == {"country": "Peru"}
    assert failure["depth"] == 1


def test_a_request_that_no_template_fits_runs_as_it_is(make_evaluator):
    seen = []
    boss = call("Recite {{ a }} limerick", {"mood": "{{ x }}"})
    evaluate(make_evaluator, script_of(seen, boss)).unwrap()
    assert seen[1].messages[-1].content == "Recite {{ a }} limerick\n\nmood:\n{{ x }}"


def test_an_input_name_does_not_choose_the_template_of_a_subtask(make_evaluator):
    seen = []
    boss = call("Recite a limerick", {"country": "Peru"})
    evaluate(make_evaluator, script_of(seen, boss)).unwrap()
    assert seen[1].messages[-1].content == "Recite a limerick\n\ncountry:\nPeru"


def test_a_broken_request_is_explained_to_the_model(make_evaluator):
    seen = []
    evaluate(
        make_evaluator, script_of(seen, {"tool": "subtask", "arguments": '{"type": "atomic"'})
    ).unwrap()
    assert last_tool_answer(seen[-1]).startswith("error:")
    seen.clear()
    evaluate(
        make_evaluator, script_of(seen, {"tool": "subtask", "arguments": {"type": "atomic"}})
    ).unwrap()
    assert "description" in last_tool_answer(seen[-1])
    seen.clear()
    evaluate(make_evaluator, script_of(seen, {"tool": "sub_task", "arguments": {}})).unwrap()
    assert "subtask" in last_tool_answer(seen[-1])


def test_a_subtask_equal_to_one_it_runs_inside_is_refused(make_evaluator):
    seen = []

    def script(request):
        seen.append(request)
        if any(m.role == "tool" for m in request.messages):
            return last_tool_answer(request)
        return call("think again about the same thing", {"n": 1}, hints={"template": "nested"})

    result = evaluate(make_evaluator, script, "nested").unwrap()
    assert "equal to one" in result.content
    assert len(seen) == 4


def test_depth_is_bounded_and_the_model_that_asked_is_told(make_evaluator):
    counter = iter(range(1, 100))
    refused = []

    def script(request):
        if any(m.role == "tool" for m in request.messages):
            refused.append(last_tool_answer(request))
            return "done here"
        return call(
            "think again about the same thing", {"n": next(counter)}, hints={"template": "nested"}
        )

    result = evaluate(make_evaluator, script, "nested", max_depth=3).unwrap()
    assert result.content == "done here"
    failure = json.loads(refused[0][refused[0].index("{") :])
    assert failure["error"]["resource"] == "depth"
    assert failure["depth"] == 4
    assert next(counter) == 5


def test_turns_of_a_subtask_count_against_the_task_above(make_evaluator):
    seen = []
    error = evaluate(
        make_evaluator, script_of(seen, call(inputs={"country": "Peru"}), capital="Lima"), turns=2
    )
    assert isinstance(error, TaskError)
    assert (error.resource.name, error.resource.used, error.resource.limit) == ("turns", 2, 2)
    assert len(seen) == 2


def test_a_cycle_of_two_subtasks_is_refused(make_evaluator):
    xml = "".join(
        f"""<task name="{name}" type="atomic"><description>think about {name}</description>
        <tools><tool name="subtask"/></tools><instructions>{name}</instructions></task>"""
        for name in ("ping", "pong")
    )
    asked = []

    def script(request):
        if any(m.role == "tool" for m in request.messages):
            return last_tool_answer(request)
        name = next(m.content for m in request.messages if m.role == "user")
        asked.append(name)
        other = "pong" if name == "ping" else "ping"
        return call(f"think about {other}", hints={"template": other})

    evaluator = make_evaluator(xml, script=script, max_depth=50)
    result = asyncio.run(evaluator.evaluate("ping")).unwrap()
    assert "equal to one" in result.content
    assert len(asked) <= 4


def test_unknown_inputs_of_a_hinted_template_are_an_error_that_names_the_known_ones(make_evaluator):
    seen = []
    boss = call(inputs={"country": "Peru", "city": "Lima"}, hints={"template": "capital"})
    evaluate(make_evaluator, script_of(seen, boss, capital="Lima")).unwrap()
    assert "has no input `city`; its inputs are `country`" in last_tool_answer(seen[-1])
    assert len(seen) == 2


def test_the_description_of_a_request_reaches_the_hinted_template(make_evaluator):
    seen = []
    boss = call("Name it in {{ Spanish }}", {"country": "Peru"}, hints={"template": "capital"})
    evaluate(make_evaluator, script_of(seen, boss, capital="Lima")).unwrap()
    prompt = seen[1].messages[-1].content
    assert prompt.startswith("capital of Peru\n\n")
    assert '<input name="subtask_description">\nName it in {{ Spanish }}\n</input>' in prompt


def test_a_template_of_another_type_is_not_chosen_unless_it_is_a_tool_of_the_task(make_evaluator):
    steps = """<task name="steps" type="sequential"><description>steps</description><steps>
      <task type="atomic"><description>one step</description></task></steps></task>
      <task name="lead" type="atomic"><description>l</description><tools><tool name="steps"/><tool name="subtask"/></tools>
      <instructions>boss</instructions></task>"""
    for name, answered in (
        ("boss", "may not be a task of type sequential"),
        ("lead", "sub answer"),
    ):
        seen = []
        script = script_of(seen, call("steps", hints={"template": "steps"}))
        evaluator = make_evaluator(LIBRARY.format(turns=5) + steps, script=script)
        asyncio.run(evaluator.evaluate(name)).unwrap()
        assert answered in last_tool_answer(seen[-1])


def test_a_subtask_equal_to_the_root_is_refused(make_evaluator):
    seen = []

    def script(request):
        seen.append(request)
        if any(m.role == "tool" for m in request.messages):
            return last_tool_answer(request)
        return call("think again about the same thing", {"n": 0}, hints={"template": "nested"})

    result = evaluate(make_evaluator, script, "nested").unwrap()
    assert "equal to one" in result.content
    assert len(seen) == 2


def test_a_chain_of_the_default_depth_fits_the_default_limits(make_evaluator, tmp_path):
    library = (
        LIBRARY.replace('<handler max_turns="{turns}"/>', "")
        .replace("{{{{", "{{")
        .replace("}}}}", "}}")
    )
    counter = iter(range(1, 100))

    def script(request):
        if any(m.role == "tool" for m in request.messages):
            return "done"
        return call(
            "think again about the same thing", {"n": next(counter)}, hints={"template": "nested"}
        )

    evaluator = make_evaluator(library, script=script)
    asyncio.run(evaluator.evaluate("nested", {"n": 0})).unwrap()
    # The root and five levels; the sixth is refused, and each task has a turn after its subtask.
    assert [task.id for task in TaskStore(tmp_path / "tasks").list()] == [6, 5, 4, 3, 2, 1]


def test_a_match_to_a_template_that_is_a_tool_of_the_task_runs_with_what_its_author_granted(
    make_evaluator, tmp_path
):
    (tmp_path / "quilt.txt").write_text("a quilt")
    xml = """<task name="boss"><description>lead</description><instructions>BOSS</instructions>
        <tools><tool name="subtask"/><tool name="quilts"/></tools></task>
      <task name="quilts"><description>zebra quilting handbook</description>
        <tools><tool name="list_files"/></tools><instructions>QUILTS</instructions></task>"""
    seen = []

    def script(request):
        seen.append(request)
        prompt = next(m.content for m in request.messages if m.role == "user")
        if any(m.role == "tool" for m in request.messages):
            return last_tool_answer(request)
        return {
            "BOSS": call("zebra quilting handbook"),
            "QUILTS": {"tool": "list_files", "arguments": {}},
        }[prompt]

    result = make_evaluator(xml, script=script).evaluate_sync("boss").unwrap()
    assert "quilt.txt" in result.content


@pytest.mark.parametrize(
    "name", ["in", "not", "none", "True", "for", "range", "a b", "größe", "subtask_description"]
)
def test_any_name_of_an_input_of_a_request_is_data(make_evaluator, name):
    seen = []
    boss = call("Recite a limerick", {name: "about a zebra"})
    evaluate(make_evaluator, script_of(seen, boss)).unwrap()
    prompt = seen[1].messages[-1].content
    assert prompt.startswith("Recite a limerick\n\n")
    assert prompt.count("about a zebra") == 1 and name in prompt


def test_a_model_gives_only_the_inputs_that_a_template_does_not_find_itself(make_evaluator):
    xml = """<task name="boss"><description>lead</description><instructions>BOSS</instructions>
        <tools><tool name="subtask"/><tool name="quilts"/></tools></task>
      <task name="quilts"><description>zebra quilting handbook</description><inputs>
        <input name="size" type="integer"/><input name="area" from="size * size"/>
        <input name="title"><task><description>a title</description></task></input></inputs>
        <instructions>QUILTS {{ size }} {{ area }} {{ title }}</instructions></task>"""
    seen = []

    def script(request):
        seen.append(request)
        prompt = next(m.content for m in request.messages if m.role == "user")
        if any(m.role == "tool" for m in request.messages):
            return last_tool_answer(request)
        if prompt == "BOSS":
            return call("zebra quilting handbook", {"size": 3})
        return "Stripes" if prompt == "a title" else prompt

    result = make_evaluator(xml, script=script).evaluate_sync("boss").unwrap()
    assert result.content == "QUILTS 3 9 Stripes"
    spec = next(spec for spec in seen[0].tools if spec.name == "quilts")
    assert spec.parameters["required"] == ["size"]


@pytest.mark.parametrize(
    ("tools", "path", "is_given"),
    [
        (("subtask", "manage_task"), "tasks/active/2026-03-02-plan.md", True),
        (("subtask",), "tasks/active/2026-03-02-plan.md", False),
        (("subtask", "read_file"), "tasks/active/2026-03-02-plan.md", False),
        (("subtask", "manage_task"), "tasks/TASK-1.md", False),
        (("subtask", "manage_task"), "notes.md", False),
    ],
)
def test_a_task_that_manages_task_lists_gives_one_to_a_subtask_without_read_file(
    make_evaluator, tmp_path, tools, path, is_given
):
    TaskLists(tmp_path / "tasks").create("2026-03-02-plan", "# Plan\n\n- [ ] paint it green\n")
    (tmp_path / "notes.md").write_text("green notes")
    named = "".join(f'<tool name="{name}"/>' for name in tools)
    seen = []

    def script(request):
        seen.append(request)
        if len(seen) == 1:
            arguments = {"type": "atomic", "description": "follow the plan", "inputs": {}}
            return {"tool": "subtask", "arguments": {**arguments, "file_paths": [path]}}
        return "ok"

    xml = f"""<task name="plan"><description>Plan</description><tools>{named}</tools>
      <instructions>PLAN</instructions></task>"""
    evaluator = make_evaluator(xml, script=script)
    assert evaluator.evaluate_sync("plan").ok
    said = str(seen[1].messages)
    assert ("paint it green" in said) == is_given
    assert ("may not read" in said) == (not is_given)


def test_a_template_reads_no_task_list_that_a_model_without_manage_task_names(
    make_evaluator, tmp_path
):
    TaskLists(tmp_path / "tasks").create("2026-03-02-plan", "# Plan\n\n- [ ] paint it green\n")
    (tmp_path / "notes.md").write_text("blue notes")
    xml = """<task name="boss"><description>lead</description><instructions>boss</instructions>
        <tools><tool name="subtask"/><tool name="read_file"/></tools></task>
      <task name="reads"><description>read it</description><inputs><input name="path"/></inputs>
        <file_paths><path>{{ path }}</path></file_paths><instructions>READS</instructions></task>"""
    for path, is_read in (("notes.md", True), ("tasks/active/2026-03-02-plan.md", False)):
        seen = []
        boss = call("read it", {"path": path}, hints={"template": "reads"})
        evaluator = make_evaluator(xml, script=script_of(seen, boss))
        evaluator.evaluate_sync("boss").unwrap()
        texts = str([request.messages for request in seen])
        assert ("blue notes" in texts) == is_read
        assert "paint it green" not in texts


def test_a_policy_of_manage_task_holds_for_the_task_lists_of_a_request(make_evaluator, tmp_path):
    TaskLists(tmp_path / "tasks").create("2026-03-02-plan", "# Plan\n\n- [ ] paint it green\n")
    rule = PolicyRule("deny", "action", "read")
    tools = (ToolGrant("subtask"), ToolGrant("manage_task", None, (rule,)))
    profile = HandlerConfig(name="p", backend="simulated", tools=tools)
    seen = []
    boss = call("follow it", file_paths=["tasks/active/2026-03-02-plan.md"])
    xml = (
        "<task name='boss'><description>lead</description><instructions>boss</instructions></task>"
    )
    evaluator = make_evaluator(xml, script=script_of(seen, boss), handler=profile)
    evaluator.evaluate_sync("boss").unwrap()
    assert "paint it green" not in str(seen)
    assert "file_paths: manage_task is not allowed here" in last_tool_answer(seen[-1])


def test_a_subtask_that_is_cancelled_before_its_step_begins_leaves_no_open_file(
    make_evaluator, tmp_path, monkeypatch
):
    evaluator = make_evaluator(
        LIBRARY.format(turns=5),
        script=script_of([], call(inputs={"country": "Peru"}), capital="Lima"),
        sync="step",
    )
    sync = Journal.sync
    opened = []

    async def main():
        loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(evaluator.evaluate("boss"))

        def cancelling(journal):
            if journal.id == 2:
                opened.append(journal)
                loop.call_soon_threadsafe(running.cancel)
            sync(journal)

        monkeypatch.setattr(Journal, "sync", cancelling)
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    monkeypatch.undo()
    assert opened and not list((tmp_path / "tasks").rglob("TASK-2.md"))
    # Nothing of it is in the way of a resumed run.
    assert evaluator.resume_sync(1).unwrap().content == "finished"
