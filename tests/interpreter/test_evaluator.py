"""The Evaluator from an embedding program: requests, sync and async, batches, context, records."""

from __future__ import annotations

import asyncio
import json

import pytest

from evaluator import (
    GlobalIndex,
    HandlerConfig,
    InMemoryIndex,
    ReplayBackend,
    SimulatedBackend,
    TaskError,
    TaskFailed,
    TaskStore,
    ToolGrant,
    UsageError,
    tool,
)

TASKS = """
<task name="translate" type="atomic"><description>Translate a text into another language</description>
  <inputs><input name="text" required="true"/><input name="language" required="true"/></inputs>
  <instructions>{{ text }} in {{ language }}</instructions></task>
<task name="mood" type="atomic"><description>Say whether a review is positive or negative</description>
  <inputs><input name="review" required="true"/></inputs><instructions>review {{ review }}</instructions></task>
"""


def test_words_are_matched_to_a_template(make_evaluator, scripted):
    script = scripted(default="positive")
    evaluator = make_evaluator(TASKS, script=script)
    outcome = asyncio.run(
        evaluator.evaluate("is this review positive or negative?", {"review": "good"})
    )
    assert outcome.unwrap().notes["template"] == "mood"
    assert script.prompts == ["review good"]


def test_words_that_fit_nothing_are_an_error_that_names_the_nearest(make_evaluator, scripted):
    script = scripted()
    error = asyncio.run(make_evaluator(TASKS, script=script).evaluate("reboot the mail server"))
    assert isinstance(error, TaskError)
    assert error.reason == "no_matching_template"
    assert script.seen == []


def test_a_refusal_says_that_a_request_seems_to_be_in_another_language(make_evaluator, scripted):
    evaluator = make_evaluator(TASKS, script=scripted())
    for words in ("Übersetze diesen Brief auf Polnisch", "翻訳してください この手紙"):
        error = asyncio.run(evaluator.evaluate(words))
        assert "another language" in error.message
    assert "another language" not in asyncio.run(evaluator.evaluate("reboot the server")).message


def test_a_composite_that_fits_better_is_named_in_the_notes_and_in_a_replay(
    make_evaluator, scripted
):
    composite = """<task name="proofread" type="sequential">
      <description>Find mistakes: say whether a review is fair</description>
      <steps><task type="atomic"><description>d</description></task></steps></task>"""
    evaluator = make_evaluator(TASKS + composite, script=scripted(default="positive"))
    inputs = {"review": "good"}
    result = evaluator.evaluate_sync("say whether this review is positive", inputs).unwrap()
    assert result.notes["warnings"] == []
    words = "say whether this positive or negative review is fair: find mistakes"
    result = evaluator.evaluate_sync(words, inputs).unwrap()
    assert result.notes["template"] == "mood"
    assert any("'proofread' has words" in warning for warning in result.notes["warnings"])
    replay = evaluator.replay_sync(result.task_id)
    assert replay.outcome.notes["warnings"] == result.notes["warnings"]


def test_missing_inputs_are_extracted_by_the_model_as_a_recorded_step(
    make_evaluator, scripted, tmp_path
):
    script = scripted({"<request>": '{"text": "Good day", "language": "French"}'}, "Bonjour")
    evaluator = make_evaluator(TASKS, script=script)
    result = asyncio.run(
        evaluator.evaluate('translate the text "Good day" into the language French')
    ).unwrap()
    assert (result.content, script.prompts[-1]) == ("Bonjour", "Good day in French")
    paths = [s.start.path for s in TaskStore(tmp_path / "tasks").read(1).steps]
    assert "bind/turn[1]" in paths


def test_without_a_model_for_it_missing_inputs_are_listed(make_evaluator, scripted):
    script = scripted()
    evaluator = make_evaluator(TASKS, script=script)
    error = asyncio.run(
        evaluator.evaluate("translate a text into another language", ask_model=False)
    )
    assert isinstance(error, TaskError)
    assert error.reason == "input_validation_failure"
    assert "text (any), language (any)" in error.message
    assert script.seen == []


def test_a_node_is_evaluated_as_it_stands(make_evaluator, scripted):
    evaluator = make_evaluator(TASKS, script=scripted(default="x"))
    node = evaluator.library.get("mood").node
    assert asyncio.run(evaluator.evaluate(node, {"review": "r"})).unwrap().content == "x"


