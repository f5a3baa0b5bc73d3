"""`choice`: which of several options the text chooses, by letter or by the option's words.

The first of these that names an option decides:

- a label (`Answer: B`, `the answer is (B)`, `\\boxed{B}`); the last one, as models correct
  themselves later in a text
- a letter that is the whole text
- a capital letter that is the whole last line or sentence, or ends it after a word such as `so` or
  `therefore`
- a statement such as `it must be B` or `B is correct`; the last one
- a letter at the beginning of the text (`B. Paris`)
- letters in brackets
- the words of the options

Where it names several options, a letter beside the words of another option, or lines that are only
different options, nothing is chosen. With a set as the target the letters of a list count.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast
from unicodedata import normalize

from evaluator.batch.records import Sample, Score
from evaluator.batch.rows.choice_order import CHOICE_FIELDS, flagged, listed_letters
from evaluator.batch.scorers.builtin_scorer import ResultScorer, as_text
from evaluator.batch.scorers.contract import NO_TARGET, ScorerInput, binary_score
from evaluator.errors import UsageError
from evaluator.lazy_dataclass import frozen

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WRAP = r"[\s*_`\"'“”$]{0,8}"
# "A" and "I" are also words: "the answer is a city", "Answer: I think".
_NO_WORD = r"(?!(?-i:a)\s+(?!(?:or|and|because|as|since)\b)\w|(?-i:I)\s+[a-z])"
_MARK = rf"[(\[]?(?:\\(?:text|mathbf)\{{)?{_NO_WORD}([A-Za-z]|\d{{1,2}})(?![\w'’])[}})\].]?"
_IS = r"(?:is|are|was|(?:must|should|would|will|has\sto|can\sonly)\sbe|[:=：])"
_LABEL = (
    rf"(?:\b(?:answers?|choices?|options?|choose|pick|select)\b{_WRAP}(?:{_IS}"
    rf"|(?=[(\[])){_WRAP}(?:\b(?:option|choice|answer)\b{_WRAP}[:]?{_WRAP})?"
    rf"|<answer>{_WRAP}|\\boxed\s?\{{{_WRAP}"
    rf"|(?:^|\n){_WRAP}(?:I\s(?:choose|pick|select)|option|choice){_WRAP})"
)
_LABELLED = re.compile(_LABEL + _MARK, re.IGNORECASE)
_BEFORE_LETTERS = re.compile(
    rf"{_LABEL}|\b(?:so|therefore|thus|hence)\b[,:]?{_WRAP}", re.IGNORECASE
)
_AFTER_LETTERS = re.compile(r"\bbecause\b|\bsince\b|\bas\b|\.(?:\s|$)|\}")
# "It must be B.", "B is correct"; weaker than a letter at the end of the text.
_STATED = re.compile(
    rf"\b(?:must|should|has\sto|can\sonly)\sbe{_WRAP}(?:\b(?:option|choice|answer)\b{_WRAP})?"
    r"[(\[]?([A-Z])(?![\w'’])[)\].]?(?!\s[a-z])"
    rf"|(?<![\w'’])[(\[]?([A-Z])[)\].]?{_WRAP}(?:is|seems|looks)\s(?:the\s)?(?:most\s|only\s)?"
    rf"(?:correct|right|best|true)(?:\s(?:answer|option|choice|one))?\b"
)
_OR = re.compile(rf"{_WRAP}(?:,|/|&|\bor\b|\band\b){_WRAP}{_MARK}(?!\.?\s\w)", re.IGNORECASE)
_NEXT = re.compile(r"[ \t]{1,8}[(\[]?([A-Z])[)\]]?(?=[ \t]*(?:[.\n]|\Z))")
_WHOLE = re.compile(rf"{_WRAP}{_MARK}{_WRAP}[.!]?{_WRAP}\Z")
_LEADING = re.compile(
    rf"{_WRAP}(?:[(\[]([A-Za-z]|\d{{1,2}})[)\]]"
    r"|([A-Za-z]|\d{1,2})(?:[):]|\.(?!\w)|\*\*)|([A-Z])(?=,\s))"
)
_SENTENCES = re.compile(r"\n|(?<!\b\w)\.(?=\s)|[!?](?=\s)")
_CAPITAL = rf"[(\[]?([A-Z]|\d{{1,2}})[)\].]?{_WRAP}[.!]?{_WRAP}\Z"
_LONE = re.compile(_WRAP + _CAPITAL)
_THEREFORE = re.compile(rf"\b(?:so|therefore|thus|hence)\b[,:]?{_WRAP}{_CAPITAL}", re.IGNORECASE)
_BRACKETED = re.compile(r"[(\[]([A-Z]|\d{1,2})[)\]]")
_LETTER = r"[(\[]?(?:[A-Z]|\d{1,2})[)\]]?"
_AND = re.compile(r"\b(?:and|or)\b", re.IGNORECASE)
_SEVERAL = re.compile(
    rf"{_WRAP}(?:{_LETTER}(?:{_WRAP}(?:,|;|/|&|\n|\band\b){_WRAP}(?:and\s)?{_LETTER})*"
    rf"|[A-Z]{{2,26}}){_WRAP}[.)\]}}]?{_WRAP}"
)
_UP_TO_REASON = re.compile(r"[\n.;,(]|\bbecause\b|\bnot\b")
_BEFORE_WORDS = " .:)]*-–—,;("
_INSPECT_LINE = re.compile(
    r"^ANSWER\s*:\s*([A-Za-z\d ,]+)\s*(?:$|\n|\.)", re.IGNORECASE | re.MULTILINE
)
_INSPECT = re.compile(r"ANSWER\s*:\s*([A-Za-z\d ,]+)(?:[^\w]|\n|$|\.)", re.IGNORECASE)


@frozen(kw_only=True)
class ChoiceScorer(ResultScorer):
    """The option chosen by the text is the target: a letter, an option's words, or its index from 0
    (a whole number). The set of right options is a list, a text such as `A, C` or `AC`, or a list
    with 0 or 1 for each option (`[1, 0, 1]`): exactly these have to be chosen, or with
    `credit="partial"` the value is the share of the options on either side that are on both.
    `choices` are the options, as a list (lettered A, B, …) or a table of letters to words; by
    default those of the row, under `choices` or `options` in its inputs or metadata; without any, A
    to Z. `strict="inspect"` reads only `ANSWER: B`, as inspect's `choice` does.
    """

    type: ClassVar[str] = "choice"
    choices: Sequence[str] | Mapping[str, str] | None = None
    credit: Literal["exact", "partial"] = "exact"
    strict: Literal["inspect"] | None = None

    def check(self) -> None:
        if self.choices is not None:
            _lettered(self.choices)

    async def score(self, scored: ScorerInput) -> Score:
        target: Any = scored.sample.target
        if target is None:
            return NO_TARGET
        options = options_of(self.choices, scored.sample)
        text = self.text(scored)
        if isinstance(target, str) and (
            several := listed_letters(target, options, words=options.values())
        ):
            target = several
        elif any(options.values()) and (positions := flagged(target, len(options))) is not None:
            target = [list(options)[at] for at in positions]
        if isinstance(target, list | tuple):
            return self._set_score(text, cast("Sequence[Any]", target), options=options)
        wanted = wanted_letters(target, options)
        if self.strict is not None:
            letters = _inspect_letters(text, options)
            if len(letters) == 1:
                chosen = next(iter(letters))
            else:
                chosen = None
            why = "no line 'ANSWER: LETTER'"
        else:
            chosen, why = choose(text, options)
        if chosen is None:
            return binary_score(False, explanation=why)
        return binary_score(
            chosen in wanted,
            chosen,
            explanation="" if chosen in wanted else f"expected {_listed(wanted)}, chose {chosen}",
        )

    def _set_score(self, text: str, target: Sequence[Any], options: Mapping[str, str]) -> Score:
        wanted = frozenset(letter for each in target for letter in wanted_letters(each, options))
        if self.strict is None:
            chosen = choose_several(text, options)
        else:
            chosen = _inspect_letters(text, options)
        if not chosen:
            return binary_score(wanted == chosen, explanation="no option was chosen")
        if self.credit == "partial":
            value = len(wanted & chosen) / len(wanted | chosen)
        else:
            value = float(wanted == chosen)
        if wanted == chosen:
            why = ""
        else:
            why = f"expected {_listed(wanted) or 'none'}, chose {_listed(chosen)}"
        return Score(value, wanted == chosen, answer=_listed(chosen), explanation=why)


def options_of(choices: Sequence[str] | Mapping[str, str] | None, sample: Sample) -> dict[str, str]:
    """Letters to the words of `choices`, or of the row's own; without any, A to Z without words.

    Raises: UsageError, unless there are 2 to 26 options.
    """
    if choices is not None:
        return _lettered(choices)
    for place in (sample.inputs, sample.metadata):
        for field in CHOICE_FIELDS:
            options = place.get(field)
            if isinstance(options, list | tuple | Mapping):
                return _lettered(cast("Any", options))
    return dict.fromkeys(_LETTERS, "")


def _listed(letters: Iterable[str]) -> str:
    return ", ".join(sorted(letters))


def _lettered(choices: Sequence[Any] | Mapping[str, Any]) -> dict[str, str]:
    """Letters to the options' words, which may be equal. Raises: UsageError, unless there are 2 to
    26 options.
    """
    if isinstance(choices, Mapping):
        options = {
            key.strip().upper(): as_text(value, "an option") for key, value in choices.items()
        }
    else:
        options = dict(
            zip(_LETTERS, (as_text(value, "an option") for value in choices), strict=False)
        )
    if not 2 <= len(choices) <= len(_LETTERS) or len(options) != len(choices):
        raise UsageError(
            f"choice: expected 2 to {len(_LETTERS)} options with different letters, got "
            f"{len(choices)}"
        )
    return options


def wanted_letters(target: Any, options: Mapping[str, str]) -> frozenset[str]:
    """The letters of the right option: several if its words are given and other options have the
    same.

    Raises: UsageError, if it is not an option.
    """
    letters = list(options)
    if isinstance(target, int) and not isinstance(target, bool) and any(options.values()):
        if 0 <= target < len(letters):
            return frozenset(letters[target])
    elif isinstance(target, str):
        if target.strip() in options:
            return frozenset({target.strip()})
        for same in (str.strip, _plain):
            if found := [
                letter for letter, words in options.items() if words and same(words) == same(target)
            ]:
                return frozenset(found)
        match = _WHOLE.match(target)
        if match is not None and match[1].upper() in options:
            return frozenset({match[1].upper()})
    raise UsageError(f"the target {target!r:.80} is not one of the options {', '.join(letters)}")


def choose(text: str, options: Mapping[str, str]) -> tuple[str | None, str]:
    """The letter that a text chooses; None with the reason if it chooses none or several."""
    named, at = _by_letter(text, options)
    if named:
        words = _contradictions(text, at, named=named, options=options)
        if len(named) == 1 and not words:
            return next(iter(named)), ""
        return None, f"ambiguous: {_listed({*named, *words})}"
    found = _worded(text, options)
    if len(found) == 1:
        return found[0], ""
    return None, f"ambiguous: {', '.join(found)}" if found else "no option was chosen"


def choose_several(text: str, options: Mapping[str, str]) -> frozenset[str]:
    """The letters of all options that a text chooses: listed (`A, C`, `AC`, one in each line), else
    by their words.
    """
    labels = [match.end() for match in _BEFORE_LETTERS.finditer(text)]
    lines = [line for line in text.splitlines() if line.strip()]
    labelled = [
        _AFTER_LETTERS.split(text[at:].split("\n", 1)[0], maxsplit=1)[0] for at in labels[-1:]
    ]
    for part in [*labelled, text, *lines[-1:]]:
        if _SEVERAL.fullmatch(part):
            letters = re.findall(r"[A-Z]|\d+", _AND.sub(" ", part))
            if len({*letters}) == len(letters) and all(letter in options for letter in letters):
                return frozenset(letters)
            if part in labelled and "," in part and options.keys() & {*letters}:  # "Answer: A, Z"
                return frozenset()
    named, _ = _by_letter(text, options)
    return frozenset(named or _worded(text, options))


def _inspect_letters(text: str, options: Mapping[str, str]) -> frozenset[str]:
    """The letters after `ANSWER:`, as inspect's `multiple_choice` reads them."""
    for wrap in (r"\$", r"\*\*"):
        text = re.sub(rf"{wrap}\s*([A-Za-z\d][A-Za-z\d ,]*?)\s*{wrap}", r"\1", text)
    text = re.sub(r"(^|[:,])(\s*)\(([A-Za-z\d])\)(?=\s*(?:,|\.|\n|\Z))", r"\1\2\3", text)
    found = _INSPECT_LINE.findall(text) or _INSPECT.findall(text)
    if found:
        letters = re.sub(r"[\s,]", "", found[-1].upper().replace(" AND ", ","))
    else:
        letters = ""
    if all(letter in options for letter in letters):
        return frozenset(letters)
    return frozenset()


