"""A text becomes an entry with a goal and a type; what fits no type stays unknown."""

from __future__ import annotations

import pytest

from evaluator.errors import UsageError
from evaluator.queue.entries import TYPES
from evaluator.queue.intake import MAX_CHARS, checked_text, classify, goal_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("research the five most used static site generators", "info-lookup"),
        ("what is the price of gold today?", "info-lookup"),
        ("create a markdown table in ~/notes/sites.md", "file-creation"),
        ("run the unit tests of the parser", "code-execution"),
        ("delegate the refactoring of the billing module to an agent", "agent-delegation"),
        ("remind me tomorrow at 9 to call the dentist", "reminder-scheduling"),
        ("every monday check the backups", "reminder-scheduling"),
        ("post the table to the channel #sites", "messaging"),
        ("send Anna an email with the agenda", "messaging"),
        ("hm", "unknown"),
        ("qwertz asdf", "unknown"),
        ("翻訳してください", "unknown"),
        ("fix it", "unknown"),
    ],
)
def test_the_type_is_the_one_whose_words_the_text_has(text, expected):
    assert expected in TYPES and classify(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Compare Hugo 0.12 with Zola.  Then write\na table.", "Compare Hugo 0.12 with Zola."),
        ("read notes.md e.g. the end\n\n", "read notes.md e.g. the end"),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_the_goal_is_the_first_sentence(text, expected):
    assert goal_of(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [(" \n", "is empty"), ("x" * (MAX_CHARS + 1), "100,001 characters"), ("\ud800", "surrogate")],
)
def test_a_text_that_cannot_be_an_entry_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        checked_text(text)
