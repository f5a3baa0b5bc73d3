"""`choice`: which of several options the text chooses, by letter or by the option's words.

The first of these that names an option decides:

- a label (`Answer: B`, `the answer is (B)`, `\\boxed{B}`); the last one, as models correct themselves later in a text
- a letter that is the whole text
- a capital letter that is the whole last line or sentence, or ends it after a word such as `so` or `therefore`
- a letter at the beginning of the text (`B. Paris`)
- letters in brackets
- the words of the options

Where it names several options, a letter beside the words of another option, or lines that are only different options,
nothing is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast
from unicodedata import normalize

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import NO_TARGET, ScorerInput, binary_score
from evaluator.batch.scorers.result_scorer import ResultScorer, as_text
from evaluator.errors import UsageError

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WRAP = r"[\s*_`\"'“”$]{0,8}"
_MARK = r"[(\[]?(?:\\(?:text|mathbf)\{)?([A-Za-z]|\d{1,2})(?![\w'’])[})\].]?"
_LABELLED = re.compile(
    rf"(?:\b(?:answer|choice|option|choose|pick|select)\b{_WRAP}(?:is|are|was|[:=：]|(?=[(\[])){_WRAP}(?:\b(?:option|choice|answer)\b{_WRAP}[:]?{_WRAP})?"
    rf"|\\boxed\s?\{{{_WRAP}|(?:^|\n){_WRAP}(?:I\s(?:choose|pick|select)|option|choice){_WRAP}){_MARK}",
    re.IGNORECASE,
)
_OR = re.compile(rf"{_WRAP}(?:,|/|&|\bor\b|\band\b){_WRAP}{_MARK}(?!\.?\s\w)", re.IGNORECASE)
_WHOLE = re.compile(rf"{_WRAP}{_MARK}{_WRAP}[.!]?{_WRAP}\Z")
_LEADING = re.compile(rf"{_WRAP}(?:[(\[]([A-Za-z]|\d{{1,2}})[)\]]|([A-Za-z]|\d{{1,2}})(?:[):]|\.(?!\w)|\*\*))")
_SENTENCES = re.compile(r"\n|(?<!\b\w)\.(?=\s)|[!?](?=\s)")
_CAPITAL = rf"[(\[]?([A-Z]|\d{{1,2}})[)\].]?{_WRAP}[.!]?{_WRAP}\Z"
_LONE = re.compile(_WRAP + _CAPITAL)
_THEREFORE = re.compile(rf"\b(?:so|therefore|thus|hence)\b[,:]?{_WRAP}{_CAPITAL}", re.IGNORECASE)
_BRACKETED = re.compile(r"[(\[]([A-Z]|\d{1,2})[)\]]")
_FIELDS = ("choices", "options")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceScorer(ResultScorer):
    """The option chosen by the text is the target: a letter, an option's words, or its index from 0 (a whole number).
    `choices` are the options, as a list (lettered A, B, …) or a table of letters to words; by default those of the row,
    under `choices` or `options` in its inputs or metadata; without any, A to Z."""

    type: ClassVar[str] = "choice"
    choices: Sequence[str] | Mapping[str, str] | None = None

    def check(self) -> None:
        if self.choices is not None:
            _lettered(self.choices)

    async def score(self, scored: ScorerInput) -> Score:
        target = scored.sample.target
        if target is None:
            return NO_TARGET
        options = self._options(scored)
        wanted = _wanted(target, options)
        chosen, why = choose(self.text(scored), options)
        if chosen is None:
            return binary_score(False, explanation=why)
        return binary_score(chosen == wanted, chosen, "" if chosen == wanted else f"expected {wanted}, chose {chosen}")

    def _options(self, scored: ScorerInput) -> dict[str, str]:
        if self.choices is not None:
            return _lettered(self.choices)
        for place in (scored.sample.inputs, scored.sample.metadata):
            for field in _FIELDS:
                if isinstance(found := place.get(field), list | tuple | Mapping):
                    return _lettered(cast("Any", found))
        return dict.fromkeys(_LETTERS, "")


def _lettered(choices: Sequence[Any] | Mapping[str, Any]) -> dict[str, str]:
    """Letters to the options' words. Raises: UsageError, unless there are 2 to 26 different options."""
    if isinstance(choices, Mapping):
        options = {key.strip().upper(): as_text(value, "an option") for key, value in choices.items()}
    else:
        options = dict(zip(_LETTERS, (as_text(value, "an option") for value in choices), strict=False))
    if not 2 <= len(choices) <= len(_LETTERS) or len({*map(_plain, options.values())}) != len(choices):
        raise UsageError(f"choice: expected 2 to {len(_LETTERS)} different options, got {len(choices)}")
    return options


