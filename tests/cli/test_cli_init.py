"""A new project lints, tests and runs at once: offline, without a key, and without a permission."""

from __future__ import annotations

import errno
import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from lxml import etree

from evaluator import TemplateLibrary, disk
from evaluator.cli.init import DATA, PROJECTS, template_types
from evaluator.files.locations import shipped
from evaluator.handler.config import read_profile
from evaluator.nodes.declare import FIELDS, OPERATORS
from tests.cli.conftest import Run
from tests.sandboxes import require_bubblewrap

SCHEMA_LOCATION = "{http://www.w3.org/2001/XMLSchema-instance}noNamespaceSchemaLocation"


@pytest.mark.parametrize("example", PROJECTS)
def test_a_new_project_lints_runs_and_meets_its_thresholds(
    cli: Run, example: str, tmp_path: Path
) -> None:
    if example == "code":
        require_bubblewrap()
    assert cli("init", "mine", "--example", example).code == 0
    mine = tmp_path / "mine"
    linted = cli("lint", "templates", "--strict", cwd=mine)
    assert linted.code == 0 and "0 errors, 0 warnings" in linted.out
    ran = cli("batch", "--json", cwd=mine)
    result = json.loads(ran.out)
    assert ran.code == 0 and result["ok"] and result["thresholds"]
    commands = [
        line.strip() for line in (mine / "README.md").read_text(encoding="utf-8").splitlines()
    ]
    assert sum(line.startswith(("evaluator ", "pytest")) for line in commands) == 4
    assert len(commands) <= 10
    (single,) = (line for line in commands if line.startswith("evaluator run "))
    answer = cli(*shlex.split(single)[1:], cwd=mine)
    assert answer.code == 0 and answer.out.strip() and '"success": false' not in answer.out


def test_a_project_is_made_where_the_file_system_has_no_hard_links(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    (tmp_path / "README.md").write_text("mine")
    monkeypatch.setattr(disk, "link", link)
    assert cli("init").code == 0
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "mine"
    assert list(tmp_path.glob("templates/*.xml"))
    assert not list(tmp_path.rglob(".*.tmp"))


@pytest.mark.parametrize("example", PROJECTS)
def test_editors_find_the_schema_of_every_file_and_it_is_valid(
    cli: Run, example: str, tmp_path: Path
) -> None:
    assert cli("init", "--example", example).code == 0
    files = [*tmp_path.glob("templates/*.xml"), *tmp_path.glob("handlers/*.xml")]
    assert len(files) >= 2
    for file in files:
        document = etree.parse(file)
        schema = etree.XMLSchema(etree.parse(file.parent / document.getroot().get(SCHEMA_LOCATION)))
        schema.assertValid(document)
    assert read_profile(tmp_path / "handlers" / "project.xml")[0].name == "project"
    settings = json.loads((tmp_path / ".vscode" / "settings.json").read_text(encoding="utf-8"))
    assert all((tmp_path / each["systemId"]).is_file() for each in settings["xml.fileAssociations"])


def test_the_test_of_a_new_project_passes(cli: Run, tmp_path: Path) -> None:
    assert cli("init").code == 0
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout


def test_existing_files_stay_and_a_project_is_not_begun_twice(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    ran = cli("init")
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "mine"
    assert ran.code == 0 and "kept: README.md" in ran.err
    again = cli("init", "--example", "judge")
    assert again.code == 2 and "there is a project already" in again.err
    assert not (tmp_path / "templates" / "is_polite.xml").exists()


@pytest.mark.parametrize("kind", template_types())
def test_a_new_template_of_each_type_has_no_findings(cli: Run, kind: str, tmp_path: Path) -> None:
    assert cli("new", "fresh", "--type", kind).code == 0
    file = tmp_path / "templates" / "fresh.xml"
    assert "schemaLocation" not in file.read_text(encoding="utf-8"), (
        "there is no schema here to point at"
    )
    library = TemplateLibrary.load(file.parent, shipped=False)
    assert list(library.templates) == ["fresh"]
    assert list(library.diagnostics) == []
    assert cli("fmt", "--check", "templates").code == 0
    again = cli("new", "fresh", "--type", kind)
    assert again.code == 2 and "exists" in again.err


def test_a_task_with_a_condition_notes_whether_it_held(cli: Run, tmp_path: Path) -> None:
    for kind in [
        kind
        for kind, cls in OPERATORS.items()
        if any(field.form == "condition" for field in FIELDS[cls])
    ]:
        assert cli("new", kind, "--type", kind).code == 0
        inputs = (
            etree.parse(tmp_path / "templates" / f"{kind}.xml").getroot().iterfind("inputs/input")
        )
        given = [f"--input={declared.get('name')}=x" for declared in inputs]
        ran = cli("run", "--template", kind, "--handler", "offline", "--json", *given)
        missing = f"`run --strict` needs the note termination_reason of {kind}: CONDITION_MET, or another reason"
        assert json.loads(ran.out).get("notes", {}).get("termination_reason"), missing


def test_every_operator_can_be_begun() -> None:
    assert set(template_types()) == {*OPERATORS, "function"}, (
        "add examples/new/TYPE.xml for each operator"
    )


def test_a_new_template_points_at_the_schema_of_its_project(cli: Run, tmp_path: Path) -> None:
    assert cli("init").code == 0
    assert cli("new", "deep", "--library", "templates/more").code == 0
    more = tmp_path / "templates" / "more"
    root = etree.parse(more / "deep.xml").getroot()
    assert (more / root.get(SCHEMA_LOCATION)).resolve() == (
        tmp_path / "schemas" / "task.xsd"
    ).resolve()
    assert cli("fmt", "--check", "templates").code == 0


@pytest.mark.parametrize("name", ["", "../escape", "a b", "{{x}}", "1st"])
def test_a_name_that_is_no_template_name_is_refused(cli: Run, name: str, tmp_path: Path) -> None:
    assert cli("new", name).code == 2
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_examples_are_listed_and_copied(cli: Run, tmp_path: Path) -> None:
    listed = cli("examples", "list")
    assert listed.code == 0 and all(name in listed.out for name in (*PROJECTS, *DATA))
    # Every folder with a page of its own can be copied.
    assert sorted(DATA) == sorted(
        page.parent.name for page in shipped("examples").glob("*/README.md")
    )
    assert cli("examples", "copy", "data").code == 0
    definition = tomllib.loads(
        (tmp_path / "examples" / "data" / "facts.toml").read_text(encoding="utf-8")
    )
    assert (tmp_path / "examples" / "data" / definition["rows"]).is_file()
    mistaken = cli("examples", "copy", "dat")
    assert mistaken.code == 2 and "did you mean `data`?" in mistaken.err
