"""The processes that describe files, as the indexing process sees them: chunks of paths in, answers out."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.errors import ContextError
from evaluator.handler.tools.script import scrubbed_environment
from evaluator.memory._describer import READY

FILE_TIMEOUT_S = 10.0
"""How long one file may take to be read and described."""
_CHUNK = 32
_LINE_BYTES = 4_000_000
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from evaluator.memory._describer import main; main(sys.argv[2], int(sys.argv[3]))"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to be read again; `known_hash` spares describing it where it is the same."""

    path: str
    known_hash: str | None


class Describers:
    """Up to `processes` processes, started as they are needed, killed by `close`.

    A file whose process dies or takes more than `FILE_TIMEOUT_S` is answered as skipped; the rest goes on in
    a new process.
    """

    def __init__(self, root: str, max_bytes: int, *, processes: int | None = None) -> None:
        self._root, self._max_bytes = root, max_bytes
        self._count = processes or min(4, os.cpu_count() or 1)
        self._idle: list[Process] = []
        self._running: set[Process] = set()

    async def describe(self, wanted: Sequence[Wanted]) -> list[dict[str, Any]]:
        """One answer a file, in order; see `_describer` for what it holds."""
        answers: list[dict[str, Any]] = [{} for _ in wanted]
        chunks = deque(range(0, len(wanted), _CHUNK))

        async def work() -> None:
            while chunks:
                first = chunks.popleft()
                await self._chunk(wanted[first : first + _CHUNK], answers, first)

        await together(*(work() for _ in range(min(self._count, len(chunks)))))
        return answers

    async def _chunk(self, wanted: Sequence[Wanted], answers: list[dict[str, Any]], first: int) -> None:
        done = 0
        while done < len(wanted):
            process = self._idle.pop() if self._idle else await self._start()
            done += await self._ask(process, wanted[done:], answers, first + done)

    async def _ask(self, process: Process, wanted: Sequence[Wanted], answers: list[dict[str, Any]], first: int) -> int:
        """How many of `wanted` were answered: all, or those up to the one that ended the process."""
        assert process.stdin is not None and process.stdout is not None
        lines = "".join(json.dumps([each.path, each.known_hash]) + "\n" for each in wanted)
        process.stdin.write(lines.encode())
        for at in range(len(wanted)):
            try:
                line = await asyncio.wait_for(process.stdout.readline(), FILE_TIMEOUT_S)
                reason = "" if line.endswith(b"\n") else "its describer crashed"
            except TimeoutError:
                line, reason = b"", f"took more than {FILE_TIMEOUT_S:g} s to describe"
            if reason:
                await self._end(process)
                answers[first + at] = {"skipped": reason}
                return at + 1
            answers[first + at] = json.loads(line)
        self._idle.append(process)
        return len(wanted)

    async def _start(self) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-X", "utf8", "-c", _PROGRAM, json.dumps(sys.path), self._root, str(self._max_bytes),
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env=scrubbed_environment(), limit=_LINE_BYTES,
        )  # fmt: skip
        self._running.add(process)
        assert process.stdout is not None and process.stderr is not None
        if await process.stdout.readline() != READY:
            said = (await process.stderr.read(2_000)).decode("utf-8", "replace").strip()
            await self._end(process)
            raise ContextError(f"the process that describes files does not start: {said or 'it says nothing'}")
        return process

    async def _end(self, process: Process) -> None:
        self._running.discard(process)
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def close(self) -> None:
        """Kills the processes that are left and waits for them."""
        for process in list(self._running):
            await self._end(process)


async def together(*parts: Coroutine[Any, Any, Any]) -> list[Any]:
    """The results of all. The first error ends the others, and is raised when they have ended."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
