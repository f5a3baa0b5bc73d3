"""Each shipped benchmark lints, runs offline at once, and scores the recorded answers of its rows as they should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, ModelRequest, SimulatedBackend, TemplateLibrary, run_batch_sync
from evaluator.batch import SampleResult, read_definition
from evaluator.cli.init import SUITES
from evaluator.files.locations import shipped
from tests.cli.conftest import Run
from tests.sandboxes import require_bubblewrap

BATCHES = [
    pytest.param(suite, file.name, id=f"{suite}-{file.stem}")
    for suite in SUITES
    for file in sorted((shipped("examples") / "suites" / suite).glob("*.toml"))
]
MOST_LINES = 12
SCORING = ("id", "inputs", "target", "scorers", "shuffle_choices", "metrics")
JUDGED_TURNS = "mt_bench"
WITHOUT_TARGETS = ("ifeval",)


def test_every_folder_is_a_suite() -> None:
    assert sorted(SUITES) == sorted(
        folder.name for folder in (shipped("examples") / "suites").iterdir()
    )


@pytest.mark.parametrize(("suite", "file"), BATCHES)
def test_a_suite_lints_runs_offline_and_gives_the_expected_verdicts(
    cli: Run, suite: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if suite == "humaneval":
        require_bubblewrap()
    if suite == "ifeval":
        pytest.importorskip(
            "lm_eval.tasks.ifeval.utils", reason="the extra ifeval is not installed"
        )
    copied = cli("examples", "copy", suite)
    assert copied.code == 0 and f"next: cd examples/{suite} && evaluator batch" in copied.err
    monkeypatch.chdir(tmp_path / "examples" / suite)
    linted = cli("lint", "templates", "--strict", cwd=".")
    assert linted.code == 0 and "0 errors, 0 warnings" in linted.out

    ran = cli("batch", file, "--json", cwd=".")
    assert ran.code == 0
    simulated = json.loads(ran.out)["summary"]["counts"]
    assert (simulated["results"], simulated["error"]) == (20, 0)
    assert simulated["passed"] >= 15 or suite in WITHOUT_TARGETS

    variant = "_mc2" if file == "mc2.toml" else ""
    results = run_recorded(file, None if suite == JUDGED_TURNS else f"output{variant}")
    verdicts = [each.verdict for each in sorted(results, key=lambda each: each.place)]
    assert verdicts == [row[f"verdict{variant}"] for row in read_rows(file)]
    assert {"passed", "failed"} <= {each.verdict for each in results}


def read_rows(file: str) -> list[dict[str, Any]]:
    text = Path(read_definition(file).rows).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def run_recorded(file: str, answers: str | None) -> list[SampleResult]:
    """The results of recorded answers, with the recorded judgements."""
    definition = read_definition(file)
    rows = read_rows(file)
    options = {name: getattr(definition.options, name) for name in SCORING}
    with Evaluator(
        TemplateLibrary.load("templates"),
        backend=SimulatedBackend(script=lambda request: recorded(rows, request)),
        tasks_dir=None,
        roots=definition.roots or ["."],
    ) as evaluator:
        result = run_batch_sync(
            definition.templates,
            definition.rows,
            evaluator=evaluator,
            answers=answers,
            output="recorded",
            **options,
        )
    return list(result.results())


def recorded(rows: list[dict[str, Any]], request: ModelRequest) -> str:
    """What the model or the judge answered in the recording."""
    said = request.messages[-1].content
    for row in rows:
        if "outputs" not in row:
            if row["output"] and f"<answer>{row['output']}</answer>" in said:
                return row["judgement"]
        elif row["turns"][0] in request.messages[0].content:
            if said in row["turns"]:
                return row["outputs"][row["turns"].index(said)]
            return row["judgements"][said.count("<assistant>") - 1]
    raise AssertionError(f"nothing is recorded for {said!r}")


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_is_as_short_as_promised(suite: str) -> None:
    folder = shipped("examples") / "suites" / suite
    texts = [
        path.read_text(encoding="utf-8")
        for path in (folder / "evaluator.toml", folder / f"templates/{suite}.xml")
    ]
    lines = [
        line
        for text in texts
        for line in text.splitlines()
        if line.strip() and not line.startswith("#")
    ]
    assert len(lines) <= MOST_LINES or suite == JUDGED_TURNS
    assert 8 <= len((folder / "README.md").read_text(encoding="utf-8").splitlines()) <= 16
