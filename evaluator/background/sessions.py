"""Type `t`: an interactive session, which answers the messages that are sent to it, one after the
other.

It is active while it answers, and idle otherwise. The output file is a transcript as that of other
evaluations, with a line for each query that failed. A session ends when it is told to (completed),
or is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from evaluator.background.evaluations import EvaluationWork
from evaluator.background.output import Output
from evaluator.background.tasks import End
from evaluator.errors.results import Outcome, TaskResult
from evaluator.handler.conversation import OnMessage
from evaluator.interpreter.chat import ChatReply
from evaluator.interpreter.frame import OnBegin
from evaluator.record.redact import Redactor

Converse = Callable[
    [Callable[[], Awaitable[str | None]], Callable[[ChatReply], None], OnMessage, OnBegin],
    Awaitable[Outcome],
]


class SessionWork(EvaluationWork):
    """A session: `converse` gets the functions that give the next query and take a reply, as those
    of `Evaluator.chat`, and the callbacks for messages and for the id of the task file.
    """

    priority = "next"

    def __init__(self, converse: Converse, redactor: Redactor) -> None:
        super().__init__(
            "t",
            lambda on_message, on_begin: converse(self._ask, self._show, on_message, on_begin),
            redactor,
        )
        self._inbox: asyncio.Queue[str | None] = asyncio.Queue()
        self._output: Output | None = None
        self.activity = "active"

    def receive(self, message: str | None) -> None:
        self.activity = "active"
        self._inbox.put_nowait(message)

    async def run(self, output: Output) -> End:
        self._output = output
        return await super().run(output)

    async def _ask(self) -> str | None:
        self.activity = "idle" if self._inbox.empty() else "active"
        query = await self._inbox.get()
        self.activity = "active"
        return query

    def _show(self, reply: ChatReply) -> None:
        outcome = reply.outcome
        if isinstance(outcome, TaskResult):
            self._event = (
                f"it has answered and waits for the next message\n{self.shortened(outcome.content)}"
            )
            return
        self._event = f"it has not answered: {self.shortened(outcome.message)}"
        if self._output is not None:
            self._output.write_record({"type": "failure", **outcome.to_dict()}, self._redactor)
