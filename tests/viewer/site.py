"""The viewer's server on loopback, and a client that has its token."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp.test_utils import TestServer

from evaluator.viewer.server import make_app

TOKEN = "the-token-of-the-test"


@dataclass(frozen=True)
class Answer:
    status: int
    text: str
    headers: Mapping[str, str]

    @property
    def data(self) -> dict[str, Any]:
        """The JSON from which the page is drawn."""
        return data_of(self.text)

    @property
    def links(self) -> list[str]:
        """The addresses of this server in the page's data."""
        return [text for text in values_of(self.data) if re.match(r"/[a-z]", text)]

    @property
    def shown(self) -> str:
        """Every text and number of the page's data but the form's random token, one in a line."""
        return "\n".join(values_of({**self.data, "token": ""}))


def data_of(page: str) -> dict[str, Any]:
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])


def values_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for name, each in value.items() for text in (name, *values_of(each))]
    if isinstance(value, list):
        return [text for each in value for text in values_of(each)]
    return [str(value)]


@dataclass
class Site:
    session: aiohttp.ClientSession
    address: str

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.ask("GET", path, **options)

    async def ask(self, method: str, path: str, **options: Any) -> Answer:
        async with self.session.request(method, f"{self.address}{path}", **options) as response:
            return Answer(response.status, await response.text(), response.headers)


def visit(
    root: Path,
    steps: Callable[[Site], Awaitable[Any]],
    *,
    token: str | None = TOKEN,
    **options: Any,
) -> Any:
    """Runs `steps` against a server for `root`, with a session that has opened the address with `token`."""

    async def whole() -> Any:
        async with TestServer(make_app(root, TOKEN, **options), host="127.0.0.1") as server:
            jar = aiohttp.CookieJar(unsafe=True)  # accepts cookies of an address without a name
            async with aiohttp.ClientSession(cookie_jar=jar) as session:
                site = Site(session, f"http://127.0.0.1:{server.port}")
                if token is not None:
                    await site.get(f"/?token={token}")
                return await steps(site)

    return asyncio.run(whole())


def pages(root: Path, *paths: str, **options: Any) -> list[Answer]:
    async def steps(site: Site) -> list[Answer]:
        return [await site.get(path) for path in paths]

    return visit(root, steps, **options)


def page(root: Path, path: str, **options: Any) -> Answer:
    (found,) = pages(root, path, **options)
    return found


class _Markup(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))


ACTIVE = {
    "img",
    "iframe",
    "object",
    "embed",
    "style",
    "base",
    "form",
    "math",
    "template",
    "video",
    "audio",
}


def assert_harmless(text: str) -> None:
    """No markup came from a value: no active element, handler, style or foreign address, and no control character."""
    markup = _Markup()
    markup.feed(text)
    assert not ACTIVE & {tag for tag, _ in markup.tags}
    scripts = [dict(attrs) for tag, attrs in markup.tags if tag == "script"]
    assert scripts == [
        {"src": "/assets/page.js", "defer": None},
        {"type": "application/json", "id": "data"},
    ]
    for tag, attrs in markup.tags:
        for name, value in attrs:
            assert not name.startswith("on") and name not in ("style", "srcset", "formaction"), (
                tag,
                attrs,
            )
            assert name not in ("href", "src", "action") or (value or "")[:1] in ("/", "#"), (
                tag,
                attrs,
            )
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\ud800-\udfff]", text
    )
