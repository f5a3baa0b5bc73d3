"""Improves a template: `improve` splits the rows, searches, decides, and writes a certificate."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from evaluator import clock, randomness
from evaluator.batch.cells import make_cells, make_variants
from evaluator.batch.cost_plan import plan_costs
from evaluator.batch.identity import digest
from evaluator.batch.options import BatchOptions
from evaluator.batch.plan import BatchPlan, make_plan
from evaluator.batch.rows import RowsInput, Selection
from evaluator.batch.rows.object_rows import Rows
from evaluator.batch.rows.row_source import open_origin
from evaluator.errors import ConfigurationError, RecordError, UsageError
from evaluator.errors.messages import did_you_mean, listed
from evaluator.fields import (
    SESSION,
    Checked,
    Count,
    Doc,
    Flag,
    Name,
    Natural,
    PathText,
    Range,
    Section,
    Share,
)
from evaluator.files.atomic import write_atomic
from evaluator.files.locations import given_path, shipped
from evaluator.files.open_below import open_private_folder, read_named
from evaluator.improve.certificate import (
    CERTIFICATE,
    FORMAT,
    LOG,
    TEMPLATE_FILE,
    Certificate,
    make_content,
    make_measured,
    read_certificate,
    rows_to_dict,
)
from evaluator.improve.edits import with_certificate
from evaluator.improve.evidence import Live, Recorder
from evaluator.improve.log import open_log
from evaluator.improve.propose import TEMPLATE, CandidateChecker, hash_of
from evaluator.improve.search import (
    Reach,
    Search,
    Settings,
    Split,
    clusters_of,
    reach_of,
    rows_of,
    split_rows,
)
from evaluator.interpreter.sync import run_sync
from evaluator.lazy_dataclass import frozen
from evaluator.xml.source import encoding_of

if TYPE_CHECKING:
    from evaluator.interpreter.evaluator import Evaluator

SEARCHES = "improvements"
BATCH_OPTIONS = (
    "inputs",
    "id",
    "target",
    "metadata",
    "shuffle_choices",
    "select",
    "models",
    "handlers",
    "scorers",
    "count_as_failed",
    "limited",
    "cluster",
    "limits",
    "cache",
    "engine",
    "workers",
    "sandbox",
    "stop",
)
"""The options of a batch that a search takes."""


@frozen(kw_only=True)
class ImproveOptions(Checked, error=UsageError):
    """The options of a search, besides those of its batches. `improve` documents each."""

    proposer: Annotated[
        Name | None,
        Section("Search"),
        Flag(
            "--proposer",
            "The model that proposes edits. Default: the model that is evaluated.",
            metavar="MODEL",
        ),
    ] = None
    proposals: Annotated[
        tuple[Any, ...], Doc("Proposals of your own: nobody is asked for others.")
    ] = ()
    rounds: Annotated[Count, Flag("--rounds", "Rounds of proposals.")] = 3
    candidates: Annotated[Count, Flag("--candidates", "Proposals in a round.")] = 4
    measure: Annotated[
        Name | None,
        Flag(
            "--measure",
            "The score whose value counts. Default: whether the whole result passed.",
            metavar="SCORE",
        ),
    ] = None
    gain: Annotated[
        float,
        Range(above=0, most=1),
        Flag("--gain", "The smallest gain worth finding; no more rows are sealed than it takes."),
    ] = 0.05
    margin: Annotated[
        Share | None,
        Flag("--margin", "Accept a cheaper template too, if it loses less than this."),
    ] = None
    seed: Annotated[Natural, Flag("--seed", "The seed of the search.")] = 0
    output: Annotated[
        PathText | None,
        Section("Where it runs"),
        Flag("--output", "The folder. Default: a new one in improvements/.", "FOLDER"),
    ] = None
    resume: Annotated[
        bool, SESSION, Flag("--resume", "Resume the search in the folder of --output.")
    ] = False


@frozen
class SearchPlan:
    """A search before its first call. `evaluations` is the most answers that it takes, each of at
    most `calls` calls, and `expected_usd` what they are expected to cost; None if unknown.
    """

    checker: CandidateChecker
    batch: BatchPlan
    rows: Mapping[str, dict[str, Any]]
    split: Split
    reach: Reach
    options: ImproveOptions
    evaluations: int
    calls: int | None
    expected_usd: float | None

    def lines(self) -> list[str]:
        """What can be found, and what it costs."""
        parts = {part: len(rows) for part, rows in self.split.parts().items()}
        limit = self.batch.options.limits.max_cost
        if self.calls is None:
            calls = "any number of"
        else:
            calls = f"at most {self.calls}"
        if self.expected_usd is None:
            cost = "unknown"
        else:
            cost = f"about ${self.expected_usd:,.2f}"
        if limit is None:
            most = "no limit (--max-cost)"
        else:
            most = f"never more than ${limit:,.6g}"
        unused = ""
        if self.split.unused:
            unused = f"; {self.split.unused:,} more are not needed"
        return [
            f"{parts['train']:,} train, {parts['selection']:,} selection and "
            f"{parts['sealed']:,} sealed rows{unused}",
            str(self.reach),
            f"at most {self.evaluations:,} answers with {calls} calls each, and "
            f"{2 * self.options.rounds} calls of the proposer",
            f"expected cost: {cost}; {most}",
        ]


async def improve(
    template: str,
    rows: RowsInput,
    *,
    evaluator: Evaluator | None = None,
    proposer: str | None = None,
    proposals: Sequence[Mapping[str, Any]] = (),
    rounds: int = 3,
    candidates: int = 4,
    measure: str | None = None,
    gain: float = 0.05,
    margin: float | None = None,
    seed: int = 0,
    output: str | Path | None = None,
    resume: bool = False,
    **batch: Any,
) -> Certificate:
    """Searches for a better version of a template, and decides on rows that the search has not seen
    whether it is better.

    The rows are split by `cluster`: the proposer sees train rows, candidates race on selection
    rows, and the last one is compared with the template on sealed rows, once. `proposer` is the
    model that is asked for edits, in each of `rounds` for `candidates` proposals; `proposals` are
    your own, as `{"why": …, "edits": [{"op": …}]}`. `measure` is the score that counts (None:
    whether the result passed), `gain` the smallest gain worth finding, `margin` the loss that a
    cheaper template may have (None: only a better one is accepted).

    `batch` are options of `run_batch`: `scorers`, `models` (one), `limits`, `inputs`, `target`,
    `cluster` and others of `BATCH_OPTIONS`. `limits["max_cost"]` limits the whole search. All
    records are in the folder `output`; `resume` continues the search there.

    Returns: the certificate; `is_accepted` says whether there is a better template. Nothing is
    written outside of the folder, see `write_template`.
    Raises: UsageError, TemplateError or ConfigurationError, for what cannot be used; RecordError,
    for a folder that cannot be used or whose records were changed; TaskBusy, if another process
    works on it; OutOfBudget, if the budget does not allow the first or the last step.
    """
    options = ImproveOptions(
        proposer=proposer,
        proposals=tuple(proposals),
        rounds=rounds,
        candidates=candidates,
        measure=measure,
        gain=gain,
        margin=margin,
        seed=seed,
        output=None if output is None else str(given_path(output, "output")),
        resume=resume,
    )
    unknown = [name for name in batch if name not in BATCH_OPTIONS]
    if unknown:
        hint = did_you_mean(unknown[0], BATCH_OPTIONS) or f"it has {listed(BATCH_OPTIONS)}"
        raise UsageError(f"{unknown[0]} is no option of improve; {hint}")
    from evaluator.interpreter.evaluator import Evaluator

    own = evaluator or Evaluator(tasks_dir=None)
    try:
        plan = await plan_search(own, template, rows, options, BatchOptions(**batch))
        return await run_search(plan)
    finally:
        if evaluator is None:
            await own.aclose()


def improve_sync(template: str, rows: RowsInput, **options: Any) -> Certificate:
    """`improve` for code that is not async; also works inside a running event loop."""
    return run_sync(improve(template, rows, **options))


async def plan_search(
    evaluator: Evaluator,
    template: str,
    rows: RowsInput,
    options: ImproveOptions,
    batch: BatchOptions,
) -> SearchPlan:
    """Reads and splits the rows; makes no call. Raises: as `improve`."""
    if len(batch.models) > 1 or len(batch.handlers) > 1:
        raise UsageError("improve takes one model and one handler")
    if options.output is None and options.resume:
        raise UsageError("resume continues the search in a folder: name it as output")
    if not batch.scorers:
        raise UsageError("give a scorer, which says what a better answer is")
    origin = open_origin(rows)
    if origin.is_live:
        raise UsageError("the rows come from an asynchronous iterator; give a list or a file")
    source = list(cast("Rows", origin.read()))
    if not origin.is_repeatable:
        rows = [row for _, row in source]
    model = next(iter(batch.models), None)
    checker = CandidateChecker(
        evaluator, template, model=model, handler=next(iter(batch.handlers), None)
    )
    if not options.proposals:
        if options.proposer is None:
            models = batch.models
        else:
            models = (options.proposer,)
        make_cells(evaluator, [TEMPLATE], make_variants(models, batch.handlers))
    planned = make_plan(evaluator, template, rows=rows, options=batch)
    if options.measure is not None and options.measure not in planned.scorer_parts:
        hint = did_you_mean(options.measure, planned.scorer_parts)
        raise UsageError(
            f"measure: there is no score {options.measure!r}; "
            + (hint or f"the scores are {listed(planned.scorer_parts)}")
        )
    samples = [sample async for sample in planned.rows]
    places = {sample.place: sample.id for sample in samples}
    raw = {places[place]: row for place, (_, row) in enumerate(source) if place in places}
    split = split_rows(rows_of(samples, batch.cluster), options.gain)
    tried = options.rounds * (options.candidates + 1)
    evaluations = (
        (1 + tried) * len(split.selection)
        + options.rounds * len(split.train)
        + 2 * len(split.sealed)
    )
    costs = await plan_costs(evaluator.without_network(), planned)
    expected = costs.expected.cost_usd
    if expected is not None:
        expected *= evaluations / max(1, costs.samples)
    return SearchPlan(
        checker,
        planned,
        raw,
        split,
        reach_of(len(split.sealed), options.gain),
        options,
        evaluations=evaluations,
        calls=planned.call_bound.max_calls,
        expected_usd=expected,
    )


async def run_search(plan: SearchPlan) -> Certificate:
    """Runs or resumes a planned search. Raises: as `improve`."""
    options = plan.options
    checker = plan.checker
    notice = checker.notice
    folder = searched_folder(plan)
    has_log = (folder / LOG).exists()
    if has_log and not options.resume:
        raise RecordError(
            f"{folder}: there is a search already; resume it (--resume), or name another folder"
        )
    if options.resume and not has_log:
        raise RecordError(
            f"{folder}: there is no search to resume; name its folder, or leave out --resume to "
            "start one there"
        )
    os.close(open_private_folder(folder, "folder of the search", sync=True))
    settings = Settings(
        rounds=options.rounds,
        candidates=options.candidates,
        seed=options.seed,
        margin=options.margin,
        is_clustered=_is_clustered(plan),
    )
    with open_log(folder / LOG) as log:
        begin = _begin(plan, settings)
        if not log.entries:
            write_atomic(folder / TEMPLATE_FILE, checker.text.encode("utf-8", "surrogatepass"))
            log.append({**begin, "id": randomness.token_hex(16)})
        _expect_same(folder, log.entries[0], begin)
        recorder = Recorder(log.entries[1:], log)
        evidence = Live(
            folder,
            checker,
            recorder=recorder,
            measure=options.measure,
            options=replace(plan.batch.options, select=Selection(), cluster=None),
            rows=plan.rows,
            search_id=log.entries[0]["id"],
            proposer=options.proposer or next(iter(plan.batch.options.models), None),
            proposals=options.proposals,
            wanted=options.candidates,
            seed=options.seed,
            sealed=len(plan.split.sealed),
            notice=notice,
        )
        search = Search(evidence, plan.split, settings, recorder.record)
        decision = await search.run(begin["base"])
        content = make_content(
            log.entries[0],
            recorder.events,
            decision=decision,
            batches=evidence.batches,
            price_unit=evidence.price_unit,
        )
        content = json.loads(json.dumps(content))
        measured = make_measured(folder, evidence.spent, content)
        certificate = Certificate(folder / CERTIFICATE, content, measured)
        certificate.write()
        return certificate


def check_writable(checker: CandidateChecker) -> None:
    """Raises: UsageError, for a template that is not the user's to change."""
    if Path(checker.file).is_relative_to(shipped("templates").resolve()):
        raise UsageError(
            f"{checker.name} ships with this package; to write it, copy its folder from "
            f"{os.path.dirname(checker.file)} into templates/, with the partials that it includes"
        )


