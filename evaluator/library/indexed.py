"""What of a template is indexed, and how a search weighs it: its texts by field, and the terms in
them, with what each adds to the score of the templates that hold it.

One logistic for texts and one for nodes turn what a search finds into the probability that the
template is right. The coefficients were fitted by `bench/match_fit.py` on the train parts of public
collections (see `bench/README.md`), on the tuning half of `tests/library/match_requests.json`, each
collection with equal weight, and on the off-topic requests of `bench/off_topic.txt`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any, NamedTuple

from evaluator.lazy_dataclass import dataclass
from evaluator.library.request_terms import (
    QUESTION_WORDS,
    bigram,
    content_word,
    kind_term,
    kinds_taken,
    subtype_term,
    without_content,
)
from evaluator.library.words import words
from evaluator.nodes import Task
from evaluator.patterns import Pattern

FIELDS = ("name", "subtype", "description", "criteria", "inputs", "output", "examples")
# Only the beginning of a long example is indexed.
_INDEXED_CHARS = 4000
# The name of a variable is not a word of the description.
PLACEHOLDER = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)

# The phrases of criteria are separated.
PHRASES = Pattern(r"[,;\n]")


def texts(node: Task, name: str) -> Iterator[tuple[str, str]]:
    """Yields the texts of a task with their fields."""
    yield "name", name
    if node.subtype and node.subtype != "standard":
        yield "subtype", node.subtype
    yield "description", PLACEHOLDER.sub(" ", node.description.value)
    if node.criteria is not None:
        for phrase in PHRASES.split(node.criteria.value):
            yield "criteria", phrase
    for declared in node.inputs:
        yield "inputs", f"{declared.name} {declared.description}"
    if node.output is not None:
        yield "output", _output_text(node.output.type, node.output.schema)
    for example in node.examples:
        yield "examples", " ".join(value[:_INDEXED_CHARS] for value in example.inputs.values())
        yield "examples", example.output[:_INDEXED_CHARS]


def count_terms(
    node: Task, name: str, seen: set[str]
) -> tuple[dict[str, dict[int, float]], list[int]]:
    """Counts the terms of a template by field. Returns them and the length of each field; adds its
    words to `seen`.

    Terms without content are terms of examples only.
    """
    counts: dict[str, dict[int, float]] = {}
    lengths = [0] * len(FIELDS)

    def add(term: str, index: int, count: float = 1.0) -> None:
        by_field = counts.setdefault(term, {})
        by_field[index] = by_field.get(index, 0.0) + count

    for text_field, text in texts(node, name):
        index = FIELDS.index(text_field)
        every = words(text)
        found = [word for each in every if (word := content_word(each)) is not None]
        seen.update(word.shown for word in found)
        stems = [word.stem for word in found]
        terms = [*stems, *(bigram(a, b) for a, b in pairwise(stems))]
        terms += [word.form for word in found]
        if text_field == "subtype":
            terms.append(subtype_term(text))
        if text_field == "examples":
            terms += without_content(every)
        lengths[index] += len(found)
        if text_field == "criteria":
            # One word of a phrase is not the phrase.
            for term in dict.fromkeys(terms):
                add(term, index, 1.0 if " " in term else 1 / len(found))
        else:
            for term in terms:
                add(term, index)
    for kind in {kind for declared in node.inputs for kind in kinds_taken(declared)}:
        add(kind_term(kind), FIELDS.index("inputs"))
    return counts, lengths


def answers_questions(node: Task) -> bool:
    """Whether a question word is among the phrases of a task's criteria: then it takes questions
    about anything.
    """
    return node.criteria is not None and any(
        phrase.strip().lower() in QUESTION_WORDS for phrase in node.criteria.value.split(",")
    )


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
MEANING_SHARE = 0.4


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
            d: MEANING_SHARE * max(0.0, cosine) for d, cosine in zip(documents, found, strict=True)
        }
