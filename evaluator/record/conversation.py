"""The conversations in a recording, put together from its model steps.

A model step records what is new since the turn before, and a tool's answer by reference only:
`{"role": "tool", "tool_call_id": "x", "content_of": "turn[1]/tool[2]"}` means the output of that
step of the session. Here each turn gets its messages whole. Of several attempts at a turn the last
successful one counts, else the last; an attempt with another fingerprint than the one before it (a
run that was resumed with changes) restarts the conversation at its turn. No content of a task file
makes this raise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from evaluator.lazy_dataclass import frozen
from evaluator.output.strict import too_deep
from evaluator.record.steps import Recording, Step, plain_json

MAX_SHOWN_DEPTH = 500
"""Values that are nested more deeply are not shown. Python's own limit differs between versions."""
TOO_DEEP = "[nested too deeply to show]"

_TURN = re.compile(r"(?:(.*)/)?turn\[([0-9]{1,9})\]", re.S)


@frozen
class RecordedTurn:
    """One turn, by the attempt that counts. `sent` are the messages that were new to the model,
    `answer` is its answer as a message, with its `reasoning` if any; None where no attempt was
    answered.
    """

    step: Step
    sent: tuple[Mapping[str, Any], ...]
    answer: Mapping[str, Any] | None


@frozen
class RecordedConversation:
    """One session with a model. `path` is what precedes `turn[n]` in its steps; empty for a task
    with one session.
    """

    path: str
    turns: tuple[RecordedTurn, ...]

    @property
    def model(self) -> str:
        """The model of the last turn."""
        step = self.turns[-1].step
        model = _mapping(step.start.args).get("model")
        if isinstance(model, str):
            return model
        return step.start.name

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the turns, which the first records: temperature, names of tools, …"""
        recorded = (_mapping(turn.step.start.args).get("settings") for turn in reversed(self.turns))
        return _mapping(next((settings for settings in recorded if settings is not None), None))

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """All messages, in order."""
        return [
            message
            for turn in self.turns
            for message in (turn.sent if turn.answer is None else (*turn.sent, turn.answer))
        ]

    @property
    def unanswered(self) -> Step | None:
        """The last attempt at the last turn, if it failed, was aborted or is in flight. Its output
        is the partial answer.
        """
        if self.turns[-1].answer is not None:
            return None
        return self.turns[-1].step

    def to_dict(self) -> dict[str, Any]:
        step = self.unanswered
        if step is None or step.end is None:
            partial = None
        else:
            partial = step.end.output
        return {
            "path": self.path,
            "model": self.model,
            "settings": dict(self.settings),
            "messages": [dict(message) for message in self.messages],
            "unanswered": None
            if step is None
            else {
                "path": step.start.path,
                "status": step.status,
                "error": None if step.end is None else step.end.error,
                "partial": partial,
            },
        }


def conversations(recording: Recording) -> list[RecordedConversation]:
    """The conversations in the order in which they began; none where no model was called."""
    sessions: dict[str, dict[int, list[Step]]] = {}
    for step in recording.steps:
        if step.start.kind != "model":
            continue
        session, number = _place(step.start.path)
        turns = sessions.setdefault(session, {})
        attempts = turns.get(number)
        if attempts is None or step.start.fingerprint != attempts[-1].start.fingerprint:
            # Turns after the old version of this one do not belong to the restarted conversation.
            for later in [n for n in turns if n >= number]:
                del turns[later]
            attempts = turns[number] = []
        attempts.append(step)
    answers = answered_steps(recording.steps)
    return [
        RecordedConversation(
            session, tuple(_turn(turns[number], answers) for number in sorted(turns))
        )
        for session, turns in sessions.items()
    ]


def answered_steps(steps: Iterable[Step]) -> dict[str, Step]:
    """By path, the last attempt that succeeded, failed or was denied, whose output a message may
    refer to.
    """
    return {
        step.start.path: step
        for step in steps
        if step.status in ("success", "failed") or step.is_answer
    }


def messages_of(step: Step, answers: Mapping[str, Step]) -> tuple[Mapping[str, Any], ...]:
    """The messages that a model step added to its conversation, each with its content.

    `answers` are `answered_steps`. A message that refers to a step which is not among them stays as
    it is
    recorded: with `content_of` and without `content`.
    """
    messages = _mapping(step.start.args).get("messages")
    if not isinstance(messages, list):
        return ()
    session, _ = _place(step.start.path)
    known = (message for message in cast("list[Any]", messages) if isinstance(message, Mapping))
    return tuple(_whole(message, session, answers=answers) for message in known)


def _whole(
    message: Mapping[str, Any], session: str, answers: Mapping[str, Step]
) -> Mapping[str, Any]:
    reference = message.get("content_of")
    if not isinstance(reference, str):
        return message
    answer = answers.get(f"{session}/{reference}" if session else reference)
    if answer is None or answer.end is None:
        return message
    # In the order of a message that was recorded with its content.
    rest = {
        key: value for key, value in message.items() if key not in ("role", "content", "content_of")
    }
    return {"role": message.get("role", "tool"), "content": _text(answer.end.output), **rest}


def _turn(attempts: list[Step], answers: Mapping[str, Step]) -> RecordedTurn:
    step = next((step for step in reversed(attempts) if step.status == "success"), attempts[-1])
    return RecordedTurn(step, messages_of(step, answers), answer=_answer(step))


def _answer(step: Step) -> Mapping[str, Any] | None:
    if step.end is None or step.end.status != "success":
        return None
    output = step.end.output
    if not isinstance(output, Mapping):
        return {"role": "assistant", "content": _text(output)}
    answer = cast("Mapping[str, Any]", output)
    kept = {key: answer[key] for key in ("tool_calls", "reasoning") if answer.get(key)}
    return {"role": "assistant", "content": _text(answer.get("content")), **kept}


def _place(path: str) -> tuple[str, int]:
    """The session and the turn's number in it; a path of another form is a session of one turn."""
    match = _TURN.fullmatch(path)
    if match is None:
        return (path, 1)
    return (match[1] or "", int(match[2]))


def json_text(value: Any) -> str:
    """A JSON value in one line, or a note that it is nested too deeply."""
    if too_deep(value, MAX_SHOWN_DEPTH):
        return TOO_DEEP
    return json.dumps(value, ensure_ascii=False, default=plain_json)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json_text(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    return {}
