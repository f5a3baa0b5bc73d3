"""How far judges agree with each other, from columns: combinations of what they said are counted, and no value kept."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import combinations

from evaluator.batch.statistics import cohen_kappa_of, krippendorff_alpha_of
from evaluator.batch.summary.columns import NONE, VALUED, Ballot, ScorerColumns
from evaluator.batch.summary.shape import Judges

Rating = Hashable | None


def votes_agreement(name: str, scorer: ScorerColumns, rows: array[int]) -> Iterator[Judges]:
    """Of the judges of one scorer: all of them by Krippendorff's alpha, then each two by Cohen's kappa.

    Nothing where the scorer has no votes in `rows`, or no two votes on the same result.
    """
    votes = scorer.votes
    if votes is None:
        return
    seen = Counter(votes[row] for row in rows if row < len(votes) and votes[row] != NONE)
    ballots: list[Ballot] = list(scorer.ballots)
    judges = tuple(dict.fromkeys(judge for number in seen for judge, _ in ballots[number]))
    counts = Counter[tuple[Rating, ...]]()
    for number, count in seen.items():
        given = dict(ballots[number])
        counts[tuple(given.get(judge) for judge in judges)] += count
    alpha = krippendorff_alpha_of(counts, len(judges))
    if alpha.n:
        yield Judges(judges, name, "krippendorff_alpha", alpha, _same(counts.items()))
    for (i, first), (j, second) in combinations(enumerate(judges), 2):
        pairs = Counter[tuple[Rating, Rating]]()
        for ratings, count in counts.items():
            pairs[ratings[i], ratings[j]] += count
        kappa = cohen_kappa_of(pairs)
        if kappa.n:
            yield Judges((first, second), name, "cohen_kappa", kappa, _same(pairs.items()))


def scorers_agreement(scorers: Mapping[str, ScorerColumns], rows: array[int]) -> Iterator[Judges]:
    """Of each two scorers that say only yes or no, by Cohen's kappa, where both judged some result in `rows`.

    A scorer says yes or no if each of its values in `rows` is 1 and passed, or 0 and failed.
    """
    ratings = {
        name: [_rating(scorer, row) for row in rows]
        for name, scorer in scorers.items()
        if _says_yes_or_no(scorer, rows)
    }
    for names in combinations(ratings, 2):
        pairs = Counter[tuple[Rating, Rating]](zip(ratings[names[0]], ratings[names[1]], strict=True))
        kappa = cohen_kappa_of(pairs)
        if kappa.n:
            yield Judges(names, None, "cohen_kappa", kappa, _same(pairs.items()))


def _says_yes_or_no(scorer: ScorerColumns, rows: array[int]) -> bool:
    there = (row for row in rows if row < len(scorer.state) and scorer.state[row] == VALUED)
    return all(scorer.passed[row] == NONE or scorer.value[row] == scorer.passed[row] for row in there)


def _rating(scorer: ScorerColumns, row: int) -> bool | None:
    return None if row >= len(scorer.state) or scorer.passed[row] == NONE else bool(scorer.passed[row])


def _same(counts: Iterable[tuple[tuple[Rating, ...], int]]) -> float | None:
    """The share of results with two ratings or more of which all are the same."""
    same = of = 0
    for ratings, count in counts:
        given = [rating for rating in ratings if rating is not None]
        if len(given) > 1:
            of += count
            same += count * (len(set(given)) == 1)
    return same / of if of else None
