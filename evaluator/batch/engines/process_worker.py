"""The program of a worker process: a Host that answers calls on a socket.

`process_engine` starts it, and sends its environment variables before the calls. The end of the
connection, which is also the end of the process that started it, ends this process at once,
whatever it computes.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from evaluator.batch.engines.host import Host, portable_error
from evaluator.processes.own_environment import hide_own_environment

HEAD = struct.Struct("!Q")
"""The length of the pickled message that follows."""
_SWITCH_S = 0.001


def main(descriptor: int) -> None:
    """Serves the connection on `descriptor` until it ends. Returns never."""
    hide_own_environment()  # scripts of samples run below this process
    os.set_inheritable(descriptor, False)
    connection = socket.socket(fileno=descriptor)
    stream = connection.makefile("rb")
    os.environ.update(pickle.loads(_message(stream) or os._exit(0)))
    # Standard output belongs to the summary; what a scorer prints goes to standard error.
    with suppress(OSError):
        os.dup2(2, 1)
    # The process that started this one decides what a signal to all of them means. A handler,
    # because programs that are started here would inherit an ignored signal.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore)
    # The event loop gets its turn soon beside a scorer that computes. Python's default is 5 ms.
    sys.setswitchinterval(_SWITCH_S)
    asyncio.run(_serve(connection, stream))


def _ignore(_number: int, _frame: object) -> None:
    pass


async def _serve(connection: socket.socket, stream: BinaryIO) -> None:
    host = Host()
    tasks = set[asyncio.Task[None]]()
    loop = asyncio.get_running_loop()

    def send(number: int | None, value: Any) -> None:
        packed = pickle.dumps((number, value), pickle.HIGHEST_PROTOCOL)
        try:
            connection.sendall(HEAD.pack(len(packed)) + packed)
        except ConnectionError:
            os._exit(0)  # the process that started this one is gone

    async def answer(number: int | None, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            # One request is for all that there is to hear.
            while method == "listen":
                send(None, await host.listen())
            value = await getattr(host, method)(*arguments)
        except Exception as error:
            value = portable_error(error)
            if number is None:
                # It has no answer, but what it brought or asked for is lost.
                send(None, pickle.dumps([("failed", value)], pickle.HIGHEST_PROTOCOL))
        if number is None:
            return
        if method == "close":
            sys.stdout.flush()
        send(number, value)

    def take(packed: bytes) -> None:
        task = asyncio.ensure_future(answer(*pickle.loads(packed)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def deliver(packed: bytes) -> None:
        loop.call_soon_threadsafe(take, packed)

    threading.Thread(target=_receive, args=(stream, deliver), daemon=True).start()
    await asyncio.Event().wait()


def _receive(stream: BinaryIO, deliver: Callable[[bytes], None]) -> None:
    """Delivers each message. Ends the process with the connection; nobody would take a result
    then.
    """
    try:
        while packed := _message(stream):
            deliver(packed)
    finally:
        os._exit(0)


def _message(stream: BinaryIO) -> bytes:
    """The next message; empty at the end of the connection."""
    head = stream.read(HEAD.size)
    if len(head) == HEAD.size:
        return stream.read(*HEAD.unpack(head))
    return b""
