"""`graded`, `reference`: a template judges, in grades or as a score.

A judge that fails, or whose answer is not a valid judgement, is an error of the scorer, never a
zero. Its usage is counted in either case.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Self, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.builtin_scorer import (
    ResultScorer,
    ScoredExpression,
    evaluate,
    names_in,
    question_of,
    text_or_json,
)
from evaluator.batch.scorers.contract import NO_TARGET, ScorerInput, graded_score, run_scorer
from evaluator.errors import UsageError
from evaluator.errors.results import Outcome, TaskError, TaskResult, Usage
from evaluator.fields import Names, Positive, Range, Share
from evaluator.language.scopes import describe as type_of
from evaluator.lazy_dataclass import frozen
from evaluator.models.logprobs import TokenLogprob, from_rows

UNSCORED = "unscored"
MAX_JUDGE_EPOCHS = 100
_NOT_IN_NAME = re.compile(r"[^\w.-]")
# A capital letter that stands alone, not the word in "A good answer".
_LETTER = re.compile(r"(?<![\w'’])([A-Z])(?![\w'’]|\s+(?!(?:is|was)\b)[a-z])")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class InvalidJudgement(Exception):
    """A judge's answer is not a valid judgement."""


def check_grades(kind: str, grades: Mapping[str, float | str]) -> None:
    """Raises: UsageError, unless there are 2 to 26 different grades with values in [0, 1] or
    "unscored".
    """
    if not 2 <= len({_plain(name) for name in grades} - {""}) == len(grades) <= len(_LETTERS):
        raise UsageError(
            f"{kind}: grades has {len(grades)} names, expected 2 to {len(_LETTERS)} different ones"
        )
    for name, value in grades.items():
        if value != UNSCORED and (isinstance(value, str) or not 0 <= value <= 1):
            raise UsageError(
                f"{kind}: the grade {name!r} is {value!r}, expected a number in [0, 1] or "
                f"{UNSCORED!r}"
            )


def find_grade(answer: Any, names: Sequence[str]) -> str:
    """The one grade that an answer names, in its last line or else anywhere: by its name, or by a
    capital letter.

    Raises: InvalidJudgement, if it names none or several.
    """
    if not isinstance(answer, str):
        raise InvalidJudgement(
            f"expected a grade ({', '.join(names)[:120]}), got {type_of(answer)}"
        )
    lines = [line for line in answer.splitlines() if line.strip()]
    for text in [*lines[-1:], answer]:
        found = _named(text, names)
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidJudgement(f"it names several grades: {', '.join(found)[:120]}")
    raise InvalidJudgement(
        f"it names none of the grades {', '.join(names)[:120]}: {answer.strip()[-80:]!r}"
    )


def _named(text: str, names: Sequence[str]) -> list[str]:
    rest = f" {_plain(text)} "
    found = list[str]()
    for name in sorted(names, key=len, reverse=True):
        if len(name.strip()) > 1 and f" {_plain(name)} " in rest:
            found.append(name)
            rest = rest.replace(f" {_plain(name)} ", " | ")
    if found:
        return found
    letter = re.fullmatch(
        r"[\W_]*(?:(?:grade|answer|verdict)\W+)?([A-Za-z])[\W_]*", text.strip(), re.IGNORECASE
    )
    by_letter = {name.strip().upper(): name for name in names if len(name.strip()) == 1}
    by_letter = by_letter or dict(zip(_LETTERS, names, strict=False))
    if letter is None:
        letters = _LETTER.findall(text)
    else:
        letters = [letter[1].upper()]
    return list(dict.fromkeys(by_letter[each] for each in letters if each in by_letter))


def _plain(text: str) -> str:
    """A name without case and punctuation: `NOT_ATTEMPTED` and `Not attempted.` are equal."""
    return " ".join(re.sub(r"[\W_]+", " ", text).casefold().split())


_REASONS = ("reason", "explanation", "feedback", "advice")
# As FastChat reads the ratings of MT-bench's judges.
_RATING = re.compile(r"\[\[(\d{1,9}(?:\.\d{0,9})?)\]\]")
_PLAIN_RATING = re.compile(r"\[(\d{1,9}(?:\.\d{0,9})?)\]")
_SCORE = re.compile(r"(?:\"score\"\s*:|\A)\s*(\d+(?:\.\d+)?)")
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*")


