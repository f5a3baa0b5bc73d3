"""Where a batch's samples are evaluated: in this process, or on the nodes of a cluster."""

from __future__ import annotations

from evaluator.batch.definition import BatchLimits
from evaluator.batch.engines.base import Engine as Engine
from evaluator.batch.engines.local import LocalEngine as LocalEngine
from evaluator.errors import UsageError

__all__ = ["Engine", "LocalEngine", "make_engine"]


def make_engine(engine: Engine | str | None, limits: BatchLimits) -> Engine:
    """The engine of that name, or the one that was given.

    Raises: UsageError, for a name that is none.
    """
    if engine is None or engine == "local":
        return LocalEngine(limits.concurrency)
    if isinstance(engine, str):
        if engine != "ray":
            raise UsageError(f"engine is {engine!r}, expected local or ray")
        from evaluator.batch.engines.ray_engine import RayEngine

        return RayEngine(limits.concurrency)
    return engine
