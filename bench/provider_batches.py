"""Provider batches: kills at every effect and at random times faults, and many parked samples.

    python bench/provider_batches.py [--random 1000] [--parked 50000] [--rows 3]

A server on loopback with both wire formats keeps a ledger of what it billed for each request. A
batch of two steps a row is killed (SIGKILL) before each change of the disk, each entry of the log
and each request, then at random times, and resumed until it is complete. Then the ledger is
compared with the answers and the cost of the batch. The last figures are those of a session that
parks and submits its samples, and of one that collects them.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from figures import Figure, parser_for, report, work_folder

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.batch.wave_driver import TWO, Driver, result, write_project
from tests.provider_server import DAY_S, Fault, ProviderServer

FAULTS: tuple[tuple[Fault, ...], ...] = (
    (),
    (Fault("create", "before"),),
    (Fault("create", "after"),),
    (Fault("create", 504),),
    (Fault("upload", "after"),),
    (Fault("get", 503, times=2),),
    (Fault("results", "before"),),
    (Fault("delete", "after"),),
)
FATES = ("succeeded", "expired", "failed", "double", "foreign")
MAX_SESSIONS = 20


class Tally:
    """What went wrong in all batches."""

    def __init__(self) -> None:
        self.batches = self.kills = self.twice = self.lost = self.wrong = 0
        self.difference = 0.0


def run(
    driver: Driver,
    folder: Path,
    format: str,
    rows: int,
    faults: tuple[Fault, ...],
    tally: Tally,
    fate: str,
    **kill: object,
) -> list[str]:
    """One batch, killed once and resumed until it is complete. Returns: the effects of its last session."""
    with ProviderServer() as server:
        write_project(folder, server.url, format, rows, TWO)
        server.faults = [Fault(each.operation, each.what, each.skip, each.times) for each in faults]
        unlucky: list[str] = []

        def fate_of(custom_id: str, body: object) -> str:
            if not unlucky:
                unlucky.append(custom_id)
            return fate if custom_id == unlucky[0] else "succeeded"

        server.fate = fate_of
        code = driver.session(folder, every=True, **kill)
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
        tally.wrong += len(found["answers"]) != rows or not all(found["answers"].values())
        # Each paid answer is used by one call of one sample.
        tally.lost += max(0, len(server.ledger) - 2 * rows)
        difference = float("inf") if found["cost"] is None else abs(found["cost"] - server.billed)
        tally.difference = max(tally.difference, difference)
        return list(found["effects"])


def kill_everywhere(
    folder: Path, rows: int, tally: Tally, faults: tuple[tuple[Fault, ...], ...]
) -> None:
    with Driver() as driver:
        for format in ("openai", "anthropic"):
            for number, some in enumerate(faults):
                place = folder / f"{format}-{number}"
                effects = run(driver, place / "whole", format, rows, some, tally, "succeeded")
                for kill_at in range(len(effects)):
                    run(
                        driver,
                        place / str(kill_at),
                        format,
                        rows,
                        some,
                        tally,
                        "succeeded",
                        kill_at=kill_at,
                    )


def kill_at_random(folder: Path, rows: int, tally: Tally, count: int) -> None:
    chance = random.Random(7)
    with Driver() as driver:
        for number in range(count):
            format = chance.choice(("openai", "anthropic"))
            some = chance.choice(FAULTS)
            after_s = chance.uniform(0.0, 0.4)
            place = folder / f"random-{number}"
            run(
                driver, place, format, rows, some, tally, chance.choice(FATES), kill_after_s=after_s
            )


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
    parser.add_argument("--faults", type=int, default=len(FAULTS), help="so many of the faults")
    args = parser.parse_args()
    tally = Tally()
    with work_folder(None) as folder:
        kill_everywhere(folder, args.rows, tally, FAULTS[: args.faults])
        everywhere = tally.kills
        kill_at_random(folder, args.rows, tally, args.random)
        sessions = parked(folder / "parked", args.parked)
    figures = [
        Figure("kills at an effect", everywhere, ""),
        Figure("kills at a random time", tally.kills - everywhere, ""),
        Figure("requests billed twice", tally.twice, "", 0),
        Figure("paid answers lost", tally.lost, "", 0),
        Figure("batches with a wrong result", tally.wrong, "", 0),
        Figure("ledger against our cost, at most", tally.difference, "USD", 0.005),
    ]
    for name, (state, memory, seconds) in zip(("parks", "collects"), sessions, strict=True):
        what = f"a session that {name} {args.parked:,} samples ({state})"
        figures.append(Figure(f"{what}: peak memory", memory, "MB", 600))
        figures.append(
            Figure(f"{what}: processor time a sample", 1000 * seconds / args.parked, "ms")
        )
    report(figures, as_json=args.json)


if __name__ == "__main__":
    main()
