"""A director has something evaluated by its own criteria, as a subtask."""

from __future__ import annotations

import asyncio
import json

import pytest

from evaluator import TaskStore

DIRECTOR = """
<task name="director" type="atomic" subtype="director"><description>Direct the work</description>
  <tools><tool name="evaluation_request"/></tools><instructions>Direct</instructions></task>
"""
OWN = """
<task name="judge" type="atomic" subtype="evaluator"><description>Evaluate the correctness of a result by criteria</description>
  <inputs><input name="type"/><input name="criteria"/><input name="target"/></inputs>
  <instructions>Judge {{ target }} by {{ criteria }}</instructions><output_format type="json" schema="object"/></task>
"""


def directing(seen, answer, criteria):
    def script(request):
        prompt = request.messages[0].content
        if prompt != "Direct":
            seen.append(prompt)
            return answer
        told = [m.content for m in request.messages if m.role == "tool"]
        arguments = {"type": "correctness", "criteria": criteria, "target": "2 + 2 = 4"}
        return told[0] if told else {"tool": "evaluation_request", "arguments": arguments}

    return script


@pytest.mark.parametrize(
    ("answer", "success"),
    [
        ('{"success": true, "feedback": "fine"}', True),
        ('{"feedback": "?"}', False),
        ("yes!", False),
    ],
)
def test_without_a_template_the_standard_prompt_is_used_and_success_is_true_only_if_the_answer_says_so(
    make_evaluator, tmp_path, answer, success
):
    seen: list[str] = []
    evaluator = make_evaluator(
        DIRECTOR, script=directing(seen, answer, ["the sum is right", "nothing else"])
    )
    result = asyncio.run(evaluator.evaluate("director")).unwrap()
    told = json.loads(result.content)
    assert told["success"] is success
    assert {"success", "feedback", "details"} <= told.keys()
    assert "- the sum is right\n- nothing else" in seen[0] and "2 + 2 = 4" in seen[0]
    link = next(s for s in TaskStore(tmp_path / "tasks").read(1).steps if s.start.kind == "subtask")
    assert link.start.args["status"] == "CONTINUATION"
    assert link.start.args["task_id"] == 2


def test_a_template_for_evaluations_is_preferred(make_evaluator):
    seen: list[str] = []
    evaluator = make_evaluator(DIRECTOR + OWN, script=directing(seen, '{"success": true}', "right"))
    asyncio.run(evaluator.evaluate("director")).unwrap()
    assert seen[0].startswith("Judge 2 + 2 = 4 by right")
