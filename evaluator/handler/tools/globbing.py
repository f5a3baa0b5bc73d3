"""Finds files by pattern beneath a descriptor, folder by folder, never through a link."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import translate

from evaluator.errors import ToolError
from evaluator.handler.tools.beneath import FOLDER, open_beneath
from evaluator.handler.tools.places import Closed, identity_of

MAX_VISITED = 200_000
_MAX_DEPTH = 64


def find_files(root: int, parts: Sequence[str], closed: Closed) -> Iterator[str]:
    """Paths, relative to the descriptor `root`, of the regular files that match the pattern's components and are not
    closed.

    Depth first, at most 64 folders deep; what cannot be listed is passed over. Raises ToolError above
    200,000 names looked at.
    """
    matchers = [None if part == "**" else re.compile(translate(part)) for part in parts]
    visited = 0

    def match(name: str, index: int) -> bool:
        matcher = matchers[index]
        if matcher is None:
            return not name.startswith(".")
        return (not name.startswith(".") or parts[index].startswith(".")) and bool(matcher.match(name))

    def advance(states: frozenset[int], name: str) -> frozenset[int]:
        """Which patterns may come next below `name`, for those that may match it now."""
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
                    (item.name, item.is_dir(follow_symlinks=False), item.is_file(follow_symlinks=False))
                    for item in scan
                )
        except OSError:
            return
        visited += len(items)
        if visited > MAX_VISITED:
            raise ToolError(f"more than {MAX_VISITED:,} names would have to be looked at; narrow the pattern")
        for name, is_folder, is_file in items:
            after = advance(states, name)
            if is_file and _accepts(after, parts) and not (closed and closed.holds(folder, name)):
                yield prefix + name
            if is_folder and depth < _MAX_DEPTH and any(i < len(parts) for i in _closure(after, parts)):
                try:
                    below = open_beneath(folder, [name], FOLDER)
                except OSError:
                    continue  # not ours to read, or swapped for a link since it was listed
                try:
                    if identity_of(os.fstat(below)) in closed.identities:
                        continue
                    yield from walk(below, f"{prefix}{name}/", after, depth + 1)
                finally:
                    os.close(below)

    if not (closed and closed.is_within(root)):
        yield from walk(root, "", frozenset({0}), 0)


def _closure(states: frozenset[int], parts: Sequence[str]) -> set[int]:
    """With each `**` also what follows it, since it may stand for no folder at all."""
    reached = set(states)
    for index in states:
        while index < len(parts) and parts[index] == "**":
            index += 1
            reached.add(index)
    return reached


def _accepts(after: frozenset[int], parts: Sequence[str]) -> bool:
    """A final `**` matches folders only, in the words of a shell; here it takes the files below as well."""
    return len(parts) in _closure(after, parts)
