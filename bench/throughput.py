"""Recorded atomic tasks a second against a bare client loop that makes the same calls to the same
server.

    python bench/throughput.py [--backend openai_compatible|litellm] [--sync off|task|step]
        [--n 2000] [--rounds 5] [--profile]

One process of 64 concurrent tasks, each with a task file on disk in a fresh folder, against
`server.py` in a process of its own that answers at once. Rounds alternate: bare loop, Evaluator,
bare loop, Evaluator; the ratio is the median over the rounds of the two neighbours' rates.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import json
import os
import pstats
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import tasks
from figures import Figure, creation_us, parser_for, remarks, report, serving, work_folder

from evaluator import Evaluator, HandlerConfig
from evaluator.record.journal import SYNC_POLICIES, Sync
from evaluator.record.store import TaskStore

CONCURRENCY = 64
GOALS = {"openai_compatible": 0.5, "litellm": 0.95}
BARE = {"openai_compatible": "bare aiohttp loop", "litellm": "bare litellm.acompletion loop"}
KEY = "BENCH_API_KEY"
MODEL = "openai/bench"

Call = Callable[[dict[str, Any]], Awaitable[Any]]


async def rate_of_calls(call: Call, count: int) -> float:
    """Calls a second of CONCURRENCY workers that share `count` rows."""
    rows = iter([tasks.row(number) for number in range(count)])

    async def worker() -> None:
        for row in rows:
            await call(row)

    gc.collect()
    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
    return count / (time.perf_counter() - started)


async def rate_of_tasks(evaluator: Evaluator, count: int) -> float:
    """Tasks a second of one batch. Raises: SystemExit, if one of them fails."""
    rows = [tasks.row(number) for number in range(count)]
    gc.collect()
    started = time.perf_counter()
    done = 0
    async for result in evaluator.evaluate_batch(tasks.NAME, rows, concurrency=CONCURRENCY):
        if not result.ok:
            raise SystemExit(f"a task failed: {result}")
        done += 1
    elapsed = time.perf_counter() - started
    if done != count:
        raise SystemExit(f"{count} rows gave {done} results")
    return count / elapsed


def aiohttp_call(session: Any, url: str) -> Call:
    async def call(row: dict[str, Any]) -> Any:
        body = {"model": "bench", "messages": tasks.messages(row)}
        async with session.post(url, json=body) as response:
            return json.loads(await response.read())

    return call


def litellm_call(url: str) -> Call:
    import litellm

    async def call(row: dict[str, Any]) -> Any:
        return await litellm.acompletion(
            model=MODEL,
            messages=tasks.messages(row),
            api_base=url,
            api_key=os.environ[KEY],
            num_retries=0,
            max_retries=0,
        )

    return call


def make_evaluator(
    backend: Any, url: str, folder: Path, tasks_dir: Path | None, sync: Sync = "off"
) -> Evaluator:
    config = HandlerConfig(
        name="bench",
        backend=backend,
        base_url=url,
        model=MODEL,
        api_key_env=KEY if backend == "litellm" else None,
    )
    return Evaluator(
        tasks.library(folder / "templates"), config, profiles={}, tasks_dir=tasks_dir, sync=sync
    )


def check_same_request(evaluator: Evaluator) -> None:
    """The two sides send the same messages, or there is nothing to compare."""
    _, previews = evaluator.render(tasks.NAME, tasks.row(0))
    sent = [message.to_dict() for message in previews[0].messages]
    if sent != tasks.messages(tasks.row(0)):
        raise SystemExit(f"the bare loop sends something else than the evaluator: {sent}")


async def measure(
    backend: str, sync: Sync, count: int, rounds: int, folder: Path, say: Callable[[str], None]
) -> list[Figure]:
    import aiohttp

    os.environ[KEY] = "bench-key-of-no-use"
    creation = creation_us(folder)
    bare_rates: list[float] = []
    own_rates: list[float] = []
    bare_us: list[float] = []
    own_us: list[float] = []
    with serving() as url:
        check_same_request(make_evaluator(backend, url, folder, None))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256)) as session:
            if backend == "litellm":
                async with make_evaluator(backend, url, folder, None) as first:
                    await rate_of_tasks(first, 1)
                call = litellm_call(url)
            else:
                call = aiohttp_call(session, f"{url}/chat/completions")
            await rate_of_calls(call, min(count, 4 * CONCURRENCY))
            for number in range(rounds):
                before = time.process_time()
                bare_rates.append(await rate_of_calls(call, count))
                bare_us.append((time.process_time() - before) / count * 1e6)
                tasks_dir = folder / f"round-{number}"
                async with make_evaluator(backend, url, folder, tasks_dir, sync) as evaluator:
                    await rate_of_tasks(evaluator, CONCURRENCY)
                    before = time.process_time()
                    own_rates.append(await rate_of_tasks(evaluator, count))
                    own_us.append((time.process_time() - before) / count * 1e6)
                recorded = sum(1 for _ in TaskStore(tasks_dir).ids())
                if recorded != count + CONCURRENCY:
                    raise SystemExit(f"{count + CONCURRENCY} tasks left {recorded} records")
                say(
                    f"round {number + 1}: bare {bare_rates[-1]:,.0f}/s, evaluator "
                    f"{own_rates[-1]:,.0f}/s"
                )
    ratio = statistics.median(own / bare for own, bare in zip(own_rates, bare_rates, strict=True))
    how = "" if sync == "off" else f", sync {sync}"
    return [
        Figure(f"{BARE[backend]}, calls", statistics.median(bare_rates), "/s"),
        Figure(f"recorded tasks, {backend}{how}", statistics.median(own_rates), "/s"),
        Figure(f"recorded tasks{how} : {BARE[backend]}", ratio, "", GOALS[backend], at_least=True),
        Figure("  processor time of a bare call", statistics.median(bare_us), "us"),
        Figure("  processor time of a recorded task", statistics.median(own_us), "us"),
        Figure("  creating one empty file there", creation, "us"),
    ]


async def profile(backend: str, sync: Sync, count: int, folder: Path) -> None:
    """Prints the functions that take the most time of their own; the profiler makes everything
    slower.
    """
    os.environ[KEY] = "bench-key-of-no-use"
    with serving() as url:
        async with make_evaluator(backend, url, folder, folder / "tasks", sync) as evaluator:
            await rate_of_tasks(evaluator, CONCURRENCY)
            profiler = cProfile.Profile()
            profiler.enable()
            await rate_of_tasks(evaluator, count)
            profiler.disable()
    stats: dict[tuple[str, int, str], tuple[Any, ...]] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    for order, title in ((2, "own time"), (3, "with what it calls")):
        print(f"{title}: us a task, calls a task, function")
        for (file, line, name), values in sorted(stats.items(), key=lambda item: -item[1][order])[
            :60
        ]:
            where = name if file == "~" else f"{'/'.join(Path(file).parts[-2:])}:{line} {name}"
            print(f"{values[order] / count * 1e6:8.1f} {values[1] / count:7.2f}  {where}")


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--backend", choices=sorted(GOALS), default="openai_compatible")
    parser.add_argument(
        "--sync", choices=SYNC_POLICIES, default="off", help="what survives a loss of power"
    )
    parser.add_argument("--n", type=int, help="tasks a round (default 2000; with litellm 500)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the task files go, and stay")
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead")
    arguments = parser.parse_args()
    count = arguments.n or (500 if arguments.backend == "litellm" else 2000)
    say = remarks(arguments.json)
    with work_folder(arguments.folder) as folder:
        if arguments.profile:
            asyncio.run(profile(arguments.backend, arguments.sync, count, folder))
            return
        measured = measure(arguments.backend, arguments.sync, count, arguments.rounds, folder, say)
        figures = asyncio.run(measured)
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
