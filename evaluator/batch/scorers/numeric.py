"""`numeric`: a number in the text held against the target, with a tolerance."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Literal, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import NO_TARGET, Scored, yes_or_no
from evaluator.batch.scorers.numbers import exact_number, find_numbers, is_close
from evaluator.batch.scorers.reading import OfResult, shown
from evaluator.binding.types import describe as type_of
from evaluator.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Numeric(OfResult):
    """The last number of the text (`take="first"`: the first), or the parsed value where that is a number, is the
    target's. `abs_tol` is in the target's unit, `rel_tol` a share of it; the wider one holds. `decimal` is the decimal
    point of text. `percent="number"` reads 50 % as 50 and not as 0.5, in the text and in the target."""

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
            found = [number for number, _ in find_numbers(value, self.decimal, self.percent)]
            if len(found) == 1:
                return found[0]
            raise UsageError(f"the target {shown(value)} holds {len(found)} numbers, expected one")
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
        numbers = find_numbers(value, self.decimal, self.percent)
        if self.take == "first":
            return next(numbers, (None, ""))
        last = deque(numbers, maxlen=1)
        return last[0] if last else (None, "")
