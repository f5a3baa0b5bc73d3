"""The index behind `LexicalRanker`: which templates hold a term, with precomputed weights.

A template is scored by BM25F over its fields, as a share of the most that it could reach for the request. Terms are
stems, bigrams and subtypes. A word that no template has counts as the word that is one typing error away. Words
without content are compared in examples only, for the templates that other words found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop, nlargest
from itertools import pairwise
from typing import NamedTuple

from evaluator.library.calibration import Evidence
from evaluator.library.indexed import FIELDS, answers_questions, count_terms
from evaluator.library.request_terms import LONG, Reading, Word, bigram, input_name
from evaluator.library.similar import SimilarWords
from evaluator.library.words import stem
from evaluator.nodes import Task

# By field: weight of one occurrence, and how strongly a long field is discounted (BM25F's b).
_WEIGHTS = (3.0, 1.5, 2.5, 2.0, 0.8, 0.8, 1.0)
_DISCOUNT = (0.2, 0.0, 0.6, 0.4, 0.8, 0.5, 0.8)
_K1 = 1.5
# How much counts, relative to one word: a bigram, a misspelt word, the best part of a request, equal names of inputs,
# and an unknown word in a question of general knowledge.
_BIGRAM, _MISSPELT, _PART, _INPUTS, _ASKED = 0.3, 0.85, 0.3, 1.0, 0.8
# In a request that is probably in another language: words that look alike there are accidents.
_ALIKE = 0.5
# The part of the meaning in a coverage, where vectors are used; the rest is lexical.
_MEANING = 0.4
# A few examples say little about the words of requests: with so many, each counts half.
_FEW_EXAMPLES = 10
# In a smaller library rarity says nothing about a word.
_SMALL_LIBRARY = 100
# No smaller library took part in fitting the coefficients of the scores.
_SMALLEST_LIBRARY = 30
# Added to the most that a template could reach, in rare words: one weak word is little evidence.
_PRIOR = 0.7
# So many templates are compared in detail.
_CANDIDATES = 40
# Longer postings are worth a look at whether they can be skipped.
_LOOKED_UP = 80


@dataclass(slots=True)
class _Postings:
    """The templates that hold a term: the impact in each, in [0, 1), and the field that gave most of it."""

    idf: float = 0.0
    top: float = 0.0
    """The largest impact."""
    impacts: dict[int, float] = field(default_factory=dict[int, float])
    fields: dict[int, int] = field(default_factory=dict[int, int])


_NOWHERE = _Postings()


class _RequestTerm(NamedTuple):
    """A term of a request: as written, its weight in the request, and what a template that holds it gains."""

    shown: str
    mass: float
    gain: float
    held: _Postings

    @property
    def most(self) -> float:
        """The most that a template gains."""
        return self.gain * self.held.top

    def weight(self, document: int) -> float:
        return self.gain * self.held.impacts.get(document, 0.0)


class Hit(NamedTuple):
    """A template that a search found: its number, its coverage of the request, the evidence for its score, the terms
    that counted with their fields and their shares of the coverage, and the words of the request that it misses."""

    document: int
    coverage: float
    evidence: Evidence
    why: list[tuple[str, str, float]]
    missed: tuple[str, ...]


class Meaning(NamedTuple):
    """How near a request is to each template in meaning (cosine, by number), and the nearest templates."""

    cosines: Sequence[float]
    nearest: Sequence[int]

    def part(self, document: int) -> float:
        """What the meaning adds to the coverage."""
        return _MEANING * max(0.0, self.cosines[document])


class Index:
    """An index over templates, given as nodes with their names."""

    def __init__(self, nodes: Sequence[Task], names: Sequence[str]) -> None:
        self._size = len(nodes)
        self._inputs = [frozenset(input_name(each.name) for each in node.inputs) for node in nodes]
        self._with_input: dict[str, list[int]] = {}
        for document, declared in enumerate(self._inputs):
            for name in declared:
                self._with_input.setdefault(name, []).append(document)
        self._asked = frozenset(d for d, node in enumerate(nodes) if answers_questions(node))
        seen: set[str] = set()
        counted = [count_terms(node, name, seen) for node, name in zip(nodes, names, strict=True)]
        averages = [sum(column) / self._size or 1.0 for column in zip(*(n for _, n in counted), strict=True)]
        self._postings: dict[str, _Postings] = {}
        for document, (counts, lengths) in enumerate(counted):
            relative = [n / average for n, average in zip(lengths, averages, strict=True)]
            self._add(document, counts, relative, len(nodes[document].examples))
        for postings in self._postings.values():
            postings.idf = self._idf(len(postings.impacts))
            postings.top = max(postings.impacts.values())
        self._rare = self._idf(0)
        self._similar = SimilarWords(seen)

    def _add(
        self, document: int, counts: Mapping[str, Mapping[int, float]], relative: Sequence[float], examples: int
    ) -> None:
        factors = [
            weight / (1 - discount + discount * length)
            for weight, discount, length in zip(_WEIGHTS, _DISCOUNT, relative, strict=True)
        ]
        factors[-1] *= examples / (examples + _FEW_EXAMPLES)
        for term, by_field in counts.items():
            total, best, best_field = 0.0, 0.0, 0
            for index, count in by_field.items():
                part = factors[index] * count
                total += part
                if part > best:
                    best, best_field = part, index
            postings = self._postings.setdefault(term, _Postings())
            postings.impacts[document] = total / (total + _K1)
            postings.fields[document] = best_field

    def _idf(self, documents: int) -> float:
        size = max(self._size, _SMALL_LIBRARY)
        return math.log(1 + (size - documents + 0.5) / (documents + 0.5))

    def search(self, reading: Reading, limit: int, meaning: Meaning | None = None) -> list[Hit]:
        """Returns the best `limit` templates, best first, equal ones by their numbers."""
        query = _Query(reading, self)
        scores = query.scores()
        asked = self._asked if reading.is_general_question else frozenset[int]()
        for document in asked:
            score = scores[document] if document in scores else query.score(document)
            scores[document] = score + _ASKED * query.unknown
        equal = self._equal_inputs(reading.inputs or frozenset())
        # A coverage is at most about 1: this is what it is divided by.
        most = (query.mass + _PRIOR * self._rare) / (1.0 if meaning is None else 1 - _MEANING)
        best = self._best(query, scores, equal, meaning, most, max(limit, 2))
        # The longer a text, the more it shares with any template by accident.
        evident = most * min(1.0, LONG / max(1, sum(map(len, reading.parts))))
        alike = _ALIKE if reading.is_bare and 2 * query.unknown >= query.mass else 1.0
        hits: list[Hit] = []
        for place, (coverage, negative) in enumerate(best[:limit]):
            other = best[1 if place == 0 else 0][0] if len(best) > 1 else 0.0
            near = 0.0 if meaning is None else meaning.part(-negative)
            unknown = query.unknown * (1 - _ASKED if -negative in asked else 1.0)
            why, missed = query.explain(-negative, most)
            evidence = Evidence(
                math.log1p(coverage * evident * alike),
                math.log1p(max(0.0, 1 - coverage) * evident),
                coverage - other,
                unknown / query.mass if query.mass else 1.0,
                math.log(max(self._size, _SMALLEST_LIBRARY)),
            )
            if near > 0:
                why.append(("meaning", "vectors", near))
            hits.append(Hit(-negative, coverage, evidence, why, missed))
        return hits

    def _best(
        self,
        query: _Query,
        scores: Mapping[int, float],
        equal: Mapping[int, float],
        meaning: Meaning | None,
        most: float,
        count: int,
    ) -> list[tuple[float, int]]:
        """Returns the `count` best coverages with the negative numbers of their templates.

        A template is compared in detail only if it can be among the best.
        """
        best: list[tuple[float, int]] = []
        by_score = _best_of(scores)
        by_inputs = nlargest(_CANDIDATES, equal, key=lambda d: (equal[d], -d))
        by_meaning = () if meaning is None else meaning.nearest
        inputs = _INPUTS if meaning is None else _INPUTS * (1 - _MEANING)
        for document in dict.fromkeys((*by_inputs, *by_score, *by_meaning)):
            score = scores[document] if document in scores else query.score(document)
            more = inputs * equal.get(document, 0.0)
            if meaning is not None:
                more += meaning.part(document)
            if len(best) == count and query.bound(score) / most + more < best[0][0]:
                continue
            found = ((score + query.details(document)) / most + more, -document)
            if found[0] <= 0:
                continue
            if len(best) < count:
                heappush(best, found)
            else:
                heappushpop(best, found)
        return sorted(best, reverse=True)

    def _equal_inputs(self, names: frozenset[str]) -> dict[int, float]:
        """Compares the names of a node's inputs: for each template that has one, the weight shared of all."""

        def weight(some: frozenset[str]) -> float:
            return sum(self._idf(len(self._with_input.get(name, ()))) for name in sorted(some))

        found = {document for name in names for document in self._with_input.get(name, ())}
        return {d: weight(names & self._inputs[d]) / weight(names | self._inputs[d]) for d in found}

    def term(self, word: Word) -> _RequestTerm:
        """What the library knows of a word."""
        postings = self._postings.get(word.stem)
        if postings is not None:
            mass = word.weight * postings.idf
            return _RequestTerm(word.shown, mass, mass, postings)
        meant = self._similar.find(word.shown)
        near = _NOWHERE if meant is None else self._postings.get(stem(meant), _NOWHERE)
        return _RequestTerm(word.shown, word.weight * self._rare, word.weight * _MISSPELT * near.idf, near)

    def known(self, term: str, shown: str, weight: float) -> _RequestTerm | None:
        """A term that adds to the score of templates that hold it; None if there is none."""
        postings = self._postings.get(term)
        return None if postings is None else _RequestTerm(shown, 0.0, weight * postings.idf, postings)

    def without_content(self, term: str) -> _RequestTerm | None:
        """A term without content that examples hold; one that many hold says little, in a small library too."""
        postings = self._postings.get(term)
        if postings is None:
            return None
        held = len(postings.impacts)
        idf = math.log(1 + (self._size - held + 0.5) / (held + 0.5))
        return _RequestTerm(term, 0.0, (_BIGRAM if " " in term else 1.0) * idf, postings)

    def is_unknown(self, word: Word) -> bool:
        return word.stem not in self._postings


