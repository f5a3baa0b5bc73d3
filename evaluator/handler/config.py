"""A handler profile: immutable configuration, read from an XML file or made in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, field, replace
from inspect import cleandoc
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from evaluator.errors import ConfigurationError, Diagnostic, TemplateError
from evaluator.fields import (
    SESSION,
    After,
    Count,
    FieldError,
    Name,
    Natural,
    NotNegative,
    Positive,
    Range,
    check_fields,
    check_names,
    to_dict,
)
from evaluator.lazy_dataclass import frozen
from evaluator.nodes.sampling import (
    check_extra_body,
    check_stop,
    read_extra_body,
    read_stop,
)
from evaluator.processes.sandboxes import MEMORY_BYTES, NO_SANDBOX, Sandbox, SandboxFolder
from evaluator.tools.mcp.servers import McpServer, read_server
from evaluator.tools.policy import POLICIES, Policy, PolicyRule
from evaluator.tools.tool import MANAGE_TASK
from evaluator.tools.x_display import XDisplay

if TYPE_CHECKING:
    from evaluator.xml.source import Source

BackendName = Literal["auto", "openai_compatible", "litellm", "simulated", "replay"]
ToolCalling = Literal["native", "text"]
PromptCache = Literal["off", "auto", "on"]
UnitShare = Annotated[float, Range(above=0, most=1)]
RunGrant = Literal["list", "read", "resume"]


DEFAULT_BACKOFF_S = (2.0, 6.0, 18.0)
"""Seconds before each retry of a failed model or tool call."""


@frozen
class ToolGrant:
    """A tool that a profile offers to its tasks. `rules` apply before `policy`; None is the tool's
    own policy.

    Only for `manage_task`: `role` is the role in which it keeps task lists (None: the profile's
    name), `runs` is what it may do with interrupted runs (None: list them).
    """

    name: str
    policy: Policy | None = None
    rules: tuple[PolicyRule, ...] = ()
    role: str | None = None
    runs: RunGrant | None = None

    def __post_init__(self) -> None:
        if self.name != MANAGE_TASK and (self.role is not None or self.runs is not None):
            raise ConfigurationError(
                f"the tool {self.name!r} has no role and no runs; only {MANAGE_TASK} has"
            )
        if self.role is not None and not self.role.strip():
            raise ConfigurationError(
                f"the role of {MANAGE_TASK} is empty; leave it out, or name one"
            )


def _checked_stop(texts: tuple[str, ...]) -> tuple[str, ...]:
    try:
        if texts:
            return check_stop(texts)
        return texts
    except ValueError as error:
        raise ValueError(f"is {texts!r:.80}, {error}") from error


def _checked_extra_body(value: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return check_extra_body(value)
    except ValueError as error:
        raise ValueError(f": {error}") from error


def _checked_prices(value: tuple[Any, ...] | None) -> tuple[float, float] | None:
    if value is None:
        return None
    are_numbers = all(type(price) in (int, float) and 0 <= price < inf for price in value)
    if len(value) != 2 or not are_numbers:
        raise ValueError(f"is {value!r:.80}, expected two numbers, each at least 0")
    return value


_SIMULATED_RATES = ("wrong", "malformed", "rate_limit", "hang", "fail")


def _checked_simulated(settings: Mapping[str, float]) -> Mapping[str, float]:
    check_names(settings, (*_SIMULATED_RATES, "latency"))
    for name in _SIMULATED_RATES:
        if settings.get(name, 0) > 1:
            raise FieldError("expected a rate in [0, 1]", name, settings[name])
    return settings


@frozen(kw_only=True)
class HandlerConfig:
    """A handler profile: model, limits, tools and system prompt. Immutable: a template's overrides
    make a new one.

    `max_context_fraction` is of the model's context window, in (0, 1]; `timeout_s` bounds the whole
    task in wall time; `backoff_s` are the waits before each retry of a model call that failed in
    transport (429, 5xx, resets, timeouts). `script_memory_mb` (of 2**20 bytes) bounds a script and
    all processes that it starts together, `sandbox` is where they run. `context_window` in tokens
    and `prices` (US dollars per million input and output tokens) are for models that the price
    table does not know. `roles` maps the roles that templates name to models.

    `temperature`, `top_p`, `top_k`, `seed` and `stop` are passed to the provider. `logprobs` asks
    for the log probabilities of the answer's tokens and of that many likely ones at each place;
    `echo` asks for those of the prompt in place of an answer. `extra_body` has
    further fields of the request for an OpenAI-compatible server, but not the model, messages,
    tools, keys, hosts and limits.

    `tool_calling` "text" describes tools in the system message and reads calls in the answer, for
    models without tool calling. `computer` is the display of the tool of that name. `native_output`
    lets the provider enforce a declared JSON schema. `prompt_cache` says when the provider's cache
    of prompts is used on purpose, see `models.prompt_cache`.
    """

    name: str = "default"
    description: str = ""
    backend: BackendName = "auto"
    model: str | None = None
    roles: Mapping[str, Name] = field(default_factory=dict[str, str])
    base_url: str | None = None
    api_key_env: str | None = None
    system: Annotated[str, SESSION] = ""
    temperature: NotNegative | None = None
    seed: int | None = None
    top_p: UnitShare | None = None
    top_k: Natural | None = None
    stop: Annotated[tuple[str, ...], After(_checked_stop)] = ()
    logprobs: Annotated[int, Range(least=0, most=20)] | None = None
    echo: bool | None = None
    extra_body: Annotated[Mapping[str, Any], After(_checked_extra_body)] = field(
        default_factory=dict[str, Any]
    )
    max_turns: Count = 12
    max_context_fraction: UnitShare = 0.8
    max_output_tokens: Count | None = None
    timeout_s: Positive = 300.0
    max_cost_usd: NotNegative | None = None
    script_memory_mb: Count = MEMORY_BYTES >> 20
    sandbox: Sandbox = NO_SANDBOX
    backoff_s: tuple[NotNegative, ...] = DEFAULT_BACKOFF_S
    tools: tuple[ToolGrant, ...] = ()
    roots: tuple[str, ...] = ()
    mcp: tuple[McpServer, ...] = ()
    computer: XDisplay | None = None
    context_window: Count | None = None
    prices: Annotated[tuple[float, float] | None, After(_checked_prices)] = None
    tool_calling: ToolCalling = "native"
    native_output: bool = False
    prompt_cache: PromptCache = "auto"
    simulated: Annotated[Mapping[str, NotNegative], After(_checked_simulated)] = field(
        default_factory=dict[str, float]
    )

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except FieldError as error:
            raise ConfigurationError(f"profile {self.name!r}: {error}") from None

    @property
    def script_memory_bytes(self) -> int:
        """`script_memory_mb` in bytes."""
        return self.script_memory_mb << 20

    def secret_variables(self) -> tuple[str, ...]:
        """The environment variables whose values the profile sends to its endpoint or to its MCP
        servers.
        """
        key_variables = ()
        if self.api_key_env:
            key_variables = (self.api_key_env,)
        return (*key_variables, *(name for server in self.mcp for name in server.variables()))

    def override(self, **changes: Any) -> HandlerConfig:
        """The same profile with each given value that is not None."""
        settings = {key: value for key, value in changes.items() if value is not None}
        if settings:
            return replace(self, **settings)
        return self

    def to_dict(self) -> dict[str, Any]:
        """The profile for display, without its prompt; tools and MCP servers by name."""
        return {
            **to_dict(self),
            "tools": [grant.name for grant in self.tools],
            "mcp": [server.name for server in self.mcp],
            "computer": None if self.computer is None else asdict(self.computer),
            "sandbox": self.sandbox.kind,
        }


def read_profile(path: Path) -> tuple[HandlerConfig, str]:
    """A profile, and the text of its file.

    Raises: ConfigurationError, with file, line and column, where the file is not a valid profile.
    """
    from evaluator.xml.schema import validate
    from evaluator.xml.source import read_file

    fields: dict[str, Any] = {}
    try:
        source = read_file(path)
        problems = [d for d in validate(source, "handler") if d.severity == "error"]
    except TemplateError as error:
        raise ConfigurationError(str(error)) from error
    problems = problems or [*_duplicate_names(source), *_read_fields(source, fields)]
    if problems:
        raise ConfigurationError("\n".join(str(d) for d in problems))
    try:
        return HandlerConfig(**fields), source.text
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _read_fields(source: Source, fields: dict[str, Any]) -> Iterator[Diagnostic]:
    """Fills in `fields` of a profile that fits the schema. The errors are those that the schema
    cannot find.
    """
    fields.update(
        name=source.root.get("name"), tool_calling=source.root.get("tool_calling") or "native"
    )
    for child in source.root.iterchildren("*"):
        if child.tag == "limits":
            fields.update(
                {_LIMITS[name][0]: _LIMITS[name][1](value) for name, value in child.attrib.items()}
            )
            continue
        item, read = _LISTS.get(child.tag) or (None, _READERS[child.tag])
        values: list[Any] = []
        for element in [child] if item is None else child.findall(item):
            try:
                values.append(read(element))
            except ConfigurationError as error:
                yield Diagnostic(
                    "error", "invalid-value", message=str(error), span=source.locate(element)
                )
            except ValueError as error:
                yield Diagnostic(
                    "error",
                    "invalid-value",
                    message=f"<{child.tag}>: {error}",
                    span=source.locate(element),
                )
        if item is not None:
            fields[child.tag] = tuple(values)
        elif values:
            fields[_RENAMED.get(child.tag) or child.tag] = values[0]


_LIMITS: Mapping[str, tuple[str, type]] = {
    "max_turns": ("max_turns", int),
    "max_context_fraction": ("max_context_fraction", float),
    "max_output_tokens": ("max_output_tokens", int),
    "timeout": ("timeout_s", float),
    "max_cost": ("max_cost_usd", float),
    "script_memory": ("script_memory_mb", int),
}


def _text(element: Any) -> str:
    return " ".join((element.text or "").split())


def _flag(element: Any, name: str) -> bool:
    return (element.get(name) or "false").strip() in ("true", "1")


def _read_waits(element: Any) -> tuple[float, ...]:
    written = element.get("backoff")
    if written:
        waits = tuple(float(wait) for wait in written.split())
    else:
        waits = DEFAULT_BACKOFF_S
    count = int(element.get("max") or len(waits))
    if waits:
        return (waits + waits[-1:] * count)[:count]
    return (0.0,) * count


def _read_sandbox(element: Any) -> Sandbox:
    cpus = element.get("cpus")
    image = element.get("image")
    return Sandbox(
        element.get("kind").strip(),
        image and image.strip(),
        cpus=None if cpus is None else float(cpus),
        network=_flag(element, "network"),
        folder=cast("SandboxFolder", (element.get("folder") or "fresh").strip()),
    )


def _read_grant(tool: Any) -> ToolGrant:
    rules = tuple(
        PolicyRule(rule.tag, rule.get("argument"), matches=rule.get("matches"))
        for rule in tool
        if rule.tag in POLICIES
    )
    policy = cast("Policy | None", tool.get("policy"))
    runs = cast("RunGrant | None", tool.get("runs"))
    return ToolGrant(tool.get("name"), policy, rules=rules, role=tool.get("role"), runs=runs)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "system": lambda element: cleandoc(element.text or ""),
    "description": _text,
    "backend": lambda element: _text(element) or "auto",
    **dict.fromkeys(("model", "base_url", "api_key_env"), lambda element: _text(element) or None),
    **dict.fromkeys(("temperature", "top_p"), lambda element: float(_text(element))),
    **dict.fromkeys(
        ("seed", "top_k", "logprobs", "context_window"), lambda element: int(_text(element))
    ),
    "echo": lambda element: _text(element) in ("true", "1"),
    "stop": lambda element: read_stop(element.text or ""),
    "extra_body": lambda element: read_extra_body(element.text or ""),
    "retries": _read_waits,
    "roles": lambda element: {
        role.get("name"): role.get("model") for role in element.findall("role")
    },
    "computer": lambda e: XDisplay(
        e.get("display").strip(), int(e.get("width")), height=int(e.get("height"))
    ),
    "sandbox": _read_sandbox,
    "roots": lambda element: tuple(root.get("path") for root in element.findall("root")),
    "prices": lambda element: (float(element.get("input")), float(element.get("output"))),
    "output": lambda element: _flag(element, "native"),
    "prompt_cache": _text,
    "simulated": lambda element: {key: float(value) for key, value in element.attrib.items()},
}
"""Reads the value of a field from the child element of that name."""
_RENAMED = {"retries": "backoff_s", "output": "native_output"}
_LISTS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "tools": ("tool", _read_grant),
    "mcp": ("server", read_server),
}


_NAMED: tuple[tuple[str, str, str], ...] = (
    ("tools/tool", "tool", "; put its policy and rules into one element"),
    ("mcp/server", "MCP server", ""),
    ("roles/role", "role", "; one model answers where it is named"),
)


def _duplicate_names(source: Source) -> list[Diagnostic]:
    """Errors for elements that share a name, because one of them would have no effect."""
    problems: list[Diagnostic] = []
    for path, what, advice in _NAMED:
        seen: set[str] = set()
        for element in source.root.iterfind(path):
            name = element.get("name", "")
            if name in seen:
                message = f"the {what} {name!r} is there twice{advice}"
                span = source.locate_attribute(element, "name")
                problems.append(Diagnostic("error", "invalid-value", message=message, span=span))
            seen.add(name)
    return problems
