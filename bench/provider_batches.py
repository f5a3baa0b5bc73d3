"""Provider batches: kills at every effect and at random times faults, and many parked samples.

    python bench/provider_batches.py [--random 1000] [--parked 50000] [--rows 3] [--formats openai]

A server on loopback with the wire formats keeps a ledger of what it billed for each request. A
batch of two steps a row is killed (SIGKILL) before each entry of the log, each request and each
file that takes its name, without a fault also before each other change of the disk, then at random
times, and resumed until it is complete. Then the ledger is compared with the answers and the cost
of the batch. The last figures are those of a session that
parks and submits its samples, and of one that collects them.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Figure, parser_for, report

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.batch.wave_driver import FORMATS, TWO, Driver, result, write_project
from tests.provider_server import DAY_S, Fault, ProviderServer

MAX_SESSIONS = 20


@dataclass(frozen=True)
class Scenario:
    """What goes wrong at the provider, besides the kill. `fate` is that of the first request.

    `is_known`: what was billed can be known. `is_answered`: each sample gets an answer in the end.
    """

    name: str
    faults: tuple[Fault, ...] = ()
    fate: str = "succeeded"
    prepare: Callable[[ProviderServer], None] = lambda server: None
    formats: tuple[str, ...] = FORMATS
    is_known: bool = True
    is_answered: bool = True


def _give_empty_ids(server: ProviderServer) -> None:
    server.empty_ids = True


def _limit_enqueued(server: ProviderServer) -> None:
    new_job = server.new_job

    def limited(requests: Any, **fields: Any) -> Any:
        server.invalid = "token_limit_exceeded" if len(requests) > 2 else None
        return new_job(requests, **fields)

    server.new_job = limited  # type: ignore[method-assign]


OPENAI = ("openai",)
SCENARIOS = (
    Scenario("nothing"),
    Scenario("creation lost before its effect", (Fault("create", "before"),)),
    Scenario("answer to the creation lost", (Fault("create", "after"),)),
    Scenario("creation answered with 504", (Fault("create", 504),)),
    Scenario("creation limited by rate (429)", (Fault("create", 429),)),
    Scenario("answer to the upload lost", (Fault("upload", "after"),), formats=OPENAI),
    Scenario("slow upload or creation", (Fault("upload", "slow"), Fault("create", "slow"))),
    Scenario("503 on get, twice", (Fault("get", 503, times=2),)),
    Scenario(
        "404 on get, the retention is over",
        (Fault("get", 404, times=99),),
        is_known=False,
        is_answered=False,
    ),
    Scenario("results cut off", (Fault("results", "before"),)),
    Scenario("answer to a deletion lost", (Fault("delete", "after"),)),
    Scenario("batch expired in part", fate="expired"),
    Scenario("batch cancelled in part", fate="cancelled"),
    Scenario("a request failed at the server", fate="failed"),
    Scenario("a line twice", fate="double"),
    Scenario("a line of somebody else", fate="foreign"),
    Scenario("a line missing", fate="missing", is_known=False),
    Scenario("empty strings as ids of files", prepare=_give_empty_ids, formats=OPENAI),
    Scenario("too much enqueued", prepare=_limit_enqueued, formats=OPENAI),
)


class Tally:
    """What went wrong in all batches. `wanted` are the right answers."""

    def __init__(self, wanted: dict[str, str]) -> None:
        self.wanted = wanted
        self.batches = self.kills = self.twice = self.lost = self.wrong = 0
        self.difference = 0.0

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {value}" for name, value in vars(self).items() if name != "wanted"
        )


def run(
    driver: Driver,
    folder: Path,
    format: str,
    rows: int,
    scenario: Scenario,
    tally: Tally,
    **kill: object,
) -> list[str]:
    """One batch, killed once and resumed until it is complete. Returns: the effects of its last session."""
    with ProviderServer() as server:
        write_project(folder, server.url, format, rows, TWO)
        server.faults = [
            Fault(each.operation, each.what, each.skip, each.times) for each in scenario.faults
        ]
        scenario.prepare(server)
        unlucky: list[str] = []

        def fate_of(custom_id: str, body: object) -> str:
            if not unlucky:
                unlucky.append(custom_id)
            return scenario.fate if custom_id == unlucky[0] else "succeeded"

        server.fate = fate_of
        code = driver.session(folder, every=scenario is SCENARIOS[0], **kill)
        tally.kills += code == -9
        for _ in range(MAX_SESSIONS):
            if code == 0 and result(folder)["state"] == "complete":
                break
            code = driver.session(folder)
        else:
            raise RuntimeError(f"{folder}: {(folder / 'error.txt').read_text()}")
        found = result(folder)
        tally.batches += 1
        tally.twice += len(server.twice)
        wanted = tally.wanted
        if not scenario.is_answered:
            wanted = dict.fromkeys(wanted, "")
        tally.wrong += found["answers"] != wanted or bool(server.interactive)
        if scenario.is_known:
            # Each paid answer is used by one call of one sample.
            tally.lost += abs(len(server.ledger) - 2 * rows)
            difference = (
                float("inf") if found["cost"] is None else abs(found["cost"] - server.billed)
            )
            tally.difference = max(tally.difference, difference)
        else:
            tally.wrong += found["cost"] is not None
    shutil.rmtree(folder)
    return list(found["effects"])


def interactive(driver: Driver, folder: Path, rows: int) -> dict[str, str]:
    """The answers of an interactive batch."""
    with ProviderServer() as server:
        write_project(folder, server.url, "openai", rows, TWO)
        assert driver.session(folder, options={"provider_batch": False, "wait": False}) == 0
    return dict(result(folder)["answers"])


def kill_everywhere(
    folder: Path, formats: list[str], rows: int, tally: Tally, scenarios: tuple[Scenario, ...]
) -> None:
    with Driver() as driver:
        for format in formats:
            for scenario in scenarios:
                if format not in scenario.formats:
                    continue
                effects = run(driver, folder / "whole", format, rows, scenario, tally)
                for kill_at in range(len(effects)):
                    place = folder / str(kill_at)
                    run(driver, place, format, rows, scenario, tally, kill_at=kill_at)
                what = f"{format}: {scenario.name}: {len(effects)} effects"
                print(f"{what}; {tally}", file=sys.stderr, flush=True)


def kill_at_random(folder: Path, formats: list[str], rows: int, tally: Tally, count: int) -> None:
    chance = random.Random(7)
    with Driver() as driver:
        for number in range(count):
            format = chance.choice(formats)
            scenario = chance.choice([each for each in SCENARIOS if format in each.formats])
            after_s = chance.uniform(0.0, 0.5)
            place = folder / f"random-{number}"
            run(driver, place, format, rows, scenario, tally, kill_after_s=after_s)
            if number % 100 == 99:
                print(f"{number + 1} at random; {tally}", file=sys.stderr, flush=True)


PARKED = """
import json, resource, sys
from pathlib import Path
from tests.batch import wave_driver
wave_driver.hurry()
ended = wave_driver.run_session(Path(sys.argv[1]), wait=False).ended
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([ended.state, used.ru_maxrss / 1024, used.ru_utime + used.ru_stime]))
"""


def parked(folder: Path, count: int) -> list[tuple[str, float, float]]:
    """State, peak memory in MB and processor seconds of the two sessions of a batch of `count` rows."""
    found: list[tuple[str, float, float]] = []
    with ProviderServer() as server:
        write_project(folder, server.url, "openai", 0)
        lines = (
            json.dumps({"id": f"r{n}", "question": f"What is {n}? " * 20, "target": "1"})
            for n in range(count)
        )
        (folder / "rows.jsonl").write_text("".join(line + "\n" for line in lines))
        for _ in range(2):
            command = [sys.executable, "-c", PARKED, str(folder)]
            root = str(Path(__file__).parents[1])
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env={"PYTHONPATH": root}
            )
            if done.returncode:
                raise RuntimeError(done.stderr)
            found.append(tuple(json.loads(done.stdout)))
            server.now += DAY_S
    return found


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument(
        "--random", type=int, default=1000, help="batches that are killed at a random time"
    )
    parser.add_argument("--parked", type=int, default=50_000, help="samples that are parked")
    parser.add_argument("--rows", type=int, default=3, help="rows of a batch that is killed")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument(
        "--faults", type=int, default=len(SCENARIOS), help="so many of the faults, for each effect"
    )
    args = parser.parse_args()
    # A kill leaves what was written, synced or not: the folder may be in memory.
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with Driver() as driver:
            tally = Tally(interactive(driver, folder / "interactive", args.rows))
        kill_everywhere(folder, args.formats, args.rows, tally, SCENARIOS[: args.faults])
        everywhere = tally.kills
        kill_at_random(folder, args.formats, args.rows, tally, args.random)
        sessions = parked(folder / "parked", args.parked) if args.parked else []
    figures = [
        Figure("kills at an effect", everywhere, ""),
        Figure("kills at a random time", tally.kills - everywhere, ""),
        Figure("requests billed twice", tally.twice, "", 0),
        Figure("paid answers lost", tally.lost, "", 0),
        Figure("batches with a wrong result", tally.wrong, "", 0),
        Figure("ledger against our cost, at most", tally.difference, "USD", 0.005),
    ]
    for name, (state, memory, seconds) in zip(("parks", "collects"), sessions, strict=False):
        what = f"a session that {name} {args.parked:,} samples ({state})"
        figures.append(Figure(f"{what}: peak memory", memory, "MB", 600))
        figures.append(
            Figure(f"{what}: processor time a sample", 1000 * seconds / args.parked, "ms")
        )
    report(figures, as_json=args.json)


if __name__ == "__main__":
    main()
