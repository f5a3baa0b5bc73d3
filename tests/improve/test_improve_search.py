"""The search and its decision, on simulated evidence: what is accepted, dropped and counted."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from evaluator import RecordError, UsageError
from evaluator.batch import Sample
from evaluator.files.locations import user_folder
from evaluator.improve import OutOfBudget
from evaluator.improve.decide import LEDGER, Outcome, count_look, decide, level_of
from evaluator.improve.edits import Edit, SetText
from evaluator.improve.search import (
    Candidate,
    Proposal,
    Request,
    Row,
    Search,
    Settings,
    choose_finalist,
    choose_parent,
    part_of,
    reach_of,
    rows_of,
    split_rows,
)


def samples(count: int) -> list[Sample]:
    return [Sample(str(n), {"q": f"question {n}"}, "yes", {"book": n // 3}) for n in range(count)]


SPLIT = split_rows(rows_of(samples(300), None), gain=0.05)
EFFECTS = {"none": 0.0, "good": 0.25, "harmful": -0.3, "lucky": 0.0}


class Fake:
    """Evidence in which an edit's text names its effect. "lucky" helps on selection rows only."""

    def __init__(self, *kinds: str, budget: int = 10**9, looks: int = 1) -> None:
        self.kinds = kinds
        self.budget = budget
        self.looks = looks
        self.seen: list[tuple[str, str]] = []

    async def evaluate(
        self, candidate: Candidate, rows: Sequence[Row], place: str
    ) -> Mapping[str, Outcome]:
        if self.budget < len(rows) + (2 * len(SPLIT.sealed) if place != "sealed" else 0):
            raise OutOfBudget("spent")
        self.budget -= len(rows)
        self.seen.append((candidate.id, place))
        texts = {edit.text for edit in candidate.edits if isinstance(edit, SetText)}
        effect = sum(EFFECTS[text.split()[0]] for text in texts)
        if "selection" in place and any("lucky" in text for text in texts):
            effect += 0.25
        found: dict[str, Outcome] = {}
        for row in rows:
            shared = random.Random(row.id).random()
            own = random.Random(f"{candidate.sha}{row.id}").random()
            right = 0.8 * shared + 0.2 * own < 0.5 + effect
            price = 0.5 if any("none" in text for text in texts) else 1.0
            found[row.id] = Outcome(float(right), right, price)
        return found

    async def propose(self, request: Request) -> list[Proposal]:
        found: list[Proposal] = []
        for kind in self.kinds:
            edits = (*request.parent.edits, SetText(element="system", text=kind))
            found.append(Proposal(edits, kind, self.check(edits), (request.parent.id,)))
        return found

    def check(self, edits: Sequence[Edit]) -> str:
        return hashlib.sha256(repr(edits).encode()).hexdigest()

    def count_look(self, rows: Sequence[Row]) -> int:
        return self.looks


def searched(
    fake: Fake, margin: float | None = None, rounds: int = 2
) -> tuple[Any, dict[str, list[Any]]]:
    events: dict[str, list[Any]] = {}
    settings = Settings(rounds, 3, 0, margin, is_clustered=False)
    search = Search(
        fake, SPLIT, settings, lambda kind, values: events.setdefault(kind, []).append(values)
    )
    return asyncio.run(search.run("base")), events


def test_a_true_gain_is_accepted_and_hopeless_candidates_leave_the_race() -> None:
    fake = Fake("none", "good", "harmful")
    decision, events = searched(fake)
    assert decision.accepted
    assert decision.claim == "better"
    assert decision.low > 0.1
    assert decision.n == decision.of == len(SPLIT.sealed)
    first = events["round"][0]
    assert first["dropped"]["c3"]["look"] < 3
    assert ("c3", "selection-3") not in fake.seen
    finalist = events["finalist"][0]["candidate"]
    assert [name for name, place in fake.seen if place == "sealed"] == ["c0", finalist]


@pytest.mark.parametrize("kind", ["lucky", "harmful"])
def test_what_only_looks_better_is_not_accepted(kind: str) -> None:
    decision, events = searched(Fake(kind))
    if decision is None:
        assert "nothing" in events
    else:
        assert not decision.accepted
        assert decision.reason == "the gain is not significant"


def test_a_cheaper_template_is_accepted_only_with_a_margin() -> None:
    decision, _ = searched(Fake("none 3"), margin=0.15)
    assert decision.accepted
    assert decision.claim == "cheaper"
    assert decision.price_after < decision.price_before
    without, _ = searched(Fake("none 3"))
    assert without is None or not without.accepted


def test_a_budget_that_ends_a_round_leaves_the_rounds_before_it() -> None:
    rows = len(SPLIT.selection)
    enough = 2 * rows + len(SPLIT.train) + 2 * len(SPLIT.sealed)
    decision, events = searched(Fake("good", budget=enough), rounds=5)
    assert events["budget"] == [{"round": 2, "reason": "spent"}]
    assert decision.accepted
    with pytest.raises(OutOfBudget):
        searched(Fake("good", budget=rows - 1))


def test_candidates_with_different_edits_are_merged() -> None:
    class Apart(Fake):
        async def propose(self, request: Request) -> list[Proposal]:
            if request.round > 1:
                return []
            found: list[Proposal] = []
            for element in ("system", "criteria"):
                edits = (SetText(element=element, text="good"),)  # type: ignore[arg-type]
                found.append(Proposal(edits, element, self.check(edits), ("c0",)))
            return found

    _, events = searched(Apart())
    merged = events["round"][1]["candidates"][0]
    assert merged["parents"] == ["c1", "c2"] or merged["parents"] == ["c2", "c1"]
    assert len(merged["edits"]) == 2


