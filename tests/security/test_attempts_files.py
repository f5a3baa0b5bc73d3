"""Attempts of a template to read a file that is neither below its own folder nor below a root, by a declared schema."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from evaluator import Evaluator, SimulatedBackend, TaskError, TaskResult, TemplateLibrary
from evaluator.interpreter.preflight import check_node

SCHEMA = {"type": "object", "description": "SECRET"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders `templates` (of the template), `root` (of the run) and `outside`, and the paths of the attempts."""
    for name in ("templates/sub", "root", "outside", "templates-evil", "here"):
        (tmp_path / name).mkdir(parents=True)
    for name in (
        "templates/own.json",
        "templates/sub/own.json",
        "root/own.json",
        "outside/x.json",
        "templates-evil/x.json",
    ):
        (tmp_path / name).write_text(json.dumps(SCHEMA))
    (tmp_path / "templates/link.json").symlink_to(tmp_path / "outside/x.json")
    (tmp_path / "templates/linked").symlink_to(tmp_path / "outside")
    (tmp_path / "root/link.json").symlink_to(tmp_path / "outside/x.json")
    (tmp_path / "templates/folder.json").mkdir()
    os.mkfifo(tmp_path / "templates/pipe.json")
    (tmp_path / "templates/large.json").write_text(json.dumps({**SCHEMA, "title": "x" * 1_100_000}))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def evaluate(
    place: Path, schema: str, *, function: bool = False
) -> tuple[TaskResult | TaskError, list[str], TemplateLibrary]:
    """The outcome, and the prompts that were sent."""
    declared = f'<output_format type="json" schema="{schema.replace("PLACE", str(place))}"/>'
    body = f"<description>d</description>{'' if function else declared}"
    xml = f'<task name="t" type="atomic">{body}</task>'
    if function:
        returns = schema.replace("PLACE", str(place))
        xml = f'<template name="t" params="" returns="{returns}"><task type="atomic">{body}</task></template>'
    (place / "templates/t.xml").write_text(xml)
    prompts: list[str] = []

    def answer(request: object) -> str:
        prompts.append(str(request))
        return "{}"

    library = TemplateLibrary.load(place / "templates", shipped=False)
    evaluator = Evaluator(
        library,
        "offline",
        backend=SimulatedBackend(script=answer),
        tasks_dir=None,
        roots=[place / "root"],
    )
    return evaluator.evaluate_sync("t"), prompts, library


ATTEMPTS = [
    "PLACE/outside/x.json",
    "../outside/x.json",
    "sub/../../outside/x.json",
    "PLACE/templates/../outside/x.json",
    "../templates-evil/x.json",
    "link.json",
    "linked/x.json",
    "PLACE/root/link.json",
    "folder.json",
    "pipe.json",
    "large.json",
    "/proc/self/environ.json",
    "../../../../../../etc/x.json",
    "./../outside/./x.json",
]


@pytest.mark.parametrize("schema", ATTEMPTS)
def test_a_schema_outside_of_the_folder_and_the_roots_is_not_read(schema: str, place: Path) -> None:
    for function in (False, True):
        outcome, prompts, _ = evaluate(place, schema, function=function)
        assert isinstance(outcome, TaskError), outcome
        assert not any("SECRET" in prompt for prompt in prompts)
        assert function or not prompts, "nothing is sent"
        assert "SECRET" not in str(outcome)


@pytest.mark.parametrize(
    "schema",
    ["own.json", "sub/own.json", "./sub/../own.json", "PLACE/root/own.json", "../root/own.json"],
)
def test_control_a_schema_below_the_folder_or_a_root_is_shown_to_the_model(
    schema: str, place: Path
) -> None:
    outcome, prompts, library = evaluate(place, schema)
    assert outcome.ok and not library.errors
    assert "SECRET" in prompts[0]


def test_lint_reports_a_schema_that_is_outside(place: Path) -> None:
    _, _, library = evaluate(place, "../outside/x.json")
    node = library.get("t").node
    found = check_node(node, (), (), (), {})
    assert [(each.code, each.span.line) for each in found] == [("schema-outside", 1)]
    assert "SECRET" not in str(found)
    assert check_node(node, (), (), (), {}, roots=[str(place)]) == []
