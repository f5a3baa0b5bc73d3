"""`numeric`: a number in the text held against the target, with a tolerance."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Literal, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import NO_TARGET, Scored, yes_or_no
from evaluator.batch.scorers.numbers import exact_number, find_numbers, is_close
from evaluator.batch.scorers.reading import OfResult, shown
from evaluator.binding.types import describe as type_of
from evaluator.errors import UsageError

_BOXED = re.compile(r"\\boxed\s?\{((?:[^{}]|\{[^{}]{0,200}\}){0,200})\}")
_LABELLED = re.compile(
    r"\banswer\b[*_`\"' \t]{0,8}(?:is|are|was|[:=：])[*_`\"'$\s]{0,8}(?=([^\n]{1,200}))", re.IGNORECASE
)
# What comes after is no more the answer: a reason, a remark, the next sentence.
_ENDS = re.compile(r"\b(?:because|since|as)\b|;|\s\(|[.!?]\s", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numeric(OfResult):
    """The number that the text answers with, or the parsed value where that is a number, is the target's. It is the one
    in the last `\\boxed{}` that has one, else the first after the last `Answer:` or `the answer is` that has one (in
    `3 + 4 = 7` the 7), else the last of the text (`take="first"`: the first). `abs_tol` is in the target's unit,
    `rel_tol` a share of it; the wider one holds. `decimal` is the decimal point of the text; a target is written with a
    point. `percent="number"` reads 50 % as 50 and not as 0.5, in the text and in the target."""

    type: ClassVar[str] = "numeric"
    abs_tol: float = 0.0
    rel_tol: float = 0.0
    take: Literal["last", "first"] = "last"
    decimal: Literal[".", ","] = "."
    percent: Literal["fraction", "number"] = "fraction"

    def check(self) -> None:
        if self.abs_tol < 0 or self.rel_tol < 0:
            raise UsageError("numeric: a tolerance is 0 or more")

    async def score(self, scored: Scored) -> Score:
        target = scored.sample.target
        wanted: list[Any] = cast("list[Any]", list(target)) if isinstance(target, list | tuple) else [target]
        if target is None or not wanted:
            return NO_TARGET
        expected = [self._target(item) for item in wanted]
        found, answer = self._found(self.value(scored))
        if found is None:
            return yes_or_no(False, explanation="no number in the answer")
        if any(is_close(number, found, self.abs_tol, self.rel_tol) for number in expected):
            return yes_or_no(True, answer)
        hint = "" if "%" not in answer or self.percent == "number" else f", read as {found}"
        return yes_or_no(False, answer, f"expected {' or '.join(map(str, wanted[:3]))}, found {shown(answer)}{hint}")

    def _target(self, value: Any) -> Decimal:
        if isinstance(value, str):
            found = [number for number, _ in find_numbers(value, ".", self.percent)]
            if len(found) == 1:
                return found[0]
            raise UsageError(
                f"the target {shown(value)} holds {len(found)} numbers, expected one, with a point for its decimals"
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
    """The parts of a text that say what its answer is, the surest first."""
    for boxed in reversed(_BOXED.findall(text)):
        yield from _last_sides(boxed)
    for labelled in reversed(_LABELLED.findall(text)):
        yield from _last_sides(_ENDS.split(labelled, maxsplit=1)[0])


def _last_sides(text: str) -> Iterator[str]:
    """What stands after the last equals sign, then all of it."""
    if "=" in text:
        yield text.rpartition("=")[2]
    yield text
