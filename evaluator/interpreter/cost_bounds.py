"""Bounds on the turns, calls, tokens, cost and time of a run, without a key and without a call.

A turn is a response of a model; a call is an attempt, and one turn may take several. Every attempt
may be billed, so tokens and cost are bounded for attempts. An attempt holds at most the
model's context window and at most its longest answer. Where a prompt is known before the run, it
holds at most the bytes of the prompt, since a token has at least one byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from evaluator.errors import ConfigurationError
from evaluator.errors.results import Usage
from evaluator.handler.config import HandlerConfig
from evaluator.handler.conversation import cache_terms_of
from evaluator.handler.model_choice import ModelChoice
from evaluator.interpreter.background import BACKGROUND_TOOLS
from evaluator.lazy_dataclass import frozen
from evaluator.library.bounds import CallCounter, ModelUse
from evaluator.library.calls import calls_of
from evaluator.library.shapes import is_model
from evaluator.models import prices
from evaluator.nodes import Atomic, Task, Text, TopLevel
from evaluator.nodes.walk import tasks
from evaluator.tools.mcp.servers import server_of_tool

if TYPE_CHECKING:
    from evaluator.interpreter.evaluator import Evaluator

_NANO = 10**9
"""Dollars are counted in integers of this part, rounded up."""
_NO_MODEL_TOOLS = frozenset({"bash", "computer"})
"""Tools of a task that start no other task."""


@frozen
class Amounts:
    """What model calls take; None where it is unknown or unbounded. `batch_cost_usd` is the cost
    with the provider's batch prices, `seconds` the time of tasks that ask a model, one after
    another.
    """

    turns: float | None = 0
    calls: float | None = 0
    input_tokens: float | None = 0
    output_tokens: float | None = 0
    cost_usd: float | None = 0.0
    batch_cost_usd: float | None = 0.0
    seconds: float | None = 0.0

    def __add__(self, other: Amounts) -> Amounts:
        sums = ((getattr(self, name), getattr(other, name)) for name in MEASURES)
        return Amounts(*(None if a is None or b is None else a + b for a, b in sums))

    def times(self, count: float) -> Amounts:
        values = (getattr(self, name) for name in MEASURES)
        return Amounts(*(None if value is None else value * count for value in values))

    def capped(self, **limits: float | None) -> Amounts:
        """The smaller of each amount and its limit; a limit of None is no limit."""
        values: dict[str, Any] = {name: getattr(self, name) for name in MEASURES}
        for name, limit in limits.items():
            if limit is not None:
                if values[name] is None:
                    values[name] = limit
                else:
                    values[name] = min(values[name], limit)
        return Amounts(**values)

    def to_dict(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in MEASURES}


MEASURES = tuple(field.name for field in fields(Amounts))


@frozen
class _Asking:
    """How a task asks its model: the most that one turn takes, and the most of the whole task."""

    model: str
    config: HandlerConfig
    per_turn: Amounts
    cost_limit_usd: float | None
    timeout_s: float | None
    note: str

    def use(self, measure: str) -> ModelUse:
        offers_tools = bool(self.config.tools)
        if measure == "seconds":
            per_turn = None
            at_most = None
            if self.timeout_s is not None:
                at_most = ceil(self.timeout_s)
        elif measure in ("cost_usd", "batch_cost_usd"):
            per_turn = _nano(getattr(self.per_turn, measure))
            at_most = _nano(self.cost_limit_usd)
        else:
            per_turn = getattr(self.per_turn, measure)
            at_most = None
        return ModelUse(self.config.max_turns, offers_tools, per_turn, at_most, self.note)


class CostBounds:
    """Bounds of the runs of one variant. `missing` says what is unknown, and where to set it.

    `evaluator` is one `without_network`. `model`, `handler` and `roles` are those of the runs.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        model: str | None,
        handler: str | None,
        roles: Mapping[str, str] | None = None,
    ) -> None:
        self.missing: dict[str, None] = {}
        self._services = evaluator.services
        self._library = evaluator.library
        self._model = model or evaluator.model
        self._handler = handler
        self.roles = {**evaluator.model_roles, **(roles or {})}
        self._root: TopLevel | None = None
        self._prompt: int | None = None
        self._known: dict[int, tuple[Task, _Asking]] = {}
        self._counters: dict[tuple[str, str | None], CallCounter] = {}

    def choice(self, task: Task | None = None) -> ModelChoice | None:
        """The model that answers `task`, or a task that names none; None where a variable names
        it. Raises: ConfigurationError.
        """
        named = None
        explicit = self._model
        config = self._profile(task)
        if task is not None and task.model_role is not None:
            role = task.model_role
            explicit = self.roles.get(role) or config.roles.get(role) or explicit
        if task is not None and task.model is not None:
            named = task.model.value.strip()
            if explicit is None and ("{{" in named or "{%" in named):
                return None
        return self._services.chooser.choose(explicit, named, config)

    def most(
        self, node: TopLevel, inputs: Mapping[str, Any], prompt: int | None = None
    ) -> dict[str | None, Amounts]:
        """The most that one run of `node` takes: of each model, and in total as None.

        `prompt` is the most input tokens of the only request of `node`, where they are known.
        """
        self._root = node
        self._prompt = prompt
        reached = [self._library.get(name).node for name in self._called(node)]
        askers = [task for each in (node, *reached) for task in tasks(each) if task.asks_model]
        models = list(dict.fromkeys(self._asking(task).model for task in askers))
        only: list[str | None]
        if len(models) < 2:
            only = [None]
        else:
            only = [None, *models]
        found = {model: self._amounts(node, inputs, model) for model in only}
        if len(models) == 1:
            found[models[0]] = found[None]
        return found

    def tree(self, node: TopLevel) -> str:
        """What a run may do, one line for each part."""
        return self._counter("turns", None).bound(node).explanation

    def knows_prompt(self, node: TopLevel) -> bool:
        """Whether a run of `node` makes one request, which a preview shows exactly."""
        if not isinstance(node, Atomic) or node.queries().most != 1 or node.tools_from is not None:
            return False
        files = node.file_paths
        schema = None
        if node.output is not None:
            schema = node.output.schema
        return not (
            node.tools
            or self._profile(node).tools
            or calls_of(node)
            or any(declared.task is not None for declared in node.inputs)
            or (files is not None and files.source not in ("literal", "glob"))
            or node.context.fresh_context == "enabled"
            or (schema is not None and is_model(schema))
        )

    def _called(self, node: TopLevel) -> list[str]:
        names = dict.fromkeys(calls_of(node))
        for name in [*names]:
            if name in self._library:
                names |= dict.fromkeys(self._library.called_by(name))
        return [name for name in names if name in self._library]

    def _amounts(self, node: TopLevel, inputs: Mapping[str, Any], model: str | None) -> Amounts:
        found: dict[str, Any] = {}
        for measure in MEASURES:
            counter = self._counter(measure, model)
            most = counter.bound(node, inputs).max_calls
            if most is None and measure == "turns":
                self.missing |= counter.unbounded
            found[measure] = most
        for name in ("cost_usd", "batch_cost_usd"):
            if found[name] is not None:
                found[name] /= _NANO
        return Amounts(**found)

    def _counter(self, measure: str, model: str | None) -> CallCounter:
        key = (measure, model)
        if key not in self._counters:
            use = partial(self._use, measure, model)
            self._counters[key] = CallCounter(self._library, use=use)
        return self._counters[key]

    def _use(self, measure: str, model: str | None, task: Task) -> ModelUse:
        asking = self._asking(task)
        use = asking.use(measure)
        if model is not None and asking.model != model:
            return use._replace(per_turn=0, at_most=0)
        return use

    def _asking(self, task: Task) -> _Asking:
        if task is self._root and self._prompt is not None:
            return self._make_asking(task, self._prompt)
        # The task is kept, so that its id stays its own.
        if id(task) not in self._known:
            self._known[id(task)] = (task, self._make_asking(task, None))
        return self._known[id(task)][1]

    def _profile(self, task: Task | None) -> HandlerConfig:
        ref = None
        if task is not None:
            ref = task.profile
        return self._services.profile(self._handler or ref)

    def _make_asking(self, task: Task, prompt: int | None) -> _Asking:
        config = self._profile(task)
        where = task.name or task.type
        try:
            choice = self.choice(task)
            if choice is None:
                label = "a model that a variable names"
            else:
                label = choice.label
        except ConfigurationError as error:
            choice = None
            label = "unknown"
            self.missing[f"{where}: {error}"] = None
        output = _setting(task, "max_output_tokens", config.max_output_tokens)
        cost_limit = _setting(task, "max_cost_usd", config.max_cost_usd)
        timeout_s = _setting(task, "timeout_s", config.timeout_s)
        window = config.context_window
        is_free = choice is not None and choice.is_free
        if choice is not None and not is_free:
            window = window or prices.context_window(label)
            output = output or prices.max_output_tokens(label)
        if window is None or prompt is None:
            sent = prompt
        else:
            sent = min(prompt, window)
        sent = sent or window
        calls = len(config.backoff_s) + 1 + (config.native_output and task.output is not None)
        cost = None
        if choice is not None:
            cost = _max_cost(config, label, sent, output)
        batch_cost = None
        if choice is not None:
            batch_cost = _max_cost(config, label, sent, output, is_batch=True)
        if is_free:
            cost = 0.0
            batch_cost = 0.0
        per_turn: Amounts = Amounts(1, 1, sent, output, cost, batch_cost)
        per_turn = Amounts(**{**per_turn.times(calls).to_dict(), "turns": 1})
        reason = self._unbounded(task, config)
        if reason:
            # Other tasks may be started, which other models may answer.
            unknown = {name: None for name in MEASURES if name not in ("turns", "seconds")}
            per_turn = Amounts(**{**per_turn.to_dict(), **unknown})
            if "reparse" in reason or "background" in reason:
                per_turn = Amounts(None, None, None, None, None, None)
            self.missing[f"{where}: {reason}"] = None
        else:
            self._report(f"{where}, {label}", config, sent, output, cost, cost_limit)
        names = dict.fromkeys((*task.tools, *(grant.name for grant in config.tools)))
        note = f"model {label}"
        if names:
            note += f", tools {', '.join(names)}"
        if task.examples:
            note += f", {len(task.examples)} examples"
        return _Asking(label, config, per_turn, cost_limit, timeout_s, note)

    def _report(
        self,
        where: str,
        config: HandlerConfig,
        sent: float | None,
        output: float | None,
        cost: float | None,
        cost_limit: float | None,
    ) -> None:
        profile = f"the profile {config.name!r}"
        if sent is None:
            self.missing[
                f"{where}: the context window is unknown; write <context_window> in {profile}"
            ] = None
        if output is None:
            self.missing[
                f"{where}: the longest answer is unknown; write max_output_tokens in <handler> of "
                f"the template or in <limits> of {profile}"
            ] = None
        if cost is None and cost_limit is None and sent is not None and output is not None:
            self.missing[
                f'{where}: the price is unknown; write <prices input="…" output="…"/> in {profile}'
            ] = None

    def _unbounded(self, task: Task, config: HandlerConfig) -> str:
        """Why the calls of a task that asks a model may be those of other tasks, else empty."""
        services = self._services
        is_refused = task.disable_reparsing is True or task.manual_xml is True
        if services.reparse and task.queries().most == 1 and not is_refused:
            return "reparse may decompose it; write <disable_reparsing>true</disable_reparsing>"
        for name in dict.fromkeys((*task.tools, *(grant.name for grant in config.tools))):
            registered = services.tools.get(name)
            if registered is not None and registered.kind != "subtask":
                continue
            if name in BACKGROUND_TOOLS:
                return f"{name} starts tasks in the background, which nothing bounds; remove it"
            if name in _NO_MODEL_TOOLS or server_of_tool(name, config.mcp) is not None:
                continue
            return (
                f"{name} may start tasks of other models; write max_cost in its <handler> to "
                "bound the cost"
            )
        return ""