def write_template(certificate: Certificate, evaluator: Evaluator) -> Path:
    """Writes the accepted candidate into the file of its template, with its version raised and a
    comment that names the certificate. Returns: the file.

    Raises: UsageError, if no candidate was accepted, the template ships with this package or has
    changed since the search; RecordError, if the certificate or its records were changed.
    """
    found, is_own = read_certificate(certificate.path)
    if not found.is_accepted:
        raise UsageError("the search has accepted no candidate, so nothing is written")
    if not is_own:
        raise ConfigurationError(
            f"{certificate.path}: was written by another user; it can be verified, and the "
            "candidate copied by hand"
        )
    name = found.content["template"]
    decision = found.decision
    assert decision is not None
    checker = CandidateChecker(evaluator, name, model=None, handler=None)
    check_writable(checker)
    path = Path(checker.file)
    if hash_of(checker.text) != found.content["base"]:
        raise UsageError(f"{path}: has changed since the search; nothing is written")
    text = found.candidate_text(found.content["candidate"])
    comment = (
        f"evaluator improve: certificate {found.digest}, "
        f"{decision.claim}, gain {100 * (decision.gain or 0):+.1f} points"
    )
    data = read_named(path, 100_000_000)
    encoding, skip = encoding_of(data, str(path))
    written = with_certificate(text, name, comment)
    if "\r\n" in data[skip:].decode(encoding):
        written = written.replace("\n", "\r\n")
    write_atomic(path, data[:skip] + written.encode(encoding, "xmlcharrefreplace"))
    return path


