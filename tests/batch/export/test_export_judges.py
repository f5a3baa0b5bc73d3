"""What is known of a judge is in every export: its corrected numbers, bias and stability, and the labels."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from zipfile import ZipFile

import pytest

from evaluator.batch import Batch
from evaluator.batch.export import SUMMARISED, export
from evaluator.batch.labels import shown_digest
from tests.batch.labelled import asked_batch, judged_batch


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return asked_batch(tmp_path / "quiz")


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
    assert results["metadata"] == {
        "calibrations": {"judge": calibration},
        "stability": {"judge": stability},
    }
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
