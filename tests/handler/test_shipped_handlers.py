"""Every shipped profile is valid and adds nothing to what an author writes."""

from __future__ import annotations

from evaluator import HandlerConfig, load_profiles
from evaluator.files.locations import shipped

PROFILES = load_profiles(shipped("handlers"))


def test_the_promised_profiles_are_there() -> None:
    assert {"default", "offline", "openai", "anthropic", "local", "ollama"} == set(PROFILES)


def test_every_profile_has_a_description_and_adds_no_system_prompt_and_no_tool() -> None:
    for profile in PROFILES.values():
        assert isinstance(profile, HandlerConfig)
        assert profile.description
        assert profile.system == ""
        assert profile.tools == ()


def test_only_the_profile_without_a_fixed_backend_leaves_the_model_open() -> None:
    assert PROFILES["default"].backend == "auto"
    assert PROFILES["default"].model is None
    assert PROFILES["offline"].backend == "simulated"
    assert all(PROFILES[name].model for name in ("openai", "anthropic", "local", "ollama"))


def test_local_servers_need_no_key() -> None:
    for name in ("local", "ollama"):
        assert PROFILES[name].api_key_env is None
        assert (PROFILES[name].base_url or "").startswith("http://localhost:")