def _begin(plan: SearchPlan, settings: Settings) -> dict[str, Any]:
    """The first entry of the log, without the id of the search."""
    checker = plan.checker
    cell = plan.batch.cells[0][0]
    begin = {
        "event": "begin",
        "format": FORMAT,
        "template": checker.name,
        "base": hash_of(checker.text),
        "model": cell.variant,
        "handler": cell.handler_part,
        "scorers": plan.batch.scoring_part,
        "proposer": plan.options.proposer,
        "proposals": digest(list(plan.options.proposals)),
        "measure": plan.options.measure,
        "cluster": plan.batch.options.cluster,
        "reach": plan.reach.to_dict(),
        "settings": asdict(settings),
        "split": plan.split.to_dict(),
        "rows": rows_to_dict(plan.split),
    }
    return json.loads(json.dumps(begin))


def _expect_same(folder: Path, first: Mapping[str, Any], begin: Mapping[str, Any]) -> None:
    different = [name for name in begin if first.get(name) != begin[name]]
    if different:
        raise UsageError(
            f"{folder}: the search there differs in {listed(different)}; resume it with the same "
            "template, rows and options, or start a new one"
        )


def _is_clustered(plan: SearchPlan) -> bool:
    """Whether rows share clusters."""
    rows = [row for part in plan.split.parts().values() for row in part]
    return len(clusters_of(rows)) < len(rows)


def searched_folder(plan: SearchPlan) -> Path:
    """The folder of the search; a new one, if the options name none."""
    if plan.options.output:
        return Path(os.path.abspath(plan.options.output))
    name = f"{plan.checker.name}-{clock.now().strftime('%Y%m%d-%H%M%S')}"
    path = Path(SEARCHES) / name
    number = 1
    while path.exists():
        number += 1
        path = Path(SEARCHES) / f"{name}-{number}"
    return Path(os.path.abspath(path))
