"""The process that reads and describes files: paths in, descriptions out, one line of JSON each.

Apart from the indexing process because a parser can be made to crash, to run long or to take memory: this
process may be killed at any time, and then one file is left out. It has no credentials in its environment,
reads through the Handler's file access only, and sends back what a description holds, never a text.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from typing import Any

from evaluator.errors import ToolError
from evaluator.handler.tools.files import FileAccess
from evaluator.memory.describe import describe
from evaluator.memory.terms import terms_of

READY = b"ready\n"
_MEMORY_BYTES = 2_000_000_000


def main(root: str, max_bytes: int) -> None:
    """Answers `[path, known hash or null]` lines from standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the indexing process decides
    _bound_memory()
    files = FileAccess([root])
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody reads it from here on
    for line in sys.stdin.buffer:
        path, known = json.loads(line)
        answer = json.dumps(_answer(files, path, known, max_bytes))
        sys.stdout.buffer.write(answer.encode() + b"\n")
        sys.stdout.buffer.flush()


def _answer(files: FileAccess, path: str, known: str | None, max_bytes: int) -> dict[str, Any]:
    """What is known of a file now: its hash and description, the hash alone if it is `known`, or why it was skipped."""
    try:
        digest = hashlib.blake2b(files.read_bytes(path, max_bytes=max_bytes), digest_size=16).hexdigest()
        if digest == known:
            return {"hash": digest}
        found = describe(path, files.read_text(path, max_bytes=max_bytes).text)
    except ToolError as error:
        return {"skipped": _reason(path, str(error))}
    except MemoryError:
        return {"skipped": "needs too much memory"}
    return {
        "hash": digest,
        "language": found.language,
        "summary": found.summary,
        "headings": found.headings,
        "names": found.names,
        "terms": terms_of(path, found),
    }


def _reason(path: str, message: str) -> str:
    """The error without the path, so that equal reasons are equal."""
    message = message.removeprefix(f"{path!r} ")
    return "is a binary file" if message.startswith("is a binary file") else message.split(":")[0]


def _bound_memory() -> None:
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        bound = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(_MEMORY_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (bound, hard))
    except (ImportError, ValueError, OSError):
        pass  # macOS refuses; the deadline of each file remains
