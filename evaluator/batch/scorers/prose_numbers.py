"""Reads numbers in prose exactly: as decimals, never rounded to floats.

Supported are signs, thousands separators, decimals, powers of ten (`6.02e23`, `6.02 × 10^23`,
`6.02·10²³`), fractions (`3/4`, `1 3/4`, `½`, `\\frac{3}{4}`), percentages and words such as
`million`. Units and currencies beside a number are ignored. Not numbers are digits in a word
(`CO2`, `m^2`), a date with slashes, a version or a time, a mix of two notations (`1.234,5` where
the point is decimal), an exponent of more than six digits, and the tolerance after a number (the 2
of `5 ± 2`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from functools import lru_cache
from typing import Any, NamedTuple
from unicodedata import numeric

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
    foreign = rf"\d{{1,3}}(?:{point}\d{{3}})++(?:{other}\d++(?!\d|[.,]\d)|(?<={point}\d\d\d{point}\d\d\d)(?![.,]?\d))"
    return Pattern(
        rf"""(?<![\w./:^])(?<!\^[{_MINUS}])(?:(?<![)\]])(?P<sign>[{_MINUS}+])\s?)?+[$€£¥₹]?+
        (?:(?!{foreign})(?:
          \\[dt]?frac\{{(?P<over>\d++)\}}\{{(?P<under>\d++)\}}
        | (?:(?P<whole>\d{{1,3}})[ \u00a0])?(?P<top>\d++)\s?[/⁄]\s?(?P<bottom>\d++)(?![\d/⁄])
        | (?:(?P<before>\d++)\s?)?(?P<vulgar>[{_VULGAR}])
        | 10\s?\^\s?\{{?(?P<power>[-−+]?\d++)\}}?
        | (?P<plain>{plain})
          (?:[eE](?P<e>[-−+]?\d++)
            |\s?(?:[×x*·⋅]|\\times|\\cdot)\s?10\s?(?:(?:\^|\*\*)\s?\{{?(?P<ten>[-−+]?\d++)\}}?|(?P<super>[⁺⁻]?[⁰¹²³⁴-⁹]++)))?+
        )
        (?![\d⁰¹²³⁴-⁹]|[.:/]\d|,\d{{3}}(?!\d)|\s?\^)
        (?:\s?(?P<scale>thousand|million|billion|trillion)\b)?(?P<percent>\s?(?:\\?%|％|per\s?cent\b))?
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
