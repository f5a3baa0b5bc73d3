"""`numeric`: a number in the text equals the target within a tolerance."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any, ClassVar, Literal, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import NO_TARGET, ScorerInput, binary_score
from evaluator.batch.scorers.prose_numbers import FoundNumber, exact_number, find_numbers, is_close
from evaluator.batch.scorers.result_scorer import ResultScorer, shown
from evaluator.errors import UsageError
from evaluator.language.types import describe as type_of
from evaluator.patterns import Pattern

_BOXED = Pattern(r"\\boxed\s?\{((?:[^{}]|\{[^{}]{0,200}\}){0,200})\}")
_LABELLED = Pattern(
    r"\banswer\b[*_`\"' \t]{0,8}(?:is|are|was|[:=：])[*_`\"'$\s]{0,8}(?=([^\n]{1,200}))",
    "i",
)
_LM_EVAL = Pattern(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_UNIT = r"(?:\s?(?:%|°\w?|[^\W\d_]{1,15}))?"
_HEDGE = r"(?:\s(?:maybe|perhaps|possibly|even|about|around|else|rather))?\s?[-−]?[$€£¥]?"
_OR = Pattern(rf"{_UNIT}\s?,?\s?\bor\b{_HEDGE}\s?", "i")
_TO = Pattern(rf"{_UNIT}(?:\sto\s{_HEDGE}|\s?[–—]\s?|\s[-−]\s|[-−])[$€£¥]?", "i")
_AND = Pattern(rf"{_UNIT}\sand{_HEDGE}\s?", "i")
_BETWEEN = Pattern(r"\bbetween\b[\s$€£¥*_`]{0,8}\Z", "i")
_FROM = Pattern(r"\bfrom\b[\s$€£¥*_`]{0,8}\Z", "i")
_TEXT = Pattern(r"\\(?:text|mathrm|mbox)\{([^{}]{0,40})\}")
_EXPRESSION = Pattern(r"[\\^_=<>√π∞*+{}\[\]()]|\b(?:pi|sqrt|[xyz])\b|\binf", "i")
# The text after these is not the answer: a reason, a remark, the next sentence.
_ENDS = Pattern(r"\b(?:because|since|as)\b|;|\s\(|[.!?]\s", "i")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericScorer(ResultScorer):
    """The number in the text, or the parsed value if it is a number, equals the target. The number is the one in the
    last `\\boxed{}` with a number, else the first after the last `Answer:` or `the answer is` with a number (in `3 + 4
    = 7` the 7), else the last in the text (`take="first"`: the first). `abs_tol` is in the target's unit, `rel_tol` a
    share of the target; the wider one applies. Two different numbers as one answer (`70 or 71`, `20-25`) fail, unless
    the target is a range (`20-25`, `between 20 and 25`): any number or range in it is right. `decimal` is the decimal
    point of the text; a target always has a point. `percent="number"` reads 50 % as 50 and not as 0.5, in the text and
    in the target. `strict="lm_eval"` reads as lm-eval's `flexible-extract` of GSM8K: the last number, compared as a
    text without commas, dollar signs and a final point."""

    type: ClassVar[str] = "numeric"
    abs_tol: float = 0.0
    rel_tol: float = 0.0
    take: Literal["last", "first"] = "last"
    decimal: Literal[".", ","] = "."
    percent: Literal["fraction", "number"] = "fraction"
    strict: Literal["lm_eval"] | None = None

    def check(self) -> None:
        if self.abs_tol < 0 or self.rel_tol < 0:
            raise UsageError("numeric: a tolerance has to be 0 or more")

    async def score(self, scored: ScorerInput) -> Score:
        target = scored.sample.target
        wanted: list[Any] = (
            cast("list[Any]", list(target)) if isinstance(target, list | tuple) else [target]
        )
        if target is None or not wanted:
            return NO_TARGET
        if self.strict is not None:
            return _lm_eval_score(self.text(scored), [str(item) for item in wanted])
        expected = [self._target(item) for item in wanted]
        found = self._found(self.value(scored))
        if found is None:
            return binary_score(False, explanation="no number in the answer")
        values, answer = found
        for low, high in expected:
            if (
                low == high
                and len(values) == 1
                and is_close(low, values[0], abs_tol=self.abs_tol, rel_tol=self.rel_tol)
            ):
                return binary_score(True, answer)
            if low != high and low <= min(values) and max(values) <= high:
                return binary_score(True, answer)
        if "%" not in answer or self.percent == "number":
            hint = ""
        else:
            hint = f", read as {values[0]}"
        if len(values) > 1:
            hint = ": several numbers as one answer"
        else:
            hint = hint
        return binary_score(
            False,
            answer,
            explanation=f"expected {' or '.join(map(str, wanted[:3]))}, found "
            f"{shown(answer)}{hint}",
        )

    def check_target(self, target: Any) -> None:
        """As `BuiltinScorer.check_target`."""
        for item in (
            cast("list[Any]", list(target)) if isinstance(target, list | tuple) else [target]
        ):
            self._target(item)

    def _target(self, value: Any) -> tuple[Decimal, Decimal]:
        """The lowest and the highest right number, usually equal."""
        if isinstance(value, str):
            numbers = list(find_numbers(value, ".", percent=self.percent))
            if (
                len(numbers) == 2
                and _are_one_answer(value, *numbers)
                and numbers[0].value < numbers[1].value
            ):
                return numbers[0].value, numbers[1].value
            if len(numbers) != 1:
                raise UsageError(
                    f"the target {shown(value)} contains {len(numbers)} numbers, expected one, "
                    "with a decimal point, "
                    "or a range such as 20-25; for expressions use the scorer math"
                )
            if not _is_plain(value, numbers[0]):
                raise UsageError(
                    f"the target {shown(value)} is not a plain number; for expressions, intervals "
                    "and sets use the "
                    "scorer math"
                )
            return numbers[0].value, numbers[0].value
        number = exact_number(value)
        if number is None:
            raise UsageError(f"the target is {value!r:.80} ({type_of(value)}), expected a number")
        return number, number

    def _found(self, value: Any) -> tuple[list[Decimal], str] | None:
        """The numbers of the answer, one unless it is a range or a choice, and its text."""
        number = exact_number(value)
        if number is not None:
            return [number], str(value)
        if not isinstance(value, str):
            return None
        for part in _answers(value):
            if found := self._in(part, "first"):
                return found
        return self._in(value, self.take)

    def _in(self, text: str, take: str) -> tuple[list[Decimal], str] | None:
        numbers = find_numbers(text, self.decimal, percent=self.percent)
        if take == "first":
            near = list(islice(numbers, 2))
        else:
            near = list(deque(numbers, maxlen=2))
        if not near:
            return None
        if len(near) == 2 and near[0].value != near[1].value and _are_one_answer(text, *near):
            return [each.value for each in near], text[near[0].start : near[1].end]
        chosen = near[0 if take == "first" else -1]
        return [chosen.value], chosen.text


def _lm_eval_score(text: str, wanted: Sequence[str]) -> Score:
    found = [first or second for first, second in _LM_EVAL.findall(text)]
    if not found:
        return binary_score(False, explanation="no number in the answer")
    plain = _lm_eval_plain(found[-1])
    why = f"expected {' or '.join(map(str, wanted[:3]))}, found {shown(found[-1])}"
    is_right = plain in map(_lm_eval_plain, wanted)
    return binary_score(is_right, found[-1], explanation="" if is_right else why)


def _lm_eval_plain(text: str) -> str:
    return text.strip().replace(",", "").replace("$", "").removesuffix(".")


def _are_one_answer(text: str, first: FoundNumber, second: FoundNumber) -> bool:
    """Whether two numbers that follow each other are given as one answer: a choice, a range or an
    interval.
    """
    before = text[max(0, first.start - 20) : first.start]
    between = text[first.end : second.start]
    if len(between) > 40:
        return False
    if _BETWEEN.search(before):
        return _AND.fullmatch(between) is not None
    return _OR.fullmatch(between) is not None or (
        _TO.fullmatch(between) is not None and _FROM.search(before) is None
    )


def _is_plain(text: str, number: FoundNumber) -> bool:
    """Whether the text around a number is only a unit or a label: no operator, function, variable
    or bracket.
    """
    around = (
        _TEXT.sub(r" \1 ", f"{text[: number.start]} {text[number.end :]}")
        .replace(r"\%", "")
        .replace(r"\$", "")
    )
    glued = re.match(r"\s?[xyz]\b", text[number.end :])
    return glued is None and _EXPRESSION.search(around) is None


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
