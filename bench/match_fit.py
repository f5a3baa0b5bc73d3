"""Fits the coefficients of `evaluator/library/calibration.py` on the train parts of public collections.

    python bench/match_fit.py --data . [--sample 800] [--vectors]

See `match_public.py` for the data. The label is whether the first match is right; for an unrelated request none is.
Each collection has the same weight, and so have its fitting and its unrelated requests, unless these are fewer.
Off-topic requests joined by threes weigh as much as single ones.
Templates left out are not fitted: a near relative of the template that is missing looks like a fit.
Printed are the coefficients and, for thresholds, what they would refuse and let run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from figures import parser_for
from match_sets import TUNED, Collection, Row, off_topic, sampled

from evaluator.library.calibration import Evidence, Logistic
from evaluator.library.matching import LexicalRanker
from evaluator.library.vectors import make_ranker
from evaluator.nodes import Atomic

RIDGE, THREE = 1e-3, 3
THRESHOLDS = (0.28, 0.3, 0.32, 0.34, 0.36, 0.38, 0.4, 0.44, 0.46, 0.48, 0.5, 0.55)
# (evidence, whether the first match is right, whether anything fits, weight)
Found = tuple[Evidence, bool, bool, float]


def rows_of(collection: Collection, unrelated: Sequence[Row], most: int, *, vectors: bool) -> list[Found]:
    ranker = (make_ranker if vectors else LexicalRanker)(collection.templates)
    assert isinstance(ranker, LexicalRanker)
    fitting = sampled([row for row in collection.rows if row.wanted], "train", most)
    others = [*(row for row in collection.rows if not row.wanted and row.part == "train"), *unrelated]
    found: list[Found] = []
    for rows in (fitting, others):
        weight = 1 / max(len(rows), len(fitting))
        for row in rows:
            assert isinstance(row.request, str | Atomic)
            if (best := ranker.evidence(row.request)) is not None:
                share = weight * (THREE if not row.wanted and ". " in str(row.request) else 1)
                found.append((best[1], best[0].name in row.wanted, bool(row.wanted), share))
    return found


def fit(rows: Sequence[Found], rounds: int = 30) -> Logistic:
    """Newton's method for a logistic with a small ridge."""
    size = len(Logistic._fields)
    weights = [0.0] * size
    total = sum(row[3] for row in rows)
    for _ in range(rounds):
        gradient = [-RIDGE * w for w in weights]
        hessian = [[RIDGE * (i == j) for j in range(size)] for i in range(size)]
        for evidence, right, _, weight in rows:
            x = (*evidence, 1.0)
            p = 1 / (1 + math.exp(-max(-30.0, min(30.0, sum(a * b for a, b in zip(weights, x, strict=True))))))
            share = weight / total
            for i in range(size):
                gradient[i] += share * (right - p) * x[i]
                for j in range(size):
                    hessian[i][j] += share * p * (1 - p) * x[i] * x[j]
        weights = [w + step for w, step in zip(weights, solved(hessian, gradient), strict=True)]
    return Logistic(*(round(w, 2) for w in weights))


def solved(matrix: list[list[float]], vector: Sequence[float]) -> list[float]:
    """Solves a linear system by Gaussian elimination with pivots."""
    rows = [[*row, value] for row, value in zip(matrix, vector, strict=True)]
    size = len(rows)
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(size):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    return [rows[i][size] / rows[i][i] for i in range(size)]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds the clones")
    parser.add_argument("--sample", type=int, default=800, help="at most so many requests of each collection")
    parser.add_argument("--vectors", action="store_true", help="with the vectors of evaluator[vectors]")
    arguments = parser.parse_args()
    unrelated = sampled(off_topic(arguments.data), "train", None)
    by_name: dict[str, list[Found]] = {}
    for key, (_, read) in TUNED.items():
        for collection in read(arguments.data):
            if "left out" not in collection.name:
                # The shipped templates answer questions about anything, so they have unrelated requests of their own.
                others = [] if key == "shipped" or "node" in collection.name else unrelated
                by_name[collection.name] = rows_of(collection, others, arguments.sample, vectors=arguments.vectors)
    textual = {name: rows for name, rows in by_name.items() if "node" not in name}
    logistic = fit([row for rows in textual.values() for row in rows])
    print("TEXT =", logistic)
    print("NODE =", fit([row for rows in by_name.values() for row in rows]))
    for threshold in THRESHOLDS:
        print(f"threshold {threshold:.2f}: " + "; ".join(_at(threshold, logistic, n, r) for n, r in textual.items()))


def _at(threshold: float, logistic: Logistic, name: str, rows: Sequence[Found]) -> str:
    unrelated = [(logistic.probability(r[0]) >= threshold, r[3]) for r in rows if not r[2]]
    runs = sum(weight for does, weight in unrelated if does) / sum(weight for _, weight in unrelated)
    refused = [logistic.probability(r[0]) < threshold for r in rows if r[2]]
    return f"{name[:12]} {100 * runs:.0f} % run, {100 * sum(refused) / len(refused):.0f} % refused"


if __name__ == "__main__":
    main()
