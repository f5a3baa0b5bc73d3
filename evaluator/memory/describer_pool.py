"""A pool of processes that describe files for the indexing process: paths in, answers out."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

from evaluator.errors import ContextError
from evaluator.memory.describer_process import READY
from evaluator.processes import starting
from evaluator.processes.concurrency import run_together
from evaluator.processes.supervisor import scrubbed_environment

FILE_TIMEOUT_S = 10.0
"""How long one file may take to be read and described."""
_CHUNK = 32
_LINE_BYTES = 4_000_000
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from evaluator.memory.describer_process import main; main(sys.argv[2], int(sys.argv[3]))"
)


class DescriberPool:
    """Up to `processes` processes, started when they are needed and killed by `close`.

    A file whose process dies or takes more than `FILE_TIMEOUT_S` is answered as skipped; a new
    process describes the other files.
    """

    def __init__(self, root: str, max_bytes: int, *, processes: int | None = None) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._count = processes or min(4, os.cpu_count() or 1)
        self._idle: list[Process] = []
        self._running: set[Process] = set()

    async def describe(self, files: Sequence[tuple[str, str | None]]) -> list[dict[str, Any]]:
        """Returns one answer for each path and known hash, in order; see `describer_process` for
        what it holds.
        """
        answers: list[dict[str, Any]] = [{} for _ in files]
        chunks = iter(range(0, len(files), _CHUNK))

        async def work() -> None:
            for first in chunks:
                chunk = files[first : first + _CHUNK]
                done = 0
                while done < len(chunk):
                    if self._idle:
                        process = self._idle.pop()
                    else:
                        process = await self._start()
                    async for answer in self._answers(process, chunk[done:]):
                        answers[first + done] = answer
                        done += 1

        await run_together(*(work() for _ in range(self._count)))
        return answers

    async def _answers(
        self, process: Process, files: Sequence[tuple[str, str | None]]
    ) -> AsyncGenerator[dict[str, Any]]:
        """Yields the answers for all files, or for those up to the one that ended the process."""
        cast(StreamWriter, process.stdin).write(
            "".join(json.dumps(file) + "\n" for file in files).encode()
        )
        for _ in files:
            try:
                line = await asyncio.wait_for(
                    cast(StreamReader, process.stdout).readline(), FILE_TIMEOUT_S
                )
                reason = "its describer crashed"
            except TimeoutError:
                line = b""
                reason = f"took more than {FILE_TIMEOUT_S:g} s to describe"
            if not line.endswith(b"\n"):
                await self._end(process)
                yield {"skipped": reason}
                return
            yield json.loads(line)
        self._idle.append(process)

    async def _start(self) -> Process:
        process = await starting.create_subprocess(
            sys.executable,
            "-I",
            "-X",
            "utf8",
            "-c",
            _PROGRAM,
            json.dumps(sys.path),
            self._root,
            str(self._max_bytes),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=scrubbed_environment(),
            limit=_LINE_BYTES,
        )
        self._running.add(process)
        if await cast(StreamReader, process.stdout).readline() != READY:
            output = await cast(StreamReader, process.stderr).read(2_000)
            await self._end(process)
            reason = output.decode("utf-8", "replace").strip() or "it writes no error"
            raise ContextError(f"the process that describes files does not start: {reason}")
        return process

    async def _end(self, process: Process) -> None:
        self._running.discard(process)
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def close(self) -> None:
        """Kills the processes that still run and waits for them."""
        for process in list(self._running):
            await self._end(process)
