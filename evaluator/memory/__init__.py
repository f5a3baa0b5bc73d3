"""Memory: the paths that are relevant to a request. It holds paths and descriptions only; the
Handler reads files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluator.lazy_names import lazy_names
from evaluator.memory.index import ContextRequest, InMemoryIndex, Memory, RelevantPath

if TYPE_CHECKING:
    from evaluator.memory.embedding import Embedder as Embedder
    from evaluator.memory.global_index import Consolidation as Consolidation
    from evaluator.memory.global_index import GlobalIndex as GlobalIndex
    from evaluator.memory.global_index import IndexStats as IndexStats
    from evaluator.memory.indexer import IndexReport as IndexReport

__all__ = [
    "Consolidation",
    "ContextRequest",
    "Embedder",
    "GlobalIndex",
    "InMemoryIndex",
    "IndexReport",
    "IndexStats",
    "Memory",
    "RelevantPath",
]

if not TYPE_CHECKING:
    # SQLite and the indexers are not needed to run a task without them.
    __getattr__ = lazy_names(
        __name__,
        {
            ".embedding": ("Embedder",),
            ".global_index": ("Consolidation", "GlobalIndex", "IndexStats"),
            ".indexer": ("IndexReport",),
        },
    )


def __dir__() -> list[str]:
    return __all__
