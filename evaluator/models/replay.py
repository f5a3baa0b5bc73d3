"""Answers from a task file: each recorded response answers the same request again, once.

A request is identified by all its messages. A request that the record does not hold is a
ProviderError, never a call.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from evaluator.errors import ProviderError, UsageError
from evaluator.errors.messages import shortened, type_of
from evaluator.models.backend import ModelRequest, ModelResponse
from evaluator.record.conversation import conversations
from evaluator.record.steps import Recording, fingerprint


class ReplayBackend:
    """A Backend over one or more recordings. Makes no call and costs nothing.

    Equal conversations that were recorded several times are answered in the order of the record.
    """

    def __init__(self, *recordings: Recording) -> None:
        """Raises: UsageError, if the recordings hold no model response, or are not recordings."""
        for recording in recordings:
            if not isinstance(recording, Recording):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(
                    f"a recording is expected, not {type_of(recording)}: TaskStore.read gives one"
                )
        self._answers: dict[str, deque[ModelResponse]] = defaultdict(deque)
        for recording in recordings:
            self._take(recording)
        if not self._answers:
            raise UsageError("the recordings hold no model response to replay")

    @property
    def name(self) -> str:
        return "replay"

    def _take(self, recording: Recording) -> None:
        answered: list[tuple[int, str, ModelResponse]] = []
        for conversation in conversations(recording):
            messages: list[Mapping[str, Any]] = []
            for turn in conversation.turns:
                messages += turn.sent
                if turn.answer is None or turn.step.end is None:
                    continue
                answer = ModelResponse.from_dict(turn.step.end.output, turn.step.end.usage)
                answered.append((turn.step.number, _key(messages), answer))
                messages.append(answer.message().to_dict())
        for _, key, answer in sorted(answered, key=itemgetter(0)):
            self._answers[key].append(answer)

    async def complete(
        self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None
    ) -> ModelResponse:
        """The recorded response. Raises: ProviderError, not retryable, where the record holds
        none.
        """
        answers = self._answers.get(_key([message.to_dict() for message in request.messages]))
        if not answers:
            last = shortened(request.messages[-1].content if request.messages else "")
            raise ProviderError(
                f"the record holds no answer to this request ({last}); the template, the inputs or "
                "the tools have changed since it was recorded",
                kind="not_found",
            )
        # The last of equal answers stays: the same request again gets the same answer.
        if len(answers) == 1:
            response = answers[0]
        else:
            response = answers.popleft()
        if on_text is not None and response.content:
            on_text(response.content)
        return response

    async def aclose(self) -> None:
        """Nothing is open."""


def _key(messages: Sequence[Mapping[str, Any]]) -> str:
    return fingerprint(list(messages))
