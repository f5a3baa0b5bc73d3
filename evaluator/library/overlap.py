"""Templates that requests will mistake for each other.

Each atomic template is asked for in its own words: by its description, and by each phrase of its
criteria. Where another template comes first, or close behind, requests in such words will find the
wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from evaluator.library.indexed import PLACEHOLDER
from evaluator.library.matching import INTERNAL, LexicalRanker, Match, TemplateLike
from evaluator.library.request_terms import content
from evaluator.nodes import Atomic
from evaluator.patterns import Pattern

CLOSE = 0.1
"""Another template is close if its score is at least this share of the template's own; scores fall
off steeply.
"""
_MIN_WORDS = 2
_SEPARATORS = Pattern(r"[,;\n]")


@dataclass(frozen=True, slots=True)
class Overlap:
    """Words of a template that another one answers to as well."""

    template: str
    other: str
    asked: str
    """The words of the template that it was asked for with."""
    score: float
    other_score: float
    shared: tuple[str, ...]
    """The words that both hold."""
    own: tuple[str, ...]
    """The words that the other template does not hold."""

    @property
    def advice(self) -> str:
        """What to add, and where."""
        if not self.own:
            return (
                f"{self.other} holds all of these words; say in the description of "
                f"{self.template} what only it does, "
                "and add the words that requests for it use to its <criteria>"
            )
        return (
            f"only {self.template} holds {', '.join(self.own)}: repeat them in its name or "
            "description, and add "
            "other words that only requests for it use to its <criteria>"
        )


def find_overlaps(templates: Iterable[TemplateLike]) -> list[Overlap]:
    """The overlaps among the atomic templates, for each pair the worst, worst first.

    Matching is lexical here, also where vectors are installed, because words are what an author can
    change.
    """
    found: dict[tuple[str, str], Overlap] = {}
    tasks = [t for t in templates if isinstance(t.node, Atomic) and t.node.subtype not in INTERNAL]
    ranker = LexicalRanker(tasks)
    for template in tasks:
        assert isinstance(template.node, Atomic)
        for asked in _own_words(template.node):
            overlap = _compare(template.name, asked, matches=ranker.rank(asked, 2))
            if overlap is None:
                continue
            pair = (overlap.template, overlap.other)
            if pair not in found or _severity(overlap) > _severity(found[pair]):
                found[pair] = overlap
    return sorted(found.values(), key=lambda o: (-_severity(o), o.template, o.other))


def _own_words(node: Atomic) -> list[str]:
    """The description of a task and the phrases of its criteria, each with at least two words of
    content.
    """
    if node.criteria is None:
        criteria = ""
    else:
        criteria = node.criteria.value
    asked = [PLACEHOLDER.sub(" ", node.description.value), *_SEPARATORS.split(criteria)]
    return [" ".join(each.split()) for each in asked if len(list(content(each))) >= _MIN_WORDS]


def _compare(name: str, asked: str, matches: list[Match]) -> Overlap | None:
    own = next((match for match in matches if match.template.name == name), None)
    other = next((match for match in matches if match.template.name != name), None)
    score = 0.0 if own is None else own.score
    if other is None or other.score < CLOSE * score:
        return None
    words = {word.shown for word in content(asked)}
    shared = tuple(reason.term for reason in other.why if reason.term in words)
    return Overlap(
        name,
        other.template.name,
        asked=asked,
        score=score,
        other_score=other.score,
        shared=shared,
        own=other.missed,
    )


def _severity(overlap: Overlap) -> float:
    return overlap.other_score - overlap.score
