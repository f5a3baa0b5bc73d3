"""Improves a judge: its template is searched over, and the labels of people are what it has to
agree with.

A row is a labelled answer: what the judge was asked about it, and whether people passed it. A
result of the judge passes if its verdict is that of the label. Labels are sealed with their rows,
so the decision rests on labels that neither the proposer nor the race has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from evaluator.batch.calibration import labelled_scorer, labels_of
from evaluator.batch.definition import BatchDefinition
from evaluator.batch.fields import reader_of
from evaluator.batch.folder import TASKS
from evaluator.batch.label_session import scorer_to_label
from evaluator.batch.labels import CurrentLabels, majority, read_labels
from evaluator.batch.permissions import is_own
from evaluator.batch.reading import Batch, open_batch
from evaluator.batch.records import Sample, SampleResult, Score
from evaluator.batch.scorers import Scorer, ScorerInput, ScorerSpec, make_scorer, make_scorers
from evaluator.batch.scorers.contract import LeavesInputUnchanged, binary_score
from evaluator.batch.scorers.function_scorer import without_code
from evaluator.batch.scorers.model_graded import GradedScorer, ModelGradedScorer
from evaluator.batch.scorers.rubric_scorer import RubricScorer
from evaluator.batch.work import earlier_outcome
from evaluator.errors import EvaluatorError, UsageError
from evaluator.errors.results import Outcome, Status, TaskError, TaskResult
from evaluator.improve.run import improve
from evaluator.interpreter.sync import run_sync
from evaluator.lazy_dataclass import frozen
from evaluator.record.steps import Recording
from evaluator.record.store import TaskStore

if TYPE_CHECKING:
    from evaluator.improve.certificate import Certificate
    from evaluator.interpreter.evaluator import Evaluator

AGREEMENT = "agreement"
_ROW = "judged_answer"
"""The only field of a row, so that no input of a judge is read from a label."""
_JUDGED = {True: "passes it", False: "fails it", None: "does not decide"}


@frozen
class JudgeSearch:
    """What a search for a better judge is made from: its template, the labelled answers as rows,
    and options of their batches.
    """

    template: str
    rows: list[dict[str, Any]]
    options: Mapping[str, Any]


class AgreementScorer(LeavesInputUnchanged):
    """Whether a judge's answer gives the verdict of the label."""

    name = AGREEMENT

    def __init__(self, judge: ModelGradedScorer) -> None:
        self._judge = judge

    def describe(self) -> dict[str, Any]:
        return {"type": AGREEMENT, "judge": self._judge.describe()}

    async def score(self, scored: ScorerInput) -> Score:
        about = scored.sample.metadata
        given = self._judge.read_answer(scored.outcome, about["target"])
        if given.error is not None:
            return Score(None, None, error=given.error)
        people = about["passed"]
        score = binary_score(given.passed is people)
        notes = "".join(f"; {note}" for note in about["notes"])
        words = f"the judge {_JUDGED[given.passed]}, {_verdict_of(people)}{notes}"
        return Score(score.value, score.passed, explanation=words)


async def improve_judge(
    batch: str | Path,
    scorer: ScorerSpec | None = None,
    *,
    evaluator: Evaluator | None = None,
    **options: Any,
) -> Certificate:
    """Searches for a better version of a judge's template, and decides on labels that the search
    has not seen whether it is better.

    `batch` is a folder with labels. `scorer` is the judge: the name of a scorer of the batch, or a
    `graded`, `reference` or `rubric` scorer; None: the only judge of the batch. It is measured
    against its own labels, or those of the only other scorer that has labels. Each answer that most
    labellers passed or failed counts once; answers to one sample are never on two sides. `options`
    are those of `improve`, except `measure` and those of the rows.

    Returns: the certificate; its gain is that of the share of labels with which the judge agrees.
    Raises: as `improve`; UsageError, if there is no such judge, or no label measures it.
    """
    if evaluator is None:
        from evaluator.interpreter.evaluator import Evaluator

        async with Evaluator(tasks_dir=None) as own:
            return await improve_judge(batch, scorer, evaluator=own, **options)
    found = judge_search(evaluator, open_batch(batch), scorer)
    given: dict[str, Any] = {**found.options, "measure": AGREEMENT, **options}
    return await improve(found.template, found.rows, evaluator=evaluator, **given)


def improve_judge_sync(
    batch: str | Path, scorer: ScorerSpec | None = None, **options: Any
) -> Certificate:
    """`improve_judge` for code that is not async; also works inside a running event loop."""
    return run_sync(improve_judge(batch, scorer, **options))


