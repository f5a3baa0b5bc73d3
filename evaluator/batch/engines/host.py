"""The other end: one process on a node that performs work, many samples side by side, in an event loop of its own.

It decides nothing: samples come when they may begin, and each call waits for the batch's one gate. What it says is
fetched by `listen`, as much as there is at a time, so that many messages share one round trip.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import pickle
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.batch.engines.calls import RemoteGate
from evaluator.batch.engines.recipe import Recipe
from evaluator.batch.engines.taskfiles import OwnFolder, Probe
from evaluator.batch.scorers.contract import words
from evaluator.batch.work import Done, Work, Worker
from evaluator.errors import ConfigurationError, EvaluatorError, UsageError
from evaluator.record.owner import current_owner

VERSIONS = (
    f"evaluator {importlib.metadata.version('evaluator')}, Python {'.'.join(platform.python_version_tuple()[:2])}"
)


@dataclass(frozen=True, slots=True)
class Opened:
    """`shares`: it sees the batch's folder, and its locks. `machine` tells machines apart."""

    shares: bool
    machine: str


class AtOnce:
    """Turns where turns were waited for already."""

    async def start_sample(self) -> None:
        pass

    def end_sample(self) -> None:
        pass


class Host:
    """Messages to it: `work`, `entered`, `refused`, `spent`; from it: `done`, `raised`, `enter`, `left`, `notice`."""

    def __init__(self) -> None:
        self._outbox: list[bytes] = []
        self._is_filled = asyncio.Event()
        self._gate = RemoteGate(self._send)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._unrecorded: dict[str, int] = {}
        self._worker: Worker | None = None
        self._own: OwnFolder | None = None
        self._spent: str | None = None
        self._is_closing = False

    async def versions(self) -> str:
        return VERSIONS

    async def open(self, recipe: bytes, probe: Probe | None, first_id: int) -> Opened | EvaluatorError:
        """Makes ready. Task files go into the batch's folder where `probe` is seen there, else into a folder of this
        node, with ids from `first_id`. An error is returned: what raises here would come wrapped."""
        try:
            return self._opened(pickle.loads(recipe), probe, first_id)
        except Exception as error:
            return portable(error)

    def _opened(self, recipe: Recipe, probe: Probe | None, first_id: int) -> Opened:
        from evaluator.interpreter.evaluator import Evaluator

        os.environ.update(recipe.variables)
        arguments = {name: pickle.loads(value) for name, value in recipe.arguments.items()}
        evaluator = Evaluator(**arguments, tasks_dir=None, notice=lambda line: self._send(("notice", line)))
        shares = probe is not None and probe.is_seen()
        self._own = None if shares else OwnFolder(first_id)
        tasks = recipe.tasks if self._own is None else self._own.path
        self._worker = Worker(
            evaluator.behind(self._gate, tasks, recipe.cache),
            [pickle.loads(scorer) for scorer in recipe.scorers],
            AtOnce(), lambda: self._spent, recipe.count_as_failed, self._unrecorded, recipe.unfinished,
        )  # fmt: skip
        return Opened(shares, current_owner().boot_id)

    async def post(self, messages: Sequence[bytes]) -> None:
        """Takes messages in."""
        for packed in messages:
            kind, *rest = pickle.loads(packed)
            if kind == "work":
                number, work, begun = rest
                self._tasks[number] = asyncio.ensure_future(self._perform(number, work, begun))
            elif kind == "entered":
                self._gate.answered(rest[0], None)
            elif kind == "refused":
                self._gate.answered(rest[0], rest[1])
            else:
                self._spent = rest[0]

    async def listen(self) -> list[bytes]:
        """What there is to say, as soon as there is something."""
        await self._is_filled.wait()
        self._is_filled.clear()
        said, self._outbox = self._outbox, []
        return said

    async def close(self) -> None:
        """Cancels what is in flight, and returns when it has ended and its task files say so."""
        self._is_closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._worker is not None:
            await self._worker.evaluator.aclose()
        if self._own is not None:
            self._own.remove()

    async def _perform(self, number: int, work: Work, begun: Mapping[str, int]) -> None:
        assert self._worker is not None
        self._unrecorded.update(begun)
        try:
            done = await self._worker.perform(work)
            self._send(self._said(number, done))
        except BaseException as error:
            if self._is_closing:
                raise
            # Whoever waits for this sample hears of it, whatever ended it.
            self._send(("raised", number, portable(error)))
        finally:
            for label in begun:
                self._unrecorded.pop(label, None)
            self._tasks.pop(number, None)

    def _said(self, number: int, done: Done) -> tuple[Any, ...]:
        assert self._worker is not None
        files = [] if self._own is None else self._own.files_of(self._worker.evaluator.services.store, done.work)
        message = ("done", number, done.result, done.pending, files)
        try:
            pickle.dumps(message)
        except Exception as error:
            raise UsageError(f"sample {done.work.sample.id!r}: its result cannot be sent: {error}") from error
        return message

    def _send(self, message: tuple[Any, ...]) -> None:
        self._outbox.append(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        self._is_filled.set()


def portable(error: BaseException) -> EvaluatorError:
    """`error`, where it is one of ours and can be sent; else one that says the same."""
    if not isinstance(error, EvaluatorError):
        return ConfigurationError(words(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return EvaluatorError(str(error))
    return error
