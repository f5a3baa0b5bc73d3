"""The tool `fetch_url`: the text of one web page or document.

The user is asked before each fetch, so a redirect is reported and not followed: another address is
another question. Nothing of this program is sent along, no key and no cookie. Addresses of the
local link are refused, because cloud machines give credentials there.
"""

from __future__ import annotations

import asyncio
import json
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urljoin, urlsplit

from evaluator.errors import ToolError
from evaluator.files.open_below import decode
from evaluator.tools.decorator import tool
from evaluator.tools.tool import ToolContext

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult

MAX_BYTES = 5_000_000
MAX_CHARS = 60_000
TIMEOUT_S = 30.0
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/xhtml+xml")
_NOT_SHOWN = ("script", "style", "noscript", "template", "svg")


@tool(policy="ask", retryable=True, controls="network")
async def fetch_url(
    context: ToolContext,
    url: Annotated[str, "an address that begins with https:// or http://"],
    start: Annotated[int, "the character to begin at, for long pages"] = 0,
) -> dict[str, Any]:
    """Fetch a web page or document and return its text. A redirect is returned, not followed."""
    _check(url)
    limit_s = min(TIMEOUT_S, context.remaining_s)
    try:
        async with asyncio.timeout(limit_s):
            return await _fetch(url, start)
    except TimeoutError:
        raise ToolError(f"{url[:200]} did not answer completely within {limit_s:.0f} s") from None


async def preview_fetch(arguments: dict[str, Any], context: ToolContext) -> str:
    """What the user is asked."""
    return f"fetches {json.dumps(arguments['url'], ensure_ascii=False)} from the web"


def _check(url: str) -> None:
    """Raises: ToolError, for an address that is not fetched."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        raise ToolError(f"{url[:200]!r} is not an address: {error}") from error
    if host is None or parts.scheme not in ("http", "https"):
        raise ToolError(f"{url[:200]!r} is not an address; it begins with https:// or http://")
    if parts.username is not None or parts.password is not None:
        raise ToolError("an address with a user name or password is not fetched")
    _refuse_link_local(host)


def _refuse_link_local(host: str) -> None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return
    mapped = getattr(address, "ipv4_mapped", None) or address
    if mapped.is_link_local:
        raise ToolError(f"{host} is an address of the local link, which is not fetched")


async def _fetch(url: str, start: int) -> dict[str, Any]:
    import aiohttp

    connector = aiohttp.TCPConnector(resolver=_resolver())
    try:
        async with (
            aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar()
            ) as session,
            session.get(url, allow_redirects=False, headers={"Accept": "text/*, */*"}) as response,
        ):
            return await _read(response, url, start)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ToolError(f"{url[:200]} cannot be fetched: {error}") from error


async def _read(response: aiohttp.ClientResponse, url: str, start: int) -> dict[str, Any]:
    status = response.status
    target = response.headers.get("Location")
    if 300 <= status < 400 and target is not None:
        return {"status": status, "redirects_to": urljoin(url, target)}
    kind = response.content_type
    if not kind.startswith(_TEXT_TYPES):
        raise ToolError(f"{url[:200]} is {kind}, which is not text")
    data = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        data += chunk
        if len(data) > MAX_BYTES:
            raise ToolError(f"{url[:200]} is larger than {MAX_BYTES:,} bytes")
    text = await asyncio.to_thread(_text_of, bytes(data), kind, url)
    found: dict[str, Any] = {"status": status, "text": text[start : start + MAX_CHARS]}
    if start + MAX_CHARS < len(text):
        found["continues_at"] = start + MAX_CHARS
    return found


def _text_of(data: bytes, kind: str, url: str) -> str:
    text = decode(data, url)[0]
    if kind not in ("text/html", "application/xhtml+xml") or not text.strip():
        return text
    from lxml import html
    from lxml.etree import LxmlError

    try:
        page = html.document_fromstring(data, parser=html.HTMLParser(no_network=True))
    except (LxmlError, ValueError):
        return text
    for element in list(page.iter(*_NOT_SHOWN)):
        element.drop_tree()
    lines = (" ".join(line.split()) for line in page.text_content().splitlines())
    return "\n".join(line for line in lines if line)


def _resolver() -> AbstractResolver:
    import aiohttp

    class PublicResolver(aiohttp.ThreadedResolver):
        async def resolve(self, *args: Any, **options: Any) -> list[ResolveResult]:
            found = await super().resolve(*args, **options)
            for each in found:
                _refuse_link_local(each["host"])
            return found

    return PublicResolver()
