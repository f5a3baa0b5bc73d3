"""The index behind `LexicalRanker`: which templates hold a term, with precomputed weights.

A template is scored by BM25F over its fields, as a share of the most that it could reach for the
request. Terms are stems, written forms, bigrams, kinds of values and subtypes. A template that does
not hold a word gains a part of its weight for a related word. A word that no template has counts as
the word that is one typing error away. Words without content are compared in examples only, for the
templates that other words found.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heappush, heappushpop, nlargest
from operator import itemgetter
from typing import NamedTuple

from evaluator.library.indexed import (
    MEANING_SHARE,
    NOWHERE,
    Evidence,
    Hit,
    Meaning,
    Postings,
    RequestTerm,
    add_to,
    answers_questions,
    count_terms,
    impacts_of,
)
from evaluator.library.request_terms import (
    LONG,
    Reading,
    Word,
    bigram,
    effects,
    input_name,
    kind_term,
)
from evaluator.library.words import SimilarWords, related_stems, stem
from evaluator.nodes import Task

# By field: weight of one occurrence, and how strongly a long field is discounted (BM25F's b).
_WEIGHTS = (3.0, 1.5, 2.0, 2.0, 0.8, 0.8, 1.0)
_DISCOUNT = (0.2, 0.0, 0.6, 0.4, 0.8, 0.5, 0.8)
_K1 = 1.5
# How much counts, relative to one word: a bigram, a word of the same form, a related word, a
# misspelt word, the best part of a request, and an unknown word in a question of general knowledge.
_BIGRAM = 0.3
_FORM = 0.2
_RELATED = 0.32
_MISSPELT = 0.85
_PART = 0.3
_ASKED = 0.8
# A template that holds so much of a node's words gets half of what its inputs and output add.
_SAID = 0.05
# How much a node's equal inputs count at most, relative to the whole request.
_INPUTS = 1.5
# A name of an input that templates of any kind use counts as if so many of so many other templates
# had it.
_USUAL = 60
_OTHERS = 100
_NAMES = """
    text input query question content data document name value file path url link message prompt
    request context code id number title topic description type key item items format language
    source options limit count date user
