"""The ranking finds the best files, however many common words a request has, and its scores can be compared."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evaluator.library.matching import Reason
from evaluator.library.words import QueryTerm, stem
from evaluator.memory import store
from evaluator.memory.describe import Description
from evaluator.memory.store import FIELDS, MAX_RESULTS, rank, stems_of

TERMS = "abcdef"
STEMS = st.lists(st.sampled_from(TERMS), max_size=5).map(" ".join)
HELD = st.lists(st.tuples(*(STEMS for _ in FIELDS)).map(list), max_size=40)
ASKED = st.lists(
    st.tuples(st.sampled_from(TERMS + "z"), st.floats(0.05, 1.0)),
    min_size=1,
    max_size=7,
    unique_by=lambda t: t[0],
)


@contextmanager
def holding(files: Sequence[list[str]]) -> Iterator[sqlite3.Connection]:
    """A database with these stems by file; ids count from 1."""
    with TemporaryDirectory() as folder:
        connection = store.connect(Path(folder, "m.sqlite"))
        try:
            connection.execute("INSERT INTO root VALUES (1, 'x', 'folder', 1)")
            batch = [
                (store.Stamp(f"{n}.md", 0, 0, 0, 0), {"hash": "", "stems": stems})
                for n, stems in enumerate(files)
            ]
            store.write_files(connection, 1, batch)
            yield connection
        finally:
            connection.close()


def named(name: str) -> list[str]:
    return [name, *[""] * (len(FIELDS) - 1)]


def asked(*terms: str) -> list[QueryTerm]:
    return [QueryTerm(term, term, 1.0) for term in terms]


def score(reasons: list[Reason]) -> float:
    return sum(reason.weight for reason in reasons)


@settings(deadline=None, max_examples=60)
@given(HELD, ASKED, st.integers(1, 6))
def test_the_best_are_those_that_a_look_at_every_file_finds(
    files: list[list[str]], terms: list[tuple[str, float]], limit: int
) -> None:
    query = [QueryTerm(term, term, weight) for term, weight in terms]
    with holding(files) as connection:
        everything = {
            file: score(reasons)
            for file, reasons in rank(connection, query, len(files) + 1).items()
        }
        found = rank(connection, query, limit)
        also = rank(connection, query, limit, [1]) if files else {}
    best = sorted(everything.values(), reverse=True)[:limit]
    assert sorted((score(reasons) for reasons in found.values()), reverse=True)[
        :limit
    ] == pytest.approx(best)
    assert all(score(reasons) == pytest.approx(everything[file]) for file, reasons in found.items())
    assert all(0 < score <= 1 for score in everything.values())
    assert not files or score(also[1]) == pytest.approx(everything.get(1, 0))


def test_a_rare_word_counts_more_than_a_common_one() -> None:
    with holding([named("a") for _ in range(30)] + [named("b")]) as connection:
        found = rank(connection, asked("a", "b"), 100)
    assert score(found[31]) > 5 * score(found[1])


def test_a_word_in_every_file_still_finds_them() -> None:
    with holding([named("a"), named("a b")]) as connection:
        found = rank(connection, asked("a"), 10)
    assert score(found[1]) > score(found[2]) > 0


def test_unknown_words_lower_the_score_up_to_a_bound() -> None:
    with holding([named("a"), named("")]) as connection:
        scores = [
            score(rank(connection, asked("a", *(f"z{n}" for n in range(count))), 1)[1])
            for count in (0, 1, 2, 20, 100)
        ]
    assert scores[0] > scores[1] > scores[2] >= scores[3] == scores[4] > 0


def test_of_very_many_equal_files_those_indexed_first_are_found() -> None:
    with holding([named("a") for _ in range(MAX_RESULTS + 100)]) as connection:
        assert sorted(rank(connection, asked("a"), 5)) == list(range(1, MAX_RESULTS + 1))


def test_deleted_files_take_their_words_with_them() -> None:
    with holding([named(f"a only{n}") for n in range(100)]) as connection:
        with store.transaction(connection):
            store.forget(connection, list(range(1, 51)))
        assert connection.execute("SELECT doc FROM vocabulary WHERE term = 'a'").fetchone() == (50,)
        assert connection.execute("SELECT count(*) FROM vocabulary").fetchone() == (51,)
        assert set(rank(connection, asked("a"), 100)) == set(range(51, 101))


@pytest.mark.parametrize(
    ("path", "description", "term", "field"),
    [
        ("src/parseHeaders.py", Description("python"), "headers", "name"),
        ("mailbox/x.py", Description("python"), "mailbox", "folder"),
        ("x.py", Description("python", "Parses it"), "parse", "summary"),
        ("x.py", Description("python", headings=("Sends mail",)), "mail", "heading"),
        ("x.py", Description("python", names=("HTTPServer",)), "http", "definition"),
        ("x.py", Description("python"), "python", "language"),
        ("東京/x.py", Description("python"), "東京", "folder"),
        ("x.py", Description("python", "Straße nach Ödön"), "odon", "summary"),
    ],
)
def test_a_word_is_found_by_its_stem_with_the_field_that_counts_most(
    path: str, description: Description, term: str, field: str
) -> None:
    with holding([stems_of(path, description)]) as connection:
        (reason,) = rank(connection, [QueryTerm(term, stem(term), 1.0)], 1)[1]
    assert (reason.term, reason.field) == (term, field)


def test_a_files_name_and_title_count_more_than_what_is_in_it_and_above_it() -> None:
    files = [
        stems_of("whale.py", Description()),
        stems_of("x.py", Description(summary="whale")),
        stems_of("x.py", Description(names=("whale",))),
        stems_of("x.py", Description(headings=("whale",))),
        stems_of("whale/x.py", Description()),
    ]
    with holding(files) as connection:
        found = rank(connection, asked(stem("whale")), 5)
    scores = [score(found[file]) for file in range(1, 6)]
    assert min(scores[:2]) > max(scores[2:])


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=60), st.lists(st.text(max_size=20), max_size=5))
@example("", "A一", [])
def test_any_description_is_found_by_each_of_its_stems(
    path: str, summary: str, names: list[str]
) -> None:
    stems = stems_of(path, Description("x", summary, tuple(names), tuple(names)))
    with holding([stems]) as connection:
        for term in {each for field in stems for each in field.split()}:
            assert 0 < score(rank(connection, asked(term), 1)[1]) <= 1