def _wanted(target: Any, options: Mapping[str, str]) -> str:
    """The target's letter. Raises: UsageError, if it is not an option."""
    letters = list(options)
    if isinstance(target, int) and not isinstance(target, bool) and any(options.values()):
        if 0 <= target < len(letters):
            return letters[target]
    elif isinstance(target, str):
        by_words = [letter for letter, words in options.items() if words and _plain(words) == _plain(target)]
        if by_words:
            return by_words[0]
        match = _WHOLE.match(target)
        if match is not None and match[1].upper() in options:
            return match[1].upper()
    raise UsageError(f"the target {target!r:.80} is not one of the options {', '.join(letters)}")


def choose(text: str, options: Mapping[str, str]) -> tuple[str | None, str]:
    """The letter that a text chooses; None with the reason if it chooses none or several."""
    named, words_after = _by_letter(text, options)
    if named:
        words = {letter for letter in _by_words(words_after, options) if letter not in named}
        if len(named) == 1 and not words:
            return next(iter(named)), ""
        return None, f"ambiguous: {', '.join(sorted({*named, *words}))}"
    exact = [letter for letter, words in options.items() if words and _plain(words) == _plain(text)]
    found = exact or _by_words(text, options)
    if len(found) == 1:
        return found[0], ""
    return None, f"ambiguous: {', '.join(found)}" if found else "no option was chosen"


def _by_letter(text: str, options: Mapping[str, str]) -> tuple[set[str], str]:
    """The letters in the strongest statement of an answer, and the text after them on the same line."""
    labelled = [match for match in _LABELLED.finditer(text) if match[1].upper() in options]
    if labelled:
        last = labelled[-1]
        named, at = _with_others(text, last[1].upper(), last.end(), options)
        return named, _line_after(text, at) if re.match(r"[.):\s]*\s\S", text[last.end() - 1 :]) else ""
    for pattern in (_WHOLE, _LEADING):
        if pattern is _LEADING and (named := _at_the_end(text, options)):
            return named, ""
        match = pattern.match(text)
        if match is not None:
            letter = next(group for group in match.groups() if group).upper()
            if letter in options:
                named, at = _with_others(text, letter, match.end(), options)
                return named, _line_after(text, at)
    return {found for found in _BRACKETED.findall(text) if found in options}, ""


def _at_the_end(text: str, options: Mapping[str, str]) -> set[str]:
    """The letter of the last line or sentence, with those of other lines that are only an option; else empty."""
    *before, last = [part for part in _SENTENCES.split(text) if part.strip()] or [""]
    match = _LONE.match(last) or _THEREFORE.search(last[-100:])
    if match is None or match[1] not in options:
        return set()
    named = {match[1]}
    for part in before:
        lone = _LONE.match(part)
        if lone is not None and lone[1] in options:
            named.add(lone[1])
        named.update(letter for letter, words in options.items() if words and _plain(words) == _plain(part))
    return named


def _with_others(text: str, letter: str, at: int, options: Mapping[str, str]) -> tuple[set[str], int]:
    """The letter with those joined to it (`A or B`), and where they end."""
    named = {letter}
    while (more := _OR.match(text, at)) is not None and more[1].upper() in options:
        named.add(more[1].upper())
        at = more.end()
    return named, at


def _line_after(text: str, at: int) -> str:
    """The words after a letter, up to the end of the sentence or line, where its option would be."""
    return re.split(r"[\n.;,(]|\bbecause\b|\bnot\b", text[at : at + 300].lstrip(" .:)*-–—"), maxsplit=1)[0]


def _by_words(text: str, options: Mapping[str, str]) -> list[str]:
    """The options whose words are in the text; of nested options (`Guinea`, `Guinea-Bissau`) the longer."""
    rest, found = f" {_plain(text)} ", list[str]()
    for letter, words in sorted(options.items(), key=lambda item: -len(item[1])):
        plain = _plain(words)
        if not plain:
            continue
        pieces = re.split(rf"(?<!\w){re.escape(plain)}(?!\w)", rest)
        if len(pieces) > 1:
            found.append(letter)
            rest = "\x00".join(pieces)
    return sorted(found)


def _plain(text: str) -> str:
    return " ".join(normalize("NFC", text).casefold().strip(" \t\n.*_`\"'“”").split())
