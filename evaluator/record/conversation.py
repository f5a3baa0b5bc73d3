"""The conversations of a recording, put together as the model saw and said them.

A model step records what is new since the turn before, and a tool's answer by reference only:
`{"role": "tool", "tool_call_id": "x", "content_of": "turn[1]/tool[2]"}` stands for the output of that step of
the session. Here each turn gets its messages whole. Of several attempts at a turn the last successful one
counts, else the last; an attempt with another fingerprint than the one before it (a run that was resumed with
changes) starts the conversation anew at its turn. Nothing that a task file can hold makes this raise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from evaluator.record.steps import Recording, Step, plain_json

_TURN = re.compile(r"(?:(.*)/)?turn\[([0-9]{1,9})\]", re.S)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn, by the attempt that counts. `sent` is what was new to the model, `said` its answer as a message,
    with its `reasoning` where it gave any; None where no attempt was answered."""

    step: Step
    sent: tuple[Mapping[str, Any], ...]
    said: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """One session with a model. `path` is the session's: what stands before `turn[n]`, empty for a task of one."""

    path: str
    turns: tuple[Turn, ...]

    @property
    def model(self) -> str:
        """The model that the last turn went to."""
        step = self.turns[-1].step
        model = _mapping(step.start.args).get("model")
        return model if isinstance(model, str) else step.start.name

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the turns were sent with, said at the first: temperature, names of tools, …"""
        said = (_mapping(turn.step.start.args).get("settings") for turn in reversed(self.turns))
        return _mapping(next((settings for settings in said if settings is not None), None))

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """All messages in the order in which the model saw and said them."""
        return [
            message
            for turn in self.turns
            for message in (turn.sent if turn.said is None else (*turn.sent, turn.said))
        ]  # fmt: skip

    @property
    def unanswered(self) -> Step | None:
        """The last attempt at the last turn, if it has no answer: failed, aborted or in flight. Its output is
        what was heard of an answer."""
        return None if self.turns[-1].said is not None else self.turns[-1].step

    def to_dict(self) -> dict[str, Any]:
        step = self.unanswered
        partial = None if step is None or step.end is None else step.end.output
        return {
            "path": self.path,
            "model": self.model,
            "settings": dict(self.settings),
            "messages": [dict(message) for message in self.messages],
            "unanswered": None if step is None else {
                "path": step.start.path,
                "status": step.status,
                "error": None if step.end is None else step.end.error,
                "partial": partial,
            },
        }  # fmt: skip


def conversations(recording: Recording) -> list[Conversation]:
    """The conversations in the order in which they began; none where no model was called."""
    sessions: dict[str, dict[int, list[Step]]] = {}
    for step in recording.steps:
        if step.start.kind != "model":
            continue
        session, number = _place(step.start.path)
        turns = sessions.setdefault(session, {})
        attempts = turns.get(number)
        if attempts is None or step.start.fingerprint != attempts[-1].start.fingerprint:
            # What followed the turn as it was before is no part of the conversation that is begun here.
            for later in [n for n in turns if n >= number]:
                del turns[later]
            attempts = turns[number] = []
        attempts.append(step)
    answers = answered_steps(recording.steps)
    return [
        Conversation(session, tuple(_turn(turns[number], answers) for number in sorted(turns)))
        for session, turns in sessions.items()
    ]


def answered_steps(steps: Iterable[Step]) -> dict[str, Step]:
    """By path, the last attempt that succeeded or failed: whose output is what a message may refer to."""
    return {step.start.path: step for step in steps if step.status in ("success", "failed")}


def messages_of(step: Step, answers: Mapping[str, Step]) -> tuple[Mapping[str, Any], ...]:
    """The messages that a model step added to its conversation, each with its content.

    `answers` are `answered_steps`. A message that refers to a step which is not among them stays as it is
    recorded: with `content_of` and without `content`.
    """
    messages = _mapping(step.start.args).get("messages")
    if not isinstance(messages, list):
        return ()
    session, _ = _place(step.start.path)
    known = (message for message in cast("list[Any]", messages) if isinstance(message, Mapping))
    return tuple(_whole(message, session, answers) for message in known)


def _whole(message: Mapping[str, Any], session: str, answers: Mapping[str, Step]) -> Mapping[str, Any]:
    reference = message.get("content_of")
    if not isinstance(reference, str):
        return message
    answer = answers.get(f"{session}/{reference}" if session else reference)
    if answer is None or answer.end is None:
        return message
    # In the order of a message that was recorded with its content.
    rest = {key: value for key, value in message.items() if key not in ("role", "content", "content_of")}
    return {"role": message.get("role", "tool"), "content": _text(answer.end.output), **rest}


def _turn(attempts: list[Step], answers: Mapping[str, Step]) -> Turn:
    step = next((step for step in reversed(attempts) if step.status == "success"), attempts[-1])
    return Turn(step, messages_of(step, answers), _said(step))


def _said(step: Step) -> Mapping[str, Any] | None:
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
    return (path, 1) if match is None else (match[1] or "", int(match[2]))


def json_text(value: Any) -> str:
    """A JSON value in one line; where it is nested deeper than can be followed, that it is."""
    try:
        return json.dumps(value, ensure_ascii=False, default=plain_json)
    except RecursionError:
        return "[nested too deeply to show]"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json_text(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
