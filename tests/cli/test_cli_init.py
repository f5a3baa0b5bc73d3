"""A new project lints, tests and runs at once: offline, without a key, and without a permission."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from lxml import etree

from evaluator import TemplateLibrary
from evaluator.cli.main import main
from evaluator.cli.scaffold import DATA, PROJECTS, template_types
from evaluator.files.shipped import shipped
from evaluator.handler.config import read_profile
from evaluator.nodes.declare import OPERATORS

SCHEMA_LOCATION = "{http://www.w3.org/2001/XMLSchema-instance}noNamespaceSchemaLocation"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


@pytest.mark.parametrize("example", PROJECTS)
def test_a_new_project_lints_runs_and_meets_its_thresholds(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("init", "mine", "--example", example) == 0
    monkeypatch.chdir(tmp_path / "mine")
    assert run("lint", "templates", "--strict") == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out
    assert run("batch", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] and result["thresholds"]
    commands = [line.strip() for line in Path("README.md").read_text(encoding="utf-8").splitlines()]
    assert sum(line.startswith(("evaluator ", "pytest")) for line in commands) == 4
    assert len(commands) <= 10
    (single,) = (line for line in commands if line.startswith("evaluator run "))
    assert run(*shlex.split(single)[1:]) == 0
    answer = capsys.readouterr().out
    assert answer.strip() and '"success": false' not in answer


@pytest.mark.parametrize("example", PROJECTS)
def test_editors_find_the_schema_of_every_file_and_it_is_valid(example: str, tmp_path: Path) -> None:
    assert run("init", "--example", example) == 0
    files = [*tmp_path.glob("templates/*.xml"), *tmp_path.glob("handlers/*.xml")]
    assert len(files) >= 2
    for file in files:
        document = etree.parse(file)
        schema = etree.XMLSchema(etree.parse(file.parent / document.getroot().get(SCHEMA_LOCATION)))
        schema.assertValid(document)
    assert read_profile(tmp_path / "handlers" / "project.xml")[0].name == "project"
    settings = json.loads((tmp_path / ".vscode" / "settings.json").read_text(encoding="utf-8"))
    assert all((tmp_path / each["systemId"]).is_file() for each in settings["xml.fileAssociations"])


def test_the_test_of_a_new_project_passes(tmp_path: Path) -> None:
    assert run("init") == 0
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout


def test_existing_files_stay_and_a_project_is_not_begun_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    assert run("init") == 0
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "mine"
    assert "kept: README.md" in capsys.readouterr().err
    assert run("init", "--example", "judge") == 2
    assert "there is a project already" in capsys.readouterr().err
    assert not (tmp_path / "templates" / "is_polite.xml").exists()


@pytest.mark.parametrize("kind", template_types())
def test_a_new_template_of_each_type_has_no_findings(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new", "fresh", "--type", kind) == 0
    file = Path("templates/fresh.xml")
    assert "schemaLocation" not in file.read_text(encoding="utf-8"), "there is no schema here to point at"
    library = TemplateLibrary.load("templates", shipped=False)
    assert list(library.templates) == ["fresh"]
    assert list(library.diagnostics) == []
    assert run("new", "fresh", "--type", kind) == 2
    assert "exists" in capsys.readouterr().err


def test_every_operator_can_be_begun() -> None:
    assert set(template_types()) == {*OPERATORS, "function"}


def test_a_new_template_points_at_the_schema_of_its_project() -> None:
    assert run("init") == 0
    assert run("new", "deep", "--library", "templates/more") == 0
    root = etree.parse("templates/more/deep.xml").getroot()
    assert (Path("templates/more") / root.get(SCHEMA_LOCATION)).resolve() == Path("schemas/task.xsd").resolve()


@pytest.mark.parametrize("name", ["", "../escape", "a b", "{{x}}", "1st"])
def test_a_name_that_is_no_template_name_is_refused(name: str, tmp_path: Path) -> None:
    assert run("new", name) == 2
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_examples_are_listed_and_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("examples", "list") == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in (*PROJECTS, *DATA))
    # Every folder with a page of its own can be copied.
    assert sorted(DATA) == sorted(page.parent.name for page in shipped("examples").glob("*/README.md"))
    assert run("examples", "copy", "data") == 0
    definition = tomllib.loads(Path("examples/data/facts.toml").read_text(encoding="utf-8"))
    assert (tmp_path / "examples" / "data" / definition["rows"]).is_file()
    assert run("examples", "copy", "dat") == 2
    assert "did you mean `data`?" in capsys.readouterr().err
