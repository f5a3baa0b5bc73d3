"""The judge is named before anything runs if it is a default, in the manifest, and in each score."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluator import HandlerConfig
from evaluator.batch import BatchOptions, make_plan
from evaluator.batch.scorers import ScorerInput
from tests.batch.conftest import QUIZ, ROWS, Calls, Run, Scripted
from tests.batch.scorers.test_model_graded import TEMPLATES, said

# As `own_judge`, and otherwise than it.
_OTHERS = """
<task name="named" type="atomic"><description>Judge taste</description><model role="grader">template/own</model>
  <inputs><input name="reply" type="string" required="true">The reply</input></inputs>
  <instructions>Tasteful? {{ reply }}</instructions></task>
<task name="no_role" type="atomic"><description>Judge length</description>
  <inputs><input name="reply" type="string" required="true">The reply</input></inputs>
  <instructions>Short? {{ reply }}</instructions></task>
<task name="two_roles" type="sequential"><description>Judge twice</description>
  <inputs><input name="reply" type="string" required="true">The reply</input></inputs>
  <steps>
    <task type="atomic"><description>Read</description><model role="reader"/><instructions>{{ reply }}</instructions></task>
    <call template="own_judge"><arg name="reply">{{ reply }}</arg></call>
  </steps></task>
<task name="in_a_profile" type="atomic"><description>Judge depth</description><model role="grader"/>
  <handler ref="deep"/>
  <inputs><input name="reply" type="string" required="true">The reply</input></inputs>
  <instructions>Deep? {{ reply }}</instructions></task>
