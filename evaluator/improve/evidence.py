"""The evidence of a search in its folder: a batch for each candidate and place, and for each round
of proposals.

    log.jsonl              the events of the search, see `log`
    template.xml           the template as it was
    candidates/c3.xml      the candidates
    batches/c3-sealed/     what candidate c3 did on the sealed rows: an ordinary batch
    batches/proposals-1/   what the proposer answered in round 1
    certificate.json       the result, see `certificate`

`Recorded` reads evidence. `Live` also makes what is missing: it evaluates candidates and asks the
proposer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import fsum
from pathlib import Path
from typing import Any, cast

from evaluator import disk
from evaluator.batch.folder import MANIFEST
from evaluator.batch.identity import digest
from evaluator.batch.options import BatchOptions
from evaluator.batch.plan import make_plan
from evaluator.batch.reading import open_batch
from evaluator.batch.records import SampleResult, Verdict
from evaluator.batch.run import run_plan
from evaluator.errors import RecordError, UsageError
from evaluator.errors.messages import amount, visible
from evaluator.files.atomic import write_atomic
from evaluator.improve.decide import Outcome, count_look
from evaluator.improve.edits import Edit, EditError, apply_edits, edit_to_dict, read_edit
from evaluator.improve.log import SealedLog
from evaluator.improve.propose import (
    TEMPLATE,
    CandidateChecker,
    ProposalReader,
    check_edits,
    hash_of,
    question,
)
from evaluator.improve.search import Candidate, Outcomes, OutOfBudget, Proposal, Request, Row

BATCHES = "batches"
CANDIDATES = "candidates"
ROW_ID = "improve_row"
"""The field of rows with their ids."""
Events = list[tuple[str, Mapping[str, Any]]]


class Recorder:
    """The events of a search, in order. The first ones repeat those of `entries`, the events of an
    earlier run; others are appended to the log, if there is one.
    """

    def __init__(self, entries: Sequence[Mapping[str, Any]], log: SealedLog | None) -> None:
        self.events: Events = []
        self._entries = list(entries)
        self._log = log

    def peek(self, kind: str) -> Mapping[str, Any] | None:
        """The next event of the earlier run, if it is of this kind."""
        place = len(self.events)
        if place < len(self._entries) and self._entries[place].get("event") == kind:
            return self._entries[place]
        return None

    def record(self, kind: str, values: Mapping[str, Any]) -> None:
        """Raises: RecordError, if the earlier run had another event, or without a log none."""
        event = json.loads(json.dumps({"event": kind, **values}))
        place = len(self.events)
        if place < len(self._entries):
            if self._entries[place] != event:
                raise RecordError(
                    f"event {place + 1} of the log is not what the records of the search give; "
                    "they were changed after they were written"
                )
        elif self._log is None:
            raise RecordError(f"the log ends before its event {place + 1} ({kind})")
        else:
            self._log.append(event)
        self.events.append((kind, event))


class Recorded:
    """Evidence that was recorded. `measure` is the score whose value counts; None: whether the
    result passed.
    """

    def __init__(
        self, folder: Path, name: str, text: str, *, recorder: Recorder, measure: str | None
    ) -> None:
        self.folder = folder
        self.batches: dict[str, str] = {}
        """The hash of the answers in each batch that was used."""
        self._name = name
        self._text = text
        self._recorder = recorder
        self._measure = measure
        self._counts_dollars: bool | None = None

    def text_of(self, edits: Sequence[Edit]) -> str:
        return apply_edits(self._text, self._name, edits)

    async def evaluate(self, candidate: Candidate, rows: Sequence[Row], place: str) -> Outcomes:
        results = self.results_of(candidate.id, rows, place)
        if self._counts_dollars is None:
            self._counts_dollars = all(
                (each.usage.cost_usd or 0) > 0 and not each.cached_calls
                for each in results.values()
            )
        return {row: self._outcome(result) for row, result in results.items()}

    async def propose(self, request: Request) -> Sequence[Proposal]:
        recorded = self._recorder.peek("proposals")
        if recorded is None:
            raise OutOfBudget(self._reason())
        found: list[Proposal] = []
        for table in recorded["proposals"]:
            edits = tuple(read_edit(edit, is_proposed=False) for edit in table["edits"])
            if hash_of(self.text_of(edits)) != table["sha"]:
                raise RecordError(f"{self.folder}: the edits of a proposal give another template")
            found.append(Proposal(edits, table["why"], table["sha"], (request.parent.id,)))
        self._recorder.record("proposals", recorded_proposals(request.round, found, recorded))
        return found

    def check(self, edits: Sequence[Edit]) -> str | None:
        recorded = self._recorder.peek("merge")
        if recorded is None:
            raise RecordError(f"{self.folder}: the log has no merge where the search makes one")
        sha: str | None = recorded["sha"]
        if sha is not None and hash_of(self.text_of(edits)) != sha:
            raise RecordError(f"{self.folder}: merged edits give another template")
        self._recorder.record("merge", {"sha": sha})
        return sha

    def count_look(self, rows: Sequence[Row]) -> int:
        recorded = self._recorder.peek("look")
        if recorded is None:
            raise RecordError(f"{self.folder}: the log has no look at the sealed rows")
        return int(recorded["look"])

    def results_of(
        self, candidate: str, rows: Sequence[Row], place: str
    ) -> dict[str, SampleResult]:
        """The results of a candidate by the ids of rows, in their order.

        Raises: OutOfBudget, where the earlier run had no budget for them; RecordError, if some are
        missing or belong to other rows.
        """
        path = self.folder / BATCHES / f"{candidate}-{place}"
        if not is_complete(path):
            raise OutOfBudget(self._reason())
        found = {result.sample_id: result for result in open_batch(path).results()}
        for row in rows:
            result = found.get(row.id)
            if result is None:
                raise RecordError(f"{path}: has no result of row {row.id}")
            if digest([dict(result.inputs), result.target]) != row.digest:
                raise RecordError(f"{path}: row {row.id} is not the row of the search")
        ordered = {row.id: found[row.id] for row in rows}
        self.batches[path.name] = _digest_of(ordered)
        return ordered

    def _reason(self) -> str:
        """Why the earlier run ended here. Raises: RecordError, if it did not."""
        recorded = self._recorder.peek("budget")
        if recorded is None:
            raise RecordError(
                f"{self.folder}: the search is not complete, or records are missing; resume it"
            )
        return str(recorded["reason"])

    def _outcome(self, result: SampleResult) -> Outcome:
        passed: bool | None = None
        value: float | None = None
        if result.verdict in (Verdict.PASSED, Verdict.FAILED):
            passed = result.verdict is Verdict.PASSED
            value = float(passed)
        if self._measure is not None:
            score = result.scores.get(self._measure)
            if score is None:
                value = None
            else:
                value = score.value
        usage = result.usage
        price = usage.cost_usd or 0.0
        if not self._counts_dollars:
            price = float((usage.input_tokens or 0) + (usage.output_tokens or 0))
        return Outcome(value, passed, price)

    @property
    def price_unit(self) -> str:
        """What prices are counted in."""
        return "US dollars" if self._counts_dollars else "tokens"


class Live(Recorded):
    """Evidence that is made where it is missing. `rows` are the rows as they were read, by id."""

    def __init__(
        self,
        folder: Path,
        checker: CandidateChecker,
        *,
        recorder: Recorder,
        measure: str | None,
        options: BatchOptions,
        rows: Mapping[str, Mapping[str, Any]],
        search_id: str,
        proposer: str | None,
        proposals: Sequence[Any],
        wanted: int,
        seed: int,
        sealed: int,
        notice: Callable[[str], None],
    ) -> None:
        super().__init__(folder, checker.name, checker.text, recorder=recorder, measure=measure)
        self._checker = checker
        self._options = options
        self._rows = rows
        self._search_id = search_id
        self._proposer = proposer
        self._given = proposals
        self._wanted = wanted
        self._seed = seed
        self._sealed = sealed
        self._notice = notice
        self._costs: dict[Path, tuple[float, int]] = {}

    async def evaluate(self, candidate: Candidate, rows: Sequence[Row], place: str) -> Outcomes:
        path = self.folder / BATCHES / f"{candidate.id}-{place}"
        is_made = is_complete(path) and not self._lacks_values(path, candidate, place)
        if not is_made and self._recorder.peek("budget") is None:
            text = self.text_of(candidate.edits)
            if candidate.edits:
                file = self.folder / CANDIDATES / f"{candidate.id}.xml"
                disk.make_folders(file.parent)
                write_atomic(file, text.encode("utf-8", "surrogatepass"))
            self._notice(f"{candidate.id}: {len(rows):,} {place} rows")
            await self._run(
                path,
                self._checker.name,
                text=text,
                rows=[{**self._rows[row.id], ROW_ID: row.id} for row in rows],
                options=replace(self._options, id=ROW_ID),
                reserve=0.0 if place == "sealed" else self._reserve(),
            )
            if self._lacks_values(path, candidate, place):
                raise UsageError(
                    f"{path}: none of {len(rows):,} rows has a value: {_reason_of(path)}; find the "
                    "cause, then resume the search"
                )
        return await super().evaluate(candidate, rows, place)

    def _lacks_values(self, path: Path, candidate: Candidate, place: str) -> bool:
        """Whether nothing can be learned from a batch of the template, or of the last candidate: a
        key, a server or the targets are at fault, and not an edit.
        """
        if candidate.edits and place != "sealed":
            return False
        return all(self._outcome(result).value is None for result in open_batch(path).results())

    async def propose(self, request: Request) -> Sequence[Proposal]:
        is_recorded = self._recorder.peek("proposals") or self._recorder.peek("budget")
        if is_recorded is not None:
            return await super().propose(request)
        results = {
            row: result
            for row, result in self.results_by_id(request.parent.id, "train").items()
            if row in request.train
        }
        reader = ProposalReader(self._checker, request.parent, results)
        found: list[Proposal] = []
        findings: list[str] = []
        if self._given:
            if request.round == 1:
                found, findings = reader.read({"proposals": list(self._given)})
        else:
            inputs = question(
                self.text_of(request.parent.edits),
                request,
                results,
                batch=self.folder / BATCHES / f"{request.parent.id}-train",
                count=self._wanted,
                seed=self._seed,
            )
            for attempt in ("", "-again"):
                answer = await self._ask(f"proposals-{request.round}{attempt}", inputs)
                more, findings = reader.read(answer)
                found += more
                if not findings:
                    break
                inputs = {**inputs, "findings": "\n".join(findings)}
        for line in findings:
            self._notice(visible(f"refused: {line}", one_line=True))
        found = found[: max(self._wanted, len(self._given))]
        self._recorder.record(
            "proposals", recorded_proposals(request.round, found, {"refused": findings})
        )
        return found

    def check(self, edits: Sequence[Edit]) -> str | None:
        if self._recorder.peek("merge") is not None:
            return super().check(edits)
        try:
            sha = check_edits(self._checker, edits)
        except EditError:
            sha = None
        self._recorder.record("merge", {"sha": sha})
        return sha

    def count_look(self, rows: Sequence[Row]) -> int:
        if self._recorder.peek("look") is not None:
            return super().count_look(rows)
        return count_look(self._search_id, [row.digest for row in rows])

    def results_by_id(self, candidate: str, place: str) -> dict[str, SampleResult]:
        found = open_batch(self.folder / BATCHES / f"{candidate}-{place}").results()
        results = {result.sample_id: result for result in found}
        return {row: results[row] for row in self._rows if row in results}

    async def _ask(self, place: str, inputs: Mapping[str, Any]) -> Any:
        """What the proposer answers; None without a usable answer."""
        path = self.folder / BATCHES / place
        if not is_complete(path) or _provider_failure(path) is not None:
            self._notice(f"asking for {amount(self._wanted, 'proposal')}")
            await self._run(
                path,
                TEMPLATE,
                text=self._checker.text,
                rows=[{**inputs, ROW_ID: place}],
                options=BatchOptions(
                    id=ROW_ID,
                    models=() if self._proposer is None else (self._proposer,),
                    handlers=self._options.handlers,
                    limits=self._options.limits,
                    cache=self._options.cache,
                ),
                reserve=self._reserve(),
            )
        failure = _provider_failure(path)
        if failure is not None:
            raise UsageError(f"the proposer failed: {failure}; resume the search")
        return next(iter(open_batch(path).results())).parsed

    async def _run(
        self,
        path: Path,
        template: str,
        *,
        text: str,
        rows: list[dict[str, Any]],
        options: BatchOptions,
        reserve: float,
    ) -> None:
        """Runs or resumes a batch. Raises: OutOfBudget; UsageError, if it cannot be completed."""
        most = options.limits.max_cost
        if most is not None:
            most -= self.spent + reserve
            if most <= 0:
                raise OutOfBudget("the budget is spent")
        evaluator = self._checker.evaluator_of(text)
        is_resumed = (path / MANIFEST).exists()
        options = replace(
            options,
            name=path.name,
            output=str(path),
            resume=is_resumed,
            retry_errors=is_resumed,
            limits=replace(options.limits, max_cost=most),
            display="none",
            unfinished="stop",
        )
        plan = make_plan(evaluator, template, rows=rows, options=options)
        ended = (await run_plan(evaluator, plan)).ended
        if ended.state == "budget":
            raise OutOfBudget(ended.reason)
        if ended.state != "complete":
            raise UsageError(
                f"{path}: {ended.reason or ended.state}; find the cause, then resume the search"
            )

    @property
    def spent(self) -> float:
        """US dollars of all batches of the search, judges included."""
        manifests = sorted((self.folder / BATCHES).glob("*/manifest.json"))
        return sum((self._cost(path.parent)[0] for path in manifests), 0.0)

    def _reserve(self) -> float:
        """US dollars that the decision on the sealed rows takes, by the dearest batch so far."""
        per_row = [
            cost / rows
            for path, (cost, rows) in self._costs.items()
            if rows and not path.name.startswith("proposals")
        ]
        return 2 * self._sealed * max(per_row, default=0.0)

    def _cost(self, path: Path) -> tuple[float, int]:
        """The cost and the number of results of a batch."""
        if path not in self._costs:
            costs = [
                (result.usage.cost_usd or 0.0)
                + fsum(score.usage.cost_usd or 0.0 for score in result.scores.values())
                for result in open_batch(path).results()
            ]
            found = fsum(costs), len(costs)
            if not is_complete(path):
                return found
            self._costs[path] = found
        return self._costs[path]


def recorded_proposals(
    number: int, proposals: Sequence[Proposal], more: Mapping[str, Any]
) -> dict[str, Any]:
    """The event of a round's proposals; `more` has the reasons of those that were refused."""
    return {
        "round": number,
        "proposals": [
            {
                "why": proposal.why,
                "sha": proposal.sha,
                "edits": [edit_to_dict(edit) for edit in proposal.edits],
            }
            for proposal in proposals
        ],
        "refused": list(more["refused"]),
    }


def is_complete(path: Path) -> bool:
    """Whether there is a complete batch in a folder."""
    if not (path / MANIFEST).exists():
        return False
    return open_batch(path).manifest.get("state") == "complete"


def _provider_failure(path: Path) -> str | None:
    """Why the provider gave no answer for the only row of a batch; None if it gave one."""
    failure = next(iter(open_batch(path).results())).failure
    if failure is None or failure.kind != "provider_failure":
        return None
    return failure.message


def _reason_of(path: Path) -> str:
    """Why the first result of a batch has no value."""
    result = next(iter(open_batch(path).results()))
    if result.failure is not None:
        return result.failure.message
    reasons = (score.error or score.explanation for score in result.scores.values())
    return next((reason for reason in reasons if reason), "no scorer decided")


def _digest_of(results: Mapping[str, SampleResult]) -> str:
    """The hash of what was answered and how it was judged, without times and places."""
    return digest(
        [
            [
                row,
                result.identity,
                result.verdict.value,
                result.content,
                {name: replace(score, at="").to_dict() for name, score in result.scores.items()},
                cast("Any", result.usage.to_dict()),
            ]
            for row, result in results.items()
        ]
    )
