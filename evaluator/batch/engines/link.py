"""The connection to one Host: sends queued messages, delivers received ones, and reports when the
process is lost.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any, Protocol

from evaluator.processes.tasks import cancel_all, run_together


class HostLost(Exception):
    """The process, or its node, is gone."""


class Remote(Protocol):
    """A Host in another process."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """The answer of a method of the Host. Raises: HostLost, if the process is gone."""
        ...

    def kill(self) -> None:
        """Ends the process at once."""
        ...


class Link:
    """Messages to and from `remote`. One `post` is under way at a time, and takes everything queued
    meanwhile.

    `on_message` is called for each message, in order; `on_lost` once, with the reason; nothing is
    called after it.
    """

    def __init__(
        self,
        remote: Remote,
        on_message: Callable[[tuple[Any, ...]], None],
        on_lost: Callable[[Exception], None],
    ) -> None:
        self.remote = remote
        self._on_message = on_message
        self._on_lost = on_lost
        self._queued: list[bytes] = []
        self._has_messages = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    def send(self, message: tuple[Any, ...]) -> None:
        """Queues a message; does not wait. Messages to a lost process are dropped."""
        self._queued.append(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        self._has_messages.set()

    async def _run(self) -> None:
        try:
            await run_together(self._post(), self._listen())
        except Exception as error:
            self._on_lost(error)

    async def _post(self) -> None:
        while True:
            await self._has_messages.wait()
            self._has_messages.clear()
            messages = self._queued
            self._queued = []
            await self.remote.call("post", messages)

    async def _listen(self) -> None:
        while True:
            for packed in await self.remote.call("listen"):
                self._on_message(pickle.loads(packed))

    async def stop(self) -> None:
        """No further message is sent or delivered."""
        await cancel_all([self._task])
