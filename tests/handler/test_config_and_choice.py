"""Profiles from XML, and the order in which a model is chosen."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest
from lxml import etree

from evaluator import (
    ConfigurationError,
    HandlerConfig,
    SimulatedBackend,
    ToolGrant,
    Usage,
    clock,
    load_profiles,
)
from evaluator.errors import LimitReached
from evaluator.fields import records
from evaluator.handler import backends as backends_module
from evaluator.handler import config as config_module
from evaluator.handler.backends import BACKENDS, KEYS, BackendDeclaration, Target, declaration_for
from evaluator.handler.config import BackendName
from evaluator.handler.model_choice import ModelChooser, first_model
from evaluator.handler.profiles import profile_named
from evaluator.limits.budget import Budget
from evaluator.models import prices
from evaluator.testing import LoopbackServer, json_reply
from evaluator.tools import PolicyRule

ROOT = Path(__file__).parents[2]


def test_the_shipped_profiles_are_there(tmp_path):
    assert {"default", "offline", "openai", "anthropic", "local"} <= set(load_profiles(tmp_path))


def test_a_projects_profile_comes_before_a_shipped_one(tmp_path):
    (tmp_path / "mine.xml").write_text(
        '<handler name="offline"><system>\n    Be brief.\n      Always.\n  </system>'
        '<limits max_turns="3" timeout="1.5"/><retries max="2" backoff="0.5"/></handler>'
    )
    profile = load_profiles(tmp_path)["offline"]
    assert (profile.system, profile.max_turns, profile.timeout_s) == (
        "Be brief.\n  Always.",
        3,
        1.5,
    )
    assert profile.backoff_s == (0.5, 0.5)


@pytest.mark.parametrize(
    ("xml", "says"),
    [
        ("<handler>", "p.xml:1"),
        ('<handler name="x"><limits max_turns="0"/></handler>', "max_turns"),
        ('<handler name="x"><modell>y</modell></handler>', "model"),
        ("", "p.xml"),
        (
            '<handler name="x"><tools><tool name="t"><alow argument="a" matches="b"/></tool></tools></handler>',
            "p.xml:1:41",
        ),
        (
            '<handler name="x"><tools><tool name="t"><deny matches="b"/></tool></tools></handler>',
            "'argument'",
        ),
        (
            '<handler name="x"><tools><tool name="t"><deny argument="a" matches=""/></tool></tools></handler>',
            "p.xml:1:",
        ),
        (
            '<handler name="x"><tools>\n<tool name="t"/>\n<tool name="t"/></tools></handler>',
            "p.xml:3:13: error: the tool 't'",
        ),
    ],
)
def test_a_bad_profile_is_an_error_that_says_where(tmp_path, xml, says):
    (tmp_path / "p.xml").write_text(xml)
    profiles = load_profiles(tmp_path)
    assert says in profiles.broken["p"]
    with pytest.raises(ConfigurationError, match=says):
        profile_named(profiles, "p")
    assert profile_named(profiles, "offline").backend == "simulated"


def test_a_profile_grants_tools_with_policies_and_rules_in_their_order(tmp_path):
    (tmp_path / "mine.xml").write_text(
        '<handler name="mine"><tools><tool name="read_file"/><tool name="run_script" policy="deny">'
        '<allow argument="command" matches="git  status*"/><!-- why --><ask argument="command" matches="git *"/>'
        '<deny argument="stdin" matches="*"/></tool></tools></handler>'
    )
    assert load_profiles(tmp_path)["mine"].tools == (
        ToolGrant("read_file"),
        ToolGrant(
            "run_script",
            "deny",
            (
                PolicyRule("allow", "command", "git  status*"),
                PolicyRule("ask", "command", "git *"),
                PolicyRule("deny", "stdin", "*"),
            ),
        ),
    )


def test_a_broken_profile_hides_a_shipped_one_of_its_name(tmp_path):
    (tmp_path / "offline.xml").write_text("<handler>")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        profile_named(load_profiles(tmp_path), "offline")


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match="no folder"):
        load_profiles(tmp_path / "none")


@pytest.mark.parametrize(
    ("explicit", "template", "profile", "environ", "label"),
    [
        (
            "simulated/a",
            "simulated/b",
            "simulated/c",
            {"EVALUATOR_MODEL": "simulated/d"},
            "simulated/a",
        ),
        (None, "simulated/b", "simulated/c", {"EVALUATOR_MODEL": "simulated/d"}, "simulated/b"),
        (None, None, "simulated/c", {"EVALUATOR_MODEL": "simulated/d"}, "simulated/c"),
        (
            None,
            None,
            None,
            {"EVALUATOR_MODEL": "simulated/d", "OPENAI_API_KEY": "k"},
            "simulated/d",
        ),
        (None, None, None, {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}, "openai/gpt-4o-mini"),
        (None, None, None, {}, "simulated/default"),
    ],
)
def test_models_are_chosen_in_order(explicit, template, profile, environ, label):
    chooser = ModelChooser(environ=environ, probe_local=False)
    assert chooser.choose(explicit, template, HandlerConfig(model=profile)).label == label


class Parrot:
    name = "parrot"


def declare_parrot(monkeypatch, name="parrot", **declared):
    backend = Parrot()
    backend.name = name
    declared = {"origin": "provider", "default_model": "parrot/default", **declared}
    made = lambda target: (target.once("parrot", (), lambda: backend), target.model)  # noqa: E731
    monkeypatch.setitem(BACKENDS, "parrot", BackendDeclaration(open=made, **declared))
    monkeypatch.setattr(config_module, "BackendName", Literal["parrot", BackendName])
    # Annotations are read once, so that the new name is read only without the caches.
    for cached in ("fields_of", "_arguments_of"):
        monkeypatch.setattr(records, cached, getattr(records, cached).__wrapped__)
    return backend


@pytest.mark.parametrize("origin", ["provider", "simulated", "recorded"])
@pytest.mark.parametrize("environ", [{}, {"OPENAI_API_KEY": "k"}])
def test_a_declared_backend_answers_with_its_own_default_model(monkeypatch, environ, origin):
    backend = declare_parrot(monkeypatch, origin=origin)
    choice = ModelChooser(environ=environ, probe_local=False).choose(
        None, None, HandlerConfig(backend="parrot")
    )
    assert (choice.backend, choice.label, choice.why) == (
        backend,
        "parrot/default",
        "the profile 'default' is parrot",
    )
    assert (choice.is_free, choice.is_simulated) == (origin != "provider", origin == "simulated")


@pytest.mark.parametrize("model", ["openai/gpt-4o", "parrot/x", "x"])
@pytest.mark.parametrize("base_url", [None, "http://127.0.0.1:9"])
@pytest.mark.parametrize("named", [{"explicit": "model"}, {"template": "model"}])
def test_no_other_backend_answers_for_a_profile_of_a_declared_backend(
    monkeypatch, model, base_url, named
):
    backend = declare_parrot(monkeypatch)
    config = HandlerConfig(backend="parrot", base_url=base_url)
    explicit, template = (model if which in named else None for which in ("explicit", "template"))
    chooser = ModelChooser(environ={"OPENAI_API_KEY": "k"}, probe_local=False)
    assert chooser.choose(explicit, template, config).backend is backend


def test_only_a_declaration_lets_a_named_model_or_its_prefix_choose_the_backend(monkeypatch):
    backend = declare_parrot(monkeypatch, prefix="parrot", is_replaced=True)
    chooser = ModelChooser(environ={"OPENAI_API_KEY": "k"}, probe_local=False)
    config = HandlerConfig(backend="parrot")
    assert chooser.choose("parrot/x", None, HandlerConfig()).backend is backend
    assert chooser.choose(None, "openai/gpt-4o", config).backend is backend
    assert chooser.choose("openai/gpt-4o", None, config).backend.name == "openai_compatible"


@pytest.mark.parametrize(
    ("has_providers", "endpoint"), [(False, "parrot"), (True, "some_provider")]
)
def test_the_endpoint_is_the_backend_or_the_provider_that_the_model_names(
    monkeypatch, has_providers, endpoint
):
    declare_parrot(monkeypatch, has_providers=has_providers)
    chooser = ModelChooser(environ={}, probe_local=False)
    assert (
        chooser.choose("some_provider/large", None, HandlerConfig(backend="parrot")).endpoint
        == endpoint
    )


def test_two_servers_have_two_endpoints_so_that_the_cache_does_not_mix_their_answers(monkeypatch):
    declare_parrot(monkeypatch)
    urls = (
        "https://one.example/v1",
        "https://two.example/v1",
        "https://me:pass-word@two.example/v1",
    )
    configs = [HandlerConfig(backend="parrot", model="x", base_url=url) for url in urls]
    chooser = ModelChooser(environ={}, probe_local=False)
    found = [chooser.choose(None, None, config).endpoint for config in configs]
    assert found == [*urls[:2], "https://me:***@two.example/v1"]


@pytest.mark.parametrize(
    ("base_url", "of_profile", "expected"),
    [
        (None, None, "own"),
        (None, "PARROT_KEY", "profile's"),
        ("https://a.example", None, None),
        ("https://a.example", "PARROT_KEY", "profile's"),
    ],
)
def test_a_server_at_an_address_gets_no_key_except_the_profiles(
    monkeypatch, base_url, of_profile, expected
):
    declare_parrot(monkeypatch)
    config = HandlerConfig(
        backend="parrot", model="parrot/x", base_url=base_url, api_key_env=of_profile
    )
    environ = {"ACME_API_KEY": "own", "PARROT_KEY": "profile's"}
    target = Target("parrot/x", config, base_url, None, environ, lambda *_: Parrot())
    assert target.key("ACME_API_KEY") == expected


@pytest.mark.parametrize(
    ("model", "prefix", "expected"),
    [("large", "parrot", "profile's"), ("large", None, None), ("other/large", "parrot", None)],
)
def test_a_model_without_a_prefix_has_the_declared_one_of_its_profiles_backend(
    monkeypatch, model, prefix, expected
):
    declare_parrot(monkeypatch, prefix=prefix)
    config = HandlerConfig(backend="parrot", model=model, api_key_env="PARROT_KEY")
    target = Target(
        "parrot/small", config, None, None, {"PARROT_KEY": "profile's"}, lambda *_: Parrot()
    )
    assert target.key() == expected


def test_a_backend_has_the_name_of_its_declaration(monkeypatch):
    declare_parrot(monkeypatch, name="Parrot")
    with pytest.raises(ConfigurationError, match="'parrot' calls itself 'Parrot'"):
        ModelChooser(environ={}, probe_local=False).choose(
            None, None, HandlerConfig(backend="parrot")
        )


def test_a_backend_that_is_not_declared_is_an_error():
    with pytest.raises(ConfigurationError, match="backend is 'parrot', expected one of auto, "):
        HandlerConfig(backend="parrot")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_turns": 0}, "profile 'p': max_turns is 0, expected an integer, at least 1"),
        ({"timeout_s": None}, "timeout_s is None, expected a number above 0"),
        ({"backoff_s": (1, -1)}, r"backoff_s\[1\] is -1, expected a number, at least 0"),
        (
            {"max_context_fraction": 1.5},
            r"max_context_fraction is 1.5, expected a number in \(0, 1\]",
        ),
        ({"temperature": True}, "temperature is True, expected a number"),
        ({"tool_calling": "natve"}, "one of native, text; did you mean `native`"),
        ({"extra_body": {"model": "x"}}, "extra_body: model cannot be set here"),
        ({"tools": ("bash",)}, r"tools\[0\] is 'bash', expected a ToolGrant"),
    ],
)
def test_a_setting_that_cannot_be_used_is_an_error_with_its_name(values, message):
    with pytest.raises(ConfigurationError, match=message):
        HandlerConfig(name="p", **values)


def test_a_name_without_a_declaration_fails_at_import(monkeypatch):
    monkeypatch.setattr(config_module, "BackendName", Literal["parrot", BackendName])
    source = Path(backends_module.__file__).read_text()
    module = ModuleType("copy_of_backends")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(TypeError, match=r"different names \(parrot\); declare each name in both"):
        exec(compile(source, "backends.py", "exec"), module.__dict__)


def test_a_backend_answers_for_its_default_model_in_every_profile():
    for name, declared in BACKENDS.items():
        if "/" in (model := declared.default_model or ""):
            found = declaration_for(model, HandlerConfig(), None)
            assert found is declared, (
                f"{model} goes to LiteLLM: declare the prefix of {name} in BACKENDS"
            )


def test_the_schema_and_the_docs_have_every_backend():
    schema = etree.parse(ROOT / "schemas/handler.xsd")
    listed = schema.xpath(
        "//*[local-name()='simpleType'][@name='backend']//*[local-name()='enumeration']/@value"
    )
    assert set(listed) == set(BACKENDS), (
        "list the same names in the simple type `backend` of schemas/handler.xsd"
    )
    page = (ROOT / "docs/reference/handlers.md").read_text()
    section = page.partition("\n## Backends\n")[2].partition("\n## ")[0]
    missing = [name for name in BACKENDS if name != "auto" and f"| `{name}` |" not in section]
    assert not missing, "add a row to the table in docs/reference/handlers.md, section Backends"
    (row,) = [line for line in page.splitlines() if line.startswith("| `backend` |")]
    missing = [name for name in BACKENDS if f"`{name}`" not in row]
    assert not missing, "list it in docs/reference/handlers.md, section Profiles, row `backend`"
    missing = [name for name in BACKENDS if f"`{name}`" not in (backends_module.__doc__ or "")]
    assert not missing, (
        "say in the table at the top of evaluator/handler/backends.py for which models it answers"
    )


def test_the_notice_about_simulated_answers_is_given_once():
    said = []
    chooser = ModelChooser(environ={}, probe_local=False, notice=said.append)
    chooser.choose(None, None, HandlerConfig())
    chooser.choose(None, None, HandlerConfig(name="other"))
    assert len(said) == 1
    assert "simulated" in said[0]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (HandlerConfig(model="openai/gpt-4o-mini"), "OPENAI_API_KEY"),
        (
            HandlerConfig(model="gpt-x", backend="openai_compatible", api_key_env="NO_SUCH"),
            "NO_SUCH",
        ),
        (HandlerConfig(model="other/x", backend="openai_compatible"), "base_url"),
        (HandlerConfig(backend="replay", model="x"), "backend="),
        (HandlerConfig(base_url="http://127.0.0.1:9"), "lists none"),
    ],
)
def test_a_choice_that_cannot_work_is_an_error_that_says_what_is_missing(config, says):
    with pytest.raises(ConfigurationError, match=says):
        ModelChooser(environ={}, probe_local=False).choose(None, None, config)


@pytest.mark.parametrize(
    ("environ", "config", "says"),
    [
        ({"OPENAI_API_KEY": "sk-1\n"}, HandlerConfig(model="openai/m"), "OPENAI_API_KEY holds a c"),
        ({"OPENAI_API_KEY": " "}, HandlerConfig(model="openai/m"), "needs OPENAI_API_KEY"),
        (
            {"MINE": "sk-1\r\nX-More: 1"},
            HandlerConfig(name="p", base_url="https://m.example/v1", model="m", api_key_env="MINE"),
            "MINE holds a control character",
        ),
        (
            {"MINE": "\n"},
            HandlerConfig(name="p", base_url="https://m.example/v1", model="m", api_key_env="MINE"),
            "profile 'p' needs MINE, which is not set",
        ),
        ({"OPENAI_BASE_URL": ""}, HandlerConfig(model="openai/m"), "OPENAI_BASE_URL: the base URL"),
        (
            {"OPENAI_BASE_URL": "http://[::1/v1"},
            HandlerConfig(model="openai/m"),
            "OPENAI_BASE_URL: the base URL cannot be read",
        ),
        (
            {},
            HandlerConfig(name="p", base_url="ftp://m.example/v1", model="m"),
            "profile 'p': the base URL must look like",
        ),
        (
            {},
            HandlerConfig(name="p", base_url="http://m.example:0/v1", model="m"),
            "profile 'p': the base URL has the port 0",
        ),
        (
            {},
            HandlerConfig(
                name="p", backend="litellm", base_url="https://m.example:0/v1", model="openai/m"
            ),
            "the base URL has the port 0",
        ),
    ],
)
def test_a_key_or_an_address_that_cannot_be_used_names_its_variable_or_profile(
    environ, config, says
):
    with pytest.raises(ConfigurationError, match=says):
        ModelChooser(environ=environ, probe_local=False).choose(None, None, config)


@pytest.mark.parametrize("port", ["0", "65536"])
def test_a_proxy_with_a_port_that_no_server_has_is_an_error(
    monkeypatch: pytest.MonkeyPatch, port: str
):
    monkeypatch.setenv("https_proxy", f"http://proxy.example:{port}")
    config = HandlerConfig(name="p", base_url="https://m.example/v1", model="m")
    with pytest.raises(ConfigurationError, match=r"the proxy for m\.example"):
        ModelChooser(environ={}, probe_local=False).choose(None, None, config)


def test_a_blank_key_chooses_no_provider():
    chooser = ModelChooser(
        environ={"OPENAI_API_KEY": " ", "MISTRAL_API_KEY": ""}, probe_local=False
    )
    assert chooser.choose(None, None, HandlerConfig()).label == "simulated/default"


def test_a_local_server_is_asked_for_its_model():
    with LoopbackServer(default=json_reply({"data": [{"id": "qwen"}]})) as server:
        assert first_model(server.base_url, None) == "qwen"
        choice = ModelChooser(environ={}, probe_local=False).choose(
            None, None, HandlerConfig(base_url=server.base_url)
        )
    assert choice.model == "qwen"


def test_a_given_backend_answers_every_model():
    backend = SimulatedBackend()
    choice = ModelChooser(environ={}, backend=backend).choose(
        "openai/gpt-4o", None, HandlerConfig()
    )
    assert choice.backend is backend


def test_turns_that_run_side_by_side_cannot_pass_a_limit_together():
    root = Budget("root", max_turns=2)
    one, two = Budget("one", parent=root), Budget("two", parent=root)
    one.reserve_turn()
    two.reserve_turn()
    with pytest.raises(LimitReached) as caught:
        one.reserve_turn()
    assert (caught.value.resource, caught.value.used, caught.value.limit) == ("turns", 2, 2)
    assert "root" in caught.value.message
    one.release_turn()
    one.charge(Usage(turns=1))
    assert (root.usage.turns, one.usage.turns, two.usage.turns) == (1, 1, 0)


def test_cost_is_reserved_before_it_is_spent():
    budget = Budget("b", max_cost_usd=1.0)
    budget.reserve_turn(0.6)
    with pytest.raises(LimitReached, match=r"would pass \$1"):
        budget.reserve_turn(0.6)
    budget.release_turn(0.6)
    budget.charge(Usage(cost_usd=0.1, turns=1))
    budget.reserve_turn(0.6)


def test_an_unknown_cost_stays_unknown_in_a_sum():
    total = Usage(cost_usd=0.5) + Usage(cost_usd=None)
    assert total.cost_usd is None


def test_time_is_that_of_the_nearest_limit(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    outer = Budget("outer", timeout_s=10)
    inner = Budget("inner", timeout_s=60, parent=outer)
    now[0] = 4.0
    assert inner.remaining_s() == 6.0
    now[0] = 10.0
    with pytest.raises(LimitReached, match="outer"):
        inner.reserve_turn()


@pytest.mark.parametrize("model", [model for _, model in KEYS])
def test_the_model_that_a_key_stands_for_has_a_known_price_and_window(model):
    unknown = f"KEYS in evaluator/handler/backends.py: LiteLLM's price table has no {model}; name a model that it has"
    assert prices.context_window(model), unknown
    assert prices.max_call_cost_usd(model), unknown


def test_the_docs_have_every_key_and_every_prefix():
    section = (
        (ROOT / "docs/reference/handlers.md").read_text().partition("\n## Choice of the model\n")[2]
    )
    section = section.partition("\n## ")[0]
    prefixes = [f"{each.prefix}/…" for each in BACKENDS.values() if each.prefix]
    missing = [one for one in (*(key for key, _ in KEYS), *prefixes) if f"`{one}`" not in section]
    assert not missing, "name it in docs/reference/handlers.md, section Choice of the model"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("prices", (-1, 1), "expected two numbers, each at least 0"),
        ("prices", (1,), "expected two numbers, each at least 0"),
        ("prices", (True, 1), "expected two numbers, each at least 0"),
        ("prices", (float("nan"), 1), "expected two numbers, each at least 0"),
        ("context_window", 0, "expected an integer, at least 1"),
        ("context_window", True, "expected an integer, at least 1"),
    ],
)
def test_prices_and_windows_that_no_model_has_are_refused(
    name: str, value: object, expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is .*{expected}"):
        HandlerConfig(**{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wrong": True}, "simulated.wrong is True, expected a number, at least 0"),
        ({"wrong": 1.5}, "simulated.wrong is 1.5, expected a rate in [0, 1]"),
        ({"latency_s": 1}, "simulated.latency_s is unknown; did you mean `latency`?"),
    ],
)
def test_settings_that_the_simulated_model_does_not_have_are_refused(
    settings: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        HandlerConfig(name="mine", simulated=settings)
    assert str(raised.value) == f"profile 'mine': {message}"
