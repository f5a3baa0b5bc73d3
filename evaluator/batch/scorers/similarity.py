"""`similarity`: how near the text is to the target in meaning, by embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, ClassVar

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import NO_TARGET, Scored, on_scale
from evaluator.batch.scorers.reading import OfResult, targets
from evaluator.errors import ProviderError, UsageError
from evaluator.memory.embedding import Embedder, embed
from evaluator.results import Usage

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity(OfResult):
    """The cosine of the embeddings of text and target, at least 0; of several targets the best. What counts as near
    differs from model to model, so `pass_at` has no default. `model` is LiteLLM's name of an embedding model; from
    Python, `embedder` may be anything that embeds. An empty text is 0, without a call."""

    type: ClassVar[str] = "similarity"
    pass_at: float
    model: str | None = None
    embedder: Any = None

    def check(self) -> None:
        if (self.model is None) == (self.embedder is None):
            raise UsageError("similarity needs a model (openai/text-embedding-3-small) or an embedder, not both")
        if self.embedder is not None and not (hasattr(self.embedder, "name") and hasattr(self.embedder, "embed")):
            raise UsageError(
                f"similarity: embedder is {type(self.embedder).__name__}, expected one with name and embed"
            )

    def describe(self) -> dict[str, Any]:
        described = OfResult.describe(self)
        return {**described, "embedder": None if self.embedder is None else str(self.embedder.name)}

    async def score(self, scored: Scored) -> Score:
        wanted = targets(scored)
        if not wanted:
            return NO_TARGET
        text = self.text(scored)
        if not text.strip():
            return on_scale(0.0, self.pass_at, explanation="the answer is empty")
        hosted = _Hosted(self.model) if self.model is not None else None
        embedder: Embedder = self.embedder if hosted is None else hosted
        mine, *others = await embed(embedder, [text, *wanted])
        if any(len(other) != len(mine) for other in others):
            raise UsageError(f"embedder {embedder.name} gave vectors of different lengths")
        cosine = max(sum(map(mul, mine, other)) for other in others)
        used = Usage(cost_usd=None, input_tokens=None) if hosted is None else hosted.usage
        # Vectors are kept in single precision: equal texts come to a hair below 1.
        return on_scale(min(1.0, max(0.0, round(cosine, 6))), self.pass_at, usage=used)


class _Hosted:
    """One call of an embedding model through LiteLLM, with what it used."""

    def __init__(self, model: str) -> None:
        self.name = model
        self.usage = Usage(input_tokens=None, cost_usd=None)

    async def embed(self, texts: list[str]) -> Sequence[Sequence[float]]:
        from evaluator.handler._litellm_guard import CallGuard
        from evaluator.handler.litellm_backend import load_litellm
        from evaluator.handler.prices import cost_usd

        litellm: Any = await asyncio.to_thread(load_litellm)
        # The guard holds back the retries that LiteLLM makes whatever it is told.
        with CallGuard() as guard:
            try:
                answer = await litellm.aembedding(model=self.name, input=texts, max_retries=0, timeout=TIMEOUT_S)
            except Exception as error:
                raise guard.failure or _told(error, self.name) from error
        tokens = getattr(answer.usage, "prompt_tokens", None) or None
        used = Usage(input_tokens=tokens, turns=1)
        self.usage = Usage(input_tokens=tokens, cost_usd=cost_usd(self.name, used), turns=1)
        rows = sorted(answer.data, key=lambda row: row["index"])
        return [row["embedding"] for row in rows]


def _told(error: BaseException, model: str) -> BaseException:
    """The error, but for one that is about the call which was held back: it hides the answer to the first."""
    from evaluator.handler._litellm_guard import ResponseRefused

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ResponseRefused):
            return ProviderError(f"{model} answered with a server error", kind="server", retryable=True)
        seen = seen.__cause__ or seen.__context__
    return error
