"""How well `LexicalRanker` finds templates in public collections of labelled requests.

    git clone --depth 1 https://github.com/HowieHwong/MetaTool
    git clone --depth 1 https://github.com/ShishirPatil/gorilla
    git clone --depth 1 https://github.com/clinc/oos-eval
    git clone --depth 1 https://github.com/fairyshine/Seal-Tools
    git clone --depth 1 https://github.com/THUNLP-MT/StableToolBench
    git clone --depth 1 https://github.com/PolyAI-LDN/task-specific-datasets
    python bench/match_public.py --data . [--part test] [--sample 1000] [--sets toole,clinc]
        [--vectors]

Each tool, function or intent becomes a template. A collection whose folder is missing is left out,
which is said. The splits are fixed: CLINC150 and Seal-Tools have their own; elsewhere the digest of
a request decides. Coefficients and weights were chosen on the train part; `--part test` is what
counts. Nothing was tuned on the sets of `UNTUNED`: they have a test part only. `large` has 15,000
templates of all collections and shows the time only. Off-topic requests are the out-of-scope
requests of CLINC150, asked of every library.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from figures import Figure, parser_for, remarks, report
from match_sets import COLLECTIONS, UNTUNED, Collection, Row, off_topic, sampled

from evaluator.library.matching import LOW_SCORE, LexicalRanker, Match, Ranker
from evaluator.library.vectors import find_vectors, make_ranker

OFF_TOPIC = 600


def auroc(right: Sequence[float], wrong: Sequence[float]) -> float:
    """The probability that a fitting request scores above an unrelated one; equal scores count
    half.
    """
    ordered = sorted([(score, True) for score in right] + [(score, False) for score in wrong])
    total, below, start = 0.0, 0, 0
    while start < len(ordered):
        end = start
        while end < len(ordered) and ordered[end][0] == ordered[start][0]:
            end += 1
        fits = sum(1 for _, fit in ordered[start:end] if fit)
        others = end - start - fits
        total += fits * (below + others / 2)
        below += others
        start = end
    return total / (len(right) * len(wrong))


def calibration_error(pairs: Iterable[tuple[float, bool]], bins: int = 10) -> float:
    """The expected calibration error over bins of equal width: |share right - mean score|, weighted
    by their sizes.
    """
    held: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for score, right in pairs:
        held[min(bins - 1, int(score * bins))].append((score, right))
    size = sum(map(len, held))
    return sum(abs(sum(s for s, _ in b) - sum(r for _, r in b)) for b in held) / size


def measure(
    collection: Collection,
    part: str,
    most: int | None,
    others: Sequence[Row],
    *,
    vectors: bool,
    rounds: int = 1,
) -> list[Figure]:
    rows = sampled(collection.rows, part, most)
    ranker = (make_ranker if vectors else LexicalRanker)(collection.templates)
    found, cpu = timed(ranker, rows, rounds)
    fits = [(row, names(matches)) for row, matches in found if row.wanted]
    title = f"{collection.name} ({len(collection.templates)} templates, {len(rows)} requests)"
    figures = [
        Figure(
            f"{title}: recall@1",
            100 * share(bool(row.wanted & set(five[:1])) for row, five in fits),
            "%",
        ),
        Figure(
            "  recall@5",
            100 * share(len(row.wanted & set(five)) / len(row.wanted) for row, five in fits),
            "%",
        ),
        Figure(
            "  any right one of five",
            100 * share(bool(row.wanted & set(five)) for row, five in fits),
            "%",
        ),
    ]
    related = [top(matches) for row, matches in found if row.wanted]
    own = [top(matches) for row, matches in found if not row.wanted]
    asked = [(row, ranker.rank(row.request, 5)) for row in others]
    for title, unrelated in (
        ("unrelated requests", own),
        ("off-topic requests", [top(matches) for row, matches in asked if row.joined == 1]),
        (
            "off-topic requests, three in one",
            [top(matches) for row, matches in asked if row.joined > 1],
        ),
    ):
        if unrelated:
            figures += [
                Figure(f"  AUROC of {title}", auroc(related, unrelated), ""),
                Figure(
                    f"  {title} that run something",
                    100 * share(s >= LOW_SCORE for s in unrelated),
                    "%",
                ),
            ]
    ece = calibration_error(
        (top(m), bool(row.wanted & set(names(m[:1])))) for row, m in [*found, *asked]
    )
    return [
        *figures,
        Figure("  fitting requests refused", 100 * share(s < LOW_SCORE for s in related), "%"),
        Figure("  expected calibration error", ece, ""),
        Figure("  CPU", cpu, "ms"),
    ]


def timed(
    ranker: Ranker, rows: Sequence[Row], rounds: int = 1
) -> tuple[list[tuple[Row, list[Match]]], float]:
    """The matches of each request, and the milliseconds of CPU that one takes in the fastest of
    `rounds`.

    The index is built before.
    """
    ranker.rank("warm up")
    found: list[tuple[Row, list[Match]]] = []
    spent = 0.0
    for row in rows:
        fastest = math.inf
        matches: list[Match] = []
        for _ in range(rounds):
            began = time.process_time()
            matches = ranker.rank(row.request, 5)
            fastest = min(fastest, time.process_time() - began)
        found.append((row, matches))
        spent += fastest
    return found, 1e3 * spent / len(rows)


def names(matches: Iterable[Match]) -> list[str]:
    return [match.template.name for match in matches]


def top(matches: Sequence[Match]) -> float:
    return matches[0].score if matches else 0.0


def share(values: Iterable[float]) -> float:
    counted = list(values)
    return sum(counted) / len(counted)


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds the clones")
    parser.add_argument("--part", choices=("train", "test"), default="test")
    parser.add_argument("--sample", type=int, help="at most so many requests of each collection")
    parser.add_argument(
        "--sets", default=",".join(COLLECTIONS), help="which collections, separated by commas"
    )
    parser.add_argument(
        "--vectors", action="store_true", help="with the vectors of evaluator[vectors]"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        help="match each request so often; CPU is that of the fastest",
    )
    arguments = parser.parse_args()
    if arguments.vectors and find_vectors() is None:
        parser.error("evaluator[vectors] is not installed")
    say = remarks(arguments.json)
    figures: list[Figure] = []
    others = sampled(off_topic(arguments.data), arguments.part, OFF_TOPIC)
    for key in arguments.sets.split(","):
        folder, read = COLLECTIONS[key]
        if not (arguments.data / folder).is_dir():
            print(f"{key}: left out, there is no folder {arguments.data / folder}", file=sys.stderr)
            continue
        for collection in read(arguments.data):
            say(f"{collection.name} ...")
            if arguments.part == "train" and key in UNTUNED:
                continue
            # The shipped templates answer questions about anything; a node is always meant for a
            # template.
            if key == "large":
                ranker = (make_ranker if arguments.vectors else LexicalRanker)(collection.templates)
                rows = sampled(collection.rows, arguments.part, arguments.sample)
                cpu = timed(ranker, rows, arguments.rounds)[1]
                figures.append(
                    Figure(
                        f"{collection.name} ({len(collection.templates)} templates): CPU", cpu, "ms"
                    )
                )
                continue
            asked = (
                []
                if key in ("shipped", "held_out")
                or "node" in collection.name
                or "left out" in collection.name
                else others
            )
            figures += measure(
                collection,
                arguments.part,
                arguments.sample,
                asked,
                vectors=arguments.vectors,
                rounds=arguments.rounds,
            )
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
