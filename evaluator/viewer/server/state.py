"""What the pages share: the project's folders, the indexes of batches, and numbers that take
time.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

from evaluator import clock
from evaluator.errors import EvaluatorError, UsageError
from evaluator.files.locations import shipped
from evaluator.lazy_dataclass import dataclass
from evaluator.library import TemplateLibrary
from evaluator.record.steps import plain_json
from evaluator.viewer.server.batch_index import BatchIndex
from evaluator.viewer.server.matrix import Matrix
from evaluator.viewer.server.project import Project

WAIT_S = 0.2
"""How long a page waits for numbers before it is shown without them."""
COMPUTING_MS = 1_000
"""How often a page asks for what is being computed."""
_KEPT = 8


@dataclass(frozen=True, slots=True)
class Value:
    """`value` is None where it is not there yet or `error` says why there is none. `is_current`:
    nothing has changed since it was computed.
    """

    value: Any
    error: str
    is_current: bool


LATER = Value(None, "", is_current=False)
"""A value that nobody computes yet."""


@dataclass(slots=True)
class _Entry:
    version: Hashable = None
    value: Any = None
    error: str = ""
    due_s: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)


class Computed:
    """Values that are computed in the background and kept while their source stays the same.

    Where the source changes all the time, as with a running batch, at most one part in `share` of
    the time is spent on computing again; the older value is given meanwhile.
    """

    def __init__(self, share: int = 100) -> None:
        self._share = share
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: Hashable, version: Hashable, compute: Callable[[], Any]) -> Value:
        """The value of `name` for `version` of its source. An error of `compute` becomes
        `error`.
        """
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                entry = self._entries[name] = _Entry()
                entry.done.set()
                while len(self._entries) > _KEPT:
                    self._entries.popitem(last=False)
            self._entries.move_to_end(name)
            if (
                entry.done.is_set()
                and entry.version != version
                and clock.monotonic() >= entry.due_s
            ):
                entry.done.clear()
                threading.Thread(
                    target=_compute, args=(entry, version, compute, self._share), daemon=True
                ).start()
        entry.done.wait(WAIT_S)
        return Value(entry.value, entry.error, is_current=entry.version == version)


def _compute(entry: _Entry, version: Hashable, compute: Callable[[], Any], share: int) -> None:
    begun = clock.monotonic()
    value = None
    error = ""
    try:
        value = compute()
    except (EvaluatorError, OSError) as problem:
        error = str(problem)
    except Exception as problem:
        error = f"This is a bug of evaluator: {type(problem).__name__}: {problem}"
    finally:
        ended = clock.monotonic()
        entry.value = value
        entry.error = error
        entry.version = version
        entry.due_s = ended + share * (ended - begun)
        entry.done.set()


class Library:
    """The templates of a project and the shipped ones, read again when their files change."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "templates"
        self._lock = threading.Lock()
        self._library: TemplateLibrary | None = None
        self._has_own = False

    def read(self) -> TemplateLibrary:
        with self._lock:
            has_own = self._folder.is_dir()
            if self._library is None or has_own != self._has_own:
                self._library = TemplateLibrary.load(
                    self._folder if has_own else shipped("templates")
                )
                self._has_own = has_own
            else:
                self._library.reload()
            return self._library


def _matrix(folder: Path) -> Matrix:
    return Matrix(BatchIndex(folder))


@dataclass(frozen=True, slots=True)
class State:
    """`form_token` is in every form that can run something."""

    project: Project
    library: Library
    form_token: str
    matrix: Callable[[Path], Matrix] = field(default_factory=lambda: lru_cache(maxsize=4)(_matrix))
    """The matrix of the batch in a folder; those that were looked at last are kept."""
    summaries: Computed = field(default_factory=Computed)
    comparisons: Computed = field(default_factory=Computed)

    boards: Computed = field(default_factory=lambda: Computed(share=10))

    portraits: Computed = field(default_factory=lambda: Computed(share=10))
    labellers: Computed = field(default_factory=Computed)
    """The sessions of labellers, see `labelling`."""
    labelling: threading.Lock = field(default_factory=threading.Lock)
    """Held while a session of a labeller is asked something."""

    def check_form(self, query: Mapping[str, str]) -> None:
        """Raises: UsageError, if a form is not of this server."""
        if not hmac.compare_digest(
            query.get("token", "").encode("utf-8", "replace"), self.form_token.encode()
        ):
            raise UsageError(
                "the form is not of this server, or the server was started again; open the page "
                "again"
            )

    def check_confirmed(self, query: Mapping[str, str], what: str) -> None:
        """Raises: UsageError, if a form is not of this server, or `what` it asks for was not
        confirmed.
        """
        self.check_form(query)
        if query.get("confirm") != "yes":
            raise UsageError(f"{what} was not confirmed; tick the box beside the button")

    @property
    def wait_s(self) -> float:
        """How long a page waits for what is read in the background."""
        return WAIT_S


def with_query(path: str, **values: Any) -> str:
    """`path` with a query; empty values and None are left out."""
    given = {name: value for name, value in values.items() if value not in (None, "")}
    if given:
        return f"{path}?{urlencode(given, errors='replace')}"
    return path


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a JSON object, else an empty one: what a file of somebody else holds may be
    anything.
    """
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    return {}


def items(value: Any) -> list[Any]:
    """`value` if it is a JSON array, else an empty one."""
    if isinstance(value, list):
        return cast("list[Any]", value)
    return []


def minute(time: Any) -> str:
    """An ISO time without seconds, or nothing."""
    return str(time or "")[:16].replace("T", " ")


def pretty(value: Any) -> str:
    """Text as it is, anything else as indented JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return json.dumps(value, ensure_ascii=False, indent=2, default=plain_json)
    except RecursionError:
        return "[nested too deeply to show]"
