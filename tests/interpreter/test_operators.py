"""Each operator, run through the Evaluator with a scripted model."""

from __future__ import annotations

import asyncio

import pytest

from evaluator import Status, TaskError, TaskResult

ASK = '<task name="ask" type="atomic"><description>d</description><inputs><input name="q" required="true"/></inputs><instructions>Q: {{ q }}</instructions></task>'


def run(evaluator, name, inputs=None, **options):
    return asyncio.run(evaluator.evaluate(name, inputs or {}, **options))


def test_an_atomic_task_returns_the_models_text(make_evaluator, scripted):
    script = scripted(default="forty-two")
    result = run(make_evaluator(ASK, script=script), "ask", {"q": "what?"})
    assert isinstance(result, TaskResult)
    assert (result.status, result.content, result.parsed_content) == (
        Status.COMPLETE,
        "forty-two",
        None,
    )
    assert script.prompts == ["Q: what?"]
    assert result.usage.turns == 1
    assert result.notes["data_usage"] == ["input:q"]


def test_a_value_with_braces_reaches_the_model_as_it_is(make_evaluator, scripted):
    script = scripted()
    run(make_evaluator(ASK, script=script), "ask", {"q": "{{ q }} <<q>> {% for %}"})
    assert script.prompts == ["Q: {{ q }} <<q>> {% for %}"]


def test_json_output_is_parsed_and_repairs_are_warned_of(make_evaluator):
    xml = '<task name="j" type="atomic"><description>give</description><output_format type="json" schema="object"/></task>'
    result = run(make_evaluator(xml, script=["Sure:\n```json\n{'a': 1,}\n```"]), "j")
    assert result.unwrap().parsed_content == {"a": 1}
    assert result.notes["warnings"]


def test_output_that_does_not_fit_is_an_error_that_keeps_the_text(make_evaluator):
    xml = '<task name="j" type="atomic"><description>give</description><output_format type="json" schema="object"/></task>'
    error = run(make_evaluator(xml, script=["[1]"]), "j")
    assert isinstance(error, TaskError)
    assert (error.type, error.reason, error.content) == (
        "INVALID_OUTPUT",
        "output_format_failure",
        "[1]",
    )
    assert error.location is not None
    assert error.location.line == 1
    assert error.usage.turns == 1


def test_an_answer_without_text_is_an_error(make_evaluator):
    error = run(make_evaluator(ASK, script=["  \n"]), "ask", {"q": "x"})
    assert isinstance(error, TaskError)
    assert "nothing" in error.message


@pytest.mark.parametrize(
    ("inputs", "code"), [({}, "missing-input"), ({"q": "x", "z": 1}, "excess-input")]
)
def test_wrong_inputs_are_errors_before_a_call(make_evaluator, scripted, inputs, code):
    script = scripted()
    error = run(make_evaluator(ASK, script=script), "ask", inputs)
    assert isinstance(error, TaskError)
    assert error.reason == "input_validation_failure"
    assert [v.code for v in error.violations] == [code]
    assert script.seen == []


SEQUENCE = """
<task name="seq" type="sequential"><description>two steps</description>
  <inputs><input name="topic" required="true"/></inputs>
  <steps>
    <task name="outline" type="atomic"><description>d</description><instructions>outline {{ topic }}</instructions>
      <output_format type="json" schema="object"/></task>
    <task name="draft" type="atomic"><description>d</description>
      <instructions>draft {{ steps.outline.parsed.title }} {{ steps[0].content }} {{ previous.parsed.title }}</instructions></task>
  </steps>
</task>"""


def test_a_step_sees_the_steps_before_it(make_evaluator, scripted):
    script = scripted({"outline": '{"title": "Tin"}', "draft": "the draft"})
    result = run(make_evaluator(SEQUENCE, script=script), "seq", {"topic": "metals"}).unwrap()
    assert result.content == "the draft"
    assert script.prompts[1].endswith('draft Tin {"title": "Tin"} Tin')
    assert result.usage.turns == 2
    assert [s["step"] for s in result.notes["steps"]] == ["outline", "draft"]


