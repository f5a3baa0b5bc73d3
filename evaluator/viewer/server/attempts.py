"""What changed between attempts of one conversation: repeated calls, corrected answers, iterations
of a loop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from evaluator.record.conversation import RecordedConversation, answered_steps, messages_of
from evaluator.record.steps import Recording, Step
from evaluator.viewer.differences import MarkedPart, marked
from evaluator.viewer.server.rendering import mapping, pretty

MAX_CHANGES = 50
MAX_CHARS = 20_000
_ITERATION = re.compile(r"(.*\biterations\[)([0-9]{1,6})(\]/.*)", re.S)


@dataclass(frozen=True, slots=True)
class Change:
    """Two texts of a conversation with their differences marked; `title` says which they are."""

    title: str
    before: Sequence[MarkedPart]
    after: Sequence[MarkedPart]


def changes(
    recording: Recording, conversations: Sequence[RecordedConversation]
) -> dict[str, list[Change]]:
    """The changes by the path of the conversation that has the later text."""
    by_path = {each.path: each for each in conversations}
    attempts: dict[str, list[Step]] = {}
    for step in recording.steps:
        if step.start.kind == "model":
            attempts.setdefault(step.start.path, []).append(step)
    answers = answered_steps(recording.steps)
    found: dict[str, list[Change]] = {}
    left = MAX_CHANGES
    for each in conversations:
        its = [
            *_repeated(each, attempts, answers=answers),
            *_corrected(each),
            *_iterated(each, by_path),
        ][: max(0, left)]
        if its:
            found[each.path] = its
            left -= len(its)
    return found


def _change(title: str, before: str, after: str) -> list[Change]:
    if before == after or not before or not after:
        return []
    return [Change(title, *marked(before[:MAX_CHARS], after[:MAX_CHARS]))]


def _repeated(
    conversation: RecordedConversation,
    attempts: Mapping[str, Sequence[Step]],
    answers: Mapping[str, Step],
) -> list[Change]:
    """A turn that was called again with other messages or gave another answer, as after a resume
    with changes.
    """
    found: list[Change] = []
    for turn in conversation.turns:
        path = turn.step.start.path
        for one, other in pairwise(attempts[path]):
            title = f"of {path}, steps {one.number} and {other.number}"
            sent = [
                "\n\n".join(str(m.get("content", "")) for m in messages_of(step, answers))
                for step in (one, other)
            ]
            found += _change(f"Request {title}", *sent)
            found += _change(f"Answer {title}", _output(one), after=_output(other))
    return found


def _output(step: Step) -> str:
    output = None if step.end is None else step.end.output
    if mapping(output):
        return pretty(mapping(output).get("content"))
    return pretty(output)


def _corrected(conversation: RecordedConversation) -> list[Change]:
    """An answer that was asked for again: without a tool call, and with another turn after it."""
    found: list[Change] = []
    for one, other in pairwise(conversation.turns):
        answers = [turn.answer for turn in (one, other)]
        if any(answer is None or answer.get("tool_calls") for answer in answers):
            continue
        texts = [str((answer or {}).get("content") or "") for answer in answers]
        found += _change(f"Answer in {one.step.start.path} and {other.step.start.path}", *texts)
    return found


def _iterated(
    conversation: RecordedConversation, by_path: dict[str, RecordedConversation]
) -> list[Change]:
    """The same part of a loop in the iteration before."""
    match = _ITERATION.fullmatch(conversation.path)
    if match:
        before = by_path.get(f"{match[1]}{int(match[2]) - 1}{match[3]}")
    else:
        before = None
    if before is None:
        return []
    found: list[Change] = []
    for name, texts in (
        ("Request", _prompts(before, conversation)),
        ("Answer", _answers(before, conversation)),
    ):
        found += _change(f"{name} in {before.path} and here", *texts)
    return found


def _prompts(*both: RecordedConversation) -> list[str]:
    return [
        "\n\n".join(str(message.get("content", "")) for message in each.turns[0].sent)
        for each in both
    ]


def _answers(*both: RecordedConversation) -> list[str]:
    return [str((each.turns[-1].answer or {}).get("content") or "") for each in both]
