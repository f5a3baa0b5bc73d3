"""What a batch is, as data: read from a TOML file, from the command line, or from the manifest of an earlier run.

name = "capitals"
template = "answer_question"          # or: templates = [...]
rows = "rows.jsonl"                   # relative to this file
models = ["openai/gpt-4o-mini"]
epochs = 2
gates = ["accuracy >= 0.8", "errors <= 0"]

[inputs]
question = "{{ 'What is the capital of ' ~ country ~ '?' }}"

[select]
limit = 100

[[scorers]]
type = "includes"
ignore_case = true

[limits]
max_cost = 2.0
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast, get_args

from evaluator.errors import UsageError
from evaluator.library.near import did_you_mean, listed
from evaluator.results import FailureReason

DEFAULT_FILE = "evaluator.toml"
DEFAULT_CONCURRENCY = 64
DEFAULT_STOP_AFTER = 20


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of a whole batch; None: no bound.

    `concurrency`: tasks at once, and the most calls in flight to one endpoint. `requests_per_minute` and
    `tokens_per_minute` hold for each model and endpoint. `max_cost` in US dollars, `max_tokens` input and output
    together, `max_time` in seconds: reserved before each call, for tasks and their judges. `stop_after`: so many
    samples in a row with the same error end the session; 0 never does.
    """

    concurrency: int = DEFAULT_CONCURRENCY
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_cost: float | None = None
    max_tokens: int | None = None
    max_time: float | None = None
    stop_after: int = DEFAULT_STOP_AFTER

    def __post_init__(self) -> None:
        _whole("concurrency", self.concurrency, 1)
        _whole("stop_after", self.stop_after, 0)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1)
        for name in ("requests_per_minute", "tokens_per_minute", "max_cost", "max_time"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 < value < math.inf):
                raise UsageError(f"{name} is {value!r}, expected a number above 0")

    def to_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}


