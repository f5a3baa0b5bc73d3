"""MCP servers as a profile declares them, and the names under which their tools are offered.

A server's tool has the name `SERVER__TOOL`. A server's name does not contain `__` and does not end
in `_`, so the first `__` of a tool's name always divides the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any
from urllib.parse import urlsplit

from evaluator.errors import ConfigurationError
from evaluator.lazy_dataclass import frozen
from evaluator.models.key_transport import may_carry_keys
from evaluator.patterns import Pattern

SEPARATOR = "__"
SCHEME = "mcp://"
DEFAULT_TIMEOUT_S = 60.0
_NAME = Pattern(r"[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*")
_MAX_NAME = 32
_NOT_IN_A_NAME = Pattern(r"[^A-Za-z0-9_-]")


@frozen
class McpHeader:
    """An HTTP header: `prefix` followed by the value of the environment variable `variable`."""

    name: str
    variable: str
    prefix: str = ""


@frozen(kw_only=True)
class McpServer:
    """An MCP server: a program that is started (`command` and `args`), or an address (`url`,
    streamable HTTP).

    `env` names the environment variables that the program sees besides PATH, HOME, LANG, LC_* and
    TMPDIR. `timeout_s` limits the start and each request. `trusted`: the server's statements about
    its tools (read-only, repeatable) are believed.

    Raises: ConfigurationError, unless exactly one of `command` and `url` is given, with only the
    fields that fit it.
    """

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    url: str | None = None
    headers: tuple[McpHeader, ...] = ()
    timeout_s: float = DEFAULT_TIMEOUT_S
    trusted: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _MAX_NAME:
            raise ConfigurationError(
                f"{self.name!r} is not a valid name for an MCP server: use at most {_MAX_NAME} "
                "letters and digits, with single '_' and '-' between them"
            )
        wrong = self._problem()
        if wrong is not None:
            raise ConfigurationError(f"MCP server {self.name!r}: {wrong}")

    def _problem(self) -> str | None:
        if (self.command is None) == (self.url is None):
            return "give it either a command that starts it or a url where it answers"
        if self.command is not None and self.headers:
            return "a header needs a url; a command receives its secrets by env"
        if self.url is not None and (self.args or self.env):
            return "arg and env need a command; a url receives its secrets by header"
        if self.url is not None and not _is_address(self.url):
            return (
                f"{self.url!r} is not an address; it must begin with http:// or https:// and "
                "name a host"
            )
        if self.url is not None and self.headers and not may_carry_keys(self.url):
            return (
                f"its header holds a secret, which is not sent to {self.url!r} over plain "
                "http; use https"
            )
        if not 0 < self.timeout_s < inf:
            return f"timeout is {self.timeout_s!r}, expected seconds, more than 0"
        return None

    def variables(self) -> tuple[str, ...]:
        """The environment variables that this server needs."""
        return (*self.env, *(header.variable for header in self.headers))

    def secrets(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The values of this server's variables in the environment.

        Raises: ConfigurationError, for a variable that is not set.
        """
        missing = [name for name in self.variables() if name not in environ]
        if missing:
            raise ConfigurationError(
                f"MCP server {self.name!r} needs the environment variable "
                f"{' and '.join(missing)}, which is not set"
            )
        return {name: environ[name] for name in self.variables()}


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def offered_name(server: McpServer, tool: str) -> str:
    """The name under which the model sees the server's tool; invalid characters become '_'."""
    return f"{server.name}{SEPARATOR}{_NOT_IN_A_NAME.sub('_', tool)}"


def server_of_tool(name: str, servers: Iterable[McpServer]) -> McpServer | None:
    """The server of a tool, by the part of its name before the first `__`; None if there is
    none.
    """
    prefix, separator, _ = name.partition(SEPARATOR)
    return next((server for server in servers if separator and server.name == prefix), None)


def split_resource(path: str, servers: Iterable[McpServer]) -> tuple[McpServer, str]:
    """The server and the URI of `mcp://SERVER/URI`; the URI is everything after the first '/',
    unchanged.

    Raises: ConfigurationError, if there is no URI or no server with that name.
    """
    name, _, uri = path.removeprefix(SCHEME).partition("/")
    known = {server.name: server for server in servers}
    if not path.startswith(SCHEME) or not uri:
        raise ConfigurationError(
            f"{path!r} is not a resource of an MCP server; write {SCHEME}SERVER/URI"
        )
    if name not in known:
        raise ConfigurationError(
            f"{path!r}: the profile has no MCP server {name!r}; its servers are: "
            f"{', '.join(known) or 'none'}"
        )
    return known[name], uri


def read_server(element: Any) -> McpServer:
    """The server of a profile. Raises: ConfigurationError, for what the schema accepts and a server
    cannot be.
    """
    return McpServer(
        name=element.get("name"),
        command=element.get("command"),
        args=tuple(arg.text or "" for arg in element.findall("arg")),
        env=tuple(env.get("name") for env in element.findall("env")),
        url=element.get("url"),
        headers=tuple(
            McpHeader(header.get("name"), header.get("env"), prefix=header.get("prefix") or "")
            for header in element.findall("header")
        ),
        timeout_s=float(element.get("timeout") or DEFAULT_TIMEOUT_S),
        trusted=element.get("trust") in ("true", "1"),
    )
