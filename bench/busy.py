"""A scorer that keeps a CPU busy, for measurements of engines."""

from __future__ import annotations

import time
from typing import Any

from evaluator.batch.scorers import scorer


def rounds_for(ms: float) -> int:
    """How many rounds of hashing take about `ms` of CPU time here."""
    from hashlib import sha256

    data, tried, started = b"", 500_000, time.process_time()
    for _ in range(tried):
        data = sha256(data).digest()
    return max(1, int(tried * ms / 1000 / (time.process_time() - started)))


def busy_for(rounds: int) -> Any:
    """A scorer that computes so many rounds of hashing."""

    @scorer(name="busy")
    def busy(output: str) -> bool:
        from hashlib import sha256

        data = output.encode()
        for _ in range(rounds):
            data = sha256(data).digest()
        return bool(data)

    return busy
