"""Scorers that compare texts: by their words, or by their meaning.

A pattern of `regex` may come from a row, so it is data: no pattern and no text may delay the batch.
Python's `re` cannot be stopped, so the `regex` library is used: it supports `re`'s syntax and a
time limit. A search gets 10 ms on the event loop; a longer one is repeated in a thread, without the
interpreter's lock, with one second. After that the score is an error. So is a pattern that would
take too long or too much memory to compile: more than 1,000 characters, or more than 10,000 with
its repeats expanded.
"""

from __future__ import annotations

import asyncio
import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import Any, ClassVar, Literal
from unicodedata import category, normalize

from evaluator import patterns
from evaluator.batch.records import Score
from evaluator.batch.scorers.benchmark_scorers import squad_normal
from evaluator.batch.scorers.builtin_scorer import (
    ResultScorer,
    TargetScorer,
    expected_one_of,
    shown,
    targets,
)
from evaluator.batch.scorers.contract import NO_TARGET, ScorerInput, binary_score, graded_score
from evaluator.errors import UsageError
from evaluator.errors.results import Usage
from evaluator.fields import Share
from evaluator.files.project_code import import_extra
from evaluator.lazy_dataclass import frozen
from evaluator.memory.embedding import Embedder, embed

_CORRECT = Score(1.0, True)


