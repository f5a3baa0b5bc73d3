"""What matching reads from a request: the words that carry content, the parts that they belong to, and its form.

Function words and question words carry no content. They are kept apart, because they distinguish examples that share
all other words. A request that asks for several things has several parts. A long request is mostly data: there each
sentence is read as a request of its own, so that the instruction is found wherever it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from evaluator.library.words import FUNCTION_WORDS, stem, words
from evaluator.nodes import Task

_QUESTION_WORDS = "what which who whom whose when where why how many much often"
QUESTION_WORDS = frozenset(_QUESTION_WORDS.split())
# Words that requests are put in, whatever they ask for.
_REQUEST_WORDS = """
    tell show know provide suggest able wish hope try going above below following attached given something
    someone anything now today tomorrow right good great sure ok okay
"""
NO_CONTENT = FUNCTION_WORDS | QUESTION_WORDS | frozenset(_REQUEST_WORDS.split())

# Words that refer to the speaker, the hearer or attached data: such a question is not one of general knowledge.
_REFERRING_WORDS = """
    i it its me my mine we us our you your he him his she her they them their this that these those
"""
_REFERRING = frozenset(_REFERRING_WORDS.split())
_END_OF_PART = re.compile(r"[.!?;:,()\n]+(?=\s|$)|\b(?:and|then|also|but|plus|or)\b", re.IGNORECASE)
_END_OF_SENTENCE = re.compile(r"[.!?;:]+(?=\s|$)|\n+")
# Only both ends of a request are read: 100 kB take the time of 6 kB.
_HEAD_CHARS, _TAIL_CHARS = 4000, 2000
_MAX_PARTS, _MAX_SENTENCES = 40, 80
_MAX_WORDS, _MAX_NO_CONTENT = 60, 200
_BARE_WORDS = 4
LONG = 25
"""Of a request with more words of content each sentence is read too."""
# How much the words of a node count, by field. The description counts as the text of a request does.
_NODE_WEIGHTS = {"name": 0.7, "criteria": 0.6, "inputs": 0.6, "output": 0.3}


class Word(NamedTuple):
    """A word of content: as written, its stem, and its weight."""

    shown: str
    stem: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """A request: its text, the pieces that the text is split into, and the words in it, by piece.

    `no_content` are its terms without content. `extra` are words that add to a score and are not missed where a
    template does not hold them. `inputs` are the names of a node's inputs, None for a text. A bare text has several
    words and all of them carry content: then it may be in another language.
    """

    text: str
    pieces: tuple[str, ...]
    parts: tuple[tuple[Word, ...], ...]
    no_content: frozenset[str]
    is_general_question: bool = False
    is_bare: bool = False
    extra: tuple[Word, ...] = ()
    inputs: frozenset[str] | None = None


def read_text(text: str) -> list[Reading]:
    """Returns the reading of a request; if it is long, also a reading of each sentence.

    Their number and length are bounded, however long the request is.
    """
    if len(text) > _HEAD_CHARS + _TAIL_CHARS:
        text = f"{text[:_HEAD_CHARS]}\n{text[-_TAIL_CHARS:]}"
    whole = _read(text)
    if sum(map(len, whole.parts)) <= LONG:
        return [whole]
    sentences = [_read(sentence) for sentence in _END_OF_SENTENCE.split(text)]
    return [whole, *[sentence for sentence in sentences if sentence.parts][:_MAX_SENTENCES]]


def read_node(node: Task, texts: Sequence[tuple[str, str]]) -> Reading:
    """Returns the reading of a node from its texts by field."""
    read = _read(node.description.value[:_HEAD_CHARS])
    extra = [
        Word(word.shown, word.stem, weight)
        for field, text in texts
        if (weight := _NODE_WEIGHTS.get(field)) is not None
        for word in content(text[:_HEAD_CHARS])
    ]
    extra += [Word(subtype_term(text), subtype_term(text)) for field, text in texts if field == "subtype"]
    names = frozenset(input_name(each.name) for each in node.inputs)
    return replace(read, extra=tuple(extra), inputs=names, is_general_question=False)


def _read(text: str) -> Reading:
    every = words(text)
    pieces = [piece for piece in _END_OF_PART.split(text) if piece.strip()][:_MAX_PARTS]
    parts = [part for piece in pieces if (part := tuple(content(piece))[:_MAX_WORDS])]
    is_question = any(word in QUESTION_WORDS for word in every[:3])
    return Reading(
        text,
        tuple(pieces),
        tuple(parts),
        frozenset(without_content(every[:_MAX_NO_CONTENT])),
        is_question and not _REFERRING.intersection(every),
        len(every) >= _BARE_WORDS and NO_CONTENT.isdisjoint(every),
    )


def content(text: str) -> Iterator[Word]:
    """Yields the words of content of a text, in order."""
    for word in words(text):
        if word not in NO_CONTENT:
            yield Word(word, stem(word))


def without_content(every: Sequence[str]) -> Iterator[str]:
    """Yields the terms of a text that carry no content: words, and bigrams that hold such a word."""
    for word in every:
        if word in NO_CONTENT:
            yield word
    for a, b in pairwise(every):
        if a in NO_CONTENT or b in NO_CONTENT:
            yield bigram(stem(a), stem(b))


def bigram(first: str, second: str) -> str:
    """The term of two stems that follow each other."""
    return f"{first} {second}"


def subtype_term(subtype: str) -> str:
    """The term of a subtype, which is compared as a whole."""
    return f"subtype:{subtype.lower()}"


def input_name(name: str) -> str:
    """The name of an input as it is compared: `maxWords` and `max_words` are the same."""
    return " ".join(words(name))
