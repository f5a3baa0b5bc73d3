"""A chat-completions server on loopback that misbehaves on demand. For tests, through
`evaluator.testing`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, Self, cast

from evaluator import clock
from evaluator.lazy_dataclass import frozen
from evaluator.processes.concurrency import cancel_all

_HEAD: Mapping[str, Any] = {"id": "chatcmpl-1", "created": 1700000000, "model": "loopback-1"}
_USAGE: Mapping[str, Any] = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


@frozen
class HttpReply:
    """One raw HTTP response: `pieces` are written one by one, `pause_s` apart, and then comes
    `end`.

    `complete` ends the response as HTTP requires; `hang` keeps the connection open and sends
    nothing more; `close` and `reset` (RST) break it off. `length` overrides Content-Length (-1:
    none, the body ends with the connection). `repeat` writes the pieces repeatedly until the client
    closes. `silent` sends no head.
    """

    pieces: tuple[bytes, ...] = ()
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    pause_s: float = 0.0
    end: Literal["complete", "hang", "close", "reset"] = "complete"
    length: int | None = None
    repeat: bool = False
    silent: bool = False


@frozen
class Answer:
    """A completion, sent whole or streamed as requested. `extra` is added to the message.

    `tool_calls` are `(id, name, arguments)`. `usage` None leaves it out.
    """

    content: Any = "ok"
    finish_reason: Any = "stop"
    tool_calls: Sequence[tuple[str, str, str]] = ()
    usage: Mapping[str, Any] | None = field(default_factory=lambda: _USAGE)
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def reply(self, *, stream: bool) -> HttpReply:
        if stream:
            return self._streamed()
        return json_reply(self._completion())

    def _completion(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.content, **self.extra}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": n, "arguments": a}}
                for i, n, a in self.tool_calls
            ]
        choices = [{"index": 0, "message": message, "finish_reason": self.finish_reason}]
        data: dict[str, Any] = {**_HEAD, "object": "chat.completion", "choices": choices}
        if self.usage is None:
            return data
        return {**data, "usage": self.usage}

    def _streamed(self) -> HttpReply:
        deltas: list[dict[str, Any]] = [{"role": "assistant", **self.extra}]
        text = self.content or ""
        deltas += [{"content": text[at : at + 5]} for at in range(0, len(text), 5)]
        for index, (call_id, name, arguments) in enumerate(self.tool_calls):
            opening = {"index": index, "id": call_id, "type": "function"}
            deltas.append(
                {"tool_calls": [{**opening, "function": {"name": name, "arguments": ""}}]}
            )
            for at in range(0, len(arguments), 4):
                part = {"index": index, "function": {"arguments": arguments[at : at + 4]}}
                deltas.append({"tool_calls": [part]})
        chunks = [chunk(delta) for delta in deltas]
        chunks.append(chunk({}, finish_reason=self.finish_reason))
        if self.usage is not None:
            chunks.append({**chunk({}), "choices": [], "usage": self.usage})
        return stream_reply(chunks)


def chunk(delta: Mapping[str, Any], *, finish_reason: Any = None) -> dict[str, Any]:
    """One chunk of a stream."""
    choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    return {**_HEAD, "object": "chat.completion.chunk", "choices": choices}


def event(data: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def stream_reply(
    chunks: Iterable[Any],
    *,
    done: bool = True,
    end: Literal["complete", "hang", "close", "reset"] = "complete",
) -> HttpReply:
    """Chunks as server-sent events, one piece each, `[DONE]` at the end."""
    pieces = tuple(event(data) for data in chunks) + ((b"data: [DONE]\n\n",) if done else ())
    return HttpReply(pieces, content_type="text/event-stream", end=end)


def json_reply(
    data: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> HttpReply:
    """A response with `data` as its JSON body."""
    return HttpReply((json.dumps(data).encode(),), status=status, headers=headers or {})


def error_reply(
    status: int,
    message: str = "no",
    *,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> HttpReply:
    """An error in the shape of OpenAI's API."""
    error = {"message": message, "type": "error", "param": None, "code": code}
    return json_reply({"error": error}, status=status, headers=headers)


class LoopbackServer:
    """Chat completions on 127.0.0.1, in a thread of its own, inside `with`.

    Each POST gets the next of the replies given to `enqueue`, or, when there is none left,
    `default`. An Answer is streamed if the field `stream` of the body asks for it, or the path
    (`…:streamGenerateContent`). `bodies`, `headers` and `paths` hold the requests, in order;
    `posts` counts them; `asked` is set after the first. `sent_bytes` counts the bytes of all
    replies that were written to the network. With `tls` the server speaks https.
    """

    def __init__(
        self,
        *replies: HttpReply | Answer,
        default: HttpReply | Answer | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._replies: deque[HttpReply | Answer] = deque(replies)
        self.default: HttpReply | Answer = default or Answer()
        self._tls = tls
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.sent_bytes = 0
        self.asked = threading.Event()
        self._arrived = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def base_url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}/v1"

    @property
    def posts(self) -> int:
        return len(self.bodies)

    def wait_for_posts(self, count: int, timeout_s: float = 60.0) -> None:
        """Waits until `count` requests have arrived. Raises: TimeoutError."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: self.posts >= count, timeout_s):
                raise TimeoutError(
                    f"{self.posts} of {count} requests arrived within {timeout_s:g} s"
                )

    def enqueue(self, *replies: HttpReply | Answer) -> None:
        self._replies.extend(replies)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops the server and its connections: the port then refuses. A second call does
        nothing.
        """
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await cancel_all(self._tasks)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The client closed the connection, or the server is being stopped.
            pass
        finally:
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request. Returns: whether the connection can take another."""
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length") or 0))
        data = json.loads(body) if body else {}
        self.paths.append(lines[0].split(" ")[1])
        self.headers.append(headers)
        with self._arrived:
            # Before anybody learns of the request: what is enqueued then is for later ones.
            if self._replies:
                reply = self._replies.popleft()
            else:
                reply = self.default
            self.bodies.append(data)
            self._arrived.notify_all()
        self.asked.set()
        if isinstance(reply, Answer):
            reply = reply.reply(stream=bool(data.get("stream")) or "stream" in self.paths[-1])
        return await self._send(reply, reader, writer=writer)

    async def _send(
        self, reply: HttpReply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        sized = reply.length is None and reply.end == "complete" and not reply.repeat
        if sized:
            length = sum(map(len, reply.pieces))
        else:
            length = reply.length
        chunked = reply.content_type == "text/event-stream"
        if not reply.silent:
            writer.write(_head(reply, length, chunked=chunked))
        for piece in itertools.cycle(reply.pieces) if reply.repeat else reply.pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked and piece else piece)
            await writer.drain()
            self.sent_bytes += len(piece)
            if reply.pause_s:
                await clock.sleep(reply.pause_s)
        if reply.end == "complete":
            if chunked:
                writer.write(b"0\r\n\r\n")
            await writer.drain()
            return chunked or (length is not None and length >= 0)
        await writer.drain()
        if reply.end == "hang":
            await reader.read()
        elif reply.end == "reset":
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            writer.close()
            await writer.wait_closed()
        return False


def _head(reply: HttpReply, length: int | None, *, chunked: bool) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} Status", f"Content-Type: {reply.content_type}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    elif length is not None and length >= 0:
        lines.append(f"Content-Length: {length}")
    else:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
