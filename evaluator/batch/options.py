"""The options of a batch, each declared once: its type, its default, its flag and what it means.

`run_batch` takes the fields of `BatchOptions` as keyword arguments, a TOML file has them as keys,
`evaluator batch` has their flags, the manifest stores them, and the docs list them. A new option is
a new field here and a new parameter of `run_batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from evaluator.batch.decision import Deciding
from evaluator.batch.display import DisplayName
from evaluator.batch.records import COUNTABLE, COUNTED, Limited
from evaluator.batch.rows import FewShot, Selection
from evaluator.errors import UsageError
from evaluator.fields import (
    SESSION,
    After,
    Before,
    Checked,
    Count,
    Doc,
    FieldError,
    Flag,
    Name,
    Names,
    Natural,
    PathText,
    Positive,
    Section,
    check_names,
    use_defaults,
)
from evaluator.interpreter.evaluator_flags import SANDBOX
from evaluator.interpreter.recovery import OnUnfinished
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.processes.sandboxes import Sandbox

if TYPE_CHECKING:
    from evaluator.batch.display import Display
    from evaluator.batch.engines.base import Engine
    from evaluator.models.cache import ResponseCache

OnChanged = Literal["leave", "run", "keep"]
Empty = Literal["keep", "error"]
TaskFiles = Literal["packed", "each"]
State = Literal["complete", "incomplete", "waiting", "stopped", "budget", "repeated error"]
ProviderBatchRest = Literal["batch", "interactive"]
RESUMING = "With --resume"
"""The section of options that have an effect only on a batch that is resumed."""
EngineName = Literal["local", "processes", "ray"]


@dataclass(slots=True)
class Stop:
    """Ends a running session early: nothing new starts, samples in flight are finished. `reason` is
    shown.

    `ask` may be called from any thread and from a signal handler. Only the first call has an
    effect.
    """

    state: State | None = None
    reason: str = ""
    _listeners: list[Callable[[], object]] = field(
        default_factory=list[Callable[[], object]], init=False, repr=False, compare=False
    )

    def ask(self, state: State = "stopped", reason: str = "stop requested") -> None:
        if self.state is None:
            self.reason = reason
            self.state = state
            for listener in tuple(self._listeners):
                listener()

    @contextmanager
    def calling(self, listener: Callable[[], object]) -> Generator[None]:
        """Inside the context, `ask` calls `listener` in the thread that calls `ask`."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)


def _as_items(value: Any) -> Any:
    """The items of any iterable, except of a string or a table."""
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        return value
    return tuple(cast("Iterable[Any]", value))


def _as_conditions(value: Any) -> Any:
    return (value,) if isinstance(value, str) else _as_items(value)


