"""Simulated answers for `improve.py` and `improve_gepa.py`: a model whose accuracy is known.

An edit is a kind of `PLANTS` with a number. Its effect is known; it changes one answer in five. The
answers of a prompt are a function of the seed, the prompt and the row. Only the standard library is
needed, so that programs in other environments see the same model.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ACCURACY = 0.6
CHANGED = 0.2


@dataclass(frozen=True)
class Plant:
    """An edit: its effect on the accuracy of train rows and of all others, and on the price."""

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
    "useless edits": ("none", "train_only", "none"),
    "harmful edits": ("harmful", "train_only", "harmful"),
    "one of +8 points": ("none", "plus8", "harmful"),
    "one of +15 points": ("none", "plus15", "harmful"),
    "cheaper, equally good": ("none", "cheaper", "harmful"),
    "all kinds": tuple(PLANTS),
}


def kinds_of(edits: Iterable[str]) -> list[str]:
    """The kinds of edits such as `plus8/3`; an effect counts once."""
    return list(dict.fromkeys(edit.split("/")[0] for edit in edits))


def gain(edits: Iterable[str]) -> float:
    """The true gain of edits on rows that nobody has seen."""
    return sum(PLANTS[kind].other for kind in kinds_of(edits))


def price(edits: Iterable[str]) -> float:
    """The price of a row; 1 without edits."""
    return 1 + sum(PLANTS[kind].price for kind in kinds_of(edits))


class World:
    """The answers of one simulated model, and the number of them that were asked for."""

    def __init__(self, seed: int) -> None:
        self.calls = 0
        self._seed = seed
        self._base: dict[str, bool] = {}

    def answers(self, edits: Sequence[str], rows: Sequence[str], *, is_train: bool) -> list[bool]:
        """Whether the answers to rows are right."""
        self.calls += len(rows)
        part = "train" if is_train else "other"
        effect = sum(getattr(PLANTS[kind], part) for kind in kinds_of(edits))
        changed = max(CHANGED, abs(effect))
        lost = (changed - effect) / 2 / ACCURACY
        gained = (changed + effect) / 2 / (1 - ACCURACY)
        found: list[bool] = []
        for row in rows:
            if row not in self._base:
                draw = random.Random(f"{self._seed}/{row}").random()
                self._base[row] = draw < ACCURACY
            right = self._base[row]
            if edits:
                draw = random.Random(f"{self._seed}/{row}/{edits}").random()
                right = right != (draw < (lost if right else gained))
            found.append(right)
        return found