def test_a_model_cannot_touch_its_own_record_nor_the_index(make_evaluator, tmp_path):
    xml = """<task name="tidy" type="atomic"><description>Tidy</description><tools><tool name="edit_file"/>
    <tool name="write_file"/><tool name="list_files"/><tool name="delete_file"/></tools>
    <instructions>Tidy.</instructions></task>"""
    config = HandlerConfig(
        name="own",
        backend="simulated",
        tools=tuple(
            ToolGrant(name, "allow") for name in ("edit_file", "write_file", "delete_file")
        ),
    )
    record = "tasks/active/TASK-1.md"
    (tmp_path / "notes.md").write_text("old")
    calls = [
        {"tool": "edit_file", "arguments": {"path": record, "old": "Task", "new": "Gone"}},
        {"tool": "write_file", "arguments": {"path": record, "content": "gone"}},
        {"tool": "delete_file", "arguments": {"path": record}},
        {"tool": "delete_file", "arguments": {"path": "index.db"}},
        {"tool": "list_files", "arguments": {"pattern": "**/*.md"}},
        "done",
    ]
    with GlobalIndex(tmp_path / "index.db") as memory:
        evaluator = make_evaluator(
            xml, script=calls, handler=config, memory=memory, roots=[tmp_path]
        )
        assert evaluator.evaluate_sync("tidy").unwrap().content == "done"
    recording = TaskStore(tmp_path / "tasks").read(1)
    answers = [
        step.end.output for step in recording.steps if step.start.kind == "tool" and step.end
    ]
    assert [answer.startswith("error: ") for answer in answers] == [True] * 4 + [False]
    assert "the program itself" in answers[0]
    assert answers[4] == '["notes.md"]'


@pytest.mark.parametrize(
    ("answer", "content", "reasoning"),
    [
        ("<think>\nhm\n</think>\n\nfour", "four", "hm"),
        ("<THINKING>hm</THINKING>four", "four", "hm"),
        ("◁think▷hm◁/think▷four", "four", "hm"),
        ("[THINK]hm[/THINK]four", "four", "hm"),
        ("four <think>hm</think>", "four <think>hm</think>", None),
        ("<think>never closed", "<think>never closed", None),
        (
            "<analysis>an element that was asked for</analysis>",
            "<analysis>an element that was asked for</analysis>",
            None,
        ),
    ],
)
def test_reasoning_that_a_text_begins_with_is_kept_apart(
    make_evaluator, answer, content, reasoning
):
    result = make_evaluator(TASKS, script=[answer]).evaluate_sync("mood", {"review": "r"}).unwrap()
    assert (result.content, result.notes.get("reasoning")) == (content, reasoning)


def test_reasoning_without_an_answer_is_no_answer(make_evaluator):
    error = make_evaluator(TASKS, script=["<think>hm</think>"]).evaluate_sync(
        "mood", {"review": "r"}
    )
    assert (error.type, error.message) == ("INVALID_OUTPUT", "the model returned nothing")
    assert error.notes["reasoning"] == "hm"


USES_TOOL = """<task name="leave" type="atomic"><description>Leave</description>
<tools><tool name="leave"/></tools><instructions>Leave.</instructions></task>"""


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_tool_that_leaves_ends_neither_the_program_nor_the_run(make_evaluator, error):
    @tool
    def leave() -> None:
        raise error

    script = [{"tool": "leave", "arguments": {}}, "stayed"]
    result = make_evaluator(USES_TOOL, script=script, tools=[leave]).evaluate_sync("leave").unwrap()
    assert result.content == "stayed"


@pytest.mark.parametrize("error", [SystemExit(2), asyncio.CancelledError()])
def test_an_async_tool_that_leaves_is_a_failed_tool(make_evaluator, error):
    @tool
    async def leave() -> None:
        raise error

    script = [{"tool": "leave", "arguments": {}}, "stayed"]
    result = make_evaluator(USES_TOOL, script=script, tools=[leave]).evaluate_sync("leave").unwrap()
    assert result.content == "stayed"


