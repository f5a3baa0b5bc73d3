"""The demo shows each operator once at least."""

from __future__ import annotations

import json
from typing import Any

from evaluator.nodes.declare import OPERATORS


def test_the_demo_runs_every_operator_and_functions_as_expected(cli: Any) -> None:
    ran = cli("demo", "--json")
    assert ran.code == 0, ran
    rows = json.loads(ran.out)
    assert {row["operator"].split(",")[0] for row in rows} == {*OPERATORS, "function"}
    assert {row["outcome"] for row in rows} == {"ok", "failed", "repaired"}
