"""Who may use the server: the person who has the address with the token, from a page of the server
itself.

Any program of this machine and any page in the browser can connect to 127.0.0.1. Three checks keep
them out:

- the token, 256 random bits in the first address; then a cookie that scripts cannot read. Without
  it: 403
- the Host header is this server's, so that a name that an attacker points at 127.0.0.1 does not
  reach it
- the Origin header, where there is one, is this server's; a request that may do something must have
  one

Source: https://owasp.org/www-project-web-security-testing-guide/, "DNS rebinding" and "Cross Site
Request Forgery".
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable

from aiohttp import web

from evaluator import randomness

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Not no-referrer: a form's request would then have the Origin "null".
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_BEFORE_A_HOST = re.compile(r"\A[/\\\x00-\x20]+")


def new_token() -> str:
    return randomness.token_urlsafe(32)


class Guard:
    """Lets only requests with the token pass, and sets the headers of every response."""

    def __init__(self, token: str) -> None:
        self.token = token

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = self._refusal(request)
        if response is None and "token" in request.query:
            response = self._welcome(request)
        if response is None:
            response = await handler(request)
        response.headers.update(_HEADERS)
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        port = _port(request)
        hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        if request.headers.get("Host") not in hosts:
            return _plain(
                403,
                "The Host header is not this server's. Open the address that `evaluator view` "
                "printed.",
            )
        origin = request.headers.get("Origin")
        is_read = request.method in ("GET", "HEAD")
        if (origin is not None or not is_read) and origin not in {
            f"http://{host}" for host in hosts
        }:
            return _plain(403, "The request comes from another site.")
        given = request.query.get("token") or request.cookies.get(_cookie(port), "")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            return _plain(
                403,
                "The token is missing or wrong. Open the address that `evaluator view` printed.",
            )
        return None

    def _welcome(self, request: web.Request) -> web.Response:
        """Moves the token from the address into a cookie."""
        rest = {name: value for name, value in request.query.items() if name != "token"}
        target = str(request.rel_url.with_query(rest))
        # A browser reads `//evil.example`, also with backslashes or tabs, as another host.
        response = web.Response(
            status=303, headers={"Location": f"/{_BEFORE_A_HOST.sub('', target)}"}
        )
        response.set_cookie(
            _cookie(_port(request)), self.token, path="/", httponly=True, samesite="Lax"
        )
        return response


def _port(request: web.Request) -> int:
    transport = request.transport
    if transport is None:
        return 0
    return int(transport.get_extra_info("sockname")[1])


def _cookie(port: int) -> str:
    """Cookies are shared by all ports of a host: each server has its own name."""
    return f"evaluator-view-{port}"


def _plain(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", content_type="text/plain")
