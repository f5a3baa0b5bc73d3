"""Adds scorers to a batch: `score_batch` scores the answers in its folder, and asks the model under
test nothing.

The rows are not read: a result has the inputs, the target and the metadata of its row. Scores of
other scorers stay as they are. Each result gets a new line in `results.jsonl`; the earlier lines
keep the earlier scores. A session that was interrupted continues with the same call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from evaluator import clock
from evaluator.batch.cells import check_logprobs, find_judges, scorer_parts, scoring_part
from evaluator.batch.engines import make_engine
from evaluator.batch.folder import BatchFolder
from evaluator.batch.identity import Cell, Identity, digest
from evaluator.batch.options import BatchLimits, BatchOptions, Stop
from evaluator.batch.pending import PendingWork
from evaluator.batch.permissions import is_own, sign
from evaluator.batch.plan import BatchPlan
from evaluator.batch.records import COUNTED, Sample, SampleResult, Verdict
from evaluator.batch.result_index import EarlierResults, ResultIndex
from evaluator.batch.rows import RowSource
from evaluator.batch.run import BatchResult, absolute, run_in_folder, sync_form
from evaluator.batch.scorers import make_scorers
from evaluator.batch.scorers.scorer_registry import check_rows
from evaluator.batch.summary.tables import Table, number
from evaluator.batch.wave_log import submissions_of
from evaluator.batch.work_items import Variant, WorkItem
from evaluator.errors import UsageError
from evaluator.errors.messages import listed
from evaluator.lazy_dataclass import dataclass
from evaluator.library.bounds import CallBound

if TYPE_CHECKING:
    from evaluator.batch.display import Display, DisplayName
    from evaluator.batch.reading import Batch
    from evaluator.batch.scorers import Scorer, ScorerSpec
    from evaluator.interpreter.evaluator import Evaluator
    from evaluator.models.cache import ResponseCache

_YIELD_EVERY = 100


async def score_batch(
    folder: str | Path,
    scorers: Sequence[ScorerSpec],
    *,
    evaluator: Evaluator | None = None,
    replace: bool = False,
    limits: BatchLimits | Mapping[str, Any] | None = None,
    cache: ResponseCache | str | Path | None = None,
    display: Display | DisplayName | None = "auto",
    stop: Stop | None = None,
) -> BatchResult:
    """Scores the answers of the batch in `folder` with `scorers`, besides those that it has.

    No model is asked for an answer; judges are asked, through `evaluator` (default: an
    `Evaluator()`, which is closed afterwards). A score of the same scorer, in the same version, is
    not made again unless it is an error. `replace`: a scorer takes the place of the one with its
    name, whose scores stay in the history; without it, this is an error. `limits`, `cache`,
    `display` and `stop` are those of `run_batch`.

    Returns: as `run_batch`, without thresholds. The batch is complete if every sample has an
    answer.
    Raises: UsageError, TemplateError or ConfigurationError, before anything runs; RecordError, for
    a folder that cannot be used or written; TaskBusy, if another process works on it.
    """
    from evaluator.interpreter.evaluator import Evaluator

    given: dict[str, Any] = {"limits": limits, "cache": cache, "display": display, "stop": stop}
    options = BatchOptions(output=str(folder), **given)
    if evaluator is not None:
        return await run_scoring(evaluator, make_scorers(scorers), options, replaces=replace)
    async with Evaluator(tasks_dir=None) as own:
        return await run_scoring(own, make_scorers(scorers), options, replaces=replace)


score_batch_sync = sync_form(score_batch)


async def run_scoring(
    evaluator: Evaluator,
    scorers: Sequence[Scorer],
    options: BatchOptions,
    *,
    replaces: bool,
    arguments: Mapping[str, Any] | None = None,
) -> BatchResult:
    """As `score_batch`, in the folder `options.output`. `arguments` is the new definition of the
    batch, which its user has allowed; None leaves the one that it has.
    """
    if not scorers:
        raise UsageError("name a scorer")
    path = absolute(options.output or "")
    with BatchFolder.open(path) as folder:
        before = folder.manifest()
        if any(each.is_open for each in submissions_of(path, str(before.get("created")))):
            raise UsageError(
                f"{path}: calls of the batch wait for provider batches; collect their answers "
                f"first: evaluator batch --resume {path}"
            )
        if before.get("total") is None:
            raise UsageError(
                f"{path}: the rows of the batch were not read to their end; resume the batch first"
            )
        plan = _plan(evaluator, folder, before, scorers=scorers, options=options)
        _check_names(path, before, plan, replaces=replaces)
        judgements = [
            (name, variant.handler) for _, variant in plan.cells for name in plan.judges.templates
        ]
        evaluator.check_reached(judgements, imports=True)
        evaluator = await evaluator.check_sandboxes(judgements)
        manifest = {
            **before,
            "scorers": {**before.get("scorers", {}), **plan.scorer_parts},
            "judges": {
                name: judges
                for name, judges in {**before.get("judges", {}), **plan.judges.models}.items()
                if name not in plan.scorer_parts or name in plan.judges.models
            },
        }
        if arguments is not None:
            manifest = sign({**manifest, "arguments": dict(arguments), "code": None})
        elif is_own(before):
            manifest = sign(manifest)

        def make_work(
            folder: BatchFolder, earlier: ResultIndex, keep: Callable[[Verdict], None]
        ) -> PendingWork:
            return AnswersToScore(
                plan.cells,
                epochs=1,
                earlier=earlier,
                read_result=folder.read_at,
                on_kept=keep,
                scoring_part=scoring_part(manifest["scorers"], plan.options),
                versions=plan.versions,
                earlier_part=scoring_part(before.get("scorers", {}), plan.options),
                total=before["total"],
                left_out=set(before.get("left_out", [])),
            )

        return await run_in_folder(
            evaluator,
            plan,
            folder=folder,
            engine=make_engine(None, plan.options.limits.concurrency),
            manifest=manifest,
            before=before,
            make_work=make_work,
        )


def _plan(
    evaluator: Evaluator,
    folder: BatchFolder,
    manifest: Mapping[str, Any],
    scorers: Sequence[Scorer],
    options: BatchOptions,
) -> BatchPlan:
    """The plan of a session that has only `scorers`, with what the manifest stores."""
    cells = [
        (
            Cell(
                cell["template"],
                cell["variant"],
                template_part="",
                handler_part=cell.get("handler_part", ""),
                is_simulated=bool(cell.get("simulated")),
            ),
            Variant(cell["variant"], cell.get("model"), handler=cell.get("handler")),
        )
        for cell in manifest.get("cells", [])
    ]
    reasons = manifest.get("count_as_failed", COUNTED)
    parts = scorer_parts(evaluator, scorers, cells=cells)
    rows = cast("RowSource", _StoredRows(folder))
    check_rows(rows.read_ahead(), scorers)
    check_logprobs(evaluator, scorers, cells, is_answered=True)
    return BatchPlan(
        manifest.get("name") or folder.path.name,
        BatchOptions(
            count_as_failed=tuple(reasons) or ("none",),
            limited=manifest.get("limited", "scored"),
            cluster=manifest.get("cluster"),
            group_by=manifest.get("group_by"),
            limits=options.limits,
            cache=options.cache,
            display=options.display,
            stop=options.stop,
            output=options.output,
            resume=True,
        ),
        cells=cells,
        rows=rows,
        scorers=scorers,
        scorer_parts=parts,
        thresholds=(),
        reducers=None,
        call_bound=CallBound(0, 0, lines=()),
        judges=find_judges(evaluator, scorers, parts=parts, cells=cells),
    )


def _check_names(
    path: Path, manifest: Mapping[str, Any], plan: BatchPlan, *, replaces: bool
) -> None:
    """Raises: UsageError, for a scorer with the name of another one, unless it replaces that."""
    known = manifest.get("scorers", {})
    taken = [
        name for name, part in plan.scorer_parts.items() if name in known and known[name] != part
    ]
    if taken and not replaces:
        raise UsageError(
            f"{path}: the batch has another scorer {listed(taken)} already; replace it (--replace; "
            f"in Python: replace=True), or name the new one: {taken[0]}:name=…"
        )


class _StoredRows:
    """The rows of a batch as its results have them, in place of a RowSource."""

    is_repeatable = False
    is_live = False
    total = None
    notices = ()

    def __init__(self, folder: BatchFolder) -> None:
        self.name = str(folder.path)
        self._folder = folder

    def read_ahead(self) -> Iterator[Sample]:
        return map(_sample_of, self._folder.results())

    async def slices(self) -> AsyncGenerator[Sequence[Sample]]:
        for samples in ():
            yield samples


def _sample_of(result: SampleResult) -> Sample:
    return Sample(
        result.sample_id,
        result.inputs,
        target=result.target,
        metadata=result.metadata,
        place=result.place,
    )


@dataclass(slots=True, kw_only=True)
class AnswersToScore(PendingWork):
    """The answers that lack a score of one of the scorers in `versions`, or have an error there.

    `earlier_part` is the hash of what judged the batch before. `total` samples are in the batch;
    results with a key in `left_out` are not part of it any more.
    """

    is_counted: ClassVar[bool] = True
    earlier_part: str
    total: int
    left_out: set[str] = field(default_factory=set[str])
    _entries: EarlierResults = field(init=False)

    def __post_init__(self) -> None:
        self.counts.samples = self.total
        self.stale = {key for key in self.left_out if key in self.earlier}
        self._entries = self.earlier
        # A session that is stopped leaves no result out.
        self.earlier = {}

    async def work(
        self, slices: AsyncIterator[Sequence[Sample]]
    ) -> AsyncGenerator[Sequence[WorkItem]]:
        cells = {(cell.template, cell.variant): (cell, variant) for cell, variant in self.cells}
        for place, (key, entry) in enumerate(self._entries.items()):
            if place % _YIELD_EVERY == 0:
                await clock.sleep(0)
            result = self.read_result(entry.offset)
            found = cells.get((result.template, result.variant))
            if key in self.left_out or found is None:
                continue
            if not self._lacks_scores(result):
                self.counts.done += 1
                self.on_kept(result.verdict)
                continue
            self.counts.judged_anew += 1
            cell, variant = found
            work = WorkItem(
                _sample_of(result),
                result.epoch,
                cell=cell,
                variant=variant,
                identity=Identity(key, result.identity, parts=result.parts),
                scored_by=self._scored_by_all(result),
                answered=result,
                keeps={
                    name: score
                    for name, score in result.scores.items()
                    if name not in self.versions or not self._is_due(result, name)
                },
            )
            yield [work]

    def _lacks_scores(self, result: SampleResult) -> bool:
        if result.failure is not None and result.verdict is Verdict.ERROR:
            return False  # there is no answer
        return any(self._is_due(result, name) for name in self.versions)

    def _is_due(self, result: SampleResult, name: str) -> bool:
        score = result.scores.get(name)
        return score is None or score.error is not None or score.version != self.versions[name]

    def _scored_by_all(self, result: SampleResult) -> str:
        """The hash that a session with all scorers of the batch gives this result, if its earlier
        scores are those of the earlier scorers; else another one, so that it is scored again.
        """
        about = [result.target, result.metadata]
        is_current = result.scored_by == digest([self.earlier_part, *about])[:16]
        has_none = not self.earlier_part and not result.scored_by
        if is_current or has_none:
            return digest([self.scoring_part, *about])[:16]
        return digest([self.scoring_part, *about, result.scored_by])[:16]


def history_table(batch: Batch) -> Table:
    """Every version of every scorer that the batch had: when it scored, how many results, their
    mean, and the models that judged.
    """
    versions = batch.manifest.get("scorer_versions", {})
    current = Counter[tuple[str, str]]()
    for result in batch.results():
        current.update((name, score.version) for name, score in result.scores.items())
    seen: dict[tuple[str, str, str, str], float | None] = {}
    models: dict[tuple[str, str], set[str]] = {}
    for result in BatchFolder.reader(batch.folder).lines():
        for name, score in result.scores.items():
            seen[name, score.version, result.key, score.at] = score.value
            model = score.metadata.get("model")
            if isinstance(model, str):
                models.setdefault((name, score.version), set()).add(model)
    rows: list[list[str]] = []
    for name, version in dict.fromkeys((name, version) for name, version, _, _ in seen):
        scores = {key: value for key, value in seen.items() if key[:2] == (name, version)}
        values = [value for value in scores.values() if value is not None]
        times = sorted(key[3] for key in scores)
        rows.append(
            [
                name,
                versions.get(version, {}).get("part", {}).get("type", ""),
                version,
                f"{len(scores):,}",
                f"{current[name, version]:,}",
                number(sum(values) / len(values)) if values else "–",
                times[0],
                times[-1],
                ", ".join(sorted(models.get((name, version), ()))),
            ]
        )
    head = ["scorer", "type", "version", "scores", "current", "mean", "first", "last", "models"]
    return Table(f"Scores of {batch.name}", head, rows=rows)