def _as_sandbox(value: Any) -> Any:
    return Sandbox.parse(value) if isinstance(value, str) else value


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _as_seconds(value: Any) -> Any:
    """Seconds of a text such as `90m`; another value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return float(value[:-1]) * _UNITS[value[-1:]]
    except (KeyError, ValueError):
        raise FieldError(f"is {value!r}, expected a time such as 90m or 6h") from None


def _without_spaces(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    texts = cast("Mapping[Any, Any]", value)
    return {name.strip() if isinstance(name, str) else name: text for name, text in texts.items()}


def _check_reasons(reasons: tuple[str, ...]) -> tuple[str, ...]:
    if reasons == ("none",):
        return ()
    check_names(reasons, COUNTABLE)
    return reasons


def _check_cache(cache: Any) -> Any:
    if not isinstance(cache, str) and not callable(getattr(cache, "close", None)):
        raise ValueError(f"is {cache!r}, expected a file or a ResponseCache")
    return cache


@frozen
class BatchLimits(Checked, error=UsageError):
    """Limits of a whole batch; None: no limit.

    `concurrency`: tasks at once, and the most calls in flight to one endpoint.
    `requests_per_minute` and `tokens_per_minute` hold for each model and endpoint. `max_cost` in US
    dollars, `max_tokens` input and output together, `max_time` in seconds: reserved before each
    call, for tasks and their judges. `stop_after`: the session ends after this many samples in a
    row with the same error; 0: never.
    """

    concurrency: Annotated[Count, Flag("--concurrency", "Tasks at once.")] = 64
    requests_per_minute: Annotated[
        Positive | None, Flag("--rpm", "Requests per minute to each model.")
    ] = None
    tokens_per_minute: Annotated[
        Positive | None, Flag("--tpm", "Tokens per minute to each model.")
    ] = None
    max_cost: Annotated[
        Positive | None, Flag("--max-cost", "US dollars for the whole session.")
    ] = None
    max_tokens: Annotated[Count | None, Flag("--max-tokens", "Tokens for the whole session.")] = (
        None
    )
    max_time: Annotated[Positive | None, Flag("--max-time", "Seconds for the whole session.")] = (
        None
    )
    stop_after: Annotated[
        Natural,
        Flag(
            "--stop-after",
            "Stop after this many samples in a row with the same error; 0: never.",
        ),
    ] = 20


def limits_to_dict(limits: BatchLimits) -> dict[str, Any]:
    """The limits that are set, as JSON."""
    return {name: value for name, value in asdict(limits).items() if value is not None}


@frozen(kw_only=True)
class BatchOptions(Checked, error=UsageError):
    """The options of a batch, besides its templates and rows: the keyword arguments of `run_batch`.

    `inputs`, `id`, `target` and `metadata` name fields of a row, or are an expression in `{{ … }}`;
    `select` says which rows. `answers`: the field with existing answers, which are scored without a
    call. `shuffle_choices`: a seed for the order of each row's options; the target is moved along.
    `empty`: empty cells of required inputs are kept, with a warning, or an "error". `fewshot`:
    examples that the model sees before each row, see `FewShot`. `scorers`: names, tables or
    functions. `metrics`: averages, or functions of all results. Each of `models` is combined with
    each of `handlers`; each sample is evaluated `epochs` times. `thresholds`: conditions such as
    `"accuracy >= 0.8"`. `count_as_failed`: types and reasons of errors that count as failed
    answers. `limited`: whether an answer that a limit cut off is "scored" like any other, "failed"
    or an "error". `decide`:
    the difference that the batch has to show, and when it may stop, see `Deciding`. `cluster` and
    `group_by` name metadata fields, or are expressions over them: equal values of `cluster` are not
    independent (clustered standard errors); numbers are shown for each value of `group_by`.
    `reducers`: how epochs become one number (`mean`, `mode`, `max`, `pass@3`, `pass^3`).

    `limits`: of calls, cost, tokens and time of the batch, see `BatchLimits`. `name`: the name of
    the batch (default: its templates). `output`: its folder. `task_files`: "packed" into a few
    files, or "each" as one.
    `resume` continues the batch in that folder: `retry_errors` runs samples again that ended with
    an error; `repair` removes damaged results, whose samples are evaluated again, and accepts a
    changed manifest; `on_changed`: what to do with results whose question has changed: "leave" them
    out, "run" them again, "keep" them; `unfinished`: what to do about a side effect without a
    recorded end, see `Evaluator.resume`.

    `provider_batch`: calls are made with the provider's batch API; the call returns when they are
    submitted, and `resume` collects, unless it is to `wait` (see `docs/howto/pay-half-price.md`).
    `provider_batch_rest`: calls that it did not answer are made in one further "batch", or as
    "interactive" calls, which `provider_batch_deadline` seconds after the first submission are all
    that is left; `keep_provider_files`: nothing is deleted at the provider.
    `cache`: a file of responses. `engine`: "local" (default), "processes", "ray" or your own;
    `workers`: the number of processes, for "ray" on each node. `sandbox`: as for `Evaluator`.
    `display`: "auto" (live progress on a terminal and in a notebook, else nothing), "live",
    "plain", "none", or your own `Display`. `stop`: its method `ask` ends the session after the
    samples in flight.

    Values are checked and stored in one form: lists as tuples, tables as `Selection` and
    `BatchLimits`. None stands for the default.

    Raises: UsageError, for an invalid value.
    """

    inputs: Annotated[
        Mapping[str, Name] | None,
        Before(_without_spaces),
        Flag(
            "--map",
            "Take an input from this field, or from an expression in {{ … }}.",
            metavar="INPUT=FIELD",
            example="question=prompt",
        ),
    ] = None
    id: Annotated[
        Name | None,
        Flag(
            "--id",
            "The field that identifies a row, or line: its number. Default: id, or its content.",
            metavar="FIELD",
        ),
    ] = None
    target: Annotated[
        Name | None,
        Flag("--target", "The field with the right answer. Default: target.", "FIELD"),
    ] = None
    metadata: Annotated[
        Names | Mapping[str, Name] | None,
        Flag(
            "--metadata",
            "A field, or NAME={{ EXPRESSION }}, to store with each result. Default: all that are "
            "left.",
            metavar="FIELD",
        ),
    ] = None
    answers: Annotated[
        Name | None,
        Flag(
            "--answers",
            "Score the answers in this field of the rows; no model is asked for one.",
            metavar="FIELD",
        ),
    ] = None
    shuffle_choices: Annotated[
        Natural | None,
        Flag(
            "--shuffle-choices",
            "Order the options of each row by this seed, and move the target along.",
            metavar="SEED",
        ),
    ] = None
    empty: Annotated[
        Empty,
        Flag(
            "--empty",
            "What an empty cell of a required input is: kept, with a warning, or an error.",
        ),
    ] = "keep"
    select: Selection = Selection()
    fewshot: Annotated[FewShot | None, Section("Few-shot examples")] = None
    models: Annotated[
        Names, Section("Models"), Flag("--model", "A model to evaluate with.", "MODEL")
    ] = ()
    handlers: Annotated[Names, Flag("--handler", "A handler profile.", "NAME")] = ()
    scorers: Annotated[
        tuple[Any, ...],
        Before(_as_items),
        Section("Scores"),
        Flag(
            "--scorer",
            "How answers are judged: includes, numeric:abs_tol=0.01, FILE.py:FUNCTION …",
            metavar="NAME[:ARG=VALUE,…]",
        ),
    ] = ()
    metrics: Annotated[
        tuple[Any, ...],
        Before(_as_items),
        Flag(
            "--metric",
            "A number over all results: macro:by=FIELD, weighted:weight=FIELD, FILE.py:FUNCTION …",
            metavar="NAME[:ARG=VALUE,…]",
        ),
    ] = ()
    epochs: Annotated[Count, Flag("--epochs", "How often each sample is evaluated.")] = 1
    reducers: Annotated[
        Names | None,
        Flag(
            "--epochs-by",
            "How epochs become one number: mean, mode, max, pass@3, pass^3 …",
            metavar="REDUCER",
        ),
    ] = None
    thresholds: Annotated[
        tuple[Any, ...],
        Before(_as_conditions),
        Flag(
            "--threshold",
            "A condition on the numbers, e.g. 'accuracy >= 0.8'.",
            metavar="CONDITION",
        ),
    ] = ()
    count_as_failed: Annotated[
        Names,
        After(_check_reasons),
        Flag(
            "--count-as-failed",
            "Errors of this type or with this reason count as failed answers; none: no error.",
            metavar="REASON",
        ),
    ] = COUNTED
    limited: Annotated[
        Limited,
        Flag(
            "--limited",
            "What an answer is that a limit cut off: scored like any other, failed, or an error.",
        ),
    ] = "scored"
    cluster: Annotated[
        Name | None,
        Flag(
            "--cluster",
            "The metadata field, or {{ expression }}, whose equal values are not independent.",
            metavar="FIELD",
        ),
    ] = None
    group_by: Annotated[
        Name | None,
        Flag(
            "--group-by",
            "Show the numbers for each value of this metadata field, or {{ expression }}.",
            metavar="FIELD",
        ),
    ] = None
    decide: Deciding = Deciding()
    limits: Annotated[BatchLimits, Section("Limits")] = BatchLimits()
    provider_batch: Annotated[
        bool,
        Section("Provider batches"),
        Flag(
            "--provider-batch",
            "Make the calls with the provider's batch API, at half price and within a day.",
        ),
    ] = False
    provider_batch_rest: Annotated[
        ProviderBatchRest,
        Flag(
            "--provider-batch-rest",
            "What follows where a provider batch has no answer: one further batch, or an "
            "interactive call.",
        ),
    ] = "batch"
    provider_batch_deadline: Annotated[
        Positive | None,
        Before(_as_seconds),
        Flag(
            "--provider-batch-deadline",
            "So long after the first submission, as in 6h, cancel what still runs and make the "
            "rest interactively.",
            metavar="TIME",
        ),
    ] = None
    keep_provider_files: Annotated[
        bool,
        Flag(
            "--keep-provider-files",
            "Do not delete files and results at the provider after they were collected.",
        ),
    ] = False
    wait: Annotated[
        bool,
        SESSION,
        Flag("--wait", "Wait until the provider batches are over."),
    ] = False
    name: Annotated[
        Name,
        Section("Where it runs"),
        Doc("The name of the batch. Default: its templates."),
    ] = ""
    output: Annotated[
        PathText | None,
        Flag("--output", "The batch's folder. Default: a new folder in batches/.", "FOLDER"),
    ] = None
    task_files: Annotated[
        TaskFiles,
        Flag(
            "--task-files",
            "Write the task files of all samples packed into a few files, or each as one file.",
        ),
    ] = "packed"
    cache: Annotated[
        PathText | ResponseCache | None,
        After(_check_cache),
        Flag(
            "--cache",
            "Answer calls that were made before from this file; see: evaluator cache.",
            metavar="FILE",
        ),
    ] = None
    engine: Annotated[
        EngineName | Engine | None,
        Flag(
            "--engine",
            "Where samples are evaluated: in this process (local), in several, or on a Ray "
            "cluster. Default: local.",
        ),
    ] = None
    workers: Annotated[
        Count | None,
        Flag(
            "--workers",
            "Processes of --engine processes, or of --engine ray on each node. Default: one per "
            "CPU.",
        ),
    ] = None
    sandbox: Annotated[Sandbox | None, Before(_as_sandbox), SESSION, SANDBOX] = None
    display: Annotated[
        DisplayName | Display | None,
        SESSION,
        Doc(
            "Progress: auto is live on a terminal (standard error) and in a notebook, and nothing "
            "elsewhere."
        ),
    ] = "auto"
    stop: Annotated[Stop | None, SESSION, Doc("A `Stop`, which can end the session.")] = None
    resume: Annotated[
        bool,
        SESSION,
        Section(RESUMING),
        Doc("Resume the batch in the folder `output`."),
    ] = False
    retry_errors: Annotated[
        bool,
        SESSION,
        Flag("--retry-errors", "Run samples again that ended with an error."),
    ] = False
    repair: Annotated[
        bool,
        SESSION,
        Flag(
            "--repair",
            "Remove damaged results, whose samples are evaluated again, and "
            "accept a changed manifest.",
        ),
    ] = False
    on_changed: Annotated[
        OnChanged,
        SESSION,
        Flag(
            "--changed",
            "What to do with results whose template, row or model has changed.",
        ),
    ] = "leave"
    unfinished: Annotated[
        OnUnfinished,
        SESSION,
        Flag(
            "--unfinished",
            "What to do about a side effect that was started and has no recorded end.",
            default="stop",
        ),
    ] = "ask"

    def __post_init__(self) -> None:
        use_defaults(self)
        Checked.__post_init__(self)
