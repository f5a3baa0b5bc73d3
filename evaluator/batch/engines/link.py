"""The way to one Host: messages out as they come, messages in as they are said, and word when the way is gone."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from evaluator.batch.engines.host import Opened
from evaluator.batch.engines.taskfiles import Probe
from evaluator.errors import EvaluatorError


class Lost(Exception):
    """The process, or its node, is gone."""


class Remote(Protocol):
    """A Host in another process. Each method raises Lost when there is none any more."""

    async def versions(self) -> str: ...

    async def open(self, recipe: bytes, probe: Probe | None, first_id: int) -> Opened | EvaluatorError: ...

    async def post(self, messages: Sequence[bytes]) -> None: ...

    async def listen(self) -> list[bytes]: ...

    async def close(self) -> None: ...

    def kill(self) -> None:
        """Ends the process at once."""
        ...


class Link:
    """Messages to and from `remote`. One post is under way at a time, and takes all that was queued meanwhile.

    `on_message` is called for each message, in order; `on_lost` once, with why, and nothing is called after it.
    """

    def __init__(
        self,
        remote: Remote,
        on_message: Callable[[tuple[Any, ...]], None],
        on_lost: Callable[[BaseException], Awaitable[None]],
    ) -> None:
        self.remote = remote
        self._on_message, self._on_lost = on_message, on_lost
        self._queued: list[bytes] = []
        self._is_filled = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    def send(self, message: tuple[Any, ...]) -> None:
        """Queues a message; does not wait. One that is sent to a lost process is dropped."""
        self._queued.append(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        self._is_filled.set()

    async def _run(self) -> None:
        ways = [asyncio.ensure_future(self._post()), asyncio.ensure_future(self._listen())]
        try:
            await asyncio.gather(*ways)
        except Exception as error:
            await self._on_lost(error)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _post(self) -> None:
        while True:
            await self._is_filled.wait()
            self._is_filled.clear()
            messages, self._queued = self._queued, []
            await self.remote.post(messages)

    async def _listen(self) -> None:
        while True:
            for packed in await self.remote.listen():
                self._on_message(pickle.loads(packed))

    async def stop(self) -> None:
        """No further message goes either way."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
