"""After 20 results, the progress shows what the rest is expected to take, with an interval."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice

import pytest

from evaluator import Usage, clock
from evaluator.batch import SampleResult, Verdict
from evaluator.batch.display import line_of
from evaluator.batch.progress import Spread, Tally, Totals


def result(number: int, cost_usd: float | None, duration_s: float = 1.0) -> SampleResult:
    usage = Usage(10, 10, 0, 0, cost_usd, turns=1)
    return SampleResult(
        "0" * 32,
        str(number),
        place=number,
        epoch=1,
        template="t",
        variant="m",
        verdict=Verdict.PASSED,
        inputs={},
        usage=usage,
        duration_s=duration_s,
    )


def test_the_rest_is_expected_from_the_twentieth_result_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    tally = Tally(total=100)
    for number in range(19):
        now[0] += 1
        tally.add(result(number, 0.01 + 0.002 * (number % 2), 1.0 + number % 2).to_dict())
    early = tally.snapshot(1)
    assert early.cost_left_usd is None and early.time_left_s is None
    assert "left" not in line_of(early)
    tally.add(result(19, 0.012, 2.0).to_dict())
    now[0] += 1
    snapshot = tally.snapshot(1)
    cost = snapshot.cost_left_usd
    time = snapshot.time_left_s
    assert cost is not None and time is not None
    assert cost.low < cost.mean < cost.high and time.low < time.mean < time.high
    assert cost.mean == pytest.approx(80 * 0.011)
    assert time.mean == snapshot.eta_s == pytest.approx(80)
    line = line_of(snapshot)
    assert "ETA 1:20 (" in line and ", $0.8800 left ($" in line
    assert snapshot.to_dict()["cost_left_usd"]["mean"] == cost.mean


@pytest.mark.parametrize("sizes", [(0, 30), (1, 29), (12, 0, 18), (30,)])
def test_merged_totals_are_those_of_all_results(sizes: tuple[int, ...]) -> None:
    results = [
        replace(
            result(number, None if number == 7 else 0.01 * number, 1.0 + number % 5),
            verdict=Verdict.ERROR if number % 3 == 0 else Verdict.PASSED,
            cached_calls=number,
            interrupted_calls=1,
        ).to_dict()
        for number in range(30)
    ]
    merged = Tally(total=100)
    whole = Tally(total=100, started=merged.started)
    left = iter(results)
    for size in sizes:
        part = Totals()
        for each in islice(left, size):
            part.add(each)
            whole.add(each)
        merged.merge(part.state())
    assert merged.ran == whole.ran == 30
    for name in ("verdicts", "errors", "cached_calls", "interrupted_calls"):
        assert getattr(merged, name) == getattr(whole, name), name
    seen = merged.snapshot(1)
    expected = whole.snapshot(1)
    assert seen.usage == expected.usage and seen.usage.cost_usd is None
    assert seen.known_usage.to_dict() == pytest.approx(expected.known_usage.to_dict())
    for name in ("_costs", "_durations"):
        assert getattr(merged, name).state() == pytest.approx(getattr(whole, name).state()), name


def test_an_unknown_cost_is_not_expected_to_be_zero() -> None:
    tally = Tally(total=100)
    for number in range(30):
        tally.add(result(number, None if number == 7 else 0.01).to_dict())
    snapshot = tally.snapshot(1)
    assert snapshot.cost_left_usd is None
    assert snapshot.usage.cost_usd is None
    line = line_of(snapshot)
    assert " · at least $0.2900 · " in line and " · 600 tokens · " in line


def test_progress_shows_unknown_usage_as_a_lower_bound() -> None:
    tally = Tally(total=3)
    unknown = replace(result(0, None), usage=Usage(None, None, cost_usd=None, turns=1))
    tally.add(unknown.to_dict())
    assert " · ? tokens · $? · " in line_of(tally.snapshot(1))
    tally.add(result(1, 0.01).to_dict())
    assert " · at least 20 tokens · at least $0.0100 · " in line_of(tally.snapshot(1))


def test_progress_shows_usage_with_interrupted_calls_as_a_lower_bound() -> None:
    tally = Tally(total=3)
    tally.add(replace(result(0, 0.01), interrupted_calls=2).to_dict())
    line = line_of(tally.snapshot(1))
    assert " · at least 20 tokens · at least $0.0100 · " in line
    assert line.endswith(" · 2 calls interrupted")


def test_the_interval_holds_the_sum_as_often_as_it_says() -> None:
    draw = random.Random(7)
    held = 0
    for _ in range(1_000):
        seen = Spread()
        for _ in range(40):
            seen.add(draw.gammavariate(4, 1))
        expected = seen.sum_of(100)
        assert expected is not None
        actual = sum(draw.gammavariate(4, 1) for _ in range(100))
        held += expected.low <= actual <= expected.high
    assert 920 <= held <= 980


def test_verdicts_are_in_one_order_and_nothing_left_takes_no_time() -> None:
    tally = Tally(total=3)
    for verdict in (Verdict.FAILED, Verdict.PASSED, Verdict.FAILED):
        tally.keep(verdict)
    line = line_of(tally.snapshot(0))
    assert line.startswith("3 of 3: 1 passed, 2 failed") and "ETA 0:00" in line
