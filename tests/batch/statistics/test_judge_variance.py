"""Variance of judges, and how often a panel changes its verdict."""

from __future__ import annotations

import math
import random

import pytest

from evaluator import UsageError
from evaluator.batch.statistics import judge_variance, noise_floor, panel_flips


def _ratings(answers: int, models: int, times: int, seed: int) -> list[list[list[float]]]:
    """Ratings with variances 4, 1 (in level 0.5, answer by answer 0.5) and 0.25."""
    rng = random.Random(seed)
    levels = [rng.gauss(0, math.sqrt(0.5)) for _ in range(models)]
    found: list[list[list[float]]] = []
    for _ in range(answers):
        own = rng.gauss(0, 2)
        rows = [own + level + rng.gauss(0, math.sqrt(0.5)) for level in levels]
        found.append([[row + rng.gauss(0, 0.5) for _ in range(times)] for row in rows])
    return found


@pytest.mark.parametrize(("models", "times"), [(1, 3), (2, 3), (3, 1), (4, 2)])
def test_it_equals_the_analysis_of_variance_of_statsmodels(models: int, times: int) -> None:
    formula = pytest.importorskip("statsmodels.formula.api")
    pandas = pytest.importorskip("pandas")
    anova = pytest.importorskip("statsmodels.stats.anova")
    ratings = _ratings(12, models, times, seed=models)
    frame = pandas.DataFrame(
        [
            {"y": value, "row": f"r{i}", "model": f"m{j}"}
            for i, answer in enumerate(ratings)
            for j, values in enumerate(answer)
            for value in values
        ]
    )
    terms = "C(row)" if models == 1 else "C(row) + C(model)"
    if models > 1 and times > 1:
        terms += " + C(row):C(model)"
    table = anova.anova_lm(formula.ols(f"y ~ {terms}", frame).fit())
    square = table["sum_sq"] / table["df"]
    error = square["Residual"]
    joint = square.get("C(row):C(model)", error)
    found = judge_variance(ratings)
    assert found.judge == pytest.approx(error)
    assert found.rows == pytest.approx(max(0, square["C(row)"] - joint) / (models * times))
    if models == 1:
        assert found.model is None
    else:
        level = max(0, square["C(model)"] - joint) / (12 * times)
        apart = max(0, joint - error) / times if times > 1 else 0
        assert found.model == pytest.approx(level + apart)


def test_the_parts_of_the_variance_are_found() -> None:
    found = [judge_variance(_ratings(150, 6, 2, seed)) for seed in range(12)]
    means = [
        sum(values) / 12
        for values in zip(*((f.rows, f.model, f.judge) for f in found), strict=True)
    ]
    assert means == [
        pytest.approx(4, rel=0.1),
        pytest.approx(1, rel=0.25),
        pytest.approx(0.25, rel=0.1),
    ]


def test_what_cannot_be_told_is_unknown() -> None:
    assert judge_variance([]).judge is None
    assert judge_variance([[[1.0]], [[2.0]]]).judge is None
    assert judge_variance([[[1.0, 1.0]]]).rows is None
    with pytest.raises(UsageError, match="as many values"):
        judge_variance([[[1.0, 2.0]], [[1.0]]])


@pytest.mark.parametrize("judges", [1, 2, 3, 5])
@pytest.mark.parametrize(("a", "b"), [(2.0, 1.0), (0.3, 0.4)])
def test_a_panel_flips_as_often_as_the_beta_distribution_says(
    judges: int, a: float, b: float
) -> None:
    integrate = pytest.importorskip("scipy.integrate")
    stats = pytest.importorskip("scipy.stats")

    def differs(p: float) -> float:
        panel = stats.binom(judges, p)
        return 2 * panel.sf(judges // 2) * panel.cdf((judges - 1) // 2) * stats.beta.pdf(p, a, b)

    wanted = integrate.quad(differs, 0, 1, points=[0.001, 0.999], limit=200)[0]
    flips = 2 * a * b / ((a + b) * (a + b + 1))
    assert panel_flips(a / (a + b), flips, judges) == pytest.approx(wanted, rel=2e-3)
    if judges == 1:
        assert panel_flips(a / (a + b), flips, 1) == pytest.approx(flips)


def test_a_judge_that_never_changes_its_mind_has_no_noise() -> None:
    assert panel_flips(0.7, 0.0, 3) == 0 and noise_floor(0.0) == 0
    assert panel_flips(0.5, 0.5, 1) == pytest.approx(0.5)
    assert noise_floor(1.0) == pytest.approx(1.959964)
