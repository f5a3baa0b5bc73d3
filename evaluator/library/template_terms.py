"""What of a template is indexed: its texts by field, and the terms in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

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
