"""Matches requests to templates: lexical, offline, deterministic.

`LexicalRanker` scores a template by the probability that it is the right one. The evidence is the
weight of the words that the template holds (BM25F over its fields) and of those that it does not,
its lead over the next template, the share of the request that no template knows, and the size of
the library. So scores lie in [0, 1] and are comparable between requests: if no template fits, all
of them score low.

A template that shares no word with the request is not found; its author can add words in `criteria`
or in an example.

`find_overlaps` finds templates that requests will mistake for each other. It asks for each atomic
template in its own words: by its description, and by each phrase of its criteria. Where another
template comes first, or close behind, requests in such words will find the wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, cast

from evaluator.errors import messages
from evaluator.lazy_dataclass import frozen
from evaluator.library.index import Index
from evaluator.library.request_terms import Reading, content, read_node, read_text
from evaluator.library.search import LONG_FACTOR, NODE, TEXT, Evidence, Hit, Meaning, search
from evaluator.library.template_terms import PHRASES, PLACEHOLDER, texts
from evaluator.nodes import Atomic, Task, TopLevel

LOW_SCORE = 0.34
"""A match with a lower score is more likely an accident than a fit."""

INTERNAL = frozenset(
    {"bind_inputs", "choose", "compile", "improve", "intake", "logprobs", "reparse"}
)
"""Subtypes of templates that the Evaluator itself uses; requests are not matched to them."""

FOREIGN_ADVICE = (
    "the request seems to be in another language, and templates are found by their words: write it "
    "in the language of the templates, add its words to their <criteria>, or let a model choose "
    "(--rerank)"
)
"""For a refusal, where `seems_foreign`."""

_FAR_BETTER = 10


class TemplateLike(Protocol):
    """The part of a template that matching needs."""

    @property
    def name(self) -> str: ...

    @property
    def node(self) -> TopLevel: ...


class Reason(NamedTuple):
    """A word of the request that counted, the field that holds it, and its part of the score."""

    term: str
    field: str
    weight: float


@frozen
class Match:
    """A template, its score (0 to 1), the words that counted most, best first, and the words that
    it does not hold.
    """

    template: TemplateLike
    score: float
    why: tuple[Reason, ...]
    missed: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<Match {self.template.name!r}: {self.score:.2f}, by "
            f"{', '.join(each.term for each in self.why)}>"
        )

    def _repr_html_(self) -> str:
        why = ", ".join(f"{reason.term} ({reason.field})" for reason in self.why)
        return messages.fields(
            f"Match: {self.template.name}",
            {"score": f"{self.score:.2f}", "why": why, "missed": ", ".join(self.missed)},
        )


class Ranker(Protocol):
    """Orders templates by their fit to a request.

    It returns at most `limit` matches, best first, equal scores by name; each score is in [0, 1]
    and comparable between requests, and none is 0. The same request gives the same answer. A node
    that is not atomic matches nothing, because only atomic templates take part.
    """

    def rank(self, request: str | Task, limit: int = 5) -> list[Match]: ...


class LexicalRanker:
    """A `Ranker` over the atomic templates among `templates`; the index is built at the first
    request.

    With `composites` it ranks the other tasks instead, to say which of them somebody may have
    expected.
    """

    _text = TEXT
    _node = NODE

    def __init__(self, templates: Iterable[TemplateLike], *, composites: bool = False) -> None:
        tasks = (
            t
            for t in templates
            if isinstance(t.node, Task) and isinstance(t.node, Atomic) is not composites
        )
        self._templates = sorted(
            (t for t in tasks if cast(Task, t.node).subtype not in INTERNAL), key=lambda t: t.name
        )
        self._index: Index | None = None

    def __len__(self) -> int:
        return len(self._templates)

    def rank(self, request: str | Task, limit: int = 5) -> list[Match]:
        """Returns the best `limit` templates for a text or a node.

        A node is matched by its subtype, name, description, criteria, inputs and declared output.
        """
        if limit < 1 or not self._templates or not isinstance(request, str | Atomic):
            return []
        best: dict[int, tuple[float, Hit]] = {}
        if isinstance(request, str):
            logistic = self._text
        else:
            logistic = self._node
        for factor, hit in self._hits(_read(request), limit):
            score = round(factor * logistic.probability(hit.evidence), 4)
            if score > 0 and (hit.document not in best or score > best[hit.document][0]):
                best[hit.document] = (score, hit)
        found = sorted(
            best.values(), key=lambda pair: (-pair[0], -pair[1].coverage, pair[1].document)
        )
        return [self._match(score, hit) for score, hit in found[:limit]]

    def evidence(self, request: str | Atomic) -> tuple[TemplateLike, Evidence] | None:
        """The best template for a whole request and what its score is calculated from; for fitting
        coefficients.
        """
        hits = [hit for _, hit in self._hits(_read(request)[:1], 1)]
        if not hits:
            return None
        if isinstance(request, str):
            logistic = self._text
        else:
            logistic = self._node
        best = max(hits, key=lambda hit: logistic.logit(hit.evidence))
        return (self._templates[best.document], best.evidence)

    def _hits(self, readings: list[Reading], limit: int) -> Iterator[tuple[float, Hit]]:
        """Yields what is found for each reading, with the factor of its score."""
        if self._index is None:
            self._index = Index(
                [cast(Task, t.node) for t in self._templates], [t.name for t in self._templates]
            )
        for number, (reading, meaning) in enumerate(
            zip(readings, self._meanings(readings), strict=True)
        ):
            for hit in search(self._index, reading, limit, meaning=meaning):
                yield (LONG_FACTOR if number else 1.0), hit

    def _meanings(self, readings: list[Reading]) -> Sequence[Meaning | None]:
        return [None] * len(readings)

    def _match(self, score: float, hit: Hit) -> Match:
        part = score / hit.coverage
        why, missed = hit.explain()
        # Best first, equal ones by their terms.
        why.sort(key=lambda reason: (-reason[2], reason[0]))
        reasons = [
            Reason(term, field, weight=round(weight * part, 4)) for term, field, weight in why
        ]
        return Match(
            self._templates[hit.document],
            score,
            why=tuple([r for r in reasons if r.weight > 0]),
            missed=missed,
        )


def _read(request: str | Atomic) -> list[Reading]:
    if isinstance(request, str):
        return read_text(request)
    return [read_node(request, list(texts(request, request.name or "")))]


def nothing_fits(best: Match | None, composites: Sequence[Match] = ()) -> bool:
    """Whether nothing runs: the best match is probably an accident, or a composite template has ten
    times its odds.
    """
    if best is None or best.score < LOW_SCORE:
        return True
    return any(_odds(each) >= _FAR_BETTER * _odds(best) for each in composites)


def _odds(match: Match) -> float:
    return match.score / max(1e-4, 1 - match.score)


def better_composites(best: Match | None, composites: Sequence[Match]) -> list[Match]:
    """Those of the composite templates that fit, and better than the best atomic one: with a higher
    score, or with all words that this one holds and more.
    """
    fitting = [each for each in composites if each.score >= LOW_SCORE]
    if best is None:
        return fitting
    missed = set(best.missed)
    return [each for each in fitting if each.score > best.score or set(each.missed) < missed]


def describe_composites(matches: Sequence[Match]) -> str:
    """Why composite templates that fit were not chosen, and what to do."""
    which = "; ".join(
        f"{each.template.name!r} has words of the request, but is of type "
        f"{cast(Task, each.template.node).type}"
        for each in matches
    )
    return f"{which}: only atomic templates are matched, so give the name of the one to run"


CLOSE = 0.1
"""Another template is close if its score is at least this share of the template's own; scores fall
off steeply.
"""
_MIN_WORDS = 2


@frozen
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
                f"{self.other} holds all of these words; say in the description of {self.template} "
                "what only it does, and add the words that requests for it use to its <criteria>"
            )
        return (
            f"only {self.template} holds {', '.join(self.own)}: repeat them in its name or "
            "description, and add other words that only requests for it use to its <criteria>"
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
    asked = [PLACEHOLDER.sub(" ", node.description.value), *PHRASES.split(criteria)]
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
