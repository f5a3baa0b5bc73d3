"""Work that ends by itself in one process, for races between an end and a kill."""

from __future__ import annotations

import asyncio

from evaluator.background import End, Work
from evaluator.jobs.output import Output


class Instant(Work):
    """Ends by itself after some turns of the loop, unless it is killed before."""

    type = "b"

    def __init__(self, turns: int) -> None:
        self.turns, self.is_killed = turns, False

    async def run(self, output: Output) -> End:
        while self.turns and not self.is_killed:
            self.turns -= 1
            await asyncio.sleep(0)
        return End("killed" if self.is_killed else "completed", 0)

    def kill(self, reason: str = "") -> None:
        self.is_killed = True
