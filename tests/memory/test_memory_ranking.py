"""The ranking is exact, whichever postings it leaves unread, and scores can be compared."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.library.words import QueryTerm, stem
from evaluator.memory import ranking, store
from evaluator.memory.describe import Description
from evaluator.memory.ranking import Ranking
from evaluator.memory.terms import FIELDS, terms_of, unpack

TERMS = "abcdef"
HELD = st.lists(
    st.dictionaries(st.sampled_from(TERMS), st.integers(1, 999).map(lambda n: n * 8), max_size=6), max_size=40
)
ASKED = st.lists(
    st.tuples(st.sampled_from(TERMS + "z"), st.floats(0.05, 1.0)), min_size=1, max_size=7, unique_by=lambda t: t[0]
)


@contextmanager
def holding(files: list[dict[str, int]]) -> Iterator[sqlite3.Connection]:
    """A database with these terms by file; ids count from 1."""
    with TemporaryDirectory() as folder:
        connection = store.connect(Path(folder, "m.sqlite"))
        try:
            connection.execute("INSERT INTO root VALUES (1, 'x', 'folder', 1)")
            batch = [
                (store.Stamp(f"{n}.md", 0, 0, 0, 0), {"hash": "", "terms": terms}) for n, terms in enumerate(files)
            ]
            store.write_files(connection, 1, batch)
            yield connection
        finally:
            connection.close()


@settings(deadline=None, max_examples=60)
@given(HELD, ASKED, st.integers(1, 6))
def test_the_best_are_those_that_a_look_at_every_file_finds(
    files: list[dict[str, int]], asked: list[tuple[str, float]], limit: int
) -> None:
    terms = [QueryTerm(term, term, weight) for term, weight in asked]
    with holding(files) as connection, patch.object(ranking, "_LONG_LIST", 0):
        asking = Ranking(connection, terms)
        everything = asking.reasons(list(range(1, len(files) + 1)))
        scores = {file: sum(part.weight for part in parts) for file, parts in everything.items()}
        best = sorted(scores.values(), reverse=True)[:limit]
        found = asking.best(limit)
    assert len(found) == len(set(found)) >= len(best)
    assert sorted((scores[file] for file in found), reverse=True)[:limit] == pytest.approx(best, abs=0.002)
    assert all(0 < score <= 1 for score in scores.values())


def test_a_rare_word_counts_more_than_a_common_one() -> None:
    files = [{"a": 4000} for _ in range(30)] + [{"b": 4000}]
    with holding(files) as connection:
        reasons = Ranking(connection, [QueryTerm("a", "a", 1.0), QueryTerm("b", "b", 1.0)]).reasons([1, 31])
    assert reasons[31][0].weight > 5 * reasons[1][0].weight


def test_unknown_words_lower_the_score_up_to_a_bound() -> None:
    with holding([{"a": 4000}, {}]) as connection:
        scores = [
            Ranking(connection, [QueryTerm("a", "a", 1.0), *(QueryTerm(f"z{n}", f"z{n}", 1.0) for n in range(count))])
            .reasons([1])[1][0]
            .weight
            for count in (0, 1, 2, 20, 100)
        ]
    assert scores[0] > scores[1] > scores[2] >= scores[3] == scores[4] > 0


def test_of_very_many_equal_files_those_indexed_first_are_found() -> None:
    with holding([{"a": 4000} for _ in range(1_100)]) as connection:
        assert sorted(Ranking(connection, [QueryTerm("a", "a", 1.0)]).best(5)) == list(range(1, 1_001))


def test_a_hundred_files_leave_and_come_and_the_counts_are_right() -> None:
    with holding([{"a": 4000, f"only{n}": 8} for n in range(100)]) as connection:
        with store.transaction(connection):
            store.forget(connection, list(range(1, 51)))
        assert connection.execute("SELECT files FROM term WHERE stem = 'a'").fetchone() == (50,)
        assert connection.execute("SELECT count(*) FROM term").fetchone() == (51,)
        assert connection.execute("SELECT count(*) FROM posting").fetchone() == (100,)


@pytest.mark.parametrize(
    ("path", "description", "term", "field"),
    [
        ("src/parseHeaders.py", Description("python"), "headers", "name"),
        ("mailbox/x.py", Description("python"), "mailbox", "folder"),
        ("x.py", Description("python", "Parses it"), "parse", "summary"),
        ("x.py", Description("python", headings=("Sends mail",)), "mail", "heading"),
        ("x.py", Description("python", names=("HTTPServer",)), "http", "definition"),
        ("x.py", Description("python"), "python", "language"),
    ],
)
def test_a_term_is_indexed_by_its_stem_with_the_field_that_counts_most(
    path: str, description: Description, term: str, field: str
) -> None:
    impact, found = unpack(terms_of(path, description)[stem(term)])
    assert found == field
    assert 0 < impact < 1


def test_a_files_name_and_title_count_more_than_what_is_in_it_and_above_it() -> None:
    everywhere = [
        terms_of("whale.py", Description()),
        terms_of("x.py", Description(summary="whale")),
        terms_of("x.py", Description(names=("whale",))),
        terms_of("x.py", Description(headings=("whale",))),
        terms_of("whale/x.py", Description()),
    ]
    impacts = [unpack(terms[stem("whale")])[0] for terms in everywhere]
    assert min(impacts[:2]) > max(impacts[2:])


@given(st.text(max_size=40), st.text(max_size=60), st.lists(st.text(max_size=20), max_size=5))
def test_any_description_gives_impacts_below_1(path: str, summary: str, names: list[str]) -> None:
    for packed in terms_of(path, Description("x", summary, tuple(names), tuple(names))).values():
        impact, field = unpack(packed)
        assert 0 < impact < 1 and field in FIELDS
