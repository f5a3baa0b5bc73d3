"""The bases of the shipped scorers: arguments are fields of a frozen dataclass, checked against the
fields' types; the scored text or value is an expression, and the target is texts.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, ClassVar, Self, cast

from evaluator.batch.records import Sample, Score
from evaluator.batch.scorers.contract import NO_TARGET, LeavesInputUnchanged, Scorer, ScorerInput
from evaluator.errors import ExpressionError, UsageError
from evaluator.errors.messages import did_you_mean
from evaluator.fields import After, Checked, FieldError
from evaluator.language.analysis import analyse
from evaluator.language.scopes import describe as type_of
from evaluator.language.scopes import plain
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Expression, Span, Text

_NAME = re.compile(r"[\w.-]{1,64}")


def check_name(name: str) -> str:
    """Raises: UsageError, for a name that cannot be a key and a column."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a scorer's name is 1 to 64 letters, digits, '_', '-' and '.', not {name[:80]!r}"
        )
    return name


@frozen(kw_only=True)
class Declared(Checked, error=UsageError):
    """Something shipped that has a `type` and arguments: its fields. `name` defaults to `type`. A
    subclass checks combinations of arguments in `check`.

    Raises: UsageError, for an argument that does not have its field's type.
    """

    type: ClassVar[str] = ""
    name: Annotated[str, After(check_name)] = ""

    def __post_init__(self) -> None:
        if self.name == "":
            object.__setattr__(self, "name", self.type)
        Checked.__post_init__(self)

    @classmethod
    def error_of(cls, problem: FieldError) -> Exception:
        return UsageError(f"{cls.type}: {problem}")

    def describe(self) -> dict[str, Any]:
        """The type and every argument except the name."""
        described = {"type": self.type}
        for field in fields(self):
            if field.name != "name":
                value = getattr(self, field.name)
                if isinstance(value, Mapping | list | tuple):
                    described[field.name] = plain(value)
                else:
                    described[field.name] = value
        return described


@frozen(kw_only=True)
class BuiltinScorer(Declared, LeavesInputUnchanged, ABC):
    """A shipped scorer."""

    @classmethod
    def from_arguments(
        cls, arguments: Mapping[str, Any], make_scorer: Callable[[Any], Scorer]
    ) -> Self:
        """As `from_table`. `make_scorer` is for scorers that contain other scorers."""
        return cls.from_table(arguments)

    @abstractmethod
    async def score(self, scored: ScorerInput) -> Score: ...

    def check_row(self, sample: Sample) -> None:
        """Checks a row before the first call. Raises: UsageError, for one that the scorer cannot
        score.
        """
        if sample.target is not None:
            self.check_target(sample.target)

    def check_target(self, target: Any) -> None:
        """Checks a row's target before the first call. Raises: UsageError, for one that the scorer
        cannot compare.
        """


def suggestion(name: str, known: Collection[str]) -> str:
    """The ending of a message about an unknown name: the nearest known ones, or nothing."""
    hint = did_you_mean(name, known)
    if hint:
        return f"; {hint}"
    return ""


NAMES = ("output", "parsed", "turns", "target", "inputs", "metadata")
MAX_SHOWN_CHARS = 200


@lru_cache(maxsize=256)
def _parsed(expression: str) -> Expression:
    return Expression(Text(expression, Span()))


def _check_expression(expression: str) -> str:
    """Raises: ValueError, for an invalid expression, one that calls a function or names something
    unknown.
    """
    try:
        analysis = analyse(_parsed(expression))
    except ExpressionError as error:
        raise ValueError(f"is {expression!r}: {error.message}") from error
    for reference in analysis.references:
        if reference.name not in NAMES:
            hint = f"{suggestion(reference.name, NAMES)} (names: {', '.join(NAMES)})"
            raise ValueError(f"is {expression!r}: {reference.name!r} is not known{hint}")
    if analysis.calls:
        raise ValueError(f"is {expression!r}: templates cannot be called here")
    return expression


ScoredExpression = Annotated[str, After(_check_expression)]
"""An expression over what is scored."""


