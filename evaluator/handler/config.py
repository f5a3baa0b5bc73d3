"""Handler profiles: immutable configuration read from `handlers/*.xml`, and what a template may override."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from inspect import cleandoc
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from evaluator.errors import ConfigurationError, Diagnostic, TemplateError
from evaluator.handler.mcp.servers import McpServer, read_servers, server_problems
from evaluator.handler.tools.display import Display
from evaluator.handler.tools.policy import POLICIES, Policy, Rule
from evaluator.handler.tools.script import MEMORY_BYTES
from evaluator.xml.resources import shipped

if TYPE_CHECKING:
    from evaluator.xml.source import Source

BackendName = Literal["auto", "openai_compatible", "litellm", "simulated", "replay"]
ToolCalling = Literal["native", "text"]


@dataclass(frozen=True, slots=True)
class ToolGrant:
    """A tool that a profile offers to its tasks; `policy` None leaves the tool's own. `rules` come before it."""

    name: str
    policy: Policy | None = None
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerConfig:
    """Everything a Handler is made from. Immutable: a template's overrides give a new one.

    `max_context_fraction` is of the model's context window, in (0, 1]; `timeout_s` bounds the whole task
    in wall time; `backoff_s` are the waits before each retry of a model call that failed in transport
    (429, 5xx, resets, timeouts). `script_memory_mb` (of 2**20 bytes) is what a script and all that it starts may hold
    together. `context_window` in tokens and `prices` (US dollars per million input
    and output tokens) are for models that the price table does not know. `roles` maps the roles that
    templates name to models.

    `tool_calling` "text" describes tools in the system message and reads calls out of the answer, for models
    that have no tool calling. `computer` is the display of the tool of that name. `native_output` hands a
    declared JSON schema to the provider. `cache` marks what will be sent again for providers that cache only what
    is marked.
    """

    name: str = "default"
    description: str = ""
    backend: BackendName = "auto"
    model: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict[str, str])
    base_url: str | None = None
    api_key_env: str | None = None
    system: str = ""
    temperature: float | None = None
    seed: int | None = None
    max_turns: int = 10
    max_context_fraction: float = 0.8
    max_output_tokens: int | None = None
    timeout_s: float = 300.0
    max_cost_usd: float | None = None
    script_memory_mb: int = MEMORY_BYTES >> 20
    backoff_s: tuple[float, ...] = (2.0, 6.0, 18.0)
    tools: tuple[ToolGrant, ...] = ()
    roots: tuple[str, ...] = ()
    mcp: tuple[McpServer, ...] = ()
    computer: Display | None = None
    context_window: int | None = None
    prices: tuple[float, float] | None = None
    tool_calling: ToolCalling = "native"
    native_output: bool = False
    cache: bool = False
    simulated: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check("max_turns", self.max_turns, lambda n: n >= 1, "an integer, 1 or more", int)
        self._check("max_context_fraction", self.max_context_fraction, lambda n: 0 < n <= 1, "a number in (0, 1]")
        self._check("timeout_s", self.timeout_s, lambda n: 0 < n < inf, "seconds, more than 0")
        if self.max_output_tokens is not None:
            self._check("max_output_tokens", self.max_output_tokens, lambda n: n >= 1, "an integer, 1 or more", int)
        if self.max_cost_usd is not None:
            self._check("max_cost_usd", self.max_cost_usd, lambda n: 0 <= n < inf, "US dollars, 0 or more")
        self._check("script_memory_mb", self.script_memory_mb, lambda n: n >= 1, "megabytes, 1 or more", int)
        for wait in self.backoff_s:
            self._check("backoff_s", wait, lambda n: 0 <= n < inf, "seconds, 0 or more")

    def _check(
        self,
        name: str,
        value: object,
        holds: Callable[[float], bool],
        expected: str,
        kind: type | None = None,
    ) -> None:
        number = isinstance(value, kind or (int, float)) and not isinstance(value, bool)
        if not number or not holds(cast("float", value)):
            raise ConfigurationError(f"profile {self.name!r}: {name} is {value!r}, expected {expected}")

    @property
    def script_memory_bytes(self) -> int:
        """`script_memory_mb` in bytes."""
        return self.script_memory_mb << 20

    def override(self, **changes: Any) -> HandlerConfig:
        """The same profile with each given value that is not None."""
        given = {key: value for key, value in changes.items() if value is not None}
        return replace(self, **given) if given else self

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "description": self.description, "backend": self.backend, "model": self.model,
            "roles": dict(self.roles),
            "base_url": self.base_url, "api_key_env": self.api_key_env, "temperature": self.temperature,
            "seed": self.seed, "max_turns": self.max_turns,
            "max_context_fraction": self.max_context_fraction, "max_output_tokens": self.max_output_tokens,
            "timeout_s": self.timeout_s, "max_cost_usd": self.max_cost_usd, "backoff_s": list(self.backoff_s),
            "script_memory_mb": self.script_memory_mb,
            "tools": [grant.name for grant in self.tools], "roots": list(self.roots),
            "tool_calling": self.tool_calling, "native_output": self.native_output, "cache": self.cache,
            "mcp": [server.name for server in self.mcp],
            "computer": None if self.computer is None else asdict(self.computer),
        }  # fmt: skip


