"""Bounds take the turns and tools of the profile that a task names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluator import HandlerConfig, TemplateLibrary
from evaluator.handler.profiles import turns_by_profile
from evaluator.library.bounds import CallCounter, call_bound
from tests.cli.conftest import Run, cli, environment, write

__all__ = ["cli", "environment", "write"]

TASK = """<task name="t" type="atomic"><description>List the files here</description>{handler}
<instructions>List.</instructions><tools><tool name="list_files"/></tools></task>"""
PROFILE = """<handler name="many"><backend>simulated</backend><limits max_turns="9"/></handler>"""


@pytest.mark.parametrize(
    ("handler", "chosen", "turns"),
    [
        ("", None, 4),
        ('<handler ref="many"/>', None, 9),
        ('<handler ref="many" max_turns="2"/>', None, 2),
        ('<handler ref="missing"/>', None, 4),
        ("", "many", 9),
        ('<handler ref="many"/>', "default", 4),
    ],
)
def test_the_profile_of_a_run_else_of_the_task_bounds_the_turns(
    tmp_path: Path, handler: str, chosen: str | None, turns: int
) -> None:
    (tmp_path / "t.xml").write_text(TASK.format(handler=handler))
    default = HandlerConfig(max_turns=4)
    profiles = {"default": default, "many": replace(default, name="many", max_turns=9)}
    library = TemplateLibrary.load(tmp_path)
    use = turns_by_profile(profiles, default, chosen)
    assert CallCounter(library, use=use).bound(library.get("t").node).max_calls == turns


def test_the_bound_of_a_template_is_stored_until_the_templates_or_the_turns_change(
    tmp_path: Path,
) -> None:
    (tmp_path / "t.xml").write_text(TASK.format(handler=""))
    library = TemplateLibrary.load(tmp_path)

    def bound(turns: int) -> Any:
        default = HandlerConfig(max_turns=turns)
        return call_bound(library, "t", turns_by_profile({"default": default}, default))

    assert bound(4).max_calls == 4
    assert bound(4) is bound(4)
    assert bound(5).max_calls == 5
    library.add(TASK.format(handler='<handler max_turns="2"/>'))
    assert bound(4).max_calls == 2


def test_lint_and_render_take_the_profile_that_a_task_names(cli: Run, write: Any) -> None:
    write("handlers/many.xml", PROFILE)
    write("templates/t.xml", TASK.format(handler='<handler ref="many"/>'))
    linted = json.loads(cli("lint", "--json").out)
    assert linted["templates"]["t"]["max_calls"] == 9
    assert json.loads(cli("render", "t", "--json").out)["max_calls"] == 9
