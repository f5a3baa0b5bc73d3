"""Searches the files below a task's roots for a regular expression, within a time limit that holds
for every pattern.

The pattern comes from a model and may take forever to match. Therefore the library `regex` searches
for it, which stops at the time limit, bounds its memory and lets other threads run meanwhile.
Matches found before are returned.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import field
from itertools import chain, islice
from typing import Any

from evaluator import clock
from evaluator.errors import ToolError
from evaluator.errors.messages import amount, visible
from evaluator.files.open_below import decode
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.patterns import BadPattern, compile_as_re
from evaluator.processes.concurrency import in_thread
from evaluator.tools.file_access import FileAccess

MAX_SEARCH_S = 10.0
MAX_MATCHES = 2_000
_LINE_CHARS = 300


@frozen
class FileMatch:
    """A line that matches. `line` counts from 1; `text` is at most about 300 characters around the
    match.
    """

    path: str
    line: int
    text: str


@dataclass(slots=True)
class SearchResult:
    """Matches in the order of the files, and counts of the files.

    `binary` and `refused` count skipped files: not text; hard-linked, unreadable or too large.
    `stopped_in` is the file at which the time ran out; `full`: there may be more matches than were
    asked for.
    """

    matches: list[FileMatch] = field(default_factory=list[FileMatch])
    searched: int = 0
    binary: int = 0
    refused: int = 0
    stopped_in: str | None = None
    full: bool = False

    def __str__(self) -> str:
        lines = [f"{_one_line(m.path)}:{m.line}:{_one_line(m.text)}" for m in self.matches] or [
            "no match"
        ]
        counts = [f"{_files(self.searched)} searched"]
        if self.binary:
            counts += [f"{_files(self.binary, 'binary ')} skipped"]
        if self.refused:
            counts += [f"{_files(self.refused)} skipped that may not be read"]
        notes = [", ".join(counts)]
        if self.full:
            found = f"{amount(len(self.matches), 'match')}"
            if len(self.matches) == 1:
                found = "1 match"
            notes.append(f"stopped at {found}; there may be more, narrow the search")
        if self.stopped_in is not None:
            notes.append(
                f"the time ran out in {_one_line(self.stopped_in)}; simplify the pattern or "
                "narrow the search"
            )
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
    """The lines that match the regular expression `pattern` (Python syntax), in `path` or in the
    files below it.

    `glob` selects files as `FileAccess.find` does; names that begin with a dot are skipped unless
    it names them. Each line is searched separately. Ends after `max_matches` (1 to 2,000) matches
    or `timeout_s` seconds (at most 10).

    Raises: ToolError, for an invalid pattern and for a path that may not be searched.
    """
    if not 1 <= max_matches <= MAX_MATCHES:
        raise ToolError(f"max_matches is {max_matches}; it has to be from 1 to {MAX_MATCHES:,}")
    if not timeout_s > 0:
        raise ToolError("there is no time left to search")
    deadline = clock.monotonic() + min(timeout_s, MAX_SEARCH_S)
    cancelled = threading.Event()
    try:
        return await in_thread(
            lambda: _search(
                access,
                pattern,
                path=path,
                glob=glob,
                max_matches=max_matches,
                deadline=deadline,
                cancelled=cancelled,
            )
        )
    finally:
        cancelled.set()  # the thread ends at its next file, or at the time limit


def _search(
    access: FileAccess,
    pattern: str,
    path: str,
    glob: str | None,
    max_matches: int,
    deadline: float,
    cancelled: threading.Event,
) -> SearchResult:
    result = SearchResult()
    with closing(access.find(path, glob or "**")) as paths:
        first = next(paths, None)  # refuses a path that may not be searched
        try:
            expression = compile_as_re(pattern)
        except BadPattern as error:
            raise ToolError(str(error)) from error
        for current in () if first is None else chain([first], paths):
            if cancelled.is_set() or clock.monotonic() >= deadline:
                result.stopped_in = current
                break
            text = _text(access, current, result=result)
            if text is None:
                continue
            result.searched += 1
            try:
                for line, shown in islice(
                    _matches(expression, text, deadline=deadline), max_matches - len(result.matches)
                ):
                    result.matches.append(FileMatch(current, line, text=shown))
            except TimeoutError:
                result.stopped_in = current
                break
            except MemoryError as error:
                raise ToolError(
                    f"the pattern needs too much memory in {current!r}; simplify it"
                ) from error
            if len(result.matches) == max_matches:
                result.full = True
                break
    return result


def _matches(expression: Any, text: str, deadline: float) -> Iterator[tuple[int, str]]:
    """The number and the text of each line that matches. Raises: TimeoutError, at the deadline;
    MemoryError.
    """
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        match = expression.search(line, timeout=max(0.0, deadline - clock.monotonic()))
        if match is not None:
            yield number, _part(line, match.start())


def _part(line: str, start: int) -> str:
    """The line, or the part with the match if the line is long."""
    if len(line) <= _LINE_CHARS:
        return line
    begin = max(0, min(start - 50, len(line) - _LINE_CHARS))
    end = begin + _LINE_CHARS
    return f"{'…' if begin else ''}{line[begin:end]}{'…' if end < len(line) else ''}"


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


def _one_line(text: str) -> str:
    return visible(text).replace("\n", "\\n")


def _files(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}{'file' if count == 1 else 'files'}"
