"""Engines: where the samples of a batch are evaluated, in this process or on the nodes of a cluster."""

from __future__ import annotations

from evaluator.batch.engines.base import Engine as Engine
from evaluator.batch.engines.local import LocalEngine as LocalEngine
from evaluator.errors import UsageError

__all__ = ["Engine", "LocalEngine", "make_engine"]


def make_engine(engine: Engine | str | None, concurrency: int) -> Engine:
    """The engine of that name ("local", "ray"), for `concurrency` samples at once; an Engine is returned as it is.

    Raises: UsageError, for an unknown name; MissingExtra, for "ray" if it is not installed.
    """
    if engine is None or engine == "local":
        return LocalEngine(concurrency)
    if engine == "ray":
        from evaluator.batch.engines.ray_cluster import import_ray
        from evaluator.batch.engines.ray_engine import RayEngine

        # Here, so that nothing is written before the error.
        import_ray()
        return RayEngine(concurrency)
    if isinstance(engine, str):
        raise UsageError(f"engine is {engine!r}, expected local or ray")
    return engine
