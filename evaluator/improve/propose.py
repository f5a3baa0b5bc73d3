"""Asks a model for edits: what it sees, and how its answer is read.

It sees the template, rows of the train part with what was answered, and the values of earlier
candidates. Its answer is data: each edit is read as one of the known operations and checked, and
what is refused is returned once with the reasons.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, cast

from evaluator.batch.folder import TASKS
from evaluator.batch.records import SampleResult, Verdict
from evaluator.errors import EvaluatorError
from evaluator.errors.messages import cut
from evaluator.improve.checks import CandidateChecker, input_names
from evaluator.improve.edits import AddExample, Edit, EditError, read_edit
from evaluator.improve.search import Candidate, Proposal, Request
from evaluator.nodes import Atomic
from evaluator.record.conversation import conversations
from evaluator.record.store import TaskStore

TEMPLATE = "propose_edits"
FAILURES = 6
"""Failed rows that the proposer sees in a round."""
SUCCESSES = 3
MAX_CHARS = 2_000
"""Characters of one text of a row that the proposer sees."""
MAX_EDITS = 12
MAX_STEPS = 20
"""Steps of a composite template that the proposer sees of a row."""


class ProposalReader:
    """Reads proposals for one template. `results` are what the parent did on train rows."""

    def __init__(
        self, checker: CandidateChecker, parent: Candidate, results: Mapping[str, SampleResult]
    ) -> None:
        self._checker = checker
        self._parent = parent
        self._results = results

    def read(self, value: Any) -> tuple[list[Proposal], list[str]]:
        """The proposals of an answer, and why others were refused."""
        found: list[Proposal] = []
        findings: list[str] = []
        if isinstance(value, dict):
            entries = cast("dict[str, Any]", value).get("proposals")
        else:
            entries = None
        if not isinstance(entries, list):
            return [], ["the answer has no list of proposals"]
        for number, entry in enumerate(cast("list[Any]", entries), 1):
            if isinstance(entry, dict):
                table = cast("dict[str, Any]", entry)
            else:
                table = {}
            try:
                found.append(self._proposal(table))
            except EditError as error:
                findings.append(f"proposal {number}: {error}")
        return found, findings

    def _proposal(self, table: Mapping[str, Any]) -> Proposal:
        edits = table.get("edits")
        if not isinstance(edits, list) or not edits or len(cast("list[Any]", edits)) > MAX_EDITS:
            raise EditError(f"edits is not a list of 1 to {MAX_EDITS} edits")
        own = tuple(self._resolved(read_edit(edit)) for edit in cast("list[Any]", edits))
        both = (*self._parent.edits, *own)
        sha = check_edits(self._checker, both)
        why = table.get("why")
        return Proposal(both, cut(str(why or ""), MAX_CHARS), sha, (self._parent.id,))

    def _resolved(self, edit: Edit) -> Edit:
        """The edit with the content of the row that it names."""
        if not isinstance(edit, AddExample):
            return edit
        result = self._results.get(edit.row)
        if result is None:
            raise EditError(f"add_example: {edit.row!r} is not the id of a row that was shown")
        node = self._checker.node
        if not isinstance(node, Atomic) or edit.task is not None:
            raise EditError("add_example: rows are examples of atomic templates only")
        kind = node.output
        if result.verdict is Verdict.PASSED:
            output = result.content
        elif isinstance(result.target, str) and (kind is None or kind.type == "text"):
            output = result.target
        else:
            raise EditError(
                f"add_example: row {edit.row} has no right answer in the form of the output"
            )
        declared = input_names(node)
        inputs = {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in result.inputs.items()
            if name in declared
        }
        return AddExample(row=edit.row, inputs=inputs, output=output)


def check_edits(checker: CandidateChecker, edits: Sequence[Edit]) -> str:
    """The hash of the text that edits make. Raises: EditError, if it is no candidate."""
    text = checker.edited(edits)
    findings = checker.findings(text)
    if findings:
        raise EditError("; ".join(findings[:5]))
    return hash_of(text)


def hash_of(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def question(
    text: str,
    request: Request,
    results: Mapping[str, SampleResult],
    *,
    batch: Path,
    count: int,
    seed: int,
) -> dict[str, Any]:
    """The inputs of the proposer's template. `text` is that of the parent, `batch` the folder of
    its results on train rows.
    """
    return {
        "template": text,
        "rows": "\n".join(
            json.dumps(_shown(result, batch), ensure_ascii=False)
            for result in _chosen(results, Random(f"{seed}/{request.round}/rows"))
        ),
        "count": count,
        "history": "\n".join(
            f"{mean:.3f}  {candidate.why or 'the template as it is'}"
            for candidate, mean in request.history
        ),
        "findings": "none",
    }


def _chosen(results: Mapping[str, SampleResult], draws: Random) -> list[SampleResult]:
    failed: list[SampleResult] = []
    others: list[SampleResult] = []
    for result in results.values():
        if result.verdict is Verdict.PASSED:
            others.append(result)
        else:
            failed.append(result)
    chosen: list[SampleResult] = []
    for part, most in ((failed, FAILURES), (others, SUCCESSES)):
        # Of the methods of Random, only this one gives the same numbers in every version.
        ordered = sorted(part, key=lambda result: draws.random())
        chosen += ordered[:most]
    return chosen


def _shown(result: SampleResult, batch: Path) -> dict[str, Any]:
    scores: dict[str, Any] = {}
    for name, score in result.scores.items():
        parts = {"value": score.value, "explanation": score.explanation, "error": score.error}
        scores[name] = {
            part: _cut(value) for part, value in parts.items() if value not in (None, "")
        }
    found: dict[str, Any] = {
        "id": result.sample_id,
        "inputs": {name: _cut(value) for name, value in result.inputs.items()},
        "target": _cut(result.target),
        "answer": _cut(result.content),
        "verdict": result.verdict.value,
        "scores": scores,
    }
    if result.failure is not None:
        found["error"] = _cut(result.failure.message)
    steps = _steps(result, batch)
    if len(steps) > 1:
        found["steps"] = steps
    return found


def _steps(result: SampleResult, batch: Path) -> list[dict[str, Any]]:
    """What each step of a composite template answered, from the record of the run."""
    if result.task_id is None:
        return []
    try:
        recording = TaskStore(batch / TASKS).read(result.task_id)
    except EvaluatorError:
        return []
    return [
        {"step": talk.path, "answer": _cut(talk.messages[-1].get("content"))}
        for talk in conversations(recording)[:MAX_STEPS]
    ]


def _cut(value: Any) -> Any:
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, str):
        text = value
    else:
        text = json.dumps(value, ensure_ascii=False)
    return cut(text, MAX_CHARS)
