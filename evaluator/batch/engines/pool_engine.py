"""What the engines of several processes have in common: their arguments, and the run of a pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import ExitStack
from typing import Any

from evaluator.batch.engines.base import ConcurrentRun, IsStopping, NextWork, OnDone
from evaluator.batch.engines.pool import Node, Pool, StartHost
from evaluator.batch.engines.recipe import Recipe
from evaluator.batch.engines.taskfiles import make_probe
from evaluator.batch.work import Worker
from evaluator.errors import UsageError
from evaluator.record.store import TaskStore

Watch = Callable[[Callable[[str], None]], Coroutine[Any, Any, None]]


class PoolEngine:
    """Evaluates `concurrency` samples at once in all processes together.

    `variables`: environment variables that the processes get besides keys, tokens and the addresses
    of models.
    `gather`: processes write task files into folders of their own and send them with the results,
    even if they see the batch's folder.

    Raises: UsageError, for a `concurrency` or a number of `processes` below 1.
    """

    def __init__(
        self,
        concurrency: int,
        processes: int | None,
        variables: Iterable[str] = (),
        gather: bool = False,
    ) -> None:
        for name, value in (("concurrency", concurrency), ("processes", processes)):
            if value is not None and (type(value) is not int or value < 1):
                raise UsageError(f"{name} is {value!r}, expected an integer, at least 1")
        self._concurrency = concurrency
        self._processes = processes
        self._variables = tuple(variables)
        self._gather = gather
        self._run = ConcurrentRun(concurrency)

    def in_flight(self) -> int:
        return self._run.in_flight

    async def _run_pool(
        self,
        worker: Worker,
        made: tuple[Recipe, TaskStore],
        start: StartHost,
        nodes: Callable[[], Collection[Node]],
        next_work: NextWork,
        on_done: OnDone,
        is_stopping: IsStopping,
        watch: Watch | None = None,
    ) -> None:
        """Runs all work in processes that `start` starts on `nodes`. `made` is the worker's recipe
        and its store.

        `watch` runs beside it and calls its argument, with the reason, if no process can be reached
        any more.
        """
        recipe, store = made
        with ExitStack() as stack:
            if self._gather:
                probe = None
            else:
                probe = stack.enter_context(make_probe(store.root))
            async with Pool(
                worker,
                start,
                recipe=recipe,
                store=store,
                concurrency=self._concurrency,
                probe=probe,
            ) as pool:
                pool.start(nodes())
                if watch is None:
                    watching = None
                else:
                    watching = asyncio.ensure_future(watch(pool.lose_all))
                try:
                    await self._run.run(
                        lambda work: pool.perform(work, is_stopping), next_work, on_done
                    )
                finally:
                    if watching is not None:
                        watching.cancel()
