"""Memory: which paths are relevant to a request. Paths and descriptions only; reading is the Handler's."""

from evaluator.memory.index import ContextRequest, InMemoryIndex, Memory, RelevantPath

__all__ = ["ContextRequest", "InMemoryIndex", "Memory", "RelevantPath"]
