"""ScorerInput samples a second of a whole batch, against a bare client loop and against peers.

    python bench/batch.py [--n 2000] [--concurrency 64] [--delay-ms 0] [--rounds 3]
        [--peers PYTHON] [--promptfoo COMMAND] [--profile]

Each sample is one call and one `includes` scorer; task files and results are on disk in a fresh
folder. Rounds
alternate: bare aiohttp loop, batch, each peer; a ratio is the median over the rounds of neighbours.
`--peers` names a Python that has the peers (see `peers.txt`), `--promptfoo` the program; those that
are missing are left out and named.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import json
import pstats
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tasks
from figures import HERE, Figure, creation_us, parser_for, remarks, report, serving, work_folder
from peers import promptfoo

from evaluator import Evaluator, HandlerConfig, run_batch
from evaluator.record.store import TaskStore

CONTENT = "The answer is 42."
GOAL_OF_BARE, GOAL_OF_IDEAL, GOAL_OF_PEERS = 0.4, 0.9, 5.0
PYTHON_PEERS = ("pydantic-evals", "inspect-ai", "dspy")
PEERS = (*PYTHON_PEERS, "promptfoo")


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": str(number), "target": "42", **tasks.row(number)} for number in range(count)]


async def bare(url: str, count: int, concurrency: int) -> float:
    """Calls a second of `concurrency` workers that share the rows, each answer looked through for
    the target.
    """
    import aiohttp

    waiting = iter(rows(count))
    found = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as session:

        async def worker() -> None:
            nonlocal found
            for row in waiting:
                body = {"model": "bench", "messages": tasks.messages(row)}
                async with session.post(f"{url}/chat/completions", json=body) as response:
                    answer = json.loads(await response.read())
                found += row["target"] in answer["choices"][0]["message"]["content"]

        gc.collect()
        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        elapsed = time.perf_counter() - started
    if found != count:
        raise SystemExit(f"the bare loop found {found} of {count} targets")
    return count / elapsed


async def batch(url: str, folder: Path, output: Path, count: int, concurrency: int) -> float:
    """Samples a second of one batch. Raises: SystemExit, if not all of them passed."""
    config = HandlerConfig(
        name="bench", backend="openai_compatible", base_url=url, model="openai/bench"
    )
    evaluator = Evaluator(tasks.library(folder / "templates"), config, profiles={}, tasks_dir=None)
    given = rows(count)
    gc.collect()
    started = time.perf_counter()
    result = await run_batch(
        tasks.NAME,
        given,
        evaluator=evaluator,
        scorers=["includes"],
        output=output,
        limits={"concurrency": concurrency},
    )
    elapsed = time.perf_counter() - started
    if result.summary.counts.passed != count:
        raise SystemExit(f"{result.summary.counts} of {count} samples")
    if sum(1 for _ in TaskStore(output / "tasks").ids()) != count:
        raise SystemExit("there is not a record for each sample")
    return count / elapsed


def peer(arguments: Any, name: str, folder: Path, url: str) -> float | None:
    """Samples a second of a peer, in a process of its own; None where it is not installed."""
    count, concurrency = arguments.n, arguments.concurrency
    if name == "promptfoo":
        program = shutil.which(arguments.promptfoo)
        return (
            promptfoo(str(Path(program).absolute()), folder, url, count, concurrency)
            if program
            else None
        )
    command = [arguments.peers, str(HERE / "peers.py"), name, url, str(count), str(concurrency)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        return None
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def measure(arguments: Any, folder: Path) -> list[Figure]:
    say = remarks(arguments.json)
    count, concurrency, delay_s = arguments.n, arguments.concurrency, arguments.delay_ms / 1000
    rates: dict[str, list[float]] = {}
    asked = (PYTHON_PEERS if arguments.peers else ()) + (
        ("promptfoo",) if arguments.promptfoo else ()
    )
    creation = creation_us(folder)
    with serving(CONTENT, arguments.delay_ms) as url:
        asyncio.run(bare(url, min(count, 4 * concurrency), concurrency))
        asyncio.run(batch(url, folder, folder / "warm", concurrency, concurrency))
        for number in range(arguments.rounds):
            rates.setdefault("bare", []).append(asyncio.run(bare(url, count, concurrency)))
            output = folder / f"round-{number}"
            rates.setdefault("batch", []).append(
                asyncio.run(batch(url, folder, output, count, concurrency))
            )
            for name in asked:
                rate = peer(arguments, name, folder / f"{name}-{number}", url)
                if rate is None:
                    say(f"{name} is not installed there")
                else:
                    rates.setdefault(name, []).append(rate)
            say(
                f"round {number + 1}: "
                + ", ".join(f"{name} {found[-1]:,.0f}/s" for name, found in rates.items())
            )
    middle = {name: statistics.median(found) for name, found in rates.items()}
    figures = [
        Figure("bare aiohttp loop", middle["bare"], "/s"),
        Figure("batch, scored and recorded", middle["batch"], "/s"),
        Figure("batch : bare aiohttp loop", ratio(rates, "bare"), "", GOAL_OF_BARE, at_least=True),
    ]
    if delay_s:
        ideal = concurrency / delay_s
        lower = min(ideal, middle["bare"])
        figures[-1:] = [
            Figure("batch : ideal", middle["batch"] / ideal, ""),
            Figure(
                "batch : the lower of ideal and bare loop",
                middle["batch"] / lower,
                "",
                GOAL_OF_IDEAL,
                at_least=True,
            ),
        ]
    figures += [Figure(f"{name}", middle[name], "/s") for name in PEERS if name in middle]
    figures += [
        Figure(f"batch : {name}", ratio(rates, name), "", GOAL_OF_PEERS, at_least=True)
        for name in PEERS
        if name in rates
    ]
    return [*figures, Figure("  creating one empty file there", creation, "us")]


def ratio(rates: dict[str, list[float]], other: str) -> float:
    return statistics.median(
        own / theirs for own, theirs in zip(rates["batch"], rates[other], strict=True)
    )


def profile(arguments: Any, folder: Path) -> None:
    """Prints the functions that take the most time of their own; the profiler makes everything
    slower.
    """
    with serving(CONTENT, arguments.delay_ms) as url:
        asyncio.run(
            batch(url, folder, folder / "warm", arguments.concurrency, arguments.concurrency)
        )
        profiler = cProfile.Profile()
        profiler.enable()
        asyncio.run(batch(url, folder, folder / "profiled", arguments.n, arguments.concurrency))
        profiler.disable()
    stats: dict[tuple[str, int, str], tuple[Any, ...]] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    for order, title in ((2, "own time"), (3, "with what it calls")):
        print(f"{title}: us a sample, calls a sample, function")
        for (file, line, name), values in sorted(stats.items(), key=lambda item: -item[1][order])[
            :60
        ]:
            where = name if file == "~" else f"{'/'.join(Path(file).parts[-2:])}:{line} {name}"
            print(
                f"{values[order] / arguments.n * 1e6:8.1f} {values[1] / arguments.n:7.2f}  {where}"
            )


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--n", type=int, default=2000, help="samples a round")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument(
        "--delay-ms", type=float, default=0.0, help="how long the server waits before each answer"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", metavar="PYTHON", help="a Python that has the peers installed")
    parser.add_argument(
        "--promptfoo", metavar="COMMAND", help="promptfoo's program, as a path or a name on PATH"
    )
    parser.add_argument("--folder", type=Path, help="where everything is written, and stays")
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead")
    arguments = parser.parse_args()
    with work_folder(arguments.folder) as folder:
        if arguments.profile:
            profile(arguments, folder)
            return
        report(measure(arguments, folder), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