class _Punctuation(dict[int, "int | None"]):
    """A table for `str.translate` that removes Unicode punctuation and ASCII symbols."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        is_punctuation = character in string.punctuation or category(character).startswith("P")
        self[code] = kept = None if is_punctuation else code
        return kept


PUNCTUATION = _Punctuation()


@frozen(kw_only=True)
class _StringScorer(TargetScorer):
    ignore_case: bool = False
    ignore_punctuation: bool = False
    ignore_whitespace: bool = False

    def normal(self, text: str) -> str:
        """NFC and trimmed, without what is ignored. Ignoring punctuation also collapses white
        space.
        """
        text = normalize("NFC", text)
        if self.ignore_case:
            text = normalize("NFC", text.casefold())
        if self.ignore_punctuation:
            text = " ".join(text.translate(PUNCTUATION).split())
        if self.ignore_whitespace:
            return "".join(text.split())
        return text.strip()


class _SquadAnswers:
    """The arguments `normalise` and `unanswerable`, which a scorer declares as fields."""

    __slots__ = ()
    type: ClassVar[str]
    normalise: Literal["squad"] | None
    unanswerable: str | None

    def check(self) -> None:
        no_answer = self.unanswerable
        if no_answer is not None and (self.normalise is None or not squad_normal(no_answer)):
            raise UsageError(
                f'{self.type}: unanswerable is a text with words, and needs normalise="squad"'
            )

    def wanted(self, scored: ScorerInput) -> list[str]:
        """As `TargetScorer.wanted`; with `unanswerable`, an empty list is the target "no
        answer".
        """
        if scored.sample.target == [] and self.unanswerable is not None:
            return [""]
        return targets(scored)

    def squad_text(self, text: str) -> str:
        """The normalised text; empty for an answer that there is no answer."""
        normal = squad_normal(text)
        if self.unanswerable is not None and normal == squad_normal(self.unanswerable):
            return ""
        return normal


@frozen(kw_only=True)
class ExactScorer(_SquadAnswers, _StringScorer):
    """The text equals the target, or one of several targets. `normalise="squad"` compares as
    SQuAD's script does: without case, ASCII punctuation and articles; with it `unanswerable` is the
    text that stands for "no answer", which is right where the target is an empty text or list.
    """

    type: ClassVar[str] = "exact"
    normalise: Literal["squad"] | None = None
    unanswerable: str | None = None

    def normal(self, text: str) -> str:
        """As `squad_normal`, or NFC and trimmed, without what is ignored."""
        if self.normalise is None:
            return _StringScorer.normal(self, text)
        return self.squad_text(text)

    async def compare(self, text: str, wanted: list[str]) -> Score:
        text = self.normal(text)
        for target in wanted:
            if text == self.normal(target):
                return _CORRECT
        return binary_score(
            False, explanation=f"{expected_one_of(map(shown, wanted))}, got {shown(text)}"
        )


@frozen(kw_only=True)
class IncludesScorer(_StringScorer):
    """The text contains the target: one of several targets, or with `match="all"` each of them.
    `whole_words`: not as part of a longer word or number.
    """

    type: ClassVar[str] = "includes"
    match: Literal["any", "all"] = "any"
    whole_words: bool = False

    async def compare(self, text: str, wanted: list[str]) -> Score:
        text = self.normal(text)
        found: list[str] = []
        for target in wanted:
            part = self.normal(target)
            if not part:
                raise UsageError(f"the target {shown(target)} is empty, so every text includes it")
            if part in text and (not self.whole_words or _has_words(text, part)):
                found.append(target)
                if self.match == "any":
                    return Score(1.0, True, answer=target)
        missing = [target for target in wanted if target not in found]
        if not missing:
            return Score(1.0, True, answer=", ".join(found))
        return binary_score(
            False,
            ", ".join(found) or None,
            explanation=f"not in the text: {', '.join(map(shown, missing[:5]))}",
        )


def _has_words(text: str, part: str) -> bool:
    """Whether `text` has `part`, and not only as part of a longer word."""
    if re.match(r"\w", part):
        before = r"(?<!\w)"
    else:
        before = ""
    if re.search(r"\w\Z", part):
        after = r"(?!\w)"
    else:
        after = ""
    return re.search(before + re.escape(part) + after, text) is not None


MAX_PATTERN_CHARS = 1_000
INLINE_S = 0.01
TIMEOUT_S = 1.0


@frozen(kw_only=True)
class RegexScorer(ResultScorer):
    """`pattern` is found in the text; without one, the target is the pattern, or a list of
    alternatives. `full`: it has to match the whole text, trimmed. With `group` (a number or name)
    the text of that group has to be the target.
    """

    type: ClassVar[str] = "regex"
    pattern: str | None = None
    group: int | str | None = None
    ignore_case: bool = False
    full: bool = False

    def check(self) -> None:
        if self.pattern is None:
            if self.group is not None:
                raise UsageError(
                    "regex: group needs a pattern, as its text is compared with the target"
                )
            return
        compiled = compile_pattern(self.pattern, self.ignore_case)
        if isinstance(self.group, int) and not 0 <= self.group <= compiled.groups:
            raise UsageError(
                f"regex: the pattern has {compiled.groups} groups, not a group {self.group}"
            )
        if isinstance(self.group, str) and self.group not in compiled.groupindex:
            names = ", ".join(compiled.groupindex) or "none"
            raise UsageError(f"regex: the pattern has no group {self.group!r} (named: {names})")

    async def score(self, scored: ScorerInput) -> Score:
        text = self.text(scored)
        if self.pattern is None or self.group is not None:
            wanted = targets(scored)
        else:
            wanted = []
        if self.pattern is None:
            patterns = wanted
        else:
            patterns = [self.pattern]
        if not patterns or (self.group is not None and not wanted):
            return NO_TARGET
        for pattern in patterns:
            match = await self._search(compile_pattern(pattern, self.ignore_case), text)
            if match is None:
                continue
            caught = match[0 if self.group is None else self.group]
            if self.group is None:
                return binary_score(True, caught)
            return self._compare(caught, wanted)
        return binary_score(
            False, explanation=f"no match of {' or '.join(map(shown, patterns[:3]))}"
        )

    def _compare(self, caught: str | None, wanted: list[str]) -> Score:
        if caught is None:
            return binary_score(
                False, explanation=f"group {self.group} did not participate in the match"
            )
        fold = str.casefold if self.ignore_case else str
        if fold(caught.strip()) in {fold(target.strip()) for target in wanted}:
            return binary_score(True, caught)
        return binary_score(
            False,
            caught,
            explanation=f"{expected_one_of(map(shown, wanted))}, caught {shown(caught)}",
        )

    async def _search(self, compiled: Any, text: str) -> Any:
        if self.full:
            find = compiled.fullmatch
        else:
            find = compiled.search
        text = text.strip() if self.full else text
        try:
            return find(text, timeout=INLINE_S)
        except TimeoutError:
            try:
                return await asyncio.to_thread(find, text, timeout=TIMEOUT_S, concurrent=True)
            except TimeoutError as error:
                raise UsageError(
                    f"the pattern {shown(compiled.pattern)} took more than {TIMEOUT_S:g} s on "
                    f"{len(text)} characters; "
                    "avoid nested repeats"
                ) from error


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str, ignore_case: bool = False) -> Any:
    """The compiled pattern. Raises: UsageError, for an invalid or too large one."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise UsageError(
            f"a pattern has {len(pattern)} characters; the limit is {MAX_PATTERN_CHARS}"
        )
    try:
        return patterns.compile_pattern(pattern, ignore_case)
    except patterns.BadPattern as error:
        raise UsageError(f"the pattern {shown(pattern)} {error}") from error


