"""`evaluator tasks import`, and folders of other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def test_the_command_names_what_it_took_over_and_what_not(
    cli: Any, write: Any, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    write("other/TASK-208.md", "# TASK-208\n- Status: ok\nwords\n")
    write("other/TASK-9.md", "# TASK-9\n\n- **Status**: wonderful\n")
    write("other/TASK-m1x9k2ab.md", "# Task: send\n- **ID:** TASK-m1x9k2ab\n- **Status:** FAILED\n")
    ran = cli("tasks", "import", "other")
    assert ran.code == 1
    assert ran.out == "TASK-1  other/TASK-208.md\nTASK-2  other/TASK-m1x9k2ab.md\n"
    assert ran.err == (
        "other/TASK-208.md: line 3: this is not a field and is left out: 'words'\n"
        "other/TASK-9.md:3: not imported: Status is not a status: 'wonderful'\n"
    )
    assert cli("tasks", "show", "2").out.startswith("TASK-2  failed\n")
    again = cli("tasks", "import", "other/TASK-208.md", "--json")
    assert again.code == 0
    assert json.loads(again.out) == [
        {
            "path": "other/TASK-208.md",
            "state": "known",
            "name": "TASK-1",
            "reason": "it was imported before",
            "line": None,
            "warnings": [],
        }
    ]
    assert cli("tasks", "import", "none").code == 2


def test_a_flat_folder_of_another_program_is_listed_and_shown(
    cli: Any, write: Any, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    write("other/TASK-208.md", "# TASK-208\n- Status: ok\n")
    write("other/TASK-m1x9k2ab.md", "# Task: send\n- **ID:** TASK-m1x9k2ab\n- **Status:** FAILED\n")
    listed = cli("tasks", "list", "--tasks", "other")
    assert listed.err == (
        "not listed, because its id is not a number: TASK-m1x9k2ab.md; see: evaluator tasks import other\n"
    )
    assert "208  completed" in listed.out
    assert cli("tasks", "show", "208", "--tasks", "other").out.startswith("TASK-208  completed\n")
    for task in ("m1x9k2ab", "TASK-m1x9k2ab", "other/TASK-m1x9k2ab.md"):
        assert cli("tasks", "show", task, "--tasks", "other").out.startswith(
            "TASK-m1x9k2ab  failed\n"
        )
