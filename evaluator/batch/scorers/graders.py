"""`graded`, `reference`, `rubric`: a template of the library judges. Any template whose answer has a score will do.

A judge that fails, or whose answer cannot be a judgement, is an error of the scorer and never a zero; what it used is
counted all the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import NO_TARGET, Scored, on_scale
from evaluator.batch.scorers.reading import OfResult, check_expression, evaluate, names_in, question_of, written
from evaluator.binding.types import describe as type_of
from evaluator.errors import UsageError
from evaluator.results import TaskError, TaskResult

_REASONS = ("reason", "explanation", "feedback", "advice")
_POINTS = re.compile(r"(\d+(?:\.\d+)?)\s*(?:points?|pts?)\b", re.IGNORECASE)
# What the judge is shown after a criterion's name, and may repeat.
_WITH_POINTS = re.compile(r"\(\d+(?:\.\d+)? points?\)\s*$")


class Unjudged(Exception):
    """A judge's answer that is no judgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grader(OfResult):
    """What graders share. `model` answers in place of the role `grader`; `repeat` tells calls apart that are otherwise
    equal. `inputs` says what each input of the template is, as expressions over `output`, `parsed`, `target`, `inputs`
    and `metadata`; without it the scorer's own inputs are given."""

    template: str
    inputs: Mapping[str, str] | None = None
    model: str | None = None
    repeat: int = 1

    def check(self) -> None:
        for name, expression in (self.inputs or {}).items():
            check_expression(self.type, f"inputs.{name}", expression)

    def describe(self) -> dict[str, Any]:
        described = OfResult.describe(self)
        return {**described, "inputs": None if self.inputs is None else dict(self.inputs), "templates": [self.template]}

    def needs_target(self) -> bool:
        """Whether one of the expressions reads the target."""
        return any("target" in names_in(expression) for expression in (self.inputs or {}).values())

    def given(self, scored: Scored) -> dict[str, Any]:
        """The judge's inputs."""
        if self.inputs is None:
            return self.own_inputs(scored)
        return {name: evaluate(expression, scored) for name, expression in self.inputs.items()}

    def own_inputs(self, scored: Scored) -> dict[str, Any]:
        return {
            "question": question_of(scored.sample.inputs),
            "reference": written(scored.sample.target),
            "answer": self.text(scored),
        }

    async def ask(self, scored: Scored, inputs: Mapping[str, Any]) -> TaskResult | TaskError:
        options: dict[str, Any] = {}
        if self.model is not None:
            options["model"] = self.model
        if self.repeat != 1:
            options["repeat"] = self.repeat
        return await scored.evaluate(self.template, inputs, **options)

    async def score(self, scored: Scored) -> Score:
        if scored.sample.target is None and self.needs_target():
            return NO_TARGET
        answer = await self.ask(scored, self.given(scored))
        return judgement(answer, self.read, self.about())

    def about(self) -> dict[str, Any]:
        """Who judges, for the metadata."""
        return {"template": self.template, **({} if self.model is None else {"model": self.model})}

    def read(self, parsed: Any) -> Score:
        """The judge's parsed answer as a score. Raises: Unjudged."""
        raise NotImplementedError


