"""Engines: where the samples of a batch are evaluated: in this process, in several, or on the nodes
of a cluster.
"""

from __future__ import annotations

from evaluator.batch.engines.base import ClusterLost as ClusterLost
from evaluator.batch.engines.base import Engine as Engine
from evaluator.batch.engines.base import LocalEngine as LocalEngine
from evaluator.errors import UsageError
from evaluator.errors.messages import type_of

__all__ = ["ENGINES", "ClusterLost", "Engine", "LocalEngine", "make_engine"]

ENGINES = ("local", "processes", "ray")


def make_engine(
    engine: Engine | str | None, concurrency: int, workers: int | None = None
) -> Engine:
    """The engine of that name (see ENGINES), for `concurrency` samples at once; an Engine is
    returned as it is.

    `workers`: the number of processes; for "ray", on each node.

    Raises: UsageError, for an unknown name, or `workers` for an engine without them; MissingExtra,
    for "ray" if it is not installed.
    """
    if isinstance(engine, str) and engine not in ENGINES:
        raise UsageError(f"engine is {engine!r}, expected one of {', '.join(ENGINES)}")
    if engine == "processes":
        from evaluator.batch.engines.process_engine import ProcessEngine

        return ProcessEngine(concurrency, workers)
    if engine == "ray":
        from evaluator.batch.engines.ray_engine import RayEngine, import_ray

        # Here, so that nothing is written before the error.
        import_ray()
        return RayEngine(concurrency, processes=workers)
    if workers is not None:
        raise UsageError(
            "workers is the number of processes of the engines processes and ray; name one as "
            "engine"
        )
    if not isinstance(engine, str | None) and not callable(getattr(engine, "run", None)):
        raise UsageError(
            f"engine is {type_of(engine)}, expected one of {', '.join(ENGINES)}, or an Engine"
        )
    if engine is None or isinstance(engine, str):
        return LocalEngine(concurrency)
    return engine
