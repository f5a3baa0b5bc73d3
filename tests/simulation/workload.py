"""What is simulated: runs of every operator, a provider that bills, tools and scripts that leave effects.

The runs are those that `tests/recovery` kills with real signals.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "recovery"))

from recovery_cases import CASES, MODEL, Case, hash_of, reply_to

from evaluator import (
    HandlerConfig,
    ModelRequest,
    ModelResponse,
    ProviderError,
    TemplateLibrary,
    ToolError,
    clock,
    tool,
)
from evaluator.models.chat_wire import read_completion, request_body
from evaluator.models.provider_batches import ProviderBatches
from evaluator.processes.scripts import ScriptResult
from tests.simulation.generated import NAME as GENERATED
from tests.simulation.generated import generated_case

# Commands of file_paths are real processes, and memory is a database.
_NOT_SIMULATED = ("file_paths", "memory", "bash")
WORKLOAD: dict[str, Case] = {
    case.name: case for case in CASES if not any(word in case.xml for word in _NOT_SIMULATED)
}
BATCH = Case(
    "batch",
    """<task name="ask" type="atomic"><description>Answer {{ what }}</description>
    <inputs><input name="what" type="string" required="true">The question</input></inputs></task>
    <task name="judge" type="atomic"><description>JUDGE {{ reply }}</description>
    <inputs><input name="reply" type="string" required="true">The reply</input></inputs>
    <output_format type="json" schema="boolean"/></task>""",
    request="ask",
    answers={"JUDGE": ["true"]},
)
QUEUE = Case(
    "queue",
    """<task name="ask" type="atomic"><description>Answer {{ what }}</description>
    <inputs><input name="what" type="string" required="true">The question</input></inputs></task>
    <task name="delivers" type="atomic"><description>Deliver the parcel [d]</description>
    <tools><tool name="deliver"/></tools></task>
    <task name="person" type="atomic"><description>Answer what a person asks</description></task>
    <task name="story" type="sequential"><description>Write a long story in two chapters</description>
    <steps><task name="one" type="atomic"><description>Write chapter one</description></task>
    <task name="two" type="atomic"><description>Write chapter two</description></task></steps></task>""",
    request="ask",
    answers={"[d]": [[("deliver", {"what": "fx-parcel"})]]},
)
BACKGROUND = replace(QUEUE, name="background")
WORKERS = replace(BATCH, name="workers")
WAVES = replace(BATCH, name="waves")
CONTROLLED = replace(BATCH, name="controlled")
TOGETHER = replace(BATCH, name="together")
# The workloads besides `single`; each has a module of its name.
WORKLOADS = {
    each.name: each for each in (BATCH, QUEUE, BACKGROUND, WORKERS, WAVES, CONTROLLED, TOGETHER)
}
ANSWER = re.compile(r"answer ([0-9a-f]{16})")
# Of one request, fewer than the attempts of a step, so that no step fails by them.
MAX_FAULTS = 1


def case_named(name: str) -> Case:
    if name.startswith(GENERATED):
        return generated_case(name)
    return {**WORKLOAD, **WORKLOADS}[name]


@lru_cache(64)
def library_of(name: str) -> TemplateLibrary:
    case = case_named(name)
    with TemporaryDirectory() as folder:
        (Path(folder) / "t.xml").write_text(f"<library>{case.xml}</library>", encoding="utf-8")
        library = TemplateLibrary.load(folder, shipped=False)
    assert not library.errors, library.errors
    return library


PROFILE = HandlerConfig(
    name="simulation",
    backend="openai_compatible",
    base_url="http://127.0.0.1:9/v1",
    model=MODEL,
    backoff_s=(2.0, 6.0),
    prices=(1.0, 2.0),
)


class World:
    """What no process of ours can undo: the provider's ledger, and the effects of tools and scripts."""

    def __init__(self, case: Case, random: Random, faults: float) -> None:
        self.case = case
        self.random = random
        self.faults = faults
        self.is_dead = lambda: False
        # Whether the record of an answer is where the policy promises it; set for each process.
        self.is_recorded: Callable[[str], bool] = lambda digest: True
        self.used_early: list[str] = []
        # Whether an answer is recorded already; set where that is checked at each call.
        self.is_known: Callable[[str], bool] = lambda digest: False
        self.known_again: list[str] = []
        self.failed = Counter[str]()
        self.asked = Counter[str]()
        self.billed = Counter[str]()
        self.cut = 0
        self.effects = Counter[str]()
        self.knocks = 0
        # The provider batches, by their ids, whether the provider tells their tags, and how many expire.
        self.has_tags = True
        self.expires = 0.0
        # What was billed outside of provider batches.
        self.at_once = Counter[str]()
        self.created = 0
        self.jobs: dict[str, Any] = {}

    def note_sent(self, body: Mapping[str, Any]) -> str:
        """A request is sent. Returns: its digest."""
        used = set(ANSWER.findall(json.dumps(body["messages"])))
        self.used_early += [each for each in used if not self.is_recorded(each)]
        digest = hash_of(body)
        if self.is_known(digest):
            self.known_again.append(digest)
        return digest

    def bill(self, digest: str) -> None:
        """The provider begins to answer a request."""
        self.asked[digest] += 1
        self.billed[digest] += 1

    def reply(self, body: Mapping[str, Any], digest: str) -> ModelResponse | None:
        """The answer to a billed request; None, if it is an error, which is not billed."""
        status, data = reply_to(self.case, body, self.asked[digest])
        if status != 200:
            self.billed[digest] -= 1
            return None
        # A mark by which the answer is found in what was synced.
        data["id"] = data["model"] = f"ANS-{digest}"
        for choice in data["choices"]:
            choice["message"].setdefault("content", None)
        return read_completion(data)

    def act(self, label: str) -> None:
        if self.is_dead():
            raise asyncio.CancelledError
        self.effects[label] += 1


