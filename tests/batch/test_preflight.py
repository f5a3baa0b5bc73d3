"""What would fail every row after its first call is found before the first row."""

from __future__ import annotations

import pytest

from evaluator import (
    Evaluator,
    SimulatedBackend,
    TemplateError,
    TemplateLibrary,
    run_batch_sync,
    tool,
)

STEPS = """<task type="sequential" name="steps"><description>d</description><steps>
<task type="atomic"><description>one</description></task>
<task type="atomic"><description>two</description>{}</task>
</steps></task>"""


@tool
def population(city: str) -> int:
    """How many people live in a city."""
    return len(city)


def evaluator_of(xml: str, calls: list[object]) -> Evaluator:
    def answer(request: object) -> str:
        calls.append(request)
        return "3"

    backend = SimulatedBackend(script=answer)
    library = TemplateLibrary()
    library.add(xml)
    return Evaluator(library, "offline", backend=backend, tools=[population], tasks_dir=None)


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ('<tools><tool name="populaton"/></tools>', "unknown-tool"),
        ('<output_format type="json">{"type": "strin"}</output_format>', "bad-schema"),
    ],
)
@pytest.mark.parametrize("is_called", [False, True])
def test_no_row_is_begun(tmp_path, part, code, is_called):
    xml = STEPS.format(part)
    if is_called:
        xml = (
            f'<library>{xml}<task type="sequential" name="outer"><description>d</description>'
            '<steps><call template="steps"/></steps></task></library>'
        )
    calls = []
    name = "outer" if is_called else "steps"
    with pytest.raises(TemplateError) as caught:
        run_batch_sync(
            name, [{}, {}], evaluator=evaluator_of(xml, calls), output=tmp_path / "batch"
        )
    (finding,) = caught.value.diagnostics
    assert (finding.code, finding.span.line) == (code, 3)
    assert calls == []


@pytest.mark.parametrize("rows", [[{}], [{"output": "3"}]], ids=["evaluated", "answered"])
def test_a_judge_is_checked_before_the_first_row_is_paid(tmp_path, rows):
    judge = STEPS.format('<tools><tool name="populaton"/></tools>')
    judge = judge.replace(
        'name="steps"><description>d</description>',
        'name="own_judge"><description>d</description><inputs><input name="reply"/></inputs>',
    )
    calls = []
    evaluator = evaluator_of(f"<library>{STEPS.format('')}{judge}</library>", calls)
    options = {"answers": "output"} if "output" in rows[0] else {}
    with pytest.raises(TemplateError, match="populaton"):
        run_batch_sync(
            "steps",
            rows,
            evaluator=evaluator,
            scorers=['graded:template=own_judge,inputs={"reply":"output"}'],
            output=tmp_path / "batch",
            **options,
        )
    assert calls == []


def test_tools_of_the_evaluator_are_known(tmp_path):
    calls = []
    xml = STEPS.format('<tools><tool name="population"/><tool name="subtask"/></tools>')
    batch = run_batch_sync(
        "steps", [{"a": 1}], evaluator=evaluator_of(xml, calls), output=tmp_path / "batch"
    )
    assert len(calls) == 2
    assert "1 error" not in str(batch.summary.counts)
