"""Composite templates and functions: the steps of a failing row are shown, and edits name a step."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, SimulatedBackend
from evaluator.improve import improve, verify, write_template
from evaluator.improve.edits import EditError, read_edit
from evaluator.improve.propose import CandidateChecker, check_edits

LIBRARY = """\
<library>
  <task name="sums" type="sequential">
    <description>Answer a sum</description>
    <inputs><input name="sum" type="string" required="true">it</input></inputs>
    <steps>
      <task name="work" type="atomic">
        <description>Work it out</description>
        <instructions>Work out {{ sum }}</instructions>
      </task>
      <task name="say" type="atomic">
        <description>Say the result</description>
        <instructions>Repeat: {{ steps.work.content }}</instructions>
      </task>
    </steps>
  </task>
  <template name="half" params="sum"><task type="atomic">
    <description>Half of {{ sum }}</description>
    <instructions>Work out {{ sum }}</instructions>
  </task></template>
  <task name="listing" type="script"><description>List</description><command>ls</command></task>
</library>
"""
STEP = {
    "why": "the work is wrong",
    "edits": [
        {
            "op": "set",
            "task": "work",
            "element": "instructions",
            "text": "Work out {{ sum }} carefully",
        }
    ],
}
BODY = {
    "why": "careful",
    "edits": [{"op": "set", "element": "instructions", "text": "Work out {{ sum }} carefully"}],
}


class Sums:
    """Works out right only if it is asked to be careful; repeats what it is asked to repeat."""

    def __init__(self, proposal: Any) -> None:
        self.proposal = proposal
        self.questions: list[str] = []

    def __call__(self, request: Any) -> str:
        prompt = request.messages[-1].content
        if "<findings>" in prompt:
            self.questions.append(prompt)
            return json.dumps({"proposals": [self.proposal]})
        if prompt.startswith("Repeat: "):
            return prompt.removeprefix("Repeat: ").split("\n")[0]
        number = int(prompt.split("sum-")[1].split()[0])
        return str(number if "carefully" in prompt or number % 2 else number + 1)


def evaluator_in(folder: Path, model: Any) -> Evaluator:
    (folder / "sums.xml").write_text(LIBRARY)
    backend = SimulatedBackend(script=model)
    return Evaluator(folder, backend=backend, tasks_dir=None, notice=lambda line: None)


@pytest.mark.parametrize(("template", "proposal"), [("sums", STEP), ("half", BODY)])
def test_the_step_that_fails_is_edited(tmp_path: Path, template: str, proposal: Any) -> None:
    model = Sums(proposal)
    evaluator = evaluator_in(tmp_path, model)
    rows = [{"id": str(n), "sum": f"sum-{n} ", "target": str(n)} for n in range(64)]
    certificate = asyncio.run(
        improve(
            template, rows, evaluator=evaluator, scorers=["exact"], rounds=1, output=tmp_path / "s"
        )
    )
    assert certificate.is_accepted
    assert asyncio.run(verify(certificate.path)).is_own
    shown = model.questions[0].split("<rows>")[1].split("</rows>")[0].strip().split("\n")
    failed = json.loads(shown[0])
    if template == "sums":
        wrong = str(int(failed["id"]) + 1)
        assert [each["answer"] for each in failed["steps"]] == [wrong, wrong]
    else:
        assert "steps" not in failed
    write_template(certificate, evaluator)
    assert (tmp_path / "sums.xml").read_text().count("carefully") == 1


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        ({"op": "set", "task": "nothing", "element": "system", "text": "x"}, "work, say"),
        (
            {"op": "set", "task": "say", "element": "instructions", "text": "{{ sum | upper }}"},
            "expression",
        ),
        (
            {
                "op": "set",
                "task": "say",
                "element": "instructions",
                "text": "{{ steps.later.content }}",
            },
            "later",
        ),
    ],
)
def test_an_edit_of_a_step_is_checked(tmp_path: Path, edit: Any, why: str) -> None:
    evaluator = evaluator_in(tmp_path, None)
    checker = CandidateChecker(evaluator, "sums", model=None, handler=None)
    with pytest.raises(EditError, match=why):
        check_edits(checker, [read_edit(edit)])


ATOMIC = """\
<task name="sum" type="atomic" version="3">
  <description>Answer {{ sum }}</description>
  <criteria>sums</criteria>
  <inputs><input name="sum" type="string" required="true">it</input></inputs>
  <!-- kept -->
  <instructions><![CDATA[
Work out {{ sum }}
  and only that
]]></instructions>
  <output_format type="json" schema="integer"/>
  <examples shots="true">
    <example><input name="sum">sum-1 </input><output>1</output></example>
  </examples>
</task>
"""


def test_an_atomic_template_gets_a_step_before_and_a_step_after(tmp_path: Path) -> None:
    (tmp_path / "sum.xml").write_text(ATOMIC)
    seen: list[list[str]] = []

    def model(request: Any) -> str:
        seen.append([message.content for message in request.messages])
        return str(40 + len(seen))

    evaluator = Evaluator(tmp_path, backend=SimulatedBackend(script=model), tasks_dir=None)
    checker = CandidateChecker(evaluator, "sum", model=None, handler=None)
    edits = [
        read_edit(edit)
        for edit in (
            {"op": "add_step", "place": "before", "name": "plan", "text": "Plan {{ sum }}"},
            {
                "op": "set",
                "task": "answer",
                "element": "system",
                "text": "By {{ steps.plan.content }}",
            },
            {
                "op": "add_step",
                "task": "answer",
                "place": "after",
                "name": "check",
                "text": "Check\n  {{ steps.answer.content }}",
            },
        )
    ]
    check_edits(checker, edits)
    text = checker.edited(edits)
    assert "<!-- kept -->" in text
    result = checker.evaluator_of(text).evaluate_sync("sum", {"sum": "sum-9 "}).unwrap()
    assert result.parsed_content == 43
    assert seen[0] == ["Plan sum-9 "]
    assert seen[1][0] == "By 41"
    assert seen[1][2] == "1"
    assert seen[1][3].startswith("Work out sum-9 \n  and only that")
    assert seen[2][0].startswith("Check\n  42")


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ([("plan", "{{ steps.answer.content }}")], "runs later"),
        ([("answer", "x")], "small letters"),
        ([("a", "x"), ("b", "x")], "name a step"),
        ([("a", "{{ secret(sum) }}")], "expression|unknown"),
    ],
)
def test_a_step_that_does_not_fit_is_refused(tmp_path: Path, edits: Any, why: str) -> None:
    (tmp_path / "sum.xml").write_text(ATOMIC)
    evaluator = Evaluator(tmp_path, backend=SimulatedBackend(), tasks_dir=None)
    checker = CandidateChecker(evaluator, "sum", model=None, handler=None)
    with pytest.raises(EditError, match=why):
        check_edits(
            checker,
            [
                read_edit({"op": "add_step", "place": "before", "name": name, "text": text})
                for name, text in edits
            ],
        )


def test_at_most_three_steps_are_added(tmp_path: Path) -> None:
    evaluator = evaluator_in(tmp_path, None)
    checker = CandidateChecker(evaluator, "sums", model=None, handler=None)
    edits = [
        read_edit(
            {"op": "add_step", "task": "say", "place": "before", "name": f"s{n}", "text": "Think"}
        )
        for n in range(4)
    ]
    check_edits(checker, edits[:3])
    with pytest.raises(EditError, match="at most 3"):
        check_edits(checker, edits)