def judgement(answer: TaskResult | TaskError, read: Callable[[Any], Score], about: Mapping[str, Any]) -> Score:
    """A judge's outcome as a score, with what it used, the model that was asked and the id of its task."""
    model = answer.notes.get("model")
    named = {"model": model} if isinstance(model, str) else {}
    metadata = {**about, **named, "task_ids": [] if answer.task_id is None else [answer.task_id]}
    if isinstance(answer, TaskError):
        return Score(None, None, error=f"the judge failed: {answer}", metadata=metadata, usage=answer.usage)
    try:
        score = read(answer.parsed_content)
    except Unjudged as error:
        return Score(None, None, error=f"the judge's answer is none: {error}", metadata=metadata, usage=answer.usage)
    return replace(score, metadata={**metadata, **score.metadata}, usage=answer.usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded(Grader):
    """Any template that judges: its answer is a boolean, a number, or an object with `correct` or `passed` (a boolean),
    `score` (a number, `out_of` being the highest), or both. Without `pass_at` the boolean decides, else 0.5."""

    type: ClassVar[str] = "graded"
    out_of: float = 1.0
    pass_at: float | None = None

    def check(self) -> None:
        Grader.check(self)
        if self.out_of <= 0:
            raise UsageError(f"{self.type}: out_of is {self.out_of!r}, expected a number above 0")

    def needs_target(self) -> bool:
        return self.inputs is None or Grader.needs_target(self)

    def read(self, parsed: Any) -> Score:
        fields: Mapping[str, Any] = cast("Mapping[str, Any]", parsed) if isinstance(parsed, Mapping) else {}
        correct = parsed if isinstance(parsed, bool) else fields.get("correct", fields.get("passed"))
        number = parsed if isinstance(parsed, int | float) and not isinstance(parsed, bool) else fields.get("score")
        if correct is None and number is None:
            raise Unjudged(f"expected the field score, correct or passed, got {type_of(parsed)} {_keys(parsed)}")
        if correct is not None and not isinstance(correct, bool):
            raise Unjudged(f"correct is {correct!r:.60}, expected true or false")
        value = float(bool(correct)) if number is None else points(number, self.out_of, "score") / self.out_of
        if correct is not None and value == float(not correct):
            raise Unjudged(f"it contradicts itself: correct is {str(correct).lower()} and score {number}")
        score = on_scale(value, 0.5 if self.pass_at is None else self.pass_at, explanation=_reason(fields))
        if correct is not None and self.pass_at is None:
            return replace(score, passed=correct)
        return score


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference(Graded):
    """A judge compares the text with the target: `question`, `reference` and `answer` are its inputs."""

    type: ClassVar[str] = "reference"
    template: str = "grade_against_reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric(Grader):
    """A judge gives points for each criterion; the value is their share of `out_of`, the sum of all highest points.

    `rubric` is a table of criteria to highest points, or a text that says `(4 points)` or the like for each; without
    one, the target is the rubric. `out_of` is needed where the text does not say the points. The inputs of the
    template are `rubric`, and `task` and `work`, or what `inputs` says in their place. The sum is made here, not
    taken from the judge.

    Criteria of a table are told by their names, each judged once, in any order; case, spaces and punctuation do not
    matter. Those of a text are told by their places.
    """

    type: ClassVar[str] = "rubric"
    template: str = "grade_with_rubric"
    rubric: str | Mapping[str, float] | None = None
    out_of: float | None = None
    pass_at: float = 0.5

    def check(self) -> None:
        Grader.check(self)
        if self.rubric is not None:
            _scale(self.rubric, self.out_of)

    def needs_target(self) -> bool:
        return self.rubric is None or Grader.needs_target(self)

    def own_inputs(self, scored: Scored) -> dict[str, Any]:
        return {"task": question_of(scored.sample.inputs), "work": self.text(scored)}

    def given(self, scored: Scored) -> dict[str, Any]:
        rubric = scored.sample.target if self.rubric is None else self.rubric
        return {"rubric": _rubric_text(rubric), **Grader.given(self, scored)}

    async def score(self, scored: Scored) -> Score:
        rubric = scored.sample.target if self.rubric is None else self.rubric
        if rubric is None:
            return NO_TARGET
        most, highest = _scale(rubric, self.out_of)
        names = list(cast("Mapping[str, float]", rubric)) if isinstance(rubric, Mapping) else None
        answer = await self.ask(scored, self.given(scored))
        return judgement(answer, partial(self._read, most=most, highest=highest, names=names), self.about())

    def _read(self, parsed: Any, most: float, highest: list[float] | None, names: list[str] | None) -> Score:
        criteria: Any = cast("Mapping[str, Any]", parsed).get("criteria") if isinstance(parsed, Mapping) else None
        if not isinstance(criteria, list) or not criteria:
            raise Unjudged(f"expected the field criteria, got {type_of(parsed)} {_keys(parsed)}")
        rows: list[Mapping[str, Any]] = [
            cast("Mapping[str, Any]", row) if isinstance(row, Mapping) else {} for row in cast("list[Any]", criteria)
        ]
        if names:
            rows = _by_name(rows, names)
        if highest is not None and len(rows) != len(highest):
            raise Unjudged(f"it has {len(rows)} criteria, the rubric {len(highest)}")
        limits = [most] * len(rows) if highest is None else highest
        given = [points(row.get("points"), limit, "points") for row, limit in zip(rows, limits, strict=True)]
        if sum(given) > most:
            raise Unjudged(f"it gave {sum(given):g} points of {most:g}")
        called = names or [str(row.get("criterion", "")) for row in rows]
        return on_scale(
            sum(given) / most, self.pass_at, answer=f"{sum(given):g} of {most:g}", explanation=_reason(parsed),
            metadata={"criteria": [{"criterion": n, "points": p} for n, p in zip(called, given, strict=True)]},
        )  # fmt: skip


def _by_name(rows: list[Mapping[str, Any]], names: list[str]) -> list[Mapping[str, Any]]:
    """The judge's rows in the order of the rubric. Raises: Unjudged, unless each criterion is there once."""
    exact = {name.strip(): name for name in names}
    folded: dict[str, list[str]] = {}
    for name in names:
        folded.setdefault(_folded(name), []).append(name)
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        said = str(row.get("criterion", "")).strip()
        spoken = (said, _WITH_POINTS.sub("", said).strip())
        # Names such as "C" and "C#" are one without their punctuation: they have to be written as they are.
        near = [folded.get(_folded(each), []) for each in spoken]
        meant = [exact[each] for each in spoken if each in exact] or [each[0] for each in near if len(each) == 1]
        name = meant[0] if meant else None
        if name is None:
            raise Unjudged(f"the rubric has no criterion {said!r:.60}; it has {', '.join(names)[:200]}")
        if name in found:
            raise Unjudged(f"it judges {name!r:.60} twice")
        found[name] = row
    if missing := [name for name in names if name not in found]:
        raise Unjudged(f"it does not judge {', '.join(missing)[:200]}")
    return [found[name] for name in names]


def _folded(name: str) -> str:
    """A criterion's name without case, spaces and punctuation."""
    text = unicodedata.normalize("NFKC", name).casefold()
    return "".join(c for c in text if unicodedata.category(c)[0] not in "PZC")


def _rubric_text(rubric: Any) -> str:
    if isinstance(rubric, Mapping):
        rows = cast("Mapping[str, float]", rubric).items()
        return "\n".join(f"{name} ({n:g} {'point' if n == 1 else 'points'})" for name, n in rows)
    return written(rubric)


def _scale(rubric: Any, out_of: float | None) -> tuple[float, list[float] | None]:
    """The highest sum, and the highest points of each criterion where the rubric says them.

    Raises: UsageError, where it says none and there is no `out_of`, or the two differ.
    """
    each: list[float] | None
    if isinstance(rubric, Mapping):
        each = []
        for name, most in cast("Mapping[str, Any]", rubric).items():
            if isinstance(most, bool) or not isinstance(most, int | float) or not most > 0:
                raise UsageError(f"rubric: {name!r} has {most!r:.40} points, expected a number above 0")
            each.append(float(most))
    elif isinstance(rubric, str):
        each = [float(number) for number in _POINTS.findall(rubric)] or None
    else:
        raise UsageError(f"a rubric is text, or a table of criteria to points, not {type_of(rubric)}")
    if out_of is not None and out_of <= 0:
        raise UsageError(f"rubric: out_of is {out_of!r}, expected a number above 0")
    if not each:
        if out_of is None:
            raise UsageError("rubric: it does not say '(N points)' for its criteria; give out_of, the highest sum")
        return out_of, None
    if out_of is not None and out_of != sum(each):
        raise UsageError(f"rubric: its points come to {sum(each):g}, and out_of is {out_of:g}; leave one of them out")
    return sum(each), each


def points(value: Any, most: float, what: str) -> float:
    """A number of a judge's answer. Raises: Unjudged, for what is none in [0, most]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise Unjudged(f"{what} is {value!r:.60}, expected a number from 0 to {most:g}")
    return float(value)


def _reason(fields: Any) -> str:
    if not isinstance(fields, Mapping):
        return ""
    return next((str(fields[name]) for name in _REASONS if fields.get(name)), "")


def _keys(parsed: Any) -> str:
    return f"with {', '.join(map(str, cast('Mapping[str, Any]', parsed)))[:120]}" if isinstance(parsed, Mapping) else ""