@frozen(kw_only=True)
class ResultScorer(BuiltinScorer):
    """A scorer with `of`, an expression over `output`, `parsed`, `turns`, `target`, `inputs` and
    `metadata` for what is scored, such as `parsed.answer`. The default is the text, or the parsed
    value where that is a text.
    """

    of: ScoredExpression | None = None

    def text(self, scored: ScorerInput) -> str:
        """The scored text. Raises: UsageError, where `of` gives an array or object."""
        if self.of is not None:
            return as_text(evaluate(self.of, scored), f"of={self.of!r}")
        parsed = scored.outcome.parsed_content
        if isinstance(parsed, str):
            return parsed
        return scored.outcome.content

    def value(self, scored: ScorerInput) -> Any:
        """The scored value: that of `of`, else the parsed content, else the text."""
        if self.of is not None:
            return evaluate(self.of, scored)
        parsed = scored.outcome.parsed_content
        if parsed is None:
            return scored.outcome.content
        return parsed


@frozen(kw_only=True)
class TargetScorer(ResultScorer):
    """A scorer that compares the text with the target, which may be a list of texts. Without a
    target: no score.
    """

    async def score(self, scored: ScorerInput) -> Score:
        wanted = self.wanted(scored)
        if wanted:
            return await self.compare(self.text(scored), wanted)
        return NO_TARGET

    def wanted(self, scored: ScorerInput) -> list[str]:
        """The correct answers as texts; empty without a target. Raises: as `targets`."""
        return targets(scored)

    @abstractmethod
    async def compare(self, text: str, wanted: list[str]) -> Score:
        """The score of a text against at least one target."""


def names_in(expression: str) -> frozenset[str]:
    """The names that a checked expression reads."""
    return frozenset(reference.name for reference in analyse(_parsed(expression)).references)


def evaluate(expression: str, scored: ScorerInput) -> Any:
    """The expression's value for one result. Raises: ExpressionError, for a missing value."""
    from evaluator.language.sandbox import evaluate_expression_sync
    from evaluator.language.scopes import Scope, plain

    sample = scored.sample
    outcome = scored.outcome
    scope = Scope(
        {
            "output": outcome.content,
            "parsed": plain(outcome.parsed_content, "parsed"),
            "turns": plain(outcome.notes.get("turns", []), "turns"),
            "target": plain(sample.target, "target"),
            "inputs": plain(sample.inputs, "inputs"),
            "metadata": plain(sample.metadata, "metadata"),
        }
    )
    return evaluate_expression_sync(_parsed(expression), scope)


def targets(scored: ScorerInput) -> list[str]:
    """The correct answers as texts: the target, or its items; empty without a target.

    Raises: UsageError, for an object, or an array in the array.
    """
    target = scored.sample.target
    if target.__class__ is str:
        return [target]
    if target is None:
        return []
    return [as_text(item, "the target") for item in as_list(target)]


def as_list(value: Any) -> Sequence[Any]:
    """A list or tuple unchanged; any other value as the only item."""
    if isinstance(value, list | tuple):
        return cast("Sequence[Any]", value)
    return [value]


def expected_one_of(answers: Iterable[object]) -> str:
    """The beginning of an explanation: at most three of the right answers."""
    return f"expected {' or '.join(map(str, islice(answers, 3)))}"


def as_text(value: Any, what: str) -> str:
    """A text unchanged; a number or a boolean as JSON. Raises: UsageError, for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise UsageError(
        f"{what} is {type_of(value)}, expected text; use json_equal or json_subset to compare "
        "structures"
    )


def text_or_json(value: Any) -> str:
    """A text unchanged, any other value as JSON, for a judge to read."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=dict)


def shown(text: str) -> str:
    """A text for an explanation, quoted and cut after 200 characters."""
    return repr(text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…")


def question_of(inputs: Mapping[str, Any]) -> str:
    """The question: the input `question`, else the only input, else all of them as JSON."""
    if "question" in inputs:
        return text_or_json(inputs["question"])
    return text_or_json(next(iter(inputs.values())) if len(inputs) == 1 else dict(inputs))
