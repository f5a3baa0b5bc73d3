"""A batch that a judge judged, with the truth of each answer, to label it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator.batch import Batch, Label, LabelVerdict, SampleResult, Score, Verdict, open_batch
from evaluator.batch.folder import BatchFolder
from evaluator.batch.labels import append_labels, shown_digest

CELL = ("quiz", "small")
LARGE = ("quiz", "large")


def judged_batch(
    folder: Path,
    *,
    samples: int = 60,
    epochs: int = 1,
    seed: int = 0,
    right: float = 0.6,
    sensitivity: float = 0.95,
    wrong: float = 0.35,
    **manifest: Any,
) -> Batch:
    """A batch whose answers say `right` or `wrong`, and a judge that is sometimes mistaken."""
    rng = random.Random(seed)
    with BatchFolder.create(folder) as batch:
        batch.write_manifest(
            {
                "name": "quiz",
                "state": "complete",
                "total": samples * epochs,
                "epochs": epochs,
                "cells": [{"template": CELL[0], "variant": CELL[1]}],
                "scorers": {"judge": {"type": "graded"}},
                "judges": {"judge": {"": {"grader": ["some/model"]}}},
                **manifest,
            }
        )
        for place in range(samples):
            for epoch in range(1, epochs + 1):
                truth = rng.random() < right
                passed = rng.random() < (sensitivity if truth else wrong)
                batch.append(result_of(place, "right" if truth else "wrong", passed, epoch=epoch))
    return open_batch(folder)


def result_of(place: int, content: str, passed: bool, *, epoch: int = 1) -> SampleResult:
    return SampleResult(
        f"{place:031x}{epoch:x}",
        f"s{place:03d}",
        place,
        epoch,
        template=CELL[0],
        variant=CELL[1],
        verdict=Verdict.PASSED if passed else Verdict.FAILED,
        inputs={"question": f"Number {place}?"},
        metadata={"topic": "ab"[place % 2]},
        content=content,
        scores={"judge": Score(float(passed), passed)},
    )


def label_of(result: SampleResult, labeller: str = "ada", **more: Any) -> Label:
    """The label of a person who knows the truth."""
    verdict = LabelVerdict.PASSED if result.content == "right" else LabelVerdict.FAILED
    values = {"verdict": verdict, "scorer": "judge", "at": "2026-01-01T00:00:00Z"} | more
    return Label(result.key, result.identity, shown_digest(result), labeller=labeller, **values)


def label_some(
    batch: Batch,
    count: int,
    *,
    seed: int = 1,
    labeller: str = "ada",
    only: Callable[[SampleResult], bool] = lambda result: True,
) -> list[Label]:
    """Labels `count` of the results, drawn at random."""
    results = [result for result in batch.results() if only(result)]
    labels = [label_of(each, labeller) for each in random.Random(seed).sample(results, count)]
    append_labels(batch.folder, labels)
    return labels


def asked_batch(folder: Path) -> Batch:
    """60 results of a judge that was asked three times about each. 40 are labelled by one person,
    one by two, and the label of one is stale.
    """
    judged_batch(folder, samples=0, total=60)
    with BatchFolder.open(folder) as writer:
        for place in range(60):
            passed = place % 3 > 0
            result = result_of(place, "wrong, and long" if place % 4 == 0 else "right", passed)
            votes = {"judge 1": passed, "judge 2": passed, "judge 3": passed or place % 6 == 0}
            metadata = {
                "votes": votes,
                "models": dict.fromkeys(votes, "some/model"),
                "values": {name: float(vote) for name, vote in votes.items()},
            }
            score = Score(float(passed), passed, metadata=metadata)
            writer.append(replace(result, scores={"judge": score}))
    batch = open_batch(folder)
    label_some(batch, 40, only=lambda result: result.place < 50)
    twice, changed = [result for result in batch.results() if result.place >= 58]
    append_labels(
        folder,
        [
            label_of(twice),
            label_of(twice, "bob", verdict=LabelVerdict.FAILED),
            replace(label_of(changed), shown="of another text"),
        ],
    )
    return batch


def pair_batch(folder: Path, *, samples: int = 40, equal: int = 4) -> Batch:
    """Two variants: `large` is right everywhere, `small` in the first `equal` rows only."""
    cells = [_cell(CELL), _cell(LARGE)]
    batch = judged_batch(folder, samples=0, total=2 * samples, cells=cells)
    with BatchFolder.open(folder) as writer:
        for place in range(samples):
            small = result_of(place, "right" if place < equal else "wrong", True)
            large = replace(result_of(place + 1_000, "right", True), variant="large")
            writer.append(small)
            writer.append(
                replace(large, sample_id=small.sample_id, place=place, inputs=small.inputs)
            )
    return open_batch(batch.folder)


def _cell(cell: tuple[str, str]) -> dict[str, str]:
    return {"template": cell[0], "variant": cell[1]}
