"""The cost of a batch as values and JSON: the most that it can be, and what is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from evaluator.interpreter.cost_bounds import Amounts
from evaluator.lazy_dataclass import frozen


@frozen
class CacheSaving:
    """Input tokens that are read from a prompt cache, and the US dollars that this saves of the
    interactive price.
    """

    tokens: float = 0.0
    saved_usd: float = 0.0

    def __add__(self, other: CacheSaving) -> CacheSaving:
        return CacheSaving(self.tokens + other.tokens, self.saved_usd + other.saved_usd)


@frozen
class CostPart:
    """The calls of one model for a template, or for a judge of a template's answers. `cached` is
    what the provider's prompt cache is expected to save of them.
    """

    template: str
    variant: str
    judge: str | None
    model: str
    most: Amounts
    expected: Amounts
    cached: CacheSaving

    def to_dict(self) -> dict[str, Any]:
        named = {"template": self.template, "variant": self.variant, "judge": self.judge}
        amounts = _both(self.most, self.expected)
        return {**named, "model": self.model, **amounts, "cached": asdict(self.cached)}


@frozen
class CostPlan:
    """The cost of a batch. `missing` says which limits and prices the bound lacks and where to set
    them; `notes` say what the numbers rest on. `tree` has what a run of each template may do.
    """

    name: str
    samples: int
    previewed: int
    parts: Sequence[CostPart]
    most: Amounts
    expected: Amounts
    tree: Mapping[str, str]
    missing: Sequence[str]
    notes: Sequence[str]

    @property
    def models(self) -> dict[str, tuple[Amounts, Amounts, CacheSaving]]:
        """The most and the expectation for each model, of templates and judges together."""
        found: dict[str, tuple[Amounts, Amounts, CacheSaving]] = {}
        for part in self.parts:
            most, expected, cached = found.get(part.model, (Amounts(), Amounts(), CacheSaving()))
            found[part.model] = (most + part.most, expected + part.expected, cached + part.cached)
        return found

    @property
    def cached(self) -> CacheSaving:
        """What prompt caches are expected to save in total."""
        return sum((part.cached for part in self.parts), CacheSaving())

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "samples": self.samples,
            "previewed": self.previewed,
            "total": {**_both(self.most, self.expected), "cached": asdict(self.cached)},
            "models": {
                name: {**_both(most, expected), "cached": asdict(cached)}
                for name, (most, expected, cached) in self.models.items()
            },
            "parts": [part.to_dict() for part in self.parts],
            "tree": dict(self.tree),
            "missing": list(self.missing),
            "notes": list(self.notes),
        }


def _both(most: Amounts, expected: Amounts) -> dict[str, Any]:
    return {"most": most.to_dict(), "expected": expected.to_dict()}