def test_the_sync_form_outlives_an_interruption_inside_of_it(make_evaluator):
    @tool
    async def leave() -> None:
        raise KeyboardInterrupt

    evaluator = make_evaluator(
        USES_TOOL, script=[{"tool": "leave", "arguments": {}}, "stayed"], tools=[leave]
    )
    with pytest.raises(KeyboardInterrupt):
        evaluator.evaluate_sync("leave")
    assert evaluator.evaluate_sync("leave").unwrap().content == "stayed"


def test_the_sync_form_works_inside_a_running_loop(make_evaluator):
    evaluator = make_evaluator(TASKS, script=["fine"])

    async def notebook():
        return evaluator.evaluate_sync("mood", {"review": "r"})

    assert asyncio.run(notebook()).unwrap().content == "fine"
    evaluator.close()


def test_unwrap_raises_the_error(make_evaluator):
    with pytest.raises(TaskFailed) as caught:
        make_evaluator(TASKS).evaluate_sync("mood").unwrap()
    assert caught.value.error.reason == "input_validation_failure"


def test_a_batch_gives_each_row_its_outcome_in_order(make_evaluator):
    order = []

    class Uneven(SimulatedBackend):
        async def complete(self, request, *, on_text=None):
            number = int(request.messages[-1].content.rsplit(" ", 1)[1])
            for _ in range((7 * number) % 5):
                await asyncio.sleep(0)
            order.append(number)
            return await super().complete(request)

    evaluator = make_evaluator(
        TASKS,
        backend=Uneven(script=lambda r: "bad" if r.messages[-1].content.endswith(" 3") else "ok"),
    )
    rows = [{"review": str(i)} for i in range(20)]
    rows[5] = {"wrong": 1}

    async def collect():
        return [o async for o in evaluator.evaluate_batch("mood", rows, concurrency=4)]

    outcomes = asyncio.run(collect())
    assert len(outcomes) == 20
    assert [i for i, o in enumerate(outcomes) if not o.ok] == [5]
    assert outcomes[3].content == "bad"
    assert order != sorted(order)


def test_a_batch_never_runs_more_than_its_concurrency(make_evaluator):
    running, most = 0, 0

    class Counting(SimulatedBackend):
        async def complete(self, request, *, on_text=None):
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(10):
                await asyncio.sleep(0)
            running -= 1
            return await super().complete(request)

    evaluator = make_evaluator(TASKS, backend=Counting(script=lambda r: "x"))

    async def rows():
        for i in range(30):
            yield {"review": str(i)}

    async def collect():
        return [o async for o in evaluator.evaluate_batch("mood", rows(), concurrency=3)]

    assert len(asyncio.run(collect())) == 30
    assert most == 3


def test_rows_that_fail_to_come_raise_after_the_ones_before(make_evaluator):
    evaluator = make_evaluator(TASKS, script=lambda r: "x")
    got = []

    def rows():
        yield {"review": "1"}
        raise OSError("the row file broke")

    async def collect():
        async for outcome in evaluator.evaluate_batch("mood", rows()):
            got.append(outcome)

    with pytest.raises(OSError, match="row file"):
        asyncio.run(collect())
    assert len(got) == 1


FILES = """
<task name="read" type="atomic"><description>about helium</description>
  <context_management><fresh_context>{fresh}</fresh_context></context_management>
  {paths}<instructions>go</instructions></task>"""


def test_explicit_files_are_included_and_one_that_cannot_be_read_is_a_warning(
    make_evaluator, scripted, tmp_path
):
    (tmp_path / "a.md").write_text("alpha")
    (tmp_path / "out.md").symlink_to("/etc/hostname")
    paths = '<file_paths source="literal"><path>a.md</path><path>none.md</path><path>out.md</path><path>../x</path></file_paths>'
    script = scripted()
    result = asyncio.run(
        make_evaluator(FILES.format(fresh="disabled", paths=paths), script=script).evaluate("read")
    )
    assert script.prompts == ['<context source="file:a.md">\nalpha\n</context>\n\ngo']
    assert len(result.unwrap().notes["warnings"]) == 3
    assert result.notes["context"] == ["file:a.md"]


def test_a_glob_names_files_in_order(make_evaluator, scripted, tmp_path):
    for name in ("b.md", "a.md", "c.txt"):
        (tmp_path / name).write_text(name)
    paths = '<file_paths source="glob"><path>*.md</path></file_paths>'
    script = scripted()
    asyncio.run(
        make_evaluator(FILES.format(fresh="disabled", paths=paths), script=script).evaluate("read")
    ).unwrap()
    assert "file:a.md" in script.prompts[0]
    assert "c.txt" not in script.prompts[0]


