"""Searches the files beneath a task's roots for a regular expression, within a time that no pattern can exceed.

The pattern comes from a model and may take for ever to match. So it runs in a process of its own, which is handed
texts and opens no file, and which is killed when the time is over; what was found until then is kept. Reading stays
with `FileAccess` and its rules.
"""

from __future__ import annotations

import marshal
import math
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from types import TracebackType
from typing import Any, cast

from evaluator.errors import ToolError
from evaluator.handler.tools import _searcher
from evaluator.handler.tools.ask import visible
from evaluator.handler.tools.files import FileAccess
from evaluator.handler.tools.script import scrubbed_environment
from evaluator.handler.tools.texts import decode
from evaluator.handler.tools.threads import in_thread

MAX_SEARCH_S = 10.0
MAX_MATCHES = 2_000


@dataclass(frozen=True, slots=True)
class Match:
    """A line that matches. `line` counts from 1; `text` is at most about 300 characters around the match."""

    path: str
    line: int
    text: str


@dataclass(slots=True)
class SearchResult:
    """Matches in the order of the files, and what was looked at.

    `binary` and `refused` count files that were passed over: no text; a link's, a hard-linked, an unreadable or too
    large one. `stopped_in` is the file at which the time ran out; `full`: there may be more matches than were wanted.
    """

    matches: list[Match] = field(default_factory=list[Match])
    searched: int = 0
    binary: int = 0
    refused: int = 0
    stopped_in: str | None = None
    full: bool = False

    def __str__(self) -> str:
        lines = [f"{_one_line(m.path)}:{m.line}:{_one_line(m.text)}" for m in self.matches] or ["no match"]
        counts = [f"{_files(self.searched)} searched"]
        counts += [f"{_files(self.binary, 'binary ')} passed over"] if self.binary else []
        counts += [f"{_files(self.refused)} passed over that may not be read"] if self.refused else []
        notes = [", ".join(counts)]
        if self.full:
            found = "1 match" if len(self.matches) == 1 else f"{len(self.matches)} matches"
            notes.append(f"stopped at {found}; there may be more, narrow the search")
        if self.stopped_in is not None:
            notes.append(f"the time ran out in {_one_line(self.stopped_in)}; simplify the pattern or narrow the search")
        return "\n".join([*lines, f"[{'; '.join(notes)}]"])


async def search_files(
    access: FileAccess,
    pattern: str,
    path: str = ".",
    glob: str | None = None,
    *,
    max_matches: int = 200,
    timeout_s: float = MAX_SEARCH_S,
) -> SearchResult:
    """The lines that the regular expression `pattern` (Python's) matches, in `path` or in the files below it.

    `glob` chooses among these as `FileAccess.find` does; names that begin with a dot are passed over unless it names
    them. Each line is searched by itself. At most `max_matches` (1 to 2,000) matches and `timeout_s` seconds.

    Raises: ToolError, for a pattern that is no regular expression, and for a path that may not be searched.
    """
    if not 1 <= max_matches <= MAX_MATCHES:
        raise ToolError(f"max_matches is {max_matches}; it is from 1 to {MAX_MATCHES:,}")
    if not timeout_s > 0:
        raise ToolError("there is no time left to search")
    search = _Process(timeout_s)
    try:
        return await in_thread(lambda: _search(search, access, pattern, path, glob, max_matches))
    finally:
        search.kill()  # also where this task was cancelled and the thread still waits for an answer


def _search(
    process: _Process, access: FileAccess, pattern: str, path: str, glob: str | None, max_matches: int
) -> SearchResult:
    result = SearchResult()
    current = path
    with closing(access.find(path, glob or "**")) as paths:
        first = next(paths, None)  # a path that may not be searched is refused before a process is started
        with process:
            try:
                wrong = process.ask(pattern)
                if wrong is not None:
                    raise ToolError(f"pattern is no regular expression: {wrong}")
                for current in () if first is None else chain([first], paths):
                    text = _text(access, current, result)
                    if text is None:
                        process.check_time()
                        continue
                    result.searched += 1
                    wanted = max_matches - len(result.matches)
                    found = cast("list[tuple[int, str]]", process.ask((text, wanted)))
                    result.matches += [Match(current, line, shown) for line, shown in found]
                    if len(result.matches) == max_matches:
                        result.full = True
                        break
            except _Stopped as stopped:
                if not process.expired:
                    raise ToolError("the search's process died; simplify the pattern") from stopped
                result.stopped_in = current
    return result


def _text(access: FileAccess, path: str, result: SearchResult) -> str | None:
    try:
        data = access.read_bytes(path)
    except ToolError:
        result.refused += 1
        return None
    try:
        return decode(data, path)[0]
    except ToolError:
        result.binary += 1
        return None


class _Stopped(Exception):
    """The process is gone: killed at its deadline, or dead by itself."""


class _Process:
    """The process that matches. `expired` once its time was over; `kill` may be called from any thread."""

    def __init__(self, timeout_s: float) -> None:
        self.expired = False
        self._timeout_s = min(timeout_s, MAX_SEARCH_S)
        self._timer = threading.Timer(self._timeout_s, self._expire)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._killed = False
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._killed:
                return
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", _searcher.__file__, str(math.ceil(self._timeout_s) + 1)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=scrubbed_environment(),
                    start_new_session=True,
                )
            except OSError as error:
                raise ToolError(f"no process can be started: {error.strerror or error}") from error
        self._timer.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._timer.cancel()
        self.kill()
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                try:
                    pipe.close()
                except OSError:
                    pass  # a question that was never read
            self._process.wait()

    def _expire(self) -> None:
        self.expired = True
        self.kill()

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    def check_time(self) -> None:
        if self._killed:
            raise _Stopped

    def ask(self, value: Any) -> Any:
        """Sends a value and waits for the answer. Raises _Stopped where none comes."""
        self.check_time()
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        data = marshal.dumps(value)
        try:
            self._process.stdin.write(len(data).to_bytes(4, "big") + data)
            self._process.stdin.flush()
        except OSError as error:
            raise _Stopped from error
        size = int.from_bytes(self._read(4), "big")
        return marshal.loads(self._read(size))

    def _read(self, size: int) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise _Stopped
        return data


def _one_line(text: str) -> str:
    return visible(text).replace("\n", "\\n")


def _files(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}{'file' if count == 1 else 'files'}"
