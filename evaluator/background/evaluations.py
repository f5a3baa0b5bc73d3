"""Types `a` and `w`: a Handler of one atomic task, and a composite template, in this process.

The output file is a transcript in JSON lines: each message of each conversation as it is added,
then the outcome. The task file, which the last line names, has the whole record. A kill aborts the
evaluation, which closes its record as aborted and ends the scripts and subtasks that it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from evaluator.background.output import Output
from evaluator.background.tasks import End, Work
from evaluator.errors.results import Outcome, TaskError, TaskId
from evaluator.handler.conversation import OnMessage
from evaluator.interpreter.frame import OnBegin
from evaluator.nodes import Atomic, Node, TopLevel
from evaluator.record.redact import Redactor

_SUMMARY_CHARS = 500
Evaluate = Callable[[OnMessage, OnBegin], Awaitable[Outcome]]
EvaluationType = Literal["a", "w", "t"]


def type_of(node: Node | TopLevel) -> Literal["a", "w"]:
    """The type of the background task that evaluates `node`."""
    if isinstance(node, Atomic):
        return "a"
    return "w"


class EvaluationWork(Work):
    """Evaluates one task: `evaluate` gets the callbacks for messages and for the id of its task
    file, and returns the outcome.
    """

    def __init__(self, kind: EvaluationType, evaluate: Evaluate, redactor: Redactor) -> None:
        self.type = kind
        self._evaluate = evaluate
        self._redactor = redactor
        self._inputs: dict[str, int | None] = {}
        self._outputs: list[int | None] = []

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """Input tokens of the last request of each session, summed; output tokens of all turns.
        None: unknown.
        """
        return _sum(self._inputs.values()), _sum(self._outputs)

    async def run(self, output: Output) -> End:
        """Evaluates the task to its end."""
        if self._is_killed:
            return End("killed")

        def note(path: str, message: Mapping[str, Any]) -> None:
            usage = message.get("usage")
            if usage is not None:
                self._inputs[path] = usage["input_tokens"]
                self._outputs.append(usage["output_tokens"])
            output.write_record({"type": "message", "path": path, **message}, self._redactor)

        evaluation = self._running = asyncio.ensure_future(self._evaluate(note, self._begin))
        try:
            await asyncio.wait([evaluation])
        except asyncio.CancelledError:
            evaluation.cancel()
            raise
        if evaluation.cancelled():
            output.write_record({"type": "aborted"}, self._redactor)
            used, made = self.tokens
            return End("killed", task_file=self.task_file, input_tokens=used, output_tokens=made)
        outcome = evaluation.result()
        output.write_record({"type": "outcome", **outcome.to_dict()}, self._redactor)
        return self._end(outcome)

    def _begin(self, task_id: TaskId) -> None:
        self.task_file = f"TASK-{task_id}"
        if self.on_task_file is not None:
            self.on_task_file()

    def _end(self, outcome: Outcome) -> End:
        used, made = self.tokens
        if outcome.task_id is None:
            number = None
        else:
            number = f"TASK-{outcome.task_id}"
        if isinstance(outcome, TaskError):
            return End(
                "failed",
                None,
                signal=None,
                reason=self._redactor.redact(str(outcome)),
                summary="",
                task_file=number,
                input_tokens=used,
                output_tokens=made,
            )
        return End(
            "completed",
            None,
            signal=None,
            reason=None,
            summary=self.shortened(outcome.content),
            task_file=number,
            input_tokens=used,
            output_tokens=made,
        )

    def shortened(self, content: str) -> str:
        """The beginning of `content`, redacted."""
        content = self._redactor.redact(content)
        return content[:_SUMMARY_CHARS] + ("…" if len(content) > _SUMMARY_CHARS else "")


def _sum(counts: Any) -> int | None:
    found = list(counts)
    if not found or None in found:
        return None
    return sum(found)
