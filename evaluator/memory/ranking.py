"""Ranks files for a request with SQLite's FTS5: by the share of the request's words in a file's
description.

FTS5 gives BM25 for each word, weighted by column (`FIELDS`). The score of a file is the sum over
the request's words, weighted by rarity and divided by the most that a file could reach. So it lies
in [0, 1] and can be compared between requests, as the score of templates can (see
`library.matching`).

FTS5 stores stems, not words: its own tokenizers neither split identifiers nor stem as matching
does.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest

from evaluator.library.matching import Reason
from evaluator.library.words import QueryTerm, stem, words
from evaluator.memory.describe import Description

FIELDS = ("name", "folder", "summary", "heading", "definition", "language")
_WEIGHTS = (4.0, 0.5, 1.0, 0.7, 0.7, 0.25)
_COLUMN_WEIGHTS = ", ".join(map(str, _WEIGHTS))
# FTS5's bm25() of one word is its idf times a number below this, k1 + 1.
_BM25_MOST = 2.2
# A field of a thousand words is not a description.
_MAX_WORDS = 2_000
_MAX_WORD_CHARS = 40
# In a smaller index rarity says nothing about a word.
_SMALL_INDEX = 20
# The weight of a word that no file has, how many of them count, and what is added to the most that
# a file could reach.
_UNKNOWN_FACTOR = 0.4
_UNKNOWN_CAP = 2.0
_PRIOR = 0.5
# Of a long request only the most telling words are looked up.
_MAX_TERMS = 24
# A word in nearly every file adds less than a score is rounded to.
_LEAST_PART = 0.00005
MAX_RESULTS = 1_000
"""The most files that one request returns."""
# Scores are rounded to four places: files this close to the last one may have the same score.
_ROUNDING = 0.0001


def stems_of(path: str, description: Description) -> list[str]:
    """Returns the stems of a file's path and description for FTS5, one text for each of
    `FIELDS`.
    """
    folder, _, name = path.rpartition("/")
    base, extension = os.path.splitext(name)
    texts = (
        base,
        folder,
        description.summary,
        "\n".join(description.headings),
        "\n".join(description.names),
        f"{extension} {description.language}",
    )
    stems = [
        [stem(word) for word in words(text)[:_MAX_WORDS] if len(word) <= _MAX_WORD_CHARS]
        for text in texts
    ]
    # A definition that repeats a word says no more about the file.
    stems[FIELDS.index("definition")] = list(dict.fromkeys(stems[FIELDS.index("definition")]))
    return [" ".join(field) for field in stems]


@dataclass(frozen=True, slots=True)
class _FileTerm:
    """A word of the request that files hold: how many, the most that it adds to a score, and by
    file its impact.
    """

    shown: str
    stem: str
    files: int
    weight: float
    impacts: dict[int, float] = field(default_factory=dict[int, float])


def rank(
    connection: sqlite3.Connection,
    terms: Sequence[QueryTerm],
    limit: int,
    also: Collection[int] = (),
) -> dict[int, list[Reason]]:
    """Returns the `limit` best files, those equal to the last of them, and the files in `also`.

    Each has the terms that it holds, with their parts of the score. Of more than `MAX_RESULTS`
    files those that were indexed first are returned. Called within one transaction.
    """
    (size,) = connection.execute("SELECT count(*) FROM search_docsize").fetchone()
    known, total = _weighted(connection, terms, size=size)
    scores: dict[int, float] = {}
    least = 0.0
    left = sum(term.weight for term in known)
    for term in known:
        # Once the terms that are left cannot bring a new file among the best, they are looked up
        # for the others only.
        if least > left:
            hopeful = {file for file, score in scores.items() if score >= least - left}.union(also)
        else:
            hopeful = ()
        term.impacts.update(_impacts(connection, term, size=size, files=hopeful))
        for file, impact in term.impacts.items():
            scores[file] = scores.get(file, 0.0) + term.weight * impact
        left -= term.weight
        if len(scores) >= limit:
            least = nlargest(limit, scores.values())[-1] - _ROUNDING * total
    found = [file for file, score in scores.items() if score >= least]
    found = nlargest(MAX_RESULTS, found, key=lambda file: (scores[file], -file))
    return {file: _reasons(connection, file, terms=known, total=total) for file in {*found, *also}}


def _weighted(
    connection: sqlite3.Connection, terms: Sequence[QueryTerm], size: int
) -> tuple[list[_FileTerm], float]:
    """Returns the terms that files hold, heaviest first, and the most that a file could reach."""

    def idf(files: int) -> float:
        return math.log(1 + (max(size, _SMALL_INDEX) - files + 0.5) / (files + 0.5))

    known: list[_FileTerm] = []
    unknown = 0.0
    for term in terms:
        row = connection.execute(
            "SELECT doc FROM vocabulary WHERE term = ?", (term.stem,)
        ).fetchone()
        if row is None:
            unknown += term.weight * _UNKNOWN_FACTOR
        else:
            known.append(
                _FileTerm(term.shown, term.stem, files=row[0], weight=term.weight * idf(row[0]))
            )
    known = sorted(known, key=lambda each: (-each.weight, each.shown))[:_MAX_TERMS]
    total = sum(term.weight for term in known)
    total += (min(unknown, _UNKNOWN_CAP * _UNKNOWN_FACTOR) + _PRIOR) * idf(0)
    return [term for term in known if term.weight >= _LEAST_PART * total], total


def _impacts(
    connection: sqlite3.Connection, term: _FileTerm, size: int, files: Collection[int]
) -> Iterator[tuple[int, float]]:
    """Yields the files that hold a term, each with its impact in [0, 1); if `files` are given, only
    those of them.
    """
    # The plus keeps SQLite from searching the index once for each file.
    if files:
        among = f"AND +rowid IN ({', '.join(map(str, files))})"
    else:
        among = ""
    # FTS5 multiplies by its own idf, which is about 0 for a word that half of the files have.
    idf = max(math.log((size - term.files + 0.5) / (term.files + 0.5)), 0.0) or 1e-6
    scale = 1 / (idf * _BM25_MOST)
    for file, score in connection.execute(
        f"SELECT rowid, -bm25(search, {_COLUMN_WEIGHTS}) FROM search WHERE search MATCH ? {among}",
        (f'"{term.stem}"',),
    ):
        yield file, score * scale


def _reasons(
    connection: sqlite3.Connection, file: int, terms: Sequence[_FileTerm], total: float
) -> list[Reason]:
    held = [term for term in terms if file in term.impacts]
    (*fields,) = (
        connection.execute("SELECT * FROM search WHERE rowid = ?", (file,)).fetchone() or ()
    )
    reasons: list[Reason] = []
    for term in held:
        counted = [
            weight * text.split().count(term.stem)
            for weight, text in zip(_WEIGHTS, fields, strict=True)
        ]
        best = FIELDS[counted.index(max(counted))]
        reasons.append(Reason(term.shown, best, weight=term.weight * term.impacts[file] / total))
    return reasons
