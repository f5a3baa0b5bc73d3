"""Lists the files of a root: those that git tracks, or those below a folder. Names and `stat` only,
nothing is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path

from evaluator import clock
from evaluator.errors import ToolError, UsageError
from evaluator.files.open_below import FOLDER, open_beneath, open_root
from evaluator.lazy_dataclass import dataclass
from evaluator.memory.store import Stamp
from evaluator.processes.scripts import run_script
from evaluator.processes.supervisor import scrubbed_environment

_GIT_TIMEOUT_S = 120.0
_GIT_BYTES = 200_000_000
_MAX_DEPTH = 100
_MAX_EXAMPLES = 20
# Folders of generated files. Hidden ones are left out in any case.
_CACHES = frozenset({"__pycache__", "node_modules", "__pypackages__", "CVS"})
_MARKERS = {
    "pyvenv.cfg": "a virtual environment",
    "CACHEDIR.TAG": "a cache folder",
    ".last-id": "a folder of task files",
}


@dataclass(slots=True)
class Skips:
    """The files and folders left out: how many for each reason, and the first paths as examples."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    examples: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def add(self, path: str, reason: str) -> None:
        """Counts one path."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        if len(self.examples) < _MAX_EXAMPLES:
            self.examples.append((path.encode("utf-8", "replace").decode(), reason))


@contextmanager
def _opened(root: str) -> Generator[int]:
    try:
        descriptor = open_root(root)
    except OSError as error:
        raise UsageError(f"{root}: cannot be indexed: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def folder_stamps(root: str, max_bytes: int, skips: Skips) -> Iterator[Stamp]:
    """Yields the regular files below `root`, folder by folder, by descriptor and never through a
    link.
    """
    with _opened(root) as descriptor:
        yield from _walk(descriptor, "", max_bytes=max_bytes, skips=skips, depth=0)


def _walk(folder: int, prefix: str, max_bytes: int, skips: Skips, depth: int) -> Iterator[Stamp]:
    with os.scandir(folder) as scan:
        items = sorted(scan, key=lambda item: item.name)
    marker = next((item.name for item in items if item.name in _MARKERS), None)
    if depth and marker is not None:
        skips.add(prefix, f"is {_MARKERS[marker]}")
        return
    for item in items:
        path = prefix + item.name
        if item.name.startswith("."):
            skips.add(path, "is hidden")
        elif item.is_dir(follow_symlinks=False):
            yield from _below(
                folder, item.name, path=path, max_bytes=max_bytes, skips=skips, depth=depth
            )
        else:
            with suppress(FileNotFoundError):
                yield from _stamps(
                    path, item.stat(follow_symlinks=False), max_bytes=max_bytes, skips=skips
                )


def _below(
    folder: int, name: str, path: str, max_bytes: int, skips: Skips, depth: int
) -> Iterator[Stamp]:
    if name in _CACHES:
        skips.add(path, "is a cache folder")
        return
    if depth == _MAX_DEPTH:
        skips.add(path, f"lies more than {_MAX_DEPTH} folders deep")
        return
    try:
        descriptor = open_beneath(folder, [name], flags=FOLDER)
    except OSError as error:
        skips.add(path, f"cannot be listed: {error.strerror}")
        return
    try:
        yield from _walk(descriptor, f"{path}/", max_bytes=max_bytes, skips=skips, depth=depth + 1)
    finally:
        os.close(descriptor)


async def git_paths(root: str) -> list[str]:
    """Returns the paths that git tracks in `root`, relative to it; root may be a subfolder or a
    worktree.

    Raises: UsageError, if it is not in a repository, git is not installed, or git refuses.
    """
    # A repository's own settings must not name a program that git then runs.
    argv = ["git", "-c", "core.fsmonitor=false", "ls-files", "-z", "--cached"]
    try:
        done = await run_script(
            argv,
            timeout_s=_GIT_TIMEOUT_S,
            cwd=Path(root),
            max_output_bytes=_GIT_BYTES,
            env={**scrubbed_environment(), "GIT_OPTIONAL_LOCKS": "0"},
        )
    except ToolError as error:
        raise UsageError(f"{root}: git cannot be run: {error}") from error
    if done.exit_code != 0 or done.stdout_truncated:
        reason = done.stderr.strip()[:500] or "it did not end"
        if done.stdout_truncated:
            reason = "its list is too long"
        raise UsageError(f"{root}: git cannot list its files: {reason}")
    return list(dict.fromkeys(path for path in done.stdout.split("\0") if path))


def git_stamps(root: str, paths: list[str], max_bytes: int, skips: Skips) -> Iterator[Stamp]:
    """Yields the regular files among `paths`; files that are tracked and gone are passed over."""
    with _opened(root) as descriptor:
        for path in paths:
            try:
                status = os.stat(path, dir_fd=descriptor, follow_symlinks=False)
            except OSError:
                if "\ufffd" in path:
                    skips.add(path, "has a name that is not UTF-8")
                continue
            yield from _stamps(path, status, max_bytes=max_bytes, skips=skips)


def _stamps(path: str, status: os.stat_result, max_bytes: int, skips: Skips) -> Iterator[Stamp]:
    """Yields the file's stamp, or counts why it is skipped."""
    if stat.S_ISLNK(status.st_mode):
        skips.add(path, "is a symbolic link")
    elif not stat.S_ISREG(status.st_mode):
        skips.add(
            path, "is a submodule" if stat.S_ISDIR(status.st_mode) else "is not a regular file"
        )
    elif status.st_size > max_bytes:
        skips.add(path, f"is larger than {max_bytes:,} bytes")
    elif path.encode(errors="replace").decode() != path:
        skips.add(path, "has a name that is not UTF-8")
    else:
        yield Stamp(
            path,
            status.st_size,
            mtime_ns=status.st_mtime_ns,
            ctime_ns=status.st_ctime_ns,
            seen_ns=clock.wall_ns(),
        )
