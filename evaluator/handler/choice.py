"""Which model answers: an explicit argument, else the template, else the profile, else `EVALUATOR_MODEL`,
else the first provider whose key or local server is found, else the simulated model.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from evaluator.errors import ConfigurationError
from evaluator.handler.backend import Backend
from evaluator.handler.config import HandlerConfig
from evaluator.handler.gate import Gate
from evaluator.handler.session import ModelChoice

if TYPE_CHECKING:
    from evaluator.handler.cache import ResponseCache

SIMULATED = "simulated/default"

# The model that a provider's key stands for when nothing names one. Small and cheap on purpose.
KEYS: tuple[tuple[str, str], ...] = (
    ("OPENAI_API_KEY", "openai/gpt-4o-mini"),
    ("ANTHROPIC_API_KEY", "anthropic/claude-haiku-4-5"),
    ("GEMINI_API_KEY", "gemini/gemini-2.5-flash"),
    ("MISTRAL_API_KEY", "mistral/mistral-small-latest"),
    ("GROQ_API_KEY", "groq/openai/gpt-oss-20b"),
    ("OPENROUTER_API_KEY", "openrouter/openai/gpt-4o-mini"),
)
LOCAL_SERVERS: tuple[tuple[str, str], ...] = (
    ("http://127.0.0.1:8000/v1", "vLLM or SGLang"),
    ("http://127.0.0.1:11434/v1", "Ollama"),
    ("http://127.0.0.1:1234/v1", "LM Studio"),
    ("http://127.0.0.1:8080/v1", "llama.cpp"),
)
OPENAI_URL = "https://api.openai.com/v1"


class ModelChooser:
    """Chooses models and keeps one backend an endpoint, so that connections are pooled.

    `notice` is called once with a line for the user when the simulated model stands in for a real one. Each attempt
    passes through `gate`. `cache` answers what it knows, but for simulated and replaying models.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        probe_local: bool = True,
        backend: Backend | None = None,
        notice: object = None,
        gate: Gate | None = None,
        cache: ResponseCache | None = None,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._probe_local = probe_local
        self._fixed = backend
        self._notice = notice
        self._gate = gate
        self._cache = cache
        self._backends: dict[tuple[object, ...], Backend] = {}
        self._choices: dict[tuple[object, ...], ModelChoice] = {}
        self._in_text: dict[int, Backend] = {}
        self._refused: dict[tuple[int, str], set[str]] = {}
        self._found: tuple[str, str, str | None] | None = None
        self._lock = threading.Lock()

    def choose(self, explicit: str | None, template: str | None, config: HandlerConfig) -> ModelChoice:
        """The model for one task.

        Raises: ConfigurationError, if what was named cannot be used (an unknown backend, a missing key).
        """
        # Side by side, each first choice would make a backend, hence a connection pool, of its own.
        with self._lock:
            choice = self.chosen(explicit, template, config)
            if choice is None:
                choice = self._choose(explicit, template, config)
                self._choices[_key(explicit, template, config)] = choice
            return choice

    def chosen(self, explicit: str | None, template: str | None, config: HandlerConfig) -> ModelChoice | None:
        """What `choose` decided before; None where it has still to decide, which may look for local servers."""
        return self._choices.get(_key(explicit, template, config))

    def _choose(self, explicit: str | None, template: str | None, config: HandlerConfig) -> ModelChoice:
        base_url = config.base_url
        for model, why in (  # noqa: B007 (used after the loop)
            (explicit, "named in the call"),
            (template, "named by the template"),
            (config.model, f"named by the profile {config.name!r}"),
            (self._environ.get("EVALUATOR_MODEL"), "named by EVALUATOR_MODEL"),
        ):
            if model:
                break
        else:
            if self._fixed is not None:
                model, why = self._fixed.name, "the backend that was given"
            elif config.backend == "simulated":
                model, why = SIMULATED, f"the profile {config.name!r} is simulated"
            elif base_url is not None:
                model = first_model(base_url, self._key(config))
                if model is None:
                    raise ConfigurationError(
                        f"profile {config.name!r} names no model and {base_url} lists none; "
                        "is the server running? Give a model with <model> or --model"
                    )
                why = f"the first model that {base_url} lists"
            else:
                model, why, base_url = self._find()
        # Naming a model in the call takes a task out of a simulated profile; a template's own model does not.
        if explicit and config.backend == "simulated" and not explicit.startswith("simulated"):
            config = config.override(backend="auto")
        backend, bare = self._backend(model, config, base_url)
        stands_in = self._found is not None and why is self._found[1] and model == SIMULATED
        refused = self._refused.setdefault((id(backend), bare), set())
        endpoint = endpoint_of(backend, model)
        # A record holds calls and results, not the text in which they were spoken of.
        if config.tool_calling == "text" and backend.name != "replay":
            backend = self._speaking_text(backend)
        cache = None if backend.name in ("simulated", "replay") else self._cache
        return ModelChoice(backend, bare, model, why, stands_in, refused, endpoint, self._gate, cache)

    def behind(self, gate: Gate, cache: ResponseCache | None) -> ModelChooser:
        """A chooser with the backends of this one, which either closes; its choices pass through `gate` and `cache`."""
        gated = copy(self)
        gated._gate, gated._cache, gated._choices = gate, cache, {}
        return gated

    def _find(self) -> tuple[str, str, str | None]:
        if self._found is None:
            self._found = find_provider(self._environ, probe_local=self._probe_local)
            if self._found[0] == SIMULATED and callable(self._notice):
                self._notice(
                    "No provider key and no local server was found: answers are simulated. "
                    "Set EVALUATOR_MODEL or a provider's key for real ones."
                )
        return self._found

    def _key(self, config: HandlerConfig) -> str | None:
        if config.api_key_env is None:
            return None
        value = self._environ.get(config.api_key_env)
        if not value and not _is_loopback(config.base_url):
            raise ConfigurationError(f"profile {config.name!r} needs {config.api_key_env}, which is not set")
        return value or None

    def _backend(self, model: str, config: HandlerConfig, base_url: str | None) -> tuple[Backend, str]:
        if self._fixed is not None:
            return self._fixed, model
        prefix, _, rest = model.partition("/")
        if prefix == "simulated" or config.backend == "simulated":
            return self._simulated(config), model
        if config.backend == "replay":
            raise ConfigurationError("a replay backend answers from a task file: give it as `backend=` in Python")
        key = self._key(config)
        if config.backend == "litellm":
            return self._litellm(base_url, key), model
        if base_url is not None:
            return self._compatible(base_url, key), rest if prefix in ("openai", "local") and rest else model
        if prefix == "openai" or (config.backend == "openai_compatible" and not rest):
            key = key or self._environ.get("OPENAI_API_KEY")
            url = self._environ.get("OPENAI_BASE_URL", OPENAI_URL)
            if key is None and url == OPENAI_URL:
                raise ConfigurationError(f"{model} needs OPENAI_API_KEY, which is not set")
            return self._compatible(url, key), rest or model
        if config.backend == "openai_compatible":
            raise ConfigurationError(f"profile {config.name!r} is openai_compatible and needs a <base_url>")
        if not rest:
            raise ConfigurationError(f"{model!r} names no provider; write provider/model, as in openai/{model}")
        needed = next((variable for variable, known in KEYS if known.startswith(f"{prefix}/")), None)
        if needed is not None and key is None and not self._environ.get(needed):
            raise ConfigurationError(f"{model} needs {needed}, which is not set")
        return self._litellm(None, key), model

    def _speaking_text(self, backend: Backend) -> Backend:
        if id(backend) not in self._in_text:
            from evaluator.handler.text_tools import TextToolsBackend

            self._in_text[id(backend)] = TextToolsBackend(backend)
        return self._in_text[id(backend)]

    def _simulated(self, config: HandlerConfig) -> Backend:
        settings = dict(config.simulated)
        key = ("simulated", config.seed, tuple(sorted(settings.items())))
        if key not in self._backends:
            from evaluator.handler.simulated import SimulatedBackend

            latency = float(settings.pop("latency", 0.0))
            self._backends[key] = SimulatedBackend(config.seed or 0, latency_s=latency, **settings)
        return self._backends[key]

    def _compatible(self, base_url: str, key: str | None) -> Backend:
        name = ("openai_compatible", base_url, key)
        if name not in self._backends:
            from evaluator.handler.openai_compatible import OpenAICompatibleBackend

            self._backends[name] = OpenAICompatibleBackend(base_url, key)
        return self._backends[name]

    def _litellm(self, base_url: str | None, key: str | None) -> Backend:
        name = ("litellm", base_url, key)
        if name not in self._backends:
            from evaluator.handler.litellm_backend import LiteLLMBackend

            self._backends[name] = LiteLLMBackend(base_url=base_url, api_key=key)
        return self._backends[name]

    async def aclose(self) -> None:
        """Closes every backend that was made here; one that was given is its owner's."""
        for backend in self._backends.values():
            await backend.aclose()
        self._backends.clear()
        self._choices.clear()
        self._in_text.clear()
        self._refused.clear()


