"""Processor time of one POST through different HTTP clients, against a bare aiohttp loop.

    python bench/clients.py [--n 3000] [--rounds 5] [--concurrency 64]

All clients send the same requests to one `server.py` and decode the answers, one after the other in
each round of one process; ratios are medians over the rounds. pycurl and pyreqwest take part if they
are installed. `openai_compatible` does all that the others leave out: it checks the request, limits
time and size, and reads the answer into a response.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httptools
import orjson
import tasks
from figures import Figure, parser_for, remarks, report, serving

from evaluator.models.backend import Message, ModelRequest
from evaluator.models.openai_compatible import OpenAICompatibleBackend

HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer bench-key"}
TIMEOUT_S = 120.0
BARE = "aiohttp, as in its manual"

Call = Callable[[dict[str, Any]], Awaitable[Any]]


def body_of(row: dict[str, Any]) -> dict[str, Any]:
    return {"model": "bench", "messages": tasks.messages(row)}


def aiohttp_call(session: aiohttp.ClientSession, url: str) -> Call:
    async def call(row: dict[str, Any]) -> Any:
        async with session.post(url, json=body_of(row)) as response:
            return json.loads(await response.read())

    return call


def aiohttp_bytes_call(session: aiohttp.ClientSession, url: str) -> Call:
    async def call(row: dict[str, Any]) -> Any:
        body = orjson.dumps(body_of(row))
        async with session.post(url, data=body, allow_redirects=False) as response:
            return orjson.loads(await response.read())

    return call


class _Connection(asyncio.Protocol):
    """The least that httptools needs; see `evaluator/models/http_client.py` for a whole client."""

    def __init__(self, idle: list[_Connection]) -> None:
        self.idle = idle
        self.parser = httptools.HttpResponseParser(self)
        self.parts: list[bytes] = []
        self.answer: asyncio.Future[bytes]
        self.transport: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.idle.append(self)
        self.answer.set_result(b"".join(self.parts))
        self.parts = []


def httptools_call(url: str) -> Call:
    parts = urlsplit(url)
    lines = {"Host": parts.netloc, **HEADERS}
    fields = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    head = f"POST {parts.path} HTTP/1.1\r\n{fields}Content-Length: ".encode()
    loop = asyncio.get_running_loop()
    idle: list[_Connection] = []

    async def call(row: dict[str, Any]) -> Any:
        body = orjson.dumps(body_of(row))
        if idle:
            connection = idle.pop()
        else:
            made = loop.create_connection(lambda: _Connection(idle), parts.hostname, parts.port)
            _, connection = await made
        connection.answer = loop.create_future()
        connection.transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        async with asyncio.timeout(TIMEOUT_S):
            return orjson.loads(await connection.answer)

    return call


def pycurl_call(url: str) -> Call:
    import pycurl

    loop = asyncio.get_running_loop()
    multi = pycurl.CurlMulti()
    idle: list[Any] = []
    answers: dict[Any, asyncio.Future[None]] = {}
    timers: list[asyncio.TimerHandle] = []

    def act(descriptor: int, event: int) -> None:
        multi.socket_action(descriptor, event)
        _, done, failed = multi.info_read()
        for curl in done:
            answers[curl].set_result(None)
        for curl, _, message in failed:
            answers[curl].set_exception(OSError(message))

    def watch(what: int, descriptor: int, _multi: Any, _data: Any) -> None:
        loop.remove_reader(descriptor)
        loop.remove_writer(descriptor)
        if what in (pycurl.POLL_IN, pycurl.POLL_INOUT):
            loop.add_reader(descriptor, act, descriptor, pycurl.CSELECT_IN)
        if what in (pycurl.POLL_OUT, pycurl.POLL_INOUT):
            loop.add_writer(descriptor, act, descriptor, pycurl.CSELECT_OUT)

    def wait(timeout_ms: int) -> None:
        while timers:
            timers.pop().cancel()
        if timeout_ms >= 0:
            timers.append(loop.call_later(timeout_ms / 1000, act, pycurl.SOCKET_TIMEOUT, 0))

    multi.setopt(pycurl.M_MAXCONNECTS, 4096)
    multi.setopt(pycurl.M_SOCKETFUNCTION, watch)
    multi.setopt(pycurl.M_TIMERFUNCTION, wait)

    def make() -> Any:
        curl = pycurl.Curl()
        curl.setopt(pycurl.URL, url)
        curl.setopt(pycurl.POST, 1)
        curl.setopt(pycurl.NOSIGNAL, 1)
        lines = [f"{name}: {value}" for name, value in HEADERS.items()]
        curl.setopt(pycurl.HTTPHEADER, [*lines, "Expect:"])
        return curl

    async def call(row: dict[str, Any]) -> Any:
        body = orjson.dumps(body_of(row))
        curl = idle.pop() if idle else make()
        parts: list[bytes] = []
        curl.setopt(pycurl.POSTFIELDSIZE, len(body))
        curl.setopt(pycurl.POSTFIELDS, body)
        curl.setopt(pycurl.WRITEFUNCTION, parts.append)
        answers[curl] = loop.create_future()
        multi.add_handle(curl)
        async with asyncio.timeout(TIMEOUT_S):
            await answers[curl]
        multi.remove_handle(curl)
        idle.append(curl)
        return orjson.loads(b"".join(parts))

    return call


def pyreqwest_call(url: str) -> Call:
    from pyreqwest.client import ClientBuilder

    client = ClientBuilder().build()

    async def call(row: dict[str, Any]) -> Any:
        request = client.post(url)
        for name, value in HEADERS.items():
            request = request.header(name, value)
        response = await request.body_bytes(orjson.dumps(body_of(row))).build().send()
        return orjson.loads((await response.bytes()).to_bytes())

    return call


def backend_call(backend: OpenAICompatibleBackend) -> Call:
    async def call(row: dict[str, Any]) -> Any:
        sent = tuple(Message(each["role"], each["content"]) for each in tasks.messages(row))
        return await backend.complete(ModelRequest("bench", sent))

    return call


async def cost_us(call: Call, count: int, concurrency: int) -> float:
    """Microseconds of processor time per call, threads included."""
    rows = iter([tasks.row(number) for number in range(count)])

    async def worker() -> None:
        for row in rows:
            await call(row)

    gc.collect()
    before = time.process_time()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return (time.process_time() - before) / count * 1e6


async def measure(
    count: int, rounds: int, concurrency: int, say: Callable[[str], None]
) -> list[Figure]:
    with serving() as base_url:
        url = f"{base_url}/chat/completions"
        async with AsyncExitStack() as stack:

            async def session(**options: Any) -> aiohttp.ClientSession:
                connector = aiohttp.TCPConnector(limit=0)
                made = aiohttp.ClientSession(connector=connector, headers=HEADERS, **options)
                return await stack.enter_async_context(made)

            plain = await session()
            lean = await session(
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=["User-Agent", "Accept-Encoding"],
            )
            backend = OpenAICompatibleBackend(base_url, "bench-key")
            stack.push_async_callback(backend.aclose)
            calls = {
                BARE: aiohttp_call(plain, url),
                "aiohttp, bytes, orjson, no timeouts or cookies": aiohttp_bytes_call(lean, url),
                "httptools on asyncio.Protocol": httptools_call(url),
                "`openai_compatible`": backend_call(backend),
            }
            if find_spec("pycurl"):
                calls["pycurl, libcurl's multi interface"] = pycurl_call(url)
            if find_spec("pyreqwest"):
                calls["pyreqwest"] = pyreqwest_call(url)
            costs: dict[str, list[float]] = {name: [] for name in calls}
            for call in calls.values():
                await cost_us(call, 4 * concurrency, concurrency)
            for number in range(rounds):
                for name, call in calls.items():
                    costs[name].append(await cost_us(call, count, concurrency))
                say(f"round {number + 1}: {', '.join(f'{c[-1]:.0f}' for c in costs.values())} us")
    figures: list[Figure] = []
    for name, own in costs.items():
        ratios = [bare / cost for bare, cost in zip(costs[BARE], own, strict=True)]
        figures.append(Figure(name, statistics.median(own), "us"))
        figures.append(
            Figure("  calls for the processor time of one", statistics.median(ratios), "")
        )
    return figures


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--n", type=int, default=3000, help="calls of each client a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=64)
    arguments = parser.parse_args()
    say = remarks(arguments.json)
    figures = asyncio.run(measure(arguments.n, arguments.rounds, arguments.concurrency, say))
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
