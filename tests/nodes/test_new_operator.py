"""An operator that only this module defines works everywhere: nothing else in the program knows its name."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path
from typing import ClassVar

import pytest

from evaluator import TaskError, TaskResult, TaskStore
from evaluator.errors.results import Outcome
from evaluator.files import shipped
from evaluator.interpreter.frame import Run
from evaluator.interpreter.operators import RUNNERS
from evaluator.interpreter.operators.outcomes import completed, failed
from evaluator.interpreter.plan import planned_steps
from evaluator.interpreter.prepared import PreparedTask
from evaluator.language.inputs import resolve_setting
from evaluator.library import TemplateLibrary, bound
from evaluator.library.calls import calls_of
from evaluator.nodes import Atomic, Call, IntSetting, Node, Repeats, Sequential, Span, Task, Text
from evaluator.nodes.declare import FIELDS, OPERATORS, Known, child, operator, setting
from evaluator.nodes.values import INTEGER, Shape
from evaluator.xml import schema, vocabulary
from evaluator.xml.build import build
from evaluator.xml.schema import validate
from evaluator.xml.source import read_source
from evaluator.xml.write import to_xml
from tests.interpreter.crashes import cut, reading


def define() -> type[Task]:
    @operator("best_of")
    class BestOf(Task):
        """Runs `candidate` several times; the longest text is the result."""

        asks_model: ClassVar[bool] = False

        attempts: IntSetting = setting("integer", default=2, element="attempts", least=1)
        candidate: Node = child(binds={"attempt": INTEGER})

        def repeats(self, given) -> Repeats:
            if isinstance(self.attempts, Text):
                return Repeats(1, None, "attempts set by a variable")
            return Repeats(self.attempts, self.attempts, f"{self.attempts} attempts")

        def result(self, known: Known) -> Shape:
            return known.result(self.candidate)

    return BestOf


async def run_best_of(run: Run, task, prepared: PreparedTask) -> Outcome:
    attempts = resolve_setting(task, "attempts", prepared.scope)
    best: TaskResult | None = None
    for attempt in range(1, attempts + 1):
        frame = prepared.inside(f"attempts[{attempt}]", prepared.scope.child({"attempt": attempt}))
        outcome = await run.services.evaluate(run, task.candidate, frame)
        if isinstance(outcome, TaskError):
            return failed(outcome, prepared, f"attempt {attempt} of {attempts}", failed_attempt=attempt)
        if best is None or len(outcome.content) > len(best.content):
            best = outcome
    assert best is not None
    return completed(run, prepared, best.content, best.parsed_content, prepared.notes(attempts=attempts))


TYPE = '<xs:enumeration value="reduce"/>'
ELEMENT = '<xs:element name="steps" type="steps"/>'


@pytest.fixture(autouse=True)
def best_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The steps to add an operator: its class, its type and elements in the schema, its runner."""
    folder = tmp_path / "schemas"
    shutil.copytree(shipped.schemas_dir(), folder)
    xsd = (folder / "task.xsd").read_text(encoding="utf-8")
    xsd = xsd.replace(TYPE, f'{TYPE}<xs:enumeration value="best_of"/>', 1)
    new = '<xs:element name="attempts" type="wholeNumber"/><xs:element name="candidate" type="role"/>'
    (folder / "task.xsd").write_text(xsd.replace(ELEMENT, ELEMENT + new, 1), encoding="utf-8")
    original = shipped.shipped
    monkeypatch.setattr(shipped, "shipped", lambda kind: folder if kind == "schemas" else original(kind))
    forget_schemas()
    cls = define()
    monkeypatch.setitem(RUNNERS, cls, run_best_of)
    yield cls
    del OPERATORS["best_of"], FIELDS[cls]
    monkeypatch.undo()
    forget_schemas()


def forget_schemas() -> None:
    for module in (schema, vocabulary):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


TEMPLATE = """<task name="slogan" type="best_of" version="1">
  <description>Find the longest slogan</description>
  <inputs><input name="product" type="string" required="true"/></inputs>
  <attempts>{attempts}</attempts>
  <candidate><task name="one" type="atomic"><description>d</description>
    <instructions>Slogan {{{{ attempt }}}} for {{{{ {name} }}}}</instructions></task></candidate>
</task>"""
GOOD = TEMPLATE.format(attempts=3, name="product")


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
    wrong = TEMPLATE.format(attempts=3, name="produkt")
    assert findings(tmp_path, wrong) == [("unused-input", 3, 11), ("undefined-variable", 6, 47)]


def test_its_names_are_bound_inside_it_only_and_a_hint_says_where(tmp_path):
    xml = GOOD.replace("Find the longest slogan", "Find {{ attempt }}")
    (found,) = library_of(tmp_path, xml).errors
    assert (found.code, found.span.line) == ("undefined-variable", 2)
    assert found.hint == "`attempt` is bound in <candidate> of a best_of task"


