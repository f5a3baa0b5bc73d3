"""Tells units from multipliers in what follows a number: `42.2 km` is 42.2, `1.2 million` is
1,200,000.

What could change the number is neither: `5k`, `3.5 M`, `3 or 4`, `2 dozen` and `5 and a half` have
no reading.
"""

from __future__ import annotations

from decimal import Decimal

from evaluator.patterns import Pattern

_MULTIPLIERS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE_WORDS = """
k m b t mm mn mln mio mrd md bn tn tr kk thousands millions billions trillions tsd tausend million
millionen milliarde
milliarden billion billionen millón millones millon milhão milhões milione milioni miljoen miljard
milliard milliards
miliardo miliardi mille mil mila billón billones bilhão bilhões lakh lakhs crore crores hundred
hundreds dozen dozens
score gross тыс млн млрд тысяч тысячи миллион миллиона миллионов миллиард миллиарда миллиардов
万 萬 億 亿 千 百 만 억 천 half halves quarter quarters third thirds
"""
_OTHER_WORDS = """
st nd rd th er e a x and or to plus minus times by more less fewer at than not over under above
below between fold
squared cubed und oder bis ou et y o if unless maybe perhaps possibly approximately points out
am pm bc bce south west
"""
# Words that change a number. Not all have the same value in all languages.
_SCALES = frozenset(_SCALE_WORDS.split())
_OTHERS = frozenset(_OTHER_WORDS.split())
_NOT_UNITS = _SCALES | _OTHERS | set(_MULTIPLIERS)
_UNIT_LETTERS = frozenset("ghslLVWN")
_SPACED_LETTERS = _UNIT_LETTERS | set("mtCF")
_MARK = r"[%％‰€$£¥₹₩₽°℃℉]"
_WORD = Pattern(rf"{_MARK}|°[CFcf]|[^\W\d_]+(?:\^?[23])?(?:[/·*-][^\W\d_]+(?:\^?[23])?){{0,3}}\.?")
_SIMPLE = Pattern(r"[^\W\d_]+")
_MAX_WORDS = 3


def is_scale(word: str, *, is_money: bool = False) -> bool:
    """Whether a word after a number changes its value: `million`, `k`, `dozen`.

    `m` and `t` are units, unless they follow an amount of money or are directly behind the number.
    """
    if (word in ("m", "t") and not is_money) or word == "mm":
        return False
    return word in _MULTIPLIERS or word.casefold().rstrip(".") in _SCALES


def is_attached_unit(letters: str) -> bool:
    """Whether letters directly behind a number are a unit: `5kg`, not `3rd`, `4a` or `5k`."""
    if len(letters) == 1:
        return letters in _UNIT_LETTERS
    return letters == "mm" or letters.casefold() not in _NOT_UNITS


def is_unit(text: str, *, is_money: bool = False) -> bool:
    """Whether the text after a number is a unit or a noun of at most three words."""
    words = text.split()
    if not words:
        return True
    if "°" in text and words[-1] in ("W", "S"):
        return False  # a longitude or latitude below zero
    if len(words) > _MAX_WORDS or any(_WORD.fullmatch(word) is None for word in words):
        return False
    if not text[0].isspace() and (letters := _SIMPLE.match(words[0])) is not None:
        if not is_attached_unit(letters[0]):
            return False
        words = words[1:]
    for word in words:
        is_letter = len(word) == 1 and word.isalpha()
        if (
            (is_letter and word not in _SPACED_LETTERS)
            or is_scale(word, is_money=is_money)
            or word.casefold() in _OTHERS
        ):
            return False
    return True


def multiply(number: float, word: str) -> int | float | None:
    """`number` times an English multiplier (`million`); None for any other word that changes a
    number.
    """
    power = _MULTIPLIERS.get(word)
    if power is None:
        return None
    product = Decimal(repr(number)).scaleb(power)
    if product == product.to_integral_value():
        return int(product)
    return float(product)
