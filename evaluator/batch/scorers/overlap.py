"""`f1` and `rouge_l`: how much of the target's words a text has."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal
from unicodedata import normalize

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import NO_TARGET, Scored, on_scale
from evaluator.batch.scorers.reading import OfResult, shown, targets
from evaluator.batch.scorers.text import PUNCTUATION
from evaluator.errors import MissingExtra, UsageError

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_LARGE = 20_000


def tokens(text: str) -> list[str]:
    """Lower-case words without punctuation and English articles, as SQuAD's evaluation takes them."""
    return _ARTICLES.sub(" ", normalize("NFC", text).lower().translate(PUNCTUATION)).split()


def token_f1(expected: str, found: str) -> float:
    """The harmonic mean of precision and recall over words, counted as often as they occur, in [0, 1].

    Where either has no words it is 1 if neither has any, else 0. On ASCII text equal to the published script; beyond
    it, Unicode's punctuation is left out too. Source: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine
    Comprehension of Text", 2016, and the evaluation script of SQuAD 2.0.
    """
    wanted, given = tokens(expected), tokens(found)
    if not wanted or not given:
        return float(wanted == given)
    common = (Counter(wanted) & Counter(given)).total()
    return 2 * common / (len(wanted) + len(given))


@dataclass(frozen=True, slots=True, kw_only=True)
class F1(OfResult):
    """The F1 of the text's words and the target's; of several targets the best."""

    type: ClassVar[str] = "f1"
    pass_at: float = 0.5

    async def score(self, scored: Scored) -> Score:
        wanted = targets(scored)
        if not wanted:
            return NO_TARGET
        text = self.text(scored)
        return on_scale(max(token_f1(target, text) for target in wanted), self.pass_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class RougeL(OfResult):
    """ROUGE-L's F measure of the text and the target; of several targets the best. `stem`: words are cut to their
    English stems. `tokenizer="unicode"` is for languages other than English: the usual one knows a-z and 0-9 only; it
    takes no `stem`.

    By the library rouge-score-rs, whose scores equal those of Google's rouge-score. Source: Lin, "ROUGE: A
    Package for Automatic Evaluation of Summaries", 2004.
    """

    type: ClassVar[str] = "rouge_l"
    pass_at: float = 0.5
    stem: bool = False
    tokenizer: Literal["ascii", "unicode"] = "ascii"

    def check(self) -> None:
        if self.stem and self.tokenizer == "unicode":
            raise UsageError(
                "rouge_l: stem cuts English words, which the tokenizer ascii reads; with tokenizer=unicode words stay "
                "as they are: leave one of the two out"
            )
        _rouge(self.stem, self.tokenizer)

    async def score(self, scored: Scored) -> Score:
        wanted = targets(scored)
        if not wanted:
            return NO_TARGET
        text = self.text(scored)
        rouge = _rouge(self.stem, self.tokenizer)
        if self.tokenizer == "ascii":
            for target in wanted:
                if target.strip() and not re.search(r"[a-z0-9]", target.lower()):
                    raise UsageError(f"the target {shown(target)} has no word of a-z and 0-9; use tokenizer='unicode'")
        if len(text) + max(map(len, wanted)) < _LARGE:
            found = rouge.score_multi(wanted, text)
        else:
            found = await asyncio.to_thread(rouge.score_multi, wanted, text)
        best = found["rougeL"]
        value = min(1.0, best.fmeasure)
        return on_scale(value, self.pass_at, metadata={"precision": best.precision, "recall": best.recall})


@lru_cache(maxsize=8)
def _rouge(stem: bool, tokenizer: str) -> Any:
    """Raises: MissingExtra."""
    try:
        from rouge_score_rs import rouge_scorer, tokenizers
    except ImportError as error:
        raise MissingExtra("rouge-score-rs", "rouge") from error
    chosen = tokenizers.UnicodeTokenizer() if tokenizer == "unicode" else None
    return rouge_scorer.RougeScorer(["rougeL"], use_stemmer=stem, tokenizer=chosen)