def _by_letter(text: str, options: Mapping[str, str]) -> tuple[set[str], int | None]:
    """The letters in the strongest statement of an answer, and where the words of their option
    would begin.
    """
    labelled = [match for match in _LABELLED.finditer(text) if match[1].upper() in options]
    if labelled:
        last = labelled[-1]
        return _with_others(text, last[1].upper(), at=last.end(), options=options)
    whole = _WHOLE.match(text)
    if whole is not None and whole[1].upper() in options:
        return _with_others(text, whole[1].upper(), at=whole.end(), options=options)
    if named := _at_the_end(text, options):
        return named, None
    stated = [(match, match[match.lastindex or 1].upper()) for match in _STATED.finditer(text)]
    stated = [(match, letter) for match, letter in stated if letter in options]
    if stated:
        match, letter = stated[-1]
        return _with_others(text, letter, at=match.end(), options=options)
    leading = _LEADING.match(text)
    if leading is not None:
        letter = next(group for group in leading.groups() if group).upper()
        if letter in options:
            return _with_others(text, letter, at=leading.end(), options=options)
    return {found for found in _BRACKETED.findall(text) if found in options}, None


def _at_the_end(text: str, options: Mapping[str, str]) -> set[str]:
    """The letter of the last line or sentence, with those of other lines that are only an option;
    else empty.
    """
    *before, last = [part for part in _SENTENCES.split(text) if part.strip()] or [""]
    match = _LONE.match(last) or _THEREFORE.search(last[-100:])
    if match is None or match[1] not in options:
        return set()
    named = {match[1]}
    for part in before:
        lone = _LONE.match(part)
        if lone is not None and lone[1] in options:
            named.add(lone[1])
        named.update(
            letter for letter, words in options.items() if words and _plain(words) == _plain(part)
        )
    return named


