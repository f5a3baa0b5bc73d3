"""The Evaluator that is imported from the package: the interpreter's, with what stands on top of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.interpreter.evaluator import Evaluator as _Evaluator
from evaluator.interpreter.sync import sync_form

if TYPE_CHECKING:
    from evaluator.batch import BatchLimits, BatchResult, Display, Engine, Selection, Stop
    from evaluator.batch.pending import OnChanged
    from evaluator.handler.cache import ResponseCache
    from evaluator.interpreter.recovery import OnUnfinished


class Evaluator(_Evaluator):
    __doc__ = _Evaluator.__doc__

    async def batch(
        self,
        templates: str | Sequence[str],
        rows: Any,
        *,
        inputs: Mapping[str, str] | None = None,
        id: str | None = None,
        target: str | None = None,
        metadata: Sequence[str] | None = None,
        select: Selection | Mapping[str, Any] | None = None,
        scorers: Sequence[Any] = (),
        epochs: int = 1,
        models: Sequence[str] = (),
        handlers: Sequence[str] = (),
        gates: Sequence[Any] = (),
        count_as_failed: Sequence[str] = (),
        limits: BatchLimits | Mapping[str, Any] | None = None,
        cluster: str | None = None,
        group_by: str | None = None,
        reducers: Sequence[str] | None = None,
        name: str = "",
        output: str | Path | None = None,
        resume: bool = False,
        retry_errors: bool = False,
        on_changed: OnChanged = "leave",
        unfinished: OnUnfinished = "ask",
        cache: ResponseCache | str | Path | None = None,
        engine: Engine | str | None = None,
        display: Display | None = None,
        stop: Stop | None = None,
    ) -> BatchResult:
        """Evaluates each row with each template, model and handler, `epochs` times, and scores what comes.

        `rows`: a file (JSONL, JSON, CSV, TSV, Parquet), a list, an iterator, an async iterator, a data frame or a
        `datasets.Dataset`. `inputs`, `id`, `target` and `metadata` name fields of a row, or hold an expression in
        `{{ … }}`; `select` says which rows. `scorers`: names, tables or functions. `models` and `handlers` are each
        combined with each. `gates`: conditions such as `"accuracy >= 0.8"`. `count_as_failed`: reasons of errors
        that count as failed answers. `cluster` and `group_by` name metadata fields: whose values cluster the
        standard errors, and whose values the numbers are shown for. `reducers`: how epochs become one number
        (`mean`, `mode`, `max`, `pass@3`, `pass^3`).

        Everything is in the folder `output` (default: a new one in `batches/`): results as they come, task files,
        manifest, summary. With `resume` what is there is not done again: see docs/batch.md. `stop.ask()` ends the
        session after what is in flight. `engine` is "local" (default), "ray" or one of your own.

        Returns: the numbers, the gates' outcomes and the results; rows that fail are results with an error.
        Raises: UsageError, TemplateError or ConfigurationError, before anything is run, for what cannot be used;
        UsageError later, for a row that cannot be read; RecordError, for a folder that cannot be used or written.
        """
        from evaluator.batch import BatchSettings, NoDisplay, Stop, make_engine, make_plan, run_plan

        plan = make_plan(
            self, templates, rows, name=name, inputs=inputs, id=id, target=target, metadata=metadata, select=select,
            epochs=epochs, models=models, handlers=handlers, scorers=scorers, gates=gates,
            count_as_failed=count_as_failed, limits=limits, cluster=cluster, group_by=group_by,
            reducers=reducers,
        )  # fmt: skip
        settings = BatchSettings(
            resume, retry_errors, on_changed, unfinished, make_engine(engine, plan.limits), cache,
            display or NoDisplay(), stop or Stop(),
        )  # fmt: skip
        return await run_plan(self, plan, output, settings)

    batch_sync = sync_form(
        batch, "`batch` for code that is not async; works inside a running event loop too (a notebook's)."
    )