def test_accumulated_notes_of_earlier_steps_are_context(make_evaluator, scripted):
    script = scripted({"outline": '{"title": "Tin"}', "draft": "the draft"})
    run(make_evaluator(SEQUENCE, script=script), "seq", {"topic": "metals"})
    assert "step:outline" not in script.prompts[0]
    full = SEQUENCE.replace(
        "<steps>",
        "<context_management><accumulation_format>full_output</accumulation_format></context_management><steps>",
        1,
    )
    # Longer than a summary.
    outline = '{"title": "Tin", "parts": "' + "ore and alloys, " * 40 + '"}'
    script = scripted({"outline": outline, "draft": "the draft"})
    run(make_evaluator(full, script=script), "seq", {"topic": "metals"})
    assert f'<context source="step:outline">\n{outline}' in script.prompts[1]


def test_a_failed_step_keeps_what_was_done(make_evaluator, scripted):
    script = scripted({"outline": '{"title": "Tin"}', "draft": " "})
    error = run(make_evaluator(SEQUENCE, script=script), "seq", {"topic": "metals"})
    assert isinstance(error, TaskError)
    assert error.details["failed_step"] == {"index": 1, "name": "draft"}
    assert error.details["total_steps"] == 2
    assert [p["step"] for p in error.details["partial_results"]] == ["outline"]
    assert "content" not in error.details["partial_results"][0]
    assert error.usage.turns == 2
    full = SEQUENCE.replace(
        "<steps>",
        "<context_management><accumulation_format>full_output</accumulation_format></context_management><steps>",
        1,
    )
    script = scripted({"draft": " ", "outline": '{"title": "Tin"}'})
    error = run(make_evaluator(full, script=script), "seq", {"topic": "metals"})
    assert error.details["partial_results"] == [{"step": "outline", "content": '{"title": "Tin"}'}]


REDUCE = """
<task name="red" type="reduce"{attributes}><description>collect</description>
  <inputs over="docs"><input name="docs" type="string[]" required="true"/><input name="sep" default="+"/></inputs>
  <initial_value>start</initial_value>
  <inner_task><task name="inner" type="atomic"><description>d</description><instructions>map {{{{ current_input }}}} #{{{{ index }}}}</instructions></task></inner_task>
  <reduction_task><task name="join" type="atomic"><description>d</description>
    <instructions>reduce {{{{ accumulator }}}}{{{{ sep }}}}{{{{ current_result }}}}</instructions></task></reduction_task>
</task>"""


@pytest.mark.parametrize("attributes", ["", ' concurrency="3"'])
def test_reduce_folds_in_strict_order(make_evaluator, scripted, attributes):
    def fold(prompt: str) -> str:
        return prompt.rsplit("reduce ", 1)[1]

    script = scripted(
        {"reduce": fold, "map": lambda p: p.split("map ", 1)[1].split(" ")[0].upper()}
    )
    evaluator = make_evaluator(REDUCE.format(attributes=attributes), script=script)
    result = run(evaluator, "red", {"docs": ["a", "b", "c"]}).unwrap()
    assert result.content == "start+A+B+C"
    assert result.usage.turns == 6


def test_reduce_over_nothing_is_the_initial_value(make_evaluator, scripted):
    result = run(
        make_evaluator(REDUCE.format(attributes=""), script=scripted()), "red", {"docs": []}
    ).unwrap()
    assert result.content == "start"
    assert result.usage.turns == 0


def test_a_failed_item_keeps_the_accumulator(make_evaluator, scripted):
    script = scripted({"map c": "", "reduce": lambda p: p.rsplit("reduce ", 1)[1], "map": "m"})
    error = run(
        make_evaluator(REDUCE.format(attributes=""), script=script),
        "red",
        {"docs": ["a", "b", "c"]},
    )
    assert isinstance(error, TaskError)
    assert error.details["failed_input"] == {"index": 2, "value": "c"}
    assert error.details["accumulator"] == "start+m+m"
    assert error.details["processed_inputs"] == [0, 1]


MAP = """
<task name="each" type="map"{attributes}><description>shout</description>
  <inputs over="words"><input name="words" type="string[]" required="true"/><input name="end" default="!"/></inputs>
  <inner_task><task name="inner" type="atomic"><description>d</description>
    <instructions>shout {{{{ current_input }}}}{{{{ end }}}} #{{{{ index }}}}</instructions>{output}</task></inner_task>
</task>"""


def shout(prompt: str) -> str:
    return prompt.split(" ")[1].upper()


