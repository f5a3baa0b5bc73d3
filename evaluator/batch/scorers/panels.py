"""Scorers that ask several judges, one judge about two candidates, or for the probabilities of
tokens.

`majority`: several judges vote. A judge that fails has no vote, and too few votes are an
error.

`pairwise`: a judge chooses the better of two candidates, and is asked in both orders.
Judges tend to prefer one position, often the first. So each pair is judged twice, and only a
candidate that is preferred in both orders wins. Anything else is a tie: value 0.5, passed None.
Source: Zheng et al., "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena", 2023, section 3.4.

`confidence` of an answer, `loglikelihood` of the options of a multiple choice, and `perplexity` of
a text: the last two ask the model that answered for the probabilities of a text (completions with
`echo`), as lm-eval does. A server without them is an error.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self, cast

from evaluator.batch.records import Sample, Score
from evaluator.batch.scorers.builtin_scorer import (
    BuiltinScorer,
    ResultScorer,
    ScoredExpression,
    evaluate,
    names_in,
    question_of,
    text_or_json,
)
from evaluator.batch.scorers.choice_scorer import CHOICE_FIELDS, options_of, wanted_letters
from evaluator.batch.scorers.contract import (
    NO_TARGET,
    Scorer,
    ScorerInput,
    binary_score,
    run_scorer,
    score_names,
)
from evaluator.batch.scorers.model_graded import (
    InvalidJudgement,
    ModelGradedScorer,
    combined_score,
    fields_of,
    judgement,
)
from evaluator.errors import UsageError
from evaluator.errors.results import Outcome, TaskError, Usage
from evaluator.lazy_dataclass import frozen
from evaluator.models.logprobs import TokenLogprob, from_rows


@frozen(kw_only=True)
class MajorityScorer(BuiltinScorer):
    """The vote of most `graders` (names, tables or scorers): 1 and passed, 0 and failed, or 0.5 and
    passed None for a tie. One with an error, or one that cannot judge, has no vote; with fewer
    votes than `quorum` (default: more than half of them) the score is an error. To ask one judge
    several times, or several models, a scorer that asks a judge has `judge_epochs` and `judges`.

    `metadata` is that of `combined_score`.
    """

    type: ClassVar[str] = "majority"
    graders: Sequence[Scorer]
    quorum: int | None = None

    @classmethod
    def from_arguments(
        cls, arguments: Mapping[str, Any], make_scorer: Callable[[Any], Scorer]
    ) -> Self:
        made = dict(arguments)
        graders = made.get("graders")
        if isinstance(graders, list | tuple):
            made["graders"] = [make_scorer(spec) for spec in cast("Sequence[Any]", graders)]
        return cls.from_table(made)

    def check(self) -> None:
        names = [scorer.name for scorer in self.graders]
        graders = tuple(
            scorer if names.count(scorer.name) == 1 else _renamed(scorer, f"{scorer.name}.{place}")
            for place, scorer in enumerate(self.graders, 1)
        )
        if len(graders) < 2:
            raise UsageError(
                "majority needs two graders or more; to ask one judge several times: "
                "reference:judge_epochs=3"
            )
        if several := next((each for each in graders if len(score_names(each)) > 1), None):
            raise UsageError(
                f"majority: {several.name} has several values, and a judge has one vote"
            )
        if self.quorum is not None and not 1 <= self.quorum <= len(graders):
            raise UsageError(
                f"majority: quorum is {self.quorum}, expected 1 to {len(graders)}, the number of "
                "graders"
            )
        object.__setattr__(self, "graders", graders)

    def describe(self) -> dict[str, Any]:
        described = [grader.describe() for grader in self.graders]
        templates = sorted({name for each in described for name in each.get("templates", ())})
        return {
            "type": self.type,
            "members": described,
            "quorum": self._quorum(),
            "templates": templates,
        }

    def _quorum(self) -> int:
        if self.quorum is None:
            return len(self.graders) // 2 + 1
        return self.quorum

    async def score(self, scored: ScorerInput) -> Score:
        given = await asyncio.gather(*(run_scorer(grader, scored) for grader in self.graders))
        votes = {
            grader.name: score if score.passed is not None else replace(score, value=None)
            for grader, score in zip(self.graders, given, strict=True)
        }
        score = combined_score(votes, self._quorum())
        if score.value is None:
            return score
        if score.passed is None:
            value = 0.5
        else:
            value = float(score.passed)
        return replace(score, value=value, answer=None)


def _renamed(scorer: Scorer, name: str) -> Scorer:
    if not is_dataclass(scorer):
        raise UsageError(f"majority: two judges are named {scorer.name!r}; give one another name")
    return cast("Scorer", replace(cast("Any", scorer), name=name))


_VERDICTS = {"a": ("win", 1.0), "b": ("loss", 0.0), "tie": ("tie", 0.5)}
_SWAPPED = {"a": "b", "b": "a", "tie": "tie"}


@frozen(kw_only=True)
class PairwiseScorer(ModelGradedScorer):
    """The text against another candidate, `other`: an expression, by default the target. A win in
    both orders is 1, a loss in both 0, anything else 0.5 and passed None. The template's answer has
    `winner`: A, B or tie; its inputs are `question`, `answer_a` and `answer_b`, and those of
    `inputs`.

    `metadata`: `verdicts` with the text first and with the text last, as win, loss or tie;
    `flipped`: they differ.
    """

    type: ClassVar[str] = "pairwise"
    template: str = "pairwise_compare"
    asks: ClassVar[int] = 2

    other: ScoredExpression = "target"

    def check(self) -> None:
        if taken := {"answer_a", "answer_b"} & set(self.inputs or ()):
            raise UsageError(
                f"pairwise: inputs names {', '.join(sorted(taken))}, which are the two candidates"
            )

    def needs_target(self) -> bool:
        return "target" in names_in(self.other) or ModelGradedScorer.needs_target(self)

    def own_inputs(self, scored: ScorerInput) -> dict[str, Any]:
        return {"question": question_of(scored.sample.inputs)}

    async def judge(self, scored: ScorerInput) -> Score:
        if scored.sample.target is None and self.needs_target():
            return NO_TARGET
        shared = {"question": question_of(scored.sample.inputs), **self.judge_inputs(scored)}
        mine = self.text(scored)
        other = text_or_json(evaluate(self.other, scored))
        first, last = await asyncio.gather(
            self.ask(scored, {**shared, "answer_a": mine, "answer_b": other}),
            self.ask(scored, {**shared, "answer_a": other, "answer_b": mine}),
        )
        about = self.about()
        scores = [
            judgement(first, _read, about=about),
            judgement(last, partial(_read, swapped=True), about=about),
        ]
        usage = scores[0].usage + scores[1].usage
        metadata = {**scores[1].metadata, **scores[0].metadata}
        metadata["task_ids"] = [task for score in scores for task in score.metadata["task_ids"]]
        if errors := [score.error for score in scores if score.error is not None]:
            return Score(None, None, error=errors[0], metadata=metadata, usage=usage)
        verdicts = [str(score.answer) for score in scores]
        metadata |= {"verdicts": verdicts, "flipped": verdicts[0] != verdicts[1]}
        if metadata["flipped"]:
            settled = "tie"
        else:
            settled = verdicts[0]
        value, passed = {"win": (1.0, True), "loss": (0.0, False), "tie": (0.5, None)}[settled]
        explanation = scores[0].explanation
        if metadata["flipped"]:
            explanation = (
                f"the verdict changed with the order: {verdicts[0]} when shown first, "
                f"{verdicts[1]} when last"
            )
        return Score(
            value, passed, answer=settled, explanation=explanation, metadata=metadata, usage=usage
        )


def _read(parsed: Any, swapped: bool = False) -> Score:
    fields = fields_of(parsed)
    winner = str(fields.get("winner", "")).strip().lower()
    if winner not in _VERDICTS:
        raise InvalidJudgement(f"winner is {fields.get('winner')!r:.60}, expected A, B or tie")
    verdict, value = _VERDICTS[_SWAPPED[winner] if swapped else winner]
    return Score(value, None, answer=verdict, explanation=str(fields.get("reason", "")))


_NO_LOGPROBS = (
    "the answer has no log probabilities: set logprobs in the <handler> of the template, or in the "
    "profile"
)


@frozen(kw_only=True)
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


@frozen(kw_only=True)
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


@frozen(kw_only=True)
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


@frozen(kw_only=True)
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
