"""A text becomes an entry with a goal and a type; what fits no type stays unknown."""

from __future__ import annotations

import pytest

from evaluator import UsageError
from evaluator.jobs.entries import TYPES
from evaluator.jobs.intake import MAX_CHARS, checked_text, classify, goal_of


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
        # Two types fit about equally well, and one shares only a word of many.
        ("Write an email to Bob", "unknown"),
        ("Bake bread with flour, salt, yeast, water and news", "unknown"),
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
        ("Hi there! Could you look up the gold price?", "Could you look up the gold price?"),
        (
            "Dear Mr. Smith wants a quote for five laptops. He is in a hurry.",
            "Dear Mr. Smith wants a quote for five laptops.",
        ),
        ("Hello Ana,\n\nplease send it to Dr. Lang. Thanks!", "please send it to Dr. Lang."),
        ("Hi Bob, could you look up X? Thanks", "Could you look up X?"),
        ("I was at the bank. The file is in ~/x. Summarise it.", "Summarise it."),
        ("Good morning. The server is down. Restart it.", "Restart it."),
        ("Urgent! Fix it for the U.S. team.", "Fix it for the U.S. team."),
        ("Call Prof. J. R. Meyer on Monday. Bring cake.", "Call Prof. J. R. Meyer on Monday."),
        ("你好。请查一下金价。谢谢。", "请查一下金价。"),
        # Where nothing is asked for, the first sentence that is not a greeting.
        ("Hello! The roof leaks. It rains.", "The roof leaks."),
        ("Thanks!", "Thanks!"),
    ],
)
def test_the_goal_is_the_first_sentence_that_asks_for_something(text, expected):
    assert goal_of(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [(" \n", "is empty"), ("x" * (MAX_CHARS + 1), "100,001 characters"), ("\ud800", "surrogate")],
)
def test_a_text_that_cannot_be_an_entry_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        checked_text(text)