def endpoint_of(backend: Backend, model: str) -> str:
    """Where `model` is reached through `backend`, without secrets: a URL, else the provider, else the backend's name.

    A backend of your own may say so itself, as an attribute `endpoint`.
    """
    told = getattr(backend, "endpoint", None)
    if isinstance(told, str):
        return told
    return model.partition("/")[0] if backend.name == "litellm" else backend.name


def _is_loopback(base_url: str | None) -> bool:
    """Whether a server on this machine is meant, which may well ask for no key."""
    return base_url is not None and urlsplit(base_url).hostname in ("localhost", "127.0.0.1", "::1")


def _key(explicit: str | None, template: str | None, config: HandlerConfig) -> tuple[object, ...]:
    return (
        explicit,
        template,
        config.model,
        config.backend,
        config.base_url,
        config.api_key_env,
        config.name,
        config.tool_calling,
    )


def find_provider(environ: Mapping[str, str], *, probe_local: bool = True) -> tuple[str, str, str | None]:
    """`(model, why, base_url)` of the first provider whose key is set or whose local server answers."""
    for variable, model in KEYS:
        if environ.get(variable):
            return model, f"{variable} is set", None
    if probe_local:
        for url, server in LOCAL_SERVERS:
            model = first_model(url, None)
            if model is not None:
                return f"local/{model}", f"{server} answers at {url}", url
    return SIMULATED, "no provider key and no local server was found", None


def first_model(base_url: str, key: str | None, timeout_s: float = 0.3) -> str | None:
    """The first model id that an OpenAI-compatible server lists; None if none answers within `timeout_s`."""
    import http.client
    import json

    parts = urlsplit(base_url)
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = make(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connection.request("GET", parts.path.rstrip("/") + "/models", headers=headers)
        response = connection.getresponse()
        if response.status != 200:
            return None
        listed = json.loads(response.read(1_000_000))["data"]
        name = listed[0]["id"]
        return name if isinstance(name, str) else None
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return None
    finally:
        connection.close()
