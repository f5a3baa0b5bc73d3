"""An operator that only this module defines works everywhere: nothing else in the program knows its name.

Its type, elements and names are unlikely ones, so that no operator of the program has the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import shutil
from pathlib import Path
from typing import ClassVar

import pytest

from evaluator import Outcome, Span, TaskError, TaskResult, TaskStore, TemplateLibrary
from evaluator.cli import main
from evaluator.errors.results import CONDITION_MET
from evaluator.files import locations
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.calls import functions_in_text
from evaluator.interpreter.frame import Run
from evaluator.interpreter.notes import REQUEST
from evaluator.interpreter.operators import RUNNERS
from evaluator.interpreter.operators.outcomes import completed, failed
from evaluator.interpreter.plan import planned_steps
from evaluator.language.inputs import resolve_setting
from evaluator.language.sandbox import evaluate_expression
from evaluator.library import bound
from evaluator.library.calls import calls_of
from evaluator.nodes import (
    Atomic,
    Call,
    Expression,
    IntSetting,
    Node,
    Repeats,
    Sequential,
    Task,
    Text,
)
from evaluator.nodes.declare import FIELDS, OPERATORS, Known, child, condition, operator, setting
from evaluator.nodes.values import INTEGER, STRING, Shape
from evaluator.xml import schema, vocabulary
from evaluator.xml.build import build
from evaluator.xml.generated import read_generated_task
from evaluator.xml.schema import validate
from evaluator.xml.source import read_source
from evaluator.xml.write import to_xml
from tests.interpreter.crashes import cut, reading


def define() -> type[Task]:
    @operator("best_draft")
    class BestDraft(Task):
        """Runs `draft` until the longest text so far is good enough; that text is the result."""

        asks_model: ClassVar[bool] = False

        most_drafts: IntSetting = setting("integer", default=2, element="most_drafts", least=1)
        draft: Node = child(binds={"draft_number": INTEGER})
        good_enough: Expression = condition(
            binds={"draft_number": INTEGER, "longest_draft": STRING}
        )

        def repeats(self, given) -> Repeats:
            if isinstance(self.most_drafts, Text):
                return Repeats(1, None, "drafts set by a variable")
            return Repeats(1, self.most_drafts, f"1 to {self.most_drafts} drafts")

        def result(self, known: Known) -> Shape:
            return known.result(self.draft)

    return BestDraft


async def run_best_draft(run: Run, task, bound: BoundTask) -> Outcome:
    most = resolve_setting(task, "most_drafts", bound.scope)
    best: TaskResult | None = None
    reason = "most_drafts"
    for number in range(1, most + 1):
        scope = bound.scope.child({"draft_number": number})
        outcome = await run.services.evaluate(
            run, task.draft, bound.inside(f"drafts[{number}]", scope)
        )
        if isinstance(outcome, TaskError):
            return failed(outcome, bound, f"draft {number} of {most}", failed_draft=number)
        bound.use(outcome)
        if best is None or len(outcome.content) > len(best.content):
            best = outcome
        functions = functions_in_text(run, bound.frame, f"drafts[{number}]/good_enough")
        seen = scope.child({"longest_draft": best.content})
        if await evaluate_expression(task.good_enough, seen, functions=functions):
            reason = CONDITION_MET
            break
    assert best is not None
    notes = bound.notes(drafts=number, termination_reason=reason)
    return completed(run, bound, best, notes)


TYPE = '<xs:enumeration value="reduce"/>'
ELEMENT = '<xs:element name="steps" type="steps">'


@pytest.fixture(autouse=True)
def best_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The steps to add an operator: its class, its type and elements in the schema, its runner."""
    folder = tmp_path / "schemas"
    shutil.copytree(locations.schemas_dir(), folder)
    xsd = (folder / "task.xsd").read_text(encoding="utf-8")
    xsd = xsd.replace(TYPE, f'{TYPE}<xs:enumeration value="best_draft"/>', 1)
    new = (
        '<xs:element name="most_drafts" type="wholeNumber"/><xs:element name="draft" type="role"/>'
        '<xs:element name="good_enough" type="condition"/>'
    )
    (folder / "task.xsd").write_text(xsd.replace(ELEMENT, new + ELEMENT, 1), encoding="utf-8")
    original = locations.shipped
    monkeypatch.setattr(
        locations, "shipped", lambda kind: folder if kind == "schemas" else original(kind)
    )
    forget_schemas()
    cls = define()
    monkeypatch.setitem(RUNNERS, cls, run_best_draft)
    yield cls
    del OPERATORS["best_draft"], FIELDS[cls]
    monkeypatch.undo()
    forget_schemas()


