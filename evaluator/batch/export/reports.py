"""Exports to JUnit XML and to Markdown.

JUnit XML, for GitLab and Jenkins, has a testsuite for each template and variant, and a testcase for
each result. A passed result is a testcase, a failed one has a <failure> (each failing scorer's
score), an error an <error> (its type and message), and an unscored one is <skipped> with the
reason. An unfinished batch is not green: a suite with pending results, and each suite of an
unfinished batch, has one more testcase, `complete`, with an <error>. `time` is in seconds. A
character that XML 1.0 forbids is written as its escape, `\\x1b`. Source: the format's description
at https://github.com/testmoapp/junitxml.

Markdown has the summary's tables, then the results that failed or have an error. Texts of the
listed results are code spans on one line: nothing in them is markup, a mention, a link or the end
of a cell. In the summary's tables the markup is escaped.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import IO
from xml.sax.saxutils import escape, quoteattr

from evaluator.batch.decision import Decision
from evaluator.batch.export.output_path import About, output_file
from evaluator.batch.export.result_table import as_text
from evaluator.batch.records import SampleResult, Score, Verdict
from evaluator.batch.statistics import Estimate
from evaluator.batch.summary import GroupSummary
from evaluator.errors.messages import agree, amount
from evaluator.lazy_dataclass import dataclass

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COUNTED_AS = {
    Verdict.PASSED: "passed",
    Verdict.FAILED: "failures",
    Verdict.ERROR: "errors",
    Verdict.UNSCORED: "skipped",
}
_MAX_MESSAGE_CHARS = 200
_SPOOL_BYTES = 65_536
# Of each suite's file. The default is 128 KiB from Python 3.14 on, and there may be many suites.
_BUFFER_BYTES = 8_192


@dataclass(slots=True)
class _Suite:
    """The test cases of one template and variant; `cases` becomes a temporary file when it
    grows.
    """

    cases: IO[bytes]
    counts: Counter[str] = field(default_factory=Counter[str])
    seconds: float = 0.0
    started: str = ""

    def add(self, result: SampleResult) -> None:
        self.counts.update(("tests", _COUNTED_AS[result.verdict]))
        self.seconds += result.duration_s
        if result.started and (not self.started or result.started < self.started):
            self.started = result.started
        self.cases.write("".join(_case(result)).encode())

    def add_incomplete(self, place: str, why: str) -> None:
        self.counts.update(("tests", "errors"))
        opening = f'    <testcase name="complete" classname={_quoted(place)} time="0.000">\n'
        error = f'      <error message={_quoted(why)} type="incomplete">{_escaped(why)}</error>\n'
        self.cases.write(f"{opening}{error}    </testcase>\n".encode())


def write_junit(results: Iterable[SampleResult], about: About, path: Path) -> None:
    """Writes one `testsuites` element. Suites are in order of appearance; memory does not grow with
    the results.
    """
    with contextlib.ExitStack() as files:
        suites: dict[tuple[str, str], _Suite] = {}

        def suite_of(key: tuple[str, str]) -> _Suite:
            if key not in suites:
                cases = files.enter_context(
                    tempfile.SpooledTemporaryFile(_SPOOL_BYTES, buffering=_BUFFER_BYTES)
                )
                suites[key] = _Suite(cases)
            return suites[key]

        for result in results:
            suite_of((result.template, result.variant)).add(result)
        for key, why in _incomplete(
            {key: suite.counts["tests"] for key, suite in suites.items()}, about
        ).items():
            suite_of(key).add_incomplete(_place(*key), why)
        counts = sum((suite.counts for suite in suites.values()), Counter[str]())
        seconds = sum(suite.seconds for suite in suites.values())
        with output_file(path) as file:
            file.write(b'<?xml version="1.0" encoding="UTF-8"?>\n')
            opening = f"<testsuites name={_quoted(about.name)} {_attributes(counts, seconds)}>\n"
            file.write(opening.encode())
            for key, suite in suites.items():
                attributes = _attributes(suite.counts, suite.seconds)
                if suite.started:
                    attributes += f" timestamp={_quoted(suite.started)}"
                file.write(f"  <testsuite name={_quoted(_name(*key))} {attributes}>\n".encode())
                properties = _suite_properties(about.group(*key), about.decision)
                file.write("".join(_property_lines(properties)).encode())
                suite.cases.seek(0)
                shutil.copyfileobj(suite.cases, file, _SPOOL_BYTES)
                file.write(b"  </testsuite>\n")
            file.write(b"</testsuites>\n")


def _suite_properties(
    group: GroupSummary | None, decision: Decision | None
) -> Iterator[tuple[str, str]]:
    """Where the batch stopped, each metric with the number of results that it is of, the corrected
    shares, and what is known of each judge, as JSON.
    """
    if decision is not None:
        yield "decision", decision.status
    if group is None:
        return
    for name, found in group.metrics.items():
        if found.value is None:
            value = f"unknown: {found.error}"
        else:
            value = repr(found.value)
        yield f"metric.{name}", f"{value} ({found.n} of {found.of})"
    for name, calibration in group.calibrations.items():
        share = calibration.share
        yield f"judge.{name}", _share_text(share.judge, share.of, of=share.of)
        corrected = _share_text(share.corrected, share.labels, of=share.of)
        yield f"corrected.{name}", share.missing or corrected
        yield f"calibration.{name}", as_text(calibration.to_dict())
    for name, stability in group.stability.items():
        yield f"stability.{name}", as_text(stability.to_dict())


def _share_text(share: Estimate, n: int, *, of: int) -> str:
    counted = f"{n:,} of {of:,}"
    if share.mean is None or share.low is None or share.high is None:
        return f"unknown ({counted})"
    return f"{share.mean:.4g}, {share.low:.4g} to {share.high:.4g} ({counted})"


def _property_lines(properties: Iterable[tuple[str, str]]) -> Iterator[str]:
    lines = [
        f"      <property name={_quoted(name)} value={_quoted(value)}/>\n"
        for name, value in properties
    ]
    if lines:
        yield from ("    <properties>\n", *lines, "    </properties>\n")


def _attributes(counts: Counter[str], seconds: float) -> str:
    attributes = (f'{name}="{counts[name]}"' for name in ("tests", "failures", "errors", "skipped"))
    return f'{" ".join(attributes)} time="{seconds:.3f}"'


def _incomplete(results: Mapping[tuple[str, str], int], about: About) -> dict[tuple[str, str], str]:
    """Why suites are not complete, by suite; under the batch's name what belongs to no single
    suite.
    """
    whole = (about.name, "")
    total = about.total
    if isinstance(total, Mapping):
        counted = {key: (count - results.get(key, 0), count) for key, count in total.items()}
    elif total is None:
        counted = dict.fromkeys(results, (0, 0))
    else:
        if len(results) == 1:
            key = next(iter(results))
        else:
            key = whole
        counted = dict.fromkeys(results, (0, 0)) | {key: (total - sum(results.values()), total)}
    if about.unfinished and not counted:
        counted = {whole: (0, 0)}
    found: dict[tuple[str, str], str] = {}
    for key, (pending, count) in counted.items():
        if pending > 0:
            reasons = [
                f"{pending:,} of {amount(count, 'result')} {agree(pending, 'is', 'are')} pending"
            ]
        else:
            reasons = []
        if about.unfinished and (pending > 0 or key != whole or not results):
            reasons.append(about.unfinished)
        if reasons:
            found[key] = "; ".join(reasons)
    return found


def _place(template: str, variant: str) -> str:
    # Jenkins takes the text before the last full stop for a package.
    return ".".join(part.replace(".", "_") for part in (template, variant) if part)


def _case(result: SampleResult) -> Iterator[str]:
    place = _place(result.template, result.variant)
    name = f"{result.label} [epoch {result.epoch}]"
    yield (
        f"    <testcase name={_quoted(name)} classname={_quoted(place)} "
        f'time="{result.duration_s:.3f}">\n'
        "      <properties>\n"
    )
    for key, value in _properties(result):
        yield f"        <property name={_quoted(key)} value={_quoted(value)}/>\n"
    yield "      </properties>\n"
    match result.verdict:
        case Verdict.FAILED:
            failed = {name: score for name, score in result.scores.items() if score.passed is False}
            lines = [_score_line(name, score) for name, score in failed.items()]
            detail = [*lines, f"target: {as_text(result.target)}", f"content: {result.content}"]
            yield _element(
                "failure", f"failed by {', '.join(failed)}", kind="failed", text="\n".join(detail)
            )
        case Verdict.ERROR:
            yield _error(result)
        case Verdict.UNSCORED:
            yield f"      <skipped message={_quoted(why_unscored(result))}/>\n"
        case Verdict.PASSED:
            pass
    yield "    </testcase>\n"


def why_unscored(result: SampleResult) -> str:
    """Which scorers could not judge, with their explanations."""
    unjudged = {name: score for name, score in result.scores.items() if score.passed is None}
    if not unjudged:
        return "no scorer"
    return "; ".join(
        f"{name} could not judge" + (f": {score.explanation}" if score.explanation else "")
        for name, score in unjudged.items()
    )


def _properties(result: SampleResult) -> Iterator[tuple[str, str]]:
    yield "identity", result.identity
    if result.model is not None:
        yield "model", result.model
    for name, score in result.scores.items():
        if score.value is not None:
            yield f"score.{name}", repr(score.value)
    if result.usage.cost_usd is not None:
        yield "cost_usd", repr(result.usage.cost_usd)
    if result.interrupted_calls:
        yield "interrupted_calls", str(result.interrupted_calls)
    if result.task_file is not None:
        yield "task_file", result.task_file


def _score_line(name: str, score: Score) -> str:
    if score.value is None:
        value = ""
    else:
        value = f" gave {score.value:.4g}"
    if score.answer is None:
        answer = ""
    else:
        answer = f", read {score.answer!r}"
    return f"{name}{value}{answer}" + (f": {score.explanation}" if score.explanation else "")


def _error(result: SampleResult) -> str:
    if (failure := result.failure) is not None:
        detail = f"{failure.type} ({failure.kind})\n{failure.message}"
        detail += "\na retry may succeed (--retry-errors)" if failure.retryable else ""
        return _element(
            "error", failure.message, kind=f"{failure.type}.{failure.kind}", text=detail
        )
    faults = [
        f"{name}: {score.error}" for name, score in result.scores.items() if score.error is not None
    ]
    return _element(
        "error",
        "; ".join(faults),
        kind="scorer",
        text="\n".join([*faults, f"content: {result.content}"]),
    )


def _element(tag: str, message: str, kind: str, text: str) -> str:
    if len(message) > _MAX_MESSAGE_CHARS:
        message = f"{message[:_MAX_MESSAGE_CHARS]}…"
    return (
        f"      <{tag} message={_quoted(message)} type={_quoted(kind)}>{_escaped(text)}</{tag}>\n"
    )


def _name(template: str, variant: str) -> str:
    if variant:
        return f"{template} × {variant}"
    return template


def _escaped(text: str) -> str:
    # A carriage return as itself would be read as a line feed.
    return escape(_allowed(text), {"\r": "&#13;"})


def _quoted(text: str) -> str:
    return quoteattr(_allowed(text), {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})


def _allowed(text: str) -> str:
    return _FORBIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


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
    if (failure := result.failure) is not None:
        why = f"{failure.kind}: {failure.message}"
    else:
        why = "; ".join(
            f"{name}: {score.error or score.explanation or 'failed'}"
            for name, score in result.scores.items()
            if score.error is not None or score.passed is False
        )
    cells = (
        code(result.label),
        str(result.epoch),
        code(result.template),
        code(result.variant),
        "" if result.target is None else code(as_text(result.target)),
        code(result.content),
        code(why),
    )
    return f"| {' | '.join(cells)} |"
