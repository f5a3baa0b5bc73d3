"""A handler profile: immutable configuration, read from an XML file or made in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from inspect import cleandoc
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from evaluator.errors import ConfigurationError, Diagnostic, TemplateError
from evaluator.nodes.sampling import SAMPLING, check_extra_body, check_stop, read_extra_body, read_stop
from evaluator.processes.sandboxes import NO_SANDBOX, Sandbox
from evaluator.processes.supervisor import MEMORY_BYTES
from evaluator.tools.manage_task import MANAGE_TASK
from evaluator.tools.mcp.servers import McpServer, read_servers, server_problems
from evaluator.tools.policy import POLICIES, Policy, PolicyRule
from evaluator.tools.x_display import XDisplay

if TYPE_CHECKING:
    from evaluator.xml.source import Source

BackendName = Literal["auto", "openai_compatible", "litellm", "simulated", "replay"]
ToolCalling = Literal["native", "text"]
RunGrant = Literal["list", "read", "resume"]


@dataclass(frozen=True, slots=True)
class ToolGrant:
    """A tool that a profile offers to its tasks. `rules` apply before `policy`; None is the tool's own policy.

    Only for `manage_task`: `role` is the role in which it keeps task lists (None: the profile's name), `runs` is what
    it may do with interrupted runs (None: list them).
    """

    name: str
    policy: Policy | None = None
    rules: tuple[PolicyRule, ...] = ()
    role: str | None = None
    runs: RunGrant | None = None

    def __post_init__(self) -> None:
        if self.name != MANAGE_TASK and (self.role is not None or self.runs is not None):
            raise ConfigurationError(f"the tool {self.name!r} has no role and no runs; only {MANAGE_TASK} has")
        if self.role is not None and not self.role.strip():
            raise ConfigurationError(f"the role of {MANAGE_TASK} is empty; leave it out, or name one")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerConfig:
    """A handler profile: model, limits, tools and system prompt. Immutable: a template's overrides make a new one.

    `max_context_fraction` is of the model's context window, in (0, 1]; `timeout_s` bounds the whole task
    in wall time; `backoff_s` are the waits before each retry of a model call that failed in transport
    (429, 5xx, resets, timeouts). `script_memory_mb` (of 2**20 bytes) bounds a script and all processes that it starts
    together, `sandbox` is where they run. `context_window` in tokens and `prices` (US dollars per million input
    and output tokens) are for models that the price table does not know. `roles` maps the roles that
    templates name to models.

    `temperature`, `top_p`, `top_k`, `seed` and `stop` are passed to the provider; `extra_body` has further fields of
    the request for an OpenAI-compatible server, but not the model, messages, tools, keys, hosts and limits.

    `tool_calling` "text" describes tools in the system message and reads calls in the answer, for models without tool
    calling. `computer` is the display of the tool of that name. `native_output` lets the provider enforce a declared
    JSON schema. `cache` marks messages that will be sent again, for providers that cache only marked messages.
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
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    max_turns: int = 12
    max_context_fraction: float = 0.8
    max_output_tokens: int | None = None
    timeout_s: float = 300.0
    max_cost_usd: float | None = None
    script_memory_mb: int = MEMORY_BYTES >> 20
    sandbox: Sandbox = NO_SANDBOX
    backoff_s: tuple[float, ...] = (2.0, 6.0, 18.0)
    tools: tuple[ToolGrant, ...] = ()
    roots: tuple[str, ...] = ()
    mcp: tuple[McpServer, ...] = ()
    computer: XDisplay | None = None
    context_window: int | None = None
    prices: tuple[float, float] | None = None
    tool_calling: ToolCalling = "native"
    native_output: bool = False
    cache: bool = False
    simulated: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind, is_valid, expected in _CHECKS:
            values: Any = self.backoff_s if name == "backoff_s" else (getattr(self, name),)
            for each in values:
                if each is None and name in _OPTIONAL:
                    continue
                if isinstance(each, bool) or not isinstance(each, kind) or not is_valid(each):
                    raise ConfigurationError(f"profile {self.name!r}: {name} is {each!r}, expected {expected}")

        try:
            if self.stop:
                check_stop(self.stop)
            check_extra_body(self.extra_body)
        except ValueError as error:
            raise ConfigurationError(f"profile {self.name!r}: stop or extra_body: {error}") from error

    @property
    def script_memory_bytes(self) -> int:
        """`script_memory_mb` in bytes."""
        return self.script_memory_mb << 20

    def secret_variables(self) -> tuple[str, ...]:
        """The environment variables whose values the profile sends to its endpoint or to its MCP servers."""
        own = (self.api_key_env,) if self.api_key_env else ()
        return (*own, *(name for server in self.mcp for name in server.variables()))

    def override(self, **changes: Any) -> HandlerConfig:
        """The same profile with each given value that is not None."""
        given = {key: value for key, value in changes.items() if value is not None}
        return replace(self, **given) if given else self

    def to_dict(self) -> dict[str, Any]:
        """The profile for display, without its prompt; tools and MCP servers by name."""
        shown = (
            "name", "description", "backend", "model", "base_url", "api_key_env", "max_turns",
            "max_context_fraction", "max_output_tokens", "timeout_s", "max_cost_usd", "script_memory_mb",
            "tool_calling", "native_output", "cache",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in shown},
            **{name: getattr(self, name) for name in SAMPLING}, "stop": list(self.stop),
            "extra_body": dict(self.extra_body),
            "roles": dict(self.roles), "backoff_s": list(self.backoff_s), "roots": list(self.roots),
            "tools": [grant.name for grant in self.tools], "mcp": [server.name for server in self.mcp],
            "computer": None if self.computer is None else asdict(self.computer), "sandbox": self.sandbox.kind,
        }  # fmt: skip


