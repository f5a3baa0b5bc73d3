"""What changed between attempts of a conversation, and when the steps of a run happened.

When the steps of a run happened: the place of each step and subtask on an axis that begins with
the run.

The times are those of the record: a step's start and duration, and the creation and duration of a
subtask's file. The time between the last step of an interrupted run and the process that resumed it
is left out.

of a loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise

from evaluator import clock
from evaluator.lazy_dataclass import dataclass
from evaluator.record.conversation import RecordedConversation, answered_steps, messages_of
from evaluator.record.steps import Recording, Step
from evaluator.viewer.server.state import mapping, pretty


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of the axis, in seconds since the start of the run. `is_open`: it has not ended."""

    start_s: float
    end_s: float
    is_open: bool = False

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


class Timeline:
    """The axis of the run in `recording`. A bar is None where the record has no time, as in files
    of other programs.
    """

    def __init__(self, recording: Recording) -> None:
        header = recording.header
        self._now = clock.wall()
        if header is None:
            self._start = None
        else:
            self._start = _moment(header.created)
        if self._start is None:
            self._pauses = []
        else:
            self._pauses = list(_pauses(recording, self._start))

    def of_step(self, step: Step, *, is_running: bool) -> Bar | None:
        return self._bar(
            step.start.started,
            None if step.end is None else step.end.duration_s,
            is_running=is_running,
        )

    def of_task(self, recording: Recording) -> Bar | None:
        if recording.header is None:
            return None
        if recording.summary is None:
            duration_s = None
        else:
            duration_s = recording.summary.duration_s
        return self._bar(
            recording.header.created, duration_s, is_running=recording.status == "running"
        )

    def _bar(self, started: str | None, duration_s: float | None, is_running: bool) -> Bar | None:
        """Without a duration it lasts until now, or, where nothing runs any more, no time."""
        start = _moment(started)
        if start is None or self._start is None:
            return None
        until = self._now if is_running else start
        start_s = self._seconds(start, self._start)
        end_s = self._seconds(until if duration_s is None else start + duration_s, self._start)
        return Bar(start_s, max(start_s, end_s), is_open=duration_s is None)

    def _seconds(self, moment: float, start: float) -> float:
        left_out = sum(min(moment, end) - begin for begin, end in self._pauses if moment > begin)
        return max(0.0, moment - start - left_out)


def enclosing(bars: Iterable[Bar]) -> Bar | None:
    """The bar from the earliest start to the latest end; None without bars."""
    found = list(bars)
    if not found:
        return None
    return Bar(
        min(bar.start_s for bar in found),
        max(bar.end_s for bar in found),
        is_open=any(bar.is_open for bar in found),
    )


def _pauses(recording: Recording, start: float) -> Iterable[tuple[float, float]]:
    ends = [
        begun + (0.0 if step.end is None else step.end.duration_s)
        for step in recording.steps
        if (begun := _moment(step.start.started)) is not None
    ]
    for resumption in recording.resumptions:
        resumed = _moment(resumption.at)
        if resumed is not None:
            yield max((end for end in ends if end <= resumed), default=min(start, resumed)), resumed


def _moment(text: str | None) -> float | None:
    """An ISO time in seconds since 1970; None where it is none."""
    try:
        if text is None:
            return None
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


MAX_CHANGES = 50
MAX_CHARS = 20_000
_ITERATION = re.compile(r"(.*\biterations\[)([0-9]{1,6})(\]/.*)", re.S)


@dataclass(frozen=True, slots=True)
class Change:
    """Two texts of a conversation that differ; `title` says which they are."""

    title: str
    before: str
    after: str


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
    return [Change(title, before[:MAX_CHARS], after[:MAX_CHARS])]


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
    if step.end is None:
        output = None
    else:
        output = step.end.output
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