"""
_USUAL_NAMES = frozenset(_NAMES.split())
# How much of a missed verb counts where the template holds a related one.
_RELATED_VERB = 0.3
# How much an unknown word counts as missing, relative to the rarest one.
_UNKNOWN = 1.5
# In a request that is probably in another language: words that look alike there are accidents.
_FOREIGN = 0.5
# A few examples say little about the words of requests: with so many, each counts half.
_FEW_EXAMPLES = 10
# In a smaller library rarity says nothing about a word: it counts as one of this size, except where
# the meaning counts too; but no smaller one than that took part in fitting the coefficients of the
# scores.
_SMALL_LIBRARY = 100
_SMALLEST_WITH_MEANING = 30
# Added to the most that a template could reach, in rare words: one weak word is little evidence.
_PRIOR = 1.5
# So many templates are compared in detail.
_CANDIDATES = 40
_CANDIDATES_OF_NODES = 10
# Longer postings are worth a look at whether they can be skipped.
_LOOKED_UP = 80
# Where the postings of a request are longer in sum, the rarest words choose templates until there
# are `_ENOUGH`; the others only reorder the best `_KEPT` of these. Related words that more
# templates hold only reorder as well.
_POSTINGS = 1200
_ENOUGH = 400
_KEPT = 160
_COMMON = 200
# So many words of requests are remembered.
_MAX_SEEN = 20_000
_FIRST = itemgetter(0)


class Index:
    """An index over templates, given as nodes with their names."""

    def __init__(self, nodes: Sequence[Task], names: Sequence[str]) -> None:
        self._size = len(nodes)
        inputs = [frozenset(input_name(each.name) for each in node.inputs) for node in nodes]
        self._with_input: dict[str, list[int]] = {}
        for document, declared in enumerate(inputs):
            for name in declared:
                self._with_input.setdefault(name, []).append(document)
        weights = {name: self._name_weight(name) for name in self._with_input}
        self._input_weights = [
            sum([weights[name] for name in sorted(declared)]) for declared in inputs
        ]
        self._has_examples = any(node.examples for node in nodes)
        self._asked = frozenset(d for d, node in enumerate(nodes) if answers_questions(node))
        seen: set[str] = set()
        counted = [
            count_terms(node, name, seen=seen) for node, name in zip(nodes, names, strict=True)
        ]
        averages = [
            sum(column) / self._size or 1.0 for column in zip(*(n for _, n in counted), strict=True)
        ]
        self._postings: dict[str, Postings] = {}
        for document, (counts, lengths) in enumerate(counted):
            relative = [n / average for n, average in zip(lengths, averages, strict=True)]
            self._add(document, counts, relative=relative, examples=len(nodes[document].examples))
        for postings in self._postings.values():
            postings.idf = self._idf(len(postings.impacts))
            postings.top = max(postings.impacts.values())
        self._rare = self._idf(0)
        self._similar = SimilarWords(seen)
        self._seen: dict[str, _Known] = {}
        self._verbs: dict[str, tuple[Postings, Postings]] = {}

    def _add(
        self,
        document: int,
        counts: Mapping[str, Mapping[int, float]],
        relative: Sequence[float],
        examples: int,
    ) -> None:
        factors = [
            weight / (1 - discount + discount * length)
            for weight, discount, length in zip(_WEIGHTS, _DISCOUNT, relative, strict=True)
        ]
        factors[-1] *= examples / (examples + _FEW_EXAMPLES)
        for term, by_field in counts.items():
            total = 0.0
            best = 0.0
            best_field = 0
            for index, count in by_field.items():
                part = factors[index] * count
                total += part
                if part > best:
                    best = part
                    best_field = index
            postings = self._postings.setdefault(term, Postings())
            postings.impacts[document] = total / (total + _K1)
            postings.fields[document] = best_field

    def _idf(self, documents: int) -> float:
        size = max(self._size, _SMALL_LIBRARY)
        return math.log(1 + (size - documents + 0.5) / (documents + 0.5))

    def search(self, reading: Reading, limit: int, meaning: Meaning | None = None) -> list[Hit]:
        """Returns the best `limit` templates, best first, equal ones by their numbers; for a node
        more of them.
        """
        query = _Query(reading, self)
        # Which are the best for a node is seen from their scores.
        count = max(limit, 2 if reading.inputs is None else _CANDIDATES_OF_NODES)
        # Where more than the words counts, more templates can be among the best.
        is_sorted = reading.inputs is None and meaning is None
        scores = query.scores(count if is_sorted else _CANDIDATES)
        for document in self._asked if reading.is_general_question else ():
            if document not in scores:
                scores[document] = query.score(document)
            scores[document] += _ASKED * query.unknown
        # A coverage is at most about 1: this is what it is divided by.
        most = (query.mass + _PRIOR * self._rare) / (1.0 if meaning is None else 1 - MEANING_SHARE)
        near: dict[int, float] = {}
        equal: dict[int, float] = {}
        if is_sorted:
            documents = query.candidates(scores, count)
        else:
            documents = query.candidates(scores, _CANDIDATES)
            equal = self._equal_inputs(reading.inputs or frozenset())
            by_inputs = nlargest(_CANDIDATES, equal, key=lambda d: (equal[d], -d))
            documents = list(dict.fromkeys((*by_inputs, *documents)))
            if meaning is not None:
                documents = list(dict.fromkeys((*documents, *meaning.nearest)))
                near = meaning.parts(documents)
        best: list[tuple[float, int]] = []
        # What inputs and output of a node add to the words.
        added: dict[int, float] = {}
        for document in documents:
            score = scores.get(document)
            if score is None:
                score = query.score(document)
            if is_sorted:
                if len(best) == count and query.bound(score) / most < best[0][0]:
                    break
                extra = 0.0
            else:
                added[document] = query.added(document) / most + equal.get(document, 0.0)
                extra = near.get(document, 0.0) + added[document]
                if len(best) == count and query.bound(score) / most + extra < best[0][0]:
                    continue
            found = ((score + query.details(document)) / most + extra, -document)
            if found[0] <= 0:
                continue
            if len(best) < count:
                heappush(best, found)
            else:
                heappushpop(best, found)
        best.sort(reverse=True)
        shown = limit if reading.inputs is None else count
        smallest = _SMALL_LIBRARY if meaning is None else _SMALLEST_WITH_MEANING
        size = math.log(max(self._size, smallest))
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
                self._evidence(query, reading, best, most=most, added=added, size=size),
                strict=False,
            )
        ]

    def _evidence(
        self,
        query: _Query,
        reading: Reading,
        best: Sequence[tuple[float, int]],
        *,
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
                question=float(is_general and document not in self._asked),
                asks=float(reading.is_question and not is_general and document not in self._asked),
                # The verb does not change the order.
                action=max(query.action_missed(-best[0][1]), query.action_missed(document)),
                added=more * said / (said + _SAID),
                held=query.held(document),
                bare=query.bare(document) / (coverage * most),
            )

    def _equal_inputs(self, names: frozenset[str]) -> dict[int, float]:
        """Compares the names of a node's inputs: for each template that has one, the weight shared
        of all, discounted where few rare names are shared.
        """
        shared: dict[int, float] = {}
        every = 0.0
        for name in sorted(names):
            documents = self._with_input.get(name, ())
            weight = self._name_weight(name)
            every += weight
            for document in documents:
                shared[document] = shared.get(document, 0.0) + weight
        few = self._rare**2 / 4
        return {
            d: _INPUTS * w / (every + self._input_weights[d] - w) * w * w / (w * w + few)
            for d, w in shared.items()
        }

    def _name_weight(self, name: str) -> float:
        documents = len(self._with_input.get(name, ()))
        if name in _USUAL_NAMES:
            return math.log(1 + (self._size + _OTHERS) / (documents + _USUAL))
        return self._idf(documents)

    def look_up(self, word: Word) -> _Known:
        """What the library knows of a word; remembered, because requests repeat most words."""
        found = self._seen.get(word.shown)
        if found is None:
            if len(self._seen) >= _MAX_SEEN:
                self._seen = {}
            found = self._seen[word.shown] = self._look_up(word)
        return found

    def _look_up(self, word: Word) -> _Known:
        held = self._postings.get(word.stem)
        is_unknown = held is None
        if held is None:
            meant = self._similar.find(word.shown)
            if meant is None:
                held = NOWHERE
            else:
                held = self._postings.get(stem(meant), NOWHERE)
        mass = word.weight * (_UNKNOWN * self._rare if is_unknown else held.idf)
        gain = word.weight * (_MISSPELT if is_unknown else 1.0) * held.idf
        more: list[tuple[str, RequestTerm, bool]] = []
        shown = f"~{word.shown}"
        if (form := self._postings.get(word.form)) is not None:
            weight = _FORM * word.weight * form.idf
            more.append((word.form, RequestTerm(shown, weight, gain=weight, held=form), True))
        related = self._holders(related_stems(word.stem), held)
        if related.impacts:
            term = RequestTerm(shown, 0.0, gain=_RELATED * mass, held=related)
            more.append((shown, term, len(related.impacts) > _COMMON))
        return _Known(
            RequestTerm(word.shown, mass, gain=gain, held=held), tuple(more), is_unknown=is_unknown
        )

    def _holders(self, stems: Collection[str], held: Postings) -> Postings:
        """The templates that hold one of these stems, and are not in `held`."""
        found = Postings()
        for each in stems:
            postings = self._postings.get(each)
            if postings is None or postings is held:
                continue
            for document, impact in postings.impacts.items():
                if document not in held.impacts and impact > found.impacts.get(document, 0.0):
                    found.impacts[document] = impact
                    found.fields[document] = postings.fields[document]
        found.top = max(found.impacts.values(), default=0.0)
        return found

    def known(self, term: str, shown: str, weight: float) -> RequestTerm | None:
        """A term that adds to the score of templates that hold it; None if there is none."""
        postings = self._postings.get(term)
        if postings is None:
            return None
        return RequestTerm(shown, 0.0, gain=weight * postings.idf, held=postings)

    def kinds(self, reading: Reading) -> dict[str, RequestTerm]:
        """The terms of the kinds of values that a request holds."""
        if not self._with_input:
            return {}
        found = {
            kind_term(kind): f"~{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
            for kind in reading.kinds
        }
        return {
            key: term
            for key, shown in found.items()
            if (term := self.known(key, shown, weight=1.0)) is not None
        }

    def verb(self, stemmed: str) -> tuple[Postings, Postings]:
        """The templates that hold a verb, and those that hold a related one; remembered."""
        found = self._verbs.get(stemmed)
        if found is None:
            if len(self._verbs) >= _MAX_SEEN:
                self._verbs = {}
            held = self._postings.get(stemmed, NOWHERE)
            related = related_stems(stemmed)
            # "sign" is related to "contract", but not every template for a contract signs it.
            if stemmed in effects():
                related &= effects()
            found = self._verbs[stemmed] = (held, self._holders(related, held))
        return found

    def without_content(self, reading: Reading) -> list[RequestTerm]:
        """The terms without content that examples hold; one that many hold says little, in a small
        library too.
        """
        if not self._has_examples:
            return []
        found: list[RequestTerm] = []
        for term in sorted(reading.no_content):
            postings = self._postings.get(term)
            if postings is not None:
                held = len(postings.impacts)
                idf = math.log(1 + (self._size - held + 0.5) / (held + 0.5))
                found.append(
                    RequestTerm(
                        term, 0.0, gain=(_BIGRAM if " " in term else 1.0) * idf, held=postings
                    )
                )
        return found


class _Known(NamedTuple):
    """A word as a term, and its written form and related words, each with a key and whether it only
    reorders.
    """

    term: RequestTerm
    more: tuple[tuple[str, RequestTerm, bool], ...]
    is_unknown: bool


class _Query:
    """A reading, looked up: its terms, their mass, and the mass of those that no template has."""

    def __init__(self, reading: Reading, index: Index) -> None:
        self._terms: dict[str, RequestTerm] = {}
        # Terms that only templates hold that also hold one of the others.
        self._more: dict[str, RequestTerm] = {}
        self._parts: list[list[tuple[float, Mapping[int, float]]]] = []
        self.mass = self.unknown = 0.0
        self.words = 0
        for part in reading.parts:
            self._parts.append(self._look_up(part, index))
        for word in reading.extra:
            if (
                word.stem not in self._terms
                and (term := index.known(word.stem, word.shown, word.weight)) is not None
            ):
                self._terms[word.stem] = term
        self._added = [
            term
            for word in dict.fromkeys(reading.added)
            if word.stem not in self._terms
            and (term := index.known(word.stem, word.shown, word.weight)) is not None
        ]
        self._without_content = index.without_content(reading)
        self._action = reading.action
        self._verb = (NOWHERE, NOWHERE) if reading.action is None else index.verb(reading.action[0])
        self._content = [term for term in self._terms.values() if term.mass > 0]
        if self._terms:
            self._more |= index.kinds(reading)
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

    def _look_up(
        self, part: Sequence[Word], index: Index
    ) -> list[tuple[float, Mapping[int, float]]]:
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
                pair = bigram(before, key)
                if pair not in more and (term := index.known(pair, "", _BIGRAM)) is not None:
                    more[pair] = term._replace(shown=f"{found[before].shown} {word.shown}")
                if pair in more:
                    found[pair] = more[pair]
            before = key
            for key, term, only_reorders in known.more:
                some = more if only_reorders else terms
                if key not in some:
                    some[key] = term
                    self.mass += term.mass
                found[key] = some[key]
        return impacts_of(found.values())

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
