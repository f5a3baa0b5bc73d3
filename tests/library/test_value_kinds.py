"""The kinds of values that requests hold and inputs take."""

from __future__ import annotations

import pytest

from evaluator import Span
from evaluator.library.matching import LexicalRanker
from evaluator.library.request_terms import kinds_in, kinds_taken
from evaluator.library.words import words
from evaluator.nodes import Atomic, Input, Text

SHOWN = [
    ("a table for tomorrow", {"date"}),
    ("on 2026-03-08", {"date"}),
    ("8/3/2026", {"date"}),
    ("the 3rd of the month", {"date"}),
    ("since 1999", {"date", "number"}),
    ("March 8", {"date", "number"}),
    ("at 7pm", {"date"}),
    ("at 19:30", {"date"}),
    ("I march on", set[str]()),
    ("may 5", {"date", "number"}),
    ("mondays are fine", set[str]()),
    ("it may rain", set[str]()),
    ("the weather in Rome", {"place"}),
    ("in rome", set[str]()),
    ("$250 or 40 euros", {"amount", "number"}),
    ("€ 5", {"amount", "number"}),
    ("divide 17 by 3.5", {"number"}),
    ("covid19, v2, 10-12", set[str]()),
    ("say 'good day' to them", {"quotation"}),
    ("it's what they're after", set[str]()),
    ("write to ada@example.org", {"e-mail address", "link"}),
    ("open https://x.test", {"link"}),
    ("see example.com", {"link"}),
    ("read notes.txt", {"file"}),
    ("read /var/log", {"file"}),
    ("either/or", set[str]()),
    ("", set[str]()),
]


def declared(name: str, kind: str = "string") -> Input:
    return Input(name, kind, True, None, None, None, "", Span())


@pytest.mark.parametrize(("text", "expected"), SHOWN)
def test_a_text_holds_kinds_of_values(text: str, expected: set[str]) -> None:
    assert set(kinds_in(text, words(text))) == expected


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("startDate", "string", {"date"}),
        ("home_city", "string", {"place"}),
        ("price", "string", {"amount"}),
        ("flavour", "integer", {"number"}),
        ("flavour", "string", set[str]()),
        ("to", "string", {"place", "e-mail address"}),
        ("file_path", "string", {"file"}),
    ],
)
def test_an_input_takes_kinds_by_its_name_and_type(
    name: str, kind: str, expected: set[str]
) -> None:
    assert set(kinds_taken(declared(name, kind))) == expected


def template(name: str, *inputs: str) -> Atomic:
    return Atomic(
        name=name, description=Text("Plan an outing", Span()), inputs=tuple(map(declared, inputs))
    )


class Named:
    def __init__(self, node: Atomic) -> None:
        self.name, self.node = str(node.name), node


@pytest.mark.parametrize(
    ("request_", "expected", "reason"),
    [
        ("an outing on Friday", "when", "~a date"),
        ("an outing to Rome", "where", "~a place"),
        ("an outing", "any", None),
    ],
)
def test_a_value_finds_the_template_with_an_input_for_it(
    request_: str, expected: str, reason: str | None
) -> None:
    templates = [
        template("any"),
        template("when", "date"),
        template("where", "city"),
        template("cost", "price"),
    ]
    ranker = LexicalRanker(map(Named, templates))
    best = ranker.rank(request_)[0]
    assert best.template.name == expected
    assert [(r.term, r.field) for r in best.why if r.term.startswith(("~a ", "~an "))] == (
        [(reason, "inputs")] if reason else []
    )


@pytest.mark.parametrize(
    "repeated", ["1", "a@", "a-", "“", "'", "in ", "1.", "1-", "/", "a.", " ", "$", "1 ", "mar 1"]
)
def test_a_long_text_without_an_end_to_its_values_is_read_once(repeated: str) -> None:
    # Read again for each beginning, it would take minutes.
    known = {kind for _, kinds in SHOWN for kind in kinds}
    assert set(kinds_in(repeated * (300_000 // len(repeated)), ())) <= known
