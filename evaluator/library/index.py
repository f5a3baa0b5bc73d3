"""The index behind `LexicalRanker`: which templates hold a term, with precomputed weights (BM25F).

Terms are stems, written forms, bigrams, kinds of values and subtypes. A template that does not hold
a word gains a part of its weight for a related word. A word that no template has counts as the word
that is one typing error away. Words without content are compared in examples only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from evaluator.lazy_dataclass import dataclass
from evaluator.library.request_terms import Reading, Word, bigram, effects, input_name, kind_term
from evaluator.library.template_terms import answers_questions, count_terms
from evaluator.library.words import SimilarWords, idf, related_stems, stem
from evaluator.nodes import Task

# By field: weight of one occurrence, and how strongly a long field is discounted (BM25F's b).
_WEIGHTS = (3.0, 1.5, 2.0, 2.0, 0.8, 0.8, 1.0)
_DISCOUNT = (0.2, 0.0, 0.6, 0.4, 0.8, 0.5, 0.8)
_K1 = 1.5
# How much counts, relative to one word: a bigram, a word of the same form, a related word, and a
# misspelt word.
_BIGRAM = 0.3
_FORM = 0.2
_RELATED = 0.32
_MISSPELT = 0.85
# How much an unknown word counts as missing, relative to the rarest one.
_UNKNOWN = 1.5
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
# A few examples say little about the words of requests: with so many, each counts half.
_FEW_EXAMPLES = 10
SMALL_LIBRARY = 100
"""In a smaller library rarity says nothing about a word: it counts as one of this size."""
# Related words that more templates hold only reorder.
_COMMON = 200
# So many words of requests are remembered.
_MAX_SEEN = 20_000


@dataclass(slots=True)
class Postings:
    """The templates that hold a term: the impact in each, in [0, 1), and the field that gave most
    of it.
    """

    idf: float = 0.0
    top: float = 0.0
    """The largest impact."""
    impacts: dict[int, float] = field(default_factory=dict[int, float])
    fields: dict[int, int] = field(default_factory=dict[int, int])


NOWHERE = Postings()


class RequestTerm(NamedTuple):
    """A term of a request: as written, its weight in the request, and what a template that holds it
    gains.
    """

    shown: str
    mass: float
    gain: float
    held: Postings


class Index:
    """An index over templates, given as nodes with their names.

    `size` is their number, `asked` are the numbers of those that take questions about anything, and
    `rare` is the weight of a word that no template has.
    """

    def __init__(self, nodes: Sequence[Task], names: Sequence[str]) -> None:
        self.size = len(nodes)
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
        self.asked = frozenset(d for d, node in enumerate(nodes) if answers_questions(node))
        seen: set[str] = set()
        counted = [
            count_terms(node, name, seen=seen) for node, name in zip(nodes, names, strict=True)
        ]
        averages = [
            sum(column) / self.size or 1.0 for column in zip(*(n for _, n in counted), strict=True)
        ]
        self._postings: dict[str, Postings] = {}
        for document, (counts, lengths) in enumerate(counted):
            relative = [n / average for n, average in zip(lengths, averages, strict=True)]
            self._add(document, counts, relative=relative, examples=len(nodes[document].examples))
        for postings in self._postings.values():
            postings.idf = self._idf(len(postings.impacts))
            postings.top = max(postings.impacts.values())
        self.rare = self._idf(0)
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
        return idf(documents, max(self.size, SMALL_LIBRARY))

    def equal_inputs(self, names: frozenset[str]) -> dict[int, float]:
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
        few = self.rare**2 / 4
        return {
            d: _INPUTS * w / (every + self._input_weights[d] - w) * w * w / (w * w + few)
            for d, w in shared.items()
        }

    def _name_weight(self, name: str) -> float:
        documents = len(self._with_input.get(name, ()))
        if name in _USUAL_NAMES:
            return math.log(1 + (self.size + _OTHERS) / (documents + _USUAL))
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
        mass = word.weight * (_UNKNOWN * self.rare if is_unknown else held.idf)
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

    def known_bigram(self, first: str, second: str, shown: str) -> tuple[str, RequestTerm | None]:
        """The term of two stems that follow each other, as `known`, and its key."""
        term = bigram(first, second)
        return term, self.known(term, shown, _BIGRAM)

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
                gain = idf(len(postings.impacts), self.size)
                if " " in term:
                    gain *= _BIGRAM
                found.append(RequestTerm(term, 0.0, gain=gain, held=postings))
        return found


class _Known(NamedTuple):
    """A word as a term, and its written form and related words, each with a key and whether it only
    reorders.
    """

    term: RequestTerm
    more: tuple[tuple[str, RequestTerm, bool], ...]
    is_unknown: bool
