"""What the code of a project was when a program began, so that no task of it runs code that another
task has written.

A person names code (`module:Model`, a scorer) and vouches for it as it is then. It may be imported
much later, after models have used tools that write files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from hashlib import sha256
from itertools import product

from evaluator import clock
from evaluator.errors import ConfigurationError
from evaluator.errors.messages import visible
from evaluator.files.trust import ProjectFile, is_allowed_content
from evaluator.lazy_dataclass import frozen


@frozen(eq=False)
class PinnedCode:
    """Refuses code below one of `folders` that is not as it was at `since` (seconds since 1970),
    unless the user has allowed its present content since.

    Pinned files are compared by content. Others, which import statements do not show, must not have
    changed since then, by the time that the file system keeps (`ctime`), which programs cannot set.
    """

    folders: tuple[str, ...]
    files: Mapping[str, str]
    """The pinned files, by their paths without links, with the hashes of their content."""
    since: float = field(default_factory=lambda: clock.wall() - clock.file_tick_s())

    def renewed(self) -> PinnedCode:
        """The same pinned files; others are as they are now."""
        return PinnedCode(self.folders, self.files)

    @classmethod
    def of(cls, places: Iterable[str], folders: Iterable[str]) -> PinnedCode:
        """The files below `folders` that importing `places` runs, as far as import statements show
        them, are pinned as they are now.
        """
        folders = tuple(folders)
        pins: dict[str, str] = {}
        for place, folder in product(places, folders):
            from evaluator.files.project_code import code_files

            files = code_files(place, folder, refuses_large=False)
            pins.update((os.path.realpath(file.path), file.sha256) for file in files)
        return cls(folders, pins)

    def covers(self, path: str) -> bool:
        from evaluator.files.project_code import is_below

        return any(is_below(path, folder) for folder in self.folders)

    def beside(self, path: str) -> PinnedCode:
        """The guard for a file that is imported by its path: the same."""
        return self

    def check(self, path: str, data: bytes) -> None:
        """Raises: ConfigurationError, for code that has changed."""
        if not self.covers(path):
            return
        pinned = self.files.get(os.path.realpath(path))
        changed = _changed(path)
        if pinned is None:
            is_same = changed < self.since
        else:
            is_same = pinned == sha256(data).hexdigest()
        if is_same or is_allowed_content(ProjectFile.of(self.folders[0], path, data, names=())):
            return
        if pinned is None and changed > clock.wall() + clock.file_tick_s():
            reason = "by the file system, this code was changed in the future, so a clock is wrong"
            remedy = "set the clock, touch the file"
        else:
            reason = (
                "this code was changed or written after the program had read what it may run, "
                "perhaps by a task"
            )
            remedy = "read the file"
        raise ConfigurationError(
            f"{visible(path, one_line=True)}: {reason}, so it is not imported; {remedy}, and start "
            "the program again, or make a new Evaluator, to use it as it is"
        )


def _changed(path: str) -> float:
    """When a file, or the link at `path`, was changed last."""
    try:
        return max(os.stat(path).st_ctime, os.lstat(path).st_ctime)
    except OSError:
        # A module in an archive, which `covers` names by its path there.
        return _changed(os.path.dirname(path)) if os.path.dirname(path) != path else 0.0
