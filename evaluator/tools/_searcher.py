"""Searches texts for a regular expression: a program, so that its parent can kill it.

Started by `searching` as `python -I -S _searcher.py`, so it imports only the standard library. Messages on standard
input and output are a length of 4 bytes and a marshalled value: first the pattern, answered with None or an error; then
texts, each with the number of matches still wanted, answered with a list of line numbers and lines. It opens no file.
"""

from __future__ import annotations

import marshal
import os
import re
import sys
import warnings
from typing import Any

_MEMORY_BYTES = 1 << 30
_LINE_CHARS = 300


def main() -> None:
    warnings.simplefilter("ignore")
    _restrict(int(sys.argv[1]))
    try:
        expression = re.compile(_receive())
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        _send(str(error) or type(error).__name__)
        return
    _send(None)
    while True:
        text, wanted = _receive()
        _send(_search(expression, text, wanted))


def _search(expression: re.Pattern[str], text: str, wanted: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        match = expression.search(line.removesuffix("\r"))
        if match is None:
            continue
        found.append((number, _shown(line, match.start())))
        if len(found) == wanted:
            break
    return found


def _shown(line: str, start: int) -> str:
    """The line, or the part with the match if the line is long."""
    line = line.removesuffix("\r")
    if len(line) <= _LINE_CHARS:
        return line
    begin = max(0, min(start - 50, len(line) - _LINE_CHARS))
    end = begin + _LINE_CHARS
    return f"{'…' if begin else ''}{line[begin:end]}{'…' if end < len(line) else ''}"


def _restrict(seconds: int) -> None:
    """Limits time and memory: this process ends by itself if its parent is killed."""
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def _receive() -> Any:
    size = int.from_bytes(_read_exactly(4), "big")
    return marshal.loads(_read_exactly(size))


def _read_exactly(size: int) -> bytes:
    pieces: list[bytes] = []
    while size and (piece := os.read(0, min(size, 1 << 20))):
        pieces.append(piece)
        size -= len(piece)
    if size:
        os._exit(0)  # the parent is gone
    return b"".join(pieces)


def _send(value: Any) -> None:
    data = marshal.dumps(value)
    rest = memoryview(len(data).to_bytes(4, "big") + data)
    while rest:
        rest = rest[os.write(1, rest) :]


if __name__ == "__main__":
    main()
