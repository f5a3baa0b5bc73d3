"""Agreement between judges and between scorers, from counts of combinations of their ratings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import partial
from itertools import combinations
from operator import eq

from evaluator.batch.statistics import cohen_kappa_of, krippendorff_alpha_of
from evaluator.batch.summary.columns import Rows, ScorerColumns, is_known, rows_where
from evaluator.batch.summary.parts import JudgeAgreement
from evaluator.batch.summary.rows import VALUED, Ballot

Rating = Hashable | None
_RATINGS = (False, True, None)
"""By the values of `ScorerColumns.passed`, where NONE is the last one."""


def votes_agreement(name: str, scorer: ScorerColumns, rows: Rows) -> Iterator[JudgeAgreement]:
    """The agreement of one scorer's judges: Krippendorff's alpha of all, then Cohen's kappa of each
    two.

    Empty where the scorer has no two votes on the same result in `rows`.
    """
    votes = scorer.votes
    if votes is None:
        return
    seen = Counter(filter(is_known, votes.at(rows)))
    ballots: list[Ballot] = list(scorer.ballots)
    judges = tuple(dict.fromkeys(judge for number in seen for judge, _ in ballots[number]))
    counts = Counter[tuple[Rating, ...]]()
    for number, count in seen.items():
        given = dict(ballots[number])
        counts[tuple(given.get(judge) for judge in judges)] += count
    alpha = krippendorff_alpha_of(counts, len(judges))
    if alpha.n:
        yield JudgeAgreement(judges, name, "krippendorff_alpha", _same(counts.items()), alpha)
    for (i, first), (j, second) in combinations(enumerate(judges), 2):
        pairs = Counter[tuple[Rating, Rating]]()
        for ratings, count in counts.items():
            pairs[ratings[i], ratings[j]] += count
        kappa = cohen_kappa_of(pairs)
        if kappa.n:
            yield JudgeAgreement((first, second), name, "cohen_kappa", _same(pairs.items()), kappa)


def scorers_agreement(scorers: Mapping[str, ScorerColumns], rows: Rows) -> Iterator[JudgeAgreement]:
    """Cohen's kappa of each two scorers with binary scores, where both judged some result in
    `rows`.

    A scorer is binary if each of its values in `rows` is 1 and passed, or 0 and failed.
    """
    if len(scorers) < 2:
        return
    ratings = {
        name: list(map(_RATINGS.__getitem__, scorer.passed.at(rows)))
        for name, scorer in scorers.items()
        if _is_binary(scorer, rows)
    }
    for names in combinations(ratings, 2):
        pairs = Counter[tuple[Rating, Rating]](
            zip(ratings[names[0]], ratings[names[1]], strict=True)
        )
        kappa = cohen_kappa_of(pairs)
        if kappa.n:
            yield JudgeAgreement(names, None, "cohen_kappa", _same(pairs.items()), kappa)


def _is_binary(scorer: ScorerColumns, rows: Rows) -> bool:
    valued = rows_where(partial(eq, VALUED), scorer.state, rows)
    judged = rows_where(is_known, scorer.passed, valued)
    return all(map(eq, scorer.value.at(judged), scorer.passed.at(judged)))


def _same(counts: Iterable[tuple[tuple[Rating, ...], int]]) -> float | None:
    """The share of equal ratings among results with at least two ratings."""
    same = of = 0
    for ratings, count in counts:
        given = [rating for rating in ratings if rating is not None]
        if len(given) > 1:
            of += count
            same += count * (len(set(given)) == 1)
    if of:
        return same / of
    return None
