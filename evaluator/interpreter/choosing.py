"""Lets a model choose a template for a request in words, where the words alone do not decide.

The shortlist is what `match` found. Where it found nothing, or the request seems to be in another
language, the words say little, so all templates of a small library are on it.

The choice is a recorded task at the path `choose`, within the limits of the run. The model names
one of the shortlist or none; it never writes a task or reaches another template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from evaluator.errors.results import TaskError
from evaluator.interpreter.failures import failure
from evaluator.interpreter.frame import Frame, Run
from evaluator.interpreter.generated import INTERNAL as INTERNAL_NAMES
from evaluator.interpreter.generated import internal_template
from evaluator.lazy_dataclass import frozen
from evaluator.library import TemplateLibrary
from evaluator.nodes import Atomic

if TYPE_CHECKING:
    from evaluator.library import Match

CERTAIN_SCORE = 0.5
"""A match with this score is at least as likely right as wrong: no model is asked."""
# All templates of a library are on the shortlist only if they are not more.
_MAX_LIBRARY = 40
_MAX_DESCRIPTION = 300


@frozen
class Candidate:
    """A template that may carry out a request, and its score by the words."""

    name: str
    score: float


def shortlist(
    library: TemplateLibrary, words: str, matches: Sequence[Match]
) -> tuple[Candidate, ...]:
    """The templates that a model chooses from, best first; none where the words decide."""
    if matches and matches[0].score >= CERTAIN_SCORE:
        return ()
    from evaluator.library.request_terms import seems_foreign

    found = [Candidate(match.template.name, match.score) for match in matches]
    if not found or seems_foreign(words):
        known = {candidate.name for candidate in found}
        others = [name for name in _matched_names(library) if name not in known]
        if len(found) + len(others) <= _MAX_LIBRARY:
            found += [Candidate(name, 0.0) for name in others]
    return tuple(found)


def _matched_names(library: TemplateLibrary) -> list[str]:
    from evaluator.library.matching import INTERNAL

    return sorted(
        template.name
        for template in library.templates.values()
        if isinstance(template.node, Atomic)
        and template.node.subtype not in INTERNAL
        and template.name not in INTERNAL_NAMES
    )


async def choose(
    run: Run, frame: Frame, words: str, candidates: Sequence[Candidate]
) -> Candidate | TaskError | None:
    """The one of the candidates that a model chose; None if it chose none of them."""
    from evaluator.library.matching import LOW_SCORE

    library = run.services.library
    known = {candidate.name: candidate for candidate in candidates if candidate.name in library}
    if not known:
        return None
    arguments: dict[str, Any] = {
        "request": words,
        "templates": "\n".join(f"{name}: {_description(library, name)}" for name in known),
    }
    # A simulated model does not read: it answers what the words say.
    best = next(iter(known.values()))
    answered = None
    if best.score >= LOW_SCORE:
        answered = best.name
    simulated = json.dumps({"template": answered})
    outcome = await run.services.evaluate(
        run.inner(simulated),
        internal_template(run.services, "choose_template"),
        frame.at("choose", arguments=arguments),
    )
    if isinstance(outcome, TaskError):
        return outcome
    answer = outcome.parsed_data
    if not isinstance(answer, Mapping):
        return None
    name = cast("Mapping[str, Any]", answer).get("template")
    if name is None:
        return None
    if name not in known:
        return failure(
            "no_matching_template",
            f"the model chose {str(name)[:_MAX_DESCRIPTION]!r} for the request, which is not one "
            f"of the templates it was given: {', '.join(known)}; name a template with its exact "
            "name",
            content=outcome.content,
        )
    return known[name]


def _description(library: TemplateLibrary, name: str) -> str:
    node = library.get(name).node
    if not isinstance(node, Atomic):
        return ""
    return " ".join(node.description.value.split())[:_MAX_DESCRIPTION]
