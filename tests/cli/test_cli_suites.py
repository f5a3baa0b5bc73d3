"""Each shipped benchmark lints, runs offline at once, and scores the recorded answers of its rows as they should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluator import Evaluator, ModelRequest, SimulatedBackend, TemplateLibrary, run_batch_sync
from evaluator.batch import SampleResult, read_definition
from evaluator.cli.main import main
from evaluator.cli.scaffold import SUITES
from evaluator.files.shipped import shipped
from tests.sandboxes import require_bubblewrap

BATCHES = [
    pytest.param(suite, file.name, id=f"{suite}-{file.stem}")
    for suite in SUITES
    for file in sorted((shipped("examples") / "suites" / suite).glob("*.toml"))
]
MOST_LINES = 12
SCORING = ("inputs", "target", "scorers", "shuffle_choices")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_every_folder_is_a_suite() -> None:
    assert sorted(SUITES) == sorted(folder.name for folder in (shipped("examples") / "suites").iterdir())


@pytest.mark.parametrize(("suite", "file"), BATCHES)
def test_a_suite_lints_runs_offline_and_gives_the_expected_verdicts(
    suite: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if suite == "humaneval":
        require_bubblewrap()
    assert run("examples", "copy", suite) == 0
    monkeypatch.chdir(tmp_path / "examples" / suite)
    assert run("lint", "templates", "--strict") == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out

    assert run("batch", file, "--json") == 0
    simulated = json.loads(capsys.readouterr().out)["summary"]["counts"]
    assert (simulated["results"], simulated["error"]) == (20, 0)
    assert simulated["passed"] >= 15

    variant = "_mc2" if file == "mc2.toml" else ""
    results = run_recorded(file, f"output{variant}")
    assert len(results) == 20
    assert {each.sample_id: (each.content, each.verdict) for each in results} == {
        each.sample_id: (each.content, each.metadata[f"verdict{variant}"]) for each in results
    }
    assert {"passed", "failed"} <= {each.verdict for each in results}


def run_recorded(file: str, answers: str) -> list[SampleResult]:
    """The results of the recorded answers; the judges give the rows' recorded judgements."""
    definition = read_definition(file)
    judgements = [
        (row["output"], row["judgement"])
        for row in map(json.loads, Path(definition.rows).read_text(encoding="utf-8").splitlines())
        if "judgement" in row and row["output"]
    ]

    def judge(request: ModelRequest) -> str:
        (found,) = [text for output, text in judgements if f"<answer>{output}</answer>" in request.messages[-1].content]
        return found

    options = {name: getattr(definition.options, name) for name in SCORING}
    with Evaluator(
        TemplateLibrary.load("templates"), backend=SimulatedBackend(script=judge), tasks_dir=None,
        roots=definition.roots or ["."],
    ) as evaluator:  # fmt: skip
        result = run_batch_sync(
            definition.templates, definition.rows, evaluator=evaluator, answers=answers, output="recorded", **options
        )
    return list(result.results())


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_is_as_short_as_promised(suite: str) -> None:
    folder = shipped("examples") / "suites" / suite
    texts = [
        path.read_text(encoding="utf-8") for path in (folder / "evaluator.toml", folder / f"templates/{suite}.xml")
    ]
    lines = [line for text in texts for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= MOST_LINES
    assert 8 <= len((folder / "README.md").read_text(encoding="utf-8").splitlines()) <= 16
