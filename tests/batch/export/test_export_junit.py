"""JUnit XML is valid, has correct counts, and gives the reason of a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from evaluator.batch import SampleResult
from evaluator.batch.export import export
from tests.batch.export.results import EACH, HOSTILE, UNSCORED, hostile, many, result

SCHEMA = etree.XMLSchema(etree.parse(Path(__file__).parent / "junit.xsd"))


def written(
    results: Iterable[SampleResult],
    path: Path,
    manifest: dict[str, Any] | None = None,
    total: Any = None,
) -> Any:
    export(results, manifest or {"name": "metals"}, "junit", path, total=total)
    tree = etree.parse(path)
    SCHEMA.assertValid(tree)
    return tree.getroot()


def test_each_verdict_is_its_own_outcome(tmp_path: Path) -> None:
    root = written(EACH, tmp_path / "out.xml")
    assert {
        name: root.get(name) for name in ("name", "tests", "failures", "errors", "skipped", "time")
    } == {
        "name": "metals",
        "tests": "5",
        "failures": "1",
        "errors": "2",
        "skipped": "1",
        "time": "1.250",
    }
    passed, failed, error, scorer_error, unscored = root.iter("testcase")
    assert (passed.get("name"), passed.get("classname"), passed.get("time")) == (
        "lead [epoch 1]",
        "answer.small",
        "0.250",
    )
    assert [child.tag for child in passed] == ["properties"]
    failure = failed.find("failure")
    assert (failure.get("message"), failure.get("type")) == ("failed by includes", "failed")
    assert failure.text == "includes gave 0: no 'tin' in it\ntarget: lead\ncontent: It is zinc."
    found = error.find("error")
    assert (found.get("type"), found.get("message")) == (
        "TASK_FAILURE.provider_failure",
        "503 from the model\nafter 4 attempts",
    )
    assert (
        "503 from the model\nafter 4 attempts" in found.text
        and "TASK_FAILURE (provider_failure)" in found.text
    )
    assert "ZeroDivisionError: division by zero" in scorer_error.find("error").text
    assert unscored.find("skipped").get("message") == "includes could not judge: there is no target"


def test_a_row_without_an_id_is_named_by_its_number_and_words(tmp_path: Path) -> None:
    (case,) = written([result("0123456789abcdef", place=6)], tmp_path / "out.xml").iter("testcase")
    assert (
        case.get("name") == "row 7: Which element has the symbol Pb? [0123456789abcdef] [epoch 1]"
    )


def test_only_a_known_cost_is_a_property(tmp_path: Path) -> None:
    root = written(EACH, tmp_path / "out.xml")
    costs = [
        [each.get("value") for each in case.iterfind(".//property[@name='cost_usd']")]
        for case in root.iter("testcase")
    ]
    assert costs == [["0.0005"], ["0.0005"], [], ["0.0005"], ["0.0005"]]
    assert "None" not in {each.get("value") for each in root.iter("property")}


def test_a_suite_has_one_template_and_variant_with_its_own_counts(tmp_path: Path) -> None:
    root = written(many(400), tmp_path / "out.xml")
    suites = {suite.get("name"): suite for suite in root}
    assert set(suites) == {
        f"{template} × {variant}"
        for template in ("answer", "explain")
        for variant in ("small", "large")
    }
    for suite in [*suites.values(), root]:
        tags = Counter(child.tag for case in suite.iter("testcase") for child in case)
        assert (tags["failure"], tags["error"], tags["skipped"]) == tuple(
            int(suite.get(name)) for name in ("failures", "errors", "skipped")
        )
        assert int(suite.get("tests")) == len(list(suite.iter("testcase")))
    assert sum(int(suite.get("tests")) for suite in suites.values()) == 400


def test_hostile_texts_are_text_and_forbidden_characters_are_escaped(tmp_path: Path) -> None:
    root = written(hostile(), tmp_path / "out.xml")
    assert len(root) == len(HOSTILE) and {each.tag for each in root.iter()} == {
        "testsuites",
        "testsuite",
        "testcase",
        "properties",
        "property",
        "failure",
        "error",
        "skipped",
    }
    shown = [case.get("name").removesuffix(" [epoch 1]") for case in root.iter("testcase")][::5]
    assert shown[:4] == list(HOSTILE[:4])
    assert shown[4] == "\\x00\\x01\\x08\\x1b[31mred\x7f\u202eabc\u2028\\ufffe"
    assert shown[5:7] == ["half \\ud83d of a pair", "line\r\nbreak\ttab\rend"]


def test_a_dot_in_a_variant_does_not_create_a_package(tmp_path: Path) -> None:
    root = written([result(variant="gpt-4.1"), result(variant="")], tmp_path / "out.xml")
    assert [case.get("classname") for case in root.iter("testcase")] == ["answer.gpt-4_1", "answer"]
    assert [suite.get("name") for suite in root] == ["answer × gpt-4.1", "answer"]


@pytest.mark.parametrize(
    ("scores", "reason"), [({}, "no scorer"), (UNSCORED.scores, "includes could not judge")]
)
def test_a_skipped_result_has_a_reason(scores: dict[str, Any], reason: str, tmp_path: Path) -> None:
    root = written([result(scores=scores)], tmp_path / "out.xml")
    assert root.find(".//skipped").get("message").startswith(reason)


def test_a_batch_without_results_is_valid(tmp_path: Path) -> None:
    assert written([], tmp_path / "out.xml", {"name": 3}).get("tests") == "0"


def incomplete(root: Any) -> dict[str, str]:
    """What is said of each suite that is not complete; each such testcase is its suite's error."""
    found: dict[str, str] = {}
    for suite in root:
        for error in suite.iter("error"):
            if error.get("type") == "incomplete":
                assert error.getparent().get("name") == "complete" and error.text == error.get(
                    "message"
                )
                found[suite.get("name")] = error.text
        cases = list(suite.iter("testcase"))
        assert (int(suite.get("tests")), int(suite.get("errors"))) == (
            len(cases),
            sum(case.find("error") is not None for case in cases),
        )
    assert int(root.get("errors")) == sum(int(suite.get("errors")) for suite in root)
    return found


