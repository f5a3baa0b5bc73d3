"""Markdown: the summary's tables, then the results that failed or came to an error.

Whatever comes from rows, models and scorers is a code span on one line: nothing in it is markup, a mention, a link or
a cell's end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from evaluator.batch.export.about import About
from evaluator.batch.export.atomic import atomic_file
from evaluator.batch.export.flat import as_text
from evaluator.batch.records import SampleResult, Verdict
from evaluator.batch.summary import render_markdown

MAX_SHOWN = 200
_MAX_CHARS = 300
_SPACE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_TICKS = re.compile("`+")


def write_markdown(results: Iterable[SampleResult], about: About, path: Path) -> None:
    """At most 200 errors and 200 failed results are listed, the first ones, with n of N."""
    kept = _Kept()
    summary = about.summarise(kept.watch(results))
    with atomic_file(path) as file:
        file.write(f"# {code(about.name)}\n\n{render_markdown(summary).strip()}\n".encode())
        for verdict, title in ((Verdict.ERROR, "Results with an error"), (Verdict.FAILED, "Failed results")):
            shown, count = kept.shown[verdict], kept.counts[verdict]
            if not shown:
                continue
            left = "" if count == len(shown) else f" (the first {len(shown):,} of {count:,})"
            lines = "\n".join(map(_row, shown))
            head = "| sample | epoch | template | variant | target | content | why |\n|---|---|---|---|---|---|---|"
            file.write(f"\n## {title}{left}\n\n{head}\n{lines}\n".encode())


class _Kept:
    """The first results of each verdict that is listed; several of one sample are all listed, as they came."""

    def __init__(self) -> None:
        self.shown: dict[Verdict, list[SampleResult]] = {Verdict.ERROR: [], Verdict.FAILED: []}
        self.counts = dict.fromkeys(self.shown, 0)

    def watch(self, results: Iterable[SampleResult]) -> Iterator[SampleResult]:
        for result in results:
            if result.verdict in self.shown:
                self.counts[result.verdict] += 1
                if len(self.shown[result.verdict]) < MAX_SHOWN:
                    self.shown[result.verdict].append(result)
            yield result


def code(text: str) -> str:
    """`text` as a code span that may stand in a table's cell; empty for an empty text."""
    text = _SPACE.sub(" ", as_text(text)).strip()
    if len(text) > _MAX_CHARS:
        text = f"{text[:_MAX_CHARS]}…"
    if not text:
        return ""
    fence = "`" * (1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}".replace("|", "\\|")


def _row(result: SampleResult) -> str:
    cells = (
        code(result.sample_id),
        str(result.epoch),
        code(result.template),
        code(result.variant),
        "" if result.target is None else code(as_text(result.target)),
        code(result.content),
        code(_why(result)),
    )
    return f"| {' | '.join(cells)} |"


def _why(result: SampleResult) -> str:
    if (failure := result.failure) is not None:
        return f"{failure.kind}: {failure.message}"
    return "; ".join(
        f"{name}: {score.error or score.explanation or 'failed'}"
        for name, score in result.scores.items()
        if score.error is not None or score.passed is False
    )
