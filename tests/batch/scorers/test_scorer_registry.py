"""Scorers from names, tables, command lines and functions; errors are reported before a batch runs."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar

import pytest

from evaluator import UsageError
from evaluator.batch import Score, scorers
from evaluator.batch.scorers import (
    SCORERS,
    FunctionScorer,
    make_scorer,
    make_scorers,
    parse_scorer,
    run_scorer,
    scorer,
)
from evaluator.batch.scorers.builtin_scorer import BuiltinScorer, ResultScorer, TargetScorer
from evaluator.batch.scorers.scorer_registry import by_type
from evaluator.batch.scorers.text_scorers import ExactScorer
from tests.batch.scorers.scorer_inputs import score, seen, spec_of
from tests.tables import each_case


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("includes", {"type": "includes"}),
        ("includes:ignore_case=true", {"ignore_case": True}),
        ("includes:ignore_case=true,match=all,name=found", {"ignore_case": True, "match": "all"}),
        (r"regex:pattern=\d{1,2}, or", {"pattern": r"\d{1,2}, or"}),
        ('regex:pattern="a,full=b",full=true', {"pattern": "a,full=b", "full": True}),
        ("regex:pattern=a:b", {"pattern": "a:b"}),
        ("numeric:abs_tol=1e-3,take=first", {"abs_tol": 0.001, "take": "first"}),
        ('choice:choices=["a","b"]', {"choices": ["a", "b"]}),
        ("f1:pass_at=1", {"pass_at": 1}),
    ],
)
def test_a_command_line_text_is_parsed_to_a_scorer(text: str, expected: dict[str, Any]) -> None:
    described = parse_scorer(text).describe()
    assert {key: described[key] for key in expected} == expected


@each_case(
    ("spec", "said"),
    [
        ("inclodes", "did you mean `includes`"),
        ("nothing_like_it", "scorers: exact, includes"),
        ("inclodes:ignore_case=true", "did you mean `includes`"),
        ("includes:ignore_cas=true", "did you mean `ignore_case`"),
        ("includes:ignore_case=maybe", "expected true or false"),
        ("includes:match=some", "expected one of any, all"),
        ("includes:true", "write name=value"),
        ("includes:match=all,match=any", "given twice"),
        ("numeric:abs_tol=true", "expected a number"),
        ("numeric:abs_tol=-1", "abs_tol is -1, expected a number, at least 0"),
        ("f1:pass_at=2", r"in \[0, 1\]"),
        ("f1:name=a b", "a scorer's name is"),
        ("regex:pattern=(", "is invalid"),
        ("regex:group=1", "group needs a pattern"),
        ("regex:pattern=a,group=1", "0 groups"),
        ("exact:of=outptu", "did you mean `output`"),
        ("exact:of=1 +", "is '1 \\+'"),
        ('choice:choices=["a"]', "2 to 26"),
        ("json_schema:schema=nonsense", "is unknown"),
        ('json_schema:schema={"type": 5}', "not a valid JSON Schema"),
        ("graded", "graded: template is missing"),
        ("rubric:rubric=Be nice", "give out_of"),
        ("rubric:rubric=A (2 points),out_of=3", "sum of its points is 2"),
        ("majority:graders=[]", "two graders or more"),
        ('majority:graders=["exact","f1"],quorum=4', "quorum is 4"),
        ('reference:judges=["a","a"]', "names 'a' twice"),
        ("reference:judge_epochs=0", "judge_epochs"),
        ('pairwise:inputs={"answer_a": "output"}', "the two candidates"),
        ({"ignore_case": True}, "needs a type"),
        ({"type": 3}, "needs a type"),
        (3, "a scorer is a name"),
        (SCORERS["exact"], "is a class"),
        (lambda output: True, "lambda has no name"),
        (lambda outputs: True, "lambda has no name"),
        ("no_such_module_x:close", "cannot be imported"),
        ("no_such_file.py:close", "no such file"),
        ("json:lods", "did you mean `loads`"),
        ("json:loads", "which scorers do not get"),
        ("json:loads:pass_ta=1", "did you mean `pass_at`"),
        ("json:__name__", "expected a function"),
    ],
)
def test_an_error_suggests_the_nearest_name(spec: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_scorer(spec)


def test_names_are_unique_in_a_batch() -> None:
    assert [
        each.name
        for each in make_scorers(
            ["exact", "includes:name=second", {"type": "exact", "name": "third"}]
        )
    ] == [
        "exact",
        "second",
        "third",
    ]
    with pytest.raises(UsageError, match="two scorers are named 'exact'"):
        make_scorers(["exact", "exact:ignore_case=true"])
    for one in ("exact", {"type": "exact"}, scorer(close)):
        with pytest.raises(UsageError, match="are a list"):
            make_scorers(one)  # type: ignore[arg-type]
    assert make_scorer("exact", name="mine").name == "mine"


@pytest.mark.parametrize("name", SCORERS)
def test_every_scorer_can_be_made_by_name_and_described_in_json(name: str) -> None:
    if name == "ifeval":
        pytest.importorskip("lm_eval", reason="the extra ifeval is not installed")
    made = make_scorer(spec_of(name))
    assert made.name == name
    assert json.loads(json.dumps(made.describe()))["type"] == name
    assert make_scorer(spec_of(name), name="other").describe() == made.describe()


def test_a_changed_argument_is_a_changed_description() -> None:
    seen_ = [
        json.dumps(parse_scorer(text).describe())
        for text in (
            "includes",
            "includes:ignore_case=true",
            "exact",
            "reference:judge_epochs=2",
            "reference:judge_epochs=3",
            "reference",
        )
    ]
    assert len(set(seen_)) == len(seen_)


def close(output: str, target: str) -> float:
    return 1.0 if output == target else 0.25


async def waits(parsed: Any, *, metadata: Any = None) -> bool:
    await asyncio.sleep(0)
    return bool(parsed)


def whole(result: Any, recording: Any, inputs: Any, spare: int = 3) -> Score:
    return Score(7.5, None, answer=f"{result.content} {recording} {inputs['question']} {spare}")


@pytest.mark.parametrize(
    ("function", "value", "passed"),
    [
        (close, 0.25, False),
        (waits, 1.0, True),
        (whole, 7.5, None),
        (scorer(name="near", pass_at=0.2)(close), 0.25, True),
        (scorer(close), 0.25, False),
    ],
)
def test_a_function_gets_what_its_parameters_name(
    function: Any, value: float, passed: bool | None
) -> None:
    given = score(function, "a", "b", parsed=[1])
    assert (given.error, given.value, given.passed) == (None, value, passed)
    if function is whole:
        assert given.answer == "a None What? 3"


def test_the_task_file_is_read_only_if_a_function_asks_for_it() -> None:
    def reads() -> None:
        raise AssertionError("read")

    from dataclasses import replace

    scored = replace(seen("a", "a"), recording=reads)
    assert asyncio.run(run_scorer(make_scorer(close), scored)).value == 1.0
    assert "read" in (asyncio.run(run_scorer(make_scorer(whole), scored)).error or "")


def test_a_decorated_function_can_still_be_called() -> None:
    near = scorer(name="near")(close)
    assert isinstance(near, FunctionScorer) and near.name == "near" and near("a", "a") == 1.0
    assert make_scorer(near) is near


def test_a_function_that_returns_nothing_is_an_error() -> None:
    def forgets(output: str) -> None: ...

    assert "is a return missing?" in (score(forgets, "x").error or "")


@pytest.mark.parametrize(
    "bad", ["def f(outptu): ...", "def f(*args): ...", "def f(output, /): ...", "def f(**kw): ..."]
)
def test_unknown_parameters_are_refused(bad: str) -> None:
    space: dict[str, Any] = {}
    exec(bad, space)
    with pytest.raises(UsageError, match="which scorers do not get"):
        make_scorer(space["f"])


def test_a_function_is_loaded_from_a_file_and_hashed_by_its_source(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    body = "from evaluator.batch.scorers import scorer\ndef near(output, target):\n    return {}\n@scorer(pass_at=0.1)\ndef far(output):\n    return 0.2\n"
    file.write_text(body.format("len(output) / 10"), encoding="utf-8")
    made = parse_scorer(f"{file}:near:pass_at=0.3,name=n")
    assert made.name == "n"
    assert score(made, "abc", "x").passed is True
    assert score(f"{file}:far", "abc").passed is True
    assert score(f"{file}:far:pass_at=0.9", "abc").passed is False
    other = tmp_path / "other.py"
    other.write_text(body.format("len(output) / 20"), encoding="utf-8")
    one, two = made.describe(), parse_scorer(f"{other}:near:pass_at=0.3").describe()
    assert one["source_sha256"] != two["source_sha256"]
    broken = tmp_path / "broken.py"
    broken.write_text("1/0", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(UsageError, match="ZeroDivisionError"):
            parse_scorer(f"{broken}:x")


def test_a_class_that_is_not_declared_as_a_shipped_scorer_is_refused() -> None:
    declared = dataclass(frozen=True, slots=True, kw_only=True)

    class Plain(ExactScorer):
        type: ClassVar[str] = "mine"

    @dataclass(frozen=True, slots=True)
    class Positional(ExactScorer):
        type: ClassVar[str] = "mine"
        least: int = 0

    @declared
    class Unnamed(ExactScorer): ...

    @declared
    class Field(ExactScorer):
        type: str = "mine"  # type: ignore[misc]

    @declared
    class Twice(ExactScorer):
        """It has a name that is taken."""

        type: ClassVar[str] = "exact"

    @declared
    class Comparing(TargetScorer):
        """It compares nothing."""

        type: ClassVar[str] = "mine"

    @declared
    class Scoring(ResultScorer):
        """It scores nothing."""

        type: ClassVar[str] = "mine"

    @declared
    class Undescribed(ExactScorer):
        type: ClassVar[str] = "mine"

    expected: list[tuple[Any, str]] = [
        (Plain, "Plain: decorate it with @dataclass"),
        (Unnamed, "Unnamed: write its name as a class variable"),
        (Field, "Field: write its name as a class variable"),
        (Positional, "Positional: decorate it with @dataclass"),
        (Comparing, "Comparing: implement compare"),
        (Scoring, "Scoring: implement score"),
        (Undescribed, "Undescribed: describe it in a docstring"),
        (Twice, "Twice and ExactScorer have the same type 'exact'"),
    ]
    for cls, message in expected:
        with pytest.raises(TypeError, match=message):
            by_type([ExactScorer, cls])


def test_every_scorer_of_the_package_is_registered() -> None:
    modules = [
        import_module(f"{scorers.__name__}.{module.name}")
        for module in iter_modules(scorers.__path__)
    ]
    found = {
        each.__name__
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, BuiltinScorer)
        and each.type
        and each not in SCORERS.values()
    }
    assert not found, "add it to _CLASSES in evaluator/batch/scorers/scorer_registry.py"


def test_every_scorer_has_a_test() -> None:
    text = "".join(
        path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")
    )
    missing = [name for name in SCORERS if not re.search(rf"""["']{name}["':]""", text)]
    assert not missing, "test its values in tests/batch/scorers/"