@pytest.mark.parametrize("attributes", ["", ' concurrency="2"'])
def test_map_gives_the_list_of_the_results_in_order(make_evaluator, scripted, attributes):
    script = scripted({"shout": shout})
    evaluator = make_evaluator(MAP.format(attributes=attributes, output=""), script=script)
    result = run(evaluator, "each", {"words": ["é", "b", "c"]}).unwrap()
    assert (result.content, result.parsed_content) == ('["É!", "B!", "C!"]', ["É!", "B!", "C!"])
    assert (result.usage.turns, result.notes["processed_inputs"]) == (3, 3)
    assert sorted(script.prompts) == ["shout b! #1", "shout c! #2", "shout é! #0"]


def test_map_collects_parsed_values(make_evaluator, scripted):
    xml = MAP.format(attributes="", output='<output_format type="json" schema="integer"/>')
    result = run(
        make_evaluator(xml, script=scripted({"shout": "3"})), "each", {"words": ["a", "b"]}
    ).unwrap()
    assert (result.content, result.parsed_content) == ("[3, 3]", [3, 3])


def test_map_over_nothing_is_an_empty_list(make_evaluator, scripted):
    result = run(
        make_evaluator(MAP.format(attributes="", output="")), "each", {"words": []}
    ).unwrap()
    assert (result.content, result.parsed_content, result.usage.turns) == ("[]", [], 0)


@pytest.mark.parametrize("attributes", ["", ' concurrency="3"'])
def test_a_failed_item_of_a_map_keeps_the_results_before_it(make_evaluator, scripted, attributes):
    xml = MAP.format(attributes=attributes, output="").replace(
        "<inner_task>",
        "<context_management><accumulation_format>full_output</accumulation_format></context_management><inner_task>",
        1,
    )
    script = scripted({"shout c": "", "shout": shout})
    error = run(make_evaluator(xml, script=script), "each", {"words": ["a", "b", "c", "d"]})
    assert isinstance(error, TaskError)
    assert error.message.startswith("inner_task of item 3 of 4 failed: ")
    assert error.details["failed_input"] == {"index": 2, "value": "c"}
    assert error.details["processed_inputs"] == [0, 1]
    assert error.details["partial_results"] == ["A!", "B!"]
    assert error.details["total_steps"] == 4


def test_map_runs_at_most_as_many_items_at_once_as_its_concurrency(make_evaluator):
    both = asyncio.Barrier(2)

    class Waiting:
        name = "simulated"
        running = most = 0

        async def complete(self, request, *, on_text=None):
            from evaluator import ModelResponse

            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.wait_for(both.wait(), 200)
            self.running -= 1
            return ModelResponse("x", "stop")

        async def aclose(self):
            pass

    backend = Waiting()
    evaluator = make_evaluator(
        MAP.format(attributes=' concurrency="2"', output=""), backend=backend
    )
    assert (
        run(evaluator, "each", {"words": ["a", "b", "c", "d"]}).unwrap().parsed_content == ["x"] * 4
    )
    assert backend.most == 2


def test_the_items_of_a_map_do_not_see_each_other(make_evaluator, scripted):
    script = scripted({"shout": shout})
    run(
        make_evaluator(MAP.format(attributes="", output=""), script=script),
        "each",
        {"words": ["a", "b"]},
    )
    assert script.prompts == ["shout a! #0", "shout b! #1"]


SCRIPT = """
<task name="sh" type="script"><description>run</description>
  <inputs><input name="who" required="true"/></inputs>
  <command><arg>python3</arg><arg>-c</arg><arg>import sys, json; print(json.load(sys.stdin)["who"], sys.argv[1]); {code}</arg><arg>{{{{ who }}}}</arg></command>
  <timeout>{timeout}</timeout>
</task>"""


def test_a_script_reads_its_inputs_on_stdin_and_values_stay_one_argument(make_evaluator):
    evaluator = make_evaluator(SCRIPT.format(code="", timeout=200))
    result = run(evaluator, "sh", {"who": "a b; echo $HOME"}).unwrap()
    assert result.content == "a b; echo $HOME a b; echo $HOME\n"
    assert result.notes["exit_code"] == 0


def test_a_script_that_fails_is_a_tool_failure_with_its_output(make_evaluator):
    error = run(make_evaluator(SCRIPT.format(code="sys.exit(3)", timeout=200)), "sh", {"who": "x"})
    assert isinstance(error, TaskError)
    assert error.reason == "tool_failure"
    assert error.details["exit_code"] == 3
    assert error.content == "x x\n"