_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_LARGE = 20_000


def tokens(text: str) -> list[str]:
    """Lower-case words without punctuation and English articles, as in SQuAD's evaluation."""
    return _ARTICLES.sub(" ", normalize("NFC", text).lower().translate(PUNCTUATION)).split()


def token_f1(expected: str, found: str) -> float:
    """The harmonic mean of precision and recall over words with their multiplicity, in [0, 1].

    Without words in either text it is 1 if both have none, else 0. On ASCII text it equals the
    published script; Unicode punctuation is ignored as well. Source: Rajpurkar et al., "SQuAD:
    100,000+ Questions for Machine Comprehension of Text", 2016, and the evaluation script of SQuAD
    2.0.
    """
    return _words_f1(tokens(expected), tokens(found))


def _words_f1(wanted: list[str], given: list[str]) -> float:
    if not wanted or not given:
        return float(wanted == given)
    common = (Counter(wanted) & Counter(given)).total()
    return 2 * common / (len(wanted) + len(given))


@frozen(kw_only=True)
class F1Scorer(_SquadAnswers, TargetScorer):
    """The F1 of the text's words and the target's; the best of several targets. `normalise` and
    `unanswerable` are those of `exact`; without `normalise` Unicode punctuation is ignored too.
    """

    type: ClassVar[str] = "f1"
    pass_at: Share = 0.5
    normalise: Literal["squad"] | None = None
    unanswerable: str | None = None

    async def compare(self, text: str, wanted: list[str]) -> Score:
        if self.normalise is None:
            return graded_score(max(token_f1(target, text) for target in wanted), self.pass_at)
        answer = self.squad_text(text).split()
        best = max(_words_f1(self.squad_text(target).split(), answer) for target in wanted)
        return graded_score(best, self.pass_at)


@frozen(kw_only=True)
class RougeLScorer(TargetScorer):
    """ROUGE-L's F measure of the text and the target; the best of several targets. `stem` reduces
    words to their English stems. `tokenizer="unicode"` is for languages other than English, as the
    default knows only a-z and 0-9; it does not support `stem`.

    Computed by the library rouge-score-rs, whose scores equal those of Google's rouge-score.
    Source: Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004.
    """

    type: ClassVar[str] = "rouge_l"
    pass_at: Share = 0.5
    stem: bool = False
    tokenizer: Literal["ascii", "unicode"] = "ascii"

    def check(self) -> None:
        if self.stem and self.tokenizer == "unicode":
            raise UsageError(
                "rouge_l: stem needs the tokenizer ascii, as it reduces English words; leave out "
                "stem or tokenizer"
            )
        _rouge(self.stem, self.tokenizer)

    async def compare(self, text: str, wanted: list[str]) -> Score:
        rouge = _rouge(self.stem, self.tokenizer)
        if self.tokenizer == "ascii":
            for target in wanted:
                if target.strip() and not re.search(r"[a-z0-9]", target.lower()):
                    raise UsageError(
                        f"the target {shown(target)} has no word of a-z and 0-9; use "
                        "tokenizer='unicode'"
                    )
        if len(text) + max(map(len, wanted)) < _LARGE:
            found = rouge.score_multi(wanted, text)
        else:
            found = await asyncio.to_thread(rouge.score_multi, wanted, text)
        best = found["rougeL"]
        value = min(1.0, best.fmeasure)
        return graded_score(
            value, self.pass_at, metadata={"precision": best.precision, "recall": best.recall}
        )


