"""How well labelled requests find the shipped templates.

`match_requests.json` was written before the scorer was tuned, by the author of the templates: real requests
will do worse. Its `tuning` half took part in choosing the weights and LOW_SCORE; its `held_out` half did not. A
`template` of null is a request that nothing fits. The bounds are what was reached, rounded down.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluator import Match, TemplateLibrary
from evaluator.library.matching import LOW_SCORE

MINUTES = (
    "Anna opened the meeting at nine. The budget was discussed line by line. Travel had become twice as expensive. "
    "The team agreed to cut the number of trips. A new office will open in May. The lease runs for five years. "
    "Two desks are still free there. The printer was repaired on Monday. Nobody raised objections. Lunch was served. "
    "The meeting closed at noon"
)
ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "match_requests.json").read_text())


@pytest.fixture(scope="module")
def results() -> list[tuple[dict[str, Any], list[Match]]]:
    library = TemplateLibrary.load(Path(__file__).parents[2] / "templates", shipped=False)
    return [(row, library.match(row["request"], 5)) for row in ROWS]


def share(values: list[bool]) -> float:
    return sum(values) / len(values)


def top_score(found: list[Match]) -> float:
    return found[0].score if found else 0.0


def test_the_set_is_large_enough_and_labelled_in_both_halves() -> None:
    for half in ("tuning", "held_out"):
        rows = [row for row in ROWS if row["set"] == half]
        assert len([row for row in rows if row["template"]]) >= 30
        assert len([row for row in rows if row["template"] is None]) >= 10
    assert len({row["request"] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("half", "first", "five"), [("tuning", 0.97, 1.0), ("held_out", 0.97, 1.0)]
)
def test_the_right_template_comes_first_or_among_five(
    results: Any, half: str, first: float, five: float
) -> None:
    names = [
        (row["template"], [match.template.name for match in found])
        for row, found in results
        if row["set"] == half and row["template"]
    ]
    assert share([found[:1] == [wanted] for wanted, found in names]) >= first
    assert share([wanted in found for wanted, found in names]) >= five


@pytest.mark.parametrize(("half", "fitting"), [("tuning", 0.92), ("held_out", 0.92)])
def test_most_fits_score_above_low_score_and_all_others_below(
    results: Any, half: str, fitting: float
) -> None:
    rows = [
        (row["template"] is not None, top_score(found))
        for row, found in results
        if row["set"] == half
    ]
    assert share([score >= LOW_SCORE for fits, score in rows if fits]) >= fitting
    assert all(score < LOW_SCORE for fits, score in rows if not fits)


@pytest.fixture(scope="module")
def library() -> TemplateLibrary:
    return TemplateLibrary.load(Path(__file__).parents[2] / "templates", shipped=False)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("what's up", None),
        ("What is the tallest mountain in Africa?", "answer_question"),
        ("when does my train leave", None),
        ("what is my account balance", None),
        ("when is my next day off", None),
        ("order more bread please", None),
        ("write words that describe a piece of work as a task in XML", "not compile_task"),
        ("how many words are in this file", "not compile_task"),
        ("Wie ist das Wetter in Berlin?", None),
        ("delete all files in my home directory", None),
        ("open this file in a new window", None),
        ("what is my order status", None),
        ("what is the weather like today", None),
        ("Fasse diesen Text zusammen", None),
        ("Traduis ce texte en français", None),
        ("Quelle est la question posée dans le document ?", None),
        ("東京の天気を教えてください", None),
        ("Классифицируй этот отзыв", None),
    ],
)
def test_a_request_finds_its_template_or_is_refused(
    library: TemplateLibrary, request_: str, expected: str
) -> None:
    found = library.match(request_)
    if expected == "not compile_task":
        assert "compile_task" not in [match.template.name for match in found]
    else:
        name = found[0].template.name if found and found[0].score >= LOW_SCORE else None
        assert name == expected


@pytest.mark.parametrize("place", [0, 5, 10])
def test_an_instruction_is_found_wherever_it_stands(library: TemplateLibrary, place: int) -> None:
    sentences = MINUTES.split(". ")
    sentences.insert(place, "Translate the text into French")
    best = library.match(". ".join(sentences))[0]
    assert best.template.name == "translate"
    assert best.score >= LOW_SCORE


def test_a_message_in_an_example_of_the_intake_is_not_matched_to_it(
    library: TemplateLibrary,
) -> None:
    found = library.match("Could you look up the gold price?", 5)
    assert "read_message" in library.templates
    assert "read_message" not in [each.template.name for each in found]