def test_a_script_that_hangs_is_stopped_at_its_timeout(make_evaluator):
    code = "sys.stdout.flush(); sys.stdin.close(); import select; select.select([], [], [])"
    error = run(make_evaluator(SCRIPT.format(code=code, timeout=0.5)), "sh", {"who": "x"})
    assert isinstance(error, TaskError)
    assert (error.type, error.resource.name) == ("RESOURCE_EXHAUSTION", "time")


LOOP = """
<task name="loop" type="director_evaluator_loop"><description>improve</description>
  <inputs><input name="goal" required="true"/></inputs>
  <max_iterations>3</max_iterations>
  <director><description>d</description><instructions>direct {{{{ goal }}}} round {{{{ current_iteration }}}} [{{{{ evaluation_feedback }}}}]</instructions></director>
  {script}
  <evaluator><description>e</description><instructions>judge {{{{ director_result }}}} {{{{ script_output.stdout }}}}{{{{ script_output.exit_code | default("none") }}}}</instructions></evaluator>
  {condition}
</task>"""


def test_a_loop_ends_when_the_evaluator_is_satisfied(make_evaluator, scripted):
    answers = iter(
        ['{"success": false, "feedback": "shorter"}', '{"success": true, "feedback": ""}']
    )
    script = scripted({"direct": "text", "judge": lambda _: next(answers)})
    result = run(
        make_evaluator(LOOP.format(script="", condition=""), script=script), "loop", {"goal": "g"}
    ).unwrap()
    assert result.content == "text"
    assert (result.notes["termination_reason"], result.notes["iterations"]) == ("condition_met", 2)
    assert "round 2 [shorter]" in script.prompts[2]


def test_reaching_the_last_iteration_is_complete_and_says_so(make_evaluator, scripted):
    script = scripted({"direct": "text", "judge": "no idea"})
    result = run(
        make_evaluator(LOOP.format(script="", condition=""), script=script), "loop", {"goal": "g"}
    ).unwrap()
    assert result.notes["termination_reason"] == "max_iterations"
    assert result.notes["iterations"] == 3
    assert any("not satisfied" in w for w in result.notes["warnings"])


def test_a_condition_is_read_as_other_languages_write_it(make_evaluator, scripted):
    condition = (
        "<termination_condition><condition>evaluation.success === true &amp;&amp; current_iteration >= 2"
        "</condition></termination_condition>"
    )
    script = scripted({"direct": "text", "judge": '{"success": true}'})
    evaluator = make_evaluator(LOOP.format(script="", condition=condition), script=script)
    assert run(evaluator, "loop", {"goal": "g"}).unwrap().notes["iterations"] == 2


def test_the_evaluator_sees_what_the_script_printed_and_how_it_ended(make_evaluator, scripted):
    script_xml = """<script_execution><inputs><input name="stdin" from="director_result"/></inputs>
      <command>python3 -c "import sys; print(sys.stdin.read()[::-1]); sys.exit(4)"</command></script_execution>"""
    script = scripted({"direct": "abc", "judge": '{"success": true}'})
    result = run(
        make_evaluator(LOOP.format(script=script_xml, condition=""), script=script),
        "loop",
        {"goal": "g"},
    )
    assert result.unwrap().notes["iterations"] == 1
    assert script.prompts[1].endswith("judge abc cba\n4")


COND = """
<task name="route" type="sequential"><description>d</description><inputs><input name="n" type="integer" required="true"/></inputs>
  <steps><cond name="pick">
    <case test="n > 10"><task type="atomic"><description>big</description></task></case>
    <default><task type="atomic"><description>small</description></task></default>
  </cond></steps></task>"""


@pytest.mark.parametrize(("n", "prompt"), [(11, "big"), (3, "small")])
def test_the_first_case_that_holds_runs(make_evaluator, scripted, n, prompt):
    script = scripted()
    run(make_evaluator(COND, script=script), "route", {"n": n}).unwrap()
    assert script.prompts == [prompt]


FUNCTION = """
<template name="title_of" params="doc, style=short" returns="string"><task type="atomic"><description>d</description>
  <instructions>title {{ doc }} {{ style }}</instructions></task></template>
<task name="user" type="atomic"><description>d</description><inputs><input name="secret"/></inputs>
  <instructions>Use {{ title_of(secret, style="long") }} and {{ title_of("x") }}</instructions></task>
<task name="caller" type="sequential"><description>d</description><inputs><input name="secret"/></inputs><steps>
  <call template="title_of"><arg>secret</arg><arg name="style">literal text</arg></call></steps></task>
"""


