"""`numeric`: a number in the text equals the target within a tolerance."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Literal, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import NO_TARGET, ScorerInput, binary_score
from evaluator.batch.scorers.prose_numbers import exact_number, find_numbers, is_close
from evaluator.batch.scorers.result_scorer import ResultScorer, shown
from evaluator.errors import UsageError
from evaluator.language.types import describe as type_of

_BOXED = re.compile(r"\\boxed\s?\{((?:[^{}]|\{[^{}]{0,200}\}){0,200})\}")
_LABELLED = re.compile(
    r"\banswer\b[*_`\"' \t]{0,8}(?:is|are|was|[:=：])[*_`\"'$\s]{0,8}(?=([^\n]{1,200}))", re.IGNORECASE
)
# The text after these is not the answer: a reason, a remark, the next sentence.
_ENDS = re.compile(r"\b(?:because|since|as)\b|;|\s\(|[.!?]\s", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericScorer(ResultScorer):
    """The number in the text, or the parsed value if it is a number, equals the target. The number is the one in the
    last `\\boxed{}` with a number, else the first after the last `Answer:` or `the answer is` with a number (in `3 + 4
    = 7` the 7), else the last in the text (`take="first"`: the first). `abs_tol` is in the target's unit, `rel_tol` a
    share of the target; the wider one applies. `decimal` is the decimal point of the text; a target always has a point.
    `percent="number"` reads 50 % as 50 and not as 0.5, in the text and in the target."""

    type: ClassVar[str] = "numeric"
    abs_tol: float = 0.0
    rel_tol: float = 0.0
    take: Literal["last", "first"] = "last"
    decimal: Literal[".", ","] = "."
    percent: Literal["fraction", "number"] = "fraction"

    def check(self) -> None:
        if self.abs_tol < 0 or self.rel_tol < 0:
            raise UsageError("numeric: a tolerance has to be 0 or more")

    async def score(self, scored: ScorerInput) -> Score:
        target = scored.sample.target
        wanted: list[Any] = cast("list[Any]", list(target)) if isinstance(target, list | tuple) else [target]
        if target is None or not wanted:
            return NO_TARGET
        expected = [self._target(item) for item in wanted]
        found, answer = self._found(self.value(scored))
        if found is None:
            return binary_score(False, explanation="no number in the answer")
        if any(is_close(number, found, self.abs_tol, self.rel_tol) for number in expected):
            return binary_score(True, answer)
        hint = "" if "%" not in answer or self.percent == "number" else f", read as {found}"
        return binary_score(False, answer, f"expected {' or '.join(map(str, wanted[:3]))}, found {shown(answer)}{hint}")

    def _target(self, value: Any) -> Decimal:
        if isinstance(value, str):
            found = [number for number, _ in find_numbers(value, ".", self.percent)]
            if len(found) == 1:
                return found[0]
            raise UsageError(
                f"the target {shown(value)} contains {len(found)} numbers, expected one, with a decimal point"
            )
        number = exact_number(value)
        if number is None:
            raise UsageError(f"the target is {value!r:.80} ({type_of(value)}), expected a number")
        return number

    def _found(self, value: Any) -> tuple[Decimal | None, str]:
        number = exact_number(value)
        if number is not None:
            return number, str(value)
        if not isinstance(value, str):
            return None, ""
        for part in _answers(value):
            if found := self._in(part, "first"):
                return found
        return self._in(value, self.take) or (None, "")

    def _in(self, text: str, take: str) -> tuple[Decimal, str] | None:
        numbers = find_numbers(text, self.decimal, self.percent)
        if take == "first":
            return next(numbers, None)
        last = deque(numbers, maxlen=1)
        return last[0] if last else None


def _answers(text: str) -> Iterator[str]:
    """The parts of a text that state its answer, the most certain first."""
    for boxed in reversed(_BOXED.findall(text)):
        yield from _last_sides(boxed)
    for labelled in reversed(_LABELLED.findall(text)):
        yield from _last_sides(_ENDS.split(labelled, maxsplit=1)[0])


def _last_sides(text: str) -> Iterator[str]:
    """The text after the last equals sign, then the whole text."""
    if "=" in text:
        yield text.rpartition("=")[2]
    yield text
