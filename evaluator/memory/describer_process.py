"""The process that reads and describes files: paths in, descriptions out, one line of JSON each.

It is separate from the indexing process because a file can make a parser crash, run long or take
memory: this process may be killed at any time, and then one file is left out. It has no credentials
in its environment, reads through the Handler's file access only, and sends back descriptions, never
the text of a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Any

from evaluator.errors import ToolError
from evaluator.memory.describe import describe
from evaluator.memory.store import stems_of
from evaluator.tools.file_access import FileAccess

READY = b"ready\n"
_MEMORY_BYTES = 2_000_000_000


def main(root: str, max_bytes: int) -> None:
    """Answers `[path, known hash or null]` lines from standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the indexing process handles Ctrl-C
    _limit_memory()
    files = FileAccess([root])
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the indexing process reads no errors from now on
    for line in sys.stdin.buffer:
        path, known = json.loads(line)
        answer = json.dumps(_answer(files, path, known=known, max_bytes=max_bytes))
        sys.stdout.buffer.write(answer.encode() + b"\n")
        sys.stdout.buffer.flush()


def _answer(files: FileAccess, path: str, known: str | None, max_bytes: int) -> dict[str, Any]:
    """Returns a file's hash and description, the hash alone if it is `known`, or the reason to skip
    the file.
    """
    try:
        digest = hashlib.blake2b(
            files.read_bytes(path, max_bytes=max_bytes), digest_size=16
        ).hexdigest()
        if digest == known:
            return {"hash": digest}
        found = describe(path, files.read_text(path, max_bytes=max_bytes).text)
    except ToolError as error:
        return {"skipped": _reason(path, str(error))}
    except MemoryError:
        return {"skipped": "needs too much memory"}
    return {"hash": digest, "stems": stems_of(path, found), **asdict(found)}


def _reason(path: str, message: str) -> str:
    """Returns the error without the path, so that equal reasons are equal."""
    message = message.removeprefix(f"{path!r} ")
    if message.startswith("is a binary file"):
        return "is a binary file"
    return message.split(":")[0]


def _limit_memory() -> None:
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY:
            limit = _MEMORY_BYTES
        else:
            limit = min(_MEMORY_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (ImportError, ValueError, OSError):
        pass  # macOS refuses; the deadline of each file remains
