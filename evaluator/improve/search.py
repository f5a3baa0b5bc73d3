"""The search: rounds of proposals, races on the selection rows, a decision on the sealed rows.

A search is a function of its settings, its rows and its evidence: what a template did on each row,
and what was proposed. Evidence is made once and recorded, so a search that is repeated with the
records of an earlier one comes to the same end. Resuming and verifying do just that.

The rows are divided into three parts: train rows are shown to the proposer, selection rows choose
among candidates, and sealed rows decide, once.

The part of a row depends on its cluster alone, not on a seed, on its place or on the other rows. So
a row that was sealed in one search is sealed in the next, also after rows were added, and rows of
one cluster never stand on two sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from hashlib import blake2b
from random import Random
from typing import Any, Literal, Protocol

from evaluator.batch.fields import reader_of
from evaluator.batch.identity import digest
from evaluator.batch.records import Sample
from evaluator.batch.statistics import mean_difference, pairs_needed, race, smallest_difference
from evaluator.errors import EvaluatorError, UsageError
from evaluator.fields import JsonForm
from evaluator.improve.decide import Claim, Decision, Outcome, decide, paired_difference
from evaluator.improve.edits import Edit, edit_to_dict
from evaluator.lazy_dataclass import dataclass, frozen

Part = Literal["train", "selection", "sealed"]
SEALED_SHARE = 0.5
SELECTION_SHARE = 0.3
MAX_SELECTION = 300
"""More rows do not choose better, and each candidate pays for them."""
MAX_TRAIN = 100
LEAST = 10
"""Rows that the sealed part and the selection part need, in different clusters."""
CHANGED_SHARE = 0.2
"""The share of answers that an edit changes, before anything is measured."""


@frozen
class Row:
    """A row of the search. `digest` is the hash of its inputs and target."""

    sample: Sample
    cluster: Hashable
    digest: str

    @property
    def id(self) -> str:
        return self.sample.id


@frozen
class Split:
    """The rows of each part, in an order that depends on their content only. `unused` is the number
    of sealed rows that the search does not need.
    """

    train: tuple[Row, ...]
    selection: tuple[Row, ...]
    sealed: tuple[Row, ...]
    unused: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The sizes and digests of the parts."""
        return {
            part: {"rows": len(rows), "clusters": len(clusters_of(rows)), "sha": digest_of(rows)}
            for part, rows in self.parts().items()
        } | {"unused": self.unused}

    def parts(self) -> Mapping[str, Sequence[Row]]:
        return {"train": self.train, "selection": self.selection, "sealed": self.sealed}


@frozen
class Reach(JsonForm):
    """What the sealed rows can show. `smallest` is the gain that is found with 80 % power, `needed`
    the sealed rows that the gain `wanted` takes. `changed` is the share of answers that differ
    between the two templates, assumed or measured.
    """

    rows: int
    smallest: float
    wanted: float
    needed: int
    changed: float

    def __str__(self) -> str:
        return (
            f"with {self.rows:,} sealed rows, 80 % power begins at a gain of "
            f"{100 * self.smallest:.1f} points; for {100 * self.wanted:g} points it takes "
            f"{self.needed:,} sealed rows (if {100 * self.changed:.0f} % of the answers change)"
        )


def reach_of(rows: int, wanted: float) -> Reach:
    """What `rows` independent sealed rows can show."""
    spread = CHANGED_SHARE**0.5
    return Reach(
        rows,
        smallest=smallest_difference(spread, rows),
        wanted=wanted,
        needed=pairs_needed(spread, wanted),
        changed=CHANGED_SHARE,
    )


def rows_of(samples: Iterable[Sample], cluster: str | None) -> list[Row]:
    """The rows of samples, clustered by a metadata field or an expression. Without one, rows with
    equal inputs are a cluster.
    """
    if cluster is None:
        read = None
    else:
        read = reader_of(cluster, "cluster")
    rows: list[Row] = []
    for sample in samples:
        group = None if read is None else read(sample)
        if group is None:
            group = digest(dict(sample.inputs))
        rows.append(Row(sample, str(group), digest([dict(sample.inputs), sample.target])))
    return rows