def forget_schemas() -> None:
    for module in (schema, vocabulary):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


TEMPLATE = """<task name="slogan" type="best_draft" version="1">
  <description>Find the longest slogan</description>
  <inputs><input name="product" type="string" required="true"/></inputs>
  <most_drafts>{most}</most_drafts>
  <draft><task name="one" type="atomic"><description>d</description>
    <instructions>Slogan {{{{ draft_number }}}} for {{{{ {name} }}}}</instructions></task></draft>
  <good_enough>longest_draft | length > 500</good_enough>
</task>"""
GOOD = TEMPLATE.format(most=3, name="product")


def without(element: str) -> str:
    return re.sub(rf"<{element}>.*</{element}>", "", GOOD, flags=re.DOTALL)


def library_of(tmp_path: Path, xml: str) -> TemplateLibrary:
    folder = tmp_path / "library"
    folder.mkdir(exist_ok=True)
    (folder / "t.xml").write_text(xml, encoding="utf-8")
    return TemplateLibrary.load(folder, shipped=False)


def findings(tmp_path: Path, xml: str) -> list[tuple[str, int, int]]:
    return [(d.code, d.span.line, d.span.column) for d in library_of(tmp_path, xml).diagnostics]


def test_it_loads_without_findings(tmp_path):
    assert findings(tmp_path, GOOD) == []


def test_an_undefined_variable_inside_it_is_found_at_its_place(tmp_path):
    wrong = TEMPLATE.format(most=3, name="produkt")
    assert findings(tmp_path, wrong) == [("undefined-variable", 6, 52)]


def test_its_names_are_bound_inside_it_only_and_a_hint_says_where(tmp_path):
    xml = GOOD.replace("Find the longest slogan", "Find {{ draft_number }}")
    (found,) = library_of(tmp_path, xml).errors
    assert (found.code, found.span.line) == ("undefined-variable", 2)
    assert found.hint == "`draft_number` is bound in <draft>, <good_enough> of a best_draft task"


def test_an_undefined_variable_in_its_settings_is_found(tmp_path):
    assert ("undefined-variable", 4, 19) in findings(
        tmp_path, TEMPLATE.format(most="{{ n }}", name="product")
    )


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("<most_drafts>3</most_drafts>", "<most_drafts>0</most_drafts>", "invalid-value"),
        ("<most_drafts>3</most_drafts>", "<most_drafts>many</most_drafts>", "invalid-value"),
        (
            "<most_drafts>3</most_drafts>",
            "<most_drafts>3</most_drafts><most_drafts>4</most_drafts>",
            "duplicate-element",
        ),
        ("<most_drafts>3</most_drafts>", "<steps/>", "misplaced-element"),
        ('type="best_draft"', 'type="best_draft" concurrency="2"', "misplaced-attribute"),
        ('type="best_draft"', 'type="reduce"', "misplaced-element"),
    ],
)
def test_what_does_not_belong_to_it_is_an_error(tmp_path, old, new, code):
    assert code in [found[0] for found in findings(tmp_path, GOOD.replace(old, new))]


@pytest.mark.parametrize("element", ["draft", "good_enough"])
def test_a_required_element_that_is_missing_is_an_error(tmp_path, element):
    (found,) = library_of(tmp_path, without(element)).errors
    assert found.code == "missing-element"
    assert f"<{element}>" in found.message


