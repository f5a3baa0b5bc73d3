"""Searches the files below a task's roots for a regular expression, within a time limit that holds for every pattern.

The pattern comes from a model and may take forever to match. Therefore a separate process matches; it receives texts,
opens no file, and is killed at the time limit. Matches found before are returned. `FileAccess` reads the files.
"""

from __future__ import annotations

import marshal
import math
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import IO, Any, cast

from evaluator.errors import ToolError
from evaluator.errors.messages import visible
from evaluator.files.encoding import decode
from evaluator.processes.supervisor import scrubbed_environment
from evaluator.processes.threads import in_thread
from evaluator.tools import _searcher
from evaluator.tools.file_access import FileAccess

MAX_SEARCH_S = 10.0
MAX_MATCHES = 2_000


@dataclass(frozen=True, slots=True)
class FileMatch:
    """A line that matches. `line` counts from 1; `text` is at most about 300 characters around the match."""

    path: str
    line: int
    text: str


@dataclass(slots=True)
class SearchResult:
    """Matches in the order of the files, and counts of the files.

    `binary` and `refused` count skipped files: not text; hard-linked, unreadable or too large. `stopped_in` is the
    file at which the time ran out; `full`: there may be more matches than were asked for.
    """

    matches: list[FileMatch] = field(default_factory=list[FileMatch])
    searched: int = 0
    binary: int = 0
    refused: int = 0
    stopped_in: str | None = None
    full: bool = False

    def __str__(self) -> str:
        lines = [f"{_one_line(m.path)}:{m.line}:{_one_line(m.text)}" for m in self.matches] or ["no match"]
        counts = [f"{_files(self.searched)} searched"]
        counts += [f"{_files(self.binary, 'binary ')} skipped"] if self.binary else []
        counts += [f"{_files(self.refused)} skipped that may not be read"] if self.refused else []
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
    """The lines that match the regular expression `pattern` (Python syntax), in `path` or in the files below it.

    `glob` selects files as `FileAccess.find` does; names that begin with a dot are skipped unless it names them. Each
    line is searched separately. Ends after `max_matches` (1 to 2,000) matches or `timeout_s` seconds (at most 10).

    Raises: ToolError, for an invalid pattern and for a path that may not be searched.
    """
    if not 1 <= max_matches <= MAX_MATCHES:
        raise ToolError(f"max_matches is {max_matches}; it has to be from 1 to {MAX_MATCHES:,}")
    if not timeout_s > 0:
        raise ToolError("there is no time left to search")
    matcher = _Matcher(min(timeout_s, MAX_SEARCH_S))
    try:
        return await in_thread(lambda: _search(matcher, access, pattern, path, glob, max_matches))
    finally:
        matcher.kill()  # the thread of a cancelled search waits for an answer, which then fails


def _search(
    matcher: _Matcher, access: FileAccess, pattern: str, path: str, glob: str | None, max_matches: int
) -> SearchResult:
    result = SearchResult()
    current = path
    with closing(matcher), closing(access.find(path, glob or "**")) as paths:
        first = next(paths, None)  # refuses a path that may not be searched
        try:
            wrong = matcher.ask(pattern)
            if wrong is not None:
                raise ToolError(f"pattern is not a valid regular expression: {wrong}")
            for current in () if first is None else chain([first], paths):
                matcher.check_running()
                text = _text(access, current, result)
                if text is None:
                    continue
                result.searched += 1
                wanted = max_matches - len(result.matches)
                found = cast("list[tuple[int, str]]", matcher.ask((text, wanted)))
                result.matches += [FileMatch(current, line, shown) for line, shown in found]
                if len(result.matches) == max_matches:
                    result.full = True
                    break
        except _Stopped as stopped:
            if not matcher.is_expired:
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
    """The process that matches is gone: killed at its deadline, or it died by itself."""


class _Matcher:
    """The process that matches, killed after `timeout_s`. `kill` may be called from any thread."""

    def __init__(self, timeout_s: float) -> None:
        self._deadline = time.monotonic() + timeout_s
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _searcher.__file__, str(math.ceil(timeout_s) + 1)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=scrubbed_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise ToolError(f"no process can be started: {error.strerror or error}") from error
        self._stdin = cast("IO[bytes]", self._process.stdin)
        self._stdout = cast("IO[bytes]", self._process.stdout)
        self._timer = threading.Timer(timeout_s, self.kill)
        self._timer.daemon = True
        self._timer.start()

    @property
    def is_expired(self) -> bool:
        return time.monotonic() >= self._deadline

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._timer.cancel()
        self.kill()
        with suppress(OSError):  # a text that was not read
            self._stdin.close()
        self._stdout.close()
        self._process.wait()

    def check_running(self) -> None:
        """Raises: _Stopped."""
        if self._process.poll() is not None:
            raise _Stopped

    def ask(self, value: Any) -> Any:
        """Sends a value and waits for the answer. Raises: _Stopped, if there is none."""
        data = marshal.dumps(value)
        try:
            self._stdin.write(len(data).to_bytes(4, "big") + data)
            self._stdin.flush()
        except OSError as error:
            raise _Stopped from error
        return marshal.loads(self._read(int.from_bytes(self._read(4), "big")))

    def _read(self, size: int) -> bytes:
        data = self._stdout.read(size)
        if len(data) < size:
            raise _Stopped
        return data


def _one_line(text: str) -> str:
    return visible(text).replace("\n", "\\n")


def _files(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}{'file' if count == 1 else 'files'}"
