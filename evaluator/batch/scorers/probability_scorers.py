"""Scorers of token probabilities: `confidence` of an answer, `loglikelihood` of the options of a
multiple choice, and `perplexity` of a text.

The last two ask the model that answered for the probabilities of a text (completions with `echo`),
as lm-eval does. A server without them is an error.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from evaluator.batch.records import Sample, Score
from evaluator.batch.scorers.builtin_scorer import (
    ResultScorer,
    ScoredExpression,
    evaluate,
    names_in,
    question_of,
    text_or_json,
)
from evaluator.batch.scorers.choice_scorer import CHOICE_FIELDS, options_of, wanted_letters
from evaluator.batch.scorers.contract import NO_TARGET, ScorerInput, binary_score
from evaluator.batch.scorers.model_graded import ModelGradedScorer
from evaluator.errors import UsageError
from evaluator.errors.results import Outcome, TaskError, Usage
from evaluator.lazy_dataclass import dataclass
from evaluator.models.logprobs import TokenLogprob, from_rows

_NO_LOGPROBS = (
    "the answer has no log probabilities: set logprobs in the <handler> of the template, or in the "
    "profile"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceScorer(ResultScorer):
    """The probability that the model gave its answer: of the `first` token, of `all` tokens
    together, or the geometric `mean` of the tokens. It decides nothing. The template needs
    `logprobs`.
    """

    type: ClassVar[str] = "confidence"
    take: Literal["mean", "all", "first"] = "mean"

    async def score(self, scored: ScorerInput) -> Score:
        tokens = from_rows(scored.outcome.notes.get("logprobs"))
        logprobs = [token.logprob for token in tokens if token.logprob is not None]
        if not logprobs:
            raise UsageError(_NO_LOGPROBS)
        if self.take == "first":
            logprobs = logprobs[:1]
        total = math.fsum(logprobs)
        if self.take == "mean":
            total /= len(logprobs)
        explanation = f"{len(logprobs):,} tokens"
        return Score(min(1.0, math.exp(total)), None, explanation=explanation, decides=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TextScorer(ModelGradedScorer):
    """A scorer that asks for the log probabilities of a text after a `context`, an expression."""

    asks_tested_model: ClassVar[bool] = True
    template: str = "score_text"
    context: ScoredExpression | None = None

    def needs_target(self) -> bool:
        return self.context is not None and "target" in names_in(self.context)

    def context_of(self, scored: ScorerInput) -> str | None:
        if self.context is None:
            return None
        return text_or_json(evaluate(self.context, scored))

    async def tokens_of(
        self, scored: ScorerInput, context: str, text: str
    ) -> tuple[Sequence[TokenLogprob], Outcome]:
        """The tokens of `text` after `context`. Blanks at the end of the context belong to the
        text, as tokens begin with them.

        Raises: UsageError, if the model gives none.
        """
        start = context.rstrip()
        options: dict[str, Any] = {}
        model = self.model or scored.outcome.notes.get("model")
        if isinstance(model, str):
            options["model"] = model
        outcome = await scored.evaluate(self.template, {"text": context + text}, **options)
        if isinstance(outcome, TaskError):
            raise UsageError(f"the model gave no log probabilities: {outcome}")
        found: list[TokenLogprob] = []
        length = 0
        for token in from_rows(outcome.notes.get("logprobs")):
            length += len(token.token)
            if length > len(start):
                found.append(token)
        if length != len(context + text):
            raise UsageError("the tokens are not those of the text: its blanks were changed")
        return found, outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class LoglikelihoodScorer(_TextScorer):
    """The option that the model finds most likely after the `context` (default: the question) and
    the `separator` is the target, as in multiple choice of lm-eval. `choices` as for `choice`.
    `normalise="characters"` divides by the number of characters of an option (acc_norm).

    `metadata`: `loglikelihoods` and `greedy` (whether each token was the most likely one) by
    letter, and the `probability` of the chosen option among the options.
    """

    type: ClassVar[str] = "loglikelihood"
    asks: ClassVar[int] = 26
    choices: Sequence[str] | Mapping[str, str] | None = None
    separator: str = " "
    normalise: Literal["characters"] | None = None

    def check_row(self, sample: Sample) -> None:
        if sample.target is not None:
            wanted_letters(sample.target, self._options(sample))

    def _options(self, sample: Sample) -> dict[str, str]:
        """Letters to options. Raises: UsageError, for a row without them."""
        options = options_of(self.choices, sample)
        if not any(options.values()):
            fields = " or ".join(f"`{name}`" for name in CHOICE_FIELDS)
            raise UsageError(
                f"the row has no list {fields} in its inputs or metadata; give it one, or name the "
                "options of all rows with choices="
            )
        return options

    async def judge(self, scored: ScorerInput) -> Score:
        target = scored.sample.target
        if target is None:
            return NO_TARGET
        options = self._options(scored.sample)
        context = self.context_of(scored)
        if context is None:
            context = question_of(scored.sample.inputs)
        given = await asyncio.gather(
            *(self.tokens_of(scored, context, self.separator + words) for words in options.values())
        )
        likelihoods = {
            letter: math.fsum(token.logprob or 0.0 for token in tokens)
            for letter, (tokens, _) in zip(options, given, strict=True)
        }
        ranked = dict(likelihoods)
        if self.normalise is not None:
            ranked = {letter: ranked[letter] / max(1, len(options[letter])) for letter in ranked}
        chosen = max(ranked, key=ranked.__getitem__)
        top = max(likelihoods.values())
        share = math.fsum(math.exp(value - top) for value in likelihoods.values())
        wanted = wanted_letters(target, options)
        score = binary_score(chosen in wanted, chosen)
        return Score(
            score.value,
            score.passed,
            answer=chosen,
            metadata={
                "loglikelihoods": likelihoods,
                "greedy": {
                    letter: all(token.is_most_likely for token in tokens)
                    for letter, (tokens, _) in zip(options, given, strict=True)
                },
                "probability": math.exp(likelihoods[chosen] - top) / share,
                "task_ids": [one.task_id for _, one in given if one.task_id is not None],
            },
            usage=sum((outcome.usage for _, outcome in given), Usage()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PerplexityScorer(_TextScorer):
    """The perplexity of the text (`of`, default: the answer) after the `context` (default: nothing,
    and the first token, which has no probability, does not count). It decides nothing.

    `metadata`: `loglikelihood`, and the number of `tokens`, `words` and `bytes`.
    """

    type: ClassVar[str] = "perplexity"

    async def judge(self, scored: ScorerInput) -> Score:
        text = self.text(scored)
        tokens, outcome = await self.tokens_of(scored, self.context_of(scored) or "", text)
        logprobs = [token.logprob for token in tokens if token.logprob is not None]
        if not logprobs:
            raise UsageError("the text has no token with a probability")
        total = math.fsum(logprobs)
        return Score(
            math.exp(-total / len(logprobs)),
            None,
            metadata={
                "loglikelihood": total,
                "tokens": len(logprobs),
                "words": len(text.split()),
                "bytes": len(text.encode(errors="surrogatepass")),
                "task_ids": [] if outcome.task_id is None else [outcome.task_id],
            },
            usage=outcome.usage,
            decides=False,
        )