"""


def profile(name: str, **more: Any) -> HandlerConfig:
    return HandlerConfig(name=name, model=f"{name}/m", **more)


PROFILES = {
    "default": profile("default"),
    "left": profile("left"),
    "right": profile("right"),
    "roles": profile("roles", roles={"grader": "roles/judge", "strict": "roles/strict"}),
}


@pytest.fixture
def make(make_evaluator: Any, calls: Calls) -> Callable[..., Any]:
    calls.otherwise = lambda _: said(reason="r", correct=True, score=1)
    options: dict[str, Any] = {
        "handler": None,
        "backend": Scripted(script=calls),
        "profiles": PROFILES,
    }

    def made(**more: Any) -> Any:
        return make_evaluator(QUIZ + TEMPLATES + _OTHERS, **{**options, **more})

    return made


def graded(template: str, **more: Any) -> dict[str, Any]:
    return {"type": "graded", "template": template, "inputs": {"reply": "output"}, **more}


@pytest.mark.parametrize(
    ("of_evaluator", "of_batch", "scorers", "models", "unmapped"),
    [
        ({}, {}, ["exact"], {}, ""),
        (
            {},
            {},
            ["reference"],
            {"reference": {"": {"grader": ["default/m"]}}},
            "the model 'default/m';",
        ),
        (
            {},
            {"models": ["a/1", "a/2"]},
            ["reference"],
            {"reference": {"": {"grader": ["default/m"]}}},
            "'default/m';",
        ),
        (
            {"model": "all/x"},
            {},
            ["reference"],
            {"reference": {"": {"grader": ["all/x"]}}},
            "the model 'all/x';",
        ),
        (
            {"model_roles": {"grader": "b/j"}},
            {},
            ["reference"],
            {"reference": {"": {"grader": ["b/j"]}}},
            "",
        ),
        ({}, {}, ["reference:model=s/j"], {"reference": {"": {"grader": ["s/j"]}}}, ""),
        (
            {"model_roles": {"strict": "b/strict"}},
            {},
            ["reference:model=strict"],
            {"reference": {"": {"grader": ["b/strict"]}}},
            "",
        ),
        (
            {"handler": "roles"},
            {},
            ["reference"],
            {"reference": {"": {"grader": ["roles/judge"]}}},
            "",
        ),
        (
            {"handler": "roles"},
            {},
            ["reference:model=strict"],
            {"reference": {"": {"grader": ["roles/strict"]}}},
            "",
        ),
        (
            {},
            {"handlers": ["left", "right"]},
            ["reference"],
            {"reference": {"left": {"grader": ["left/m"]}, "right": {"grader": ["right/m"]}}},
            "the model 'left/m' (handler left), 'right/m' (handler right);",
        ),
        (
            {},
            {"handlers": ["left", "roles"]},
            ["reference"],
            {"reference": {"left": {"grader": ["left/m"]}, "roles": {"grader": ["roles/judge"]}}},
            "the model 'left/m' (handler left);",
        ),
        ({}, {}, [graded("named")], {"graded": {"": {"grader": ["template/own"]}}}, ""),
        ({"model": "all/x"}, {}, [graded("named")], {"graded": {"": {"grader": ["all/x"]}}}, ""),
        ({}, {}, [graded("no_role")], {}, ""),
        ({}, {}, [graded("in_a_profile")], {}, ""),
        (
            {},
            {},
            [{"type": "reference", "judges": ["p/1", "p/2"], "judge_epochs": 2}],
            {"reference": {"": {"grader": ["p/1", "p/2"]}}},
            "",
        ),
        (
            {},
            {},
            [{"type": "majority", "graders": ["reference:model=p/1", "reference", "exact"]}],
            {"majority": {"": {"grader": ["p/1", "default/m"]}}},
            "the model 'default/m';",
        ),
    ],
)
def test_a_plan_has_its_judges_and_a_notice_for_a_default_one(
    make: Any,
    of_evaluator: dict[str, Any],
    of_batch: dict[str, Any],
    scorers: list[Any],
    models: Any,
    unmapped: str,
) -> None:
    plan = make_plan(make(**of_evaluator), "quiz", ROWS, BatchOptions(scorers=scorers, **of_batch))
    assert plan.judges.models == models
    assert len(plan.judges.notices) == bool(unmapped)
    for line in plan.judges.notices:
        assert (
            unmapped in line and "the role 'grader'" in line and "--model-role grader=MODEL" in line
        )


def test_each_role_is_one_notice_for_all_its_scorers(make: Any) -> None:
    plan = make_plan(
        make(), "quiz", ROWS, BatchOptions(scorers=["reference", "pairwise", graded("two_roles")])
    )
    assert plan.judges.models["graded"] == {"": {"reader": ["default/m"], "grader": ["default/m"]}}
    assert [line.partition(", so")[0] for line in plan.judges.notices] == [
        "scorers reference, pairwise, graded: no model is named for the role 'grader'",
        "scorer graded: no model is named for the role 'reader'",
    ]


def test_a_custom_scorer_may_declare_its_model(make: Any) -> None:
    class Own:
        def __init__(self, **more: Any) -> None:
            self.name, self.more = "own", more

        def describe(self) -> dict[str, Any]:
            return {"type": "own", "templates": ["own_judge"], **self.more}

        async def score(self, scored: ScorerInput) -> Any:
            raise AssertionError("nothing is judged")

    assert (
        make_plan(make(), "quiz", ROWS, BatchOptions(scorers=[Own(model="mine/1")])).judges.notices
        == ()
    )
    (line,) = make_plan(
        make(), "quiz", ROWS, BatchOptions(scorers=[Own(model=None)])
    ).judges.notices
    assert line.startswith("scorer own: ")


class Noticed:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def start(self, name: str, snapshot: Any) -> None: ...

    def result(self, result: Any) -> None: ...

    def progress(self, snapshot: Any) -> None: ...

    def notice(self, line: str) -> None:
        self.lines.append(line)

    def end(self, snapshot: Any, state: str) -> None: ...


def test_the_manifest_and_each_score_name_the_model_that_judged(
    run: Run, make: Any, tmp_path: Path
) -> None:
    told = Noticed()
    scorers = [
        "reference",
        "reference:model=s/j,name=chosen",
        {"type": "reference", "name": "panel", "judges": ["p/1", "p/2"]},
    ]
    result = run(ROWS[:2], evaluator=make(), scorers=scorers, models=["a/1"], display=told)
    assert len(told.lines) == 1 and "'default/m'" in told.lines[0]
    for line in result.results():
        assert line.model == "a/1"
        assert line.scores["reference"].metadata["model"] == "default/m"
        assert line.scores["chosen"].metadata["model"] == "s/j"
        assert line.scores["panel"].metadata["models"] == {"p_1": "p/1", "p_2": "p/2"}
    manifest = json.loads((tmp_path / "batch" / "manifest.json").read_text())
    assert manifest["judges"] == {
        "reference": {"": {"grader": ["default/m"]}},
        "chosen": {"": {"grader": ["s/j"]}},
        "panel": {"": {"grader": ["p/1", "p/2"]}},
    }


@pytest.mark.parametrize("winner", ["A", "nobody"])
def test_a_failed_pair_names_its_judge(run: Run, make: Any, calls: Calls, winner: str) -> None:
    calls.otherwise = lambda _: said(reason="r", winner=winner, margin="none")
    (line,) = run(
        ROWS[:1], evaluator=make(model_roles={"grader": "b/j"}), scorers=["pairwise"]
    ).results()
    assert line.scores["pairwise"].metadata["model"] == "b/j" and bool(
        line.scores["pairwise"].error
    ) is (winner != "A")


def test_who_judges_is_told_and_does_not_by_itself_judge_anew(make: Any) -> None:
    plan = make_plan(make(), "quiz", ROWS, BatchOptions(scorers=["reference"]))
    assert set(plan.scorer_parts["reference"]["judges"]) == {""}
    assert "default/m" not in json.dumps(plan.scorer_parts), (
        "what judgements are hashed over has changed"
    )


@pytest.mark.parametrize(
    ("what", "before", "after"),
    [
        ("judges", ["p/1", "p/2"], ["p/1", "p/3"]),
        ("graders", ["reference", "exact"], ["reference", "includes"]),
        ("graders", ["reference", "f1:pass_at=0.2"], ["reference", "f1:pass_at=0.9"]),
    ],
    ids=["judges", "graders", "arguments"],
)
def test_another_panel_rescores(
    run: Run, make: Any, what: str, before: list[str], after: list[str]
) -> None:
    kind = {"type": "majority" if what == "graders" else "reference"}
    run(ROWS[:2], evaluator=make(), scorers=[{**kind, what: before}])
    same = run(ROWS[:2], evaluator=make(), scorers=[{**kind, what: before}], resume=True)
    assert same.ended.ran == 0
    other = run(ROWS[:2], evaluator=make(), scorers=[{**kind, what: after}], resume=True)
    assert other.ended.counts.judged_anew == 2


def test_a_role_mapped_by_the_profile_is_the_judge(run: Run, make: Any) -> None:
    result = run(ROWS[:1], evaluator=make(handler="roles"), scorers=["reference:model=strict"])
    (sample,) = result.results()
    assert sample.scores["reference"].metadata["model"] == "roles/strict"


def test_another_model_for_a_scorers_role_rescores(run: Run, make: Any) -> None:
    for model, anew in (("b/1", 0), ("b/1", 0), ("b/2", 2)):
        evaluator = make(model_roles={"strict": model})
        result = run(ROWS[:2], evaluator=evaluator, scorers=["reference:model=strict"], resume=True)
        assert result.ended.counts.judged_anew == anew