def test_fresh_context_reads_the_paths_that_memory_finds(make_evaluator, scripted, tmp_path):
    (tmp_path / "he.md").write_text("Helium boils at 4.2 K.")
    memory = InMemoryIndex({"he.md": "facts about helium", "fe.md": "facts about iron"})
    script = scripted()
    evaluator = make_evaluator(
        FILES.format(fresh="enabled", paths=""), script=script, memory=memory
    )
    asyncio.run(evaluator.evaluate("read")).unwrap()
    assert "Helium boils" in script.prompts[0]
    assert "fe.md" not in script.prompts[0]


def test_the_task_file_is_begun_before_the_call_and_closed_after(make_evaluator, tmp_path):
    store = TaskStore(tmp_path / "tasks")
    during = []

    def script(request):
        during.append([(t.id, t.status) for t in store.list()])
        return "fine"

    result = asyncio.run(
        make_evaluator(TASKS, script=script).evaluate("mood", {"review": "r"})
    ).unwrap()
    assert during == [[(1, "running")]]
    recording = store.read(result.task_id)
    assert recording.status == "completed"
    assert (tmp_path / "tasks" / "done" / "TASK-1.md").is_file()
    assert [s.start.kind for s in recording.steps] == ["resolve", "model"]
    assert recording.summary.result["content"] == "fine"


def test_a_recorded_run_is_replayed_without_a_call(make_evaluator, tmp_path):
    recorder = make_evaluator(TASKS, script=["first"])
    asyncio.run(recorder.evaluate("mood", {"review": "r"})).unwrap()
    replay = ReplayBackend(TaskStore(tmp_path / "tasks").read(1))
    again = asyncio.run(
        make_evaluator(TASKS, backend=replay).evaluate("mood", {"review": "r"})
    ).unwrap()
    assert again.content == "first"
    other = asyncio.run(
        make_evaluator(TASKS, backend=replay).evaluate("mood", {"review": "changed"})
    )
    assert isinstance(other, TaskError)
    assert "record holds no answer" in other.message


def test_nothing_is_recorded_where_that_was_asked_for(make_evaluator, tmp_path):
    result = asyncio.run(
        make_evaluator(TASKS, tasks_dir=None, script=["x"]).evaluate("mood", {"review": "r"})
    )
    assert result.unwrap().task_id is None
    assert not (tmp_path / "tasks").exists()


def test_outcomes_are_json(make_evaluator):
    evaluator = make_evaluator(TASKS, script=["x"])
    for outcome in (
        asyncio.run(evaluator.evaluate("mood", {"review": "r"})),
        asyncio.run(evaluator.evaluate("mood")),
    ):
        assert json.loads(json.dumps(outcome.to_dict()))["status"] == outcome.status


def test_rendering_makes_no_call_and_runs_no_script(make_evaluator, scripted, tmp_path):
    xml = (
        TASKS
        + """<task name="both" type="sequential"><description>d</description><steps>
      <task name="s" type="script"><description>d</description><command>touch ran</command></task>
      <task name="t" type="atomic"><description>d</description><instructions>after {{ steps.s.content }}</instructions></task>
    </steps></task>"""
    )
    script = scripted()
    evaluator = make_evaluator(xml, script=script)
    outcome, seen = evaluator.render("both")
    assert outcome.ok
    assert seen[0].messages[-1].content == "after [not run]"
    assert script.seen == []
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "tasks").exists()


def test_a_misspelt_name_runs_nothing(make_evaluator, scripted):
    script = scripted()
    error = asyncio.run(make_evaluator(TASKS, script=script).evaluate("transalte", {"text": "x"}))
    assert isinstance(error, TaskError)
    assert error.reason == "no_matching_template"
    assert error.message.endswith("; did you mean `translate`?")
    assert script.seen == []


def test_a_simulated_stand_in_is_warned_of_in_the_result(tmp_path, monkeypatch, caplog):
    from evaluator import Evaluator
    from evaluator.handler import model_choice

    monkeypatch.setattr(model_choice, "LOCAL_SERVERS", ())
    evaluator = Evaluator(tasks_dir=tmp_path)
    result = evaluator.evaluate_sync("sentiment", {"text": "x"}).unwrap()
    assert any("simulated" in warning for warning in result.notes["warnings"])
    assert "simulated" in caplog.text


