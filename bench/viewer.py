"""The server of `evaluator view`: opening and filtering a large batch, its memory, and what a live
page costs.

    python bench/viewer.py [--samples 100000] [--small 10000] [--rounds 3]

Each opening is the first request of a new server. "First page" is until the response with the first
samples is there; "read" is until every result is, by asking again as the page does. First paint is
in a headless Chromium, by its own clock. Filters are asked once everything is read; the slowest of
each kind counts. The live page asks for a batch that runs meanwhile as often as the browser would;
its cost is the processor time of the server per second of the batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from figures import HERE, Figure, parser_for, remarks, report, work_folder
from report import results

from evaluator.batch.folder import BatchFolder

sys.path.insert(0, str(HERE.parent))

from tests.viewer.browser import Page, find_chromium, running, tab

CELLS = [
    {"template": template, "variant": variant}
    for template in ("classify", "explain")
    for variant in ("small", "large")
]
FILTERS = {
    "a chip": ["chip=error", "chip=different", "chip=flipped&base=1", "cell=1"],
    "a sort": ["sort=duration&order=down", "sort=score.rubric", "sort=cost&chip=failed"],
    "a text": ["text=element-01234", "text=silver+melts", "text=ore", "text=no+such+text"],
    "a field or a range": [
        "where=meta.level%3Deasy&group=target",
        "between=duration%3D2:9%26score.rubric%3D0:0.5",
        "plot=duration%7Cscore.rubric",
    ],
}
MATRIX_ROWS = 20_000


def write(folder: Path, count: int, state: str = "complete") -> Path:
    path = folder / f"batch-{count}"
    with BatchFolder.create(path) as batch:
        batch.write_manifest(
            {
                "name": "elements",
                "state": state,
                "cells": CELLS,
                "total": count,
                "epochs": 1,
                "created": "2026-03-04",
            }
        )
        for each in results(count):
            batch.append(each)
    return path


class Server:
    """`evaluator view` in a process of its own, and a client of it."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.proc, self.address = Path(f"/proc/{process.pid}"), address
        self.root = address.partition("/?")[0]
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self.get(address)

    def get(self, address: str) -> str:
        with self._opener.open(address if "://" in address else f"{self.root}{address}") as answer:
            return answer.read().decode()

    def batch(self) -> str:
        found = re.search(r"/batch/[0-9a-f]+", self.get("/batches"))
        assert found is not None
        return found[0]

    def timed(self, address: str) -> tuple[float, str]:
        begun = time.perf_counter()
        text = self.get(address)
        return time.perf_counter() - begun, text

    def memory_mb(self) -> float:
        found = re.search(r"VmRSS:\s+(\d+) kB", (self.proc / "status").read_text())
        return int(found[1]) / 1e3 if found else float("nan")

    def cpu_s(self) -> float:
        fields = (self.proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def data(self, address: str) -> dict[str, Any]:
        """The JSON that a page is drawn from."""
        text = self.get(address)
        return json.loads(text.partition('id="data">')[2].partition("</script>")[0])

    def until(self, address: str, done: Callable[[dict[str, Any]], bool]) -> float:
        """Seconds until the page's data are as wanted."""
        begun = time.perf_counter()
        while not done(self.data(address)):
            time.sleep(0.05)
        return time.perf_counter() - begun


def is_read(data: dict[str, Any]) -> bool:
    return not data["progress"]["unread"]


def is_computed(data: dict[str, Any]) -> bool:
    return data["numbers"]["data"] is not None


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "evaluator", "view", "--no-browser", str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield Server(process, process.stdout.readline().strip())
        finally:
            process.terminate()


def openings(folder: Path, count: int, rounds: int) -> tuple[float, float]:
    """Medians: seconds until the first page, and until everything is read."""
    first: list[float] = []
    read: list[float] = []
    for _ in range(rounds):
        with serving(folder) as server:
            link = server.batch()
            took, text = server.timed(link)
            first.append(took)
            assert text.count("/sample/") >= 50, "samples are on the first page"
            read.append(took + server.until(link, is_read))
            assert server.data(link)["progress"]["results"] == count
    return statistics.median(first), statistics.median(read)


def filters(folder: Path, what: str) -> tuple[list[Figure], float]:
    """The slowest filter of each kind, and the memory of the server after all of them."""
    with serving(folder) as server:
        link = server.batch()
        server.until(f"{link}?text=x", is_read)
        server.until(link, is_computed)
        figures = [
            Figure(
                f"{what}: filter by {kind}",
                max(server.timed(f"{link}?{query}")[0] for query in queries),
                "s",
                0.3,
            )
            for kind, queries in FILTERS.items()
        ]
        return figures, server.memory_mb()


async def _painted(browser: str, server: Server, link: str) -> float:
    async with tab(browser) as page:
        await page.visit(server.address)
        begun = server.root + link
        await page.visit(begun)
        return await _paint_of(page)


async def _paint_of(page: Page) -> float:
    script = (
        "new Promise((done) => new PerformanceObserver((list) => "
        "list.getEntriesByName('first-contentful-paint').forEach((each) => done(each.startTime)))"
        ".observe({type: 'paint', buffered: true}))"
    )
    return await page.run(script) / 1_000


def first_paint(folder: Path, rounds: int) -> float:
    times: list[float] = []
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        running(Path(profile)) as browser,
    ):
        for _ in range(rounds):
            with serving(folder) as server:
                times.append(asyncio.run(_painted(browser, server, server.batch())))
    return statistics.median(times)


