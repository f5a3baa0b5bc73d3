"""Memory: the paths that are relevant to a request. It holds paths and descriptions only; the Handler reads files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evaluator.memory.index import ContextRequest, InMemoryIndex, Memory, RelevantPath

if TYPE_CHECKING:
    from evaluator.memory.embedding import Embedder as Embedder
    from evaluator.memory.global_index import Consolidation as Consolidation
    from evaluator.memory.global_index import GlobalIndex as GlobalIndex
    from evaluator.memory.global_index import IndexStats as IndexStats
    from evaluator.memory.indexer import IndexReport as IndexReport

# Loaded at first use: SQLite and the indexers are not needed to run a task without them.
_LATER = {
    "Embedder": "embedding",
    "GlobalIndex": "global_index",
    "IndexReport": "indexer",
    "IndexStats": "global_index",
    "Consolidation": "global_index",
}

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
    # For a type checker only the imports above exist, so that it reports any other name.
    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return __all__
