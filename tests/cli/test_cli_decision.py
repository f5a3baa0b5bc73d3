"""`evaluator batch --detect …` plans the rows, names their cost, stops early and says so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

QUIZ = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>Answer in a word: {{ question }}</instructions></task>"
)


def test_the_command_plans_and_stops_and_compares(
    cli: Any, write: Callable[..., Any], tmp_path: Path
) -> None:
    rows = [{"id": n, "question": f"{n}?", "target": f"t{n}"} for n in range(60)]
    write("project/rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write("templates/quiz.xml", QUIZ)
    write(
        "project/b.toml",
        'template = "quiz"\nrows = "rows.jsonl"\nscorers = ["exact"]\nhandlers = ["offline"]\n'
        "[decide]\ndetect = 0.3\nbaseline = 0.5\nstop_early = true\n",
    )
    planned = cli("batch", "project/b.toml", "--dry-run")
    assert planned.code == 0, planned.err
    size = re.search(r"at most (\d+) rows, 1 epoch each, with 5 looks", planned.err)
    assert size is not None and f"{int(size[1])} samples" in planned.out
    as_json = json.loads(cli("batch", "project/b.toml", "--dry-run", "--json").out)
    assert as_json["decision"]["rows"] == int(size[1]) == as_json["samples"]
    assert re.search(r"note: stopping early takes \d+ % of the expected cost", planned.out)
    assert "on average" in planned.err and "--like FOLDER measures it" in planned.err
    by_value = ("--detect", "0.2", "--measure", "exact")
    planned = cli("plan", "project/b.toml", *by_value)
    assert planned.code == 0, planned.err
    assert "to show a difference of 0.2 in the mean of exact to 0.5" in planned.err
    refused = cli("plan", "quiz", "--input", "question=1?", *by_value)
    assert refused.code == 2 and "--detect is for a batch" in refused.err
    done = cli("batch", "project/b.toml", "--output", "first", "--progress", "plain")
    assert done.code == 0 and re.search(r"stopped at look \d of 5: a difference is shown", done.out)
    assert "look 1 of 5" in done.err
    results = (tmp_path / "first" / "results.jsonl").read_bytes()
    again = cli("batch", "--resume", "first")
    assert again.code == 0 and "of 5: a difference is shown" in again.out
    assert (tmp_path / "first" / "results.jsonl").read_bytes() == results
    # The folder is relative to where the command was started, the definition's to its file.
    second = cli("batch", "project/b.toml", "--baseline", "first", "--output", "second")
    assert second.code == 0 and "the difference to detect is improbable" in second.out
    status = cli("batch", "status", "first")
    assert re.search(r"complete \(stopped at look \d of 5: a difference is shown\)", status.out)
    compared = cli("compare", "first", "second")
    assert "stopped" in compared.out


def test_a_wrong_decision_is_one_line(cli: Any, write: Callable[..., Any]) -> None:
    write("rows.jsonl", '{"question": "1?"}\n')
    write("templates/quiz.xml", QUIZ)
    found = cli("batch", "--template", "quiz", "--rows", "rows.jsonl", "--detect", "0.1")
    assert found.code == 2 and "detect needs a baseline" in found.err
