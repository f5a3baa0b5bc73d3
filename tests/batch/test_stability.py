"""Judges that are asked several times: the summary, thresholds and comparisons show their noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from evaluator.batch import BatchSummary, SampleResult, Score
from evaluator.batch.compare import compare
from evaluator.batch.summary import summarise
from evaluator.batch.summary.parts import JudgeStability, PanelColumns
from evaluator.batch.thresholds import check_thresholds, parse_threshold
from tests.batch.labelled import result_of

TWICE = ("a.1", "a.2", "b.1", "b.2")
THREE_TIMES = ("a.1", "a.2", "a.3")


def _judged(
    place: int, votes: Sequence[bool | None], judges: Sequence[str] = TWICE
) -> SampleResult:
    given = dict(zip(judges, votes, strict=True))
    values = {judge: float(vote) for judge, vote in given.items() if vote is not None}
    passed = sum(values.values()) > len(values) / 2
    models = {judge: judge[0] for judge in given}
    metadata = {"votes": given, "values": values, "models": models}
    score = Score(sum(values.values()) / len(values), passed, metadata=metadata)
    return replace(result_of(place, "x", passed), scores={"judge": score})


def _noisy(flips: float, seed: int, share: float = 0.6) -> list[SampleResult]:
    """200 answers whose judge changes its mind with the probability `flips` each time."""
    rng = random.Random(seed)
    results: list[SampleResult] = []
    for place in range(200):
        truth = place < 200 * share
        votes = [truth != (rng.random() < flips) for _ in THREE_TIMES]
        results.append(_judged(place, votes, THREE_TIMES))
    return results


def _summary(results: Sequence[SampleResult]) -> BatchSummary:
    return summarise(results, total=len(results))


def test_flips_are_shares_of_pairs_of_verdicts() -> None:
    rows = [(True, True, True, True), (True, False, True, True), (True, None, False, False)]
    found = _summary([_judged(n, row) for n, row in enumerate(rows)]).groups[0].stability["judge"]
    assert (found.n, found.of, found.judges, found.models) == (3, 3, 4, 2)
    assert found.flips_again == pytest.approx(1 / 5)
    assert found.flips_model == pytest.approx(4 / 10)
    assert found.flips == pytest.approx(5 / 15) and found.flips_order is None
    assert found.variance.n == 2


def test_only_what_is_asked_several_times_has_a_stability() -> None:
    plain = _summary([result_of(n, "x", True) for n in range(3)])
    assert plain.groups[0].stability == {} and "Stability" not in str(plain)
    swapped = Score(0.5, None, metadata={"flipped": True, "verdicts": ["win", "loss"]})
    settled = Score(1.0, True, metadata={"flipped": False, "verdicts": ["win", "win"]})
    results = [
        replace(result_of(n, "x", True), scores={"judge": one})
        for n, one in enumerate((swapped, settled))
    ]
    found = _summary(results).groups[0].stability["judge"]
    assert (found.flips, found.flips_order, found.noise_floor) == (None, 0.5, None)


def test_the_summary_shows_flips_variance_and_noise_floor() -> None:
    summary = _summary(_noisy(0.1, seed=1))
    text = " ".join(str(summary).split())
    assert "Stability of verdicts" in text and "points are noise of the judge" in text
    found = summary.to_dict()["groups"][0]["stability"]["judge"]
    assert found["flips"] == pytest.approx(0.18, abs=0.05)
    assert found["variance"]["judge"] == pytest.approx(found["flips"] / 2)
    assert found["noise_floor"] == pytest.approx(
        1.96 * (found["verdict_flips"] / 200) ** 0.5, rel=1e-3
    )


def test_a_threshold_on_flips_is_met_missed_or_incomplete() -> None:
    def status(text: str, results: Sequence[SampleResult]) -> tuple[str, str]:
        (found,) = check_thresholds(_summary(results), [parse_threshold(text)])
        return found.status.value, found.reason

    assert status("flips <= 0.05", _noisy(0.005, seed=2))[0] == "met"
    assert status("flips(judge) <= 5%", _noisy(0.2, seed=3))[0] == "missed"
    plain = [result_of(n, "x", True) for n in range(3)]
    assert status("flips <= 0.05", plain)[0] == "incomplete"
    assert "judge_epochs" in status("flips <= 0.05", plain)[1]


def test_a_difference_below_the_noise_floor_is_named() -> None:
    small = compare(_noisy(0.25, seed=4), _noisy(0.25, seed=6))
    assert small.noise_floor is not None and any("noise floor" in line for line in small.warnings)
    large = compare(_noisy(0.02, seed=4), _noisy(0.02, seed=5, share=0.9), scorer="judge")
    assert large.noise_floor is not None and large.noise_floor < 0.05
    assert not any("noise floor" in line for line in large.warnings)
    plain = [result_of(n, "x", True) for n in range(3)]
    assert compare(plain, plain).noise_floor is None


def test_the_noise_floor_contains_the_differences_of_two_judgings() -> None:
    within = [0, 0]
    for seed in range(40):
        found: list[JudgeStability] = []
        shares: list[float] = []
        means: list[float] = []
        for side in (seed, 1000 + seed):
            scores = [result.scores["judge"] for result in _noisy(0.2, seed=side)]
            panel = PanelColumns()
            for row, score in enumerate(scores):
                panel.put(row, score.metadata)
            found.append(panel.stability(range(200)) or pytest.fail("no stability"))
            shares.append(sum(bool(score.passed) for score in scores) / 200)
            means.append(sum(score.value or 0 for score in scores) / 200)
        within[0] += abs(shares[0] - shares[1]) <= (found[0].noise_floor or 0)
        within[1] += abs(means[0] - means[1]) <= (found[0].value_noise_floor or 0)
    assert all(35 <= count <= 40 for count in within), within