def split_rows(rows: Sequence[Row], gain: float) -> Split:
    """The parts of `rows`; as many sealed rows as a gain of that size takes.

    Raises: UsageError, if there are too few rows or clusters.
    """
    ordered = sorted(rows, key=lambda row: (_place(row.cluster), row.digest, row.id))
    parts: dict[Part, list[Row]] = {"train": [], "selection": [], "sealed": []}
    for row in ordered:
        parts[part_of(row.cluster)].append(row)
    for part in ("sealed", "selection"):
        clusters = len(clusters_of(parts[part]))
        if clusters < LEAST:
            raise UsageError(
                f"{len(rows):,} rows give {clusters} {part} rows in different clusters, and "
                f"{LEAST} are needed; give more rows"
            )
    if not parts["train"]:
        raise UsageError("no row is a train row, which the proposer sees; give more rows")
    wanted = pairs_needed(CHANGED_SHARE**0.5, gain)
    sealed = parts["sealed"]
    return Split(
        tuple(parts["train"][:MAX_TRAIN]),
        tuple(parts["selection"][:MAX_SELECTION]),
        tuple(sealed[:wanted]),
        unused=max(0, len(sealed) - wanted),
    )


def part_of(cluster: Hashable) -> Part:
    """The part of all rows of a cluster."""
    place = _place(cluster)
    if place < SEALED_SHARE:
        return "sealed"
    if place < SEALED_SHARE + SELECTION_SHARE:
        return "selection"
    return "train"


def clusters_of(rows: Iterable[Row]) -> set[Hashable]:
    return {row.cluster for row in rows}


def digest_of(rows: Iterable[Row]) -> str:
    """The hash of the content of rows, whatever their order."""
    return digest(sorted(row.digest for row in rows))


def _place(cluster: Hashable) -> float:
    """A number from 0 to 1 that belongs to a cluster."""
    text = f"evaluator improve\0{cluster}"
    value = blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(value) / 2**64


LOOKS = 3
"""Looks of a race; after each, hopeless candidates leave it."""
LEAST_ROWS_OF_LOOK = 20
RACE_ALPHA = 0.1
"""The chance that a race drops a candidate for another one that is not better. A candidate that is
dropped by mistake costs power and no validity, so it is high.
"""
MAX_RACE_ALPHA = 0.9
BASE = "c0"

Outcomes = Mapping[str, Outcome]
"""Outcomes by the ids of rows."""


class OutOfBudget(EvaluatorError):
    """The budget does not allow the next step of the search."""


@frozen
class Proposal:
    """Edits of a template that were checked. `sha` is the hash of the whole text that they make."""

    edits: tuple[Edit, ...]
    why: str
    sha: str
    parents: tuple[str, ...]


@frozen
class Candidate:
    """A version of the template: the edits that make it from the template."""

    id: str
    edits: tuple[Edit, ...] = ()
    why: str = ""
    sha: str = ""
    parents: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "parents": list(self.parents),
            "why": self.why,
            "sha": self.sha,
            "edits": [edit_to_dict(edit) for edit in self.edits],
        }


@frozen
class Settings:
    """What a search is told. `margin`: the loss that a cheaper template may have; None: cheaper
    templates are not looked for.
    """

    rounds: int
    candidates: int
    seed: int
    margin: float | None
    is_clustered: bool


@frozen
class Request:
    """What the next proposals are made from: edits of `parent`, seeing its outcomes on train rows
    and the mean values of earlier candidates on selection rows.
    """

    round: int
    parent: Candidate
    train: Outcomes
    history: Sequence[tuple[Candidate, float]]


class Evidence(Protocol):
    """What a search is a function of."""

    async def evaluate(self, candidate: Candidate, rows: Sequence[Row], place: str) -> Outcomes:
        """The outcomes of a candidate on rows; `place` names the rows. Raises: OutOfBudget."""
        ...

    async def propose(self, request: Request) -> Sequence[Proposal]:
        """Checked edits of the request's parent. Raises: OutOfBudget."""
        ...

    def check(self, edits: Sequence[Edit]) -> str | None:
        """The hash of the text that edits of the template make; None if that is no candidate."""
        ...

    def count_look(self, rows: Sequence[Row]) -> int:
        """The number of this search's look at sealed rows, from 1."""
        ...


Record = Callable[[str, Mapping[str, Any]], None]
"""Gets each event of a search, in order."""


@dataclass(slots=True)
class _State:
    """The candidates that ran all selection rows, and every candidate by its hash."""

    pool: dict[str, tuple[Candidate, Outcomes]]
    known: set[str]
    tried: set[frozenset[str]] = field(default_factory=set[frozenset[str]])
    count: int = 0


