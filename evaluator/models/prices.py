"""Context windows and prices, without a network and without importing LiteLLM.

The table (3 MB of JSON) is beside the installed package and is read when a model that may be in it
is first looked up, some 20 ms for each such model. Without LiteLLM, or with a table that cannot be
read, every function returns None. Prices are those of the installed version: an estimate, not a
bill.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast, overload

from evaluator.errors.results import Usage
from evaluator.lazy_dataclass import frozen
from evaluator.patterns import Pattern

_TABLE = "model_prices_and_context_window_backup.json"
# Prefixes of models that the table cannot have: looking one up does not load it, which only saves
# time.
_UNPRICED_NAMES = "simulated replay local vllm hosted_vllm ollama ollama_chat lm_studio llamafile"
_UNPRICED = frozenset(_UNPRICED_NAMES.split())
_BATCHES = "_batches"
_TIER = Pattern(r"input_cost_per_token_above_(\d+)k_tokens$")


def context_window(model: str) -> int | None:
    """Tokens that a request to `model` may hold, or None when unknown."""
    return _count(_entry(model), "max_input_tokens")


def max_output_tokens(model: str) -> int | None:
    """Tokens that `model` can answer with at most, or None when unknown."""
    return _count(_entry(model), "max_output_tokens")


def supports(model: str, feature: str) -> bool | None:
    """Whether `model` supports a feature (`vision`, `pdf_input`, `response_schema`, …); None where
    that is unknown.
    """
    entry = _entry(model)
    if entry is None:
        value = None
    else:
        value = entry.get(f"supports_{feature}")
    if isinstance(value, bool):
        return value
    return None


def cost_usd(model: str, usage: Usage, *, is_batch: bool = False) -> float | None:
    """The cost of `usage` with `model`, in US dollars; None where a price or a token count is
    unknown.

    Cached and written tokens are part of the input tokens, reasoning tokens part of the output
    tokens; an unknown count of them is priced as none. Long requests are priced at the table's
    higher tier. `is_batch`: the price of the provider's batch API, None where the table has none.
    """
    entry = _entry(model)
    if entry is not None and is_batch:
        # The prices of the batch API, under the names of the others.
        entry = {
            key.removesuffix(_BATCHES): price
            for key, price in entry.items()
            if key.endswith(_BATCHES)
        }
    if entry is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    tier = _tier(entry, usage.input_tokens)
    input_price = _price(entry, "input_cost_per_token", tier)
    output_price = _price(entry, "output_cost_per_token", tier)
    if input_price is None or output_price is None:
        return None
    cached = min(usage.cached_tokens or 0, usage.input_tokens)
    written = min(usage.cache_write_tokens or 0, usage.input_tokens - cached)
    reasoning = min(usage.reasoning_tokens or 0, usage.output_tokens)
    return (
        (usage.input_tokens - cached - written) * input_price
        + cached * _price(entry, "cache_read_input_token_cost", tier, input_price)
        + written * _price(entry, "cache_creation_input_token_cost", tier, input_price)
        + (usage.output_tokens - reasoning) * output_price
        + reasoning * _price(entry, "output_cost_per_reasoning_token", "", output_price)
    )


def batch_cost_usd(
    model: str, usage: Usage, *, profile: tuple[float, float] | None = None
) -> float | None:
    """The cost of `usage` in a provider batch: by the table's batch prices, else by those of the
    `profile`, in US dollars for a million tokens in and out; None where both are unknown.
    """
    cost = cost_usd(model, usage, is_batch=True)
    if cost is not None or profile is None:
        return cost
    return profile_cost_usd(usage, profile)


def profile_cost_usd(usage: Usage, profile: tuple[float, float]) -> float | None:
    """The cost of `usage` at the prices of a profile, in US dollars for a million tokens in and
    out. They have no price of cached tokens, which cost as the others.
    """
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    return (usage.input_tokens * profile[0] + usage.output_tokens * profile[1]) / 1e6


def priced(
    model: str,
    usage: Usage,
    *,
    profile: tuple[float, float] | None = None,
    is_batch: bool = False,
) -> Usage:
    """`usage` with its cost, interactive or in a provider batch, and what a prompt cache saved of
    it. The usage has no impossible figure, which could make a call cheaper; see
    `Usage.without_invalid`.
    """
    cost = _cost_usd(model, usage, profile, is_batch=is_batch)
    saved: float | None = 0.0
    if usage.cached_tokens or usage.cache_write_tokens:
        as_new = replace(usage, cached_tokens=0, cache_write_tokens=0)
        uncached = _cost_usd(model, as_new, profile, is_batch=is_batch)
        if cost is None or uncached is None:
            saved = None
        else:
            saved = uncached - cost
    if cost is None and usage.cost_usd is None and saved == usage.cache_saved_usd:
        return usage
    return replace(usage, cost_usd=cost, cache_saved_usd=saved)


def _cost_usd(
    model: str, usage: Usage, profile: tuple[float, float] | None, *, is_batch: bool
) -> float | None:
    if is_batch:
        return batch_cost_usd(model, usage, profile=profile)
    if profile is not None:
        return profile_cost_usd(usage, profile)
    return cost_usd(model, usage)


@frozen
class CachePrices:
    """The prices of a provider's prompt cache, in US dollars for a token, and the least tokens that
    it keeps; None where the table does not say.
    """

    uncached: float
    read: float
    written: float
    min_tokens: int | None


def cache_prices(model: str) -> CachePrices | None:
    """None where the table has no price of reading from the cache."""
    entry = _entry(model)
    if entry is None:
        return None
    uncached = _price(entry, "input_cost_per_token", "")
    read = _price(entry, "cache_read_input_token_cost", "")
    if uncached is None or read is None:
        return None
    written = _price(entry, "cache_creation_input_token_cost", "", uncached)
    return CachePrices(uncached, read, written, _count(entry, "prompt_cache_min_tokens"))


def max_call_cost_usd(model: str) -> float | None:
    """The most that one call of `model` can cost, in US dollars; None where a price or a size is
    unknown.
    """
    window = context_window(model)
    answer = max_output_tokens(model)
    if window is None or answer is None:
        return None
    return cost_usd(
        model, Usage(window, answer, cached_tokens=0, reasoning_tokens=0, cost_usd=None, turns=1)
    )


@lru_cache(maxsize=1)
def known_providers() -> frozenset[str]:
    """The prefixes of model ids that name a provider or a kind of server; empty without LiteLLM."""
    from importlib.util import find_spec

    spec = find_spec("litellm")
    table = _table()
    if spec is None or not table:
        return frozenset()
    found = {*_UNPRICED, "openai", "litellm"}
    for key, entry in table.items():
        found.add(key.partition("/")[0])
        if isinstance(entry, dict):
            found.add(str(cast("dict[str, Any]", entry).get("litellm_provider", "")))
    for folder in spec.submodule_search_locations or ():
        try:
            found.update(path.stem for path in (Path(folder) / "llms").iterdir())
        except OSError:
            continue
    return frozenset(found)


@lru_cache(maxsize=1)
def known_models() -> tuple[str, ...]:
    """The ids of the chat models in the price table, as `provider/model`, sorted."""
    found: set[str] = set()
    for key, entry in _table().items():
        if not isinstance(entry, dict):
            continue
        described = cast("dict[str, Any]", entry)
        if described.get("mode") not in ("chat", "responses"):
            continue
        provider = str(described.get("litellm_provider", ""))
        found.add(key if "/" in key or not provider else f"{provider}/{key}")
    return tuple(sorted(found))


@lru_cache(maxsize=256)
def _entry(model: str) -> Mapping[str, Any] | None:
    prefix = model.partition("/")[0]
    if prefix in _UNPRICED or model == "":
        return None
    table = _table()
    for key, provider in _keys(model):
        entry = table.get(key)
        if isinstance(entry, dict) and (
            provider is None or str(entry.get("litellm_provider", "")).startswith(provider)
        ):
            return entry
    return None


def _keys(model: str) -> Iterator[tuple[str, str | None]]:
    """Names to look up, and the provider that the entry must then belong to.

    A prefix may be removed only where the entry is of that provider: another provider's model of
    the same name has another price.
    """
    name = model.removeprefix("litellm/")
    yield name, None
    if name.startswith("ft:"):
        yield ":".join(name.split(":")[:2]), None
    while "/" in name:
        provider, _, name = name.partition("/")
        yield name, provider


def _table() -> Mapping[str, Any]:
    """The table, read again each time. Only single entries are cached: a whole table slows the
    garbage collector.
    """
    from importlib.util import find_spec

    spec = find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        try:
            data = json.loads((Path(folder) / _TABLE).read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(data, dict):
            data.pop("sample_spec", None)
            return data
    return {}


def _tier(entry: Mapping[str, Any], input_tokens: int) -> str:
    """The suffix of the prices for a request of this length: "" or `_above_200k_tokens`."""
    limits = [int(found[1]) for key in entry if (found := _TIER.fullmatch(key)) is not None]
    passed = max((limit for limit in limits if input_tokens > limit * 1000), default=None)
    if passed is None:
        return ""
    return f"_above_{passed}k_tokens"


@overload
def _price(entry: Mapping[str, Any], name: str, tier: str) -> float | None: ...
@overload
def _price(entry: Mapping[str, Any], name: str, tier: str, default: float) -> float: ...
def _price(
    entry: Mapping[str, Any], name: str, tier: str, default: float | None = None
) -> float | None:
    for key in (name + tier, name):
        value = entry.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            return float(value)
    return default


def _count(entry: Mapping[str, Any] | None, name: str) -> int | None:
    value = None if entry is None else entry.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return int(value)
    return None
