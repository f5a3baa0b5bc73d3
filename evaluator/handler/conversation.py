"""The messages of one session, and how many tokens of the model's context window they take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evaluator.errors import LimitReached
from evaluator.handler.config import HandlerConfig
from evaluator.handler.model_choice import ModelChoice
from evaluator.limits.budget import WARN_AT
from evaluator.models import prices
from evaluator.models.attachment_rules import drop_unsupported, withhold_oldest
from evaluator.models.backend import Hints, Message, ModelRequest, ModelResponse, ToolSpec
from evaluator.models.prices import estimate_tokens
from evaluator.models.structured import kind_of
from evaluator.models.text_tools import new_mark
from evaluator.nodes.sampling import SAMPLING, settings_given
from evaluator.record.step_log import StepLog

_MESSAGE_OVERHEAD_TOKENS = 6


class Conversation:
    """Messages in order, the number of them that is already recorded, and their size in tokens.

    `tokens` is estimated locally and corrected to the provider's count after each response. With
    `counts_tokens` False, messages are counted only where the context window is known. `warnings`
    are those of the current query.
    """

    def __init__(
        self,
        config: HandlerConfig,
        choice: ModelChoice,
        tools: tuple[ToolSpec, ...],
        schema: Mapping[str, Any] | None,
        *,
        counts_tokens: bool,
    ) -> None:
        self.warnings: dict[str, None] = {}
        self._config = config
        self._choice = choice
        self._tools = tools
        self._schema = schema
        self._settings = _recorded_settings(config, tools, schema=schema)
        if config.tool_calling == "text":
            self._call_mark = new_mark()
        else:
            self._call_mark = ""
        self._messages: list[Message] = []
        self._recorded = 0
        self._answers = 0
        # Tool answers are recorded at steps of their own: place in `_messages` to path of the step.
        self._answer_paths: dict[int, str] = {}
        self._history = ""
        self._window = config.context_window
        if self._window is None and not choice.is_simulated:
            self._window = prices.context_window(choice.label)
        self._counts_tokens = counts_tokens or self._window is not None
        self._warned_context = False
        self.tokens = sum(
            estimate_tokens(f"{s.name} {s.description} {s.parameters}") for s in tools
        )

    @property
    def has_answer(self) -> bool:
        return self._answers > 0

    def warn(self, warning: str) -> None:
        self.warnings[warning] = None

    def add(self, message: Message, answer_path: str | None = None) -> None:
        """Appends `message`, without the attachments that the model does not support.

        `answer_path` is the step that records a tool's answer.
        """
        if message.attachments:
            message = drop_unsupported(
                message,
                self._choice.label,
                tools_are_text=self._config.tool_calling == "text",
                warn=self.warn,
            )
        if answer_path is not None:
            self._answer_paths[len(self._messages)] = answer_path
        self._messages.append(message)
        if self._counts_tokens:
            self.tokens += estimate_tokens(message.content) + _MESSAGE_OVERHEAD_TOKENS
            self.tokens += sum(attachment.tokens for attachment in message.attachments)
            self.tokens += sum(
                estimate_tokens(c.name) + estimate_tokens(c.arguments) for c in message.tool_calls
            )

    def add_answers(self, answers: Iterable[tuple[Message, str]]) -> None:
        """Appends the tool answers of one turn, each with the path of its step."""
        for message, path in answers:
            self.add(message, path)
        withhold_oldest(self._messages, self.warn)

    def add_response(self, response: ModelResponse) -> Message:
        """Appends the model's response, and takes over the token count that the provider gave.
        Returns: its message.
        """
        usage = response.usage
        if usage.input_tokens is not None and usage.output_tokens is not None:
            self.tokens = usage.input_tokens
        for warning in response.warnings:
            self.warn(warning)
        message = response.message()
        self.add(message)
        self._answers += 1
        self._recorded = len(self._messages)
        return message

    def position(self) -> tuple[int, int]:
        """The current position in the conversation, for `rewind`."""
        return len(self._messages), self.tokens

    def rewind(self, position: tuple[int, int]) -> None:
        """Removes what came after `position`: providers refuse tool calls without their results."""
        count, self.tokens = position
        del self._messages[count:]
        self._recorded = min(self._recorded, count)
        self._answer_paths = {
            place: path for place, path in self._answer_paths.items() if place < count
        }

    def check_context(self, partial: str) -> None:
        """Warns once at 80 % of the context limit. Raises: LimitReached, with `partial`, above the
        limit.
        """
        if self._window is None:
            return
        limit = int(self._window * self._config.max_context_fraction)
        if self.tokens > limit:
            raise LimitReached(
                "context",
                self.tokens,
                limit=limit,
                message=f"the next request would hold about {self.tokens} tokens; "
                f"{self._config.max_context_fraction:g} of the window of {self._choice.label} is "
                f"{limit}",
                partial=partial,
            )
        if not self._warned_context and self.tokens >= WARN_AT * limit:
            self._warned_context = True
            self.warn(f"context is at {self.tokens} of {limit} tokens")

    def request(self, timeout_s: float, hints: Hints) -> ModelRequest:
        config = self._config
        return ModelRequest(
            self._choice.model,
            tuple(self._messages),
            tools=self._tools,
            max_output_tokens=config.max_output_tokens,
            timeout_s=timeout_s,
            hints=hints,
            schema=self._native_schema(),
            cache=config.cache,
            call_mark=self._call_mark,
            **{name: getattr(config, name) for name in SAMPLING},
        )

    def _native_schema(self) -> Mapping[str, Any] | None:
        """The schema that the next request carries in a field of its own."""
        schema = self._schema
        if schema is None:
            return None
        label = self._choice.label
        refused = self._choice.refused_schemas
        if (
            kind_of(schema) not in refused
            and prices.supports(label, "response_schema") is not False
        ):
            return schema
        self.warn(
            f"{label} takes no such JSON schema as a request field: the schema is only in the "
            "prompt"
        )
        return None

    def step_args(self, turn: int) -> dict[str, Any]:
        """The arguments that the step of `turn` records: the messages since the last turn; at the
        first turn also the model and settings.
        """
        args: dict[str, Any] = (
            {"after": f"turn[{turn - 1}]"}
            if self._recorded
            else {
                "model": self._choice.label,
                "settings": self._settings,
            }
        )
        args["messages"] = messages = []
        for place, message in enumerate(self._messages[self._recorded :], self._recorded):
            data = message.to_dict()
            if place in self._answer_paths:
                del data["content"]
                data["content_of"] = self._answer_paths[place]
            messages.append(data)
        return args

    def fingerprint(self, steps: StepLog) -> str:
        """Identifies the whole conversation: its last messages, and the fingerprint of what came
        before.
        """
        new = self._messages[max(0, self._recorded - 1) :]
        data: dict[str, Any] = {
            "model": self._choice.label,
            "settings": self._settings,
            "tools": [
                [
                    spec.name,
                    spec.description,
                    spec.parameters,
                    *([] if spec.native is None else [dict(spec.native)]),
                ]
                for spec in self._tools
            ],
            "messages": [message.to_dict() for message in new],
            "after": self._history,
        }
        if self._schema is not None:
            # The declared schema, whether or not the provider takes it: each run finds that out
            # again.
            data["schema"] = self._schema
        self._history = steps.fingerprint(data)
        return self._history


def _recorded_settings(
    config: HandlerConfig, tools: tuple[ToolSpec, ...], schema: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The settings of a session's model calls, as its first step records them."""
    settings = settings_given(config)
    if config.max_output_tokens is not None:
        settings["max_output_tokens"] = config.max_output_tokens
    if tools:
        settings["tools"] = [spec.name for spec in tools]
        if config.tool_calling != "native":
            settings["tool_calling"] = config.tool_calling
    if schema is not None:
        settings["native_output"] = True
    return settings
