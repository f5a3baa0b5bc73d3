"""What is known of a judge is in every export: its corrected numbers, bias and stability, and the labels."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from zipfile import ZipFile

import pytest

from evaluator.batch.export import SUMMARISED, export
from evaluator.batch.folder import BatchFolder
from evaluator.batch.labels import LabelVerdict, append_labels, shown_digest
from evaluator.batch.reading import Batch, open_batch
from evaluator.batch.records import Score
from tests.batch.labelled import judged_batch, label_of, label_some, result_of


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    """60 results, asked three times each; 40 are labelled, one by two people, one stale."""
    judged = judged_batch(tmp_path / "quiz", samples=0, total=60)
    with BatchFolder.open(judged.folder) as writer:
        for place in range(60):
            passed = place % 3 > 0
            result = result_of(place, ("right", "wrong, and long")[place % 4 == 0], passed)
            votes = {"judge 1": passed, "judge 2": passed, "judge 3": passed or place % 6 == 0}
            metadata = {"votes": votes, "models": dict.fromkeys(votes, "some/model")}
            metadata["values"] = {name: float(vote) for name, vote in votes.items()}
            writer.append(replace(result, scores={"judge": Score(float(passed), passed, metadata=metadata)}))
    found = open_batch(judged.folder)
    label_some(found, 40, only=lambda result: result.place < 50)
    first, stale = [result for result in found.results() if result.place >= 58]
    append_labels(
        found.folder,
        [
            label_of(first),
            label_of(first, "bob", verdict=LabelVerdict.FAILED),
            replace(label_of(stale), shown="of another text"),
        ],
    )
    return found


def exported(batch: Batch, kind: str, path: Path) -> Path:
    summary = batch.summarise() if kind in SUMMARISED else None
    options: dict[str, Any] = {"summary": summary, "labels": batch.labels()}
    (written,) = export(batch.results(), batch.manifest, kind, path, total=batch.totals, **options)
    return written


def test_labels_and_flips_are_columns_beside_the_verdicts(batch: Batch, tmp_path: Path) -> None:
    exported(batch, "csv", tmp_path / "x.csv")
    with open(tmp_path / "x.csv", encoding="utf-8", newline="") as file:
        rows = {row["sample_id"]: row for row in csv.DictReader(file)}
    assert len([row for row in rows.values() if row["label.judge.labels"]]) == 41
    tied = rows["s058"]
    assert (tied["label.judge.passed"], tied["label.judge.labels"]) == ("0.5", "2")
    assert rows["s059"]["label.judge.passed"] == ""
    flips = {row["score.judge.flips"] for row in rows.values()}
    assert flips == {"0.0", repr(2 / 3)}
    exported(batch, "jsonl", tmp_path / "x.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [each["labeller"] for each in lines[58]["labels"]] == ["ada", "bob"]
    assert "labels" not in lines[59]
    (result,) = [each for each in batch.results() if each.place == 58]
    assert lines[58]["labels"][0]["shown"] == shown_digest(result)


def test_what_is_known_of_a_judge_has_one_json_form(batch: Batch, tmp_path: Path) -> None:
    group = json.loads(json.dumps(batch.summarise().to_dict()))["groups"][0]
    calibration, stability = group["calibrations"]["judge"], group["stability"]["judge"]
    assert [bias["by"] for bias in calibration["bias"]] == ["length"]
    assert stability["flips"] == pytest.approx(10 * (2 / 3) / 60)
    assert calibration["labels"] == 41 and calibration["stale"] == 1

    suite = ElementTree.parse(exported(batch, "junit", tmp_path / "x.xml")).getroot()[0]
    properties = {each.get("name"): each.get("value") or "" for each in suite[0]}
    assert json.loads(properties["calibration.judge"]) == calibration
    assert json.loads(properties["stability.judge"]) == stability
    assert properties["judge.judge"].startswith("0.6667, ")
    assert properties["corrected.judge"].endswith(" (41 of 60)")

    with ZipFile(exported(batch, "inspect", tmp_path / "x.eval")) as archive:
        results = json.loads(archive.read("header.json"))["results"]
    assert results["metadata"] == {"calibrations": {"judge": calibration}, "stability": {"judge": stability}}
    metrics = results["scores"][0]["metrics"]
    assert metrics["corrected"]["value"] == calibration["corrected"]["mean"]
    assert metrics["mean"]["value"] == pytest.approx(2 / 3)

    text = exported(batch, "markdown", tmp_path / "x.md").read_text()
    assert "Corrected by labels" in text and "Stability of verdicts" in text


def test_without_labels_nothing_is_corrected(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "quiz", samples=4)
    suite = ElementTree.parse(exported(batch, "junit", tmp_path / "x.xml")).getroot()[0]
    assert [each.tag for each in suite] == ["testcase"] * 4
    with ZipFile(exported(batch, "inspect", tmp_path / "x.eval")) as archive:
        results = json.loads(archive.read("header.json"))["results"]
    assert "metadata" not in results and "corrected" not in results["scores"][0]["metrics"]
    text = exported(batch, "markdown", tmp_path / "x.md").read_text()
    assert "judge: a model judged" in text and "Corrected" not in text
    exported(batch, "csv", tmp_path / "x.csv")
    assert "label." not in (tmp_path / "x.csv").read_text()
