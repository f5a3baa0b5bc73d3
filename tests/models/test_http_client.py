"""`HttpClient`: kept connections, answers that break HTTP, tunnels, and loops that end."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from evaluator import ProviderError
from evaluator.models.http_client import HttpClient
from tests.ports import silent_port
from tests.security.certificates import Authority

ROOT = Path(__file__).parents[2]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Script:
    """A server whose connections answer each request with the next of `answers`."""

    def __init__(self, *answers: bytes, ends: bool = False) -> None:
        self.answers = list(answers)
        self.ends = ends
        self.connections = 0
        self.heads: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                writer.write(self.answers.pop(0))
                await writer.drain()
                if self.ends:
                    writer.close()
                    await writer.wait_closed()
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()


async def post(client: HttpClient, body: bytes = b"{}") -> tuple[int, bytes]:
    response = await client.post(body)
    try:
        pieces = []
        while piece := await response.piece():
            pieces.append(piece)
        return response.status, b"".join(pieces)
    finally:
        client.release(response)


def run(script: Script, use: Callable[[HttpClient], Awaitable[Any]], **settings: Any) -> Any:
    async def main() -> Any:
        async with await asyncio.start_server(script, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            options: dict[str, Any] = {"proxy": None, "limit": 0, "connect_timeout_s": 60.0}
            options |= settings
            url = f"http://127.0.0.1:{port}/v1/c"
            client = HttpClient(url, {"X-Own": "1"}, secrets=(), **options)
            try:
                return await use(client)
            finally:
                await client.aclose()

    return asyncio.run(main())


async def twice(client: HttpClient) -> list[tuple[int, bytes]]:
    return [await post(client), await post(client)]


def test_a_connection_is_used_again() -> None:
    script = Script(OK, OK)
    assert run(script, twice) == [(200, b"ok"), (200, b"ok")]
    assert script.connections == 1
    assert script.heads[0].startswith(b"POST /v1/c HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-Own: 1\r\nContent-Length: 2\r\n" in script.heads[0]


@pytest.mark.parametrize(
    "first",
    [
        OK + b"HTTP/1.1 500 OK\r\nContent-Length: 5\r\n\r\nwrong",
        OK.replace(b"Length: 2", b"Length: 2\r\nConnection: close"),
    ],
    ids=["a second answer", "connection: close"],
)
def test_a_connection_that_cannot_be_trusted_is_not_used_again(first: bytes) -> None:
    script = Script(first, OK)
    assert run(script, twice) == [(200, b"ok"), (200, b"ok")]
    assert script.connections == 2


def test_an_answer_that_comes_before_its_request_is_not_read() -> None:
    early = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"

    async def use(client: HttpClient) -> tuple[int, bytes]:
        response = await client.post(b"")
        while await response.piece():
            pass
        client.release(response)
        response.data_received(early)
        return await post(client)

    script = Script(OK, OK)
    assert run(script, use) == (200, b"ok")
    assert script.connections == 2


def test_answers_of_every_framing_are_read() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n"
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    for answer in (chunked, interim + OK, OK.replace(b"200 OK", b"404 No")):
        assert run(Script(answer), post)[1] == b"ok"
    unframed = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nok"
    assert run(Script(unframed, ends=True), post) == (200, b"ok")


def test_the_fields_of_an_answer_are_those_of_its_own_head() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nX-Own: 1\r\nContent-Encoding: gzip\r\n\r\n"
    head = b"\r\nHTTP/1.1 429 Slow Down\r\nRETRY-After:  7 \r\nX-Body: \r\n"
    trailer = b"Content-Encoding: gzip\r\n\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + trailer

    async def use(client: HttpClient) -> tuple[int, str, dict[str, str], str, bytes]:
        response = await client.post(b"")
        body = await response.body(2)
        answer = response.status, response.reason, response.headers, response.content_type, body
        client.release(response)
        return answer

    async def all_pieces(client: HttpClient) -> list[Any]:
        return [await use(client), await use(client)]

    first, second = run(Script(interim + interim + chunked, OK), all_pieces)
    fields = {"retry-after": "7", "x-body": "", "transfer-encoding": "chunked"}
    assert first == (429, "Slow Down", fields, "application/octet-stream", b"ok")
    assert second[:3] == (200, "OK", {"content-length": "2"})


def test_a_head_that_comes_in_pieces_is_read() -> None:
    async def use(client: HttpClient) -> tuple[str, bytes]:
        response = await client.post(b"")
        return response.content_type, await response.body(100)

    class InPieces(Script):
        async def __call__(
            self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await reader.readuntil(b"\r\n\r\n")
            for place in range(len(self.answers[0])):
                writer.write(self.answers[0][place : place + 1])
                await asyncio.sleep(0)
            writer.close()

    answer = OK.replace(b"\r\nContent", b"\r\nContent-TYPE: Text/Plain; x=y\r\nContent")
    assert run(InPieces(answer), use) == ("text/plain", b"ok")


def test_a_body_that_is_too_large_is_not_read_on() -> None:
    announced = OK.replace(b"Length: 2", b"Length: 99999999")
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nlarge\r\n"

    async def use(client: HttpClient) -> str:
        response = await client.post(b"")
        try:
            with pytest.raises(ProviderError) as caught:
                await response.body(4)
        finally:
            client.release(response)
        assert (caught.value.kind, caught.value.retryable) == ("malformed_response", False)
        return caught.value.message

    for answer in (announced, chunked):
        assert run(Script(answer), use) == "the response is larger than 4 bytes"


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "malformed_response", "not HTTP"),
        (OK.replace(b"Length: 2", b"Length: 2, 3"), "malformed_response", "not HTTP"),
        (
            OK.replace(b"Length: 2", b"Length: 2\r\nTransfer-Encoding: chunked"),
            "malformed_response",
            "not HTTP",
        ),
        (
            OK.replace(b"OK\r\n", b"OK\r\nX: " + b"x" * 400_000 + b"\r\n"),
            "malformed_response",
            "headers of the response are too large",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: "
            + b"x" * 400_000,
            "malformed_response",
            "headers of the response are too large",
        ),
        (
            OK.replace(b"OK\r\n", b"OK\r\nContent-Encoding: gzip\r\n"),
            "malformed_response",
            "compressed (gzip)",
        ),
        (
            OK.replace(
                b"OK\r\n", b"OK\r\nContent-Encoding: identity\r\nContent-Encoding: gzip\r\n"
            ),
            "malformed_response",
            "compressed (identity, gzip)",
        ),
        (b"HTTP/1.1 101 Up\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "malformed_response", ""),
        (OK.replace(b"Length: 2", b"Length: 9"), "connection", "before the end of its answer"),
        (b"", "connection", "before the end of its answer"),
    ],
)
def test_an_answer_that_breaks_the_protocol_is_an_error(
    answer: bytes, kind: str, message: str
) -> None:
    with pytest.raises(ProviderError) as caught:
        run(Script(answer, ends=True), post)
    assert (caught.value.kind, caught.value.maybe_billed) == (kind, True)
    assert message in caught.value.message


def test_an_answer_that_is_encoded_as_it_is_is_read() -> None:
    fields = b"OK\r\nContent-Encoding: identity\r\nX: y\r\ncontent-encoding: Identity\r\n"
    assert run(Script(OK.replace(b"OK\r\n", fields)), post) == (200, b"ok")


def test_a_limit_makes_further_requests_wait() -> None:
    script = Script(*[OK] * 9)

    async def use(client: HttpClient) -> list[tuple[int, bytes]]:
        return await asyncio.gather(*(post(client) for _ in range(9)))

    assert run(script, use, limit=2) == [(200, b"ok")] * 9
    assert script.connections == 2


def test_a_request_that_is_cancelled_gives_its_slot_and_not_its_connection_back() -> None:
    async def use(client: HttpClient) -> tuple[int, bytes]:
        hanging = asyncio.create_task(client.post(b"{}"))
        while not script.heads:
            await asyncio.wait([hanging], timeout=0.01)
        hanging.cancel()
        await asyncio.wait([hanging])
        return await post(client)

    script = Script(OK[:-1], OK)
    # The head of the first answer is not complete.
    script.answers[0] = OK[:20]
    assert run(script, use, limit=1) == (200, b"ok")
    assert script.connections == 2


@pytest.mark.parametrize("has_slot", [False, True])
def test_a_request_that_is_closed_while_it_waits_keeps_no_slot(has_slot: bool) -> None:
    """A coroutine that is closed gets a GeneratorExit and no CancelledError."""

    async def use(client: HttpClient) -> tuple[int, bytes]:
        first = await client.post(b"{}")
        await first.body(10)
        waiting = client.post(b"{}")
        waiting.send(None)
        if has_slot:
            client.release(first)
            waiting.close()
        else:
            waiting.close()
            client.release(first)
        return await asyncio.wait_for(post(client), 60)

    assert run(Script(OK, OK), use, limit=1) == (200, b"ok")


def test_a_host_that_is_an_address_needs_no_thread_to_look_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def use(client: HttpClient) -> list[tuple[int, bytes]]:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", None)
        return await twice(client)

    assert run(Script(OK, OK), use) == [(200, b"ok")] * 2


def test_a_host_without_a_server_is_an_error_that_says_where() -> None:
    async def main(port: int) -> None:
        client = HttpClient(
            f"http://127.0.0.1:{port}/", {}, proxy=None, limit=0, connect_timeout_s=60, secrets=()
        )
        with pytest.raises(ProviderError, match=f"cannot connect to 127.0.0.1:{port}: ") as caught:
            await post(client)
        assert (caught.value.retryable, caught.value.maybe_billed) == (True, False)

    with silent_port() as port:
        asyncio.run(main(port))


def test_a_proxy_makes_a_tunnel_to_a_server_whose_certificate_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[bytes] = []
    script = Script(OK, OK)
    authority = Authority(tmp_path, "own")

    async def main() -> None:
        tls = authority.server()
        async with await asyncio.start_server(script, "127.0.0.1", 0, ssl=tls) as server:
            port = server.sockets[0].getsockname()[1]

            async def tunnel(near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
                heads.append(await near.readuntil(b"\r\n\r\n"))
                far, far_out = await asyncio.open_connection("127.0.0.1", port)
                near_out.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

                async def copy(source: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
                    with contextlib.suppress(ConnectionError):
                        while data := await source.read(65536):
                            out.write(data)
                    out.transport.abort()

                try:
                    await asyncio.gather(copy(near, far_out), copy(far, near_out))
                finally:
                    far_out.transport.abort()
                    near_out.transport.abort()

            async with await asyncio.start_server(tunnel, "127.0.0.1", 0) as proxy:
                proxy_port = proxy.sockets[0].getsockname()[1]

                def client(host: str) -> HttpClient:
                    return HttpClient(
                        f"https://{host}:{port}/v1/c",
                        {"Authorization": "Bearer key"},
                        proxy=f"http://me:p%40ss@127.0.0.1:{proxy_port}",
                        limit=0,
                        connect_timeout_s=60,
                        secrets=(),
                    )

                good = client("127.0.0.1")
                assert await twice(good) == [(200, b"ok"), (200, b"ok")]
                await good.aclose()
                other = client("other.example")
                with pytest.raises(ProviderError, match="certificate") as caught:
                    await post(other)
                assert (caught.value.retryable, caught.value.maybe_billed) == (False, False)
                await other.aclose()

    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    asyncio.run(main())
    assert len(script.heads) == 2 and b"Bearer key" in script.heads[0]
    assert len(heads) == 2, "one tunnel for two requests, and the refused one"
    assert b"Proxy-Authorization: Basic bWU6cEBzcw==" in heads[0] and b"Bearer" not in heads[0]


def test_a_loop_that_ends_closes_the_connections_without_a_word() -> None:
    code = """
import asyncio, gc, logging
from evaluator.models.openai_compatible import OpenAICompatibleBackend
from evaluator.testing import LoopbackServer, a_request
logging.getLogger("asyncio").setLevel(logging.ERROR)  # not that a step took 100 ms
with LoopbackServer() as server:
    backends = [OpenAICompatibleBackend(server.base_url) for _ in range(2)]
    async def collected():
        backend = OpenAICompatibleBackend(server.base_url)
        await backend.complete(a_request())
        await backends[0].complete(a_request())
    asyncio.run(collected())
    asyncio.run(backends[1].complete(a_request()))
    del backends
    gc.collect()
    print(server.posts)
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
    )
    assert (done.stdout, done.stderr) == ("3\n", "")