_CHECKS: tuple[tuple[str, type | tuple[type, ...], Callable[[Any], bool], str], ...] = (
    ("max_turns", int, lambda n: n >= 1, "an integer, 1 or more"),
    ("max_context_fraction", (int, float), lambda n: 0 < n <= 1, "a number in (0, 1]"),
    ("timeout_s", (int, float), lambda n: 0 < n < inf, "seconds, more than 0"),
    ("max_output_tokens", int, lambda n: n >= 1, "an integer, 1 or more"),
    ("max_cost_usd", (int, float), lambda n: 0 <= n < inf, "US dollars, 0 or more"),
    ("temperature", (int, float), lambda n: 0 <= n < inf, "a number, 0 or more"),
    ("top_p", (int, float), lambda n: 0 < n <= 1, "a number in (0, 1]"),
    ("top_k", int, lambda n: n >= 0, "an integer, 0 or more"),
    ("seed", int, lambda n: True, "an integer"),
    ("script_memory_mb", int, lambda n: n >= 1, "megabytes, 1 or more"),
    ("backoff_s", (int, float), lambda n: 0 <= n < inf, "seconds, 0 or more"),
)


_OPTIONAL = ("max_output_tokens", "max_cost_usd", "temperature", "top_p", "top_k", "seed")


def read_profile(path: Path) -> tuple[HandlerConfig, str]:
    """A profile, and the text of its file.

    Raises: ConfigurationError, with file, line and column, where the file is not a valid profile.
    """
    from evaluator.xml.schema import validate
    from evaluator.xml.source import read_file

    try:
        source = read_file(path)
        problems = [d for d in validate(source, "handler") if d.severity == "error"] or [
            *_duplicate_names(source),
            *_misplaced_roles(source),
            *_invalid_literals(source),
            *server_problems(source),
        ]
    except TemplateError as error:
        raise ConfigurationError(str(error)) from error
    if problems:
        raise ConfigurationError("\n".join(str(d) for d in problems))
    root = source.root
    fields: dict[str, Any] = {"name": root.get("name"), "tool_calling": root.get("tool_calling") or "native"}
    try:
        for child in root:
            if isinstance(child.tag, str):
                _read_child(child, fields)
        return HandlerConfig(**fields), source.text
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