def outcomes(values: Sequence[float | None], price: float = 1.0) -> dict[str, Outcome]:
    return {
        str(n): Outcome(value, None if value is None else value == 1, price)
        for n, value in enumerate(values)
    }


def test_further_looks_at_the_same_rows_need_more() -> None:
    before = outcomes([0.0] * 40 + [1.0] * 60)
    after = outcomes([1.0] * 12 + [0.0] * 28 + [1.0] * 58 + [0.0] * 2)
    accepted = [
        decide(before, after, None, claim="better", look=look, margin=None).accepted
        for look in (1, 2, 3, 9)
    ]
    assert accepted == [True, True, False, False]
    assert sum(level_of(look) for look in range(1, 1000)) / 2 == pytest.approx(0.05, abs=1e-4)


def test_rows_without_a_value_are_taken_at_their_worst() -> None:
    before = outcomes([0.0] * 30 + [1.0] * 30)
    gained = [1.0] * 12 + [0.0] * 18
    whole = decide(
        before, outcomes([*gained, *[1.0] * 30]), None, claim="better", look=1, margin=None
    )
    holes = [*gained, *[1.0] * 20, *[None] * 10]
    torn = decide(before, outcomes(holes), None, claim="better", look=1, margin=None)
    assert whole.accepted
    assert not torn.accepted
    assert (torn.n, torn.of) == (50, 60)
    assert "worst" in torn.reason


def test_clusters_and_graded_scores_are_compared_by_t() -> None:
    rng = random.Random(1)
    before = outcomes([rng.random() / 2 for _ in range(60)])
    after = {
        row: Outcome((each.value or 0) + rng.random() / 4, None, 1.0)
        for row, each in before.items()
    }
    clusters = {row: int(row) // 6 for row in before}
    decision = decide(before, after, clusters, claim="better", look=1, margin=None)
    assert decision.accepted
    assert decision.clusters == 10


def test_the_part_of_a_row_does_not_depend_on_the_other_rows() -> None:
    few = split_rows(rows_of(samples(200), "book"), gain=0.05)
    many = split_rows(rows_of(samples(400), "book"), gain=0.05)
    for part, rows in few.parts().items():
        ids = {row.id for row in many.parts()[part]}
        assert {row.id for row in rows} <= ids
        assert {part_of(row.cluster) for row in rows} == {part}
    books = [{row.sample.metadata["book"] for row in rows} for rows in few.parts().values()]
    assert not books[0] & books[1]
    assert not books[2] & (books[0] | books[1])


def test_too_few_rows_are_an_error_and_more_than_needed_stay_unused() -> None:
    with pytest.raises(UsageError, match="10 are needed"):
        split_rows(rows_of(samples(12), None), gain=0.05)
    split = split_rows(rows_of(samples(300), None), gain=0.2)
    assert len(split.sealed) == reach_of(1, 0.2).needed
    assert split.unused > 0


def test_the_reach_is_what_the_sample_size_formula_says() -> None:
    reach = reach_of(200, 0.05)
    assert reach.smallest == pytest.approx(0.0886, abs=1e-4)
    assert reach.needed == 628
    assert "80 % power begins at a gain of 8.9 points" in str(reach)


def test_a_parent_is_drawn_by_the_rows_on_which_it_is_best() -> None:
    sides = {
        "c0": (Candidate("c0"), outcomes([1, 0, 0, 1])),
        "c1": (Candidate("c1"), outcomes([0, 1, 1, 1])),
        "c2": (Candidate("c2"), outcomes([0, 0, 0, 0])),
    }
    drawn = [choose_parent(sides, random.Random(seed)).id for seed in range(200)]
    assert drawn.count("c1") > drawn.count("c0") > 20
    assert "c2" not in drawn
    finalist = choose_finalist(sides, None, None)
    assert finalist is not None
    assert finalist[0].id == "c1"


def test_looks_are_counted_by_rows_in_a_file_that_shows_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path))
    assert count_look("a", ["r1", "r2"]) == 1
    assert count_look("b", ["r2", "r3"]) == 2
    assert count_look("a", ["r1", "r2"]) == 1
    assert count_look("c", ["r9"]) == 1
    ledger = user_folder() / LEDGER
    lines = ledger.read_bytes()
    ledger.write_bytes(lines + b'{"torn')
    assert count_look("d", ["r3"]) == 2
    ledger.write_bytes(lines.replace(b"r1", b"r7"))
    with pytest.raises(RecordError, match="line 1"):
        count_look("e", ["r1"])
    ledger.write_bytes(b"".join(lines.splitlines(keepends=True)[1:]))
    with pytest.raises(RecordError, match="line 1"):
        count_look("e", ["r1"])


def test_a_price_that_is_lower_by_chance_does_not_replace_the_claim_of_a_gain() -> None:
    base = outcomes([0.0] * 30 + [1.0] * 30)
    better = {
        row: Outcome(1.0, True, 0.97 if int(row) % 2 else 1.02) for row in outcomes([1.0] * 60)
    }
    cheaper = {row: Outcome(each.value, each.passed, 0.5) for row, each in base.items()}
    pool = {"c0": (Candidate("c0"), base), "c1": (Candidate("c1"), better)}
    assert choose_finalist(pool, 0.05, None) == (Candidate("c1"), "better")
    pool["c1"] = Candidate("c1"), cheaper
    assert choose_finalist(pool, 0.05, None) == (Candidate("c1"), "cheaper")
    assert choose_finalist(pool, None, None) is None
