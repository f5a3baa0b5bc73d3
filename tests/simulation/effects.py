"""The effects of simulated processes: each is replaced by one of the simulated world."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

from evaluator import clock, disk, randomness, this_process
from evaluator.interpreter.operators import script
from evaluator.models import cache
from evaluator.processes import concurrency, starting
from evaluator.record.redact import Redactor
from evaluator.store import owners
from tests.simulation.simulated_disk import DISK_FUNCTIONS, SimulatedDisk
from tests.simulation.simulated_loop import SimulatedLoop
from tests.simulation.workload import World, run_script, use_world

# Garbage is collected at the end of a process only.
NO_COLLECTOR = SimpleNamespace(
    get_freeze_count=lambda: 1,
    freeze=lambda: None,
    unfreeze=lambda: None,
    get_threshold=lambda: (0, 0, 0),
    set_threshold=lambda *_: None,
)
# The environment of this process decides nothing.
NO_SECRETS = Redactor.from_environment({})
JUMPS_S = (0.0, -7200.0, 86_400.0)


@dataclass(eq=False)
class Identity:
    """A process: `started` is its start, and its wall clock is off by `jump_s`."""

    pid: int
    started: int
    host: str
    boot: str
    jump_s: float


def boot_of(files: SimulatedDisk) -> str:
    return f"{files.generation:08x}-0000-4000-8000-000000000000"


@contextmanager
def effects(
    world: World,
    files: SimulatedDisk,
    loop: SimulatedLoop,
    *,
    current: Callable[[], Identity],
    alive: Callable[[], Iterable[Identity]],
) -> Iterator[None]:
    """Replaces every effect; each is one of the process `current`. Others see which are `alive`."""
    random = world.random

    def start_of(pid: int) -> int:
        host = current().host
        for each in alive():
            if (each.pid, each.host) == (pid, host):
                return each.started
        raise FileNotFoundError(pid)

    def wall() -> float:
        return 1.8e9 + current().jump_s + loop.time()

    replaced = {
        clock: {
            "monotonic": loop.time,
            "since_boot": loop.time,
            "wall": wall,
            "wall_ns": lambda: int(wall() * 1e9),
            "pause": loop.pause,
        },
        disk: {name: getattr(files, name) for name in DISK_FUNCTIONS},
        randomness: {
            "token_hex": lambda size: random.randbytes(size).hex(),
            "token_bytes": random.randbytes,
        },
        this_process: {
            "pid": lambda: current().pid,
            "start_of": start_of,
            "boot_id": lambda: current().boot,
            "host": lambda: current().host,
        },
        owners: {"_owner_of": owners._owner_of.__wrapped__},
        starting: {"start_thread": loop.start_thread, "Timer": loop.timer},
        script: {"run_script": run_script},
        cache: {"ThreadPoolExecutor": loop.executor},
        concurrency: {"gc": NO_COLLECTOR},
        Redactor: {"from_environment": lambda *_, **__: NO_SECRETS},
    }
    use_world(world)
    originals = [
        (owner, name, vars(owner)[name]) for owner, names in replaced.items() for name in names
    ]
    for replaced_owner, names in replaced.items():
        for name, value in names.items():
            setattr(replaced_owner, name, value)
    try:
        yield
    finally:
        for replaced_owner, name, value in originals:
            setattr(replaced_owner, name, value)
