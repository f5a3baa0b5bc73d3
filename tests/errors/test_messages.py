"""Parts of messages."""

from __future__ import annotations

import pytest

from evaluator.errors.messages import agree, amount, correction, duration_text
from tests.tables import each_case


@each_case(
    ("count", "noun", "text"),
    [
        (0, "call", "0 calls"),
        (1, "call", "1 call"),
        (1_000, "more line", "1,000 more lines"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (2, "entry", "2 entries"),
        (2, "process", "2 processes"),
    ],
)
def test_a_noun_agrees_with_its_count(count: int, noun: str, text: str) -> None:
    assert amount(count, noun) == text
    assert agree(count, "is", "are") == ("is" if count == 1 else "are")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (5.5e-06, "5.5 µs"),
        (0.0009994, "999 µs"),
        (0.0012345, "1.23 ms"),
        (0.25, "250 ms"),
        (1, "1.0 s"),
        (1.26, "1.3 s"),
        (119.9, "119.9 s"),
        (119.96, "2 min 0 s"),
        (150, "2 min 30 s"),
        (3599.4, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (5430, "1 h 30 min"),
    ],
)
def test_a_duration_has_a_unit_that_fits_it(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("proprties", ["properties", "pattern"], "properties"),
        ("maxLenght", ["maxLength", "minLength"], "maxLength"),
        ("titel", ["title", "type"], "title"),
        ("Properties", ["properties"], "properties"),
        ("title", ["title", "titel"], None),
        ("minProperty", ["minProperties", "maxProperties"], None),
        ("ab", ["ba"], None),
        ("colour", ["type", "name"], None),
    ],
)
def test_a_correction_is_the_one_name_that_is_meant(
    name: str, known: list[str], meant: str | None
) -> None:
    assert correction(name, known, cutoff=0.85) == meant