def _setting(task: Task, name: str, default: Any) -> Any:
    """A limit of the task, else of its profile; None where a variable sets it."""
    stated = None
    if task.handler is not None:
        stated = getattr(task.handler, name)
    if isinstance(stated, Text):
        return None
    if stated is None:
        return default
    return stated


def _max_cost(
    config: HandlerConfig,
    model: str,
    sent: float | None,
    output: float | None,
    *,
    is_batch: bool = False,
) -> float | None:
    """The most that an attempt with at most so many tokens costs, however they are billed."""
    if sent is None or output is None:
        return None
    tokens = (int(sent), int(output))
    if config.prices is not None and not is_batch:
        return (tokens[0] * config.prices[0] + tokens[1] * config.prices[1]) / 1e6
    terms = cache_terms_of(config, model)
    if terms is not None and terms.needs_marks:
        most_written = tokens[0]
    else:
        most_written = 0
    cost_of = prices.cost_usd
    if is_batch:
        cost_of = partial(prices.batch_cost_usd, profile=config.prices)
    costs = [
        cost_of(model, Usage(*tokens, 0, reasoning, cache_write_tokens=written))
        for reasoning in (0, tokens[1])
        for written in {0, most_written}
    ]
    known = [cost for cost in costs if cost is not None]
    return max(known, default=None)


def _nano(dollars: float | None) -> int | None:
    if dollars is None:
        return None
    return ceil(dollars * _NANO)