def test_a_ref_supplies_what_is_missing(tmp_path):
    both = f'<library>{GOOD}<task name="more" type="best_draft" ref="slogan"><most_drafts>5</most_drafts></task></library>'
    library = library_of(tmp_path, both)
    assert library.diagnostics == ()
    more = library.get("more").node
    assert (more.most_drafts, more.draft.name) == (5, "one")
    assert more.good_enough == library.get("slogan").node.good_enough


def test_a_ref_to_nothing_is_the_only_error_and_the_task_is_written_as_it_was_read(tmp_path):
    more = '<task name="more" type="best_draft" ref="nobody"><description>d</description></task>'
    assert [found[0] for found in findings(tmp_path, more)] == ["unknown-ref"]
    (node,) = build(read_source(more)).templates
    assert "good_enough" not in to_xml(node)


def test_its_calls_are_bounded_and_its_steps_planned(tmp_path):
    library = library_of(tmp_path, GOOD)
    node = library.get("slogan").node
    found = bound(node, library)
    assert (found.min_calls, found.max_calls) == (1, 3)
    assert found.explanation.split("\n") == [
        "best_draft slogan, 1 to 3 drafts: 1 to 3 calls",
        "  atomic one: 1 call",
    ]
    assert planned_steps(node, library, {}) == 6
    by_variable = library_of(
        tmp_path, TEMPLATE.format(most="{{ product | length }}", name="product")
    )
    assert bound(by_variable.get("slogan").node, by_variable).max_calls is None


def test_children_that_run_differently_often_are_counted_each_by_its_own_declaration():
    @operator("judged")
    class Judged(Task):
        draft: Node = child(binds={})
        judge: Node = child(binds={})
        keep: Node = child(binds={}, one_of=True)
        drop: Node = child(binds={}, one_of=True)

        def repeats_of(self, child, given) -> Repeats:
            return Repeats(2, 5) if child == "draft" else Repeats(1, 1)

    del OPERATORS["judged"]
    one = Atomic(description=Text("d", Span()))
    two = Sequential(description=Text("d", Span()), steps=(one, one))
    call = Call("again", (), None, Span())
    node = Judged(description=Text("d", Span()), draft=one, judge=one, keep=two, drop=call)
    found = bound(node, {"again": one})
    assert (found.min_calls, found.max_calls) == (2 + 1 + 1, 5 + 1 + 2)
    assert planned_steps(dataclasses.replace(node, drop=one), TemplateLibrary(), {}) == 2 * (
        5 + 1 + 2
    )
    assert calls_of(node)["again"][0] == "sometimes"
    assert calls_of(dataclasses.replace(two, steps=(one, call)))["again"][0] == "always"


def test_it_is_rendered_without_a_call(make_evaluator):
    _, previews = make_evaluator(GOOD).render("slogan", {"product": "tea"})
    assert [p.messages[-1].content for p in previews] == [f"Slogan {n} for tea" for n in (1, 2, 3)]


def test_it_is_evaluated_recorded_and_resumed(make_evaluator, scripted, tmp_path):
    script = scripted({"Slogan 2": "the best", "Slogan": "short"})
    evaluator = make_evaluator(GOOD, script=script)
    whole = asyncio.run(evaluator.evaluate("slogan", {"product": "tea"})).unwrap()
    assert (whole.content, whole.notes["drafts"], whole.usage.turns) == ("the best", 3, 3)
    assert [s.start.path for s in reading(tmp_path).steps if s.start.kind == "model"] == [
        f"drafts[{number}]/turn[1]" for number in (1, 2, 3)
    ]
    script.seen.clear()
    cut(tmp_path, "drafts[3]/turn[1]")
    assert TaskStore(tmp_path / "tasks").read(1).status == "interrupted"
    again = asyncio.run(evaluator.resume(1)).unwrap()
    assert script.prompts == ["Slogan 3 for tea"]
    assert (again.content, again.usage) == (whole.content, whole.usage)


