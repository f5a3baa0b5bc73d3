"""What the pages share: the project's folders, the indexes of batches, and numbers that take
time.

The folders are those of task files, batches, queues, searches for better templates and background
tasks, below one folder. They are found by looking. An address names a folder by a hash of its
relative path, so that no address leads outside what was found. Links are not followed.
"""

from __future__ import annotations

import hmac
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import field
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from evaluator import clock
from evaluator.batch.folder import MANIFEST, RESULTS, TASKS
from evaluator.errors import EvaluatorError, UsageError
from evaluator.files.locations import shipped
from evaluator.improve.certificate import LOG, TEMPLATE_FILE
from evaluator.jobs.background_store import FILE_NAME as BACKGROUND
from evaluator.jobs.queue_view import DATABASE as QUEUE
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.library import TemplateLibrary
from evaluator.record.steps import plain_json
from evaluator.record.store import TaskStore
from evaluator.viewer.json_form import Query
from evaluator.viewer.server.batch_index import BatchIndex
from evaluator.viewer.server.matrix import Matrix

LIVE_MS = 2_000
MAX_DEPTH = 4
MAX_FOLDERS = 5_000
_SKIPPED = frozenset({"active", "done", "segments", "blobs", "node_modules", "__pycache__"})


class NoSuchPage(EvaluatorError):
    """An address names a folder, a run or a sample that does not exist."""


Kind = Literal["batches", "queues", "background", "searches"]
_MISSING: dict[Kind, str] = {
    "batches": "batch now; open the list of batches",
    "queues": "queue now; open the page of the queue again",
    "background": "folder now; open the list of background tasks",
    "searches": "search now; open the list of batches",
}


@dataclass(slots=True)
class ProjectFolders:
    """The folders of each kind by id, in the order of their paths. `is_cut`: there were more
    folders to look into.
    """

    stores: dict[str, Path] = field(default_factory=dict[str, Path])
    batches: dict[str, Path] = field(default_factory=dict[str, Path])
    queues: dict[str, Path] = field(default_factory=dict[str, Path])
    background: dict[str, Path] = field(default_factory=dict[str, Path])
    searches: dict[str, Path] = field(default_factory=dict[str, Path])
    is_cut: bool = False


class Project:
    """The folder `root` and what is in it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._found = ProjectFolders()

    @property
    def title(self) -> str:
        """The project's name: that of its folder."""
        return self.root.name or "evaluator"

    def folders(self) -> ProjectFolders:
        """Looks again."""
        found = ProjectFolders()
        for number, (path, names) in enumerate(islice(_walk(self.root), MAX_FOLDERS), 1):
            is_of_batch = is_batch(names)
            for is_of_kind, folders in (
                (is_of_batch, found.batches),
                (is_store(names) and not is_of_batch, found.stores),
                (QUEUE in names, found.queues),
                (BACKGROUND in names, found.background),
                ({LOG, TEMPLATE_FILE} <= names, found.searches),
            ):
                if is_of_kind:
                    folders[self.id_of(path)] = path
            found.is_cut = number == MAX_FOLDERS
        self._found = found
        return found

    def id_of(self, folder: Path) -> str:
        return blake2b(os.fsencode(os.path.relpath(folder, self.root)), digest_size=6).hexdigest()

    def name_of(self, folder: Path) -> str:
        """The path from the root."""
        relative = os.path.relpath(folder, self.root)
        return folder.name if relative == "." else relative

    def find(self, kind: Kind, folder_id: str) -> Path:
        """The folder of this kind with that id. Raises: NoSuchPage."""
        path = getattr(self._found, kind).get(folder_id)
        path = path or getattr(self.folders(), kind).get(folder_id)
        if path is None:
            raise NoSuchPage(f"{self.root}: there is no such {_MISSING[kind]}")
        return path

    def store(self, folder_id: str) -> TaskStore:
        """The task folder with that id, or that of the batch with that id. Raises: NoSuchPage."""
        for found in (self._found, self.folders()):
            if folder_id in found.stores:
                return TaskStore(found.stores[folder_id])
            if folder_id in found.batches and not (found.batches[folder_id] / TASKS).is_symlink():
                return TaskStore(found.batches[folder_id] / TASKS)
        raise NoSuchPage(f"{self.root}: there is no such task folder now; open the list of runs")


def is_batch(names: set[str]) -> bool:
    """Whether a folder with these entries is a batch: other programs have files of the manifest's
    name too.
    """
    return MANIFEST in names and bool({RESULTS, TASKS} & names)


def is_store(names: set[str]) -> bool:
    """Whether a folder with these entries holds task files, of this program or of another."""
    return bool({"active", "done"} & names) or any(
        name.startswith("TASK-") and name.endswith(".md") for name in names
    )


def _walk(root: Path) -> Iterator[tuple[Path, set[str]]]:
    """Each folder with the names in it, level by level. A folder that cannot be listed has none."""
    level = [root]
    for _ in range(MAX_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            names: set[str] = set()
            inside: list[str] = []
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        names.add(entry.name)
                        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                            inside.append(entry.name)
            except OSError:
                continue
            yield folder, names
            # The task files of a batch belong to the batch.
            if is_batch(names):
                left_out = _SKIPPED | {TASKS}
            else:
                left_out = _SKIPPED
            below += [folder / name for name in sorted(inside) if name not in left_out]
        level = below


WAIT_S = 0.2
"""How long a page waits for numbers before it is shown without them."""
COMPUTING_MS = 1_000
"""How often a page asks for what is being computed."""
_KEPT = 8


@frozen
class Value:
    """`value` is None where it is not there yet or `error` says why there is none. `is_current`:
    nothing has changed since it was computed.
    """

    value: Any
    error: str
    is_current: bool

    def to_dict(self) -> dict[str, Any]:
        return {"error": self.error, "is_current": self.is_current, "data": self.value}


LATER = Value(None, "", is_current=False)
"""A value that nobody computes yet."""


@dataclass(slots=True)
class _Entry:
    latest: tuple[Hashable, Any, str] = (None, None, "")
    """The version, the value and the error: replaced together, while others read."""
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
                and entry.latest[0] != version
                and clock.monotonic() >= entry.due_s
            ):
                entry.done.clear()
                threading.Thread(
                    target=_compute, args=(entry, version, compute, self._share), daemon=True
                ).start()
        entry.done.wait(WAIT_S)
        found, value, error = entry.latest
        return Value(value, error, is_current=found == version)


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
        entry.latest = (version, value, error)
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


@frozen
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

    def check_form(self, query: Query) -> None:
        """Raises: UsageError, if a form is not of this server."""
        if not hmac.compare_digest(
            query.get("token", "").encode("utf-8", "replace"), self.form_token.encode()
        ):
            raise UsageError(
                "the form is not of this server, or the server was started again; open the page "
                "again"
            )

    def check_confirmed(self, query: Query, what: str) -> None:
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
