"""The messages of tests of batches: failures and usage. Texts of models and rows are escaped and
shortened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from evaluator.batch.records import SampleResult, Verdict
from evaluator.batch.run import BatchResult
from evaluator.errors.messages import agree, amount, visible
from evaluator.pytest_plugin import UNKNOWN

_SHOWN = 10
_WIDTH = 300


def failure_report(result: BatchResult, command: str) -> str:
    """Why the batch is incomplete or misses its thresholds. `command` resumes it."""
    counts = result.summary.counts
    ended = result.ended
    samples = "? samples"
    if ended.total is not None:
        samples = amount(ended.total, "sample")
    lines = [
        f"{counts.results:,} of {samples} {agree(counts.results, 'has', 'have')} a result: "
        f"{counts.passed:,} passed, {counts.failed:,} failed, "
        f"{counts.error:,} error, {counts.unscored:,} unscored"
    ]
    if not result.is_complete:
        lines.append(
            "the batch is not complete: "
            f"{_cut(': '.join(part for part in (ended.state, ended.reason) if part))}"
        )
    lines += [
        f"threshold {_cut(str(threshold))}" for threshold in result.thresholds if not threshold.met
    ]
    for verdict, number in ((Verdict.FAILED, counts.failed), (Verdict.ERROR, counts.error)):
        if number:
            lines.append(f"{verdict.value}:")
            chosen = (each for each in result.results() if each.verdict is verdict)
            for sample in islice(chosen, _SHOWN):
                lines.append(f"  {_cut(name_of(sample))}: {_cut('; '.join(_reasons(sample)))}")
        if number > _SHOWN:
            lines.append(f"  and {number - _SHOWN:,} more")
    lines += [f"results: {result.folder}", f"resume with: {command}"]
    return "\n".join(lines)


def sample_report(result: SampleResult) -> str:
    """Why a sample has its verdict: its inputs, the answer, and the judgement of each scorer."""
    lines = [f"{_cut(name_of(result))}: {result.verdict.value}"]
    lines += [f"  {_cut(reason)}" for reason in _reasons(result)]
    lines += [f"  input {_cut(name)}: {_cut(str(value))}" for name, value in result.inputs.items()]
    if result.target is not None:
        lines.append(f"  target: {_cut(str(result.target))}")
    if result.failure is None:
        lines.append(f"  answer: {_cut(result.content)}")
    if result.task_file is not None:
        lines.append(f"  task file: {result.task_file}")
    elif result.task_id is not None:
        lines.append(f"  task: TASK-{result.task_id}")
    return "\n".join(lines)


def name_of(result: SampleResult) -> str:
    """The sample's id, and what of epoch, template and variant tells it apart at a glance."""
    if result.epoch > 1:
        epoch = f", epoch {result.epoch}"
    else:
        epoch = ""
    return f"{result.label} ({result.template}, {result.variant}{epoch})"


def _reasons(result: SampleResult) -> Iterator[str]:
    if result.failure is not None:
        yield f"{result.failure.kind}: {result.failure.message}"
    for name, score in result.scores.items():
        if score.error is not None:
            yield f"{name} failed: {score.error}"
        elif score.passed is not True:
            if score.passed is False:
                verdict = "no"
            else:
                verdict = "could not judge"
            yield f"{name}: {score.explanation or verdict}"
    if not result.scores and result.failure is None:
        yield "there is no scorer"


def summary_line(used: Mapping[str, Sequence[Any]]) -> str:
    """The total usage of all batches of a test run, from the properties of each test."""
    tokens = [_sum(used[name]) for name in ("input_tokens", "output_tokens")]
    shown = ["an unknown number of" if number is None else f"{number:,}" for number in tokens]
    cost = _sum(used["cost_usd"])
    parts = [
        f"evaluator: {amount(len(set(used['folder'])), 'batch')}",
        f"{amount(sum(used['samples']), 'sample')} evaluated",
        f"{shown[0]} input and {shown[1]} output tokens",
        "cost unknown" if cost is None else f"cost {cost:.4f} US dollars",
    ]
    simulated = used["simulated"]
    if any(simulated):
        parts.append(
            "answers simulated" if all(simulated) else f"answers of {sum(simulated):,} simulated"
        )
    return ", ".join(parts)


def _sum(values: Sequence[Any]) -> Any:
    """None if one is unknown."""
    return None if UNKNOWN in values else sum(values)


def _cut(text: str) -> str:
    shown = visible(text, one_line=True)
    if len(shown) <= _WIDTH:
        return shown
    return f"{shown[:_WIDTH]}… ({len(shown):,} characters)"
