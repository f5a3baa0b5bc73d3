"""`exact` and `includes`: texts held against texts."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import ClassVar, Literal
from unicodedata import category, normalize

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import NO_TARGET, Scored, yes_or_no
from evaluator.batch.scorers.reading import OfResult, shown, targets
from evaluator.errors import UsageError

_RIGHT = Score(1.0, True)


class _Punctuation(dict[int, "int | None"]):
    """For `str.translate`: takes out what Unicode calls punctuation, and the symbols among ASCII's."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        is_punctuation = character in string.punctuation or category(character).startswith("P")
        self[code] = kept = None if is_punctuation else code
        return kept


PUNCTUATION = _Punctuation()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparing(OfResult):
    ignore_case: bool = False
    ignore_punctuation: bool = False
    ignore_whitespace: bool = False

    def normal(self, text: str) -> str:
        """NFC and trimmed, without what is ignored; with punctuation, runs of white space become one space."""
        text = normalize("NFC", text)
        if self.ignore_case:
            text = normalize("NFC", text.casefold())
        if self.ignore_punctuation:
            text = " ".join(text.translate(PUNCTUATION).split())
        return "".join(text.split()) if self.ignore_whitespace else text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact(_Comparing):
    """The text is the target, or one of several targets."""

    type: ClassVar[str] = "exact"

    async def score(self, scored: Scored) -> Score:
        wanted = targets(scored)
        if not wanted:
            return NO_TARGET
        text = self.normal(self.text(scored))
        for target in wanted:
            if text == self.normal(target):
                return _RIGHT
        return yes_or_no(False, explanation=f"expected {' or '.join(map(shown, wanted[:3]))}, got {shown(text)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Includes(_Comparing):
    """The text has the target in it: one of several targets, or with `match="all"` each of them. `whole_words`: not
    as a part of a longer word or number."""

    type: ClassVar[str] = "includes"
    match: Literal["any", "all"] = "any"
    whole_words: bool = False

    async def score(self, scored: Scored) -> Score:
        wanted = targets(scored)
        if not wanted:
            return NO_TARGET
        text = self.normal(self.text(scored))
        found: list[str] = []
        for target in wanted:
            part = self.normal(target)
            if not part:
                raise UsageError(f"the target {shown(target)} is empty, and every text includes it")
            if self._holds(text, part):
                found.append(target)
                if self.match == "any":
                    return Score(1.0, True, target)
        missing = [target for target in wanted if target not in found]
        if not missing:
            return Score(1.0, True, ", ".join(found))
        return yes_or_no(False, ", ".join(found) or None, f"not in the text: {', '.join(map(shown, missing[:5]))}")

    def _holds(self, text: str, part: str) -> bool:
        if not self.whole_words or part not in text:
            return part in text
        before = r"(?<!\w)" if re.match(r"\w", part) else ""
        after = r"(?!\w)" if re.search(r"\w\Z", part) else ""
        return re.search(before + re.escape(part) + after, text) is not None