@pytest.mark.parametrize(
    "schema", ['{"type": "sting"}', '{"type": "object", "required": "a"}', "no_such_module:Thing"]
)
def test_a_schema_that_cannot_be_used_costs_no_call(make_evaluator, scripted, schema):
    xml = f"""<task name="t" type="atomic"><description>d</description>
      <output_format type="json" schema='{schema}'/></task>"""
    script = scripted()
    error = asyncio.run(make_evaluator(xml, script=script).evaluate("t"))
    assert isinstance(error, TaskError)
    assert (error.type, error.retryable) == ("VALIDATION_ERROR", False)
    assert [v.code for v in error.violations] == ["bad-schema"]
    assert script.seen == []


@pytest.mark.parametrize(
    "wrong",
    [{"model": 3}, {"tools": [print]}, {"max_depth": -1}, {"backend": "x"}],
    ids=lambda w: next(iter(w)),
)
def test_wrong_arguments_of_an_evaluator_are_usage_errors(wrong):
    from evaluator import Evaluator, UsageError

    with pytest.raises(UsageError, match=next(iter(wrong))):
        Evaluator(tasks_dir=None, **wrong)


def test_a_folder_is_a_library_and_an_evaluator_closes_itself(tmp_path):
    from evaluator import Evaluator

    (tmp_path / "t.xml").write_text(
        '<task name="mine" type="atomic"><description>d</description></task>'
    )
    with Evaluator(tmp_path, "offline", tasks_dir=None) as evaluator:
        assert "mine" in evaluator.library


def test_an_evaluator_that_judges_without_success_is_warned_of(make_evaluator, scripted):
    xml = """<task name="l" type="director_evaluator_loop"><description>d</description><max_iterations>1</max_iterations>
      <director><description>direct</description></director><evaluator><description>judge</description></evaluator></task>"""
    script = scripted({"judge": '{"sucess": true}'})
    result = asyncio.run(make_evaluator(xml, script=script).evaluate("l")).unwrap()
    assert any("no true or false `success`" in warning for warning in result.notes["warnings"])


def test_a_request_in_a_script_without_spaces_is_words_and_not_a_name(make_evaluator, scripted):
    xml = '<task name="mood" type="atomic"><description>判断评论是正面还是负面</description></task>'
    outcome = asyncio.run(
        make_evaluator(xml, script=scripted(default="正面")).evaluate("判断评论是正面还是负面")
    )
    assert outcome.unwrap().content == "正面"


def test_a_required_input_with_a_default_takes_its_default(make_evaluator) -> None:
    xml = """<task name="greet" type="atomic"><description>Greet</description>
      <inputs><input name="who" type="string" required="true" default="world">whom</input></inputs>
      <instructions>Hello {{ who }}</instructions></task>"""
    evaluator = make_evaluator(xml, script=lambda request: request.messages[-1].content)
    assert asyncio.run(evaluator.evaluate("greet")).unwrap().content == "Hello world"
    assert asyncio.run(evaluator.evaluate("greet", {"who": "Ada"})).unwrap().content == "Hello Ada"


WORDS = """<task name="one"><description>First</description><inputs><input name="what"/></inputs>
<instructions>ONE {{what}}</instructions></task>
<task name="two"><description>Second</description><instructions>TWO</instructions></task>"""


@pytest.mark.parametrize(
    "words", ["two", "second second", "<task><description>d</description></task>"]
)
def test_words_for_a_template_are_words_whatever_they_look_like(make_evaluator, scripted, words):
    script = scripted({})
    evaluator = make_evaluator(WORDS, script=script)
    result = asyncio.run(evaluator.evaluate_words(words, "one", {"what": "this"})).unwrap()
    assert (result.notes["template"], script.prompts) == ("one", ["ONE this"])


def test_words_for_a_template_that_is_missing_are_an_error(make_evaluator):
    outcome = asyncio.run(make_evaluator(WORDS).evaluate_words("x y", "none"))
    assert isinstance(outcome.cause, UsageError) and "none" in outcome.message
