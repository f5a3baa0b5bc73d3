"""The information that an export has about a batch besides its results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from evaluator.batch.records import SampleResult
from evaluator.batch.summary import BatchSummary, MetricValue, summarise

Metrics = Mapping[tuple[str, str], Mapping[str, MetricValue]]
Total = int | Mapping[tuple[str, str], int] | None


@dataclass(frozen=True, slots=True)
class About:
    """A batch's manifest and its total number of results (see `summarise`); None where that is
    unknown. `metrics` are its metrics, by template and variant.
    """

    manifest: Mapping[str, Any] = field(default_factory=dict[str, Any])
    total: Total = None
    metrics: Metrics = field(default_factory=dict[tuple[str, str], Mapping[str, MetricValue]])

    @property
    def name(self) -> str:
        return self.text("name") or "batch"

    def text(self, key: str) -> str:
        """The text under `key` in the manifest; empty without one."""
        value = self.manifest.get(key)
        if isinstance(value, str):
            return value
        return ""

    @property
    def unfinished(self) -> str:
        """Why the batch is unfinished according to its manifest; empty if it is finished or the
        manifest has no state.
        """
        state = self.text("state")
        if state in ("", "complete"):
            return ""
        if state == "running":
            return "the last session is running, or was killed"
        sessions = self.manifest.get("sessions")
        if isinstance(sessions, list) and sessions:
            last = cast("list[Any]", sessions)[-1]
        else:
            last = None
        if isinstance(last, Mapping):
            reason = cast("Mapping[str, Any]", last).get("reason")
        else:
            reason = None
        return f"the last session ended with: {reason or state}"

    def summarise(self, results: Iterable[SampleResult]) -> BatchSummary:
        """The summary of `results` with the clusters and metrics of the batch. Raises: as
        `summarise`.
        """
        found = summarise(
            results,
            total=self.total,
            cluster=self.text("cluster") or None,
            unfinished=self.unfinished,
        )
        groups = (
            replace(group, metrics=self.metrics.get((group.template, group.variant), {}))
            for group in found.groups
        )
        return replace(found, groups=tuple(groups))