def test_an_undefined_variable_in_its_settings_is_found(tmp_path):
    assert ("undefined-variable", 4, 16) in findings(tmp_path, TEMPLATE.format(attempts="{{ n }}", name="product"))


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("<attempts>3</attempts>", "<attempts>0</attempts>", "invalid-value"),
        ("<attempts>3</attempts>", "<attempts>many</attempts>", "invalid-value"),
        ("<attempts>3</attempts>", "<attempts>3</attempts><attempts>4</attempts>", "duplicate-element"),
        ("<attempts>3</attempts>", "<steps/>", "misplaced-element"),
        ('type="best_of"', 'type="best_of" concurrency="2"', "misplaced-attribute"),
        ('type="best_of"', 'type="reduce"', "misplaced-element"),
    ],
)
def test_what_does_not_belong_to_it_is_an_error(tmp_path, old, new, code):
    assert code in [found[0] for found in findings(tmp_path, GOOD.replace(old, new))]


def test_a_missing_child_is_an_error_and_a_ref_supplies_it(tmp_path):
    start, end = GOOD.index("<candidate>"), GOOD.index("</candidate>") + len("</candidate>")
    assert [found[0] for found in findings(tmp_path, GOOD[:start] + GOOD[end:])] == ["missing-element"]
    both = f'<library>{GOOD}<task name="more" type="best_of" ref="slogan"><attempts>5</attempts></task></library>'
    library = library_of(tmp_path, both)
    assert library.diagnostics == ()
    more = library.get("more").node
    assert (more.attempts, more.candidate.name) == (5, "one")


def test_its_calls_are_bounded_and_its_steps_planned(tmp_path):
    library = library_of(tmp_path, GOOD)
    node = library.get("slogan").node
    found = bound(node, library)
    assert (found.min_calls, found.max_calls) == (3, 3)
    assert found.explanation.split("\n") == ["best_of slogan, 3 attempts: 3 calls", "  atomic one: 1 call"]
    assert planned_steps(node, library, {}) == 6
    by_variable = library_of(tmp_path, TEMPLATE.format(attempts="{{ product | length }}", name="product"))
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
    assert planned_steps(dataclasses.replace(node, drop=one), TemplateLibrary(), {}) == 2 * (5 + 1 + 2)
    assert calls_of(node)["again"][0] == "sometimes"
    assert calls_of(dataclasses.replace(two, steps=(one, call)))["again"][0] == "always"


def test_it_is_rendered_without_a_call(make_evaluator):
    _, previews = make_evaluator(GOOD).render("slogan", {"product": "tea"})
    assert [p.messages[-1].content for p in previews] == [f"Slogan {n} for tea" for n in (1, 2, 3)]


def test_it_is_evaluated_recorded_and_resumed(make_evaluator, scripted, tmp_path):
    script = scripted({"Slogan 2": "the longest one", "Slogan": "short"})
    evaluator = make_evaluator(GOOD, script=script)
    whole = asyncio.run(evaluator.evaluate("slogan", {"product": "tea"})).unwrap()
    assert (whole.content, whole.notes["attempts"], whole.usage.turns) == ("the longest one", 3, 3)
    assert [s.start.path for s in reading(tmp_path).steps if s.start.kind == "model"] == [
        f"attempts[{number}]/turn[1]" for number in (1, 2, 3)
    ]
    script.seen.clear()
    cut(tmp_path, "attempts[3]/turn[1]")
    assert TaskStore(tmp_path / "tasks").read(1).status == "interrupted"
    again = asyncio.run(evaluator.resume(1)).unwrap()
    assert script.prompts == ["Slogan 3 for tea"]
    assert (again.content, again.usage) == (whole.content, whole.usage)


def test_a_failure_inside_it_says_where(make_evaluator, scripted):
    error = asyncio.run(make_evaluator(GOOD, script=scripted({"Slogan 2": ""})).evaluate("slogan", {"product": "tea"}))
    assert isinstance(error, TaskError)
    assert error.message.startswith("attempt 2 of 3 failed: ")
    assert (error.details["failed_attempt"], error.usage.turns) == (2, 2)


def test_it_is_written_as_xml_and_read_back(tmp_path):
    node = library_of(tmp_path, GOOD).get("slogan").node
    source = read_source(to_xml(node))
    assert validate(source, "task") == []
    (again,) = build(source).templates
    assert (type(again), again.attempts) == (type(node), 3)
    assert to_xml(again) == to_xml(node)


def test_an_operator_without_a_runner_cannot_run(make_evaluator, best_of, monkeypatch):
    monkeypatch.delitem(RUNNERS, best_of)
    error = asyncio.run(make_evaluator(GOOD).evaluate("slogan", {"product": "tea"}))
    assert isinstance(error, TaskError)
    assert error.reason == "unexpected_error"
