"""Templates are tested by what is written beside them; unchanged calls are not paid twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, SimulatedBackend, TemplateLibrary, UsageError, load_profiles
from evaluator.authoring.template_tests import CaseResult, TemplateTests, read_cases, report

PROFILES = load_profiles(trust=True)
CASES = """
[[cases]]
name = "spain"
inputs = { country = "Spain" }
prompt = ["capital of Spain"]
without = ["France"]
target = "Madrid"
scorers = ["exact"]

[[cases]]
name = "prompt only"
inputs = { country = "Peru" }
prompt = ["Peru"]
"""


class Model(SimulatedBackend):
    """A model that is no simulated one for the cache, and counts its calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__(script=self.answer)

    def answer(self, request: Any) -> str:
        self.asked.append(request.messages[-1].content)
        return "Madrid" if "Spain" in self.asked[-1] else "Paris"

    @property
    def name(self) -> str:
        return "scripted"


def put(
    folder: Path, name: str = "capital", *, ask: str = "Name the capital of", more: str = ""
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.xml").write_text(
        f'<task name="{name}" type="atomic"><description>Name a capital</description>'
        '<inputs><input name="country" type="string" required="true">it</input></inputs>'
        f"<instructions>{ask} {{{{ country }}}}.</instructions>{more}"
        '<examples><example><input name="country">France</input><output>Paris</output></example>'
        "</examples></task>"
    )
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path / "templates")
    (tmp_path / "templates" / "capital.tests.toml").write_text(CASES)
    return tmp_path / "templates"


def run(folder: Path, name: str = "capital", **options: Any) -> list[CaseResult]:
    evaluator = options.pop("evaluator", None)
    library = TemplateLibrary.load(folder)
    return list(TemplateTests(library, PROFILES, evaluator).run(name, **options))


def test_examples_and_cases_are_tested_without_a_call(folder: Path) -> None:
    results = run(folder)
    assert [(each.case, each.is_answered) for each in results] == [
        ("example 1", True),
        ("spain", True),
        ("prompt only", False),
    ]
    assert list(report(results)) == ["capital: 3 of 3 cases as expected"]


def test_what_is_not_as_expected_is_named(folder: Path) -> None:
    put(folder, ask="France! Name the city of")
    problems = {each.case: each.problems for each in run(folder)}
    assert problems["spain"] == (
        "the prompt lacks 'capital of Spain'",
        "the prompt has 'France'",
    )
    (folder / "capital.tests.toml").write_text("[[cases]]\nname = 'none'\ninputs = {}")
    assert "cannot be rendered" in run(folder)[-1].problems[0]


def test_a_scorer_that_does_not_decide_has_not_passed(folder: Path) -> None:
    case = "[[cases]]\nname = 'a'\ninputs = {country = 'Spain'}\nscorers = ['includes']\n"
    (folder / "capital.tests.toml").write_text(case)
    assert run(folder)[-1].problems == ("includes: did not decide: no target",)
    (folder / "capital.tests.toml").write_text(f"{case}target = 'Madrid'\n")
    assert run(folder)[-1].problems == ()


def test_a_template_with_tools_is_only_rendered(folder: Path) -> None:
    put(folder, more='<tools><tool name="bash"/></tools>')
    results = run(folder)
    assert not any(each.is_answered for each in results)
    assert list(report(results))[-1].endswith("cases as expected, of prompts only")


def test_golden_prompts_fail_until_they_are_updated(folder: Path) -> None:
    assert not any(each.problems for each in run(folder, update=True))
    golden = folder / "capital.prompts.txt"
    assert "##### spain\n" in golden.read_text() and not any(each.problems for each in run(folder))
    put(folder, ask="##### Name one\n\\capital of")
    changed = run(folder)
    assert all("accept it with --update" in each.problems[-1] for each in changed)
    assert "  -Name the capital of Spain." in changed[1].problems[-1]
    run(folder, update=True)
    assert not any("--update" in line for each in run(folder) for line in each.problems)


def test_only_calls_that_have_changed_are_made_again(folder: Path, tmp_path: Path) -> None:
    put(folder, "other", ask="Tell me about")

    def calls() -> tuple[int, int]:
        model = Model()
        library = TemplateLibrary.load(folder)
        evaluator = Evaluator(
            library, "offline", backend=model, tasks_dir=None, cache=tmp_path / "tests.cache"
        )
        tests = TemplateTests(library, PROFILES, evaluator)
        results = [result for name in ("capital", "other") for result in tests.run(name)]
        evaluator.close()
        assert len(model.asked) == sum(result.calls for result in results)
        return len(model.asked), sum(result.cached for result in results)

    assert calls() == (3, 0)
    assert calls() == (0, 3)
    put(folder, ask="Please name the capital of")
    assert calls() == (2, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cases = 1", "expected \\[\\[cases\\]\\]"),
        ("x = 1\n[[cases]]\nname='a'\ninputs={}", "and nothing else"),
        ("[[cases]]\nname = 'a'", "case 1: .*inputs"),
        ("[[cases]]\nname='a'\ninputs={}\nscorer=['exact']", "case 1: .*scorer"),
        ("[[cases]]\nname='a'\ninputs={}\nscorers=['exac']", "there is no scorer 'exac'"),
        ("[[cases]]\nname='a'\ninputs={}\nscorers=['code.py:run']", "name no code"),
        ("[[cases]]\nname='a'\ninputs={}\n" * 2, "case 2: another case has the name 'a'"),
        ("[[cases]", "invalid TOML"),
    ],
)
def test_invalid_cases_are_errors_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.tests.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"a.tests.toml.*{message}"):
        read_cases(path)
