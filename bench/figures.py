"""What every benchmark shares: a measured figure with its goal, how it is printed, and the server
process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Figure:
    """One measured number. `goal` is the most it may be, with `at_least` the least."""

    what: str
    value: float
    unit: str
    goal: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    def cells(self) -> tuple[str, str, str, str]:
        if self.goal is None:
            return self.what, _number(self.value, self.unit), "", ""
        sign = ">=" if self.at_least else "<="
        verdict = "met" if self.met else "NOT MET"
        return (
            self.what,
            _number(self.value, self.unit),
            f"{sign} {_number(self.goal, self.unit)}",
            verdict,
        )


def _number(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def table(figures: Sequence[Figure]) -> str:
    """One line a figure, with a heading."""
    rows = [("what", "figure", "goal", ""), *(figure.cells() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0].rstrip()), *lines[1:]])


def parser_for(description: str | None) -> argparse.ArgumentParser:
    """A parser whose description is the first line of a module's docstring; every benchmark has
    `--json`.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument(
        "--json", action="store_true", help="print the figures as JSON and nothing else"
    )
    return parser


def report(figures: Sequence[Figure], *, as_json: bool) -> None:
    print(json.dumps([asdict(figure) for figure in figures]) if as_json else table(figures))


def remarks(as_json: bool) -> Callable[[str], None]:
    """Where a benchmark says more than its figures: nowhere, when a program reads them."""
    return (lambda line: None) if as_json else (lambda line: print(line, flush=True))


@contextlib.contextmanager
def work_folder(place: Path | None) -> Iterator[Path]:
    """A fresh folder in `place`, which stays; without one in /var/tmp, removed with the block.

    /var/tmp is on a disk where /tmp may be memory. On ext4, creating a file costs up to 200 us
    instead of 5 for minutes after thousands were deleted nearby: several benchmarks in a row should
    share a `place`.
    """
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        yield Path(tempfile.mkdtemp(dir=place))
        return
    with tempfile.TemporaryDirectory(prefix="evaluator-bench-", dir=disk()) as folder:
        yield Path(folder)


def disk() -> Path | None:
    """Where temporary files are on a disk; None where only the system knows."""
    return Path("/var/tmp") if Path("/var/tmp").is_dir() else None


def creation_us(folder: Path, count: int = 1000) -> float:
    """Microseconds that creating one empty file in a new folder takes: what no journal can do
    without.
    """
    inside = folder / "empty"
    inside.mkdir()
    started = time.perf_counter()
    for number in range(count):
        os.close(os.open(inside / str(number), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    return (time.perf_counter() - started) / count * 1e6


@contextlib.contextmanager
def serving(content: str = "The answer is 42.", delay_ms: float = 0.0) -> Iterator[str]:
    """Base URL of `server.py` in a process of its own, which ends with the block."""
    command = [
        sys.executable,
        str(HERE / "server.py"),
        "--content",
        content,
        "--delay-ms",
        str(delay_ms),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.terminate()
        process.wait(timeout=10)
