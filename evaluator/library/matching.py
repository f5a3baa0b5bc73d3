"""Matches requests to templates: lexical, offline, deterministic.

`LexicalRanker` scores a template by BM25F over its fields, divided by the most that a template could reach for
that request. The quotient is the idf-weighted share of the request that the template covers. So it lies in [0, 1],
gives the same order as BM25, and is comparable between requests: if no template fits, all of them score low. A word
that is not in the library counts as a word of the library with one typing error, if there is such a word.

Trade-offs. A template that shares no word with the request is not found; its author can add words in `criteria` or
in an example. Words that no template has lower the score up to a bound (`UNKNOWN_CAP`), because a request often
contains the data to work on. For the same reason words count less the further they are from the beginning.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from operator import itemgetter
from typing import Any, Protocol, TypeAlias, cast

from evaluator.library.words import (
    QueryTerm,
    deletions,
    is_one_slip,
    merge_terms,
    query_terms,
    stem,
    with_positions,
    words,
)
from evaluator.nodes import Atomic, Task, TopLevel

LOW_SCORE = 0.20
"""A match of `LexicalRanker` with a lower score is more likely an accident than a fit."""

INTERNAL = frozenset({"bind_inputs", "reparse"})
"""Subtypes of templates that the Evaluator itself uses; requests are not matched to them."""

FIELDS = ("name", "subtype", "description", "criteria", "inputs", "output", "examples")
# By field: weight of one occurrence, and how strongly a long field is discounted (BM25F's b).
_WEIGHTS = (3.0, 1.5, 2.5, 2.0, 1.2, 0.8, 0.3)
_DISCOUNT = (0.2, 0.0, 0.4, 0.4, 0.5, 0.5, 0.8)
_K1 = 0.9

# In a smaller library rarity says nothing about a word.
_SMALL_LIBRARY = 100
# Words that no template has: the weight of each, as a share of a rare word, and how many count at most.
_UNKNOWN_FACTOR, UNKNOWN_CAP = 0.4, 2.0
# Added to the most that a template could reach, in rare words: one weak word is little evidence ("what's up").
_PRIOR = 0.5
# Only the beginning of a long example is indexed.
_INDEXED_CHARS = 4000
# Shorter words are one typing error away from too many others.
_MIN_SLIP_CHARS, _SLIP_FACTOR = 5, 0.85
_MAX_REASONS = 8

# The name of a variable is not a word of the description.
_PLACEHOLDER = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)


class TemplateLike(Protocol):
    """The part of a template that matching needs."""

    @property
    def name(self) -> str: ...

    @property
    def node(self) -> TopLevel: ...


@dataclass(frozen=True, slots=True)
class Reason:
    """A word of the request that counted, the field that holds it, and its part of the score."""

    term: str
    field: str
    weight: float


@dataclass(frozen=True, slots=True)
class Match:
    """A template, its score (0 to 1), and the words that counted most, best first."""

    template: TemplateLike
    score: float
    why: tuple[Reason, ...]


class Ranker(Protocol):
    """Orders templates by their fit to a request.

    It returns at most `limit` matches, best first, equal scores by name; each score is in [0, 1] and comparable
    between requests, and none is 0. The same request gives the same answer. A node that is not atomic matches
    nothing, because only atomic templates take part.
    """

    def rank(self, request: str | Task, limit: int = 5) -> list[Match]: ...


# Document, impact (saturated, in [0, 1)), field that gave most. A tuple: this is the inner loop.
_Posting: TypeAlias = tuple[int, float, int]


class LexicalRanker:
    """A `Ranker` over the atomic templates among `templates`; the index is built at the first request."""

    def __init__(self, templates: Iterable[TemplateLike]) -> None:
        self._templates = sorted(
            (t for t in templates if isinstance(t.node, Atomic) and t.node.subtype not in INTERNAL),
            key=lambda t: t.name,
        )
        self._index: _Index | None = None

    def __len__(self) -> int:
        return len(self._templates)

    def rank(self, request: str | Task, limit: int = 5) -> list[Match]:
        """Returns the best `limit` templates for a text or a node.

        A node is matched by its subtype, name, description, criteria, inputs and declared output.
        """
        if limit < 1 or not self._templates:
            return []
        if self._index is None:
            self._index = _Index([cast(Atomic, t.node) for t in self._templates], [t.name for t in self._templates])
        if isinstance(request, str):
            terms = query_terms(request)
        elif isinstance(request, Atomic):
            terms = _node_terms(request)
        else:
            return []
        found = self._index.search(terms, limit)
        return [Match(self._templates[doc], score, why) for doc, score, why in found]


class _Index:
    """The templates that hold each stem, with precomputed impacts."""

    def __init__(self, nodes: Sequence[Task], names: Sequence[str]) -> None:
        self._size = len(nodes)
        self._words: set[str] = set()
        counted = [_count(node, name, self._words) for node, name in zip(nodes, names, strict=True)]
        averages = [
            sum(column) / self._size or 1.0 for column in zip(*(lengths for _, lengths in counted), strict=True)
        ]
        self._postings: dict[str, list[_Posting]] = {}
        for doc, (counts, lengths) in enumerate(counted):
            self._add(doc, counts, [n / average for n, average in zip(lengths, averages, strict=True)])
        self._unknown_idf = self._idf(0)
        self._slips: dict[str, list[str]] | None = None

    def _add(self, doc: int, counts: Mapping[str, Mapping[int, int]], relative: Sequence[float]) -> None:
        factors = [
            weight / (1 - discount + discount * length)
            for weight, discount, length in zip(_WEIGHTS, _DISCOUNT, relative, strict=True)
        ]
        for term, by_field in counts.items():
            total, best, best_field = 0.0, 0.0, 0
            for field, count in by_field.items():
                part = factors[field] * count
                total += part
                if part > best:
                    best, best_field = part, field
            self._postings.setdefault(term, []).append((doc, total / (total + _K1), best_field))

    def _idf(self, documents: int) -> float:
        size = max(self._size, _SMALL_LIBRARY)
        return math.log(1 + (size - documents + 0.5) / (documents + 0.5))

    def search(self, terms: Sequence[QueryTerm], limit: int) -> list[tuple[int, float, tuple[Reason, ...]]]:
        scores = [0.0] * self._size
        used: list[tuple[QueryTerm, float, list[_Posting]]] = []
        known = unknown = 0.0
        for term in terms:
            postings = self._postings.get(term.stem)
            weight = term.weight
            if postings is None and (near := self._nearest(term.shown)) is not None:
                postings, weight = self._postings.get(near), weight * _SLIP_FACTOR
            if postings is None:
                unknown += term.weight * self._unknown_idf * _UNKNOWN_FACTOR
                continue
            idf = self._idf(len(postings))
            known += term.weight * idf
            weight *= idf
            used.append((term, weight, postings))
            for doc, impact, _ in postings:
                scores[doc] += weight * impact
        total = known + min(unknown, UNKNOWN_CAP * self._unknown_idf * _UNKNOWN_FACTOR)
        total += _PRIOR * self._unknown_idf
        if total <= 0 or not used:
            return []
        best = nlargest(limit, (d for d in range(self._size) if scores[d] > 0), key=lambda d: (scores[d], -d))
        return [(doc, round(min(1.0, scores[doc] / total), 4), self._why(doc, used, total)) for doc in best]

    def _why(
        self, doc: int, used: Sequence[tuple[QueryTerm, float, list[_Posting]]], total: float
    ) -> tuple[Reason, ...]:
        reasons: list[Reason] = []
        for term, weight, postings in used:
            at = bisect_left(postings, doc, key=itemgetter(0))
            if at < len(postings) and postings[at][0] == doc:
                _, impact, field = postings[at]
                reasons.append(Reason(term.shown, FIELDS[field], round(weight * impact / total, 4)))
        reasons.sort(key=lambda reason: (-reason.weight, reason.term))
        return tuple(reason for reason in reasons[:_MAX_REASONS] if reason.weight > 0)

    def _nearest(self, word: str) -> str | None:
        """Returns the stem of a word of the library that is one typing error away and begins with the same letter."""
        if len(word) < _MIN_SLIP_CHARS or not word.isalpha():
            return None
        if self._slips is None:
            slips: dict[str, list[str]] = {}
            for known in self._words:
                if len(known) >= _MIN_SLIP_CHARS and known.isalpha():
                    for key in deletions(known):
                        slips.setdefault(key, []).append(known)
            self._slips = slips  # whole at once: other threads may be reading
        near = {known for key in deletions(word) for known in self._slips.get(key, ())}
        fits = [known for known in near if known[0] == word[0] and is_one_slip(word, known)]
        return stem(min(fits)) if fits else None


def _node_terms(node: Task) -> list[QueryTerm]:
    shares = {"name": 0.7, "description": 1.0, "criteria": 0.6, "inputs": 0.6, "output": 0.3}
    pairs: list[tuple[str, float]] = []
    for field, text in _texts(node, node.name or ""):
        if field == "subtype":
            pairs.append((_subtype_term(text), 1.0))
        elif field in shares:
            pairs.extend(with_positions(text, shares[field]))
    return merge_terms(pairs)


def _subtype_term(subtype: str) -> str:
    # The colon marks a tag, which is compared as a whole.
    return f"subtype:{subtype.lower()}"


def _count(node: Task, name: str, seen: set[str]) -> tuple[dict[str, dict[int, int]], list[float]]:
    counts: dict[str, dict[int, int]] = {}
    lengths = [0.0] * len(FIELDS)
    for field, text in _texts(node, name):
        index = FIELDS.index(field)
        found = [_subtype_term(text), *words(text)] if field == "subtype" else words(text)
        lengths[index] += len(found)
        seen.update(found)
        for word in found:
            by_field = counts.setdefault(word if ":" in word else stem(word), {})
            by_field[index] = by_field.get(index, 0) + 1
    return counts, lengths


def _texts(node: Task, name: str) -> Iterator[tuple[str, str]]:
    """Yields the texts of a task with their fields."""
    yield "name", name
    if node.subtype and node.subtype != "standard":
        yield "subtype", node.subtype
    yield "description", _PLACEHOLDER.sub(" ", node.description.value)
    if node.criteria is not None:
        yield "criteria", node.criteria.value
    for declared in node.inputs:
        yield "inputs", f"{declared.name} {declared.description}"
    if node.output is not None:
        yield "output", _output_text(node.output.type, node.output.schema)
    for example in node.examples:
        yield "examples", " ".join(value[:_INDEXED_CHARS] for value in example.inputs.values())
        yield "examples", example.output[:_INDEXED_CHARS]


def _output_text(kind: str, schema: str | None) -> str:
    if schema is None or not schema.lstrip().startswith("{"):
        return f"{kind} {schema or ''}"
    try:
        names = list(_property_names(json.loads(schema)))
    except (ValueError, RecursionError):
        names = []
    return f"{kind} {' '.join(names)}"


def _property_names(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            yield from (str(name) for name in properties)
        for value in schema.values():
            yield from _property_names(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _property_names(value)
