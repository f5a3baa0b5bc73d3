"""The judges of a report in a real browser: agreement, stability and bias, with intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evaluator.batch import Score
from evaluator.batch.summary import summarise
from evaluator.viewer import ReportBatch, write_report
from tests.batch.export.results import FAILED, HOSTILE, result
from tests.batch.labelled import asked_batch
from tests.viewer.browser import Page, find_chromium
from tests.viewer.report_page import labelled

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs Chromium")


def voted(number: int, votes: Mapping[str, bool | None], scorer: str = "jury") -> Any:
    return result(
        f"s{number}", place=number, scores={scorer: Score(1.0, True, metadata={"votes": votes})}
    )


AGREEMENT = """
(() => {
  const region = document.querySelector('[aria-label="Agreement of judges"]');
  return region && [...region.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent));
})()
"""


def test_the_agreement_of_judges_is_shown_with_its_interval_and_n_of_n(
    with_page: Any, tmp_path: Path
) -> None:
    path = tmp_path / "r.html"
    ballots = [
        (True, True, True),
        (True, False, None),
        (False, False, False),
        (True, True, False),
        (None, None, True),
    ]
    votes = [dict(zip("abc", ballot, strict=True)) for ballot in ballots * 3]
    write_report(path, [ReportBatch([voted(number, each) for number, each in enumerate(votes)])])
    everyone, pair = (
        summarise(voted(number, each) for number, each in enumerate(votes)).groups[0].agreement[:2]
    )

    async def steps(page: Page) -> Any:
        await page.open(path)
        plots = "document.querySelectorAll('[aria-label=\"Agreement of judges\"] tbody tr:first-child svg .bar').length"
        return await page.run(AGREEMENT), await page.run(plots)

    rows, bars_of_the_first = with_page(steps)
    assert [row[1] for row in rows] == [
        "jury: all 3: a, b, c",
        "jury: a and b",
        "jury: a and c",
        "jury: b and c",
    ]
    assert all(row[0] == "answer × small" for row in rows)
    assert (
        everyone.agreement.value is not None
        and pair.agreement.low is not None
        and pair.agreement.high is not None
    )
    assert rows[0][2:] == [
        "Krippendorff's α",
        "",
        f"{everyone.agreement.value:.3g}",
        "–",
        "12 of 15",
        "50.0 %",
    ]
    span = f"{pair.agreement.low:.3g} to {pair.agreement.high:.3g}"
    assert rows[1][2:] == [
        "Cohen's κ",
        "",
        f"{pair.agreement.value:.3g}",
        span,
        "12 of 15",
        "75.0 %",
    ]
    assert bars_of_the_first == 0


def test_an_agreement_that_is_not_defined_says_why(with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_report(
        path,
        [ReportBatch([*(voted(number, {"a": True, "b": True}) for number in range(4)), FAILED])],
    )

    async def steps(page: Page) -> Any:
        await page.open(path)
        return await page.run(AGREEMENT), await page.run(
            "document.getElementById('summary').innerText"
        )

    rows, text = with_page(steps)
    assert [row[2:] for row in rows] == [
        ["Krippendorff's α", "", "not defined", "–", "4 of 4", "100.0 %"],
        ["Cohen's κ", "", "not defined", "–", "4 of 4", "100.0 %"],
    ]
    assert "It is undefined if all ratings are equal" in text


@pytest.mark.parametrize("summary", [None, "of an earlier version"])
def test_without_judges_nothing_is_said_of_them(
    summary: str | None, with_page: Any, tmp_path: Path
) -> None:
    path = tmp_path / "r.html"
    given = summarise(labelled(10)).to_dict()
    if summary is not None:
        for group in given["groups"]:
            del group["agreement"]
    write_report(path, [ReportBatch(labelled(10), summary=given)])

    async def steps(page: Page) -> Any:
        await page.open(path)
        return await page.run(AGREEMENT), await page.run(
            "document.getElementById('summary').innerText"
        )

    rows, text = with_page(steps)
    assert rows is None and "Agreement" not in text and "Usage" in text


def test_hostile_names_of_judges_stay_texts(with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    results = [
        voted(
            number,
            dict.fromkeys(HOSTILE[:2], number % 2 == 0) | {HOSTILE[2]: number % 3 == 0},
            HOSTILE[1],
        )
        for number in range(12)
    ]
    write_report(path, [ReportBatch(results), ReportBatch(results)])

    async def steps(page: Page) -> Any:
        await page.open(path)
        title, rows = await page.run("document.title"), await page.run(AGREEMENT)
        grown = await page.run("document.querySelectorAll('img, iframe, object, embed').length")
        wide = await page.run("document.documentElement.scrollWidth > innerWidth")
        return title, rows, grown, wide

    title, rows, grown, wide = with_page(steps)
    assert title == "batch and batch (2)" and (grown, wide) == (0, False)
    assert [row[0] for row in rows] == ["batch: small"] * 4 + ["batch (2): small"] * 4
    first, second, third = HOSTILE[:3]
    assert rows[0][1] == f"{second}: all 3: {first}, {second}, {third}"
    assert rows[1][1] == f"{second}: {first} and {second}" and rows[1][4:6] == ["1", "–"]


def test_what_is_known_of_a_judge_is_shown_with_its_intervals(
    with_page: Any, tmp_path: Path
) -> None:
    path = tmp_path / "r.html"
    batch = asked_batch(tmp_path / "quiz")
    summary = batch.summarise()
    write_report(path, [ReportBatch(batch.results(), batch.manifest, summary.to_dict())])

    async def steps(page: Page) -> Any:
        await page.open(path)
        read = '(name) => [...document.querySelectorAll(`[aria-label="${name}"] tbody tr`)].map((row) => [...row.cells].map((cell) => cell.textContent))'
        names = [
            "Corrected by labels of people",
            "Judges against labels",
            "Bias of judges",
            "Stability of verdicts",
        ]
        return await page.run(f"{json.dumps(names)}.map({read})")

    corrected, rates, (bias,), (stable,) = with_page(steps)
    (group,) = summary.groups
    found = group.calibrations["judge"]
    assert [row[0] for row in corrected] == ["judge"]
    assert "66.7 %" in corrected[0] and "41 of 60" in corrected[0]
    assert rates[0][0] == "judge: passes what people pass (sensitivity)"
    mean = found.rates.sensitivity.mean
    assert mean is not None and rates[0][1] == f"{100 * mean:.1f} %"
    assert rates[2][1] == f"{found.rates.kappa.value:.3g}".replace("-", "−")
    assert bias[0] == "judge, by length" and bias[1] == "longer than 5 characters"
    assert stable[:6] == ["judge", "60 of 60", "3", "11.1 %", "11.1 %", "–"]
    assert stable[-1].startswith("± ") and stable[-1].endswith(" points")
