"""The options of a batch, each declared once: its default, its check, and its flag on the command
line.

`run_batch` takes the fields of `BatchOptions` as keyword arguments, a TOML file has them as keys,
`evaluator batch` has their flags, and the manifest stores them. A new option is a new field here
and a new parameter of `run_batch`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from evaluator.batch.records import COUNTABLE, COUNTED, Limited
from evaluator.batch.rows import FewShot, Selection
from evaluator.errors import UsageError
from evaluator.errors.messages import did_you_mean, listed
from evaluator.interpreter.recovery import ON_UNFINISHED, OnUnfinished
from evaluator.processes.sandboxes import HELP, Sandbox

if TYPE_CHECKING:
    from evaluator.batch.engines.base import Engine
    from evaluator.batch.notebook import DisplayName
    from evaluator.batch.progress import Display
    from evaluator.models.cache import ResponseCache

OnChanged = Literal["leave", "run", "keep"]
TaskFiles = Literal["packed", "each"]
State = Literal["complete", "incomplete", "stopped", "budget", "repeated error"]
_DISPLAYS = ("auto", "live", "plain", "none")
_ENGINES = ("local", "processes", "ray")
Check = Callable[[str, Any], Any]
"""Takes an option's name and value. Returns the value as it is stored. Raises UsageError if it is
invalid.
"""


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


# -- checks ----------------------------------------------------------------------------------------


def check_text(name: str, value: Any) -> str:
    """A string that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} is {value!r}, expected a string")
    return value


def check_texts(name: str, value: Any) -> tuple[str, ...]:
    """One string, or several without duplicates."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise UsageError(f"{name} is {value!r}, expected a list of strings")
    texts = tuple(check_text(name, item) for item in cast("Sequence[Any]", items))
    for text in texts:
        if texts.count(text) > 1:
            raise UsageError(f"{name} names {text!r} twice")
    return texts


def check_table(name: str, value: Any) -> dict[str, Any]:
    """A mapping."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r}, expected a table")
    return dict(cast("Mapping[str, Any]", value))


def check_names(given: Iterable[str], known: Iterable[str], where: str = "") -> None:
    """Raises: UsageError, for a name that is not in `known`, with the nearest one."""
    names = sorted(known)
    for name in given:
        if name not in names:
            hint = did_you_mean(name, names) or f"expected one of {listed(names, len(names))}"
            raise UsageError(f"{where}{name} is unknown; {hint}")


def check_table_of_texts(name: str, value: Any) -> dict[str, str]:
    return {
        key: check_text(f"{name}.{key}", inner) for key, inner in check_table(name, value).items()
    }


def _display(name: str, value: Any) -> Any:
    """One of the names, or an object with the methods of `Display`."""
    if isinstance(value, str) and value not in _DISPLAYS:
        hint = did_you_mean(value, _DISPLAYS)
        more = f"; {hint}" if hint else ""
        raise UsageError(f"{name} is {value!r}, expected {listed(_DISPLAYS)}, or a Display{more}")
    return value


def _at_least(least: int) -> Check:
    def check(name: str, value: Any) -> int:
        if type(value) is not int or value < least:
            raise UsageError(f"{name} is {value!r}, expected an integer, at least {least}")
        return value

    return check