def _impacts(terms: Iterable[_RequestTerm]) -> list[tuple[float, Mapping[int, float]]]:
    return [(term.gain, term.held.impacts) for term in terms if term.held is not _NOWHERE]


def _best_of(scores: Mapping[int, float]) -> list[int]:
    """The candidates: those with the highest scores, equal ones by their numbers."""
    lowest = min(sorted(scores.values(), reverse=True)[:_CANDIDATES], default=0.0)
    found = [(-score, document) for document, score in scores.items() if score >= lowest]
    return [document for _, document in sorted(found)[:_CANDIDATES]]


class _Query:
    """A reading, looked up: its terms, their mass, and the mass of those that no template has."""

    def __init__(self, reading: Reading, index: Index) -> None:
        self._terms: dict[str, _RequestTerm] = {}
        self._parts: list[list[tuple[float, Mapping[int, float]]]] = []
        self.mass = self.unknown = 0.0
        for part in reading.parts:
            self._parts.append(self._look_up(part, index))
        for word in reading.extra:
            if word.stem not in self._terms and (term := index.known(word.stem, word.shown, word.weight)) is not None:
                self._terms[word.stem] = term
        without = (index.without_content(word) for word in sorted(reading.no_content))
        self._without_content = [term for term in without if term is not None]
        self._details = _impacts(self._without_content)
        self._most_without_content = sum(term.most for term in self._without_content)
        if not self._terms:
            # Nothing else was asked for: then these words are the request.
            self._terms = {term.shown: term for term in self._without_content}
            self._without_content, self._details = [], []
            self.mass += sum(term.gain for term in self._terms.values())

    def _look_up(self, part: Sequence[Word], index: Index) -> list[tuple[float, Mapping[int, float]]]:
        found: dict[str, _RequestTerm] = {}
        for word in part:
            if word.stem not in self._terms:
                self._terms[word.stem] = term = index.term(word)
                self.mass += term.mass
                if index.is_unknown(word):
                    self.unknown += term.mass
            found[word.stem] = self._terms[word.stem]
        for a, b in pairwise(part):
            key = bigram(a.stem, b.stem)
            if key not in self._terms:
                term = index.known(key, f"{a.shown} {b.shown}", _BIGRAM)
                if term is None:
                    continue
                self._terms[key] = term
            found[key] = self._terms[key]
        return _impacts(found.values())

    def scores(self) -> dict[int, float]:
        """The weight of the terms in each template that holds one; at least in all that can be candidates.

        Rare terms come first. Once what is left cannot make another template a candidate, the long postings of common
        terms are only looked up.
        """
        scores: dict[int, float] = {}
        terms = sorted(self._terms.values(), key=lambda term: len(term.held.impacts))
        left = sum(term.most for term in terms)
        is_complete = False
        for term in terms:
            gain, impacts = term.gain, term.held.impacts
            if not is_complete and len(impacts) > _LOOKED_UP < len(scores):
                lowest = sorted(scores.values(), reverse=True)[_CANDIDATES - 1]
                if lowest >= left:
                    is_complete = True
                    scores = {document: score for document, score in scores.items() if score + left >= lowest}
            if is_complete:
                for document in scores:
                    if document in impacts:
                        scores[document] += gain * impacts[document]
            else:
                for document, impact in impacts.items():
                    scores[document] = scores.get(document, 0.0) + gain * impact
            left -= term.most
        if len(scores) < _CANDIDATES:
            for term in self._without_content:
                for document in term.held.impacts:
                    scores.setdefault(document, 0.0)
        return scores

    def score(self, document: int) -> float:
        """The weight of the terms in a template."""
        return sum(term.weight(document) for term in self._terms.values())

    def bound(self, score: float) -> float:
        """The most that a template with this score can reach with the details."""
        return score * (1 + _PART) + self._most_without_content

    def details(self, document: int) -> float:
        """What is compared only for candidates: the best part of several, and words without content."""
        more = sum([gain * held[document] for gain, held in self._details if document in held])
        if len(self._parts) > 1:
            parts = [sum([gain * held[document] for gain, held in part if document in held]) for part in self._parts]
            more += _PART * max(parts)
        return more

    def explain(self, document: int, most: float) -> tuple[list[tuple[str, str, float]], tuple[str, ...]]:
        """The terms that counted for a template with their shares of the coverage, and the words that it misses."""
        why: list[tuple[str, str, float]] = []
        missed: list[str] = []
        for term in (*self._terms.values(), *self._without_content):
            weight = term.weight(document)
            if weight > 0:
                why.append((term.shown, FIELDS[term.held.fields[document]], weight / most))
            elif term.mass > 0:
                missed.append(term.shown)
        return why, tuple(missed)
