"""What does not depend on a row is decided once; what does, and what may change, is decided for each row."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, HandlerConfig, TaskError, run_batch
from evaluator.interpreter import binding

REDUCE = """
<task name="add" type="reduce"><description>add</description>
  <inputs over="items"><input name="items" type="string[]" required="true"/></inputs>
  <initial_value>0</initial_value>
  <inner_task><task name="read" type="atomic"><description>d</description>
    <instructions>read {{ current_input }}</instructions></task></inner_task>
  <reduction_task><task name="join" type="atomic"><description>d</description>
    <instructions>join {{ accumulator }} and {{ current_result }}</instructions></task></reduction_task>
</task>"""
ASK = """
<task name="ask" type="atomic"><description>d</description>
  <inputs><input name="question" required="true"/><input name="most" type="integer" default="50"/></inputs>
  <handler max_output_tokens="{{ most }}"/><instructions>{{ question }}</instructions></task>"""
PLAIN = """
<task name="plain" type="atomic"><description>d</description>
  <inputs><input name="question" required="true"/></inputs>
  <instructions>{{ question }}</instructions></task>"""


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Counter[str | None]:
    """How often the context policy of each task was decided, by the name of the task."""
    counts: Counter[str | None] = Counter()
    policy_of = binding.policy_of

    def count(task: Any, **options: Any) -> Any:
        counts[task.name] += 1
        return policy_of(task, **options)

    monkeypatch.setattr(binding, "policy_of", count)
    return counts


def evaluate_all(evaluator: Evaluator, name: Any, rows: list[Any], **options: Any) -> list[Any]:
    async def collect() -> list[Any]:
        return [r async for r in evaluator.evaluate_batch(name, rows, **options)]

    return asyncio.run(collect())


def test_a_reduction_prepares_its_inner_tasks_once(make_evaluator: Any, decided: Any) -> None:
    items = [str(number) for number in range(20)]
    make_evaluator(REDUCE).evaluate_sync("add", {"items": items}).unwrap()
    assert decided == {"add": 1, "read": 1, "join": 1}


def test_single_runs_rows_and_batches_prepare_a_template_once(
    make_evaluator: Any, decided: Any, tmp_path: Path
) -> None:
    evaluator = make_evaluator(PLAIN)
    rows = [{"question": f"{number}?"} for number in range(6)]
    for row in rows:
        evaluator.evaluate_sync("plain", row).unwrap()
    assert decided == {"plain": 1}
    # Rows and batches have Evaluators with task files of their own.
    assert all(outcome.ok for outcome in evaluate_all(evaluator, "plain", rows))
    assert decided == {"plain": 2}
    asyncio.run(run_batch("plain", rows, evaluator=evaluator, output=tmp_path / "b", display=None))
    assert decided == {"plain": 3}


def test_a_node_is_prepared_once_for_the_rows_of_evaluate_batch(
    make_evaluator: Any, decided: Any
) -> None:
    evaluator = make_evaluator(PLAIN)
    node = evaluator.library.get("plain").node
    assert all(outcome.ok for outcome in evaluate_all(evaluator, node, [{"question": "?"}] * 5))
    assert decided == {"plain": 1}
    # Nobody knows whether this node is ever seen again: nothing of it stays in the Evaluator.
    evaluator.evaluate_sync(node, {"question": "?"}).unwrap()
    assert decided == {"plain": 2}


def test_values_settings_and_models_are_those_of_each_row(make_evaluator: Any) -> None:
    seen: list[tuple[str, str, int | None]] = []

    def answer(request: Any) -> str:
        seen.append((request.model, request.messages[-1].content, request.max_output_tokens))
        return "yes"

    evaluator = make_evaluator(ASK, script=answer)
    rows = [{"question": "a", "most": 10}, {"question": "b", "most": 20}, {"question": "c"}]
    evaluate_all(evaluator, "ask", rows, concurrency=1)
    evaluator.evaluate_sync("ask", rows[0], model="other").unwrap()
    models, questions, limits = zip(*seen, strict=True)
    assert (questions, limits) == (("a", "b", "c", "a"), (10, 20, 50, 10))
    assert models[0] == models[2] != models[3] == "other"


def test_a_few_shot_example_that_reads_the_row_is_that_of_each_row(make_evaluator: Any) -> None:
    xml = """
    <task name="shots" type="atomic"><description>d</description>
      <inputs><input name="question" required="true"/><input name="style" required="true"/></inputs>
      <instructions>{{ question }} in {{ style }}</instructions>
      <examples shots="true">
        <example><input name="question">fixed?</input><input name="style">full</input><output>1</output></example>
        <example><input name="question">open?</input><output>2</output></example>
      </examples></task>"""
    seen: list[list[str]] = []

    def answer(request: Any) -> str:
        seen.append([m.content for m in request.messages if m.role == "user"])
        return "yes"

    rows = [{"question": "?", "style": style} for style in ("short", "verse")]
    evaluate_all(make_evaluator(xml, script=answer), "shots", rows, concurrency=1)
    assert seen == [
        ["fixed? in full", f"open? in {style}", f"? in {style}"] for style in ("short", "verse")
    ]


def test_a_setting_that_does_not_fit_fails_its_row_only(make_evaluator: Any) -> None:
    rows = [{"question": "a", "most": 0}, {"question": "b", "most": 5}]
    first, second = evaluate_all(make_evaluator(ASK, script=lambda _: "yes"), "ask", rows)
    assert isinstance(first, TaskError)
    assert "max_output_tokens" in first.message
    assert second.ok


def test_the_profile_of_a_run_is_not_that_of_another(make_evaluator: Any) -> None:
    seen: list[float | None] = []

    def answer(request: Any) -> str:
        seen.append(request.temperature)
        return "yes"

    profiles = {
        name: HandlerConfig(name=name, temperature=temperature)
        for name, temperature in (("cold", 0.0), ("warm", 1.0))
    }
    evaluator = make_evaluator(PLAIN, script=answer, handler=profiles["cold"], profiles=profiles)
    for handler in ("warm", "cold", None, "warm"):
        evaluator.evaluate_sync("plain", {"question": "?"}, handler=handler).unwrap()
    assert seen == [1.0, 0.0, 0.0, 1.0]


def test_an_edited_schema_file_is_read_again(make_evaluator: Any, tmp_path: Path) -> None:
    schema = tmp_path / "templates" / "s.json"
    schema.parent.mkdir()
    schema.write_text('{"type": "object", "required": ["a"]}')
    xml = """<task name="typed" type="atomic"><description>d</description>
      <output_format type="json" schema="s.json"/></task>"""
    evaluator = make_evaluator(xml, script=lambda _: '{"a": 1}')
    evaluator.evaluate_sync("typed").unwrap()
    schema.write_text('{"type": "object", "required": ["b"]}')
    failed = evaluator.evaluate_sync("typed")
    assert failed.type == "INVALID_OUTPUT"
    assert "'b'" in failed.message


def test_a_template_that_ran_with_full_authority_is_still_refused_as_a_subtask(
    make_evaluator: Any, scripted: Any, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("the secret")
    xml = """
    <task name="reads" type="atomic"><description>read the notes</description>
      <file_paths><path>secret.txt</path></file_paths></task>
    <task name="parent" type="atomic"><description>d</description>
      <tools><tool name="subtask"/></tools></task>"""
    asked = {"type": "atomic", "description": "read", "inputs": {}, "hints": {"template": "reads"}}
    answers: list[str] = []

    def answer(request: Any) -> Any:
        if request.messages[-1].role == "tool":
            answers.append(request.messages[-1].content)
            return "done"
        if request.tools:
            return [{"tool": "subtask", "arguments": asked}]
        return "seen" if "the secret" in request.messages[-1].content else "not seen"

    evaluator = make_evaluator(xml, script=answer)
    assert evaluator.evaluate_sync("reads").unwrap().content == "seen"  # the user may run it
    evaluator.evaluate_sync("parent").unwrap()
    assert "may not read the file 'secret.txt'" in answers[0]
    assert evaluator.evaluate_sync("reads").unwrap().content == "seen"


@pytest.mark.parametrize("count", [100, 200])
def test_the_prompts_of_a_reduction_are_bounded_and_its_file_is_linear(
    make_evaluator: Any, tmp_path: Path, count: int
) -> None:
    sizes: list[int] = []

    def answer(request: Any) -> str:
        content = request.messages[-1].content
        sizes.append(len(content))
        return "total" if "join" in content else "word " * 60

    evaluator = make_evaluator(REDUCE, script=answer)
    evaluator.evaluate_sync("add", {"items": ["x"] * count}).unwrap()
    assert max(sizes) < 10_000
    # Notes of the item before are there, so the bound is not met by passing nothing on.
    assert max(sizes) > 8_000
    (file,) = (tmp_path / "tasks" / "done").glob("*.md")
    assert file.stat().st_size < count * 12_500


def test_tasks_that_are_made_for_one_call_are_not_kept(make_evaluator: Any) -> None:
    xml = """
    <task name="helper" type="atomic"><description>d</description></task>
    <task name="parent" type="atomic"><description>d</description>
      <tools><tool name="helper"/><tool name="subtask"/></tools></task>"""
    asked = {"type": "atomic", "description": "another thing", "inputs": {}}

    def answer(request: Any) -> Any:
        if request.tools and request.messages[-1].role == "user":
            return [{"tool": "helper", "arguments": {}}, {"tool": "subtask", "arguments": asked}]
        return "done"

    evaluator = make_evaluator(xml, script=answer)
    kept: list[int] = []
    for _ in range(3):
        evaluator.evaluate_sync("parent").unwrap()
        kept.append(sum(len(one.prepared) for one in evaluator.services.domains.values()))
    assert kept == [1, 1, 1]
