"""HTTP requests to a batch API, with the checks of a model call: no redirect is followed, sizes and
times are bounded, and secrets are masked in errors.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from evaluator.errors import ProviderError
from evaluator.lazy_dataclass import dataclass
from evaluator.models.chat_wire import decode_json, encode_json
from evaluator.models.failures import (
    MAX_ERROR_BODY,
    MAX_RESPONSE_BYTES,
    clean,
    failure,
    malformed,
    message_of,
    retry_after,
)
from evaluator.models.http_client import HttpClient
from evaluator.models.http_connection import Connection
from evaluator.models.time_limit import TimeLimit

MAX_RESULT_BYTES = 4_000_000_000
"""Larger files of results are not read."""
_REQUEST_S = 3600.0
_SILENCE_S = 120.0
_CONNECT_S = 30.0
_PIECE_BYTES = 256 * 1024
_JSON = {"Content-Type": "application/json"}


@dataclass(slots=True)
class BatchApi:
    """HTTP requests to `base_url`. `headers` may hold a key; `secrets` are masked in errors."""

    base_url: str
    headers: Mapping[str, str]
    secrets: tuple[str, ...]
    proxy: str | None
    _client: HttpClient | None = field(default=None, init=False)

    async def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The JSON object that a request answers."""
        data = b"" if body is None else encode_json(body)
        pieces = [data] if data else []
        return await self.send(method, path, pieces=pieces, length=len(data))

    async def send(
        self,
        method: str,
        path: str,
        *,
        pieces: Iterable[bytes],
        length: int,
        headers: Mapping[str, str] = _JSON,
    ) -> dict[str, Any]:
        """As `call`, with a body in pieces."""
        read: list[bytes] = []
        size = 0
        async with self._opened(method, path, pieces, length, headers) as parts:
            async for part in parts:
                read.append(part)
                size += len(part)
                if size > MAX_RESPONSE_BYTES:
                    raise malformed("the response is too large", retryable=False)
        found = decode_json(b"".join(read))
        if not isinstance(found, dict):
            raise malformed("the response is not a JSON object")
        return cast("dict[str, Any]", found)

    async def send_file(
        self, path: str, file: Path, *, head: bytes, end: bytes, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        """As `call`, with the bytes of a file between two others as the body."""

        def pieces() -> Iterable[bytes]:
            yield head
            with open(file, "rb") as opened:
                while piece := opened.read(_PIECE_BYTES):
                    yield piece
            yield end

        length = len(head) + size_of(file) + len(end)
        return await self.send("POST", path, pieces=pieces(), length=length, headers=headers)

    async def lines(self, path: str) -> AsyncIterator[Mapping[str, Any]]:
        """The JSON objects of a file of lines. An invalid line is left out."""
        rest = b""
        size = 0
        async with self._opened("GET", path) as parts:
            async for part in parts:
                size += len(part)
                if size > MAX_RESULT_BYTES:
                    raise malformed("the file of results is too large", retryable=False)
                *whole, rest = (rest + part).split(b"\n")
                for line in whole:
                    if (found := _object(line)) is not None:
                        yield found
        if (found := _object(rest)) is not None:
            yield found

    @contextlib.asynccontextmanager
    async def _opened(
        self,
        method: str,
        path: str,
        pieces: Iterable[bytes] = (),
        length: int = 0,
        headers: Mapping[str, str] = _JSON,
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The body of a successful answer. Raises: ProviderError."""
        if self._client is None:
            self._client = HttpClient(
                self.base_url,
                self.headers,
                proxy=self.proxy,
                limit=0,
                connect_timeout_s=_CONNECT_S,
                secrets=self.secrets,
            )
        client = self._client
        url = f"{self.base_url}{path}"
        if not length:
            headers = {}
        with TimeLimit(_REQUEST_S, _SILENCE_S, answer=None) as limit:
            limit.reset_idle()

            def sent() -> Iterable[bytes]:
                for piece in pieces:
                    limit.reset_idle()
                    yield piece

            connection = await client.request(method, url, headers, pieces=sent(), length=length)

            async def received() -> AsyncIterator[bytes]:
                while part := await connection.piece():
                    limit.reset_idle()
                    yield part

            try:
                if not 200 <= connection.status < 300:
                    raise await self._failure(connection)
                yield received()
            finally:
                client.release(connection)

    async def _failure(self, connection: Connection) -> ProviderError:
        body = b""
        with contextlib.suppress(ProviderError):
            while len(body) < MAX_ERROR_BODY and (part := await connection.piece()):
                body += part
        message, code = message_of(body[:MAX_ERROR_BODY])
        return failure(
            connection.status,
            message or connection.reason,
            code=code,
            retry_after_s=retry_after(connection.headers),
            secrets=self.secrets,
        )

    async def delete(self, path: str) -> None:
        """Deletes something; it may have been deleted before."""
        try:
            await self.call("DELETE", path)
        except ProviderError as error:
            if error.kind != "not_found":
                raise

    async def aclose(self) -> None:
        client = self._client
        self._client = None
        if client is not None:
            await client.aclose()

    def shown(self, text: object) -> str:
        """A text of the provider for a message."""
        return clean(str(text), self.secrets)


def size_of(path: Path) -> int:
    """The bytes of a file of requests."""
    return os.path.getsize(path)


def text_of(data: Mapping[str, Any], name: str) -> str:
    """A text that an answer must have. Raises: ProviderError, after which the request may have had
    an effect.
    """
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise malformed(f"the response has no {name}", retryable=False)
    return value


def mapping_of(value: Any) -> Mapping[str, Any]:
    """A mapping of an answer, empty for anything else."""
    if isinstance(value, dict):
        return cast("Mapping[str, Any]", value)
    return {}


def list_of(value: Any) -> list[Mapping[str, Any]]:
    """The mappings in a list of an answer."""
    if not isinstance(value, list):
        return []
    found = cast("list[Any]", value)
    return [cast("Mapping[str, Any]", each) for each in found if isinstance(each, dict)]


def path_part(text: str, safe: str = "") -> str:
    """A name that the provider gave as a part of an address."""
    return quote(text, safe=safe, errors="replace")


def sum_of(*counts: Any) -> int | None:
    """The sum of the counts of an answer; None if one of them is not a count."""
    total = 0
    for count in counts:
        if type(count) is not int or count < 0:
            return None
        total += count
    return total


_LAST_MOMENT = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def moment_of(value: Any) -> float | None:
    """Seconds since 1970 of an answer; None for anything that is not a moment of a calendar."""
    if isinstance(value, int | float) and 0 <= value < _LAST_MOMENT:
        return float(value)
    return None


def seconds_of(value: Any) -> float | None:
    """A moment of an answer as seconds since 1970; None for anything else."""
    try:
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError):
        return None


def refused(message: str) -> ProviderError:
    """The error for a request that the API cannot take."""
    return ProviderError(message, kind="bad_request")


def arguments_of(text: str) -> Mapping[str, Any]:
    """The arguments of a tool call that a model wrote, as a mapping."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return cast("Mapping[str, Any]", found)
    return {"invalid_arguments": text}


def _object(line: bytes) -> Mapping[str, Any] | None:
    with contextlib.suppress(ProviderError):
        if line.strip():
            found = decode_json(line)
        else:
            found = None
        if isinstance(found, dict):
            return cast("Mapping[str, Any]", found)
    return None