class Profiles(dict[str, HandlerConfig]):
    """Profiles by name. `broken` has the names of those that cannot be used, each with what is wrong and where."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: dict[str, str] = {}


def load_profiles(*folders: str | Path) -> Profiles:
    """Profiles by name, from `folders` first (default: `handlers/` here, if there is one), shipped ones last.

    A profile that cannot be read stops nobody who does not name it; it still hides a later one of its name.
    Raises: ConfigurationError, if a folder that was given is not there.
    """
    places = [Path(f) for f in folders] if folders else [p for p in [Path("handlers")] if p.is_dir()]
    found = Profiles()
    for place in [*places, shipped("handlers")]:
        if not place.is_dir():
            raise ConfigurationError(f"no folder of handler profiles at {place}")
        for path in sorted(place.glob("*.xml")):
            try:
                config = read_profile(path)
            except ConfigurationError as error:
                if path.stem not in found:
                    found.broken.setdefault(path.stem, str(error))
                continue
            if config.name not in found.broken:
                found.setdefault(config.name, config)
    return found


def profile_named(profiles: Mapping[str, HandlerConfig], name: str) -> HandlerConfig:
    """Raises: ConfigurationError, if there is no profile of that name, or it cannot be used: then with the place."""
    config = profiles.get(name)
    if config is not None:
        return config
    broken = profiles.broken.get(name) if isinstance(profiles, Profiles) else None
    if broken is not None:
        raise ConfigurationError(f"the handler profile {name!r} cannot be used:\n{broken}")
    raise ConfigurationError(f"no handler profile is called {name!r}; there are: {', '.join(sorted(profiles))}")


def read_profile(path: Path) -> HandlerConfig:
    """One profile file.

    Raises: ConfigurationError, with file, line and column, where the file is not a valid profile.
    """
    from evaluator.xml.schema import validate
    from evaluator.xml.source import read_file

    try:
        source = read_file(path)
        problems = [d for d in validate(source, "handler") if d.severity == "error"] or [
            *_named_twice(source),
            *server_problems(source),
        ]
    except TemplateError as error:
        raise ConfigurationError(str(error)) from error
    if problems:
        raise ConfigurationError("\n".join(str(d) for d in problems))
    root = source.root
    fields: dict[str, Any] = {"name": root.get("name"), "tool_calling": root.get("tool_calling") or "native"}
    for child in root:
        if isinstance(child.tag, str):
            _read_child(child, fields)
    try:
        return HandlerConfig(**fields)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


_TEXTS = ("description", "backend", "model", "base_url", "api_key_env", "system")
_LIMITS: tuple[tuple[str, str, type], ...] = (
    ("max_turns", "max_turns", int),
    ("max_context_fraction", "max_context_fraction", float),
    ("max_output_tokens", "max_output_tokens", int),
    ("timeout", "timeout_s", float),
    ("max_cost", "max_cost_usd", float),
    ("script_memory", "script_memory_mb", int),
)


def _read_child(child: Any, fields: dict[str, Any]) -> None:
    text = cleandoc(child.text or "") if child.tag == "system" else " ".join((child.text or "").split())
    if child.tag in _TEXTS:
        fields[child.tag] = text or None if child.tag not in ("description", "system") else text
        if child.tag == "backend" and not text:
            fields["backend"] = "auto"
    elif child.tag == "temperature":
        fields["temperature"] = float(text)
    elif child.tag in ("seed", "context_window"):
        fields[child.tag] = int(text)
    elif child.tag == "limits":
        for attribute, name, convert in _LIMITS:
            if child.get(attribute) is not None:
                fields[name] = convert(child.get(attribute))
    elif child.tag == "retries":
        waits = tuple(float(x) for x in (child.get("backoff") or "2 6 18").split())
        count = int(child.get("max") or len(waits))
        fields["backoff_s"] = (waits + waits[-1:] * count)[:count] if waits else (0.0,) * count
    elif child.tag == "roles":
        fields["roles"] = {role.get("name"): role.get("model") for role in child.findall("role")}
    elif child.tag == "tools":
        fields["tools"] = tuple(_read_grant(tool) for tool in child.findall("tool"))
    elif child.tag == "mcp":
        fields["mcp"] = read_servers(child)
    elif child.tag == "computer":
        fields["computer"] = Display(child.get("display").strip(), int(child.get("width")), int(child.get("height")))
    elif child.tag == "roots":
        fields["roots"] = tuple(root.get("path") for root in child.findall("root"))
    elif child.tag == "prices":
        fields["prices"] = (float(child.get("input")), float(child.get("output")))
    elif child.tag == "output":
        fields["native_output"] = child.get("native").strip() in ("true", "1")
    elif child.tag == "cache":
        fields["cache"] = child.get("enabled").strip() in ("true", "1")
    elif child.tag == "simulated":
        fields["simulated"] = {key: float(value) for key, value in child.attrib.items()}


_NAMED: tuple[tuple[str, str, str], ...] = (
    ("tools/tool", "tool", "; put its policy and rules into one element"),
    ("mcp/server", "MCP server", ""),
    ("roles/role", "role", "; one model answers where it is named"),
)


def _named_twice(source: Source) -> list[Diagnostic]:
    """Of two elements of one name, what one says would be lost unseen."""
    twice: list[Diagnostic] = []
    for place, what, advice in _NAMED:
        seen: set[str] = set()
        for element in source.root.iterfind(place):
            name = element.get("name", "")
            if name in seen:
                message = f"the {what} {name!r} stands there twice{advice}"
                twice.append(Diagnostic("error", "invalid-value", message, source.locate_attribute(element, "name")))
            seen.add(name)
    return twice


def _read_grant(tool: Any) -> ToolGrant:
    rules = tuple(Rule(rule.tag, rule.get("argument"), rule.get("matches")) for rule in tool if rule.tag in POLICIES)
    return ToolGrant(tool.get("name"), cast("Policy | None", tool.get("policy")), rules)
