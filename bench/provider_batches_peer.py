"""Provider batches of Inspect AI beside ours, on one server with the same faults.

    python bench/provider_batches_peer.py --peer PYTHON [--rows 4]

PYTHON is an interpreter with inspect-ai, openai and anthropic. Both evaluate the same rows through
the batch API of the test server, which counts what it billed for each question. A run that looks at
a batch MAX_LOOKS times after its end waits for ever. A run that has ended with an error or was
killed is continued once: with `eval_retry`, and with another session.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_LOOKS = 200
MAX_S = 300.0


@dataclass(frozen=True)
class Scenario:
    """What goes wrong. `fate` is that of the first question, `fate_of_others` that of the others, in
    the first batch. `is_killed`: after the creation.
    """

    name: str
    fault: tuple[str, int | str, int] | None = None
    fate: str = "succeeded"
    fate_of_others: str = "succeeded"
    prepare: Callable[[Any], None] = lambda server: None
    is_killed: bool = False
    formats: tuple[str, ...] = ("openai", "anthropic")


def _leave_no_files(server: Any) -> None:
    output = server._output
    server._output = lambda lines: None if len(server.jobs) == 1 else output(lines)


def _refuse(server: Any) -> None:
    server.invalid = "invalid_json_line"


SCENARIOS = (
    Scenario("nothing"),
    Scenario("creation answered with 503", ("create", 503, 1)),
    Scenario("answer to the creation lost", ("create", "after", 1)),
    Scenario("503 on get, twice", ("get", 503, 2)),
    Scenario("results cut off", ("results", "before", 1)),
    Scenario("batch expired in part", fate="expired"),
    Scenario("batch cancelled in part", fate="cancelled"),
    Scenario(
        "batch expired without files",
        fate="expired",
        fate_of_others="expired",
        prepare=_leave_no_files,
        formats=("openai",),
    ),
    Scenario("whole batch invalid", prepare=_refuse, formats=("openai",)),
    Scenario("a request failed at the server", fate="failed"),
    Scenario("a line missing", fate="missing"),
    Scenario("a line of somebody else", fate="foreign"),
    Scenario("process killed after the creation", is_killed=True),
)


# -- the peer --------------------------------------------------------------------------------------

PEER = """
import json, sys
from pathlib import Path
from inspect_ai import Task, eval, eval_retry, task
from inspect_ai.dataset import Sample
from inspect_ai.log import list_eval_logs
from inspect_ai.model import BatchConfig
from inspect_ai.solver import generate

@task
def quiz(rows: int = 4):
    return Task([Sample("x" * (n + 1), id=f"r{n}") for n in range(rows)], solver=generate())

if __name__ == "__main__":
    url, format, rows, logs = sys.argv[1:]
    common = dict(log_dir=logs, display="none", score=False, fail_on_error=False)
    if earlier := list_eval_logs(logs):
        [log] = eval_retry(earlier[0], **common)
    else:
        name = {"openai": "openai/gpt-4o-mini", "anthropic": "anthropic/claude-haiku-4-5"}[format]
        args = {"responses_api": False} if format == "openai" else {}
        batch = BatchConfig(size=int(rows), send_delay=0.5, tick=0.05)
        [log] = eval(quiz(int(rows)), model=name, model_base_url=url, model_args=args, batch=batch, max_tokens=50, **common)
    samples = log.samples or []
    found = {each.id: each.output.completion for each in samples if each.error is None}
    Path(logs, "answers.json").write_text(json.dumps(found))
    sys.exit(log.status != "success")
