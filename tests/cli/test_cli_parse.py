"""`evaluator parse`: strict reading, and how often each repair was needed."""

from __future__ import annotations

import json
from typing import Any


def test_strict_reading_refuses_a_text_that_needs_a_repair(cli: Any) -> None:
    assert cli("parse", "--strict", stdin=b'{"a": 1}').code == 0
    ran = cli("parse", "--strict", stdin=b'{"a": 1,}')
    assert (ran.code, ran.out) == (1, "")
    assert "trailing comma" in ran.err


def test_stats_count_the_answers_that_needed_each_repair(cli: Any) -> None:
    answers = ['{"a": 1}', '{"a": 1,}', "{'a': 1,}", "no value here"]
    lines = "\n".join(json.dumps(answer) for answer in answers[:2])
    lines += "\n\n" + "\n".join(json.dumps({"content": answer}) for answer in answers[2:])
    found = json.loads(
        cli("parse", "--stats", "--schema", "object", "--json", stdin=lines.encode()).out
    )
    assert (found["answers"], found["unchanged"], found["errors"]) == (4, 1, {"no_json": 1})
    assert found["repairs"]["a trailing comma was left out"] == 2
    shown = cli("parse", "--stats", "--schema", "object", stdin=lines.encode()).out
    assert "1 of 4 answers was read without a repair, 1 of 4 not read" in shown


def test_stats_name_the_line_that_holds_no_answer(cli: Any) -> None:
    for line, expected in (("{oops", "line 2 is not JSON"), ('{"id": 1}', "line 2 has no answer")):
        ran = cli("parse", "--stats", stdin=f'"x"\n{line}\n'.encode())
        assert ran.code == 2
        assert expected in ran.err
