"""Many deadlines with one timer."""

from __future__ import annotations

import asyncio
from typing import Any

from evaluator.alarms import Alarms


class Bell:
    def __init__(
        self,
        rung: list[str],
        name: str,
        error: Exception | None = None,
        last: asyncio.Future[None] | None = None,
    ) -> None:
        self.last = last
        self.rung = rung
        self.name = name
        self.error = error

    def ring(self) -> None:
        self.rung.append(self.name)
        if self.last is not None:
            self.last.set_result(None)
        if self.error is not None:
            raise self.error


def test_an_error_of_one_alarm_does_not_silence_the_others() -> None:
    async def main() -> tuple[list[str], list[Any]]:
        loop = asyncio.get_running_loop()
        problems: list[Any] = []
        loop.set_exception_handler(lambda _, context: problems.append(context.get("exception")))
        rung: list[str] = []
        alarms = Alarms(loop)
        last: asyncio.Future[None] = loop.create_future()
        bells = [
            Bell(rung, "a"),
            Bell(rung, "b", error),
            Bell(rung, "c"),
            Bell(rung, "d", last=last),
        ]
        for bell in bells:
            alarms.set(bell, loop.time())
        async with asyncio.timeout(60):
            await last
        return rung, problems

    error = ValueError("no clapper")
    rung, problems = asyncio.run(main())
    assert rung == ["a", "b", "c", "d"] and problems == [error]
