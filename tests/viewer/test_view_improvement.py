"""The page of a search for a better template in the viewer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.improve.capitals import BETTER, Model, search
from tests.viewer.site import page


def test_a_search_is_shown_with_its_decision_tree_and_diff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "user"))
    hostile = {**BETTER, "why": "<script>alert(1)</script> \x1b[31m"}
    search(tmp_path, Model(), proposals=[hostile], rounds=1)
    found = re.search(r'"(/improvement/[0-9a-f]+)"', page(tmp_path, "/batches").text)
    assert found is not None
    shown = page(tmp_path, found[1])
    assert "accepted" in shown.shown
    assert "+    Reply with its name alone" in shown.data["diff"]
    assert shown.data["is_own"]
    assert "<script>alert" not in shown.text
    assert page(tmp_path, shown.data["compare"]).status == 200
    (tmp_path / "search" / "certificate.json").unlink()
    assert page(tmp_path, found[1]).data["tables"] is None
    assert page(tmp_path, "/improvement/000000000000").status == 404