def test_functions_called_in_a_text_are_awaited_in_order(make_evaluator, scripted):
    script = scripted({"title s3 long": "T1", "title x short": "T2", "Use": "done"})
    result = run(make_evaluator(FUNCTION, script=script), "user", {"secret": "s3"}).unwrap()
    assert script.prompts == ["title s3 long", "title x short", "Use T1 and T2"]
    assert result.usage.turns == 3


def test_a_call_takes_variables_by_name_and_literals_otherwise(make_evaluator, scripted):
    script = scripted()
    run(make_evaluator(FUNCTION, script=script), "caller", {"secret": "s3"}).unwrap()
    assert script.prompts == ["title s3 literal text"]


def test_a_function_is_evaluated_by_name(make_evaluator, scripted):
    script = scripted(default="A title")
    result = run(make_evaluator(FUNCTION, script=script), "title_of", {"doc": "d"}).unwrap()
    assert result.content == "A title"
    error = run(make_evaluator(FUNCTION, script=script), "title_of", {"dok": "d"})
    assert isinstance(error, TaskError)


DEFAULT = """
<task name="d" type="sequential"><description>d</description>
  <inputs><input name="first" required="true"/></inputs>
  <steps><task type="atomic"><description>d</description>
    <inputs><input name="x" type="{type}" default="{default}"/></inputs>
    <instructions>{{{{ first }}}} {{{{ x | tojson }}}}</instructions></task></steps></task>"""


@pytest.mark.parametrize(
    ("type_name", "default", "shown"),
    [
        ("integer", "3", "3"),
        ("boolean", "true", "true"),
        ("string[]", "[&quot;a&quot;]", '["a"]'),
        ("string", "{{ 'x' }}", '"x"'),
        ("any", "3", '"3"'),
        ("integer", "{{ first + 1 }}", "2"),
        ("number", "{{ first }}.5", "1.5"),
    ],
)
def test_a_default_is_rendered_and_read_as_the_declared_type(
    make_evaluator, scripted, type_name, default, shown
):
    script = scripted()
    run(
        make_evaluator(DEFAULT.format(type=type_name, default=default), script=script),
        "d",
        {"first": 1},
    ).unwrap()
    assert script.prompts == [f"1 {shown}"]


def test_a_default_that_does_not_fit_is_located_in_the_template(make_evaluator):
    error = run(
        make_evaluator(DEFAULT.format(type="integer", default="{{ 'three' }}")), "d", {"first": 1}
    )
    assert isinstance(error, TaskError)
    (found,) = error.violations
    assert (found.code, found.span.line) == ("wrong-type", 5)


def test_markup_in_a_given_value_is_data_for_a_default(make_evaluator, scripted):
    script = scripted()
    xml = DEFAULT.format(type="string", default="{{ first }}")
    run(make_evaluator(xml, script=script), "d", {"first": "{{ nope }}"}).unwrap()
    assert script.prompts == ['{{ nope }} "{{ nope }}"']


NESTED = """
<task name="both" type="atomic"><description>d</description><inputs>
  <input name="a"><task type="atomic"><description>find a</description></task></input>
  <input name="b"><task type="atomic"><description>find b</description></task></input>
</inputs><instructions>{{ a }} and {{ b }}</instructions></task>"""


def test_nested_input_tasks_run_in_parallel_before_the_task(make_evaluator):
    both = asyncio.Barrier(2)

    class Waiting:
        name = "simulated"

        async def complete(self, request, *, on_text=None):
            from evaluator import ModelResponse

            text = request.messages[-1].content
            if text.startswith("find"):
                await asyncio.wait_for(both.wait(), 200)
                return ModelResponse(text[-1].upper(), "stop")
            return ModelResponse(text, "stop")

        async def aclose(self):
            pass

    result = run(make_evaluator(NESTED, backend=Waiting()), "both").unwrap()
    assert result.content == "A and B"


def test_a_nested_input_task_that_fails_names_the_input(make_evaluator, scripted):
    error = run(make_evaluator(NESTED, script=scripted({"find b": ""})), "both")
    assert isinstance(error, TaskError)
    assert error.details["failed_input"] == "b"