_LIMITS: Mapping[str, tuple[str, type]] = {
    "max_turns": ("max_turns", int),
    "max_context_fraction": ("max_context_fraction", float),
    "max_output_tokens": ("max_output_tokens", int),
    "timeout": ("timeout_s", float),
    "max_cost": ("max_cost_usd", float),
    "script_memory": ("script_memory_mb", int),
}


def _read_child(child: Any, fields: dict[str, Any]) -> None:
    """Sets the field for a child element of a profile; the schema has checked the values."""
    tag = child.tag
    text = " ".join((child.text or "").split())
    match tag:
        case "system":
            fields[tag] = cleandoc(child.text or "")
        case "description":
            fields[tag] = text
        case "backend":
            fields[tag] = text or "auto"
        case "model" | "base_url" | "api_key_env":
            fields[tag] = text or None
        case "temperature" | "top_p":
            fields[tag] = float(text)
        case "seed" | "top_k" | "context_window":
            fields[tag] = int(text)
        case "stop" | "extra_body":
            fields[tag] = _LITERALS[tag](child.text or "")
        case "limits":
            fields.update({_LIMITS[name][0]: _LIMITS[name][1](value) for name, value in child.attrib.items()})
        case "retries":
            waits = tuple(float(x) for x in (child.get("backoff") or "2 6 18").split())
            count = int(child.get("max") or len(waits))
            fields["backoff_s"] = (waits + waits[-1:] * count)[:count] if waits else (0.0,) * count
        case "roles":
            fields[tag] = {role.get("name"): role.get("model") for role in child.findall("role")}
        case "tools":
            fields[tag] = tuple(_read_grant(tool) for tool in child.findall("tool"))
        case "mcp":
            fields[tag] = read_servers(child)
        case "computer":
            fields[tag] = XDisplay(child.get("display").strip(), int(child.get("width")), int(child.get("height")))
        case "sandbox":
            cpus, network = child.get("cpus"), (child.get("network") or "false").strip() in ("true", "1")
            image = child.get("image")
            fields[tag] = Sandbox(
                child.get("kind").strip(), image and image.strip(), None if cpus is None else float(cpus), network
            )
        case "roots":
            fields[tag] = tuple(root.get("path") for root in child.findall("root"))
        case "prices":
            fields[tag] = (float(child.get("input")), float(child.get("output")))
        case "output":
            fields["native_output"] = child.get("native").strip() in ("true", "1")
        case "cache":
            fields[tag] = child.get("enabled").strip() in ("true", "1")
        case "simulated":
            fields[tag] = {key: float(value) for key, value in child.attrib.items()}
        case _:
            raise ConfigurationError(f"no reader for the profile element <{tag}>")


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
                problems.append(Diagnostic("error", "invalid-value", message, span))
            seen.add(name)
    return problems


_LITERALS: Mapping[str, Callable[[str], Any]] = {"stop": read_stop, "extra_body": read_extra_body}


def _invalid_literals(source: Source) -> list[Diagnostic]:
    problems: list[Diagnostic] = []
    for child in source.root:
        if child.tag in _LITERALS:
            try:
                _LITERALS[child.tag](child.text or "")
            except ValueError as error:
                problems.append(Diagnostic("error", "invalid-value", f"<{child.tag}>: {error}", source.locate(child)))
    return problems


def _misplaced_roles(source: Source) -> list[Diagnostic]:
    """Errors for a role or runs of a tool that has none, because they would have no effect."""
    return [
        Diagnostic(
            "error", "invalid-value", f"only the tool {MANAGE_TASK} has {name!r}", source.locate_attribute(tool, name)
        )
        for tool in source.root.iterfind("tools/tool")
        for name in ("role", "runs")
        if tool.get(name) is not None and tool.get("name") != MANAGE_TASK
    ]


def _read_grant(tool: Any) -> ToolGrant:
    rules = tuple(
        PolicyRule(rule.tag, rule.get("argument"), rule.get("matches")) for rule in tool if rule.tag in POLICIES
    )
    policy, runs = cast("Policy | None", tool.get("policy")), cast("RunGrant | None", tool.get("runs"))
    return ToolGrant(tool.get("name"), policy, rules, tool.get("role"), runs)
