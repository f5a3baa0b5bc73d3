"""The backends that a profile can name in `<backend>`, each declared once in `BACKENDS`.

Which backend answers, by the model's prefix, the profile's backend, its `base_url` and the key. The
first row that fits decides, and a request goes only where it says:

| model | `<backend>` | `base_url` | key | result |
|---|---|---|---|---|
| `simulated/…` | any | any | any | simulated |
| any | `simulated` | any | any | simulated; `auto` if the caller named another model |
| any | `replay` | any | any | ConfigurationError: only Python has the recording |
| any | `litellm` | yes | profile's or none | LiteLLM at that address, with the whole id |
| any | others | yes | profile's or none | the server, without the prefix `openai/` or `local/` |
| `openai/…` | others | no | profile's or `OPENAI_API_KEY` | `OPENAI_BASE_URL` or OpenAI |
| no prefix | `openai_compatible` | no | as above | OpenAI or `OPENAI_BASE_URL` |
| `x/…` | `openai_compatible` | no | any | ConfigurationError: no address |
| no prefix | `auto` | no | any | ConfigurationError: no provider |
| `x/…` | `auto`, `litellm` | no | profile's or that of `KEYS` | LiteLLM, with the whole id |
| no prefix | `litellm` | no | profile's or none | LiteLLM, with the whole id |

A key that is needed and missing is a ConfigurationError too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, cast, get_args
from urllib.parse import urlsplit

from evaluator.errors import ConfigurationError
from evaluator.handler.config import BackendName, HandlerConfig
from evaluator.lazy_dataclass import frozen
from evaluator.models.backend import Backend
from evaluator.models.key_transport import is_loopback

Origin = Literal["provider", "simulated", "recorded"]

# The default model for each provider's key. They are small and cheap on purpose.
KEYS: tuple[tuple[str, str], ...] = (
    ("OPENAI_API_KEY", "openai/gpt-4o-mini"),
    ("ANTHROPIC_API_KEY", "anthropic/claude-haiku-4-5"),
    ("GEMINI_API_KEY", "gemini/gemini-2.5-flash"),
    ("MISTRAL_API_KEY", "mistral/mistral-small-latest"),
    ("GROQ_API_KEY", "groq/openai/gpt-oss-20b"),
    ("OPENROUTER_API_KEY", "openrouter/openai/gpt-4o-mini"),
)
OPENAI_URL = "https://api.openai.com/v1"
SIMULATED = "simulated/default"


class MissingKey(ConfigurationError):
    """A provider or profile needs a key that is not set."""


class Once(Protocol):
    """Returns the backend that was made before for the same name and settings, or makes it."""

    def __call__(
        self, name: BackendName, settings: tuple[object, ...], make: Callable[[], Backend], /
    ) -> Backend: ...


@frozen
class Target:
    """What a backend is chosen for. `explicit` is the model that the user named, which may differ
    from `model`.
    """

    model: str
    config: HandlerConfig
    base_url: str | None
    explicit: str | None
    environ: Mapping[str, str]
    once: Once

    def key(self, variable: str | None = None) -> str | None:
        """The profile's key, if `model` is reached where that key belongs. Raises: see
        `profile_key`.

        Otherwise the value of `variable`, the provider's own; a server at a `base_url` never gets
        it.
        """
        by_user = self.explicit or self.environ.get("EVALUATOR_MODEL")
        is_own = is_own_endpoint(self.config, self.model, base_url=self.base_url, by_user=by_user)
        if is_own:
            key = profile_key(self.config, self.environ)
        else:
            key = None
        if key is None and variable is not None and self.base_url is None:
            key = key_in(variable, self.environ)
        return key


@frozen(kw_only=True)
class BackendDeclaration:
    """A selectable backend. `open` returns the backend for a target and the model's id as that
    backend expects it.

    `origin`: where its answers come from. Those of a `provider` are priced and cached; others are
    free. `default_model` answers if no model is named; None: the first model of the server at
    `base_url`, else of the first provider that is found. `prefix`: a model with it belongs to this
    backend in every profile. `is_replaced`: a model that the caller names, with another prefix, is
    answered by the backend `auto`. `has_providers`: it reaches several providers, and the prefix of
    a model names the one that is its endpoint.
    """

    open: Callable[[Target], tuple[Backend, str]]
    origin: Origin
    default_model: str | None
    prefix: str | None = None
    is_replaced: bool = False
    has_providers: bool = False


def declared(name: str) -> BackendDeclaration | None:
    """The declaration of the backend `name`; None for one of a project, which is given in
    Python.
    """
    return BACKENDS.get(cast("BackendName", name))


def origin_of(backend: Backend) -> Origin:
    """Where the answers of `backend` come from; a backend that is not declared here is taken for a
    provider.
    """
    declaration = declared(backend.name)
    if declaration is None:
        return "provider"
    return declaration.origin


def is_simulated_model(label: str) -> bool:
    """Whether the label of a model says that its answers are simulated."""
    return _of_prefix(label).origin == "simulated"


def is_free_model(label: str) -> bool:
    """Whether the label of a model says that its answers cost nothing: they are simulated or
    replayed.
    """
    return _of_prefix(label).origin != "provider"


def declaration_for(model: str, config: HandlerConfig, explicit: str | None) -> BackendDeclaration:
    """The declaration of the backend that answers for `model`; `explicit`: the model that the
    caller named, if any.
    """
    named = BACKENDS[config.backend]
    if _of_prefix(model).prefix is not None:
        return _of_prefix(model)
    if explicit and named.is_replaced:
        return BACKENDS["auto"]
    return named


def _of_prefix(model: str) -> BackendDeclaration:
    prefix = model.partition("/")[0]
    return next((each for each in BACKENDS.values() if each.prefix == prefix), BACKENDS["auto"])


def profile_key(config: HandlerConfig, environ: Mapping[str, str]) -> str | None:
    """The API key that the profile names. Raises: ConfigurationError, if it is not set and a server
    needs one.
    """
    if config.api_key_env:
        value = key_in(config.api_key_env, environ)
    else:
        value = None
    # A server on this machine may ask for no key.
    if (
        config.api_key_env
        and not value
        and not is_loopback(urlsplit(config.base_url or "").hostname)
    ):
        raise MissingKey(f"profile {config.name!r} needs {config.api_key_env}, which is not set")
    return value


def key_in(variable: str, environ: Mapping[str, str]) -> str | None:
    """The key in an environment variable; None if that is not set or blank. Raises:
    ConfigurationError, if it cannot be sent.
    """
    value = environ.get(variable, "")
    if not value.strip():
        return None
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise ConfigurationError(
            f"{variable} holds a control character, such as the end of a line; set it to the key "
            "alone"
        )
    return value


def is_own_endpoint(
    config: HandlerConfig, model: str, base_url: str | None, by_user: str | None = None
) -> bool:
    """Whether `model` is reached where the key of the profile belongs: at its own address, else its
    own provider.

    The provider is that of the profile's model, of the key's variable where it is a well-known one,
    or of the model `by_user` that the user named.
    """
    if config.base_url is not None or base_url is not None:
        return base_url == config.base_url
    known = next((model for variable, model in KEYS if variable == config.api_key_env), None)
    own = config.model or known or by_user
    if own is None or own == model:
        return own is not None
    provider = _provider(config, own)
    return provider is not None and provider == _provider(config, model)


def _provider(config: HandlerConfig, model: str) -> str | None:
    prefix, slash, _ = model.partition("/")
    if config.backend == "openai_compatible":
        prefix_of_model = "openai"
    else:
        prefix_of_model = BACKENDS[config.backend].prefix
    if slash:
        return prefix
    return prefix_of_model


def _auto(target: Target) -> tuple[Backend, str]:
    prefix, _, rest = target.model.partition("/")
    if target.base_url is not None or prefix == "openai":
        return _openai_compatible(target)
    if not rest:
        raise ConfigurationError(
            f"{target.model!r} names no provider; write provider/model, as in openai/{target.model}"
        )
    return _litellm(target)


def _openai_compatible(target: Target) -> tuple[Backend, str]:
    model = target.model
    environ = target.environ
    prefix, _, rest = model.partition("/")
    key = target.key("OPENAI_API_KEY")
    where = f"profile {target.config.name!r}"
    if target.base_url is not None:
        url = target.base_url
        if prefix in ("openai", "local") and rest:
            bare = rest
        else:
            bare = model
    elif rest and prefix != "openai":
        raise ConfigurationError(
            f"profile {target.config.name!r} is openai_compatible and needs a <base_url>"
        )
    else:
        where = "OPENAI_BASE_URL"
        url = environ.get(where, OPENAI_URL)
        bare = rest or model
        if key is None and url == OPENAI_URL:
            raise MissingKey(f"{model} needs OPENAI_API_KEY, which is not set")

    def make() -> Backend:
        from evaluator.models.openai_compatible import OpenAICompatibleBackend

        try:
            return OpenAICompatibleBackend(url, key)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from error

    return target.once("openai_compatible", (url, key), make), bare


def _litellm(target: Target) -> tuple[Backend, str]:
    model = target.model
    base_url = target.base_url
    config = target.config
    key = target.key()
    prefix = model.partition("/")[0]
    needed = next((variable for variable, known in KEYS if known.startswith(f"{prefix}/")), None)
    if base_url is None and needed is not None and target.key(needed) is None:
        raise MissingKey(f"{model} needs {needed}, which is not set{_other_key(config)}")

    def make() -> Backend:
        from evaluator.models.litellm_backend import LiteLLMBackend

        return LiteLLMBackend(base_url=base_url, api_key=key)

    return target.once("litellm", (base_url, key), make), model


def _other_key(config: HandlerConfig) -> str:
    if config.api_key_env is None:
        return ""
    return (
        f" ({config.api_key_env}, the key of the profile {config.name!r}, is sent to that "
        "profile's provider only)"
    )


def _simulated(target: Target) -> tuple[Backend, str]:
    config = target.config
    settings: dict[str, Any] = {
        "latency_s" if name == "latency" else name: value
        for name, value in config.simulated.items()
    }

    def make() -> Backend:
        from evaluator.models.simulated import SimulatedBackend

        return SimulatedBackend(config.seed or 0, **settings)

    return target.once("simulated", (config.seed, *sorted(settings.items())), make), target.model


def _replay(_: Target) -> tuple[Backend, str]:
    raise ConfigurationError(
        "a replay backend answers from a task file: give it as `backend=` in Python"
    )


BACKENDS: Mapping[BackendName, BackendDeclaration] = {
    "auto": BackendDeclaration(open=_auto, origin="provider", default_model=None),
    "openai_compatible": BackendDeclaration(
        open=_openai_compatible, origin="provider", default_model=None
    ),
    "litellm": BackendDeclaration(
        open=_litellm, origin="provider", default_model=None, has_providers=True
    ),
    "simulated": BackendDeclaration(
        open=_simulated,
        origin="simulated",
        default_model=SIMULATED,
        prefix="simulated",
        is_replaced=True,
    ),
    "replay": BackendDeclaration(open=_replay, origin="recorded", default_model="replay"),
}

if set(BACKENDS) != set(get_args(BackendName)):
    differing = ", ".join(sorted(set(BACKENDS) ^ set(get_args(BackendName))))
    raise TypeError(
        f"BackendName and BACKENDS have different names ({differing}); declare each name in both"
    )
