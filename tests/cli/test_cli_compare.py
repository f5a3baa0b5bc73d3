"""`evaluator compare` takes what batches themselves say: of their clusters, their scorers, and how many results there
will be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluator.batch import Failure, SampleResult, Verdict
from evaluator.batch.folder import BatchFolder

Write = Callable[..., None]


@pytest.fixture
def passages(tmp_path: Path) -> Write:
    """`passages(name, passing, cluster)`: a batch of 100 questions on ten passages, the first `passing` understood."""

    def write(name: str, passing: int, cluster: str | None, **more: Any) -> None:
        with BatchFolder.create(tmp_path / name) as folder:
            folder.write_manifest(
                {
                    "name": name,
                    "state": "complete",
                    "total": 100,
                    "cluster": cluster,
                    "cells": [{"template": "quiz", "variant": "small"}],
                    **more,
                }
            )
            for i in range(100):
                verdict = Verdict.PASSED if i // 10 < passing else Verdict.FAILED
                result = SampleResult(
                    f"{i:032x}",
                    f"s{i:02d}",
                    i,
                    1,
                    template="quiz",
                    variant="small",
                    inputs={},
                    verdict=verdict,
                    metadata={"passage": i // 10},
                )
                folder.append(result)

    return write


def test_the_batches_own_cluster_is_taken(cli: Any, passages: Write) -> None:
    passages("a", 3, "passage")
    passages("b", 5, "passage")
    ran = cli("compare", "a", "b", "--min-difference", "0.05")
    assert ran.code == 4 and "p = 0.1679 (paired t, clustered by passage)" in ran.out, ran.err
    ran = cli("compare", "a", "b", "--min-difference", "0.05", "--no-cluster")
    assert ran.code == 0 and "exact McNemar" in ran.out
    assert json.loads(cli("compare", "a", "b", "--json").out)["cluster"] == "passage"
    assert cli("compare", "a", "b", "--no-cluster", "--cluster", "passage").code == 2


def test_metrics_of_both_sides_are_shown_with_their_difference(cli: Any, passages: Write) -> None:
    macro = {"type": "macro", "name": "macro", "by": "passage"}
    passages("a", 3, None, metrics=[macro])
    passages("b", 5, None, metrics=[macro, {"type": "function", "name": "own"}])
    found = json.loads(cli("compare", "a", "b", "--json").out)["metrics"]
    a = found["macro"]["a"]
    assert (a["value"], a["n"], a["of"], a["error"]) == (pytest.approx(0.3), 100, 100, "")
    assert (a["low"], a["high"]) == pytest.approx((0.2189, 0.3958), abs=1e-4)
    assert found["macro"]["difference"] == pytest.approx(0.2)
    assert found["own"]["a"] is None and found["own"]["difference"] is None
    words = " ".join(cli("compare", "a", "b").out.split())
    assert "macro 0.3 0.2189 to 0.3958 100 of 100 0.5 0.4038 to 0.5962 100 of 100 +0.2" in words
    assert "| macro | 0.3 |" in cli("compare", "a", "b", "--markdown").out
    passages("c", 5, None)
    assert "Metrics" not in cli("compare", "c", "c", "--cluster", "passage").out


def test_batches_at_odds_are_compared_but_held_to_no_threshold(cli: Any, passages: Write) -> None:
    passages("a", 3, "passage")
    passages("b", 5, None)
    ran = cli("compare", "a", "b")
    assert ran.code == 0 and "side a is clustered by 'passage' and side b by nothing" in " ".join(
        ran.out.split()
    )
    refused = cli("compare", "a", "b", "--min-difference", "0.05")
    assert refused.code == 2 and "--no-cluster" in refused.err and refused.out == ""
    assert cli("compare", "a", "b", "--min-difference", "0.05", "--cluster", "passage").code == 4
    assert cli("compare", "a", "b", "--min-difference", "0.05", "--no-cluster").code == 0


def test_a_gate_on_a_scorer_of_ones_own_may_be_any_number_and_on_a_shipped_one_a_share(
    cli: Any, batch: Write
) -> None:
    batch("b", "p" * 200, scorers={"points": {"type": "mine"}, "f1": {"type": "f1"}})
    for name, is_share in (("points", False), ("f1", True)):
        assert (
            "between 0 and 1" in cli("summary", "b", "--threshold", f"mean({name}) >= 7").err
        ) is is_share


VERDICTS = {"p": Verdict.PASSED, "f": Verdict.FAILED, "e": Verdict.ERROR}


@pytest.fixture
def batch(tmp_path: Path) -> Write:
    """`batch(name, letters, …)`: a folder with a result for each letter; its manifest says 200 and what is given."""

    def write(name: str, letters: str, **manifest: Any) -> None:
        with BatchFolder.create(tmp_path / name) as folder:
            folder.write_manifest(
                {
                    "name": name,
                    "state": "complete",
                    "total": 200,
                    "cells": [{"template": "quiz", "variant": "small"}],
                    **manifest,
                }
            )
            for i, letter in enumerate(letters):
                folder.append(
                    SampleResult(
                        f"{i:032x}",
                        f"s{i:03d}",
                        i,
                        1,
                        template="quiz",
                        variant="small",
                        inputs={},
                        verdict=VERDICTS[letter],
                        failure=Failure("T", "timeout", "late") if letter == "e" else None,
                    )
                )

    return write


STOPPED = {"state": "stopped", "sessions": [{"state": "stopped", "reason": "interrupted"}]}


@pytest.mark.parametrize(
    ("b", "manifest", "least", "code", "said"),
    [
        ("p" * 200, {}, "-0.05", 0, ""),
        ("p" * 100 + "f" * 100, {}, "-0.05", 4, "missed: the interval begins at"),
        (
            "p" * 39,
            {},
            "-0.9",
            5,
            "incomplete: side b is not complete: 161 of 200 results are pending",
        ),
        ("p" * 39, STOPPED, "-0.9", 5, "interrupted; 161 of 200 results are pending"),
        ("p" * 200, STOPPED, "-0.9", 5, "the last session ended with: interrupted"),
        ("p" * 200, {"total": None}, "-0.9", 5, "the total number of results is unknown"),
        ("p" * 60 + "e" * 140, {}, "-0.05", 5, "140 of 200 samples with an error or no score"),
        ("p" * 198 + "ee", {}, "-0.05", 0, ""),
        ("f" * 198 + "ee", {}, "-0.05", 4, "missed"),
        ("e" * 200, {}, "-0.9", 5, "there is no interval"),
    ],
)
def test_a_threshold_exits_with_4_where_it_is_missed_and_with_5_where_nobody_can_tell(
    cli: Any, batch: Write, b: str, manifest: dict[str, Any], least: str, code: int, said: str
) -> None:
    batch("a", "p" * 200)
    batch("b", b, **manifest)
    ran = cli("compare", "a", "b", "--min-difference", least)
    assert ran.code == code and said in ran.err, ran.err
    assert bool(ran.err) == bool(code)


def test_a_side_that_is_not_complete_is_shown_with_its_n_of_N(cli: Any, batch: Write) -> None:
    batch("a", "p" * 200)
    batch("b", "p" * 39, **STOPPED)
    warning = "side b is not complete: the last session ended with: interrupted; 161 of 200 results are pending"
    for options in ((), ("--markdown",)):
        ran = cli("compare", "a", "b", *options)
        assert ran.code == 0 and "39 of 200" in ran.out and warning in " ".join(ran.out.split())
    found = json.loads(cli("compare", "a", "b", "--json").out)
    assert (found["a"]["of"], found["b"]["of"], found["b"]["pending"]) == (200, 200, 161)
    assert warning in found["warnings"]


def test_scorers_are_those_of_the_manifests_and_judges_those_of_the_cells_compared(
    cli: Any, batch: Write
) -> None:
    def asked(model: str) -> dict[str, Any]:
        return {"reference": {"": {"grader": [model]}, "strict": {"grader": ["z"]}}}

    said = {"type": "reference", "judges": {"": "1", "strict": "2"}}
    cells = [
        {"template": "quiz", "variant": "small"},
        {"template": "quiz", "variant": "strict", "handler": "strict"},
    ]
    batch("a", "p" * 200, scorers={"reference": said})
    batch("b", "e" * 200, scorers={"reference": said})
    batch("c", "p" * 200, scorers={"reference": {**said, "judges": {"": "3"}}})
    batch("d", "p" * 200, scorers={"reference": said}, cells=cells, total=400)
    batch("e", "p" * 200, scorers={"reference": {**said, "judges": {"": "3"}}}, judges=asked("y"))
    batch("f", "p" * 200, scorers={"reference": said}, judges=asked("x"))
    differs = "the scorer reference differs: its judge's model or settings"

    def warnings(*args: str) -> list[str]:
        return json.loads(cli("compare", *args, "--json").out)["warnings"]

    assert warnings("a", "b") == warnings("a", "d", "--variant", "small") == []
    assert warnings("a", "b", "--scorer", "reference") == []
    assert warnings("a", "c") == [differs]
    assert warnings("f", "e") == ["the scorer reference differs: its judge (x and y)"]
    assert differs in warnings("d", "--variant", "small", "--variant", "strict")


def test_a_part_of_a_variant_is_enough_if_only_one_has_it(cli, write):
    write("rows.jsonl", '{"question": "What is 1 + 1?", "target": "2"}\n')
    models = (
        "--model",
        "simulated/m7",
        "--model",
        "simulated/m70-instruct",
        "--model",
        "simulated/large",
    )
    ran = cli(
        "batch",
        "--template",
        "answer_question",
        "--rows",
        "rows.jsonl",
        "--scorer",
        "exact",
        *models,
        "--output",
        "b",
    )
    assert ran.code == 0, ran.err
    found = cli("compare", "b", "--variant", "m70", "--variant", "large")
    assert found.code == 0, found.err
    assert "simulated/m70-instruct" in found.out and "simulated/large" in found.out
    notes = "note: answers of a are simulated\nnote: answers of b are simulated\n"
    assert found.err == notes
    assert cli("compare", "b", "--variant", "m7", "--variant", "large").code == 2
    assert cli("compare", "b", "--variant", "simulated/m7", "--variant", "large").code == 0


@pytest.mark.parametrize(
    ("variant", "said"), [("big", "has several fitting"), ("m9", "has no such")]
)
def test_a_part_of_a_variants_name_that_fits_not_just_one_is_refused(
    cli: Any, tmp_path: Path, variant: str, said: str
) -> None:
    with BatchFolder.create(tmp_path / "b") as folder:
        cells = [{"template": "quiz", "variant": name} for name in ("big-m70", "big-m8")]
        folder.write_manifest({"name": "b", "state": "complete", "total": 0, "cells": cells})
    ran = cli("compare", "b", "--variant", variant, "--variant", "m8")
    assert ran.code == 2
    assert (
        f"b {said} template and variant; choose with" in ran.err
        and "`big-m70`, `big-m8`" in ran.err
    )
    assert "a: b, quiz × big-m70" in cli("compare", "b", "--variant", "m70", "--variant", "m8").out
