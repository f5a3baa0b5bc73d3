"""What is known of a term: the templates that hold it, and what it adds to the score of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from evaluator.library.calibration import Evidence
from evaluator.library.indexed import FIELDS


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
