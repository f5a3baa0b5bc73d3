"""The `Memory` protocol, and an index in memory: paths with a descriptive string each.

Memory holds metadata only. It never opens a file: the caller gives descriptions, or they are made
from names. The Handler reads the paths that were found relevant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import Protocol, runtime_checkable

from evaluator.errors import UsageError
from evaluator.lazy_dataclass import frozen
from evaluator.library.matching import Reason
from evaluator.library.words import (
    QueryTerm,
    idf,
    merge_terms,
    query_terms,
    stem,
    with_positions,
    words,
)

# A word in a path counts more than one in a description: its author chose it to name the file.
_PATH_WEIGHT = 1.0
_DESCRIPTION_WEIGHT = 0.8
_SMALL_INDEX = 20
_UNKNOWN_CAP = 2.0
_REASON_WORDS = 5
_MAX_ENTRIES = 10_000


@frozen
class ContextRequest:
    """A request for context: a task's description, its inputs by name, and the context it
    inherited, as text.
    """

    description: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    inherited: str = ""


@frozen
class RelevantPath:
    """A path, its relevance (0 to 1, comparable between requests), and the words that made it
    relevant.

    `reason` is `why` as text: the terms that counted most, each with the field that holds it.
    """

    path: str
    score: float
    reason: str
    why: tuple[Reason, ...] = ()


@runtime_checkable
class Memory(Protocol):
    """Finds the paths for a task's fresh context.

    It returns at most `limit` paths, most relevant first, equal scores by path, none that scores 0,
    and never the content of a file.
    """

    async def get_relevant_context_for(
        self, request: ContextRequest | str, limit: int = 10
    ) -> list[RelevantPath]: ...


class InMemoryIndex:
    """A `Memory` over a mapping of paths to descriptions, compared by their words.

    The score is the idf-weighted share of the request's words that an entry holds. Paths are stored
    as given, neither resolved nor checked. Not thread-safe: one event loop.
    """

    def __init__(self, entries: Mapping[str, str] | None = None) -> None:
        self._descriptions: dict[str, str] = {}
        self._terms: dict[str, dict[str, float]] = {}
        self._documents: dict[str, set[str]] = {}
        for path, description in (entries or {}).items():
            self.add(path, description)

    @classmethod
    def from_folder(cls, root: str | Path, *, max_entries: int = _MAX_ENTRIES) -> InMemoryIndex:
        """Returns an index of the regular files under `root`, described by their names.

        Hidden files, links, caches and virtual environments are left out, as by `GlobalIndex`.
        Paths are relative to `root`, with `/`. Of more than `max_entries` files the first by name
        are indexed.

        Raises: UsageError, if `root` is not a folder.
        """
        from evaluator.memory.walk import Skips, folder_stamps

        if not os.path.isdir(root):
            raise UsageError(f"no folder at {root}")
        files = folder_stamps(os.path.realpath(root), sys.maxsize, skips=Skips())
        return cls({file.path: describe_path(file.path) for file in islice(files, max_entries)})

    def __len__(self) -> int:
        return len(self._descriptions)

    def __contains__(self, path: object) -> bool:
        return path in self._descriptions

    def entries(self) -> dict[str, str]:
        """Returns the paths and descriptions, in the order in which they were added."""
        return dict(self._descriptions)

    def add(self, path: str, description: str) -> None:
        """Adds `path`, or replaces its description.

        Raises: UsageError, if `path` is empty.
        """
        if not path:
            raise UsageError("a path in memory must not be empty")
        self.remove(path)
        terms = {stem(word): _DESCRIPTION_WEIGHT for word in words(description)}
        terms.update({stem(word): _PATH_WEIGHT for word in words(path)})
        self._descriptions[path] = description
        self._terms[path] = terms
        for term in terms:
            self._documents.setdefault(term, set()).add(path)

    def remove(self, path: str) -> None:
        """Removes `path` if it is there."""
        if self._descriptions.pop(path, None) is None:
            return
        for term in self._terms.pop(path):
            holders = self._documents[term]
            holders.discard(path)
            if not holders:
                del self._documents[term]

    async def get_relevant_context_for(
        self, request: ContextRequest | str, limit: int = 10
    ) -> list[RelevantPath]:
        gained: dict[str, list[Reason]] = {}
        known = unknown = 0.0
        for term in request_terms(request):
            holders = self._documents.get(term.stem, set())
            weight = term.weight * self._idf(len(holders))
            if holders:
                known += weight
            else:
                unknown += weight
            for path in holders:
                held = self._terms[path][term.stem]
                where = "description"
                if held == _PATH_WEIGHT:
                    where = "path"
                gained.setdefault(path, []).append(Reason(term.shown, where, weight=weight * held))
        total = known + min(unknown, _UNKNOWN_CAP * self._idf(0))
        found = [
            relevant_path(
                path, [Reason(each.term, each.field, weight=each.weight / total) for each in parts]
            )
            for path, parts in gained.items()
        ]
        found.sort(key=lambda relevant: (-relevant.score, relevant.path))
        return [relevant for relevant in found if relevant.score > 0][: max(0, limit)]

    def _idf(self, documents: int) -> float:
        return idf(documents, max(len(self._descriptions), _SMALL_INDEX))


def describe_path(path: str) -> str:
    """Returns a description made from the name alone: `notes/lake_baikal.md` gives "notes lake
    baikal (md)".
    """
    base, extension = os.path.splitext(path)
    text = " ".join(words(base))
    if extension:
        return f"{text} ({extension[1:]})"
    return text


def request_terms(request: ContextRequest | str) -> list[QueryTerm]:
    """Returns the terms of a request; its description counts more than its inputs, and those more
    than the rest.
    """
    if isinstance(request, str):
        return query_terms(request)
    pairs = list(with_positions(request.description))
    for name, value in request.inputs.items():
        pairs.extend(with_positions(f"{name} {value}", 0.6))
    pairs.extend(with_positions(request.inherited, 0.2))
    return merge_terms(pairs)


def request_text(request: ContextRequest | str) -> str:
    """Returns the request as one text."""
    if isinstance(request, str):
        return request
    return "\n".join([request.description, *request.inputs.values(), request.inherited]).strip()


def relevant_path(path: str, parts: Sequence[Reason]) -> RelevantPath:
    """Returns a path whose score is the sum of its reasons' weights."""
    best = sorted(parts, key=lambda part: (-part.weight, part.term))
    shown = ", ".join(f"{part.term} ({part.field})" for part in best[:_REASON_WORDS])
    return RelevantPath(
        path,
        round(min(1.0, sum(part.weight for part in best)), 4),
        reason=f"shares {shown}",
        why=tuple(Reason(part.term, part.field, weight=round(part.weight, 4)) for part in best),
    )
