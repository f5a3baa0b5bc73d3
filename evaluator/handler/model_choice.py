"""Chooses the model that answers a task.

The order is: an explicit argument, the template, the profile, `EVALUATOR_MODEL`, the first provider
whose key or local server is found, the simulated model.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from evaluator.errors import ConfigurationError
from evaluator.errors.messages import shortened
from evaluator.handler.backends import (
    BACKENDS,
    KEYS,
    SIMULATED,
    MissingKey,
    Target,
    declaration_for,
    declared,
    origin_of,
    profile_key,
)
from evaluator.handler.config import BackendName, HandlerConfig
from evaluator.lazy_dataclass import frozen
from evaluator.library.structure import host_in
from evaluator.limits.call_limiter import CallLimiter, CallParking
from evaluator.models.backend import Backend, ModelRequest, ModelResponse
from evaluator.models.failures import clean
from evaluator.models.key_transport import check_port, refuse_plain_http
from evaluator.models.prompt_cache import PromptCaches

if TYPE_CHECKING:
    from evaluator.models.cache import ResponseCache

NOTHING_FOUND = "no provider key and no local server was found"
LOCAL_SERVERS: tuple[tuple[str, str], ...] = (
    ("http://127.0.0.1:8000/v1", "vLLM or SGLang"),
    ("http://127.0.0.1:11434/v1", "Ollama"),
    ("http://127.0.0.1:1234/v1", "LM Studio"),
    ("http://127.0.0.1:8080/v1", "llama.cpp"),
)


@frozen
class ModelChoice:
    """The backend that answers, the model's id as the backend expects it, and why it was chosen.

    `is_stand_in`: the simulated model, because nothing else was found. `refused_schemas`: the kinds
    of schema that this model of this backend does not accept, filled in by the Handlers that find
    out. `endpoint` says where the model is reached, without secrets. Each attempt acquires a permit
    of `limiter`, unless `parking` takes the call; `cache` holds earlier responses.
    `prompt_caches`: it is one of many calls, which may have the beginning of their prompts in
    common.
    """

    backend: Backend
    model: str
    label: str
    why: str
    is_stand_in: bool = False
    refused_schemas: set[str] = field(default_factory=set[str], compare=False)
    endpoint: str = ""
    limiter: CallLimiter | None = field(default=None, compare=False)
    parking: CallParking | None = field(default=None, compare=False)
    cache: ResponseCache | None = field(default=None, compare=False)
    prompt_caches: PromptCaches | None = field(default=None, compare=False)

    @property
    def is_free(self) -> bool:
        """Whether calls cost nothing and are never cached: simulated and replayed answers."""
        return origin_of(self.backend) != "provider"

    @property
    def is_simulated(self) -> bool:
        """Whether answers are made up without a model."""
        return origin_of(self.backend) == "simulated"


class _NoKey:
    """The backend of a plan for a provider whose key is not set. It makes no call."""

    name = "no key"

    async def complete(
        self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None
    ) -> ModelResponse:
        raise MissingKey(f"{request.model} needs a key that is not set")

    async def aclose(self) -> None:
        """Nothing is open."""


class BackendPool:
    """Makes one backend for each endpoint and key, so that connections are pooled, and finds the
    default model.

    `given` answers everything instead. `asks_servers`: a server may be asked for the models that it
    has. `notice` is called once with a line for the user when the simulated model stands in for a
    real one.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        probe_local: bool = True,
        given: Backend | None = None,
        notice: Callable[[str], None] | None = None,
        asks_servers: bool = True,
    ) -> None:
        self.environ = environ
        self.asks_servers = asks_servers
        self.given = given
        # Without it, concurrent choices would each create a separate backend and connection pool.
        self.lock = threading.Lock()
        self._probe_local = probe_local
        self._notice = notice
        self._backends: dict[tuple[object, ...], Backend] = {}
        self._with_text_tools: dict[int, Backend] = {}
        self._refused_schemas: dict[tuple[int, str], set[str]] = {}
        self._default: tuple[str, str, str | None] | None = None

    def default_model(self) -> tuple[str, str, str | None]:
        """As `find_provider`, looked for once."""
        if self._default is None:
            self._default = find_provider(self.environ, probe_local=self._probe_local)
            if self._default[0] == SIMULATED and self._notice is not None:
                self._notice(
                    "No provider key and no local server was found: answers are simulated. "
                    "Set EVALUATOR_MODEL or a provider's key for real ones."
                )
        return self._default

    def refused_schemas(self, backend: Backend, model: str) -> set[str]:
        return self._refused_schemas.setdefault((id(backend), model), set())

    def get(
        self, model: str, config: HandlerConfig, base_url: str | None, explicit: str | None = None
    ) -> tuple[Backend, str]:
        """The backend for `model`, and the model's id without the prefix that the backend does not
        know.

        `explicit`: the model that the user named, if any; it may come from a role or a template
        instead.

        Raises: ConfigurationError, if there is no such backend or its key is missing.
        """
        if self.given is not None:
            return self.given, model
        target = Target(
            model,
            config,
            base_url=base_url,
            explicit=explicit,
            environ=self.environ,
            once=self._once,
        )
        try:
            return declaration_for(model, config, explicit=explicit).open(target)
        except MissingKey:
            if self.asks_servers:
                raise
            return _NoKey(), model

    def with_text_tools(self, backend: Backend) -> Backend:
        from evaluator.models.text_tools import TextToolsBackend

        return self._with_text_tools.setdefault(id(backend), TextToolsBackend(backend))

    def _once(
        self, name: BackendName, settings: tuple[object, ...], make: Callable[[], Backend]
    ) -> Backend:
        key = (name, *settings)
        if key not in self._backends:
            backend = make()
            if backend.name != name:
                raise ConfigurationError(
                    f"the backend {name!r} calls itself {backend.name!r}; give both one name"
                )
            self._backends[key] = backend
        return self._backends[key]

    async def aclose(self) -> None:
        """Closes every backend that was made here; the given one belongs to its owner."""
        for backend in self._backends.values():
            await backend.aclose()
        for table in (self._backends, self._with_text_tools, self._refused_schemas):
            table.clear()