@lru_cache(maxsize=8)
def _rouge(stem: bool, tokenizer: str) -> Any:
    """Raises: MissingExtra."""
    rouge_scorer = import_extra("rouge_score_rs.rouge_scorer", "rouge")
    tokenizers = import_extra("rouge_score_rs.tokenizers", "rouge")
    if tokenizer == "unicode":
        chosen = tokenizers.UnicodeTokenizer()
    else:
        chosen = None
    return rouge_scorer.RougeScorer(["rougeL"], use_stemmer=stem, tokenizer=chosen)


EMBEDDING_TIMEOUT_S = 60.0


@frozen(kw_only=True)
class SimilarityScorer(TargetScorer):
    """The cosine of the embeddings of text and target, at least 0; the best of several targets.
    Useful thresholds differ from model to model, so `pass_at` has no default. `model` is LiteLLM's
    name of an embedding model; from Python, `embedder` may be any object with `name` and `embed`.
    An empty text scores 0 without a call.
    """

    type: ClassVar[str] = "similarity"
    pass_at: Share
    model: str | None = None
    embedder: Any = None

    def check(self) -> None:
        if self.model is None and self.embedder is None:
            raise UsageError("similarity needs a model, as in model=openai/text-embedding-3-small")
        if self.model is not None and self.embedder is not None:
            raise UsageError("similarity needs a model or an embedder, not both")
        if self.embedder is not None and not (
            hasattr(self.embedder, "name") and hasattr(self.embedder, "embed")
        ):
            raise UsageError(
                f"similarity: embedder is {type(self.embedder).__name__}, expected one with name "
                "and embed"
            )

    def describe(self) -> dict[str, Any]:
        described = TargetScorer.describe(self)
        return {**described, "embedder": None if self.embedder is None else str(self.embedder.name)}

    async def compare(self, text: str, wanted: list[str]) -> Score:
        if not text.strip():
            return graded_score(0.0, self.pass_at, explanation="the answer is empty")
        embedder: Embedder
        if self.model is None:
            embedder = self.embedder
        else:
            embedder = _HostedEmbedder(self.model)
        mine, *others = await embed(embedder, [text, *wanted])
        if any(len(other) != len(mine) for other in others):
            raise UsageError(f"embedder {embedder.name} returned vectors of different lengths")
        cosine = max(sum(map(mul, mine, other)) for other in others)
        if isinstance(embedder, _HostedEmbedder):
            usage = embedder.usage
        else:
            usage = Usage(cost_usd=None, input_tokens=None)
        # Vectors have single precision: equal texts score slightly below 1.
        return graded_score(min(1.0, max(0.0, round(cosine, 6))), self.pass_at, usage=usage)


class _HostedEmbedder:
    """One call of an embedding model through LiteLLM, with its usage."""

    def __init__(self, model: str) -> None:
        self.name = model
        self.usage = Usage(input_tokens=None, cost_usd=None)

    async def embed(self, texts: list[str]) -> Sequence[Sequence[float]]:
        from evaluator.models.litellm_backend import embed_texts

        vectors, self.usage = await embed_texts(self.name, texts, timeout_s=EMBEDDING_TIMEOUT_S)
        return vectors
