"""The server: who may use it, routes to pages, and errors as pages that say what to do.

Who may use the server: the person who has the address with the token, from a page of the server
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

import asyncio
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from aiohttp import web

from evaluator import randomness
from evaluator.errors import EvaluatorError, UsageError
from evaluator.record.blobs import read_blob
from evaluator.viewer import json_form
from evaluator.viewer.json_form import (
    JsonForm,
    Page,
    Query,
    icon,
    script,
    served_parts,
    style,
    with_title,
)
from evaluator.viewer.server.batches import batch_page, batches_page, sample_page
from evaluator.viewer.server.comparison import compare_page, improvement_page
from evaluator.viewer.server.labels import give_label, label_page
from evaluator.viewer.server.progress import control
from evaluator.viewer.server.queues import (
    background_page,
    change_entry,
    entry_page,
    kill_task,
    queue_page,
    task_page,
)
from evaluator.viewer.server.runs import run_page, runs_page
from evaluator.viewer.server.start import search_page, start_page
from evaluator.viewer.server.state import Library, NoSuchPage, Project, State
from evaluator.viewer.server.templates import simulated_run, template_page, templates_page

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


HOST = "127.0.0.1"
_JSON = "application/json"
MAX_FORM_BYTES = 10_000_000
_ASSETS: Mapping[str, tuple[str, Callable[[], str]]] = {
    "page.css": ("text/css", style),
    "page.js": ("text/javascript", script),
    "icon.svg": ("image/svg+xml", icon),
}
# What images begin with; SVG is not among them, as it may hold scripts.
_IMAGES = (
    ("image/png", re.compile(rb"\x89PNG\r\n")),
    ("image/jpeg", re.compile(rb"\xff\xd8\xff")),
    ("image/gif", re.compile(rb"GIF8[79]a")),
    ("image/webp", re.compile(rb"RIFF.{4}WEBP", re.S)),
)
MakePage = Callable[[State, Mapping[str, str]], Page]
Act = Callable[[State, Mapping[str, str]], str]
"""Does what a form asks for and confirms; returns the address of the page to go to."""


def make_app(root: Path, token: str) -> web.Application:
    """The application for the folder `root`. It listens nowhere yet."""
    project = Project(root)
    state = State(project, Library(project.root), form_token=new_token())
    app = web.Application(
        middlewares=[Guard(token).middleware, _problems(state)], client_max_size=MAX_FORM_BYTES
    )
    app.router.add_get("/assets/{name}", _asset)
    routes: dict[str, MakePage] = {
        "/": start_page,
        "/search": search_page,
        "/runs": runs_page,
        "/run/{folder}/{task}": run_page,
        "/batches": batches_page,
        "/batch/{folder}": batch_page,
        "/sample/{folder}/{key}": sample_page,
        "/compare": compare_page,
        "/label/{folder}": label_page,
        "/improvement/{folder}": improvement_page,
        "/queue": queue_page,
        "/queue/{folder}/{entry}": entry_page,
        "/background": background_page,
        "/background/{folder}/{task}": task_page,
        "/templates": templates_page,
        "/template/{template}": template_page,
    }
    for path, make in routes.items():
        app.router.add_get(path, partial(_page, state, make))
    app.router.add_get("/attachment/{folder}/{sha256}", partial(_image, state))
    app.router.add_post("/template/{template}", partial(_form, state))
    actions: dict[str, Act] = {
        "/queue/{folder}/{entry}": change_entry,
        "/background/{folder}/{task}": kill_task,
        "/label/{folder}": give_label,
        "/batch/{folder}": control,
    }
    for path, act in actions.items():
        app.router.add_post(path, partial(_action, state, act))
    return app


async def serve(root: Path, port: int, ready: Callable[[str], None]) -> None:
    """Serves `root` until it is cancelled. `ready` gets the address, with the token, once requests
    are answered.

    Raises: UsageError, if the port is not free.
    """
    token = new_token()
    # A request that is not HTTP gets its answer, 400; nothing is written to the terminal.
    logging.getLogger("aiohttp.server").addHandler(logging.NullHandler())
    runner = web.AppRunner(make_app(root, token), access_log=None, handle_signals=False)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port)
        try:
            await site.start()
        except OSError as error:
            raise UsageError(
                f"--port {port}: {error.strerror}; choose another port, or 0 for any"
            ) from error
        ready(f"http://{HOST}:{runner.addresses[0][1]}/?token={token}")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


async def _asset(request: web.Request) -> web.StreamResponse:
    found = _ASSETS.get(request.match_info["name"])
    if found is None:
        raise web.HTTPNotFound
    kind, read = found
    return web.Response(body=read().encode(), content_type=kind, charset="utf-8")


async def _image(state: State, request: web.Request) -> web.StreamResponse:
    """An image that a task file refers to. Other bytes are not served."""
    folder, name = (request.match_info[each] for each in ("folder", "sha256"))
    store = await asyncio.to_thread(state.project.store, folder)
    data = await asyncio.to_thread(read_blob, store.root, name)
    kind = next((kind for kind, begin in _IMAGES if data and begin.match(data)), None)
    if data is None or kind is None:
        raise NoSuchPage(f"{state.project.root}: there is no such image now")
    return web.Response(body=data, content_type=kind)


async def _page(state: State, make: MakePage, request: web.Request) -> web.StreamResponse:
    """The page for a request; 304 if the browser has it already, as a page that updates itself asks
    every second.
    """
    query = {**request.query, **request.match_info}
    page, data = await asyncio.to_thread(_made, state, make, query)
    tag = f'"{blake2b(data, digest_size=12).hexdigest()}"'
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers={"ETag": tag})
    return _response(request, page, data, {"ETag": tag})


async def _form(state: State, request: web.Request) -> web.StreamResponse:
    """The prompt for the inputs in a form, or the run that it asks for and confirms."""
    query = await _sent(request)
    if query.get("action") == "run":
        return await _do(state, simulated_run, query=query)
    page, data = await asyncio.to_thread(_made, state, template_page, query)
    return _response(request, page, data)


async def _action(state: State, act: Act, request: web.Request) -> web.StreamResponse:
    return await _do(state, act, query=await _sent(request))


async def _sent(request: web.Request) -> dict[str, str]:
    """The values of a form and of the address."""
    sent = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
    return {**sent, **request.match_info}


async def _do(state: State, act: Act, query: Query) -> web.StreamResponse:
    return web.Response(
        status=303, headers={"Location": await asyncio.to_thread(act, state, query)}
    )


def _made(state: State, make: MakePage, query: Query) -> tuple[Page, bytes]:
    page = make(state, query)
    return page, _data(state, page)


def _data(state: State, page: Page) -> bytes:
    """The JSON of a page: its values, and what every page has."""
    shared = {
        "view": page.view,
        "title": page.title,
        "project": state.project.title,
        "live_ms": page.live_ms,
    }
    return JsonForm(max_total=json_form.MAX_PAGE_CHARS).encode({**shared, **page.values})


def _response(
    request: web.Request, page: Page, data: bytes, headers: Mapping[str, str] | None = None
) -> web.Response:
    """The page as JSON for its own script, else as HTML with the JSON in it."""
    if request.headers.get("Accept") == _JSON:
        return web.Response(body=data, status=page.status, headers=headers, content_type=_JSON)
    before, after = served_parts()
    html = b"".join(
        (with_title(before, f"{page.title} · evaluator").encode(), data, after.encode())
    )
    return web.Response(
        body=html, status=page.status, headers=headers, content_type="text/html", charset="utf-8"
    )


def _problems(state: State) -> Any:
    """Shows an error as a page."""

    def shown(request: web.Request, status: int, message: str) -> web.Response:
        page = Page("problem", "Not shown", {"message": message}, status=status)
        return _response(request, page, _data(state, page))

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except NoSuchPage as error:
            return shown(request, 404, str(error))
        except UsageError as error:
            return shown(request, 400, str(error))
        except (EvaluatorError, OSError) as error:
            return shown(request, 500, str(error))
        except web.HTTPException as error:
            missing = "There is no such page."
            return shown(request, error.status, missing if error.status == 404 else error.reason)
        except Exception as error:
            return shown(
                request, 500, f"This is a bug of evaluator: {type(error).__name__}: {error}"
            )

    return middleware
