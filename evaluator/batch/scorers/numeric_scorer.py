"""`numeric`: a number in the text equals the target; and exact reading of numbers in prose.

Reads numbers in prose exactly: as decimals, never rounded to floats.
Supported are signs, thousands separators, decimals, powers of ten (`6.02e23`, `6.02 × 10^23`,
`6.02·10²³`), fractions (`3/4`, `1 3/4`, `½`, `\frac{3}{4}`), percentages and words such as
`million`. Units and currencies beside a number are ignored. Not numbers are digits in a word
(`CO2`, `m^2`), a date with slashes, a version or a time, a mix of two notations (`1.234,5` where
the point is decimal), an exponent of more than six digits, and the tolerance after a number (the 2
of `5 ± 2`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple
from unicodedata import numeric

from evaluator.batch.records import Score
from evaluator.batch.scorers.builtin_scorer import ResultScorer, as_list, expected_one_of, shown
from evaluator.batch.scorers.contract import NO_TARGET, ScorerInput, binary_score
from evaluator.errors import UsageError
from evaluator.fields import NotNegative
from evaluator.language.scopes import describe as type_of
from evaluator.lazy_dataclass import frozen
from evaluator.patterns import Match, Pattern

_EXACT = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_MINUS = "-−–﹣－"
_SUPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻−–﹣－", "0123456789+-----"[:16])
_VULGAR = "¼-¾⅐-⅞"
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_MAX_EXPONENT_DIGITS = 6
_TOLERANCE = Pattern(r"(?:(?!\b(?:or|and)\b)[^\d\n,;=]){0,20}(?:±|\\pm|\+/[-−])\s?")
_SPACES = "\u00a0\u2009\u202f "


@lru_cache(maxsize=2)
def _pattern(decimal: str) -> Pattern:
    if decimal == ".":
        point, other = (r"\.", ",")
    else:
        point, other = (",", r"\.")
    group = ("," if decimal == "." else ".") + "'’_" + _SPACES
    start = rf"\d{{1,3}}[{group}]\d{{3}}(?!\d)"
    grouped = rf"(?={start})\d{{1,3}}(?P<sep>[{group}])\d{{3}}(?:(?P=sep)\d{{3}}(?!\d))*+"
    plain = rf"(?:{grouped}|(?!{start})\d++)(?:{point}\d++)?+|{point}\d++"
    # A number in the other notation: 1.234,5 or, with several groups, 1,234,567 where the comma is
    # decimal.
    foreign = (
        rf"\d{{1,3}}(?:{point}\d{{3}})++(?:{other}\d++(?!\d|[.,]\d)"
        rf"|(?<={point}\d\d\d{point}\d\d\d)(?![.,]?\d))"
    )
    return Pattern(
        rf"""(?<![\w./:^])(?<!\^[{_MINUS}])(?:(?<![)\]])(?P<sign>[{_MINUS}+])\s?)?+[$€£¥₹]?+
        (?:(?!{foreign})(?:
          \\[dt]?frac\{{(?P<over>\d++)\}}\{{(?P<under>\d++)\}}
        | (?:(?P<whole>\d{{1,3}})[ \u00a0])?(?P<top>\d++)\s?[/⁄]\s?(?P<bottom>\d++)(?![\d/⁄])
        | (?:(?P<before>\d++)\s?)?(?P<vulgar>[{_VULGAR}])
        | 10\s?\^\s?\{{?(?P<power>[-−+]?\d++)\}}?
        | (?P<plain>{plain})
          (?:[eE](?P<e>[-−+]?\d++)
            |\s?(?:[×x*·⋅]|\\times|\\cdot)\s?10\s?
              (?:(?:\^|\*\*)\s?\{{?(?P<ten>[-−+]?\d++)\}}?|(?P<super>[⁺⁻]?[⁰¹²³⁴-⁹]++)))?+
        )
        (?![\d⁰¹²³⁴-⁹]|[.:/]\d|,\d{{3}}(?!\d)|\s?\^)
        (?:\s?(?P<scale>thousand|million|billion|trillion)\b)?
        (?P<percent>\s?(?:\\?%|％|per\s?cent\b))?
        |\d++(?:[{group}.,]\d{{3}})++(?:[.,]\d++)?+)""",
        "ix",
    )


class FoundNumber(NamedTuple):
    """A number in a text: its value, its text, and the positions of its first digit or currency,
    and its end.
    """

    value: Decimal
    text: str
    start: int
    end: int


def find_numbers(text: str, decimal: str = ".", percent: str = "fraction") -> Iterator[FoundNumber]:
    """Every number in a text, in order.

    `decimal` is the decimal point, "." or ","; `percent` determines whether 50 % is 0.5
    ("fraction") or 50 ("number"). The time is linear in the length of the text.
    """
    end = None
    with localcontext(_EXACT):
        for match in _pattern(decimal).finditer(text):
            value = _value(match, decimal)
            if value is None or (
                end is not None and _TOLERANCE.fullmatch(text, end, match.start())
            ):
                continue
            end = match.end()
            if match["sign"] is not None and match["sign"] != "+":
                value = -value
            if match["scale"]:
                value = value.scaleb(_SCALES[match["scale"].lower()])
            if match["percent"] and percent == "fraction":
                value = value.scaleb(-2)
            if match["sign"] is None:
                start = match.start()
            else:
                start = match.end("sign")
            yield FoundNumber(value, match[0].strip(), start=start, end=match.end())


def _value(match: Match, decimal: str) -> Decimal | None:
    if match["plain"]:
        digits = re.sub(r"[^\d.,]", "", match["plain"])
        if decimal == ".":
            digits = digits.replace(",", "")
        else:
            digits = digits.replace(".", "").replace(",", ".")
        exponent = match["e"] or match["ten"] or match["super"]
        value = Decimal(digits)
        if exponent:
            return _scaled(value, exponent)
        return value
    if match["power"]:
        return _scaled(Decimal(1), match["power"])
    if match["vulgar"]:
        # Unicode's values are floats; all of these fractions have small denominators.
        from fractions import Fraction

        part = Fraction(numeric(match["vulgar"])).limit_denominator(10)
        return Decimal(match["before"] or 0) + Decimal(part.numerator) / Decimal(part.denominator)
    top = match["over"] or match["top"]
    bottom = match["under"] or match["bottom"]
    if not bottom or not Decimal(bottom):
        return None
    return Decimal(match["whole"] or 0) + Decimal(top) / Decimal(bottom)


def _scaled(value: Decimal, exponent: str) -> Decimal | None:
    exponent = exponent.translate(_SUPER)
    digits = exponent.lstrip("+-0")
    if len(digits) > _MAX_EXPONENT_DIGITS:
        return None
    return value.scaleb(-int(digits or 0) if exponent[0] == "-" else int(digits or 0))


def exact_number(value: Any) -> Decimal | None:
    """A JSON number exactly as written: 0.1 is one tenth. None for anything else, NaN and
    infinities included.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float):
        number = Decimal(repr(value))
    else:
        number = Decimal(value)
    if number.is_finite():
        return number
    return None