@dataclass(frozen=True, slots=True)
class BatchDefinition:
    """A batch that can be written down: everything but rows, scorers and models that are Python objects.

    `rows` is a path. `inputs`, `id`, `target` and `metadata` say what of a row is what; `select` which rows
    (`limit`, `start`, `stop`, `where`, `sample`, `seed`). `scorers` are names or tables with a `type`. `gates` are
    conditions on the summary. `count_as_failed` are the reasons of errors that count as failed answers, as
    `output_format_failure` may. `models` and `handlers` are each combined with each.
    """

    templates: tuple[str, ...]
    rows: str
    name: str = ""
    inputs: Mapping[str, str] | None = None
    id: str | None = None
    target: str | None = None
    metadata: tuple[str, ...] | None = None
    select: Mapping[str, Any] = field(default_factory=dict[str, Any])
    epochs: int = 1
    models: tuple[str, ...] = ()
    handlers: tuple[str, ...] = ()
    model_roles: Mapping[str, str] = field(default_factory=dict[str, str])
    scorers: tuple[Any, ...] = ()
    gates: tuple[str, ...] = ()
    count_as_failed: tuple[str, ...] = ()
    limits: BatchLimits = field(default_factory=BatchLimits)
    library: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    output: str | None = None
    cache: str | None = None
    cluster: str | None = None
    group_by: str | None = None
    reducers: tuple[str, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As `definition_from` reads it, without what is the default."""
        data: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, BatchLimits):
                value = value.to_dict()
            elif isinstance(value, tuple):
                value = list(cast("tuple[Any, ...]", value))
            if value not in (None, [], {}, ""):
                data[each.name] = value
        return data


def read_definition(path: str | Path) -> BatchDefinition:
    """The definition in a TOML file; paths in it are relative to its folder.

    Raises: UsageError, with the file and, for TOML that cannot be parsed, line and column.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8, at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: is not TOML: {error}") from error
    try:
        return definition_from(data, path.parent)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def definition_from(data: Mapping[str, Any], folder: Path | None = None) -> BatchDefinition:
    """A definition from a table; relative paths in it are taken to be in `folder`.

    Raises: UsageError, for a name that is not known (with the nearest) or a value of the wrong type.
    """
    given = dict(data)
    if "template" in given:
        if "templates" in given:
            raise UsageError("give template or templates, not both")
        given["templates"] = [given.pop("template")]
    _known(given, _FIELDS, "")
    for name, check in _FIELDS.items():
        if name in given:
            given[name] = check(name, given[name])
    for name in ("templates", "rows"):
        if not given.get(name):
            raise UsageError(f"{name.removesuffix('s') if name == 'templates' else name} is missing")
    if folder is not None:
        given = _placed(given, folder)
    return BatchDefinition(**given)


def _placed(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    def at(path: str) -> str:
        return str(folder / path)

    placed = {name: at(given[name]) for name in ("rows", "output", "cache") if given.get(name)}
    placed |= {name: tuple(map(at, given[name])) for name in ("library", "roots") if given.get(name)}
    return {**given, **placed}


Check = Callable[[str, Any], Any]


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} is {value!r}, expected a text")
    return value


def read_texts(name: str, value: Any) -> tuple[str, ...]:
    """One text, or several of which no two are the same. Raises: UsageError, for anything else."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise UsageError(f"{name} is {value!r}, expected a list of texts")
    texts = tuple(_text(name, item) for item in cast("list[Any]", items))
    for text in texts:
        if texts.count(text) > 1:
            raise UsageError(f"{name} names {text!r} twice")
    return texts


def _table(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r}, expected a table")
    return dict(cast("Mapping[str, Any]", value))


def _table_of_texts(name: str, value: Any) -> dict[str, str]:
    return {key: _text(f"{name}.{key}", inner) for key, inner in _table(name, value).items()}


def read_select(name: str, value: Any) -> dict[str, Any]:
    """The arguments of a `Selection`. Raises: as `read_limits`."""
    table = _table(name, value)
    _known(table, _SELECT, f"{name}.")
    return {key: _SELECT[key](f"{name}.{key}", inner) for key, inner in table.items()}


def _count(name: str, value: Any) -> int:
    return _whole(name, value, 0)


def _integer(name: str, value: Any) -> int:
    if type(value) is not int:
        raise UsageError(f"{name} is {value!r}, expected an integer")
    return value


def _scorers(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"{name} is {value!r}, expected a list of names or tables")
    items = cast("list[Any]", value)
    for item in items:
        if not isinstance(item, (str, Mapping)):
            raise UsageError(f"{name} holds {item!r}, expected a scorer's name or a table with its type")
    return tuple(items)


def read_reasons(name: str, value: Any) -> tuple[str, ...]:
    """Reasons of errors. Raises: UsageError, for one that there is not, with the nearest."""
    reasons = read_texts(name, value)
    known = get_args(FailureReason)
    for reason in reasons:
        if reason not in known:
            raise UsageError(f"{name}: {reason!r} is no reason of an error; {_nearest(reason, known)}")
    return reasons


def read_limits(name: str, value: Any) -> BatchLimits:
    """Raises: UsageError, for a name that is not known or a value that makes no sense."""
    table = _table(name, value)
    _known(table, {f.name: f for f in fields(BatchLimits)}, f"{name}.")
    return BatchLimits(**table)


_FIELDS: dict[str, Check] = {
    "templates": read_texts, "rows": _text, "name": _text, "inputs": _table_of_texts, "id": _text, "target": _text,
    "metadata": read_texts, "select": read_select, "epochs": lambda name, value: _whole(name, value, 1),
    "models": read_texts,
    "handlers": read_texts, "model_roles": _table_of_texts, "scorers": _scorers, "gates": read_texts,
    "count_as_failed": read_reasons, "limits": read_limits, "library": read_texts, "roots": read_texts, "output": _text,
    "cache": _text, "cluster": _text, "group_by": _text, "reducers": read_texts,
}  # fmt: skip
_SELECT: dict[str, Check] = {
    "limit": _count, "start": _count, "stop": _count, "where": _text, "sample": _count, "seed": _integer,
}  # fmt: skip


def _known(table: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    for name in table:
        if name not in known:
            raise UsageError(f"{where}{name} is not known here; {_nearest(name, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    return did_you_mean(name, names) or f"known are {listed(names, len(names))}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name} is {value!r}, expected an integer, {least} or more")
    return value
