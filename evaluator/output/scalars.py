"""Reads scalars in common notations, if they have only one meaning.

`$1,299.99` is a number; `1,5` and `3/4` are not: they have two meanings. A unit after the only
number is left out, a multiplier counts: `42.2 km` is 42.2, `1.2 million` is 1,200,000. What could
change the number is neither: `5k`, `3.5 M`, `3 or 4`, `2 dozen` and `5 and a half` have no reading.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque

from evaluator.patterns import Match, Pattern

_MAX_LENGTH = 400
_MINUS = dict.fromkeys(map(ord, "−–﹣－⁻"), "-")
_CODES = (
    "USD|EUR|GBP|JPY|CNY|INR|CHF|CAD|AUD|NZD|SEK|NOK|DKK|PLN|CZK|HUF|BRL|MXN|ZAR|SGD|HKD|KRW|TRY"
    "|RUB|ILS|THB"
)
_SYMBOLS = "$€£¥₹₩₽₺₴₦₱฿₫₪"
_CURRENCY = rf"(?:(?:US|R|A|C|CA|AU|NZ|HK|S)\$|[{_SYMBOLS}]|(?:{_CODES})(?=[ \d.-]))"
_PLAIN = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?"
_GROUPED = (
    r"\d{1,3}(?:(?:,\d{3})+|(?:['’_ ]\d{3})+)(?:\.\d+)?"
    r"|\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?|\d{1,3}\.\d{3},\d+|\d{1,3}(?: \d{3})+,\d+"
)
_COMMA_POINT = Pattern(r"[\d ]{1,3}(?:[. ]\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}", "a")
_POWER = Pattern(r"\s?(?:×|\\times|x|\*|·|\\cdot)\s?10\s?(?:\^|\*\*)\s?\{?([+-]?\d{1,3})\}?\Z", "a")
_NUMBER = Pattern(
    rf"([+-]?)\s?{_CURRENCY}?\s?([+-]?)({_GROUPED}|{_PLAIN})\s?(?:{_CURRENCY}|{_CODES})?", "a"
)
_BOOLEANS = {
    "true": True,
    "yes": True,
    "ja": True,
    "oui": True,
    "sí": True,
    "sì": True,
    "да": True,
    "是": True,
    "はい": True,
    "false": False,
    "no": False,
    "nein": False,
    "non": False,
    "нет": False,
    "否": False,
    "いいえ": False,
}
_STATEMENT = Pattern(
    r"(?:(?:the|this|that)\s(?:\w{1,30}\s)?|it\s)(?:is|was)\s[\"'*_]{0,4}(true"
    r"|false)[\"'*_]{0,4}[.!]?",
    "i",
)

_LABEL = (
    r"(?:\b(?:final[ _]?answer|answer|ans|result|verdict|value|score|rating|grade|total|output"
    r"|conclusion|decision"
    r"|prediction|antwort|ergebnis|lösung|réponse|résultat|respuesta|resultado|resposta|risposta"
    r"|risultato|antwoord"
    r"|ответ|итого|результат)\b|答案|答え|结果|結果|답|정답)"
)
_REST = r"[\"'*_ \t:]{0,8}+([^\n]{1,200})"
_REMARK_AFTER = Pattern(r"\.\s+(?=[A-Z])|\s\((?!or\b)")
_LABELLED = Pattern(
    rf"{_LABEL}[\"'*_ \t]{{0,8}}(?:is|are|was|ist|est|es|=|:|\uff1a|是|为|為|は){_REST}", "i"
)
_LABEL_LINE = Pattern(
    rf"^[ \t#*_]{{0,12}}(?:the[ ])?{_LABEL}[*_:： \t]{{0,8}}\n\s{{0,8}}([^\n]{{1,200}})",
    "im",
)
_HASHES = Pattern(r"^#{3,6}[ \t]*([^\n#]{1,60})\s*\Z", "m")
_BOLD = Pattern(r"(?:\*\*|__)([^*_\n]{1,40})(?:\*\*|__)")
_EQUATION = Pattern(rf"(?<![=<>!])=(?!=){_REST}")
_BOXED = Pattern(r"\\boxed\s{0,4}\{((?:[^{}]|\{[^{}]{0,200}\}){0,200})\}")
_BOX_BEFORE = Pattern(
    r"\\boxed\s{0,4}\{([^{}]{0,40})\}[$\s]{0,4}[,;/]?[$\s]{0,4}(?:and|or|und|oder|\\(?:text"
    r"|quad)\s?(?:\{\s?(?:and|or)\s?\})?)?"
    r"[$\s]{0,4}(?:[A-Za-z]\w{0,2}\s?=\s?)?\Z"
)
_MAX_BOX = 120
_TEXT_MACRO = Pattern(r"\\(?:text|mathrm|mathbf|textbf)\s?\{([^{}]*)\}")
_PROSE_NUMBER = Pattern(
    rf"(?<![\w.,/%^])[-+−–﹣－]?(?:{_CURRENCY}[ ]?)?[-+−]?(?:\d[\d,.']*\d"
    rf"|\d)(?:[eE][+-]?\d{{1,3}})?(?!\d)"
)
_FOLLOWED = Pattern(
    r"\s?(?:/\s?\d|:\d|-\d|\^|\+(?!\s?\d))|\s(?:and\s)?(?:an?\s|one\s)?(?:half|quarter)\b"
    r"|\s?(?:°\s?[WS]|(?:°\s?[CF]?\s?|degrees?\s)?(?:below|[ap]m))\b"
)
_ESTIMATE = Pattern(
    r"(?:\b(?:about|around|approximately|approx\.?|roughly|nearly|almost|over|under|than|some"
    r"|up to|at least|ca\.?)"
    r"|[~≈<>≤≥])\s?\Z",
    "i",
)
_RADIX = Pattern(r"0(?:[xX][0-9a-fA-F]|[oO][0-7]|[bB][01])")
_DENIED_BEFORE = Pattern(
    r"(?:\bnot|n['’]t|\bnever|\bfar from|\bopposite of|\b(?:anything but|other than|instead of"
    r"|rather than))"
    r"[ \"'*_$`]{1,6}\Z",
    "i",
)
_DENIED_AFTER = Pattern(
    r"[\"'*_$`]{0,4}\s(?:(?:is|was|would be|does|do|did|cannot|can)(?:n['’]t|\s+not\b)|(?:is|was"
    r"|would be)\s+(?:wrong|incorrect|false))",
    "i",
)
_LETTERS_AFTER = Pattern(r"[\w²³]{0,30}+")
_WORD_AFTER = Pattern(r"[ \t\u00a0\u202f](\w{1,20}+\.?)")
_QUANTITY = Pattern(
    rf"([+-]?\s?(?:{_CURRENCY}\s?)?[+-]?(?:{_GROUPED}|{_PLAIN})(?!\d))(\s?(?:thousand|million"
    rf"|billion|trillion)\b)?(.*)",
    "as",
)
_MAX_QUANTITY = 80
_NULLS = frozenset({"null", "none", "n/a", "-", "–", "—"})
_LEADING_WORD = Pattern(
    rf"[\"'*_\s]{{0,8}}({'|'.join(_BOOLEANS)})"
    r"[\"'*_]{0,4}\s{0,2}(?:[.,:;!—–。，！\n]|-\s|\Z)(?!\s?\d)",
    "i",
)
_SECOND_WORD = Pattern(
    rf"\W{{0,8}}(?:(?:and|or)\s)?({'|'.join(_BOOLEANS)})(?:[.!?\"'*_]|\s*\Z)", "i"
)
_TAGGED = Pattern(
    r"<(answer|final_answer|final|result|output|response)>([^<]{1,2000})</\1\s{0,8}>", "i"
)
_ADDRESS = Pattern(r"(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?:\.|\Z)){4}", "a")


def read_number(text: str) -> int | float | None:
    """The number in a text that contains nothing else except a currency sign, grouping and a sign;
    None otherwise.

    Whole digits are an int; with a point or an exponent it is a float, or None outside the range of
    a float.
    """
    text = text.strip().strip("*")
    if not text or len(text) > _MAX_LENGTH:
        return None
    plain = _plain(text)
    if plain != text and re.search(r"[¼½¾⅐-⅞²³¹⁰-⁹₀-₉]", text):
        return None
    power = _POWER.search(plain)
    match = _NUMBER.fullmatch(plain[: power.start()] if power is not None else plain)
    if match is None or (match[1] and match[2]) or _ADDRESS.fullmatch(match[3]):
        return None
    written = match[3]
    if _COMMA_POINT.fullmatch(written):
        written = written.replace(".", "").replace(",", ".")
    digits = re.sub(r"[,'’_ ]", "", written) + (f"e{power[1]}" if power is not None else "")
    sign = "-" if "-" in (match[1], match[2]) else ""
    if digits.isdigit():
        return int(sign + digits)
    number = float(sign + digits)
    if number - number == 0.0:
        return number
    return None


def _plain(text: str) -> str:
    """A text with ASCII digits, points and signs."""
    if text.isascii():
        return text
    plain = unicodedata.normalize("NFKC", text.translate(_MINUS)).translate(_MINUS)
    return "".join(str(unicodedata.decimal(char, char)) for char in plain)


def read_quantity(text: str) -> int | float | None:
    """The number of a text that consists of it and a unit or a multiplier: `-7 °C`, `87%`, `1.2
    million people`.

    None if there is anything else, another number included.
    """
    text = text.strip().strip("*_`").strip().removesuffix(".")
    if len(text) > _MAX_QUANTITY or re.search(r"[¼½¾⅐-⅞¹⁰-⁹₀-₉]|\d[²³]", text):
        return None
    match = _QUANTITY.fullmatch(_plain(text))
    if match is None:
        return None
    number = read_number(match[1])
    is_money = not match[1].lstrip("+- ")[0].isdigit()
    if number is None or not is_unit(match[3], is_money=is_money):
        return None
    if match[2]:
        return multiply(number, match[2].strip())
    return number


def has_multiplier(text: str) -> bool:
    """Whether a quantity has a multiplier (`2.5 million`), not only a unit."""
    match = _QUANTITY.match(_plain(text.strip().strip("*_`")[:_MAX_QUANTITY]))
    return match is not None and match[2] is not None


def is_null(text: str) -> bool:
    """Whether a text says that there is no value: `null`, `none`, `n/a` or a dash."""
    return text.strip(" \t\r\n\"'`*.").lower() in _NULLS


def read_boolean(text: str) -> bool | None:
    """The value of `true`, `yes`, `false`, `no` in any case, also in quotes or with a full stop;
    None otherwise.
    """
    if len(text) < _MAX_LENGTH:
        return _BOOLEANS.get(text.strip(" \t\r\n\"'`*_.!").lower())
    return None


def read_as(text: str, types: frozenset[str]) -> int | float | bool | None:
    """The value of a text as one of the given scalar types; None if it has no such value."""
    if "boolean" in types:
        boolean = read_boolean(text)
        if boolean is not None:
            return boolean
    if types & {"number", "integer"}:
        return as_type(read_number(text), types)
    return None


def as_type(number: float | None, types: frozenset[str]) -> int | float | None:
    """A number as one of the given types; None if it is not of them (3.7 is not an integer)."""
    if "number" in types or isinstance(number, int):
        return number
    if number is not None and number.is_integer():
        return int(number)
    return None


def _trim(found: str) -> str:
    found = _TEXT_MACRO.sub(r"\1", found).strip()
    if not found.startswith("$"):
        return found.strip(" \t\"'`*_$").removesuffix(".").rstrip(" \t\"'`*_$).")
    return found.strip(" \t\"'`*_").removesuffix(".").rstrip(" \t\"'`*_$)")


def _is_second(found: deque[Match], text: str, group: int) -> bool:
    """Whether the second of two marked answers directly follows the other, has the same mark, and
    differs.
    """
    if len(found) < 2:
        return False
    first, second = found
    written = [_trim(match[group]) for match in (first, second)]
    marks = [text[match.start() : match.start(group)].casefold() for match in (first, second)]
    return (
        written[0] != written[1]
        and marks[0] == marks[1]
        and not text[first.end() : second.start()].strip(" \t\r\n#*_,;-")
        and not any(re.search(r"[-+*/=×−]", one) for one in written)
    )


def find_answer(text: str) -> tuple[str, str] | None:
    """The result in a prose answer: the last `\\boxed{…}`, else what follows the last `####`, label
    (`Answer:`) or `=`.

    Returns the text of the result and where it was found; None if there is none.
    """
    at = text.rfind("\\boxed")
    if at >= 0:
        match = _BOXED.match(text, at)
        before = _BOX_BEFORE.search(text, max(0, at - _MAX_BOX), at)
        if match is not None and before is not None and before[1] != match[1]:
            return "", "\\boxed{…}"  # several answers
        if match is not None:
            return _trim(match[1].replace("{,}", ",").replace("\\,", " ")), "\\boxed{…}"
    tagged = deque(_TAGGED.finditer(text), maxlen=2)
    if tagged:
        where = f"<{tagged[-1][1].lower()}>"
        if _is_second(tagged, text, group=2):
            return ("", where)
        return (_trim(tagged[-1][2]), where)
    found = deque[Match](maxlen=2)
    for pattern in (_HASHES, _LABELLED, _LABEL_LINE, _EQUATION):
        found.extend(pattern.finditer(text))
        if found:
            break
    else:
        return None
    if pattern is _LABELLED and _is_second(found, text, group=1):
        return "", "a label"  # several answers
    last = found[-1]
    answer = last[1]
    if text[last.end(1) : last.end(1) + 1].strip():
        # The pattern ended inside a long line, perhaps inside a number.
        answer = answer.rpartition(" ")[0]
    return _trim(answer), "a label"


def find_number(text: str) -> int | float | None:
    """The only number in a prose text, with its unit left out; None if there is none, or more than
    one.
    """
    found: int | float | None = None
    for match in _PROSE_NUMBER.finditer(text):
        letters = _LETTERS_AFTER.match(text, match.end())
        after = letters[0] if letters is not None else ""
        if _RADIX.match(text, match.end() - 1):
            return None
        if after and not is_attached_unit(after):
            if is_scale(after, is_money=True):
                return None
            continue  # 3rd, 4a
        end = match.end() + len(after)
        if found is not None or _FOLLOWED.match(text, end) or _is_denied(text, match.start(), end):
            return None
        found = read_number(match[0])
        if after:
            word = None
        else:
            word = _WORD_AFTER.match(text, end)
        is_money = not match[0].lstrip("+-−–﹣－")[0].isdigit()
        if found is not None and word is not None and is_scale(word[1], is_money=is_money):
            is_estimate = (
                _ESTIMATE.search(text, max(0, match.start() - 20), match.start()) is not None
            )
            if is_estimate:
                found = None
            else:
                found = multiply(found, word[1])
        if found is None:
            return None
    return found


def _is_denied(text: str, start: int, end: int) -> bool:
    """Whether the words next to a number say that it is not the answer."""
    before = _DENIED_BEFORE.search(text, max(0, start - 20), start)
    return before is not None or _DENIED_AFTER.match(text, end) is not None


def find_labelled_number(text: str) -> int | float | None:
    """The number of a labelled answer: the only one, or the one before a remark (`72 (81 minus
    9)`).
    """
    number = find_number(text)
    if number is not None:
        return number
    return read_quantity(_REMARK_AFTER.split(text, 1)[0])


def find_marked_number(text: str) -> int | float | None:
    """The only number that a prose text sets in bold, if no other number follows it; None if there
    is none.
    """
    bold = [match for match in _BOLD.finditer(text) if any(char.isdigit() for char in match[1])]
    if len(bold) != 1 or any(char.isdigit() for char in text[bold[0].end() :]):
        return None
    if _is_denied(text, bold[0].start(), bold[0].end()):
        return None
    return find_number(bold[0][1])


def find_boolean(text: str) -> bool | None:
    """The yes or no at the beginning of a text, before punctuation (`No, because …`), or `The claim
    is false.`
    """
    match = _LEADING_WORD.match(text) or _STATEMENT.fullmatch(text.strip())
    if match is None:
        return None
    value = _BOOLEANS[match[1].lower()]
    second = _SECOND_WORD.match(text, match.end())
    if second is not None and _BOOLEANS[second[1].lower()] != value:
        return None
    return value


_MULTIPLIERS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE_WORDS = """
    k m b t mm mn mln mio mrd md bn tn tr kk thousands millions billions trillions tsd tausend
    million millionen milliarde milliarden billion billionen millón millones millon milhão milhões
    milione milioni miljoen miljard milliard milliards miliardo miliardi mille mil mila billón
    billones bilhão bilhões lakh lakhs crore crores hundred hundreds dozen dozens score gross тыс
    млн млрд тысяч тысячи миллион миллиона миллионов миллиард миллиарда миллиардов
    万 萬 億 亿 千 百 만 억 천 half halves quarter quarters third thirds
"""
_OTHER_WORDS = """
    st nd rd th er e a x and or to plus minus times by more less fewer at than not over under above
    below between fold squared cubed und oder bis ou et y o if unless maybe perhaps possibly
    approximately points out am pm bc bce south west
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
    from decimal import Decimal

    power = _MULTIPLIERS.get(word)
    if power is None:
        return None
    product = Decimal(repr(number)).scaleb(power)
    if product == product.to_integral_value():
        return int(product)
    return float(product)
