"""Finds which of the allowed words a text gives as its answer; none where it names two."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from evaluator.patterns import Pattern

_MAX_LENGTH = 400
_MAX_MENTION = 400
_ARTICLES = ("a", "i")
_ANY_LABEL = Pattern(r"([^\n:：]{1,60})[:：][\"'*_ \t]{0,8}([^\n]{1,200})")
_CAMEL = Pattern(r"(?<=[a-z])(?=[A-Z])")
_CLASS = Pattern(r"[A-Za-z_]\w{0,60}\.(?=[A-Za-z_]\w{0,60}\Z)")
_ARTICLE = Pattern(
    r"\b[AaIi]\b(?=[\"'*_`]{0,4}(?:[).:,;\]]|\s*\Z|\s(?:is|because|since|and|or)\b))"
)
_NOT_WORD = Pattern(r"[\W_]+")
_NOT_SIGN = Pattern(r"(?:[^\w+#]|_)+")
_NEGATION = Pattern(
    r"\b(?:not|no|non|never|neither|nor|without|cannot|instead of|rather than|\w+n['’]t"
    r"|far from|opposite of|hardly|barely|scarcely|anything but|other than)\b",
    "i",
)
_OR = "or|nor|oder|ou|или"
_AND = f"{_OR}|and|und|et|to|through|bis|plus|vs|versus|и"
_ALTERNATIVE = Pattern(rf" (?:{_AND}) ")
_EITHER = Pattern(rf"(?: (?:{_OR}) \|)|(?:\| (?:{_OR}) )")
_OTHER_LETTER = Pattern(
    r"(?<![\w'’])([A-Z])[.)]?(?:\s*[,/;&+|]\s*|\s+)(?:(?:and|or|und|oder|et|ou|y|e|o|also"
    r"|possibly|maybe|perhaps)\s+)*"
    r"[(\[]?([A-HJ-Z])(?![\w'’])(?!\s[a-z])"
)
_OTHER_NUMBER = Pattern(
    rf"(?<![\w.,])(\d{{1,9}})(?:\s*[,/;&+|–-]\s*|\s+)(?:(?:{_AND}|also|possibly|maybe"
    rf"|perhaps)\s+)*(\d{{1,9}})(?![\w.])(?!\s[a-z])"
)
_CORRECTION = Pattern(
    r"\b(?:wait|actually|correction|scratch that|(?:on )?second thoughts?|i mean|or rather"
    r"|no(?=\s*[,.:;—–-]))\b",
    "i",
)
_JOINING = (
    rf"(?: (?:{_AND}|also|as|well|both|possibly|probably|maybe|perhaps|even|then|but|the"
    rf"|options?|answer|choice))++"
)
_VERB = "is|are|was|were|would|has|have|does|do|can|could|cannot|isn|doesn|s|says|states|describes"
_NEW_SENTENCE = Pattern(rf"\.\s+(?=[A-Z])(?!(?:Or|And|Also|But)\b)(?=[^.\n]*?\s(?:{_VERB})\b)")
_EXPLAINS = Pattern(
    r"\b(?:because|since|unlike|not|than|whereas|while|over|instead|rather|given|between|among"
    r"|from|of|out|both)\b"
)


def _folded(text: str, values: Sequence[str]) -> str:
    """The words of a text; with `+` and `#` where one of `values` has them (`C++`)."""
    if any("+" in value or "#" in value for value in values):
        rest = _NOT_SIGN
    else:
        rest = _NOT_WORD
    return rest.sub(" ", text.casefold()).strip()


def find_word(text: str, values: Sequence[str]) -> str | None:
    """The one of `values` that a text consists of, whatever its case, markup and punctuation; None
    if it is none.

    `InProgress` and `Status.IN_PROGRESS` are `in_progress`.
    """
    text = text[:_MAX_LENGTH].strip()
    words = _words(tuple(values))
    for written in dict.fromkeys((text, _CAMEL.sub(" ", text), _CLASS.sub("", text))):
        folded = _folded(written, values)
        if folded in words:
            return words[folded]
    return None


@lru_cache(maxsize=128)
def _words(values: tuple[str, ...]) -> dict[str, str | None]:
    """The values by their words; None where two have the same."""
    found: dict[str, str | None] = {}
    for value in values:
        for words in {_folded(value, values), _folded(_CAMEL.sub(" ", value), values)} - {""}:
            if found.get(words, value) == value:
                found[words] = value
            else:
                found[words] = None
    return found


def find_first_line(text: str, values: list[str]) -> str | None:
    """The one of `values` that the first line of a text consists of, if no other line consists of
    one.
    """
    first, _, rest = text.strip().partition("\n")
    found = find_word(first, values)
    if found is None or any(find_word(line, values) for line in rest[:_MAX_MENTION].splitlines()):
        return None
    return found


def find_first_word(text: str, values: list[str]) -> str | None:
    """The one of `values` with which a text begins, unless it names another beside it (`B or C`,
    `A, B`).
    """
    text = _NEW_SENTENCE.split(text[:_MAX_LENGTH], 1)[0]
    folded = _folded(text, values)
    for value in sorted(values, key=len, reverse=True):
        word = _folded(value, values)
        if word and (folded + " ").startswith(word + " "):
            others = [other for other in values if other != value]
            is_other = (
                _ALTERNATIVE.match(folded, len(word))
                or (word in _ARTICLES and not _ARTICLE.search(text))
                or _has_other(folded[len(word) :], others, text=text)
                or _has_other_letter(value, text)
            )
            if is_other:
                return None
            return value
    return None


def _has_other(rest: str, values: list[str], text: str) -> bool:
    """Whether the words behind a value add one of `values` to it; `B is wrong` and `because B …` do
    not.
    """
    words = [
        re.escape(word)
        for value in values
        if (word := _folded(value, values)) and (word not in _ARTICLES or _ARTICLE.search(text))
    ]
    if not words:
        return False
    other = rf" (?:{'|'.join(words)})(?= |\Z)"
    if Pattern(rf"{_JOINING}{other}|{other}(?! (?:{_VERB})\b)").match(rest):
        return True
    later = re.search(rf" (?:{_AND}){other}(?! (?:{_VERB})\b)", rest)
    return later is not None and _EXPLAINS.search(rest, 0, later.start()) is None


def _has_other_letter(value: str, text: str) -> bool:
    """Whether another letter or number is next to a value that is one: `A or E`, `2, 4`."""
    if len(value) > 1 and not value.isdigit():
        return False
    pairs = (_OTHER_NUMBER if value.isdigit() else _OTHER_LETTER).finditer(text[:_MAX_MENTION])
    return any(pair[1] != pair[2] and value.upper() in pair.groups() for pair in pairs)


def is_taken_back(answer: str, after: str, values: list[str]) -> bool:
    """Whether the text after an answer gives another one of `values`: in a line, or behind a word
    of correction.
    """
    after = after[:_MAX_MENTION]
    value = find_word(answer, values) or find_first_word(answer, values)
    if any(find_word(line, values) not in (None, value) for line in after.splitlines()):
        return True
    text = f"{answer} {after}"
    correction = _CORRECTION.search(text)
    if correction is None:
        return False
    rest = f" {_folded(text[correction.end() :], values)} "
    return any(f" {_folded(other, values)} " in rest for other in values if other != value)


def find_labelled(text: str, values: Sequence[str]) -> str:
    """The text after the colon of a single line such as `Sentiment: good`; "" if it is not of this
    form.

    A label with a negation (`Not this: good`), or one that is itself one of `values`, is none.
    """
    found = _ANY_LABEL.fullmatch(text.strip())
    if found is None or _NEGATION.search(found[1]) or find_word(found[1], values) is not None:
        return ""
    return found[2]


def find_only_word(text: str, values: list[str]) -> str | None:
    """The only one of `values` that a short text mentions; None if it mentions several, or has a
    negation.
    """
    if len(text) > _MAX_MENTION or _NEGATION.search(text):
        return None
    rest = f" {_folded(text, values)} "
    found = list[str]()
    for value in sorted(values, key=len, reverse=True):
        word = f" {_folded(value, values)} "
        if word.strip() and word in rest:
            found.append(value)
            rest = rest.replace(word, " | ")
    if len(found) != 1 or (found[0].casefold() in _ARTICLES and not _ARTICLE.search(text)):
        return None
    if _has_other_letter(found[0], text) or _EITHER.search(rest):
        return None
    return found[0]
