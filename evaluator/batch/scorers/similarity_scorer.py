"""`similarity`: the similarity in meaning of the text and the target, by embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, ClassVar

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import graded_score
from evaluator.batch.scorers.result_scorer import TargetScorer
from evaluator.errors import UsageError
from evaluator.errors.results import Usage
from evaluator.memory.embedding import Embedder, embed

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityScorer(TargetScorer):
    """The cosine of the embeddings of text and target, at least 0; the best of several targets.
    Useful thresholds differ from model to model, so `pass_at` has no default. `model` is LiteLLM's
    name of an embedding model; from Python, `embedder` may be any object with `name` and `embed`.
    An empty text scores 0 without a call.
    """

    type: ClassVar[str] = "similarity"
    pass_at: float
    model: str | None = None
    embedder: Any = None

    def check(self) -> None:
        if (self.model is None) == (self.embedder is None):
            raise UsageError(
                "similarity needs a model (openai/text-embedding-3-small) or an embedder, not both"
            )
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
        if self.model is not None:
            hosted = _HostedEmbedder(self.model)
        else:
            hosted = None
        embedder: Embedder = self.embedder if hosted is None else hosted
        mine, *others = await embed(embedder, [text, *wanted])
        if any(len(other) != len(mine) for other in others):
            raise UsageError(f"embedder {embedder.name} returned vectors of different lengths")
        cosine = max(sum(map(mul, mine, other)) for other in others)
        if hosted is None:
            used = Usage(cost_usd=None, input_tokens=None)
        else:
            used = hosted.usage
        # Vectors have single precision: equal texts score slightly below 1.
        return graded_score(min(1.0, max(0.0, round(cosine, 6))), self.pass_at, usage=used)


class _HostedEmbedder:
    """One call of an embedding model through LiteLLM, with its usage."""

    def __init__(self, model: str) -> None:
        self.name = model
        self.usage = Usage(input_tokens=None, cost_usd=None)

    async def embed(self, texts: list[str]) -> Sequence[Sequence[float]]:
        from evaluator.models.litellm_backend import embed_texts

        vectors, self.usage = await embed_texts(self.name, texts, timeout_s=TIMEOUT_S)
        return vectors
