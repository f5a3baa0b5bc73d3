"""Finds files by pattern below a folder's descriptor, without following symbolic links."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import translate

from evaluator.errors import ToolError
from evaluator.files.open_below import FOLDER, open_beneath
from evaluator.files.roots import Denied, identity_of

MAX_VISITED = 200_000
_MAX_DEPTH = 64


def find_files(root: int, parts: Sequence[str], denied: Denied) -> Iterator[str]:
    """Paths, relative to the descriptor `root`, of the regular files that match the pattern and are
    not denied.

    `parts` are the pattern's components; `**` stands for any number of folders. Depth first, at
    most 64 folders deep; folders that cannot be listed are skipped. Raises: ToolError, above
    200,000 examined names.
    """
    matchers = [None if part == "**" else re.compile(translate(part)) for part in parts]
    visited = 0

    def match(name: str, index: int) -> bool:
        matcher = matchers[index]
        if matcher is None:
            return not name.startswith(".")
        return (not name.startswith(".") or parts[index].startswith(".")) and bool(
            matcher.match(name)
        )

    def advance(states: frozenset[int], name: str) -> frozenset[int]:
        """The states after the name: indices of the components that may match the next name below
        it.
        """
        after: set[int] = set()
        for index in _closure(states, parts):
            if index < len(parts) and match(name, index):
                after.add(index if parts[index] == "**" else index + 1)
        return frozenset(after)

    def walk(folder: int, prefix: str, states: frozenset[int], depth: int) -> Iterator[str]:
        nonlocal visited
        try:
            with os.scandir(folder) as scan:
                items = sorted(
                    (
                        item.name,
                        item.is_dir(follow_symlinks=False),
                        item.is_file(follow_symlinks=False),
                    )
                    for item in scan
                )
        except OSError:
            return
        visited += len(items)
        if visited > MAX_VISITED:
            raise ToolError(
                f"more than {MAX_VISITED:,} names would have to be examined; narrow the pattern"
            )
        for name, is_folder, is_file in items:
            after = advance(states, name)
            if is_file and _accepts(after, parts) and not (denied and denied.denies(folder, name)):
                yield prefix + name
            if (
                is_folder
                and depth < _MAX_DEPTH
                and any(i < len(parts) for i in _closure(after, parts))
            ):
                try:
                    below = open_beneath(folder, [name], flags=FOLDER)
                except OSError:
                    continue  # not readable, or replaced by a link since it was listed
                try:
                    if identity_of(os.fstat(below)) in denied.identities:
                        continue
                    yield from walk(below, f"{prefix}{name}/", after, depth + 1)
                finally:
                    os.close(below)

    if not (denied and denied.encloses(root)):
        yield from walk(root, "", frozenset({0}), 0)


def _closure(states: frozenset[int], parts: Sequence[str]) -> set[int]:
    """The states, and after each `**` the next one too, since `**` also matches no folder at
    all.
    """
    reached = set(states)
    for index in states:
        while index < len(parts) and parts[index] == "**":
            index += 1
            reached.add(index)
    return reached


def _accepts(after: frozenset[int], parts: Sequence[str]) -> bool:
    """Whether the whole pattern is matched. A final `**` matches files too, unlike in a shell."""
    return len(parts) in _closure(after, parts)
