"""Fits the coefficients of `evaluator/library/search.py` on the train parts of public
collections.

    python bench/match_fit.py --data . [--sample 800] [--vectors]

See `match_public.py` for the data. The label is whether the first match is right; for an unrelated
request none is. Each collection has the same weight, and so have its fitting and its unrelated
requests, unless these are fewer. Unrelated are the off-topic requests of the train part and those
of `off_topic.txt`; joined by threes they weigh as much as singly. Templates left out are not
fitted: a near relative of the template that is missing looks like a fit. Printed are the
coefficients and what thresholds would refuse and let run: with these coefficients, and for each
collection with coefficients that were fitted on the others, which shows what holds for a library
that is not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from figures import parser_for
from match_sets import (
    TUNED,
    Collection,
    Row,
    as_nodes,
    off_topic,
    own_off_topic,
    sampled,
    small,
)

from evaluator.library.matching import LexicalRanker
from evaluator.library.search import Evidence, Logistic
from evaluator.library.vectors import make_ranker
from evaluator.nodes import Atomic

# Small coefficients hold on other collections better; the slope and the intercept are fitted again
# without a ridge.
RIDGE, TINY = 1e-2, 1e-9
ROUNDS = 12
THRESHOLDS = (0.22, 0.24, 0.25, 0.26, 0.27, 0.28, 0.3, 0.32, 0.34, 0.38)


class Found(NamedTuple):
    """What was found for a request: the evidence (None: nothing), whether it is right, its weight,
    and the request.
    """

    evidence: Evidence | None
    is_right: bool
    weight: float
    row: Row


def rows_of(collection: Collection, *, vectors: bool) -> list[Found]:
    ranker = (make_ranker if vectors else LexicalRanker)(collection.templates)
    assert isinstance(ranker, LexicalRanker)
    fitting = [row for row in collection.rows if row.wanted]
    others = [row for row in collection.rows if not row.wanted]
    found: list[Found] = []
    for rows in (fitting, others):
        whole = sum(row.joined for row in rows)
        share = min(1.0, len(rows) / len(fitting))
        for row in rows:
            assert isinstance(row.request, str | Atomic)
            best = ranker.evidence(row.request)
            weight = share * row.joined / whole
            if best is None:
                found.append(Found(None, False, weight, row))
                continue
            found.append(Found(best[1], best[0].name in row.wanted, weight, row))
    return found


def fit(rows: Iterable[Found]) -> Logistic:
    points = [
        ((*row.evidence, 1.0), row.is_right, row.weight) for row in rows if row.evidence is not None
    ]
    weights = newton(points, RIDGE)
    slope, shift = newton(
        [((_dot(weights, x), 1.0), right, weight) for x, right, weight in points], TINY
    )
    *weights, intercept = [slope * w for w in weights]
    return Logistic(Evidence(*[round(w, 2) for w in weights]), round(intercept + shift, 2))


def newton(points: Sequence[tuple[tuple[float, ...], bool, float]], ridge: float) -> list[float]:
    """Newton's method for a logistic; the ridge spares the last weight, the intercept."""
    size = len(points[0][0])
    ridges = [ridge] * (size - 1) + [TINY]
    weights = [0.0] * size
    total = sum(weight for _, _, weight in points)
    for _ in range(ROUNDS):
        gradient = [-r * w for r, w in zip(ridges, weights, strict=True)]
        hessian = [[r * (i == j) for j in range(size)] for i, r in enumerate(ridges)]
        for x, right, weight in points:
            p = 1 / (1 + math.exp(-max(-30.0, min(30.0, _dot(weights, x)))))
            error, curve = weight / total * (right - p), weight / total * p * (1 - p)
            for i in range(size):
                gradient[i] += error * x[i]
                for j in range(i + 1):
                    hessian[i][j] += curve * x[i] * x[j]
        for i in range(size):
            for j in range(i):
                hessian[j][i] = hessian[i][j]
        weights = [w + step for w, step in zip(weights, solved(hessian, gradient), strict=True)]
    return weights


def _dot(weights: Sequence[float], x: Sequence[float]) -> float:
    return sum(w * value for w, value in zip(weights, x, strict=True))


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
    parser.add_argument(
        "--sample", type=int, default=800, help="at most so many requests of each collection"
    )
    parser.add_argument(
        "--vectors", action="store_true", help="with the vectors of evaluator[vectors]"
    )
    arguments = parser.parse_args()
    unrelated = [*sampled(off_topic(arguments.data), "train", None), *own_off_topic()]
    commands = [row for row in small(arguments.data)[0].rows if not row.wanted]
    by_name: dict[str, list[Found]] = {}
    for key, (_, read) in TUNED.items():
        for collection in read(arguments.data):
            if "left out" in collection.name or "node" in collection.name:
                continue
            # The shipped templates answer questions about anything.
            if key == "shipped":
                others = [*own_off_topic("Commands"), *commands]
            elif key == "small":
                others = []
            else:
                others = unrelated
            whole = replace(
                collection,
                rows=[
                    *sampled([r for r in collection.rows if r.wanted], "train", arguments.sample),
                    *(row for row in collection.rows if not row.wanted and row.part == "train"),
                    *others,
                ],
            )
            for each in (whole, as_nodes(whole)):
                by_name[each.name] = rows_of(each, vectors=arguments.vectors)
    textual = {name: rows for name, rows in by_name.items() if "node" not in name}
    logistic = fit(row for rows in textual.values() for row in rows)
    print("TEXT =", logistic)
    nodes = {name: rows for name, rows in by_name.items() if "node" in name}
    logistic_of_nodes = fit(row for rows in nodes.values() for row in rows)
    print("NODE =", logistic_of_nodes)
    print_thresholds(dict.fromkeys(nodes, logistic_of_nodes), nodes)
    print_thresholds(dict.fromkeys(textual, logistic), textual)
    print("Fitted on the other collections:")
    print_thresholds(
        {
            name: fit(r for n, rows in textual.items() if n != name for r in rows)
            for name in textual
        },
        textual,
    )


def print_thresholds(
    logistics: Mapping[str, Logistic], by_name: Mapping[str, Sequence[Found]]
) -> None:
    for threshold in THRESHOLDS:
        shares = [_at(threshold, logistics[name], rows) for name, rows in by_name.items()]
        runs, refused = (sum(column) / len(shares) for column in zip(*shares, strict=True))
        each = (
            f"{name[:8]} {100 * runs:.1f} / {100 * refused:.1f}"
            for name, (runs, refused) in zip(by_name, shares, strict=True)
        )
        print(
            f"{threshold:.2f}: {100 * runs:.1f} % run, {100 * refused:.1f} % refused "
            f"({'; '.join(each)})"
        )


def _at(threshold: float, logistic: Logistic, rows: Sequence[Found]) -> tuple[float, float]:
    """The shares of the single unrelated requests that run something, and of the fitting ones that
    are refused.
    """
    runs: dict[bool, list[bool]] = {True: [], False: []}
    for row in rows:
        if row.row.joined == 1:
            does = row.evidence is not None and logistic.probability(row.evidence) >= threshold
            runs[bool(row.row.wanted)].append(does)
    return sum(runs[False]) / len(runs[False]), 1 - sum(runs[True]) / len(runs[True])


if __name__ == "__main__":
    main()
