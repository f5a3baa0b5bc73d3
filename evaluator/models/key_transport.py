"""Where keys may be sent, over an encrypted connection or to this machine, and through which
proxy.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from evaluator.errors import ConfigurationError
from evaluator.errors.messages import visible

_KEY_HEADERS = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "api-key",
        "x-api-key",
        "x-goog-api-key",
        "x-auth-token",
        "cookie",
    }
)


def is_loopback(host: str | None) -> bool:
    """Whether a host of an address is this machine."""
    if host is None:
        return False
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def check_port(url: str, what: str) -> None:
    """Raises: ConfigurationError, if the port of `url`, the address of `what`, is none that a
    server can have.
    """
    try:
        port = urlsplit(url).port
    except ValueError as error:
        raise ConfigurationError(f"{what} cannot be read: {error}") from error
    if port == 0:
        raise ConfigurationError(
            f"{what} has the port 0, which no server has; name another port, or none for the usual "
            "one"
        )


def may_carry_keys(url: str) -> bool:
    """Whether a key may be sent to `url`: it is https, or this machine."""
    try:
        parts = urlsplit(url)
        return parts.scheme == "https" or is_loopback(parts.hostname)
    except ValueError:
        return False


def proxy_of(url: str) -> str | None:
    """The proxy for `url` that the environment names (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, except
    for the hosts of NO_PROXY); None without one, and always for this machine.

    Raises: ConfigurationError, for a proxy that does not speak HTTP, or whose port is none.
    """
    from urllib import request

    # Type checkers do not know all functions of this module.
    urllib_request: Any = request
    parts = urlsplit(url)
    proxies = urllib_request.getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if (
        not proxy
        or is_loopback(parts.hostname)
        or urllib_request.proxy_bypass_environment(parts.netloc)
    ):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    check_port(proxy, f"the proxy for {visible(parts.hostname or '')}")
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise ConfigurationError(
            f"the proxy for {visible(parts.hostname or '')} is not an HTTP proxy; set "
            f"{parts.scheme}_proxy to one, or add the host to no_proxy"
        )
    return proxy


def is_key_header(name: str) -> bool:
    """Whether a header with this name holds a secret."""
    return name.lower() in _KEY_HEADERS


def refuse_plain_http(url: str, has_key: bool, headers: Iterable[str] = ()) -> None:
    """Raises ConfigurationError, if a key, or one of these headers, would be sent to `url`
    unencrypted.
    """
    sends_key = (
        has_key
        or any(map(is_key_header, headers))
        or "@" in url.partition("://")[2].partition("/")[0]
    )
    if sends_key and not may_carry_keys(url):
        host = urlsplit(url).hostname or ""
        raise ConfigurationError(
            f"a key is not sent to {visible(host)} over plain http, where others can read it; use "
            "https, or leave out "
            "the key"
        )