"""


@dataclass
class Outcome:
    """What came of a run: how it ended, its answers, and the bills for each question."""

    ended: str
    answers: int
    billed: Counter[str]

    def cells(self, rows: int) -> str:
        twice = sum(count > 1 for count in self.billed.values())
        paid = sum(self.billed.values())
        return f"{self.ended}; {self.answers} of {rows} answers, {paid} billed, {twice} twice"


def _prepare(server: Any, scenario: Scenario, billed: Counter[str]) -> None:
    from tests.provider_replies import last_prompt
    from tests.provider_server import Fault

    if scenario.fault is not None:
        operation, what, times = scenario.fault
        server.faults = [Fault(operation, what, times=times)]
    scenario.prepare(server)
    first: list[str] = []

    def fate_of(custom_id: str, body: Any) -> str:
        prompt = last_prompt(body)
        fate = "succeeded"
        if prompt == "x" and not first:
            first.append(custom_id)
            fate = scenario.fate
        elif len(server.jobs) == 1:
            fate = scenario.fate_of_others
        if fate in ("succeeded", "missing", "foreign"):
            billed[prompt] += 1
        return fate

    server.fate = fate_of


def _watch(process: subprocess.Popen[bytes], server: Any, is_killed: bool) -> str:
    """How a process ended."""
    until = time.monotonic() + MAX_S
    while process.poll() is None:
        if is_killed and server.jobs:
            process.kill()
            process.wait()
            return "killed"
        looks = server.operations.count("get") + server.operations.count("list")
        if looks > MAX_LOOKS or time.monotonic() > until:
            process.kill()
            process.wait()
            return "waits for ever" if looks > MAX_LOOKS else "no end"
        time.sleep(0.02)
    return "ended" if process.returncode == 0 else "error"


def run(
    command: Callable[[Any], list[str]],
    answers: Callable[[], dict[str, str]],
    scenario: Scenario,
    environment: dict[str, str],
) -> Outcome:
    """One evaluation, continued once."""
    from tests.provider_server import DAY_S, ProviderServer

    billed: Counter[str] = Counter()
    with ProviderServer() as server:
        _prepare(server, scenario, billed)
        ends: list[str] = []
        for attempt in range(2):
            process = subprocess.Popen(
                command(server),
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            ends.append(_watch(process, server, scenario.is_killed and not attempt))
            if ends[-1] in ("ended", "waits for ever", "no end"):
                break
        # What nobody looks at is billed too.
        server.now += 2 * DAY_S
        for job in server.jobs.values():
            server.tick(job)
    good = {name: text for name, text in answers().items() if text}
    return Outcome(", then ".join(ends), len(good), billed)


OURS = """
import json, sys
from pathlib import Path
from tests.batch import wave_driver
wave_driver.hurry()
folder = Path(sys.argv[1])
result = wave_driver.run_session(folder)
found = {each.sample_id: each.content for each in result.results()}
(folder / "answers.json").write_text(json.dumps(found))
sys.exit(not result.is_complete)
"""


def main() -> None:
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
    from figures import parser_for

    from tests.batch.wave_driver import write_project

    parser = parser_for(__doc__)
    parser.add_argument("--peer", required=True, help="Python with inspect-ai, openai, anthropic")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--formats", nargs="+", default=["openai", "anthropic"])
    args = parser.parse_args()
    has_peer = subprocess.run(
        [args.peer, "-c", "import inspect_ai, openai, anthropic"], check=False
    )
    if has_peer.returncode:
        sys.exit(f"{args.peer}: pip install inspect-ai openai anthropic")
    root = str(Path(__file__).parents[1])
    keys = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "PYTHONPATH": root}
    environment = {**os.environ, **keys}
    table: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as place:
        peer = Path(place) / "peer.py"
        peer.write_text(PEER)
        for format in args.formats:
            for number, scenario in enumerate(SCENARIOS):
                if format not in scenario.formats:
                    continue
                logs = Path(place) / f"{format}-{number}-peer"
                logs.mkdir()
                ours = Path(place) / f"{format}-{number}-ours"

                def peer_command(server: Any, logs: Path = logs, format: str = format) -> list[str]:
                    url = server.url if format == "openai" else server.url.removesuffix("/v1")
                    return [args.peer, str(peer), url, format, str(args.rows), str(logs)]

                def own_command(server: Any, ours: Path = ours, format: str = format) -> list[str]:
                    if not ours.exists():
                        write_project(ours, server.url, format, args.rows)
                    return [sys.executable, "-c", OURS, str(ours)]

                def read(path: Path) -> dict[str, str]:
                    return json.loads(path.read_text()) if path.exists() else {}

                theirs = run(
                    peer_command, lambda p=logs: read(p / "answers.json"), scenario, environment
                )
                own = run(
                    own_command, lambda p=ours: read(p / "answers.json"), scenario, environment
                )
                row = {
                    "format": format,
                    "fault": scenario.name,
                    "evaluator": own.cells(args.rows),
                    "Inspect AI": theirs.cells(args.rows),
                }
                table.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
    if args.json:
        print(json.dumps(table))
    else:
        print("| " + " | ".join(table[0]) + " |")
        for row in table:
            print("| " + " | ".join(row.values()) + " |")


if __name__ == "__main__":
    main()
