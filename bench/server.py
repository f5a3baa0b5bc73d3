"""A chat-completions server on loopback that does nothing but answer, as fast as asyncio lets it.

    python bench/server.py --port 0 --delay-ms 0

Prints its port on one line, then serves until it is ended. Every POST gets the same completion,
every GET `{"requests": N}`. HTTP/1.1 keep-alive and pipelining; no TLS, no chunked requests, no
streams.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal


def completion(content: str) -> bytes:
    """A whole HTTP response that carries `content` as the model's answer."""
    body = json.dumps(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion",
            "created": 1700000000,
            "model": "bench",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": content},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30},
        }
    ).encode()
    return _response(body)


def _response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


class Server:
    """What all connections share."""

    def __init__(self, answer: bytes, delay_s: float) -> None:
        self.answer = answer
        self.delay_s = delay_s
        self.requests = 0


class Connection(asyncio.Protocol):
    """One keep-alive connection: finds where requests end, and answers each."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        while self._buffer:
            head_end = self._buffer.find(b"\r\n\r\n")
            if head_end < 0:
                return
            head = self._buffer[:head_end]
            end = head_end + 4 + _length(head)
            if len(self._buffer) < end:
                if b"expect: 100-continue" in head.lower():
                    self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            self._buffer = self._buffer[end:]
            self._respond(head)

    def _respond(self, head: bytes) -> None:
        server = self._server
        if head.startswith(b"GET"):
            self._write(_response(b'{"requests": %d}' % server.requests))
            return
        server.requests += 1
        if server.delay_s:
            asyncio.get_running_loop().call_later(server.delay_s, self._write, server.answer)
        else:
            self._write(server.answer)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def _length(head: bytes) -> int:
    lower = head.lower()
    at = lower.find(b"\r\ncontent-length:")
    if at < 0:
        return 0
    end = lower.find(b"\r\n", at + 2)
    return int(lower[at + 17 : end if end >= 0 else None])


async def serve(port: int, delay_s: float, content: str) -> None:
    """Serves until SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()
    server = Server(completion(content), delay_s)
    listening = await loop.create_server(
        lambda: Connection(server), "127.0.0.1", port, backlog=1024
    )
    print(listening.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with listening:
        await ended.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A chat-completions server for benchmarks.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one and prints it")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="wait before each answer")
    parser.add_argument("--content", default="The answer is 42.", help="what the model says")
    args = parser.parse_args()
    asyncio.run(serve(args.port, args.delay_ms / 1000, args.content))


if __name__ == "__main__":
    main()
