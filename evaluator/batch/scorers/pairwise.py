"""`pairwise`: which of two candidates a judge prefers, asked in both orders.

Judges prefer a place: often the first. So each pair is judged twice, and only what is preferred in both orders has won.
Anything else is a tie, which counts for neither: value 0.5, passed None. Source: Zheng et al., "Judging LLM-as-a-Judge
with MT-Bench and Chatbot Arena", 2023, section 3.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import NO_TARGET, Scored
from evaluator.batch.scorers.graders import Grader, Unjudged, judgement
from evaluator.batch.scorers.reading import check_expression, evaluate, names_in, question_of, written
from evaluator.errors import UsageError

_VERDICTS = {"a": ("win", 1.0), "b": ("loss", 0.0), "tie": ("tie", 0.5)}
_TURNED = {"a": "b", "b": "a", "tie": "tie"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairwise(Grader):
    """The text against another candidate, `other`: an expression, by default the target. Won in both orders is 1,
    lost in both 0, all else 0.5 and passed None. The template's answer has `winner`: A, B or tie; its inputs are
    `question`, `answer_a` and `answer_b`, and those of `inputs` besides.

    `metadata`: `verdicts` in both orders, the text first and then last, as win, loss or tie; `flipped`: they differ.
    """

    type: ClassVar[str] = "pairwise"
    template: str = "pairwise_compare"
    other: str = "target"

    def check(self) -> None:
        Grader.check(self)
        check_expression(self.type, "other", self.other)
        if taken := {"answer_a", "answer_b"} & set(self.inputs or ()):
            raise UsageError(f"pairwise: inputs names {', '.join(sorted(taken))}, which are the two candidates")

    def needs_target(self) -> bool:
        return "target" in names_in(self.other) or Grader.needs_target(self)

    def own_inputs(self, scored: Scored) -> dict[str, Any]:
        return {"question": question_of(scored.sample.inputs)}

    async def score(self, scored: Scored) -> Score:
        if scored.sample.target is None and self.needs_target():
            return NO_TARGET
        shared = {"question": question_of(scored.sample.inputs), **self.given(scored)}
        mine, other = self.text(scored), written(evaluate(self.other, scored))
        first, last = await asyncio.gather(
            self.ask(scored, {**shared, "answer_a": mine, "answer_b": other}),
            self.ask(scored, {**shared, "answer_a": other, "answer_b": mine}),
        )
        about = self.about()
        scores = [judgement(first, _read, about), judgement(last, partial(_read, turned=True), about)]
        usage = scores[0].usage + scores[1].usage
        metadata = {**scores[1].metadata, **scores[0].metadata}
        metadata["task_ids"] = [task for score in scores for task in score.metadata["task_ids"]]
        if errors := [score.error for score in scores if score.error is not None]:
            return Score(None, None, error=errors[0], metadata=metadata, usage=usage)
        verdicts = [str(score.answer) for score in scores]
        metadata |= {"verdicts": verdicts, "flipped": verdicts[0] != verdicts[1]}
        settled = verdicts[0] if verdicts[0] == verdicts[1] else "tie"
        value, passed = {"win": (1.0, True), "loss": (0.0, False), "tie": (0.5, None)}[settled]
        explanation = scores[0].explanation
        if metadata["flipped"]:
            explanation = f"the verdict changed with the order: {verdicts[0]} when shown first, {verdicts[1]} when last"
        return Score(value, passed, settled, explanation, metadata=metadata, usage=usage)


def _read(parsed: Any, turned: bool = False) -> Score:
    fields = cast("Mapping[str, Any]", parsed) if isinstance(parsed, Mapping) else {}
    winner = str(fields.get("winner", "")).strip().lower()
    if winner not in _VERDICTS:
        raise Unjudged(f"winner is {fields.get('winner')!r:.60}, expected A, B or tie")
    verdict, value = _VERDICTS[_TURNED[winner] if turned else winner]
    return Score(value, None, verdict, str(fields.get("reason", "")))