def _with_others(
    text: str, letter: str, at: int, options: Mapping[str, str]
) -> tuple[set[str], int]:
    """The letter with those joined to it (`A or B`), and where they end."""
    named = {letter}
    while (more := _OR.match(text, at) or _NEXT.match(text, at)) is not None and more[
        1
    ].upper() in options:
        named.add(more[1].upper())
        at = more.end()
    return named, at


def _contradictions(
    text: str, at: int | None, named: Collection[str], options: Mapping[str, str]
) -> set[str]:
    """The options whose words follow the letter of another one, in the same sentence or line."""
    if at is None:
        return set()
    line = text[at : at + 2_000].split("\n", 1)[0]
    own = {_plain(options[letter]) for letter in named}
    rest = _plain(line.lstrip(_BEFORE_WORDS))
    begins = [
        letter
        for letter, words in options.items()
        if words and re.match(rf"{re.escape(_plain(words))}(?!\w)", rest)
    ]
    if begins:
        longest = max(len(_plain(options[letter])) for letter in begins)
        begins = [letter for letter in begins if len(_plain(options[letter])) == longest]
        if any(_plain(options[letter]) in own for letter in begins):
            return set()
        # After a comma only the words of an option alone contradict: "B, Paris is too far".
        is_remark = (
            line.lstrip(" )]*").startswith((",", ";", "(")) and rest[longest:].strip(" .!)*") != ""
        )
        if is_remark:
            return set()
        return set(begins)
    words = _UP_TO_REASON.split(line[:300].lstrip(" .:)*-–—"), maxsplit=1)[0]
    return {letter for letter in _by_words(words, options) if _plain(options[letter]) not in own}


