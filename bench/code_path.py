"""How much of the code three requests pass through.

    python bench/code_path.py [--modules]

- A request in words, from `Evaluator.evaluate` to the call of its model.
- A row of a batch: the first one, and the difference that a further row makes.
- A damaged answer, from `parse_output` to its value.

A call is a call of a function of this package. A switch is a call of a function in another module
than the function called before it. Depth counts the functions of this package on the stack. Each is
warmed up WARM_UPS times, so that what happens only at first use is left out: the constructor of a
class is compiled for its eleventh instance. `--modules` lists the modules by their number of calls.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import tasks
from figures import Figure, parser_for, report

from evaluator import (
    Evaluator,
    ModelRequest,
    SimulatedBackend,
    parse_output,
    run_batch,
)

PACKAGE = str(Path(__file__).parent.parent / "evaluator") + "/"
WARM_UPS = 11
DAMAGED = (
    "Sure, here it is:\n```json\n{'name': 'Ada', \"born\": 1815, tags: [\"math\", 'code',]\n```"
)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "born": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name"],
}


class Trace:
    """Counts calls of the package's functions in all threads while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.calls: Counter[str] = Counter()
        self.switches = 0
        self.depth = 0
        self._last = ""

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self.on:
            return
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE):
            return
        module = file[len(PACKAGE) :]
        self.calls[module] += 1
        if module != self._last:
            self.switches += 1
            self._last = module
        self.depth = max(self.depth, sum(1 for _ in _stack(frame)))

    def figures(self, what: str, modules: int | None, **goals: int) -> list[Figure]:
        return [
            Figure(f"{what}: modules", len(self.calls), "", modules),
            Figure(f"{what}: calls", self.calls.total(), "", goals.get("calls")),
            Figure(f"{what}: switches between modules", self.switches, "", goals.get("switches")),
            Figure(f"{what}: depth", self.depth, ""),
        ]


def _stack(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            yield frame.f_code.co_filename
        frame = frame.f_back


@contextmanager
def tracing(*, on: bool = True) -> Iterator[Trace]:
    """Traces this thread and those that are started meanwhile."""
    trace = Trace()
    trace.on = on
    threading.setprofile(trace.profile)
    sys.setprofile(trace.profile)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]


async def request_to_model(evaluator: Callable[[Any], Evaluator]) -> Trace:
    """The trace ends where the model is called."""
    traces: list[Trace] = []

    def answer(_: ModelRequest) -> str:
        for trace in traces:
            trace.on = False
        return "At six."

    async with evaluator(SimulatedBackend(script=answer)) as own:
        words = "Answer one question about a short text"
        for _ in range(WARM_UPS):
            (await own.evaluate(words, tasks.row(0))).unwrap()
        with tracing() as trace:
            traces.append(trace)
            (await own.evaluate(words, tasks.row(1))).unwrap()
    return trace


async def rows_of_batch(evaluator: Callable[[Any], Evaluator], count: int, folder: Path) -> Trace:
    """The trace of a batch of `count` rows, from its start to its end."""
    async with evaluator(SimulatedBackend(script=lambda _: "At six.")) as own:
        rows = [{**tasks.row(number), "target": "six"} for number in range(count)]
        with tracing() as trace:
            await run_batch(
                tasks.NAME,
                rows,
                evaluator=own,
                scorers=["includes"],
                output=folder,
                limits={"concurrency": 1},
                display=None,
            )
    return trace


def answer_to_value() -> Trace:
    for _ in range(WARM_UPS):
        parse_output(DAMAGED, schema=SCHEMA)
    with tracing() as trace:
        parsed = parse_output(DAMAGED, schema=SCHEMA)
    assert parsed.value == {"name": "Ada", "born": 1815, "tags": ["math", "code"]}
    return trace


async def traces(folder: Path) -> tuple[Trace, Trace, Trace, Trace]:
    library = tasks.library(folder / "templates")

    def evaluator(backend: Any) -> Evaluator:
        return Evaluator(library, "offline", backend=backend, tasks_dir=folder / "tasks")

    request = await request_to_model(evaluator)
    for number in range(WARM_UPS):
        await rows_of_batch(evaluator, 2, folder=folder / f"warm-{number}")
    first = await rows_of_batch(evaluator, 1, folder=folder / "one")
    many = await rows_of_batch(evaluator, 21, folder=folder / "many")
    return request, first, many, answer_to_value()


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--modules", action="store_true", help="list the modules")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        request, first, many, answer = asyncio.run(traces(Path(folder)))
    further = (many.calls.total() - first.calls.total()) / 20
    figures = [
        *request.figures("request to its model call", 35, switches=100),
        *first.figures("batch of one row", 80, calls=1200),
        Figure("a further row: calls", further, "", 400),
        *answer.figures("damaged answer to its value", 8),
    ]
    report(figures, as_json=options.json)
    if options.modules:
        for what, trace in (("request", request), ("row", first), ("answer", answer)):
            print(f"\n{what}")
            for module, calls in trace.calls.most_common():
                print(f"{calls:7,} {module}")


if __name__ == "__main__":
    main()
