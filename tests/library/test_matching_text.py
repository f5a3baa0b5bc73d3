"""Words of a text as matching compares them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.library.words import deletions, is_one_slip, query_terms, stem, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("get_HTTPResponse", ["get", "http", "response"]),
        ("maxOutputTokens v2.5", ["max", "output", "tokens", "v", "2", "5"]),
        ("don't; the user's", ["do", "the", "user"]),
        ("Café NAÏVE", ["cafe", "naive"]),
        ("東京都", ["東京", "京都"]),
        ("", []),
    ],
)
def test_identifiers_are_split_and_accents_dropped(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    "forms",
    [
        "summarise summarize summaries summary summarizing summarization summariser",
        "classify classification classified classifier classifying",
        "translate translation translator translating",
        "compare comparison comparing compared",
        "decompose decomposition",
        "judge judging judgement judgment",
        "category categories categorise",
        "question questions",
        "rewrite rewriting rewritten rewrote",
        "document documents documentation",
        "plan planning planned plans",
    ],
)
def test_forms_of_one_word_share_a_stem(forms: str) -> None:
    assert len({stem(form) for form in forms.split()}) == 1


@pytest.mark.parametrize(
    "pair", ["sent sentiment", "quest question", "port report", "rate ratio", "text test"]
)
def test_different_words_keep_different_stems(pair: str) -> None:
    a, b = pair.split()
    assert stem(a) != stem(b)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("sentimnet", "sentiment", True),
        ("folowing", "following", True),
        ("reviwe", "review", True),
        ("grede", "grade", True),
        ("grade", "grade", False),
        ("abcd", "badc", False),
        ("voice", "invoice", False),
    ],
)
def test_one_slip_is_one_letter_more_less_other_or_swapped(a: str, b: str, expected: bool) -> None:
    assert is_one_slip(a, b) is is_one_slip(b, a) is expected


@given(st.text("abc", min_size=1, max_size=6), st.text("abc", min_size=1, max_size=6))
def test_words_one_slip_apart_share_a_deletion(a: str, b: str) -> None:
    if is_one_slip(a, b):
        assert deletions(a) & deletions(b)


def test_a_long_request_is_bounded_and_its_beginning_counts_most() -> None:
    terms = query_terms("alpha " + " ".join(f"w{n}x" for n in range(50_000)))
    assert len(terms) <= 200
    assert max(terms, key=lambda term: term.weight).shown == "alpha"