def _worded(text: str, options: Mapping[str, str]) -> list[str]:
    """The options whose words are the text, or are in it; of options that differ in case only,
    those written so.
    """
    exact = [letter for letter, words in options.items() if words and _plain(words) == _plain(text)]
    found = exact or _by_words(text, options)
    if len({_plain(options[letter]) for letter in found}) == 1:
        as_written = [letter for letter in found if options[letter].strip() in text]
        return as_written or found
    return found


def _by_words(text: str, options: Mapping[str, str]) -> list[str]:
    """The options whose words are in the text; of nested options (`Guinea`, `Guinea-Bissau`) the
    longer.
    """
    rest = f" {_plain(text)} "
    found = list[str]()
    by_words: dict[str, list[str]] = {}
    for letter, words in options.items():
        by_words.setdefault(_plain(words), []).append(letter)
    for plain, letters in sorted(by_words.items(), key=lambda item: -len(item[0])):
        if not plain:
            continue
        pieces = re.split(rf"(?<!\w){re.escape(plain)}(?!\w)", rest)
        if len(pieces) > 1:
            found += letters
            rest = "\x00".join(pieces)
    return sorted(found)


def _plain(text: str) -> str:
    return " ".join(normalize("NFC", text).casefold().strip(" \t\n.*_`\"'“”").split())