def _positive(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise UsageError(f"{name} is {value!r}, expected a number above 0")
    return value


def _one_of(choices: Sequence[str]) -> Check:
    def check(name: str, value: Any) -> str:
        if value not in choices:
            raise UsageError(f"{name} is {value!r}, expected one of {', '.join(choices)}")
        return value

    return check


def _path(name: str, value: Any) -> str:
    return check_text(name, os.fspath(value) if isinstance(value, os.PathLike) else value)


def _cache(name: str, value: Any) -> Any:
    if isinstance(value, (str, Path)):
        return _path(name, value)
    if value is not None and not callable(getattr(value, "close", None)):
        raise UsageError(f"{name} is {value!r}, expected a file or a ResponseCache")
    return value


def _objects(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        raise UsageError(f"{name} is {value!r}, expected a list")
    return tuple(cast("Iterable[Any]", value))


def _sandbox(name: str, value: Any) -> Sandbox:
    if isinstance(value, Sandbox):
        return value
    return Sandbox.parse(check_text(name, value))


def _thresholds(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return (value,)
    return _objects(name, value)


def _reasons(name: str, value: Any) -> tuple[str, ...]:
    reasons = check_texts(name, value)
    if reasons == ("none",):
        return ()
    check_names(reasons, COUNTABLE, where=f"{name}: ")
    return reasons


def _table_of(kind: type[Any]) -> Check:
    """A value of the dataclass `kind`, or a table of its fields."""

    def check(name: str, value: Any) -> Any:
        if isinstance(value, kind):
            return value
        table = check_table(name, value)
        known = fields(kind)
        check_names(table, (each.name for each in known), where=f"{name}.")
        for each in known:
            if each.default is MISSING and each.name not in table:
                raise UsageError(f"{name}.{each.name} is missing")
        return kind(**table)

    return check


def _metadata(name: str, value: Any) -> tuple[str, ...] | dict[str, str]:
    if isinstance(value, Mapping):
        return check_table_of_texts(name, value)
    return check_texts(name, value)


def _engine(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return _one_of(_ENGINES)(name, value)
    return value


# -- declarations ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flag:
    """How an option is written on the command line. `several`: the flag may be repeated."""

    name: str
    help: str
    metavar: str | None = None
    type: type = str
    several: bool = False
    choices: Sequence[str] = ()
    default: str | None = None


def option(
    default: Any, check: Check | None = None, flag: Flag | None = None, *, in_file: bool = True
) -> Any:
    """A dataclass field that is an option. `in_file`: a TOML file may have it, and the manifest
    stores it.
    """
    return field(default=default, metadata={"check": check, "flag": flag, "in_file": in_file})


def check_options(options: Any) -> None:
    """Checks and normalizes the fields of a dataclass made of `option`s; None stands for the
    default.
    """
    for each in fields(options):
        value = getattr(options, each.name)
        check = each.metadata.get("check")
        if value is None and each.default is not MISSING:
            object.__setattr__(options, each.name, each.default)
        elif check is not None and value is not each.default:
            object.__setattr__(options, each.name, check(each.name, value))


def options_to_dict(options: Any) -> dict[str, Any]:
    """The options that a file may have, as JSON; empty ones are left out."""
    found: dict[str, Any] = {}
    for each in fields(options):
        value = getattr(options, each.name)
        if isinstance(value, (Selection, BatchLimits, FewShot)):
            value = {f.name: v for f in fields(value) if (v := getattr(value, f.name)) != f.default}
        elif isinstance(value, tuple):
            value = list(cast("tuple[Any, ...]", value))
        is_default = value in (None, [], {}, "") and not (value == [] and each.default)
        if each.metadata.get("in_file") and not is_default:
            found[each.name] = value
    return found


def flags_of(options: type[Any]) -> Iterator[tuple[str, Flag]]:
    """The flags of a dataclass of options, each with the name of its option, such as `epochs` or
    `limits.max_cost`.
    """
    for each in fields(options):
        if each.metadata.get("flag"):
            yield each.name, each.metadata["flag"]
        elif each.name in ("select", "fewshot"):
            if each.name == "select":
                flags = SELECT_FLAGS
            else:
                flags = FEWSHOT_FLAGS
            yield from ((f"{each.name}.{name}", flag) for name, flag in flags.items())
        elif each.name == "limits":
            yield from ((f"limits.{name}", flag) for name, flag in flags_of(BatchLimits))


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of a whole batch; None: no limit.

    `concurrency`: tasks at once, and the most calls in flight to one endpoint.
    `requests_per_minute` and `tokens_per_minute` hold for each model and endpoint. `max_cost` in US
    dollars, `max_tokens` input and output together, `max_time` in seconds: reserved before each
    call, for tasks and their judges. `stop_after`: the session ends after this many samples in a
    row with the same error; 0: never.
    """

    concurrency: int = option(
        64, _at_least(1), flag=Flag("--concurrency", "Tasks at once. Default: 64.", type=int)
    )
    requests_per_minute: float | None = option(
        None, _positive, flag=Flag("--rpm", "Requests per minute to each model.", type=float)
    )
    tokens_per_minute: float | None = option(
        None, _positive, flag=Flag("--tpm", "Tokens per minute to each model.", type=float)
    )
    max_cost: float | None = option(
        None, _positive, flag=Flag("--max-cost", "US dollars for the whole session.", type=float)
    )
    max_tokens: int | None = option(
        None, _at_least(1), flag=Flag("--max-tokens", "Tokens for the whole session.", type=int)
    )
    max_time: float | None = option(
        None, _positive, flag=Flag("--max-time", "Seconds for the whole session.", type=float)
    )
    stop_after: int = option(
        20,
        _at_least(0),
        flag=Flag(
            "--stop-after",
            "Stop after this many samples in a row with the same error; 0: never. Default: 20.",
            type=int,
        ),
    )

    def __post_init__(self) -> None:
        check_options(self)


SELECT_FLAGS: Mapping[str, Flag] = {
    "limit": Flag("--limit", "At most this many rows.", type=int),
    "sample": Flag("--sample", "This many rows, drawn at random with --seed.", type=int),
    "seed": Flag("--seed", "Seed of --sample. Default: 0.", type=int),
    "where": Flag(
        "--where",
        "Only rows for which this is true, e.g. \"subject == 'physics'\".",
        metavar="EXPRESSION",
    ),
    "start": Flag("--start", "Rows from this position on, counted from 0.", type=int),
    "stop": Flag("--stop", "Rows before this position.", type=int),
    "shard": Flag(
        "--shard", "Only part K of N of these rows; see: evaluator batch merge.", metavar="K/N"
    ),
}
"""The fields of `Selection`."""
FEWSHOT_FLAGS: Mapping[str, Flag] = {
    "rows": Flag(
        "--fewshot", "Show examples from these rows to the model, with --shots.", metavar="FILE"
    ),
    "k": Flag("--shots", "How many examples each row gets.", metavar="K", type=int),
    "seed": Flag(
        "--fewshot-seed",
        "The order in which examples are taken. Default: that of the file.",
        metavar="SEED",
        type=int,
    ),
    "match": Flag(
        "--fewshot-match", "Only examples with the same value of this field.", metavar="FIELD"
    ),
    "answer": Flag(
        "--fewshot-answer",
        "The field that is shown as an example's answer. Default: the target.",
        metavar="FIELD",
    ),
}
"""The fields of `FewShot`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """The options of a batch, besides its templates and rows. `run_batch` documents each option.

    Values are checked and stored in one form: lists as tuples, tables as `Selection` and
    `BatchLimits`.

    Raises: UsageError, for an invalid value.
    """

    name: str = option("", check_text)
    inputs: Mapping[str, str] | None = option(
        None,
        check_table_of_texts,
        flag=Flag(
            "--map",
            "Take an input from this field, or from an expression in {{ … }}.",
            metavar="INPUT=FIELD",
            several=True,
        ),
    )
    id: str | None = option(
        None,
        check_text,
        flag=Flag(
            "--id",
            "The field that identifies a row, or line: its number. Default: id, or its content.",
            metavar="FIELD",
        ),
    )
    target: str | None = option(
        None,
        check_text,
        flag=Flag("--target", "The field with the right answer. Default: target.", metavar="FIELD"),
    )
    answers: str | None = option(
        None,
        check_text,
        flag=Flag(
            "--answers",
            "Score the answers in this field of the rows; no model is asked for one.",
            metavar="FIELD",
        ),
    )
    shuffle_choices: int | None = option(
        None,
        _at_least(0),
        flag=Flag(
            "--shuffle-choices",
            "Order the options of each row by this seed, and move the target along.",
            metavar="SEED",
            type=int,
        ),
    )
    fewshot: FewShot | None = option(None, _table_of(FewShot))
    scorers: tuple[Any, ...] = option(
        (),
        _objects,
        flag=Flag(
            "--scorer",
            "How answers are judged: includes, numeric:abs_tol=0.01, FILE.py:FUNCTION …",
            metavar="NAME[:ARG=VALUE,…]",
            several=True,
        ),
    )
    metrics: tuple[Any, ...] = option(
        (),
        _objects,
        flag=Flag(
            "--metric",
            "A number over all results: macro:by=FIELD, weighted:weight=FIELD, FILE.py:FUNCTION …",
            metavar="NAME[:ARG=VALUE,…]",
            several=True,
        ),
    )
    epochs: int = option(
        1, _at_least(1), flag=Flag("--epochs", "How often each sample is evaluated.", type=int)
    )
    reducers: tuple[str, ...] | None = option(
        None,
        check_texts,
        flag=Flag(
            "--epochs-by",
            "How epochs become one number: mean, mode, max, pass@3, pass^3 …",
            metavar="REDUCER",
            several=True,
        ),
    )
    models: tuple[str, ...] = option(
        (),
        check_texts,
        flag=Flag("--model", "A model to evaluate with.", metavar="MODEL", several=True),
    )
    handlers: tuple[str, ...] = option(
        (), check_texts, flag=Flag("--handler", "A handler profile.", metavar="NAME", several=True)
    )
    select: Selection = option(Selection(), _table_of(Selection))
    metadata: tuple[str, ...] | Mapping[str, str] | None = option(
        None,
        _metadata,
        flag=Flag(
            "--metadata",
            "A field, or NAME={{ EXPRESSION }}, to store with each result. Default: all that are "
            "left.",
            metavar="FIELD",
            several=True,
        ),
    )
    cluster: str | None = option(
        None,
        check_text,
        flag=Flag(
            "--cluster",
            "The metadata field, or {{ expression }}, whose equal values are not independent.",
            metavar="FIELD",
        ),
    )
    group_by: str | None = option(
        None,
        check_text,
        flag=Flag(
            "--group-by",
            "Show the numbers for each value of this metadata field, or {{ expression }}.",
            metavar="FIELD",
        ),
    )
    thresholds: tuple[Any, ...] = option(
        (),
        _thresholds,
        flag=Flag(
            "--threshold",
            "A condition on the numbers, e.g. 'accuracy >= 0.8'.",
            metavar="CONDITION",
            several=True,
        ),
    )
    count_as_failed: tuple[str, ...] = option(
        COUNTED,
        _reasons,
        flag=Flag(
            "--count-as-failed",
            "Errors of this type or with this reason count as failed answers; none: no error. "
            "Default: output_format_failure.",
            metavar="REASON",
            several=True,
        ),
    )
    limited: Limited = option(
        "scored",
        _one_of(get_args(Limited)),
        flag=Flag(
            "--limited",
            "What an answer is that a limit cut off: scored like any other, failed, or an error.",
            choices=get_args(Limited),
            default="scored",
        ),
    )
    limits: BatchLimits = option(BatchLimits(), _table_of(BatchLimits))
    output: str | None = option(
        None,
        _path,
        flag=Flag(
            "--output", "The batch's folder. Default: a new folder in batches/.", metavar="FOLDER"
        ),
    )
    task_files: TaskFiles = option(
        "packed",
        _one_of(get_args(TaskFiles)),
        flag=Flag(
            "--task-files",
            "Write the task files of all samples packed into a few files, or each as one file.",
            choices=get_args(TaskFiles),
            default="packed",
        ),
    )
    cache: ResponseCache | str | None = option(
        None,
        _cache,
        flag=Flag(
            "--cache",
            "Answer calls that were made before from this file; see: evaluator cache.",
            metavar="FILE",
        ),
    )
    resume: bool = option(False, in_file=False)
    retry_errors: bool = option(
        False,
        None,
        flag=Flag(
            "--retry-errors",
            "With --resume: run samples again that ended with an error.",
            type=bool,
        ),
        in_file=False,
    )
    repair: bool = option(
        False,
        None,
        flag=Flag(
            "--repair",
            "With --resume: remove damaged results, whose samples are evaluated again, and "
            "accept a "
            "changed manifest.",
            type=bool,
        ),
        in_file=False,
    )
    on_changed: OnChanged = option(
        "leave",
        _one_of(get_args(OnChanged)),
        flag=Flag(
            "--changed",
            "With --resume: what to do with results whose template, row or model has changed.",
            choices=get_args(OnChanged),
            default="leave",
        ),
        in_file=False,
    )
    unfinished: OnUnfinished = option(
        "ask",
        _one_of(ON_UNFINISHED),
        flag=Flag(
            "--unfinished",
            "With --resume: what to do about a side effect that was started and has no "
            "recorded end.",
            choices=ON_UNFINISHED,
            default="stop",
        ),
        in_file=False,
    )
    engine: Engine | str | None = option(
        None,
        _engine,
        flag=Flag(
            "--engine",
            "Where samples are evaluated: in this process (local), in several, or on a Ray "
            "cluster. "
            "Default: local.",
            choices=_ENGINES,
        ),
    )
    workers: int | None = option(
        None,
        _at_least(1),
        flag=Flag(
            "--workers",
            "Processes of --engine processes, or of --engine ray on each node. Default: one "
            "per CPU.",
            type=int,
        ),
    )
    sandbox: Sandbox | str | None = option(
        None, _sandbox, flag=Flag("--sandbox", HELP, metavar="KIND"), in_file=False
    )
    display: Display | DisplayName | None = option("auto", _display, in_file=False)
    stop: Stop | None = option(None, in_file=False)

    def __post_init__(self) -> None:
        check_options(self)