def live_share(folder: Path, count: int, seconds: float) -> float:
    """The part of a processor that the server takes while a batch of `count` results grows by 100 a
    second and a page follows it, in percent.
    """
    path = write(folder, count, state="running")
    more = results(count + 1_000_000, seed=8)
    for _ in range(count):
        next(more)
    with serving(folder) as server, BatchFolder.open(path) as batch:
        link = server.batch()
        server.until(link, is_read)
        server.until(link, is_computed)
        done = threading.Event()

        def follow() -> None:
            while not done.wait((server.data(link)["live_ms"] or 1_000) / 1_000):
                pass

        follower = threading.Thread(target=follow)
        before, begun = server.cpu_s(), time.perf_counter()
        follower.start()
        while (past := time.perf_counter() - begun) < seconds:
            batch.append(next(more))
            time.sleep(0.01)
        used = server.cpu_s() - before
        done.set()
        follower.join()
        return 100 * used / past


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--live-s", type=float, default=40.0)
    arguments = parser.parse_args()
    say = remarks(arguments.json)
    figures: list[Figure] = []
    with work_folder(None) as folder:
        small, large = folder / "small", folder / "large"
        write(small, arguments.small)
        write(large, arguments.samples)
        if find_chromium() is None:
            say("no Chromium on the PATH: painting is not measured")
        else:
            for path, count, goal in (
                (small, arguments.small, 1.0),
                (large, arguments.samples, 2.0),
            ):
                what = f"first paint of a batch of {count:,} in Chromium"
                figures.append(Figure(what, first_paint(path, arguments.rounds), "s", goal))
        first, read = openings(large, arguments.samples, arguments.rounds)
        figures.append(
            Figure(f"opening a batch of {arguments.samples:,}: first page", first, "s", 2.0)
        )
        figures.append(Figure("the same until every result is read", read, "s"))
        found, memory = filters(large, f"{arguments.samples:,} results")
        figures += [*found, Figure("memory of the server", memory, "MB")]
        matrix = folder / "matrix"
        write(matrix, MATRIX_ROWS * len(CELLS))
        what = f"a matrix of {MATRIX_ROWS:,} × {len(CELLS)}"
        figures += filters(matrix, what)[0]
        for number, count in enumerate((arguments.small, arguments.samples)):
            share = live_share(folder / f"live-{number}", count, arguments.live_s)
            figures.append(
                Figure(f"a live page of a batch of {count:,}, of one processor", share, "%", 2.0)
            )
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
