"""Context windows and prices come from LiteLLM's table, lazily, and are None where they are unknown."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evaluator import Usage
from evaluator.models import prices


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {
        "big": {
            "litellm_provider": "acme",
            "max_input_tokens": 1000,
            "max_output_tokens": 100,
            "input_cost_per_token": 1e-6,
            "output_cost_per_token": 1e-5,
            "cache_read_input_token_cost": 1e-7,
            "input_cost_per_token_above_200k_tokens": 2e-6,
        },
        "nameless": {"litellm_provider": "acme", "max_input_tokens": "as told"},
    }
    monkeypatch.setattr(prices, "_table", lambda: entries)


def test_the_real_table_knows_a_well_known_model_with_and_without_prefix() -> None:
    for name in ("gpt-4o-mini", "openai/gpt-4o-mini", "litellm/openai/gpt-4o-mini"):
        assert prices.context_window(name) == 128_000
        assert prices.max_output_tokens(name) == 16_384
        assert prices.cost_usd(name, Usage(1_000_000, 0, 0, 0, None, 1)) == pytest.approx(0.15)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (Usage(1000, 100, 0, 0, None, 1), 0.001 + 0.001),
        (Usage(1000, 100, None, None, None, 1), 0.001 + 0.001),
        (Usage(1000, 0, 400, 0, None, 1), 0.0006 + 0.00004),
        (Usage(1000, 0, 9999, 0, None, 1), 0.0001),
        (Usage(300_000, 0, 0, 0, None, 1), 0.6),
        (Usage(0, 0, 0, 0, None, 1), 0.0),
        (Usage(None, 100, 0, 0, None, 1), None),
        (Usage(100, None, 0, 0, None, 1), None),
    ],
)
def test_cost_counts_cached_tokens_and_long_requests(usage: Usage, expected: float | None) -> None:
    cost = prices.cost_usd("acme/big", usage)
    assert cost is None if expected is None else cost == pytest.approx(expected)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("name", ["other/big", "unheard-of", "nameless", "", "/", "acme/"])
def test_an_unknown_price_is_none_and_not_another_providers(name: str) -> None:
    assert prices.context_window(name) is None
    assert prices.cost_usd(name, Usage(1, 1)) is None


def test_local_and_simulated_models_do_not_load_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded() -> dict[str, object]:
        raise AssertionError("the table was loaded")

    monkeypatch.setattr(prices, "_table", loaded)
    for name in ("simulated", "simulated/x", "local/llama", "hosted_vllm/x", "ollama/llama3"):
        assert prices.context_window(name) is None


def test_reading_the_table_does_not_import_litellm() -> None:
    code = (
        "import sys; from evaluator.models.prices import context_window; "
        "assert context_window('gpt-4o'); assert 'litellm' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(("tokens", "price"), [(199_999, 1e-6), (200_000, 1e-6), (200_001, 2e-6)])
def test_the_higher_price_begins_above_the_boundary_of_its_tier(tokens: int, price: float) -> None:
    assert prices.cost_usd("acme/big", Usage(tokens, 0, 0, 0, None, 1)) == pytest.approx(
        tokens * price
    )