STOPPED = {
    "name": "metals",
    "state": "stopped",
    "sessions": [{"reason": ""}, {"reason": "asked to stop"}],
}
CELL, OTHER = ("answer", "small"), ("answer", "large")
SMALL, LARGE = "answer × small", "answer × large"
STOP = "the last session ended with: asked to stop"


@pytest.mark.parametrize(
    ("count", "manifest", "total", "says"),
    [
        (2, None, None, {}),
        (2, None, 2, {}),
        (2, {"name": "metals", "state": "complete"}, {CELL: 2}, {}),
        (2, None, 600, {SMALL: "598 of 600 results are pending"}),
        (2, None, {CELL: 2, OTHER: 3}, {LARGE: "3 of 3 results are pending"}),
        (
            2,
            STOPPED,
            {CELL: 5, OTHER: 3},
            {
                SMALL: f"3 of 5 results are pending; {STOP}",
                LARGE: f"3 of 3 results are pending; {STOP}",
            },
        ),
        (2, STOPPED, {CELL: 2}, {SMALL: STOP}),
        (2, STOPPED, None, {SMALL: STOP}),
        (
            2,
            {"name": "metals", "state": "running"},
            2,
            {SMALL: "the last session is running, or was killed"},
        ),
        (
            2,
            {"name": "metals", "state": "budget"},
            2,
            {SMALL: "the last session ended with: budget"},
        ),
        (0, STOPPED, None, {"metals": STOP}),
        (0, None, 4, {"metals": "4 of 4 results are pending"}),
    ],
)
def test_an_unfinished_batch_is_not_green(
    tmp_path: Path, count: int, manifest: Any, total: Any, says: dict[str, str]
) -> None:
    root = written([result(f"s{i}") for i in range(count)], tmp_path / "out.xml", manifest, total)
    assert incomplete(root) == says


def test_pending_results_of_no_single_suite_get_their_own_suite(tmp_path: Path) -> None:
    root = written([result(), result(variant="large")], tmp_path / "out.xml", total=5)
    assert incomplete(root) == {"metals": "3 of 5 results are pending"}