def judge_search(evaluator: Evaluator, batch: Batch, scorer: ScorerSpec | None) -> JudgeSearch:
    """The labelled answers of a batch as rows for the template of its judge. Makes no call.

    Raises: UsageError, as `improve_judge`; RecordError, for damaged results or labels.
    """
    judge = _judge_of(batch, scorer)
    labels = CurrentLabels(read_labels(batch.folder))
    labelled = labels.of(labelled_scorer(judge.name, labels))
    if batch.cluster is None:
        cluster_of = None
    else:
        cluster_of = reader_of(batch.cluster, "cluster")
    rows: list[dict[str, Any]] = []
    for result in batch.results():
        given = labels_of(result, labelled.get(result.key, {}))
        passed = majority(given.values())
        is_asked = result.target is not None or not judge.needs_target()
        if passed in (0.0, 1.0) and is_asked:
            if cluster_of is None:
                cluster = None
            else:
                cluster = cluster_of(result)
            answer = {
                "id": f"{_name_of(result, batch)}: {_verdict_of(passed == 1.0)}",
                "inputs": _inputs_of(judge, result, batch),
                "target": result.target,
                "passed": passed == 1.0,
                "notes": [label.note for label in given.values() if label.note],
                "cluster": f"sample {result.sample_id}" if cluster is None else f"{cluster}",
            }
            rows.append({_ROW: answer})
    if not rows:
        raise UsageError(f"{batch.folder}: no label of an answer measures {judge.name!r}")
    roles = {**evaluator.services.profile(None).roles, **evaluator.model_roles}
    names = rows[0][_ROW]["inputs"]
    options: dict[str, Any] = {
        "id": f"{_ROW}.id",
        "inputs": {name: f"{_ROW}.inputs.{name}" for name in names},
        "metadata": {name: f"{_ROW}.{name}" for name in ("target", "passed", "notes", "cluster")},
        "cluster": "cluster",
        "scorers": (AgreementScorer(judge),),
        "models": () if judge.model is None else (roles.get(judge.model, judge.model),),
    }
    return JudgeSearch(judge.template, rows, options)


def _judge_of(batch: Batch, scorer: ScorerSpec | None) -> GradedScorer | RubricScorer:
    """The judge; of several models the first one, asked once.

    The scorers of a batch are those that this user has defined: a manifest of somebody else names
    no judge.
    """
    if scorer is None:
        scorer = scorer_to_label(batch, None)
    known: Mapping[str, Scorer] = {}
    if is_own(batch.manifest):
        arguments = cast("Mapping[str, Any]", batch.manifest.get("arguments") or {})
        with without_code():
            defined = make_scorers(BatchDefinition.from_table(arguments).options.scorers)
        known = {each.name: each for each in defined}
    if isinstance(scorer, str) and scorer in known:
        found = known[scorer]
    elif isinstance(scorer, str) and scorer in (batch.manifest.get("scorers") or {}):
        raise UsageError(
            f"{batch.folder}: the scorer {scorer!r} was defined in Python or by somebody else; "
            f"define the judge again, as in --scorer reference:name={scorer}"
        )
    else:
        found = make_scorer(scorer)
    if not isinstance(found, GradedScorer | RubricScorer):
        raise UsageError(
            f"the scorer {found.name!r} asks no template for a verdict; a judge is one of graded, "
            "reference and rubric"
        )
    return replace(found.members()[0], name=found.name)


def _inputs_of(judge: ModelGradedScorer, result: SampleResult, batch: Batch) -> dict[str, Any]:
    """What the judge is asked about a result."""
    recording: Recording | None = None
    if result.task_id is not None:
        with suppress(EvaluatorError):
            recording = TaskStore(batch.folder / TASKS).read(result.task_id)
    outcome = earlier_outcome(result, recording)
    if isinstance(outcome, TaskError):
        outcome = TaskResult(Status.COMPLETE, result.content, parsed_content=result.parsed)
    sample = Sample(result.sample_id, result.inputs, target=result.target, metadata=result.metadata)
    try:
        scored = ScorerInput(sample, outcome, recording=lambda: recording, evaluate=_ask_nobody)
        return dict(judge.judge_inputs(scored))
    except EvaluatorError as error:
        raise UsageError(f"scorer {judge.name!r}, row {result.sample_id!r:.80}: {error}") from error


async def _ask_nobody(template: str, inputs: Mapping[str, Any], **options: Any) -> Outcome:
    raise UsageError(f"{template} is not asked here")


def _verdict_of(people: bool) -> str:
    return "people pass it" if people else "people fail it"


def _name_of(result: SampleResult, batch: Batch) -> str:
    """The sample, and what tells its results apart."""
    parts = [result.sample_id]
    if len(batch.cells) > 1:
        parts += [result.template, result.variant]
    if result.epoch > 1:
        parts.append(f"epoch {result.epoch}")
    return " × ".join(parts)
