"""What of a result is judged, and by what: texts, values and targets as scorers want them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from evaluator.batch.scorers.contract import Scored
from evaluator.batch.scorers.settings import Settings
from evaluator.binding.types import describe as type_of
from evaluator.errors import ExpressionError, UsageError
from evaluator.library.syntax import analyse_expression, nearest
from evaluator.nodes import Expression, Span, Text

NAMES = ("output", "parsed", "target", "inputs", "metadata")
MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OfResult(Settings):
    """`of` is an expression over `output`, `parsed`, `target`, `inputs` and `metadata` that says what is judged, such
    as `parsed.answer`; by default the text, or the parsed value where that is a text."""

    of: str | None = None

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.of is not None:
            check_expression(self.type, "of", self.of)

    def text(self, scored: Scored) -> str:
        """The text that is judged. Raises: UsageError, where `of` gives an array or object."""
        if self.of is not None:
            return as_text(evaluate(self.of, scored), f"of={self.of!r}")
        parsed = scored.outcome.parsed_content
        return parsed if isinstance(parsed, str) else scored.outcome.content

    def value(self, scored: Scored) -> Any:
        """The value that is judged: what `of` says, else the parsed content, else the text."""
        if self.of is not None:
            return evaluate(self.of, scored)
        parsed = scored.outcome.parsed_content
        return scored.outcome.content if parsed is None else parsed


def check_expression(kind: str, argument: str, expression: str) -> None:
    """Raises: UsageError, for what is no expression, calls a function or names something unknown."""
    try:
        found = analyse_expression(_parsed(expression))
    except ExpressionError as error:
        raise UsageError(f"{kind}: {argument} is {expression!r}: {error.message}") from error
    for reference in found.references:
        if reference.name not in NAMES:
            known = f"{nearest(reference.name, NAMES)} (there are {', '.join(NAMES)})"
            raise UsageError(f"{kind}: {argument} is {expression!r}: {reference.name!r} is not known{known}")
    if found.calls:
        raise UsageError(f"{kind}: {argument} is {expression!r}: templates cannot be called here")


def names_in(expression: str) -> frozenset[str]:
    """Which of the names a checked expression reads."""
    return frozenset(reference.name for reference in analyse_expression(_parsed(expression)).references)


def evaluate(expression: str, scored: Scored) -> Any:
    """The expression's value for one result. Raises: ExpressionError, where it names what is not there."""
    from evaluator.binding.sandbox import evaluate_expression_sync
    from evaluator.binding.scopes import Scope, plain

    sample, outcome = scored.sample, scored.outcome
    scope = Scope(
        {
            "output": outcome.content,
            "parsed": plain(outcome.parsed_content, "parsed"),
            "target": plain(sample.target, "target"),
            "inputs": plain(sample.inputs, "inputs"),
            "metadata": plain(sample.metadata, "metadata"),
        }
    )
    return evaluate_expression_sync(_parsed(expression), scope)


@lru_cache(maxsize=256)
def _parsed(expression: str) -> Expression:
    return Expression(Text(expression, Span()))


def targets(scored: Scored) -> list[str]:
    """The target as texts, of which each is a right answer; empty where there is none.

    Raises: UsageError, for an object or an array within the array.
    """
    target = scored.sample.target
    if target.__class__ is str:
        return [target]
    if target is None:
        return []
    if isinstance(target, list | tuple):
        return [as_text(item, "the target") for item in cast("list[Any]", target)]
    return [as_text(target, "the target")]


def as_text(value: Any, what: str) -> str:
    """A text as it is; a number or a boolean as JSON has it. Raises: UsageError, for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise UsageError(f"{what} is {type_of(value)}, expected text; json_equal and json_subset compare structures")


def written(value: Any) -> str:
    """Any JSON value as text, for a judge to read: a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=dict)


def shown(text: str) -> str:
    """A text for an explanation, quoted, cut after 200 characters."""
    return repr(text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…")


def question_of(inputs: Mapping[str, Any]) -> str:
    """What was asked: the input `question`, else the only input, else all of them as JSON."""
    if "question" in inputs:
        return written(inputs["question"])
    return written(next(iter(inputs.values())) if len(inputs) == 1 else dict(inputs))
