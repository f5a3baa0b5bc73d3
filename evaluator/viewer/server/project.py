"""The folders that the viewer shows below one folder: task folders, batches, queues, searches for
better templates, and those of background tasks.

They are found by looking. An address names a folder by a hash of its relative path, so that no
address leads outside what was found. Links are not followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import field
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from evaluator.batch.folder import MANIFEST, RESULTS, TASKS
from evaluator.errors import EvaluatorError
from evaluator.improve.certificate import LOG, TEMPLATE_FILE
from evaluator.jobs.background_store import FILE_NAME as BACKGROUND
from evaluator.jobs.queue_view import DATABASE as QUEUE
from evaluator.lazy_dataclass import dataclass
from evaluator.record.store import TaskStore

MAX_DEPTH = 4
MAX_FOLDERS = 5_000
_SKIPPED = frozenset({"active", "done", "segments", "blobs", "node_modules", "__pycache__"})


class NoSuchPage(EvaluatorError):
    """An address names a folder, a run or a sample that does not exist."""


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
            if is_batch(names):
                kinds = [found.batches]
            elif is_store(names):
                kinds = [found.stores]
            else:
                kinds = []
            kinds += [
                kind
                for name, kind in ((QUEUE, found.queues), (BACKGROUND, found.background))
                if name in names
            ]
            if is_search(names):
                kinds.append(found.searches)
            for kind in kinds:
                kind[self.id_of(path)] = path
            found.is_cut = number == MAX_FOLDERS
        self._found = found
        return found

    def id_of(self, folder: Path) -> str:
        return blake2b(os.fsencode(os.path.relpath(folder, self.root)), digest_size=6).hexdigest()

    def name_of(self, folder: Path) -> str:
        """The path from the root."""
        relative = os.path.relpath(folder, self.root)
        if relative == ".":
            return folder.name
        return relative

    def batch(self, folder_id: str) -> Path:
        """Raises: NoSuchPage."""
        return self._find("batches", folder_id, what="batch now; open the list of batches")

    def queue(self, folder_id: str) -> Path:
        """Raises: NoSuchPage."""
        return self._find("queues", folder_id, what="queue now; open the page of the queue again")

    def background(self, folder_id: str) -> Path:
        """Raises: NoSuchPage."""
        return self._find(
            "background", folder_id, what="folder now; open the list of background tasks"
        )

    def search(self, folder_id: str) -> Path:
        """Raises: NoSuchPage."""
        return self._find("searches", folder_id, what="search now; open the list of batches")

    def _find(self, kind: str, folder_id: str, what: str) -> Path:
        found = getattr(self._found, kind).get(folder_id) or getattr(self.folders(), kind).get(
            folder_id
        )
        if found is None:
            raise NoSuchPage(f"{self.root}: there is no such {what}")
        return found

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


def is_search(names: set[str]) -> bool:
    """Whether a folder with these entries is a search for a better template."""
    return {LOG, TEMPLATE_FILE} <= names


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
