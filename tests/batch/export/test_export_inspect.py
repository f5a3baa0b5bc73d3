"""Inspect AI's logs: what is in them, and that Inspect AI itself reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from evaluator import UsageError
from evaluator.batch.export import export
from tests.batch.export.results import EACH, HOSTILE, PASSED, hostile, many, result

MANIFEST = {
    "name": "metals",
    "created": "2026-03-04T05:06:07+00:00",
    "versions": {"evaluator": "0.1.0"},
}


def test_samples_summaries_and_header_are_in_the_archive(tmp_path: Path) -> None:
    export(EACH, MANIFEST, "inspect", tmp_path / "out.eval")
    with ZipFile(tmp_path / "out.eval") as archive:
        assert archive.testzip() is None
        header = json.loads(archive.read("header.json"))
        summaries = json.loads(archive.read("summaries.json"))
        samples = {
            name: json.loads(archive.read(name))
            for name in archive.namelist()
            if name.startswith("samples/")
        }
    assert (header["eval"]["task"], header["eval"]["model"], header["status"]) == (
        "answer",
        "m-1",
        "success",
    )
    assert header["eval"]["metadata"]["manifest"] == MANIFEST
    assert (header["results"]["total_samples"], header["results"]["completed_samples"]) == (5, 3)
    (score,) = header["results"]["scores"]
    assert (score["scored_samples"], score["unscored_samples"]) == (2, 3)
    assert score["metrics"]["accuracy"]["value"] == 0.5
    assert [summary["id"] for summary in summaries] == ["lead", "tin", "iron", "zinc", "gold"]
    iron, zinc = samples["samples/iron_epoch_1.json"], samples["samples/zinc_epoch_1.json"]
    assert "503 from the model" in iron["error"]["message"] and "scores" not in iron
    assert iron["model_usage"]["m-1"].get("total_cost") is None
    assert zinc["scores"]["includes"]["reason"] == "scoring_failed"


def test_a_folder_gets_a_log_for_each_template_and_variant(tmp_path: Path) -> None:
    export(many(40), MANIFEST, "inspect", tmp_path / "logs")
    names = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert [name.rpartition("_")[0] for name in names] == [
        "answer_large",
        "answer_small",
        "explain_large",
        "explain_small",
    ]
    beside = export(many(40), MANIFEST, "inspect", tmp_path / "out.eval")
    assert [path.name for path in beside] == [f"out-{name}" for name in names]
    assert sorted(tmp_path.glob("*.eval")) == beside
    assert [path.read_bytes()[:2] for path in beside] == [b"PK"] * 4
    with pytest.raises(UsageError, match="no result"):
        export([], MANIFEST, "inspect", tmp_path / "out.eval")


def test_an_id_is_never_a_path(tmp_path: Path) -> None:
    export([result("../../a"), result("..")], MANIFEST, "inspect", tmp_path / "out.eval")
    with ZipFile(tmp_path / "out.eval") as archive:
        names = [name for name in archive.namelist() if name.startswith("samples/")]
        first = json.loads(archive.read(names[0]))
    assert names == ["samples/..%2F..%2Fa_epoch_1.json", "samples/.._epoch_1.json"]
    assert first["metadata"]["evaluator"]["sample_id"] == "../../a"


def read_log(path: Path) -> Any:
    log = pytest.importorskip("inspect_ai.log", reason="needs inspect-ai")
    return log.read_eval_log(str(path))


def test_inspect_ai_reads_it(tmp_path: Path) -> None:
    export(EACH, MANIFEST, "inspect", tmp_path / "out.eval")
    log = read_log(tmp_path / "out.eval")
    assert (log.eval.task, log.eval.model, log.status) == ("answer", "m-1", "success")
    samples = {sample.id: sample for sample in log.samples}
    lead = samples["lead"]
    assert (lead.target, lead.output.completion, lead.scores["includes"].value) == (
        "lead",
        "It is lead.",
        1.0,
    )
    assert lead.scores["includes"].answer == "lead" and lead.metadata["group"] == "metals"
    assert [event.event for event in lead.events] == ["info", "score"]
    assert lead.events[1].score.value == 1.0
    assert samples["iron"].error.message.startswith("TASK_FAILURE (provider_failure): 503")
    assert samples["iron"].scores is None
    assert samples["gold"].scores["includes"].value != samples["gold"].scores["includes"].value
    assert log.results.scores[0].metrics["mean"].value == 0.5


def test_inspect_ai_reads_one_sample_by_its_id_and_headers_alone(tmp_path: Path) -> None:
    log = pytest.importorskip("inspect_ai.log", reason="needs inspect-ai")
    export([PASSED, result("a/b")], MANIFEST, "inspect", tmp_path / "out.eval")
    path = str(tmp_path / "out.eval")
    assert (
        log.read_eval_log_sample(path, id="a%2Fb", epoch=1).metadata["evaluator"]["sample_id"]
        == "a/b"
    )
    assert log.read_eval_log(path, header_only=True).results.total_samples == 2
    assert [each.id for each in log.read_eval_log_sample_summaries(path)] == ["lead", "a%2Fb"]


def test_inspect_ai_reads_hostile_texts(tmp_path: Path) -> None:
    export(hostile(), MANIFEST, "inspect", tmp_path / "logs")
    paths = sorted((tmp_path / "logs").iterdir())
    assert len(paths) == len(HOSTILE)
    for path in paths:
        assert len(read_log(path).samples) == 5