@frozen(kw_only=True)
class ModelGradedScorer(ResultScorer):
    """A scorer that asks a judge template. `model` answers instead of the role `grader`; `repeat`
    makes otherwise equal calls distinct. `inputs` gives the template's inputs as expressions over
    `output`, `parsed`, `turns`, `target`, `inputs` and `metadata`; the default is the scorer's own
    inputs. `asks` is how often one score asks the template.

    `judges` are several models (ids, or roles) in place of `model`; each is asked `judge_epochs`
    times. The value is then the mean of theirs, and the score passed if most of them passed it: see
    `combined_score`.
    """

    asks: ClassVar[int] = 1

    template: str
    inputs: Mapping[str, ScoredExpression] | None = None
    model: str | None = None
    repeat: int = 1
    judges: Names | None = None
    judge_epochs: Annotated[int, Range(least=1, most=MAX_JUDGE_EPOCHS)] = 1

    def describe(self) -> dict[str, Any]:
        described = ResultScorer.describe(self)
        # In a manifest, `judges` are the settings of judges. Without several, a scorer is described
        # as it was before it could have them.
        judges = described.pop("judges")
        if judges is not None:
            described["judge_models"] = judges
        if self.judge_epochs == 1:
            del described["judge_epochs"]
        return {**described, "templates": [self.template]}

    def members(self) -> list[Self]:
        """A scorer for each time that a judge is asked; itself alone, if that is once."""
        models = self.judges or (self.model,)
        if len(models) * self.judge_epochs == 1 and self.judges is None:
            return [self]
        members: list[Self] = []
        for model in models:
            if model is None:
                label = "judge"
            else:
                label = _NOT_IN_NAME.sub("_", model)[-50:]
            for repeat in range(1, self.judge_epochs + 1):
                if self.judge_epochs > 1:
                    name = f"{label}.{repeat}"
                else:
                    name = label
                member = replace(
                    self, name=name, model=model, repeat=repeat, judges=None, judge_epochs=1
                )
                members.append(member)
        return members

    def needs_target(self) -> bool:
        """Whether an expression reads the target."""
        return any("target" in names_in(expression) for expression in (self.inputs or {}).values())

    def judge_inputs(self, scored: ScorerInput) -> dict[str, Any]:
        if self.inputs is None:
            return self.own_inputs(scored)
        return {name: evaluate(expression, scored) for name, expression in self.inputs.items()}

    def own_inputs(self, scored: ScorerInput) -> dict[str, Any]:
        return {
            "question": question_of(scored.sample.inputs),
            "reference": text_or_json(scored.sample.target),
            "answer": self.text(scored),
        }

    async def ask(self, scored: ScorerInput, inputs: Mapping[str, Any]) -> Outcome:
        options: dict[str, Any] = {}
        if self.model is not None:
            options["model"] = self.model
        if self.repeat != 1:
            options["repeat"] = self.repeat
        return await scored.evaluate(self.template, inputs, **options)

    async def score(self, scored: ScorerInput) -> Score:
        members = self.members()
        if members == [self]:
            return await self.judge(scored)
        given = await asyncio.gather(*(run_scorer(member, scored) for member in members))
        scores = {member.name: score for member, score in zip(members, given, strict=True)}
        return combined_score(scores, len(members) // 2 + 1)

    async def judge(self, scored: ScorerInput) -> Score:
        """The score of one judge that is asked once."""
        if scored.sample.target is None and self.needs_target():
            return NO_TARGET
        answer = await self.ask(scored, self.judge_inputs(scored))
        return self.read_answer(answer, scored.sample.target)

    def read_answer(self, answer: Outcome, target: Any) -> Score:
        """The score that a judge's answer gives a sample with this target."""
        return judgement(answer, self.read, about=self.about())

    def about(self) -> dict[str, Any]:
        """The judge, for the metadata."""
        return {"template": self.template, **({} if self.model is None else {"model": self.model})}

    def read(self, parsed: Any) -> Score:
        """The judge's parsed answer as a score. Raises: InvalidJudgement."""
        raise NotImplementedError


def judgement(answer: Outcome, read: Callable[[Any], Score], about: Mapping[str, Any]) -> Score:
    """A judge's answer as a score, with its usage, the model that was asked and the id of its
    task.
    """
    model = answer.notes.get("model")
    if isinstance(model, str):
        named = {"model": model}
    else:
        named = {}
    metadata = {**about, **named, "task_ids": [] if answer.task_id is None else [answer.task_id]}
    if isinstance(answer, TaskError):
        return Score(
            None, None, error=f"the judge failed: {answer}", metadata=metadata, usage=answer.usage
        )
    try:
        score = read(answer.parsed_content)
    except InvalidJudgement as error:
        return Score(
            None,
            None,
            error=f"the judge's answer is not a judgement: {error}",
            metadata=metadata,
            usage=answer.usage,
        )
    return replace(score, metadata={**metadata, **score.metadata}, usage=answer.usage)


def combined_score(scores: Mapping[str, Score], quorum: int) -> Score:
    """The score of several judges, by name: the mean of their values; passed if most of them passed
    it, None for a tie. A judge with an error, or one that cannot judge, has no verdict; fewer than
    `quorum` verdicts are an error.

    `metadata`: `votes` (whether it passed) and `values` by judge, `agreement` (the share of votes
    with the majority, None for a tie), `errors` by judge, `models` (the model asked), `flipped`
    (whether a verdict changed with the order of two candidates), `task_ids`.
    """
    given = list(scores.values())
    errors = {name: score.error for name, score in scores.items() if score.error is not None}
    values = {name: score.value for name, score in scores.items() if score.value is not None}
    votes = {name: score.passed for name, score in scores.items()}
    metadata: dict[str, Any] = {
        "votes": votes,
        "values": values,
        "agreement": None,
        "errors": errors,
        "task_ids": [task for score in given for task in score.metadata.get("task_ids", ())],
    }
    for name, key in (("models", "model"), ("flipped", "flipped")):
        known = {judge: one.metadata[key] for judge, one in scores.items() if key in one.metadata}
        if known:
            metadata[name] = known
    if any(score.metadata.get("is_grade") for score in given):
        metadata["is_grade"] = True
    shared: dict[str, Any] = {
        "metadata": metadata,
        "usage": sum((score.usage for score in given), Usage()),
    }
    if len(values) < quorum:
        if not errors:
            return Score(None, None, explanation=given[0].explanation, **shared)
        name, error = next(iter(errors.items()))
        count = f"{len(values)} of {len(given)} judges voted, {quorum} are needed"
        return Score(None, None, error=f"{count}; {name}: {error}", **shared)
    passes = [vote for vote in votes.values() if vote is not None]
    yes = sum(passes)
    no = len(passes) - yes
    answers = Counter(score.answer for score in given if score.answer is not None)
    explanation = f"{yes} for, {no} against"
    if len(given) > len(passes):
        explanation += f", {len(given) - len(passes)} without a vote"
    if yes != no:
        metadata["agreement"] = max(yes, no) / len(passes)
    return Score(
        math.fsum(values.values()) / len(values),
        None if yes == no else yes > no,
        answer=answers.most_common(1)[0][0] if answers else None,
        explanation=explanation,
        **shared,
    )


@frozen(kw_only=True)
class GradedScorer(ModelGradedScorer):
    """Any judge template: its answer is a boolean, a number, or an object with `correct` or
    `passed` (a boolean), `score` (a number, at most `out_of`), or both; or a text with ratings such
    as `[[7]]`, where the first counts. Without `pass_at` the boolean decides, else 0.5.

    With `by_probability` the score is the mean of the numbers that the judge may have given, by the
    probabilities of their tokens; the template needs `logprobs`, and a score of one token.

    `grades` is a table of grades to values in [0, 1] or "unscored"; the answer is then one of these
    grades: its name, or its letter (A for the first), alone, in the last line, or in the field
    `grade` of an object. The summary counts each grade.
    """

    type: ClassVar[str] = "graded"
    out_of: Positive = 1.0
    pass_at: Share | None = None
    grades: Mapping[str, float | str] | None = None
    by_probability: bool = False

    def check(self) -> None:
        if self.grades is not None:
            check_grades(self.type, self.grades)
            if self.by_probability:
                raise UsageError(f"{self.type}: by_probability is for a score, not for grades")

    def describe(self) -> dict[str, Any]:
        described = ModelGradedScorer.describe(self)
        if not self.by_probability:
            del described["by_probability"]  # as before it could be set
        return described

    def read_answer(self, answer: Outcome, target: Any) -> Score:
        if isinstance(answer, TaskResult) and answer.parsed_content is None:
            answer = replace(answer, parsed_content=answer.content)
        if self.grades is None:
            if self.by_probability:
                read = partial(self._read_weighted, answer)
            else:
                read = self.read
            return judgement(answer, read, about=self.about())
        return judgement(answer, self._read_grade, about={**self.about(), "is_grade": True})

    def _read_weighted(self, answer: Outcome, parsed: Any) -> Score:
        score = self.read(parsed)
        tokens = from_rows(answer.notes.get("logprobs"))
        value = _expected_number(tokens, self.out_of) / self.out_of
        weighted = graded_score(
            value,
            0.5 if self.pass_at is None else self.pass_at,
            explanation=score.explanation,
            answer=f"{value * self.out_of:.4g} of {self.out_of:g}",
        )
        return replace(weighted, metadata={"answered": score.value})

    def _read_grade(self, parsed: Any) -> Score:
        grades = self.grades or {}
        fields = fields_of(parsed)
        name = find_grade(fields.get("grade") if fields else parsed, list(grades))
        value = grades[name]
        if isinstance(value, str):
            return Score(None, None, answer=name, explanation=reason_of(fields) or f"graded {name}")
        return graded_score(
            value,
            0.5 if self.pass_at is None else self.pass_at,
            answer=name,
            explanation=reason_of(fields),
        )

    def needs_target(self) -> bool:
        return self.inputs is None or ModelGradedScorer.needs_target(self)

    def read(self, parsed: Any) -> Score:
        if isinstance(parsed, str):
            rating = _RATING.search(parsed) or _PLAIN_RATING.search(parsed)
        else:
            rating = None
        if rating is not None:
            parsed = float(rating[1])
        fields = fields_of(parsed)
        if isinstance(parsed, bool):
            correct = parsed
        else:
            correct = fields.get("correct", fields.get("passed"))
        if isinstance(parsed, int | float) and not isinstance(parsed, bool):
            number = parsed
        else:
            number = fields.get("score")
        if correct is None and number is None:
            raise InvalidJudgement(
                "expected the field score, correct or passed, or a rating such as [[7]], got "
                f"{shape_of(parsed)}"
            )
        if correct is not None and not isinstance(correct, bool):
            raise InvalidJudgement(f"correct is {correct!r:.60}, expected true or false")
        if number is None:
            value = float(bool(correct))
        else:
            value = points(number, self.out_of, what="score") / self.out_of
        if correct is not None and value == float(not correct):
            raise InvalidJudgement(
                f"it contradicts itself: correct is {str(correct).lower()} and score {number}"
            )
        score = graded_score(
            value, 0.5 if self.pass_at is None else self.pass_at, explanation=reason_of(fields)
        )
        if correct is not None and self.pass_at is None:
            return replace(score, passed=correct)
        return score


def _expected_number(tokens: Sequence[TokenLogprob], most: float) -> float:
    """The mean of the numbers up to `most` that the judge may have given as its score, by
    their probabilities.

    Raises: InvalidJudgement, if the answer has no log probabilities, or its score is not one token.
    """
    if not tokens:
        raise InvalidJudgement(
            "it has no log probabilities: set logprobs in the <handler> of the judge's template"
        )
    text = "".join(token.token for token in tokens)
    found = _RATING.search(text) or _PLAIN_RATING.search(text) or _SCORE.search(text)
    at = 0 if found is None else found.start(1)
    for token in tokens if found is not None else ():
        if at < len(token.token):
            likely = {**token.top, token.token: token.logprob or 0.0}
            numbers: list[tuple[float, float]] = []
            for other, logprob in likely.items():
                number = _NUMBER.fullmatch(other)
                if number is not None and float(number[1]) <= most:
                    numbers.append((math.exp(logprob), float(number[1])))
            own = _NUMBER.fullmatch(token.token)
            if own is None or found is None or float(own[1]) != float(found[1]):
                break
            weight = math.fsum(share for share, _ in numbers)
            return math.fsum(share * number for share, number in numbers) / weight
        at -= len(token.token)
    raise InvalidJudgement("its score is not a number of one token")


@frozen(kw_only=True)
class ReferenceScorer(GradedScorer):
    """A judge compares the text with the target: `question`, `reference` and `answer` are its
    inputs.
    """

    type: ClassVar[str] = "reference"
    template: str = "grade_against_reference"


def points(value: Any, most: float, what: str) -> float:
    """A number of a judge's answer. Raises: InvalidJudgement, unless it is a number in [0,
    most].
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise InvalidJudgement(f"{what} is {value!r:.60}, expected a number from 0 to {most:g}")
    return float(value)


def reason_of(fields: Mapping[str, Any]) -> str:
    """What a judge gives as the reason of its answer."""
    return next((str(fields[name]) for name in _REASONS if fields.get(name)), "")


def fields_of(parsed: Any) -> Mapping[str, Any]:
    """An object of a judge's answer; empty for any other value."""
    if isinstance(parsed, Mapping):
        return cast("Mapping[str, Any]", parsed)
    return {}


def shape_of(parsed: Any) -> str:
    """The type of a judge's answer and its keys, for a message."""
    keys = ", ".join(map(str, fields_of(parsed)))
    if keys:
        return f"{type_of(parsed)} with {keys[:120]}"
    return type_of(parsed)