class Provider:
    """A backend with latency and faults: a call is refused unbilled, or billed and its answer cut."""

    name = "simulated-provider"

    def __init__(self, world: World) -> None:
        self._world = world

    async def complete(self, request: ModelRequest, *, on_text: Any = None) -> ModelResponse:
        world = self._world
        random = world.random
        if world.is_dead():
            raise asyncio.CancelledError
        body = request_body(request)
        digest = world.note_sent(body)
        await clock.sleep(random.uniform(0.001, 0.2))
        fault = random.random()
        if fault < world.faults and world.failed[digest] < MAX_FAULTS:
            world.failed[digest] += 1
        else:
            fault = 1.0
        if fault < world.faults / 2:
            raise ProviderError("try later", kind="rate_limit", status=429, retryable=True)
        world.bill(digest)
        world.at_once[digest] += 1
        await clock.sleep(random.uniform(0.01, 1.0))
        if fault < world.faults:
            world.cut += 1
            raise ProviderError("cut", kind="connection", retryable=True, maybe_billed=True)
        response = world.reply(body, digest)
        if response is None:
            raise ProviderError("try again", kind="server", status=500, retryable=True)
        return response

    def batches(self, model: str) -> ProviderBatches:
        from tests.simulation.waves_schedule import SimulatedBatches

        return SimulatedBatches(self._world)

    async def aclose(self) -> None:
        pass


def use_world(world: World) -> None:
    """Sets the world of the tools and scripts, which are the same in all schedules."""
    global CURRENT
    CURRENT = world


CURRENT: World


@tool
async def deliver(what: str) -> str:
    """Delivers something.

    Args:
        what: the thing
    """
    world = CURRENT
    await clock.sleep(world.random.uniform(0.0, 0.1))
    world.act(what)
    await clock.sleep(world.random.uniform(0.0, 0.1))
    return f"delivered FX[{what}]"


@tool
async def break_it(what: str) -> str:
    """Breaks something.

    Args:
        what: the thing
    """
    CURRENT.act(what)
    raise ToolError(f"FX[{what}] is broken now")


@tool(retryable=True)
async def knock(what: str) -> str:
    """Fails until it was called three times.

    Args:
        what: the thing
    """
    CURRENT.knocks += 1
    if CURRENT.knocks < 3:
        raise ToolError("nobody opens")
    return f"{what} opens"


TOOLS = [deliver, break_it, knock]


async def run_script(argv: Any, **_: Any) -> ScriptResult:
    """Replaces the function of this name: what the scripts of the workload do, without a process."""
    world = CURRENT
    program, label = argv[2], argv[-1]
    await clock.sleep(world.random.uniform(0.0, 0.3))
    world.act(label)
    await clock.sleep(world.random.uniform(0.0, 0.3))
    word = "tested" if "tested" in program else "did"
    code = 1 if "test " in program and label == "fx-loop-1" else 0
    return ScriptResult(f"{word} {label}\n", f"FX[{label}]", code, None, False, False, False, 0.1)


def result_of(outcome: Mapping[str, Any], *, with_usage: bool) -> dict[str, Any]:
    """What must be the same however often the run was killed."""
    names = ("status", "content", "parsed_content", "type", "message")
    found = {name: outcome.get(name) for name in names}
    notes = outcome["notes"]
    if with_usage:
        usage = outcome["usage"]
        cost = usage["cost_usd"]
        found["usage"] = {**usage, "cost_usd": None if cost is None else round(cost, 9)}
    left_out = ("resumed", "warnings", "interrupted_calls", "waited_s")
    found["notes"] = {name: notes[name] for name in sorted(notes) if name not in left_out}
    return found