class ModelChooser:
    """Chooses models, and remembers its choices. `environ`, `probe_local`, `backend` and `notice`:
    see BackendPool.

    Its choices carry `limiter`, and `cache` except for simulated and replayed answers.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        probe_local: bool = True,
        backend: Backend | None = None,
        notice: Callable[[str], None] | None = None,
        cache: ResponseCache | None = None,
        limiter: CallLimiter | None = None,
        parking: CallParking | None = None,
        prompt_caches: PromptCaches | None = None,
        pool: BackendPool | None = None,
    ) -> None:
        self._pool = pool or BackendPool(
            os.environ if environ is None else environ, probe_local, given=backend, notice=notice
        )
        self._limiter = limiter
        self._parking = parking
        self._cache = cache
        self._prompt_caches = prompt_caches
        self._choices: dict[tuple[object, ...], ModelChoice] = {}

    def with_limiter(
        self,
        limiter: CallLimiter | None,
        cache: ResponseCache | None,
        parking: CallParking | None = None,
    ) -> ModelChooser:
        """A chooser for the many calls of a batch, which shares the backends of this one, and
        whose choices use `limiter`, `cache` and `parking`.

        Closing either closes the backends.
        """
        return ModelChooser(
            limiter=limiter,
            cache=cache,
            parking=parking,
            prompt_caches=PromptCaches(),
            pool=self._pool,
        )

    def without_network(self) -> ModelChooser:
        """A chooser for plans, which contacts no server and needs no key: where a server would be
        asked for its models, the label says so.
        """
        pool = self._pool
        return ModelChooser(
            pool=BackendPool(pool.environ, False, given=pool.given, asks_servers=False)
        )

    def choose(
        self, explicit: str | None, template: str | None, config: HandlerConfig
    ) -> ModelChoice:
        """The model for one task.

        Raises: ConfigurationError, if what was named cannot be used (an unknown backend, a missing
        key).
        """
        with self._pool.lock:
            choice = self.chosen(explicit, template, config=config)
            if choice is None:
                choice = self._choose(explicit, template, config=config)
                self._choices[_key(explicit, template, config=config)] = choice
            return choice

    def chosen(
        self, explicit: str | None, template: str | None, config: HandlerConfig
    ) -> ModelChoice | None:
        """An earlier decision of `choose`; None where it has still to decide, which may look for
        local servers.
        """
        return self._choices.get(_key(explicit, template, config=config))

    def _choose(
        self, explicit: str | None, template: str | None, config: HandlerConfig
    ) -> ModelChoice:
        pool = self._pool
        model, why, base_url = self._named(explicit, template, config=config)
        if model in (explicit, template, config.model) or why.endswith("EVALUATOR_MODEL"):
            reason = host_in(model)
        else:
            reason = None
        if reason is not None:
            raise ConfigurationError(
                f"the model {shortened(model)!a}, {why}, is refused: {reason}. A model's id names "
                "no host; write the "
                "address into <base_url> of a handler profile"
            )
        backend, bare = pool.get(model, config, base_url, explicit)
        refused = pool.refused_schemas(backend, bare)
        endpoint = endpoint_of(backend, model, base_url=base_url)
        # A record holds calls and results, not the text that a model without tool calling wrote for
        # them.
        if config.tool_calling == "text" and origin_of(backend) != "recorded":
            backend = pool.with_text_tools(backend)
        choice = ModelChoice(
            backend,
            bare,
            label=model,
            why=why,
            is_stand_in=why == NOTHING_FOUND,
            refused_schemas=refused,
            endpoint=endpoint,
            limiter=self._limiter,
        )
        if choice.is_free:
            return choice
        return replace(
            choice,
            cache=self._cache,
            parking=self._parking,
            prompt_caches=self._prompt_caches,
        )

    def _named(
        self, explicit: str | None, template: str | None, config: HandlerConfig
    ) -> tuple[str, str, str | None]:
        """The model's label, why it was chosen, and the server that has it where that is known."""
        pool = self._pool
        base_url = config.base_url
        for model, why in (
            (explicit, "named in the call"),
            (template, "named by the template"),
            (config.model, f"named by the profile {config.name!r}"),
            (pool.environ.get("EVALUATOR_MODEL"), "named by EVALUATOR_MODEL"),
        ):
            if model:
                return model, why, base_url
        if pool.given is not None:
            return pool.given.name, "the backend that was given", base_url
        default = BACKENDS[config.backend].default_model
        if default is not None:
            return default, f"the profile {config.name!r} is {config.backend}", base_url
        if base_url is None:
            return pool.default_model()
        if not pool.asks_servers:
            return "local/unknown", f"the first model that {base_url} lists", base_url
        model = first_model(base_url, profile_key(config, pool.environ))
        if model is None:
            raise ConfigurationError(
                f"profile {config.name!r} names no model and {base_url} lists none; "
                "is the server running? Give a model with <model> or --model"
            )
        return model, f"the first model that {base_url} lists", base_url

    async def aclose(self) -> None:
        """Closes the backends that were made here, see `BackendPool.aclose`."""
        await self._pool.aclose()
        self._choices.clear()


