"""How often `evaluator improve` is wrong, and what it finds, where the truth is known.

    python bench/improve.py [--searches 1000] [--rows 400] [--peers PYTHON] [--kills 50] [--json]

The searches are those of `evaluator.improve.search`, decision included, over the simulated model of
`improve_world`, with three rounds. `--peers PYTHON` runs GEPA in an environment that has
`gepa`, with the same number of answers for each search. `--kills` kills a whole search with its
records at random and compares the certificates.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from figures import HERE, Figure, parser_for, report
from improve_world import PLANTS, WORLDS, Plant, World, gain, price

from evaluator.batch.records import Sample
from evaluator.improve.decide import Decision, Outcome
from evaluator.improve.edits import Edit, SetText
from evaluator.improve.search import (
    Candidate,
    Proposal,
    Request,
    Row,
    Search,
    Settings,
    Split,
    reach_of,
    rows_of,
    split_rows,
)

MARGIN = 0.05
CHEAPER = ("cheaper, equally good", "all kinds")
"""Worlds whose searches accept a cheaper template."""


def names_of(edits: Sequence[Edit]) -> list[str]:
    return [edit.text for edit in edits if isinstance(edit, SetText)]


@dataclass
class Simulated:
    """Evidence of a simulated model; each round proposes each of `plants`."""

    world: World
    plants: Sequence[str]
    edits: dict[str, list[str]] = field(default_factory=dict)

    async def evaluate(
        self, candidate: Candidate, rows: Sequence[Row], place: str
    ) -> Mapping[str, Outcome]:
        edits = self.edits[candidate.id] = names_of(candidate.edits)
        right = self.world.answers(edits, [row.id for row in rows], is_train=place == "train")
        draws = random.Random(f"{candidate.sha}{place}")
        return {
            row.id: Outcome(float(each), each, price(edits) * draws.uniform(0.8, 1.2))
            for row, each in zip(rows, right, strict=True)
        }

    async def propose(self, request: Request) -> list[Proposal]:
        found: list[Proposal] = []
        for number, kind in enumerate(self.plants):
            edit = SetText(element="criteria", text=f"{kind}/{request.round}.{number}")
            edits = (*request.parent.edits, edit)
            found.append(Proposal(edits, kind, self.check(edits), (request.parent.id,)))
        return found

    def check(self, edits: Sequence[Edit]) -> str:
        return hashlib.sha256(repr(edits).encode()).hexdigest()

    def count_look(self, rows: Sequence[Row]) -> int:
        return 1


@dataclass(frozen=True)
class Ended:
    """A search: its decision, the edits of its last candidate, the number of answers."""

    decision: Decision | None
    edits: list[str]
    calls: int

    @property
    def is_accepted(self) -> bool:
        return self.decision is not None and self.decision.accepted

    @property
    def is_false(self) -> bool:
        """Whether it was accepted, and is not what the decision claims."""
        if self.decision is None or not self.is_accepted:
            return False
        if self.decision.claim == "better":
            return gain(self.edits) <= 0
        return gain(self.edits) <= -MARGIN or price(self.edits) >= 1


def searched(seed: int, split: Split, plants: Sequence[str], margin: float | None) -> Ended:
    evidence = Simulated(World(seed), plants)
    finalists: list[str] = []

    def record(kind: str, values: Mapping[str, object]) -> None:
        if kind == "finalist":
            finalists.append(str(values["candidate"]))

    settings = Settings(3, len(plants), seed, margin, is_clustered=False)
    decision = asyncio.run(Search(evidence, split, settings, record).run("base"))
    edits = evidence.edits[finalists[0]] if finalists else []
    return Ended(decision, edits, evidence.world.calls)


def split_of(count: int) -> Split:
    samples = [Sample(f"row{n}", {"question": f"question {n}"}, "yes") for n in range(count)]
    return split_rows(rows_of(samples, None), gain=0.05)


def world_figures(name: str, ended: Sequence[Ended]) -> list[Figure]:
    searches = len(ended)
    accepted = [each for each in ended if each.is_accepted]
    false = sum(each.is_false for each in ended)
    harmful = sum(gain(each.edits) < -MARGIN for each in accepted)
    found = [
        Figure(f"{name}: accepted", 100 * len(accepted) / searches, "%"),
        Figure(f"{name}: accepted without a gain", 100 * false / searches, "%", goal=5),
        Figure(f"{name}: harmful ones accepted", harmful, "", goal=0),
        Figure(
            f"{name}: mean true gain", 100 * fmean(_true_gain(each) for each in ended), "points"
        ),
        Figure(
            f"{name}: mean true gain of last candidates",
            100 * fmean(gain(each.edits) for each in ended),
            "points",
        ),
        Figure(f"{name}: answers of a search", fmean(each.calls for each in ended), ""),
    ]
    return found


def _true_gain(ended: Ended) -> float:
    return gain(ended.edits) if ended.is_accepted else 0.0


def power_figure(split: Split, searches: int) -> Figure:
    """How often the gain is accepted at which 80 % power is announced."""
    PLANTS["announced"] = Plant(*[reach_of(len(split.sealed), 0.05).smallest] * 2)
    ended = [searched(seed, split, ("announced",), None) for seed in range(searches)]
    share = 100 * sum(each.is_accepted for each in ended) / searches
    return Figure("gain with an announced power of 80 %: accepted", share, "%", 75, at_least=True)


def peer_figures(python: str, name: str, ended: Sequence[Ended], rows: int) -> list[Figure]:
    asked = json.dumps([[name, seed, each.calls, rows] for seed, each in enumerate(ended)])
    ran = subprocess.run(
        [python, str(HERE / "improve_gepa.py")], input=asked, capture_output=True, text=True
    )
    if ran.returncode:
        raise SystemExit(ran.stderr)
    gains = [(edits, gain(edits)) for edits in json.loads(ran.stdout.splitlines()[-1])]
    false = sum(bool(edits) and each <= 0 for edits, each in gains)
    mean = 100 * fmean(each for _, each in gains)
    return [
        Figure(f"{name}: GEPA, mean true gain", mean, "points"),
        Figure(f"{name}: GEPA, reported without a gain", 100 * false / len(gains), "%"),
    ]


def one_search(folder: Path, kill_at: int) -> None:
    """Runs or resumes a search with its records; kills this process at an effect."""
    from evaluator import disk

    sys.path.insert(0, str(HERE.parent))
    from tests.improve.capitals import Model, search

    left = kill_at

    def counted(effect):  # type: ignore[no-untyped-def]
        def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return effect(*args, **kwargs)

        return call

    for name in ("write", "pwrite", "rename", "fsync", "fdatasync"):
        setattr(disk, name, counted(getattr(disk, name)))

    class Counted(Model):
        def __call__(self, request):  # type: ignore[no-untyped-def]
            with open(folder / "calls.txt", "a") as file:
                file.write("call\n")
            return super().__call__(request)

    print(search(folder, Counted()).digest)


def kill_figures(kills: int) -> list[Figure]:
    """Kills a search at random effects until it has been killed `kills` times."""
    draws = random.Random(1)
    repeated = 0
    different = 0
    done = 0
    wanted = ""
    calls = 0
    while done < kills or not wanted:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            environment = {**os.environ, "EVALUATOR_CONFIG_DIR": f"{name}/user"}
            own = 0
            while True:
                kill_at = draws.randrange(5, 150) if wanted and done + own < kills else 0
                ran = subprocess.run(
                    [sys.executable, __file__, "--one", name, str(kill_at)],
                    capture_output=True,
                    text=True,
                    env=environment,
                )
                if ran.returncode == 0:
                    break
                if ran.returncode != -signal.SIGKILL:
                    raise SystemExit(ran.stderr)
                own += 1
            digest = ran.stdout.strip()
            made = len((folder / "calls.txt").read_text().split("\n")) - 1
            if not wanted:
                wanted, calls = digest, made
                continue
            done += own
            different += digest != wanted
            repeated += made - calls
    return [
        Figure(f"{done} kills: other certificates", different, "", goal=0),
        Figure(f"{done} kills: calls repeated for each", repeated / done, "", goal=4),
    ]


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        one_search(Path(sys.argv[2]), int(sys.argv[3]))
        return
    parser = parser_for(__doc__)
    parser.add_argument("--searches", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--peers", metavar="PYTHON", help="a Python with gepa")
    parser.add_argument("--kills", type=int, default=0)
    arguments = parser.parse_args()
    split = split_of(arguments.rows)
    figures: list[Figure] = []
    for name, plants in WORLDS.items() if arguments.searches else ():
        margin = MARGIN if name in CHEAPER else None
        ended = [searched(seed, split, plants, margin) for seed in range(arguments.searches)]
        figures += world_figures(name, ended)
        if arguments.peers:
            figures += peer_figures(arguments.peers, name, ended, arguments.rows)
    if arguments.searches:
        figures.append(power_figure(split, arguments.searches))
    if arguments.kills:
        figures += kill_figures(arguments.kills)
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
