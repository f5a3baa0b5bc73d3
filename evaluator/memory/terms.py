"""Terms of a described file, each with its impact: BM25F over fields, against fixed lengths.

A field's length is compared with a length that is usual for it (`_USUAL`), not with the mean of the index:
impacts then depend on the file alone, and one changed file changes nothing about the others. How rare a
term is enters when a query is ranked.
"""

from __future__ import annotations

import os

from evaluator.library.words import stem, words
from evaluator.memory.describe import Description

FIELDS = ("name", "folder", "summary", "heading", "definition", "language")
# By field: weight of one occurrence, how strongly length counts (BM25F's b), and a usual length in words.
_WEIGHTS = (4.0, 1.2, 4.0, 1.5, 1.0, 0.3)
_DISCOUNT = (0.2, 0.3, 0.4, 0.6, 0.6, 0.0)
_USUAL = (2.0, 3.0, 8.0, 30.0, 60.0, 1.0)
_K1 = 2.0
# A field shorter than this share of the usual is not worth more for it: one definition is no name.
_LEAST_SHARE = 0.25
_SCALE = 1000
# A name of a thousand words is no name.
_MAX_WORDS = 2_000
_MAX_WORD_CHARS = 40


def terms_of(path: str, description: Description) -> dict[str, int]:
    """Stems of the file's path and description, each with its packed impact (see `unpack`)."""
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
    parts: dict[str, list[float]] = {}
    for field, text in enumerate(texts):
        found = [word for word in words(text)[:_MAX_WORDS] if len(word) <= _MAX_WORD_CHARS]
        share = _DISCOUNT[field] * max(len(found) / _USUAL[field], _LEAST_SHARE)
        weight = _WEIGHTS[field] / (1 - _DISCOUNT[field] + share)
        for word in found:
            parts.setdefault(stem(word), [0.0] * len(FIELDS))[field] += weight
    return {term: _pack(by_field) for term, by_field in parts.items()}


def _pack(by_field: list[float]) -> int:
    total = sum(by_field)
    best = max(range(len(FIELDS)), key=by_field.__getitem__)
    return round(_SCALE * total / (total + _K1)) * 8 + best


def unpack(packed: int) -> tuple[float, str]:
    """An impact in [0, 1) and the field that gave most of it."""
    return (packed >> 3) / _SCALE, FIELDS[packed & 7]


PACKED_SCALE = 8 * _SCALE
"""A packed impact divided by this is the impact, but for the field in its lowest bits: exact enough to rank."""