def is_close(expected: Decimal, found: Decimal, abs_tol: float, rel_tol: float) -> bool:
    """Whether `found` is within `abs_tol`, or within `rel_tol` times the size of `expected`,
    inclusive.
    """
    if expected == found:
        return True
    if not abs_tol and not rel_tol:
        return False
    with localcontext(_EXACT):
        allowed = max(Decimal(repr(float(abs_tol))), Decimal(repr(float(rel_tol))) * abs(expected))
        return abs(expected - found) <= allowed


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


@frozen(kw_only=True)
class NumericScorer(ResultScorer):
    """The number in the text, or the parsed value if it is a number, equals the target. The number
    is the one in the last `\\boxed{}` with a number, else the first after the last `Answer:` or
    `the answer is` with a number (in `3 + 4 = 7` the 7), else the last in the text (`take="first"`:
    the first). `abs_tol` is in the target's unit, `rel_tol` a share of the target; the wider one
    applies. Two different numbers as one answer (`70 or 71`, `20-25`) fail, unless the target is a
    range (`20-25`, `between 20 and 25`): any number or range in it is right. `decimal` is the
    decimal point of the text; a target always has a point. `percent="number"` reads 50 % as 50 and
    not as 0.5, in the text and in the target. `strict="lm_eval"` reads as lm-eval's
    `flexible-extract` of GSM8K: the last number, compared as a text without commas, dollar signs
    and a final point.
    """

    type: ClassVar[str] = "numeric"
    abs_tol: NotNegative = 0.0
    rel_tol: NotNegative = 0.0
    take: Literal["last", "first"] = "last"
    decimal: Literal[".", ","] = "."
    percent: Literal["fraction", "number"] = "fraction"
    strict: Literal["lm_eval"] | None = None

    async def score(self, scored: ScorerInput) -> Score:
        target = scored.sample.target
        targets = as_list(target)
        if target is None or not targets:
            return NO_TARGET
        if self.strict is not None:
            return _lm_eval_score(self.text(scored), [str(item) for item in targets])
        expected = [self._target(item) for item in targets]
        numbers = self._found(self.value(scored))
        if numbers is None:
            return binary_score(False, explanation="no number in the answer")
        values, answer = numbers
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
        return binary_score(
            False,
            answer,
            explanation=f"{expected_one_of(targets)}, found {shown(answer)}{hint}",
        )

    def check_target(self, target: Any) -> None:
        """As `BuiltinScorer.check_target`."""
        for item in as_list(target):
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
    why = f"{expected_one_of(wanted)}, found {shown(found[-1])}"
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
