"""What a batch works with: a row is a Sample, what came of it a SampleResult with a Score of each scorer.

A sample has one of four verdicts, never a fifth and never none:

- passed: every scorer passed it.
- failed: at least one scorer failed it.
- error: the task, or a scorer, came to no answer. It is not a zero, and it is not left out.
- unscored: there was an answer, none failed it, and a scorer could not judge (no target for it), or there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from evaluator.results import Usage

NOTHING = Usage()
"""What a scorer uses that asks no model."""


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    UNSCORED = "unscored"


@dataclass(frozen=True, slots=True)
class Sample:
    """One row, ready for a template. `id` is unique in its batch; `place` counts rows from 0 in their source.

    `target` is what a right answer is measured by (any JSON value; None: there is none). `metadata` is
    everything else that the row says and a report may group by.
    """

    id: str
    inputs: Mapping[str, Any]
    target: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    place: int = 0


@dataclass(frozen=True, slots=True)
class Score:
    """What one scorer said of one result. `value` is in [0, 1] but for scorers that say otherwise.

    `passed` None: it could not judge, and `value` is None with it; or it was a tie, whose value is 0.5.
    `error` is set where the scorer itself failed; both are None then. `answer` is what was read out of the
    result, `explanation` why. `usage` is what judging it cost.
    """

    value: float | None
    passed: bool | None
    answer: str | None = None
    explanation: str = ""
    error: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    usage: Usage = NOTHING

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"value": self.value, "passed": self.passed}
        for name, value in (("answer", self.answer), ("explanation", self.explanation), ("error", self.error)):
            if value:
                data[name] = value
        if self.metadata:
            data["metadata"] = dict(self.metadata)
        if self.usage is not NOTHING and (used := self.usage.said()):
            data["usage"] = used
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Score:
        return cls(
            data["value"], data["passed"], data.get("answer"), data.get("explanation", ""), data.get("error"),
            data.get("metadata", {}), Usage.from_dict(data["usage"]) if "usage" in data else NOTHING,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer: `kind` is a TaskError's reason, or its type where it has none."""

    type: str
    kind: str
    message: str
    retryable: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {"type": self.type, "kind": self.kind, "message": self.message, "retryable": self.retryable}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Failure:
        return cls(data["type"], data["kind"], data["message"], data["retryable"])


@dataclass(frozen=True, slots=True)
class SampleResult:
    """One sample evaluated once: a line of `results.jsonl`.

    `identity` is the hash of all that determines the answer (template, inputs, handler and model, epoch). `epoch`
    counts from 1. `variant` names the handler or model among those that the batch compares. `duration_s` is seconds
    from the start of the task to its end, without scoring and without waiting for its turn; `started` is an ISO time,
    UTC. `usage` is the task's own, without its scorers'. `cached_calls` were answered by the cache and cost nothing.
    `task_file` is relative to the batch's folder. `parts` are the hashes that `identity` was made of, `scored_by` that
    of the scorers, by which a later run finds out what has changed.
    """

    identity: str
    sample_id: str
    place: int
    epoch: int
    template: str
    variant: str
    verdict: Verdict
    inputs: Mapping[str, Any]
    target: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    model: str | None = None
    content: str = ""
    parsed: Any = None
    scores: Mapping[str, Score] = field(default_factory=dict[str, Score])
    failure: Failure | None = None
    usage: Usage = Usage()
    duration_s: float = 0.0
    started: str = ""
    task_id: int | None = None
    task_file: str | None = None
    cached_calls: int = 0
    warnings: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict[str, str])
    scored_by: str = ""

    @property
    def key(self) -> str:
        """Which cell of the batch this fills; of several results with one key the last one counts."""
        return key_of(self.sample_id, self.epoch, self.template, self.variant)

    @property
    def scoring_usage(self) -> Usage:
        used = [score.usage for score in self.scores.values() if score.usage is not NOTHING]
        return sum(used, NOTHING) if used else NOTHING

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; its first five members are short and plain: an index reads only those."""
        return {
            "key": self.key,
            "identity": self.identity,
            "scored_by": self.scored_by,
            "verdict": self.verdict.value,
            "retryable": self.failure is not None and self.failure.retryable,
            "sample_id": self.sample_id,
            "place": self.place,
            "epoch": self.epoch,
            "template": self.template,
            "variant": self.variant,
            "inputs": dict(self.inputs),
            "target": self.target,
            "metadata": dict(self.metadata),
            "model": self.model,
            "content": self.content,
            "parsed": self.parsed,
            "scores": {name: score.to_dict() for name, score in self.scores.items()},
            "failure": None if self.failure is None else self.failure.to_dict(),
            "usage": self.usage.said(),
            "duration_s": round(self.duration_s, 6),
            "started": self.started,
            "task_id": self.task_id,
            "task_file": self.task_file,
            "cached_calls": self.cached_calls,
            "warnings": list(self.warnings),
            "parts": dict(self.parts),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SampleResult:
        """What `to_dict` made.

        Raises: KeyError, TypeError or ValueError, if it is not that.
        """
        failure = data["failure"]
        return cls(
            identity=data["identity"],
            sample_id=data["sample_id"],
            place=data["place"],
            epoch=data["epoch"],
            template=data["template"],
            variant=data["variant"],
            verdict=Verdict(data["verdict"]),
            inputs=data["inputs"],
            target=data["target"],
            metadata=data["metadata"],
            model=data["model"],
            content=data["content"],
            parsed=data["parsed"],
            scores={name: Score.from_dict(score) for name, score in data["scores"].items()},
            failure=None if failure is None else Failure.from_dict(failure),
            usage=Usage.from_dict(data["usage"]),
            duration_s=data["duration_s"],
            started=data["started"],
            task_id=data["task_id"],
            task_file=data["task_file"],
            cached_calls=data["cached_calls"],
            warnings=tuple(data["warnings"]),
            parts=data["parts"],
            scored_by=data["scored_by"],
        )


def key_of(sample_id: str, epoch: int, template: str, variant: str) -> str:
    """16 hexadecimal digits: the cell of a batch that a result fills."""
    text = f"{sample_id}\0{epoch}\0{template}\0{variant}"
    return blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def verdict_of(failure: Failure | None, scores: Iterable[Score]) -> Verdict:
    """The one verdict that a result has."""
    if failure is not None:
        return Verdict.ERROR
    seen = list(scores)
    if any(score.error is not None for score in seen):
        return Verdict.ERROR
    judged = [score.passed for score in seen if score.passed is not None]
    if not judged:
        return Verdict.UNSCORED
    if False in judged:
        return Verdict.FAILED
    return Verdict.PASSED if len(judged) == len(seen) else Verdict.UNSCORED
