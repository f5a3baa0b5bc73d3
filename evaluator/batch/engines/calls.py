"""One gate for calls that are made in other processes: questions and answers go through two queues of messages.

A call that is made elsewhere enters the one gate of the batch, where it waits with all others; what it used is
settled there. A process that is lost takes its calls with it: they count as cut off, so that a budget is never
overshot by what nobody heard of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from evaluator.errors import ProviderError
from evaluator.handler.gate import NOT_MADE, UNWATCHED, Gate, Passage, PlannedCall
from evaluator.results import Usage

Send = Callable[[tuple[Any, ...]], None]
"""Queues a message for the other side: its kind, and what belongs to it. Does not wait."""


class RemoteGate:
    """A Gate in a process that makes calls. Its messages are `enter` and `left`; `answered` is told of each answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._numbers = count(1)
        self._turns: dict[int, asyncio.Future[None]] = {}

    async def enter(self, call: PlannedCall) -> Passage:
        """As `Gate.enter`; one round trip, more where others come first."""
        number = next(self._numbers)
        turn = self._turns[number] = asyncio.get_running_loop().create_future()
        self._send(("enter", number, call))
        try:
            await turn
        except asyncio.CancelledError:
            # Let in meanwhile or not: the gate knows which.
            self._send(("left", number, NOT_MADE, None, 0.0))
            raise
        finally:
            self._turns.pop(number, None)
        return _RemotePassage(self._send, number)

    async def rest(self, seconds: float) -> None:
        """As `Gate.rest`; that the attempt will not be made is known when it asks to enter."""
        await asyncio.sleep(seconds)

    def answered(self, number: int, refusal: Exception | None) -> None:
        """The call of that number may be made, or why it may not."""
        turn = self._turns.get(number)
        if turn is None or turn.done():
            return
        if refusal is None:
            turn.set_result(None)
        else:
            turn.set_exception(refusal)


class _RemotePassage:
    __slots__ = ("_number", "_send")

    def __init__(self, send: Send, number: int) -> None:
        self._send: Send | None = send
        self._number = number

    def leave(self, usage: Usage | None, error: ProviderError | None, latency_s: float) -> None:
        """As `Passage.leave`."""
        send, self._send = self._send, None
        if send is not None:
            send(("left", self._number, usage, error, latency_s))


class Entrance:
    """Enters the gate on behalf of one other process. Its messages are `entered` and `refused`; `on_refused` is
    called after a refusal."""

    def __init__(self, gate: Gate | None, send: Send, on_refused: Callable[[], None]) -> None:
        self._gate = gate
        self._send = send
        self._on_refused = on_refused
        self._entering: dict[int, asyncio.Task[None]] = {}
        self._passages: dict[int, Passage] = {}

    def enter(self, number: int, call: PlannedCall) -> None:
        self._entering[number] = asyncio.ensure_future(self._enter(number, call))

    async def _enter(self, number: int, call: PlannedCall) -> None:
        try:
            self._passages[number] = UNWATCHED if self._gate is None else await self._gate.enter(call)
        except Exception as error:
            self._send(("refused", number, error))
            self._on_refused()
        else:
            self._send(("entered", number))
        finally:
            self._entering.pop(number, None)

    def left(self, number: int, usage: Usage | None, error: ProviderError | None, latency_s: float) -> None:
        entering = self._entering.pop(number, None)
        if entering is not None:
            entering.cancel()
            return
        passage = self._passages.pop(number, None)
        if passage is not None:
            passage.leave(usage, error, latency_s)

    def close(self) -> None:
        """The process is gone: who waited waits no more, and nobody knows what the calls under way used."""
        for entering in self._entering.values():
            entering.cancel()
        for passage in self._passages.values():
            passage.leave(None, None, 0.0)
        self._entering.clear()
        self._passages.clear()
