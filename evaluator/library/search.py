"""Finds the templates that hold what a request asks for, and what is known of each.

A template is scored by BM25F over its fields, as a share of the most that it could reach for the
request. Words without content are compared for the templates that other words found.

One logistic for texts and one for nodes turn what is known of a template into the probability that
it is right. The coefficients were fitted by `bench/match_fit.py` on the train parts of public
collections (see `bench/README.md`), on the tuning half of `tests/library/match_requests.json`, each
collection with equal weight, and on the off-topic requests of `bench/off_topic.txt`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappush, heappushpop, nlargest
from operator import itemgetter
from typing import NamedTuple

from evaluator.library.index import NOWHERE, SMALL_LIBRARY, Index, RequestTerm
from evaluator.library.request_terms import LONG, Reading, Word
from evaluator.library.template_terms import FIELDS

# How much counts, relative to one word: the best part of a request, and an unknown word in a
# question of general knowledge.
_PART = 0.3
_ASKED = 0.8
# A template that holds so much of a node's words gets half of what its inputs and output add.
_SAID = 0.05
# How much of a missed verb counts where the template holds a related one.
_RELATED_VERB = 0.3
# In a request that is probably in another language: words that look alike there are accidents.
_FOREIGN = 0.5
# Where the meaning counts too, no smaller library took part in fitting the coefficients.
_SMALLEST_WITH_MEANING = 30
# Added to the most that a template could reach, in rare words: one weak word is little evidence.
_PRIOR = 1.5
# So many templates are compared in detail.
_CANDIDATES = 40
_CANDIDATES_OF_NODES = 10
# Longer postings are worth a look at whether they can be skipped.
_LOOKED_UP = 80
# Where the postings of a request are longer in sum, the rarest words choose templates until there
# are `_ENOUGH`; the others only reorder the best `_KEPT` of these.
_POSTINGS = 1200
_ENOUGH = 400
_KEPT = 160
_FIRST = itemgetter(0)


class Hit(NamedTuple):
    """A template that a search found: its number, its coverage of the request, and the evidence for
    its score.
    """

    document: int
    coverage: float
    evidence: Evidence
    terms: list[RequestTerm]
    most: float
    near: float
    added: float

    def explain(self) -> tuple[list[tuple[str, str, float]], tuple[str, ...]]:
        """The terms that counted with their fields and their shares of the coverage, and the words
        that it misses.

        Its written form and related words count with a word. A word that the template does not hold
        is marked with `~`.
        """
        why: dict[str, tuple[str, float]] = {}
        missed: list[str] = []
        for shown, mass, gain, held in self.terms:
            impact = held.impacts.get(self.document)
            if impact is None:
                if mass > 0 and shown[0] != "~":
                    missed.append(shown)
                continue
            share = gain * impact / self.most
            if shown[0] == "~" and shown[1:] in why:
                shown = shown[1:]
            field, before = why.get(shown) or (FIELDS[held.fields[self.document]], 0.0)
            why[shown] = (field, before + share)
        if self.near > 0:
            why["meaning"] = ("vectors", self.near)
        if self.added > 0:
            why["inputs and output"] = ("node", self.added)
        return [(shown, field, share) for shown, (field, share) in why.items()], tuple(missed)


class Evidence(NamedTuple):
    """What is known of a template that a search found for a request."""

    strength: (
        float  # log of the weight of the words that it holds, of the meaning and of a node's inputs
    )
    missed: float  # log of the weight of those that it does not hold
    # its lead over the best other template, as a share of the request; negative except for the
    # first
    margin: float
    size: float  # log of the number of templates
    words: float  # log of the number of words in the request
    # 1 for a question of general knowledge, unless the template takes questions about anything;
    # else 0
    question: float
    asks: float  # 1 for any other question, else 0
    # how much it counts that the template does not hold the verb that the request begins with
    action: float
    # log of the weight of what inputs and output of a node add
    added: float
    # the share of the words of content, by weight, that it holds
    held: float
    # the share of words without content in what it holds
    bare: float


class Logistic(NamedTuple):
    """The coefficient of each part of the evidence, and the intercept."""

    coefficients: Evidence
    intercept: float

    @classmethod
    def of(cls, row: str) -> Logistic:
        """Reads a row of numbers: the coefficients, then the intercept."""
        *coefficients, intercept = map(float, row.split())
        return cls(Evidence(*coefficients), intercept)

    def probability(self, evidence: Evidence) -> float:
        return 1 / (1 + math.exp(-self.logit(evidence)))

    def logit(self, evidence: Evidence) -> float:
        total = self.intercept
        for coefficient, value in zip(self.coefficients, evidence, strict=True):
            total += coefficient * value
        return max(-30.0, min(30.0, total))


# In the order of `Evidence`: strength, missed, margin, size, words, question, asks, action, added,
# held, bare; then the intercept.
TEXT = Logistic.of("3.3 -1.35 0.71 -0.96 1.12 -1.56 -0.88 -0.91 0 1.4 -0.54 1.1")
NODE = Logistic.of("3.22 -1.26 1.91 -0.56 0.87 -1.58 -0.9 -0.95 1.57 1.32 -0.41 -0.83")
TEXT_VECTORS = Logistic.of("3.51 -2.42 0.94 -0.81 1.39 -1.87 -1.09 -1.18 0 2.03 -0.02 -0.06")
NODE_VECTORS = Logistic.of("3.53 -2.37 1.76 -0.55 1.13 -1.78 -1.2 -1.18 1.5 1.98 0 -1.24")

LONG_FACTOR = 0.85
"""A sentence of a long request may be data, so it counts less than the whole request."""
# The part of the meaning in a coverage, where vectors are used; the rest is lexical.
_MEANING_SHARE = 0.4


class Meaning(NamedTuple):
    """How near a request is to templates in meaning (their cosines, by number), and the nearest
    templates.
    """

    cosines: Callable[[Sequence[int]], Sequence[float]]
    nearest: Sequence[int]

    def parts(self, documents: Sequence[int]) -> dict[int, float]:
        """What the meaning adds to the coverage of each template."""
        found = self.cosines(documents)
        return {
            d: _MEANING_SHARE * max(0.0, cosine) for d, cosine in zip(documents, found, strict=True)
        }


def search(index: Index, reading: Reading, limit: int, meaning: Meaning | None = None) -> list[Hit]:
    """Returns the best `limit` templates, best first, equal ones by their numbers; for a node
    more of them.
    """
    query = _Query(reading, index)
    # Which are the best for a node is seen from their scores.
    is_text = reading.inputs is None
    if is_text:
        count = max(limit, 2)
        shown = limit
    else:
        count = max(limit, _CANDIDATES_OF_NODES)
        shown = count
    # Where more than the words counts, more templates can be among the best.
    is_sorted = is_text and meaning is None
    if is_sorted:
        depth = count
    else:
        depth = _CANDIDATES
    scores = query.scores(depth)
    if reading.is_general_question:
        for document in index.asked:
            if document not in scores:
                scores[document] = query.score(document)
            scores[document] += _ASKED * query.unknown
    # A coverage is at most about 1: this is what it is divided by.
    most = query.mass + _PRIOR * index.rare
    smallest = SMALL_LIBRARY
    if meaning is not None:
        most /= 1 - _MEANING_SHARE
        smallest = _SMALLEST_WITH_MEANING
    near: dict[int, float] = {}
    equal: dict[int, float] = {}
    documents = query.candidates(scores, depth)
    if not is_sorted:
        equal = index.equal_inputs(reading.inputs or frozenset())
        by_inputs = nlargest(_CANDIDATES, equal, key=lambda d: (equal[d], -d))
        documents = list(dict.fromkeys((*by_inputs, *documents)))
        if meaning is not None:
            documents = list(dict.fromkeys((*documents, *meaning.nearest)))
            near = meaning.parts(documents)
    # What inputs and output of a node add to the words.
    added: dict[int, float] = {}
    if not is_sorted:
        added = {d: query.added(d) / most + equal.get(d, 0.0) for d in documents}
    best = _best(
        query,
        scores,
        documents=documents,
        count=count,
        most=most,
        extra={d: near.get(d, 0.0) + more for d, more in added.items()},
        is_sorted=is_sorted,
    )
    size = math.log(max(index.size, smallest))
    return [
        Hit(
            -negative,
            coverage,
            evidence=evidence,
            terms=query.all_terms,
            most=most,
            near=near.get(-negative, 0.0),
            added=added.get(-negative, 0.0),
        )
        for (coverage, negative), evidence in zip(
            best[:shown],
            _evidence(index, query, reading, best=best, most=most, added=added, size=size),
            strict=False,
        )
    ]


def _best(
    query: _Query,
    scores: Mapping[int, float],
    documents: Iterable[int],
    *,
    count: int,
    most: float,
    extra: Mapping[int, float],
    is_sorted: bool,
) -> list[tuple[float, int]]:
    """The coverages of the best `count` of these templates with their negative numbers, best first.

    `extra` is what is added to the coverage by words. With `is_sorted` the templates are in the
    order of their scores: the first one that cannot be among the best ends the search.
    """
    best: list[tuple[float, int]] = []
    for document in documents:
        score = scores.get(document)
        if score is None:
            score = query.score(document)
        more = extra.get(document, 0.0)
        if len(best) == count and query.bound(score) / most + more < best[0][0]:
            if is_sorted:
                break
            continue
        found = ((score + query.details(document)) / most + more, -document)
        if found[0] <= 0:
            continue
        if len(best) < count:
            heappush(best, found)
        else:
            heappushpop(best, found)
    best.sort(reverse=True)
    return best


def _evidence(
    index: Index,
    query: _Query,
    reading: Reading,
    *,
    best: Sequence[tuple[float, int]],
    most: float,
    added: Mapping[int, float],
    size: float,
) -> Iterator[Evidence]:
    """What is known of each of the best templates, which are given with their coverages."""
    # The longer a text, the more it shares with any template by accident.
    evident = most * min(1.0, LONG / max(1, sum(map(len, reading.parts))))
    if reading.is_bare and 2 * query.unknown >= query.mass:
        alike = _FOREIGN
    else:
        alike = 1.0
    length = math.log1p(min(LONG, query.words))
    is_general = reading.is_general_question
    for place, (coverage, negative) in enumerate(best):
        document = -negative
        if len(best) > 1:
            other = best[1 if place == 0 else 0][0]
        else:
            other = 0.0
        more = added.get(document, 0.0)
        said = coverage - more
        yield Evidence(
            math.log1p(said * evident * alike),
            math.log1p(max(0.0, 1 - said) * evident),
            margin=coverage - other,
            size=size,
            words=length,
            question=float(is_general and document not in index.asked),
            asks=float(reading.is_question and not is_general and document not in index.asked),
            # The verb does not change the order.
            action=max(query.action_missed(-best[0][1]), query.action_missed(document)),
            added=more * said / (said + _SAID),
            held=query.held(document),
            bare=query.bare(document) / (coverage * most),
        )


class _Query:
    """A reading, looked up: its terms, their mass, and the mass of those that no template has."""

    def __init__(self, reading: Reading, index: Index) -> None:
        self._terms: dict[str, RequestTerm] = {}
        # Terms that only templates hold that also hold one of the others.
        self._more: dict[str, RequestTerm] = {}
        self.mass = self.unknown = 0.0
        self.words = 0
        parts: list[dict[str, RequestTerm]] = []
        for part in reading.parts:
            parts.append(self._look_up(part, index))
        for word in reading.extra:
            if (
                word.stem not in self._terms
                and (term := index.known(word.stem, word.shown, word.weight)) is not None
            ):
                self._terms[word.stem] = term
        self._without_content = index.without_content(reading)
        kinds = index.kinds(reading)
        self._added = [
            term
            for word in dict.fromkeys(reading.added)
            if word.stem not in self._terms
            and (term := index.known(word.stem, word.shown, word.weight)) is not None
        ]
        self._parts = list(map(impacts_of, map(dict.values, parts)))
        self._action = reading.action
        self._verb = (NOWHERE, NOWHERE)
        if reading.action is not None:
            self._verb = index.verb(reading.action[0])
        self._content = [term for term in self._terms.values() if term.mass > 0]
        if self._terms:
            self._more |= kinds
        else:
            # Nothing else was asked for: then these words are the request.
            self._terms = {term.shown: term for term in self._without_content}
            self._without_content = []
            self.mass += sum([term.gain for term in self._terms.values()])
        self._details = impacts_of(self._without_content)
        self._most_without_content = sum(
            [term.gain * term.held.top for term in self._without_content]
        )
        # The most that the parts can add, as a factor.
        self._part = 1 + _PART if len(self._parts) > 1 else 1.0
        self.all_terms = [*self._terms.values(), *self._more.values(), *self._without_content]

    def _look_up(self, part: Sequence[Word], index: Index) -> dict[str, RequestTerm]:
        """The terms of a part; adds them to those of the request."""
        found: dict[str, RequestTerm] = {}
        terms = self._terms
        more = self._more
        before = ""
        for word in part:
            key = word.stem
            known = index.look_up(word)
            if key not in terms:
                terms[key] = known.term
                self.mass += known.term.mass
                self.words += 1
                if known.is_unknown:
                    self.unknown += known.term.mass
            found[key] = terms[key]
            if before:
                shown = f"{found[before].shown} {word.shown}"
                pair, term = index.known_bigram(before, key, shown)
                if pair not in more and term is not None:
                    more[pair] = term
                if pair in more:
                    found[pair] = more[pair]
            before = key
            for key, term, only_reorders in known.more:
                some = more if only_reorders else terms
                if key not in some:
                    some[key] = term
                    self.mass += term.mass
                found[key] = some[key]
        return found

    def scores(self, depth: int) -> dict[int, float]:
        """The weight of the terms in each template that holds one; at least in all that can be
        among the best `depth`.

        Rare terms come first. Once what is left cannot make another template one of the best, or
        enough are found, the long postings of common terms are only looked up.
        """
        scores: dict[int, float] = {}
        terms = sorted(
            [(len(held.impacts), gain, held) for _, _, gain, held in self._terms.values()],
            key=_FIRST,
        )
        left = sum(
            [gain * held.top for _, _, gain, held in (*self._terms.values(), *self._more.values())]
        )
        unread = sum([length for length, _, _ in terms])
        is_complete = False
        for length, gain, held in terms:
            if not is_complete and length > _LOOKED_UP < len(scores):
                most = left * self._part + self._most_without_content
                if (
                    max(scores.values()) >= most
                    and (lowest := nlargest(depth, scores.values())[-1]) >= most
                ):
                    is_complete = True
                    enough = (lowest - self._most_without_content) / self._part - left
                    scores = {
                        document: score for document, score in scores.items() if score >= enough
                    }
                elif unread > _POSTINGS and len(scores) >= _ENOUGH:
                    is_complete = True
                    lowest = nlargest(_KEPT, scores.values())[-1]
                    scores = {
                        document: score for document, score in scores.items() if score >= lowest
                    }
            if is_complete:
                add_to(scores, gain, impacts=held.impacts)
            elif scores:
                for document, impact in held.impacts.items():
                    scores[document] = scores.get(document, 0.0) + gain * impact
            else:
                scores = {document: gain * impact for document, impact in held.impacts.items()}
            left -= gain * held.top
            unread -= length
        for _, _, gain, held in self._more.values():
            add_to(scores, gain, impacts=held.impacts)
        if len(scores) < _CANDIDATES:
            for term in self._without_content:
                for document in term.held.impacts:
                    scores.setdefault(document, 0.0)
        return scores

    def candidates(self, scores: Mapping[int, float], depth: int) -> list[int]:
        """Those that can be among the best `depth`, by their scores, equal ones by their
        numbers.
        """
        lowest = 0.0
        if len(scores) > depth:
            lowest = (
                nlargest(depth, scores.values())[-1] - self._most_without_content
            ) / self._part
        found = [(-score, document) for document, score in scores.items() if score >= lowest]
        found.sort()
        return [document for _, document in found[:_CANDIDATES]]

    def score(self, document: int) -> float:
        """The weight of the terms in a template."""
        terms = (*self._terms.values(), *self._more.values())
        return sum([term.gain * term.held.impacts.get(document, 0.0) for term in terms])

    def bound(self, score: float) -> float:
        """The most that a template with this score can reach with the details."""
        return score * self._part + self._most_without_content

    def added(self, document: int) -> float:
        """The weight of the words of a node's inputs and output in a template."""
        return sum([term.gain * term.held.impacts.get(document, 0.0) for term in self._added])

    def held(self, document: int) -> float:
        """The share of the words of content that a template holds, by their weight."""
        if not self._content:
            return 0.0
        whole = sum([term.mass for term in self._content])
        return sum([t.mass for t in self._content if document in t.held.impacts]) / whole

    def bare(self, document: int) -> float:
        """The weight of the words without content that a template holds beside others."""
        return sum([gain * held[document] for gain, held in self._details if document in held])

    def action_missed(self, document: int) -> float:
        """How much it counts that a template does not hold the verb of the request."""
        held, related = self._verb
        if self._action is None or document in held.impacts:
            return 0.0
        weight = self._action[1]
        return _RELATED_VERB * weight if document in related.impacts else weight

    def details(self, document: int) -> float:
        """What is compared only for candidates: the best part of several, and words without
        content.
        """
        more = self.bare(document)
        if len(self._parts) > 1:
            parts = [
                sum([gain * held[document] for gain, held in part if document in held])
                for part in self._parts
            ]
            more += _PART * max(parts)
        return more


def add_to(scores: dict[int, float], gain: float, impacts: Mapping[int, float]) -> None:
    """Adds what a term gives to the templates in `scores` that hold it."""
    if len(impacts) < len(scores):
        for document, impact in impacts.items():
            if document in scores:
                scores[document] += gain * impact
    else:
        for document in scores:
            if document in impacts:
                scores[document] += gain * impacts[document]


def impacts_of(terms: Iterable[RequestTerm]) -> list[tuple[float, Mapping[int, float]]]:
    return [(term.gain, term.held.impacts) for term in terms if term.held is not NOWHERE]
