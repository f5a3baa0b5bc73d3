"""Finds tool calls that a model repeats without result, so that it is told, and stopped after a bound."""

from __future__ import annotations

import json

from evaluator.errors import RepeatedCall
from evaluator.models.backend import ToolCall

TOLD_AFTER = 2
STOPPED_AFTER = 5
"""After this many equal answers to equal calls the model is told, and the task is stopped."""


class RepeatedCalls:
    """Counts calls with the same arguments and the same answer. A call that may have changed something, of another tool
    or with other arguments, starts the count again."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[str, int]] = {}

    def note(self, call: ToolCall) -> str:
        """What the answer of `call` tells the model about its repetition; empty if it has not repeated it.

        Raises: RepeatedCall, if the model has been told often enough.
        """
        count = self._seen.get(_key(call), ("", 0))[1]
        if count >= STOPPED_AFTER:
            raise RepeatedCall(
                f"the model called {call.name} {count + 1} times with the same arguments, and the answer was the same "
                f"{count} times: the task was stopped; give it a tool or an instruction that helps it further"
            )
        if count < TOLD_AFTER:
            return ""
        return (
            f"\n[You have made this call with the same arguments {count + 1} times, and the last {count} answers were "
            f"equal. Do something else, or finish: after {STOPPED_AFTER} equal answers the task is stopped.]"
        )

    def count(self, call: ToolCall, answer: str, *, has_effect: bool) -> None:
        key = _key(call)
        before, count = self._seen.get(key, ("", 0))
        if has_effect and count == 0:
            self._seen.clear()
        self._seen[key] = (answer, count + 1 if answer == before else 1)


def _key(call: ToolCall) -> tuple[str, str]:
    """Identifies a call by its tool and its arguments, whatever the order of their names."""
    try:
        return call.name, json.dumps(json.loads(call.arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return call.name, call.arguments
