"""The JSON of a page: values that a browser reads without loss, with bounded texts, that cannot become markup."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.batch import Verdict
from evaluator.viewer.json_form import MAX_DEPTH, JsonForm, encoded, served_parts, with_title
from tests.batch.export.results import HOSTILE


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    verdict: Verdict


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Row("a", Verdict.PASSED), {"name": "a", "verdict": "passed"}),
        ({1: (None, True, 2.5)}, {"1": [None, True, 2.5]}),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (2**53, 2**53),
        (2**53 + 1, str(2**53 + 1)),
        (Path("a/b"), "a/b"),
        ("half \ud83d", "half \ufffd"),
    ],
)
def test_a_value_is_plain_json(value: Any, shown: Any) -> None:
    assert json.loads(encoded(value)) == shown


def test_what_is_nested_too_deeply_is_cut_and_the_rest_is_shown() -> None:
    deep: Any = "x"
    for _ in range(5_000):
        deep = [deep]
    shown = json.loads(encoded({"deep": deep, "other": 1}))
    assert shown["other"] == 1 and "nested too deeply" in json.dumps(shown)
    # The control: what is nested less deeply is whole.
    fine: Any = "x"
    for _ in range(MAX_DEPTH - 2):
        fine = [fine]
    assert json.loads(encoded({"fine": fine})) == {"fine": fine}


def test_texts_are_cut_each_and_together() -> None:
    form = JsonForm(max_text=3_000, max_total=5_000)
    first, second, third, fourth = form.plain(["a" * 4_000, "b" * 1_500, "c" * 1_500, "d" * 900])
    assert first == "a" * 3_000 + "… (the first 3,000 of 4,000 characters)"
    assert second == "b" * 1_500
    assert third.startswith("c" * 1_000) and "(the first 1,000 of 1,500 characters)" in third
    assert fourth == "d" * 900
    assert JsonForm(max_text=3, note=False).plain("abcd") == "abc…"


@given(st.recursive(st.text() | st.sampled_from(HOSTILE), lambda inner: st.lists(inner)))
def test_no_value_ends_the_script_element_or_acts_on_a_terminal(value: Any) -> None:
    text = encoded(value).decode()
    assert "<" not in text
    assert not any(ord(sign) < 32 or 0x202A <= ord(sign) <= 0x202E for sign in text)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_title_stays_text(text: str) -> None:
    before, _ = served_parts()
    page = with_title(before, text)
    assert page.count("<script") == before.count("<script") and page.count("<") == before.count("<")
