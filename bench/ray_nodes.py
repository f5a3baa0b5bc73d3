"""Two nodes on Ray against one process, for tasks that keep a CPU busy: samples a second, and where
the limit is.

    python bench/ray_nodes.py [--samples 240] [--ms 20] [--nodes 2]

Each sample asks a simulated model, and a scorer keeps the CPU busy for about `--ms`; a script of a
template runs in a process of its own, so that one process uses all CPUs for scripts already, and is
timed too. The nodes are on this
machine: its CPUs bound what can be gained. Starting Ray and its processes is left out of the rates,
and told apart.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from busy import busy_for, rounds_for
from figures import Figure, parser_for, remarks, report, work_folder

from evaluator import Evaluator, SimulatedBackend, TemplateLibrary, run_batch
from evaluator.batch.engines import Engine, LocalEngine
from evaluator.batch.engines.ray_engine import RayEngine

CONCURRENCY = 16
BURN = (
    "import hashlib,sys\ndata = b''\nfor _ in range(int(sys.argv[1])): data = "
    "hashlib.sha256(data).digest()\n"
)
TEMPLATES = """<library>
<task name="ask" type="atomic"><description>Ask</description><inputs><input name="n" required="true">n</input></inputs>
<instructions>{{ n }}</instructions></task>
<task name="burn" type="script"><description>Keep a CPU busy</description>
<inputs><input name="n" required="true">n</input></inputs>
<command>COMMAND</command></task>
</library>"""


@contextmanager
def cluster_of(nodes: int) -> Iterator[None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    logging.getLogger("ray").setLevel(logging.ERROR)
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


async def rates(
    evaluator: Evaluator,
    template: str,
    scorers: list[Any],
    samples: int,
    engine: Engine,
    folder: Path,
) -> tuple[float, float]:
    """Samples a second from the first result on, and the seconds until the first."""
    seen: list[float] = []

    class Display:
        def __getattr__(self, _: str) -> Any:
            return lambda *_: None

        def result(self, _: Any) -> None:
            seen.append(time.perf_counter())

    started = time.perf_counter()
    rows = [{"id": str(n), "n": str(n)} for n in range(samples)]
    display: Any = Display()
    batch = await run_batch(
        template,
        rows,
        evaluator=evaluator,
        scorers=scorers,
        engine=engine,
        output=folder,
        display=display,
        limits={"concurrency": CONCURRENCY},
    )
    assert batch.is_complete and len(seen) == samples, batch.ended
    assert not batch.ended.snapshot.errors, next(batch.results()).failure
    return (samples - 1) / (seen[-1] - seen[0]), seen[0] - started


async def measure(samples: int, ms: float, nodes: int, folder: Path, say: Any) -> list[Figure]:
    rounds = rounds_for(ms)
    templates = folder / "templates.xml"
    command = (sys.executable, "-I", "burn.py", str(rounds))
    (folder / "burn.py").write_text(BURN)
    templates.write_text(
        TEMPLATES.replace("COMMAND", "".join(f"<arg>{arg}</arg>" for arg in command))
    )
    library = TemplateLibrary.load(templates, shipped=False)
    evaluator = Evaluator(
        library, "offline", backend=SimulatedBackend(), tasks_dir=None, roots=[folder]
    )
    found: list[Figure] = []
    for what, template, scorers in (
        (f"scorer of {ms:g} ms", "ask", [busy_for(rounds)]),
        (f"script of {ms:g} ms", "burn", []),
    ):
        local, _ = await rates(
            evaluator,
            template,
            scorers,
            samples,
            LocalEngine(CONCURRENCY),
            folder / f"l-{template}",
        )
        ray, start_s = await rates(
            evaluator, template, scorers, samples, RayEngine(CONCURRENCY), folder / f"r-{template}"
        )
        found += [
            Figure(f"{what}: one process", local, "samples/s"),
            Figure(f"{what}: {nodes} nodes on Ray", ray, "samples/s"),
            Figure(f"{what}: nodes against one process", ray / local, "x"),
            Figure(f"{what}: until the first result on Ray", start_s, "s"),
        ]
    say(
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}: with {nodes} nodes of one CPU "
        "each at most "
        f"{min(nodes, os.cpu_count() or 1)} x can be gained, less what this process takes to hand "
        "out and write "
        "down, and what else runs here; scripts are processes already, for which one event loop "
        "is not the limit"
    )
    await evaluator.aclose()
    return found


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--samples", type=int, default=240)
    parser.add_argument("--ms", type=float, default=20.0, help="CPU time of a sample")
    parser.add_argument("--nodes", type=int, default=2, help="of one CPU each, on this machine")
    parser.add_argument("--folder", type=Path, default=None, help="where to write; stays")
    args = parser.parse_args()
    with work_folder(args.folder) as folder, cluster_of(args.nodes):
        found = asyncio.run(measure(args.samples, args.ms, args.nodes, folder, remarks(args.json)))
    report(found, as_json=args.json)


if __name__ == "__main__":
    main()