def endpoint_of(backend: Backend, model: str, base_url: str | None) -> str:
    """Where `model` is reached through `backend`, without secrets: a URL, else the provider, else
    the backend's name.

    `base_url` is the address for which a declared backend was opened. The cache never mixes the
    answers of two.
    """
    endpoint = getattr(backend, "endpoint", None)
    if isinstance(endpoint, str):
        return endpoint
    declaration = declared(backend.name)
    if base_url is not None and declaration is not None and declaration.origin == "provider":
        return clean(base_url, (urlsplit(base_url).password or "",))
    if declaration is not None and declaration.has_providers:
        return model.partition("/")[0]
    return backend.name


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


def find_provider(
    environ: Mapping[str, str], *, probe_local: bool = True
) -> tuple[str, str, str | None]:
    """`(model, why, base_url)` of the first provider whose key is set or whose local server
    answers.
    """
    for variable, model in KEYS:
        if environ.get(variable, "").strip():
            return model, f"{variable} is set", None
    if probe_local:
        for url, server in LOCAL_SERVERS:
            model = first_model(url, None)
            if model is not None:
                return f"local/{model}", f"{server} answers at {url}", url
    return SIMULATED, NOTHING_FOUND, None


def first_model(base_url: str, key: str | None, timeout_s: float = 0.3) -> str | None:
    """The first model id that an OpenAI-compatible server lists; None if none answers within
    `timeout_s`.
    """
    import http.client
    import json

    check_port(base_url, "the base URL")
    refuse_plain_http(base_url, bool(key))
    parts = urlsplit(base_url)
    if parts.scheme == "https":
        make = http.client.HTTPSConnection
    else:
        make = http.client.HTTPConnection
    connection = make(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        if key:
            headers = {"Authorization": f"Bearer {key}"}
        else:
            headers = {}
        connection.request("GET", parts.path.rstrip("/") + "/models", headers=headers)
        response = connection.getresponse()
        if response.status != 200:
            return None
        listed = json.loads(response.read(1_000_000))["data"]
        name = listed[0]["id"]
        if isinstance(name, str):
            return name
        return None
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return None
    finally:
        connection.close()
