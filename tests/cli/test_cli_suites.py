"""Each shipped benchmark lints, runs offline at once, and scores the recorded answers of its rows as they should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluator.cli.main import main
from evaluator.cli.scaffold import SUITES
from evaluator.files.shipped import shipped

BATCHES = [
    pytest.param(suite, file.name, id=f"{suite}-{file.stem}")
    for suite in SUITES
    for file in sorted((shipped("examples") / "suites" / suite).glob("*.toml"))
]
MOST_LINES = 12


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
    assert run("examples", "copy", suite) == 0
    monkeypatch.chdir(tmp_path / "examples" / suite)
    assert run("lint", "templates", "--strict") == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out

    assert run("batch", file, "--json") == 0
    simulated = json.loads(capsys.readouterr().out)["summary"]["counts"]
    assert (simulated["judged"], simulated["error"]) == (20, 0)
    assert simulated["passed"] >= 15

    variant = "_mc2" if file == "mc2.toml" else ""
    assert run("batch", file, "--json", "--answers", f"output{variant}", "--output", "recorded") == 0
    lines = Path("recorded", "results.jsonl").read_text(encoding="utf-8").splitlines()
    results = [json.loads(line) for line in lines]
    verdicts = {each["sample_id"]: (each["content"], each["verdict"]) for each in results}
    assert len(verdicts) == 20
    assert verdicts == {each["sample_id"]: (each["content"], each["metadata"][f"verdict{variant}"]) for each in results}
    assert {"passed", "failed"} <= {each["verdict"] for each in results}


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_is_as_short_as_promised(suite: str) -> None:
    folder = shipped("examples") / "suites" / suite
    texts = [
        path.read_text(encoding="utf-8") for path in (folder / "evaluator.toml", folder / f"templates/{suite}.xml")
    ]
    lines = [line for text in texts for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= MOST_LINES
    assert 8 <= len((folder / "README.md").read_text(encoding="utf-8").splitlines()) <= 16