class Search:
    """One search; `run` returns the decision, or None if there was nothing to decide on."""

    def __init__(self, evidence: Evidence, split: Split, settings: Settings, record: Record):
        self._evidence = evidence
        self._split = split
        self._settings = settings
        self._record = record
        self._selection = list(split.selection)

    async def run(self, base_sha: str) -> Decision | None:
        """Raises: OutOfBudget, if the budget does not allow the first or the last step."""
        base = Candidate(BASE, sha=base_sha)
        outcomes = await self._evidence.evaluate(base, self._selection, "selection")
        state = _State({BASE: (base, outcomes)}, {base_sha})
        self._record(
            "base", {"sha": base_sha, "mean": _mean(outcomes), **_missing({BASE: outcomes})}
        )
        for number in range(1, self._settings.rounds + 1):
            try:
                await self._round(number, state)
            except OutOfBudget as error:
                self._record("budget", {"round": number, "reason": str(error)})
                break
        return await self._decide(state)

    async def _round(self, number: int, state: _State) -> None:
        parent = choose_parent(state.pool, Random(f"{self._settings.seed}/{number}"))
        train = await self._evidence.evaluate(parent, self._split.train, "train")
        history = [(candidate, _mean(found)) for candidate, found in state.pool.values()]
        request = Request(number, parent, train, history)
        proposals = list(await self._evidence.propose(request))
        merged = self._merge(state)
        if merged is not None:
            proposals.append(merged)
        candidates: list[Candidate] = []
        for proposal in proposals:
            if proposal.sha not in state.known:
                state.known.add(proposal.sha)
                name = f"c{state.count + len(candidates) + 1}"
                candidates.append(
                    Candidate(name, proposal.edits, proposal.why, proposal.sha, proposal.parents)
                )
        finished, dropped = await self._race(candidates, state)
        self._record(
            "round",
            {
                "round": number,
                "parent": parent.id,
                "candidates": [candidate.to_dict() for candidate in candidates],
                "means": {name: _mean(found) for name, found in finished.items()},
                "dropped": dropped,
                **_missing(finished),
            },
        )
        state.count += len(candidates)
        for candidate in candidates:
            if candidate.id in finished:
                state.pool[candidate.id] = candidate, finished[candidate.id]

    async def _race(
        self, candidates: Sequence[Candidate], state: _State
    ) -> tuple[dict[str, Outcomes], dict[str, Any]]:
        """Runs candidates on the selection rows. Returns: the outcomes of those that ran all rows,
        and where the others were dropped.
        """
        champion, best = max(
            state.pool.values(), key=lambda each: (_mean(each[1]), -_price(each[1]))
        )
        rows = self._selection
        looks = max(1, min(LOOKS, len(rows) // LEAST_ROWS_OF_LOOK))
        clusters = self._clusters_of(rows)
        ends = [len(rows) * (look + 1) // looks for look in range(looks)]
        found: dict[str, dict[str, Outcome]] = {each.id: {} for each in candidates}
        left = list(candidates)
        dropped: dict[str, Any] = {}
        if not candidates:
            return {}, {}
        for look, end in enumerate(ends):
            start = ends[look - 1] if look else 0
            for candidate in left:
                part = await self._evidence.evaluate(
                    candidate, rows[start:end], f"selection-{look + 1}"
                )
                found[candidate.id].update(part)
            if end == len(rows):
                break
            seen = [row.id for row in rows[:end]]
            values = {each.id: [found[each.id][row].score for row in seen] for each in left}
            values[champion.id] = [best[row].score for row in seen]
            variants = 1 + len(candidates)
            losers = race(
                values,
                [stop / len(rows) for stop in ends[: look + 1]],
                looks=looks,
                variants=variants,
                clusters=[clusters[row] for row in seen] if clusters else None,
                alpha=min(MAX_RACE_ALPHA, RACE_ALPHA * variants * (variants - 1) / 2),
            )
            for loser in losers:
                if loser.name != champion.id:
                    dropped[loser.name] = {"look": look + 1, "by": loser.by, "rows": end}
            left = [each for each in left if each.id not in dropped]
        return {each.id: found[each.id] for each in left}, dropped

    def _merge(self, state: _State) -> Proposal | None:
        """The edits of two candidates together: the best pair that was not tried."""
        pool = sorted(state.pool.values(), key=lambda each: -_mean(each[1]))
        for place, (first, _) in enumerate(pool):
            for second, _ in pool[place + 1 :]:
                pair = frozenset((first.id, second.id))
                added = tuple(edit for edit in second.edits if edit not in first.edits)
                is_new = bool(added) and any(edit not in second.edits for edit in first.edits)
                if not is_new or pair in state.tried:
                    continue
                state.tried.add(pair)
                edits = (*first.edits, *added)
                sha = self._evidence.check(edits)
                if sha is not None and sha not in state.known:
                    why = f"the edits of {first.id} and {second.id}"
                    return Proposal(edits, why, sha, (first.id, second.id))
        return None

    async def _decide(self, state: _State) -> Decision | None:
        clusters = self._clusters_of(self._selection)
        chosen = choose_finalist(state.pool, self._settings.margin, clusters)
        if chosen is None:
            self._record("nothing", {"reason": "no candidate was better on the selection rows"})
            return None
        finalist, claim = chosen
        rows = self._split.sealed
        self._record("finalist", {"candidate": finalist.id, "claim": claim})
        look = self._evidence.count_look(rows)
        self._record("look", {"look": look})
        base = state.pool[BASE][0]
        before = await self._evidence.evaluate(base, rows, "sealed")
        after = await self._evidence.evaluate(finalist, rows, "sealed")
        decision = decide(
            before,
            after,
            self._clusters_of(rows),
            claim=claim,
            look=look,
            margin=self._settings.margin,
        )
        self._record("decision", {"candidate": finalist.id, **decision.to_dict()})
        return decision

    def _clusters_of(self, rows: Sequence[Row]) -> Mapping[str, Hashable] | None:
        """The clusters of rows by their ids; None if each row is a cluster of its own."""
        if not self._settings.is_clustered:
            return None
        return {row.id: row.cluster for row in rows}


Pool = Mapping[str, tuple[Candidate, Outcomes]]


def choose_parent(pool: Pool, draws: Random) -> Candidate:
    """A candidate of the Pareto front, drawn by the number of rows on which none is better. Rows on
    which all are equal do not count; the lowest price counts as a row.

    Source: Agrawal et al., "GEPA: Reflective Prompt Evolution" (2025, arXiv:2507.19457), section
    3.1, with the price as a further criterion.
    """
    names = list(pool)
    weights = dict.fromkeys(names, 0)
    rows = pool[names[0]][1]
    columns = [{name: pool[name][1][row].score for name in names} for row in rows]
    columns.append({name: -_price(pool[name][1]) for name in names})
    for column in columns:
        highest = max(column.values())
        winners = [name for name in names if column[name] == highest]
        if len(winners) < len(names):
            for name in winners:
                weights[name] += 1
    if not any(weights.values()):
        return pool[names[0]][0]
    drawn = draws.random() * sum(weights.values())
    for name in names:
        drawn -= weights[name]
        if drawn < 0:
            return pool[name][0]
    return pool[names[-1]][0]


def choose_finalist(
    pool: Pool, margin: float | None, clusters: Mapping[str, Any] | None
) -> tuple[Candidate, Claim] | None:
    """The candidate and the claim that the selection rows support most; None without a gain."""
    base = pool[BASE][1]
    rows = list(base)
    if clusters is None:
        groups = None
    else:
        groups = [clusters[row] for row in rows]
    best: tuple[float, float, Candidate, Claim] | None = None
    for candidate, outcomes in pool.values():
        if candidate.id == BASE:
            continue
        found = paired_difference(
            [base[row].score for row in rows], [outcomes[row].score for row in rows], groups
        )
        gain = found.mean or 0.0
        # One row of slack where no answer differs.
        spread = max(found.se or 0.0, 1 / len(rows))
        claims: list[tuple[float, Claim]] = []
        if gain > 0:
            claims.append((gain / spread, "better"))
        saved = mean_difference([base[row].price - outcomes[row].price for row in rows], groups)
        if margin is not None and gain > -margin and (saved.mean or 0.0) > 0:
            # A claim is as weak as the weaker of its two parts.
            if saved.se:
                price_support = (saved.mean or 0.0) / saved.se
            else:
                price_support = math.inf
            claims.append((min((gain + margin) / spread, price_support), "cheaper"))
        for support, claim in claims:
            key = support, -_price(outcomes), candidate, claim
            if best is None or key[:2] > best[:2]:
                best = key
    return None if best is None else best[2:]


def _missing(found: Mapping[str, Outcomes]) -> dict[str, Any]:
    """How many rows of each candidate have no value, where some have none."""
    counts = {
        name: sum(1 for each in outcomes.values() if each.value is None)
        for name, outcomes in found.items()
    }
    missing = {name: count for name, count in counts.items() if count}
    return {"missing": missing} if missing else {}


def _mean(outcomes: Outcomes) -> float:
    """The mean of the values; a row without one counts as 0."""
    return math.fsum(each.score for each in outcomes.values()) / len(outcomes)


def _price(outcomes: Outcomes) -> float:
    return math.fsum(each.price for each in outcomes.values()) / len(outcomes)
