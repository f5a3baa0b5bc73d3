"""Searches of GEPA (PyPI `gepa`) over the model of `improve_world`, for `improve.py --peers`.

Reads `[world, seed, calls, rows]` lists as JSON from standard input, and prints a list of the edits
of the best candidate for each. Half of the rows are its train set, half its validation set.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import gepa
from gepa.core.adapter import EvaluationBatch
from improve_world import WORLDS, World


class Adapter:
    """The model as GEPA sees it: the prompt is a list of edits, and an iteration adds one."""

    def __init__(self, world: World, plants: tuple[str, ...], seed: int) -> None:
        self._world = world
        self._plants = plants
        self._random = random.Random(seed)
        self._number = 0

    def evaluate(
        self, batch: list[str], candidate: dict[str, str], capture_traces: bool = False
    ) -> Any:
        edits = candidate["prompt"].split()
        is_train = batch[0].startswith("train")
        right = self._world.answers(edits, batch, is_train=is_train)
        traces = list(batch) if capture_traces else None
        return EvaluationBatch(
            outputs=right, scores=[float(each) for each in right], trajectories=traces
        )

    def make_reflective_dataset(self, candidate: Any, eval_batch: Any, components: Any) -> Any:
        return {name: [{"row": row} for row in eval_batch.trajectories] for name in components}

    def propose_new_texts(self, candidate: dict[str, str], dataset: Any, components: Any) -> Any:
        self._number += 1
        kind = self._random.choice(self._plants)
        return {"prompt": f"{candidate['prompt']} {kind}/{self._number}".strip()}


class Quiet:
    def log(self, message: str) -> None:
        pass


def main() -> None:
    found: list[list[str]] = []
    for name, seed, calls, rows in json.load(sys.stdin):
        result = gepa.optimize(
            seed_candidate={"prompt": ""},
            trainset=[f"train{number}" for number in range(rows // 2)],
            valset=[f"val{number}" for number in range(rows // 2)],
            adapter=Adapter(World(seed), WORLDS[name], seed),
            max_metric_calls=calls,
            skip_perfect_score=False,
            seed=seed,
            logger=Quiet(),
        )
        found.append(result.best_candidate["prompt"].split())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
