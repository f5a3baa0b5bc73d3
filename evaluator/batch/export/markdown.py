"""Exports to Markdown: the summary's tables, then the results that failed or have an error.

Texts of the listed results are code spans on one line: nothing in them is markup, a mention, a link
or the end of a cell. In the summary's tables the markup is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from evaluator.batch.export.output_path import About, output_file
from evaluator.batch.export.result_table import as_text
from evaluator.batch.records import SampleResult, Verdict

MAX_SHOWN = 200
_MAX_CHARS = 300
_SPACE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_TICKS = re.compile("`+")


def write_markdown(results: Iterable[SampleResult], about: About, path: Path) -> None:
    """Lists the first 200 errors and the first 200 failed results, with their total."""
    kept = _ListedResults()
    summary = about.summarise(kept.watch(results))
    with output_file(path) as file:
        file.write(f"# {code(about.name)}\n\n{summary.to_markdown().strip()}\n".encode())
        for verdict, title in (
            (Verdict.ERROR, "Results with an error"),
            (Verdict.FAILED, "Failed results"),
        ):
            shown = kept.shown[verdict]
            count = kept.counts[verdict]
            if not shown:
                continue
            if count == len(shown):
                left = ""
            else:
                left = f" (the first {len(shown):,} of {count:,})"
            lines = "\n".join(map(_row, shown))
            head = (
                "| sample | epoch | template | variant | target | content | why "
                "|\n|---|---|---|---|---|---|---|"
            )
            file.write(f"\n## {title}{left}\n\n{head}\n{lines}\n".encode())


class _ListedResults:
    """The first results of each listed verdict, several of one sample included."""

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
    """`text` as a code span for a table cell; empty for an empty text."""
    text = _SPACE.sub(" ", as_text(text)).strip()
    if len(text) > _MAX_CHARS:
        text = f"{text[:_MAX_CHARS]}…"
    if not text:
        return ""
    fence = "`" * (1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    if text.startswith("`") or text.endswith("`"):
        space = " "
    else:
        space = ""
    return f"{fence}{space}{text}{space}{fence}".replace("|", "\\|")


def _row(result: SampleResult) -> str:
    cells = (
        code(result.label),
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
