"""The process that reads and describes files: paths in, descriptions out, one line of JSON each.

It is separate from the indexing process because a file can make a parser crash, run long or take
memory: then this process ends, and one file is left out. It runs as a script: without credentials
in its environment and within a bound on its memory. It reads through the Handler's file access
only, and sends back descriptions, never the text of a file.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from dataclasses import asdict
from typing import Any, TypeAlias

from evaluator.errors import ToolError
from evaluator.memory.describe import describe
from evaluator.memory.store import stems_of
from evaluator.tools.file_access import FileAccess

READY = "ready"
Answer: TypeAlias = dict[str, Any]
"""A file's hash and description, the hash alone if it is the known one, or why it is skipped."""


def main(root: str, max_bytes: str, file_timeout_s: str) -> None:
    """Answers `[path, known hash or null]` lines from standard input until it ends. A file that
    takes longer than `file_timeout_s` ends the process with SIGALRM.
    """
    files = FileAccess([root])
    print(READY, flush=True)
    for line in sys.stdin:
        path, known = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, float(file_timeout_s))
        print(json.dumps(_answer(files, path, known=known, max_bytes=int(max_bytes))), flush=True)


def _answer(files: FileAccess, path: str, known: str | None, max_bytes: int) -> Answer:
    try:
        digest = hashlib.blake2b(
            files.read_bytes(path, max_bytes=max_bytes), digest_size=16
        ).hexdigest()
        if digest == known:
            return {"hash": digest}
        found = describe(path, files.read_text(path, max_bytes=max_bytes).text)
    except ToolError as error:
        # Without the path, so that equal reasons are equal.
        reason = str(error).removeprefix(f"{path!r} ")
        if reason.startswith("is a binary file"):
            return {"skipped": "is a binary file"}
        return {"skipped": reason.partition(":")[0]}
    except MemoryError:
        return {"skipped": "needs too much memory"}
    return {"hash": digest, "stems": stems_of(path, found), **asdict(found)}
