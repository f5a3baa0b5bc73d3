"""The state of one session: its messages, how many tokens of the model's context window they take,
and what is recorded of them.

A `SessionPlan` has what is the same in every session of a task with one model; it is made once. A
`Session` has the rest. `session` works on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from evaluator.errors import LimitReached
from evaluator.errors.results import Usage
from evaluator.handler.config import HandlerConfig
from evaluator.handler.model_choice import ModelChoice
from evaluator.handler.tracing import UNTRACED, Tracer
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.limits.budget import WARN_AT, Budget
from evaluator.models import prices
from evaluator.models.attachment_rules import drop_unsupported, withhold_oldest
from evaluator.models.backend import (
    CacheMark,
    Hints,
    Message,
    ModelRequest,
    ModelResponse,
    ToolSpec,
    estimate_tokens,
)
from evaluator.models.prompt_cache import (
    CacheTerms,
    Prefix,
    cache_terms,
    needs_marks,
    prefix_of,
)
from evaluator.models.structured import kind_of
from evaluator.nodes.sampling import SAMPLING, settings_given
from evaluator.record.step_log import StepLog
from evaluator.record.steps import FixedPart

OnText = Callable[[str], None]
OnMessage = Callable[[str, Mapping[str, Any]], None]


@frozen
class SessionLog:
    """The outputs of a session: its record, with steps below `path`, its trace, `on_text` for
    streamed text, and `on_message` for each message with the path.
    """

    steps: StepLog
    path: str = ""
    tracer: Tracer = UNTRACED
    on_text: OnText | None = None
    on_message: OnMessage | None = None

    def note(self, message: Message, usage: Usage | None = None) -> None:
        """Passes on a message of the conversation, with the usage of an answer."""
        if self.on_message is not None:
            if usage is None:
                used = {}
            else:
                used = {"usage": usage.to_dict()}
            self.on_message(self.path, {**message.to_dict(), **used})

    def path_of(self, segment: str) -> str:
        if self.path:
            return f"{self.path}/{segment}"
        return segment


@frozen(eq=False)
class SessionPlan:
    """What is the same in every session of a task with one model, see `plan_session`.

    `tools` are offered to the model. `schema` is a JSON Schema of the answer for the provider to
    enforce. `is_free`: calls cost nothing. `window` is the model's context window in tokens,
    `max_output_tokens` the longest answer; None where unknown. `tool_tokens` is the size of the
    tools. `cache_terms` are those of the provider's prompt cache, None where it is not used.
    `settings` are recorded by the first step, `fingerprinted` is a part of what each step is
    fingerprinted by, and `sampling` are the fields of each request that SAMPLING names.
    """

    config: HandlerConfig
    choice: ModelChoice
    tools: tuple[ToolSpec, ...]
    schema: Mapping[str, Any] | None
    is_free: bool
    window: int | None
    max_output_tokens: int | None
    tool_tokens: int
    cache_terms: CacheTerms | None
    settings: Mapping[str, Any]
    fingerprinted: FixedPart
    sampling: Mapping[str, Any]

    def priced(self, usage: Usage, *, is_batch: bool = False) -> Usage:
        """`usage` with its cost, where the price of the model is known."""
        if self.is_free:
            return replace(usage, cost_usd=0.0)
        return prices.priced(
            self.choice.label, usage, profile=self.config.prices, is_batch=is_batch
        )


def plan_session(
    config: HandlerConfig,
    choice: ModelChoice,
    tools: tuple[ToolSpec, ...] = (),
    schema: Mapping[str, Any] | None = None,
) -> SessionPlan:
    """The plan of sessions with this profile, this model, these tools and this schema."""
    window = config.context_window
    if window is None and not choice.is_simulated:
        window = prices.context_window(choice.label)
    is_free = choice.is_free
    most = config.max_output_tokens
    if most is None and is_free:
        most = 0
    elif most is None:
        most = prices.max_output_tokens(choice.label)
    settings = _recorded_settings(config, tools, schema=schema)
    fingerprinted: dict[str, Any] = {
        "model": choice.label,
        "settings": settings,
        "tools": [_fingerprinted_tool(spec) for spec in tools],
    }
    if schema is not None:
        # The declared schema, whether or not the provider takes it: each run finds that out again.
        fingerprinted["schema"] = schema
    return SessionPlan(
        config,
        choice,
        tools=tools,
        schema=schema,
        is_free=is_free,
        window=window,
        max_output_tokens=most,
        tool_tokens=sum(estimate_tokens(spec.text()) for spec in tools),
        cache_terms=None if is_free else cache_terms_of(config, choice.label),
        settings=settings,
        fingerprinted=FixedPart(fingerprinted),
        sampling={name: getattr(config, name) for name in SAMPLING},
    )


def cache_terms_of(config: HandlerConfig, model: str) -> CacheTerms | None:
    """The terms of the prompt cache of `model`; None where nothing is to be done for it."""
    mode = config.prompt_cache
    # Descriptions of tools in the prompt have a mark of their own in each session.
    if mode == "off" or config.tool_calling == "text":
        return None
    if config.backend == "openai_compatible" and needs_marks(model):
        return None  # chat completions have no marks
    terms = cache_terms(model)
    if terms is None and mode == "on":
        return CacheTerms(needs_marks(model))
    return terms


def _fingerprinted_tool(spec: ToolSpec) -> list[Any]:
    data: list[Any] = [spec.name, spec.description, spec.parameters]
    if spec.native is not None:
        data.append(dict(spec.native))
    return data


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


class Session:
    """Messages in order, the number of them that is already recorded, and their size in tokens.

    `warnings` are those of the current query, `budget` is its budget. `continues`: what is sent is
    likely to be sent again with more messages. `epoch` separates repetitions of the same task in
    the cache. `turns` counts the turns.
    """

    __slots__ = (
        "_answer_paths",
        "_call_mark",
        "_counted",
        "_hints",
        "_history",
        "_messages",
        "_prefix",
        "_recorded",
        "_tokens",
        "_warned_context",
        "budget",
        "continues",
        "epoch",
        "has_answer",
        "log",
        "notices",
        "plan",
        "turns",
    )

    def __init__(
        self,
        plan: SessionPlan,
        log: SessionLog,
        budget: Budget,
        *,
        hints: Hints = Hints(),  # noqa: B008
        epoch: int = 1,
    ) -> None:
        config = plan.config
        self.plan = plan
        self.log = log
        self.budget = budget
        self.epoch = epoch
        self.notices: dict[str, None] = {}
        self.has_answer = False
        self.continues = False
        self.turns = 0
        self._hints = hints
        self._call_mark = ""
        if config.tool_calling == "text":
            from evaluator.models.text_tools import new_mark

            self._call_mark = new_mark()
        self._messages: list[Message] = []
        # The size of the tools and of the first `_counted` messages.
        self._tokens = plan.tool_tokens
        self._counted = 0
        self._prefix: Prefix | None = None
        self._recorded = 0
        # Tool answers are recorded at steps of their own: place in `_messages` to path of the step.
        self._answer_paths: dict[int, str] = {}
        self._history = ""
        self._warned_context = False

    def warn(self, warning: str) -> None:
        self.notices[warning] = None

    def add(self, message: Message, answer_path: str | None = None) -> None:
        """Appends `message`, without the attachments that the model does not support.

        `answer_path` is the step that records a tool's answer.
        """
        if message.attachments:
            message = drop_unsupported(
                message,
                self.plan.choice.label,
                tools_are_text=self.plan.config.tool_calling == "text",
                warn=self.warn,
            )
        if answer_path is not None:
            self._answer_paths[len(self._messages)] = answer_path
        self._messages.append(message)

    @property
    def tokens(self) -> int:
        """The size of the next request: estimated, and corrected to the provider's count after each
        response.
        """
        for message in self._messages[self._counted :]:
            self._tokens += message.tokens()
        self._counted = len(self._messages)
        return self._tokens

    def add_answers(self, answers: Iterable[tuple[Message, str]]) -> None:
        """Appends the tool answers of one turn, each with the path of its step."""
        for message, path in answers:
            self.add(message, path)
        withhold_oldest(self._messages, self.warn)

    def add_response(self, response: ModelResponse) -> None:
        """Appends the model's response, and takes over the token count that the provider gave."""
        usage = response.usage
        if usage.input_tokens is not None and usage.output_tokens is not None:
            self._tokens = usage.input_tokens
            self._counted = len(self._messages)
        for warning in response.warnings:
            self.warn(warning)
        message = response.message()
        self.add(message)
        self.has_answer = True
        self._recorded = len(self._messages)
        if self.log.on_message is not None:
            self.log.note(message, usage)

    def position(self) -> tuple[int, int, int]:
        """The current position in the conversation, for `rewind`."""
        return len(self._messages), self._counted, self._tokens

    def rewind(self, position: tuple[int, int, int]) -> None:
        """Removes what came after `position`: providers refuse tool calls without their results."""
        count, self._counted, self._tokens = position
        del self._messages[count:]
        self._recorded = min(self._recorded, count)
        self._answer_paths = {
            place: path for place, path in self._answer_paths.items() if place < count
        }

    def check_context(self) -> None:
        """Warns once at 80 % of the context limit. Raises: LimitReached, with the partial content,
        above the limit.
        """
        window = self.plan.window
        if window is None:
            return
        fraction = self.plan.config.max_context_fraction
        limit = int(window * fraction)
        tokens = self.tokens
        if tokens > limit:
            raise LimitReached(
                "context",
                tokens,
                limit=limit,
                message=f"the next request would hold about {tokens} tokens; {fraction:g} of "
                f"the window of {self.plan.choice.label} is {limit}; shorten the inputs or the "
                "context, or give the handler a higher max_context_fraction or a model with a "
                "larger window",
                partial=self.budget.partial,
            )
        if not self._warned_context and tokens >= WARN_AT * limit:
            self._warned_context = True
            self.warn(f"context is at {tokens} of {limit} tokens")

    def request(self) -> ModelRequest:
        """The request for the next turn, which may take the time that is left."""
        plan = self.plan
        cache_marks = self.cache_marks()
        timeout_s = plan.config.timeout_s
        remaining = self.budget.remaining_s()
        if remaining is not None:
            timeout_s = max(0.001, remaining)
        schema = None
        if plan.schema is not None:
            schema = self._native_schema(plan.schema)
        return ModelRequest(
            plan.choice.model,
            tuple(self._messages),
            plan.tools,
            plan.config.max_output_tokens,
            timeout_s,
            hints=self._hints,
            schema=schema,
            cache_marks=cache_marks,
            call_mark=self._call_mark,
            **plan.sampling,
        )

    def prefix(self) -> Prefix | None:
        """The beginning of the messages, if other calls have it and the prompt cache keeps it."""
        terms = self.plan.cache_terms
        if terms is None:
            return None
        is_forced = self.plan.config.prompt_cache == "on"
        if self._prefix is None and (is_forced or self.plan.choice.prompt_caches is not None):
            self._prefix = prefix_of(self._messages, self.plan.tools)
        prefix = self._prefix
        if prefix is None or (not is_forced and prefix.tokens < terms.min_tokens):
            return None
        return prefix

    def cache_marks(self) -> tuple[CacheMark, ...]:
        """Where the next request ends what will be sent again, for a provider that needs marks."""
        terms = self.plan.cache_terms
        if terms is None or not terms.needs_marks:
            return ()
        marks: list[CacheMark] = []
        prefix = self.prefix()
        if prefix is not None:
            marks.append(prefix.end)
        if self.continues:
            last = len(self._messages) - 1
            marks.append(CacheMark(last, len(self._messages[last].content)))
        return tuple(dict.fromkeys(marks))

    def _native_schema(self, schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The schema that the next request carries in a field of its own."""
        choice = self.plan.choice
        if (
            kind_of(schema) not in choice.refused_schemas
            and prices.supports(choice.label, "response_schema") is not False
        ):
            return schema
        self.warn(
            f"{choice.label} takes no such JSON schema as a request field: the schema is only in "
            "the prompt"
        )
        return None

    def next_call(self) -> TurnCall:
        """The model call of this turn.

        The arguments are the messages since the last turn; at the first turn also the model and
        settings. The fingerprint identifies the whole conversation: the messages from the last
        answer on, and the fingerprint of what came before.
        """
        plan = self.plan
        path = self.log.path_of(f"turn[{self.turns}]")
        recorded = self._recorded
        first = max(0, recorded - 1)
        data = [message.to_dict() for message in self._messages[first:]]
        self._history = self.log.steps.fingerprint(
            {"after": self._history, "messages": data}, plan.fingerprinted
        )
        args: dict[str, Any]
        if recorded:
            args = {"after": f"turn[{self.turns - 1}]"}
            del data[0]
        else:
            args = {"model": plan.choice.label, "settings": plan.settings}
        for place, answer_path in self._answer_paths.items():
            if place >= recorded:
                entry = data[place - recorded]
                del entry["content"]
                entry["content_of"] = answer_path
        args["messages"] = data
        max_cost_usd = None
        if plan.choice.limiter is not None or self.budget.has_cost_limit:
            max_cost_usd = self.max_turn_cost()
        return TurnCall(self, path, args, self._history, max_cost_usd)

    def max_turn_cost(self, *, is_batch: bool = False) -> float | None:
        """The most that the next turn may cost in US dollars; None where unknown."""
        plan = self.plan
        output = plan.max_output_tokens
        if output is None:
            return None
        if plan.is_free:
            return 0.0
        written = 0
        if self.cache_marks():
            written = self.tokens
        usage = Usage(self.tokens, output, cache_write_tokens=written)
        return plan.priced(usage, is_batch=is_batch).cost_usd


@dataclass(slots=True)
class TurnCall:
    """The model call of one turn: its session, its step, and the most that it may cost in US
    dollars (None where unknown).
    """

    session: Session
    path: str
    args: Mapping[str, Any]
    fingerprint: str
    max_cost_usd: float | None
