"""How often `evaluator improve` is wrong: searches over a simulated model whose accuracy is known.

    python bench/improve.py [--searches 1000] [--peers] [--kills 50]

The searches are those of `evaluator.improve.search`, decision included. Only the answers are made
up: an edit has a known effect on the accuracy, and changes one answer in five.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluator.batch.records import Sample
from evaluator.improve.decide import Decision, Outcome
from evaluator.improve.edits import Edit, SetText
from evaluator.improve.search import Candidate, Proposal, Request, Search, Settings
from evaluator.improve.split import Row, Split, rows_of, split_rows

ACCURACY = 0.6
CHANGED = 0.2
PRICE = 1.0


@dataclass(frozen=True)
class Plant:
    """An edit: its effect on train rows, its effect on all others, and on the price."""

    train: float = 0.0
    other: float = 0.0
    price: float = 0.0


PLANTS = {
    "none": Plant(),
    "plus8": Plant(0.08, 0.08),
    "plus15": Plant(0.15, 0.15),
    "harmful": Plant(-0.12, -0.12),
    "train_only": Plant(0.15, 0.0),
    "cheaper": Plant(price=-0.3),
}
WORLDS = {
    "useless": ("none", "train_only", "none"),
    "harmful": ("harmful", "train_only", "harmful"),
    "one of +8": ("none", "plus8", "harmful"),
    "one of +15": ("none", "plus15", "harmful"),
    "cheaper": ("none", "cheaper", "harmful"),
    "mixed": tuple(PLANTS),
}


def kinds(edits: Sequence[Edit]) -> list[str]:
    """The planted kinds of edits, each effect once."""
    return list(
        dict.fromkeys(edit.text.split("/")[0] for edit in edits if isinstance(edit, SetText))
    )


def true_gain(edits: Sequence[Edit]) -> float:
    return sum(PLANTS[kind].other for kind in kinds(edits))


def true_price(edits: Sequence[Edit]) -> float:
    return PRICE + sum(PLANTS[kind].price for kind in kinds(edits))


class World:
    """Simulated evidence: the answers are a function of the seed, the edits and the row."""

    def __init__(self, seed: int, plants: Sequence[str], looks: int = 1) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._plants = plants
        self._looks = looks
        self.calls = 0
        self._base: dict[str, bool] = {}

    def base(self, row: str) -> bool:
        if row not in self._base:
            self._base[row] = self._random.random() < ACCURACY
        return self._base[row]

    async def evaluate(
        self, candidate: Candidate, rows: Sequence[Row], place: str
    ) -> Mapping[str, Outcome]:
        self.calls += len(rows)
        names = kinds(candidate.edits)
        part = "train" if place == "train" else "other"
        effect = sum(getattr(PLANTS[name], part) for name in names)
        draws = random.Random(f"{self._seed}/{candidate.sha}/{place}")
        price = true_price(candidate.edits)
        found: dict[str, Outcome] = {}
        for row in rows:
            right = self.base(row.id)
            if candidate.edits:
                changed = max(CHANGED, abs(effect))
                share = (changed - effect) / 2 / ACCURACY
                if not right:
                    share = (changed + effect) / 2 / (1 - ACCURACY)
                right = right != (draws.random() < share)
            value = float(right)
            found[row.id] = Outcome(value, right, price * draws.uniform(0.8, 1.2))
        return found

    async def propose(self, request: Request) -> list[Proposal]:
        found: list[Proposal] = []
        for number, kind in enumerate(self._plants):
            edit = SetText(element="criteria", text=f"{kind}/{request.round}/{number}")
            edits = (*request.parent.edits, edit)
            found.append(Proposal(edits, kind, self.check(edits), (request.parent.id,)))
        return found

    def check(self, edits: Sequence[Edit]) -> str:
        return hashlib.sha256(repr(edits).encode()).hexdigest()

    def count_look(self, rows: Sequence[Row]) -> int:
        return self._looks


def make_rows(count: int) -> Split:
    samples = [Sample(str(n), {"question": f"question {n}"}, "yes") for n in range(count)]
    return split_rows(rows_of(samples, None), gain=0.05)


def one_search(
    seed: int, split: Split, plants: Sequence[str], margin: float | None
) -> tuple[Decision | None, tuple[Edit, ...], int]:
    """The decision, the edits of the finalist, and the number of answers."""
    world = World(seed, plants)
    events: list[tuple[str, Mapping[str, object]]] = []
    known: dict[str, tuple[Edit, ...]] = {}
    original = world.evaluate

    async def evaluate(
        candidate: Candidate, rows: Sequence[Row], place: str
    ) -> Mapping[str, Outcome]:
        known[candidate.id] = candidate.edits
        return await original(candidate, rows, place)

    world.evaluate = evaluate  # type: ignore[method-assign]
    settings = Settings(3, len(plants), seed, margin=margin, is_clustered=False)
    search = Search(world, split, settings, lambda kind, values: events.append((kind, values)))
    decision = asyncio.run(search.run("base"))
    finalist = next((str(v["candidate"]) for k, v in events if k == "finalist"), None)
    return decision, known.get(finalist or "", ()), world.calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=400)
    arguments = parser.parse_args()
    split = make_rows(arguments.rows)
    for name, plants in WORLDS.items():
        accepted = false = harm = 0
        gains = 0.0
        calls = 0
        margin = 0.05 if name in ("cheaper", "mixed") else None
        for seed in range(arguments.searches):
            decision, edits, made = one_search(seed, split, plants, margin)
            calls += made
            if decision is not None and decision.accepted:
                accepted += 1
                gain = true_gain(edits)
                is_true = (
                    gain > 0
                    if decision.claim == "better"
                    else gain > -0.05 and true_price(edits) < PRICE
                )
                false += not is_true
                harm += gain < 0
                gains += gain
        print(
            name,
            arguments.searches,
            "accepted",
            accepted,
            "false",
            false,
            "harmful",
            harm,
            "mean gain",
            gains / max(1, accepted),
            "calls",
            calls / arguments.searches,
        )


if __name__ == "__main__":
    main()