def test_its_condition_may_call_a_function(make_evaluator, scripted):
    xml = GOOD.replace("longest_draft | length > 500", "is_good(longest_draft) == 'yes'")
    judge = """<template name="is_good" params="text">
      <task type="atomic"><description>Judge {{ text }}</description></task></template>"""
    script = scripted(
        {"Judge second": "yes", "Judge": "no", "Slogan 2": "second", "Slogan": "first"}
    )
    result = asyncio.run(
        make_evaluator(xml + judge, script=script).evaluate("slogan", {"product": "tea"})
    ).unwrap()
    assert (result.content, result.notes["drafts"]) == ("second", 2)


def test_a_later_step_sees_the_notes_that_its_child_left(make_evaluator, scripted):
    step = GOOD.replace("> 500", "> 0").replace("{{ product }}", "tea").replace('version="1"', "")
    step = re.sub("<inputs>.*</inputs>", "", step)
    xml = f"""<task name="s" type="sequential"><description>d</description><steps>{step}
      <task type="atomic"><description>last</description></task></steps></task>"""
    script = scripted(
        {"Slogan": "A slogan\nNotes for later steps: it rhymes\nData used: a.md", "last": "z"}
    )
    asyncio.run(make_evaluator(xml, script=script).evaluate("s")).unwrap()
    assert [REQUEST in prompt for prompt in script.prompts] == [True, False]
    assert "it rhymes" in script.prompts[1]
    assert "A slogan" not in script.prompts[1]


def test_a_failure_inside_it_says_where(make_evaluator, scripted):
    error = asyncio.run(
        make_evaluator(GOOD, script=scripted({"Slogan 2": ""})).evaluate(
            "slogan", {"product": "tea"}
        )
    )
    assert isinstance(error, TaskError)
    assert error.message.startswith("draft 2 of 3 failed: ")
    assert (error.details["failed_draft"], error.usage.turns) == (2, 2)


def test_it_is_written_as_xml_and_read_back(tmp_path):
    node = library_of(tmp_path, GOOD).get("slogan").node
    source = read_source(to_xml(node))
    assert validate(source, "task") == []
    (again,) = build(source).templates
    assert (type(again), again.most_drafts) == (type(node), 3)
    assert to_xml(again) == to_xml(node)


def test_an_operator_without_a_runner_cannot_run(make_evaluator, best_draft, monkeypatch):
    monkeypatch.delitem(RUNNERS, best_draft)
    error = asyncio.run(make_evaluator(GOOD).evaluate("slogan", {"product": "tea"}))
    assert isinstance(error, TaskError)
    assert error.reason == "unexpected_error"


@pytest.mark.parametrize(
    ("read", "reads_it"), [("steps.first.content", True), ("longest_draft", False)]
)
def test_a_generated_step_that_its_condition_reads_is_never_left_out(read, reads_it):
    broken = '<task name="first" type="script"><description>d</description></task>'
    later = GOOD.replace("longest_draft |", f"{read} |").replace(f"for {'{{ product }}'}", "")
    task = (
        f'<task type="sequential"><description>d</description><steps>{broken}{later}</steps></task>'
    )
    generated = read_generated_task(task)
    assert (generated.node is None) == reads_it
    assert ("left-out" in {warning.code for warning in generated.warnings}) != reads_it


@pytest.mark.parametrize(("length", "code"), [(0, 0), (1_000, 1)])
def test_strict_makes_a_condition_that_did_not_hold_an_exit_code(
    monkeypatch, tmp_path, length, code
):
    monkeypatch.chdir(tmp_path)
    library_of(tmp_path, GOOD.replace("> 500", f"> {length}"))
    command = (
        "run",
        "--template",
        "slogan",
        "--library",
        "library",
        "--input",
        "product=tea",
        "--handler",
        "offline",
    )
    for options, expected in (([], 0), (["--strict"], code)):
        with pytest.raises(SystemExit) as ended:
            main([*command, *options])
        assert (ended.value.code or 0) == expected
