"""What is known about a Ray cluster without Ray: whether a server of it answers at an address, and its messages."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from evaluator.batch.engines.ray_engine import endpoint_of, reason_of, refusal_of
from tests.ports import silent_port

SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
TRACEBACK = """ray::Host.__init__() (pid=12, ip=10.0.0.7)
  File "python/ray/_raylet.pyx", line 1890, in ray._raylet.execute_task
    some code
ModuleNotFoundError: No module named 'evaluator'
"""


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.5:6379", ("10.0.0.5", 6379)),
        ("ray://head.local:10001", ("head.local", 10001)),
        ("[::1]:6379", ("::1", 6379)),
        ("auto", None),
        ("local", None),
    ],
)
def test_an_address_has_host_and_port_or_is_of_another_kind(
    address: str, expected: tuple[str, int] | None
) -> None:
    assert endpoint_of(address) == expected


def answer(first: bytes) -> str | None:
    """The verdict on a server that sends `first` and ends the connection."""

    async def run() -> str | None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(first)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            return await refusal_of(server.sockets[0].getsockname()[:2])

    return asyncio.run(run())


def test_only_a_server_that_begins_as_http_2_does_is_one_of_ray(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evaluator.batch.engines.ray_engine._ANSWER_S", 200)
    assert answer(SETTINGS) is None
    assert (
        answer(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        == answer(b"")
        == "what answers there is not Ray"
    )
    with silent_port() as port:
        refusal = asyncio.run(refusal_of(("127.0.0.1", port)))
    assert refusal is not None and "nothing answers there" in refusal


def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluator.batch.engines.ray_engine._ANSWER_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert asyncio.run(refusal_of(silent.getsockname()[:2])) == "no answer within 0.01 s"


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        (
            TRACEBACK,
            lambda reason: reason.startswith(
                "ModuleNotFoundError: No module named 'evaluator' (ray::Host"
            ),
        ),
        (
            "The actor died.\nIt was killed.",
            lambda reason: reason == "The actor died. It was killed.",
        ),
        (
            "x" * 900 + "\nValueError: last",
            lambda reason: reason.startswith("ValueError: last (xxx"),
        ),
    ],
)
def test_the_error_of_a_traceback_comes_first_and_is_not_cut(
    text: str, holds: Callable[[str], bool]
) -> None:
    assert holds(reason_of(text))
