"""Runs cases in processes that are killed, resumes them, and compares the outcome with that of an undisturbed run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, Self

from recovery_cases import BY_NAME, NOTES, Case, hash_of, reply_to

from evaluator import Recording, TaskStore
from evaluator.record import grammar
from evaluator.record.steps import Step

HERE = Path(__file__).parent
# The number of the effect that writes a task's header. Those before it make the folder and the file, for any task.
HEADER = 6

Point = tuple[str, int, bool]


class ModelServer:
    """Chat completions on loopback whose answers depend on the request alone; every POST is counted by its body's hash.

    The first segment of the path is the key under which a run's requests are counted. A key in `gates` has its
    answers held back until the event is set, or, with `held`, those to prompts that hold the text.
    """

    def __init__(self) -> None:
        self.cases: dict[str, Case] = {}
        self.posts: dict[str, Counter[str]] = {}
        self.bodies: dict[str, list[Any]] = {}
        self.gates: dict[str, threading.Event] = {}
        self.held: dict[str, str] = {}
        self.asked: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._keys = count(1)
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, data = server.answer(self.path.split("/")[1], body)
                raw = json.dumps(data).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                # The client was killed: that is what it is for.
                if not isinstance(sys.exception(), ConnectionError):
                    super().handle_error(request, client_address)

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for gate in self.gates.values():
            gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def new_key(self, case: Case) -> str:
        key = f"k{next(self._keys)}"
        self.cases[key], self.posts[key], self.bodies[key] = case, Counter(), []
        self.asked[key] = threading.Event()
        return key

    def url(self, key: str) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/{key}/v1"

    def answer(self, key: str, body: Any) -> tuple[int, Any]:
        with self._lock:
            self.posts[key][hash_of(body)] += 1
            nth = self.posts[key][hash_of(body)]
            self.bodies[key].append(body)
        self.asked[key].set()
        if key in self.gates and self.held.get(key, "") in body["messages"][-1]["content"]:
            self.gates[key].wait()
        return reply_to(self.cases[key], body, nth)


class Zygote:
    """The process that runs the job `first` itself, and then forks one process for each evaluation.

    Each request has an id, which its answer repeats: a late answer to a request that was given up is skipped. After
    a request that failed, the next one gets a fresh process.
    """

    def __init__(self, first: dict[str, Any]) -> None:
        self._first = json.dumps(first)
        self._process: subprocess.Popen[bytes] | None = None
        self._ids = count(1)

    def ask(self, **command: Any) -> Any:
        try:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, str(HERE / "recovery_child.py"), self._first],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
            return self._exchange(self._process, command)
        except BaseException:
            # Also where the test ran out of time: what the process answers later is for nobody.
            self._discard()
            raise

    def _exchange(self, process: subprocess.Popen[bytes], command: dict[str, Any]) -> Any:
        assert process.stdin is not None and process.stdout is not None
        number = next(self._ids)
        process.stdin.write(json.dumps({"id": number, **command}).encode() + b"\n")
        process.stdin.flush()
        while line := process.stdout.readline():
            answer = json.loads(line)
            if answer["id"] == number:
                return answer["result"]
        raise AssertionError("the forking process has ended; see what it wrote")

    def _discard(self) -> None:
        """Kills the process with all that it forked."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def close(self) -> None:
        self._discard()


@dataclass
class Place:
    """A folder of one case's runs, and the key under which the server counts their calls."""

    lab: Lab
    case: Case
    folder: Path
    key: str
    _outs: Iterator[int] = field(default_factory=count)

    @property
    def tasks(self) -> Path:
        return self.folder / "tasks"

    def effects(self) -> Counter[str]:
        path = self.folder / "effects.txt"
        return Counter(path.read_text().splitlines()) if path.exists() else Counter()

    def posts(self) -> Counter[str]:
        return Counter(self.lab.server.posts[self.key])

    def job(self, task_id: int | None = None, **more: Any) -> dict[str, Any]:
        """A run, or the resumption of `task_id`; see `Effects` for `crash` and `full`."""
        out = str(self.folder / f"out-{next(self._outs)}.json")
        return {
            "case": self.case.name,
            "folder": str(self.folder),
            "url": self.lab.server.url(self.key),
            "out": out,
            "task_id": task_id,
            "unfinished": "repeat",
            **more,
        }

    def start(self, *jobs: dict[str, Any]) -> list[int]:
        return self.lab.zygote.ask(do="start", jobs=jobs)

    def end(self, pid: int, job: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the process wrote; None: it was killed."""
        code = self.lab.zygote.ask(do="wait", pid=pid)
        if code == -signal.SIGKILL:
            return None
        assert code == 0, f"the process ended with {code}"
        return json.loads(Path(job["out"]).read_text())

    def do(self, task_id: int | None = None, **more: Any) -> dict[str, Any] | None:
        """Runs or resumes, to the end or to the crash."""
        job = self.job(task_id, **more)
        return self.end(self.start(job)[0], job)

    def resume_twice(self, task_id: int | None, **more: Any) -> dict[str, Any]:
        """Resumes (or begins, where nothing was begun), and when that has ended, resumes once more."""
        again = self.lab.server.new_key(self.case)
        said = self.do(task_id, again=self.lab.server.url(again), **more)
        assert said is not None
        said["again_posts"] = sum(self.lab.server.posts[again].values())
        return said

    def remove(self) -> None:
        shutil.rmtree(self.folder)


class Lab:
    """What all cases of one test process share: the server, the forking process, and where their files go."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names = count(1)
        self._references: dict[str, Reference] = {}

    def __enter__(self) -> Self:
        self.server = ModelServer().__enter__()
        # Run, and resumed.
        again = self.server.url(self.server.new_key(BY_NAME["composite"]))
        self.zygote = Zygote(self.place(BY_NAME["composite"]).job(again=again))
        return self

    def __exit__(self, *_: object) -> None:
        self.zygote.close()
        self.server.__exit__()

    def place(self, case: Case) -> Place:
        folder = self.root / f"case-{next(self._names)}"
        folder.mkdir(parents=True)
        (folder / "notes.txt").write_text(NOTES)
        return Place(self, case, folder, self.server.new_key(case))

    def reference(self, case: Case) -> Reference:
        """The undisturbed run of `case`, made once."""
        if case.name not in self._references:
            place = self.place(case)
            said = place.do()
            assert said is not None
            made = Reference(
                result_of(said["outcome"]), place.posts(), place.effects(), said["effects"], place
            )
            assert said["outcome"]["status"] == case.status, said["outcome"]
            assert made.effects == Counter([*case.effects, *case.commands])
            self._references[case.name] = made
        return self._references[case.name]


@dataclass
class Reference:
    """The outcome of an undisturbed run. `points` are its effects on the task folder, see `Effects.seen`."""

    result: dict[str, Any]
    posts: Counter[str]
    effects: Counter[str]
    points: list[Point]
    place: Place

    def crashes(self, hows: tuple[str, ...] = ("before", "half", "after")) -> Iterator[list[Any]]:
        yield from crashes(self.points, hows)


def crashes(
    points: list[Point], hows: tuple[str, ...] = ("before", "half", "after")
) -> Iterator[list[Any]]:
    """Before and after each effect, and in the middle of each write, each state once: before an effect is after the
    last one, unless the run did something outside the folder in between."""
    for number, (_, size, is_after_call) in enumerate(points):
        for how in hows:
            is_new = (
                size > 1
                if how == "half"
                else how == "after" or not number or is_after_call or "after" not in hows
            )
            if is_new:
                yield [number, how]


LEFT_OUT = ("resumed", "warnings", "interrupted_calls")


def result_of(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same however often the run was killed."""
    kept = {
        name: outcome.get(name)
        for name in ("status", "content", "parsed_content", "usage", "type", "message")
    }
    notes = outcome["notes"]
    cost = kept["usage"]["cost_usd"]
    # Sums of floats, perhaps in another order.
    kept["usage"] = {**kept["usage"], "cost_usd": None if cost is None else round(cost, 9)}
    kept["notes"] = {name: notes[name] for name in sorted(notes) if name not in LEFT_OUT}
    return kept


# -- what the files say at a crash ------------------------------------------------------------------------------


def recordings(tasks: Path) -> dict[int, Recording]:
    """Every task of a folder that has a header, by its id, also those in segments."""
    found: dict[int, Recording] = {}
    store = TaskStore(tasks)
    for number in sorted(set(store.ids())):
        recording = grammar.decode(store.content_of(number), f"TASK-{number}")
        if recording.header is not None:
            found[number] = recording
    return found


def root_of(tasks: Path) -> int | None:
    """The task to resume; None: nothing was begun."""
    return root_in(recordings(tasks))


def root_in(found: Mapping[int, Recording]) -> int | None:
    return next(
        (number for number, recording in found.items() if recording.header.parent is None), None
    )


@dataclass
class Snapshot:
    """What was done at a crash, by the files: requests whose answers are there, steps in flight, effects that took place."""

    answered: Counter[str] = field(default_factory=Counter)
    done: set[str] = field(default_factory=set)
    calls_in_flight: int = 0
    acts_in_flight: list[Step] = field(default_factory=list)
    looks_in_flight: int = 0


def snapshot(case: Case, found: Mapping[int, Recording]) -> Snapshot:
    taken = Snapshot()
    for step in (step for recording in found.values() for step in recording.steps):
        kind = step.start.kind
        if kind == "model":
            if step.end is None:
                taken.calls_in_flight += 1
            elif step.status == "success":
                taken.answered[step.end.output["model"]] += 1
        elif kind in ("tool", "script", "context"):
            label = label_of(case, step)
            if label is None:
                continue
            if step.status in ("success", "failed"):
                taken.done.add(label)
            elif step.end is None and kind == "context":
                taken.looks_in_flight += 1
            elif step.end is None:
                taken.acts_in_flight.append(step)
    return taken


def label_of(case: Case, step: Step) -> str | None:
    """The line of effects.txt that a step leaves; None: it leaves none."""
    said = json.dumps(step.start.args)
    return next((label for label in (*case.effects, *case.commands) if label in said), None)


# -- the sweep ----------------------------------------------------------------------------------------------------


@dataclass
class Counts:
    name: str
    points: int = 0
    killed: int = 0
    resumed: int = 0
    begun: int = 0
    in_flight: int = 0
    acts: int = 0
    completed_again: int = 0
    lost: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.points} crash points, {self.killed} killed, {self.resumed} resumed, {self.begun} "
            f"begun again (nothing was recorded), {self.in_flight} calls in flight repeated, {self.acts} effects in "
            f"flight repeated, {self.completed_again} completed calls or effects repeated, {self.lost} results lost"
        )

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "problems"}


Plan = Iterable[list[Any]]


def sweep(
    lab: Lab,
    case: Case,
    plans: Iterable[Plan],
    counts: Counts,
    *,
    until_it_ends: bool = False,
    fault: str | None = None,
) -> Counts:
    """For each plan a run that is killed at its first crash, resumed and killed at each further one, then resumed.

    A crash is `[number of the effect, how]`. With `until_it_ends` a plan may be longer than there are effects.
    `fault` is a mistake that the last resumption is made to make.
    """
    reference = lab.reference(case)
    for plan in plans:
        place = lab.place(case)
        made = list[Any]()
        problems = _killed_and_resumed(place, reference, plan, made, counts, until_it_ends, fault)
        counts.problems += [f"{case.name}, killed at {made}: {problem}" for problem in problems]
        if not problems:
            place.remove()
    return counts


def known_to(reference: dict[str, Any], usage: dict[str, Any]) -> dict[str, Any]:
    """`usage` without what the undisturbed run does not know: there an attempt came to no answer, which was in flight
    here when the process was killed. What it does know has to be the same."""
    return {name: None if reference[name] is None else value for name, value in usage.items()}


def _killed_and_resumed(
    place: Place,
    reference: Reference,
    plan: Plan,
    made: list[Any],
    counts: Counts,
    until_it_ends: bool,
    fault: str | None,
) -> list[str]:
    case, problems = place.case, list[str]()
    seen: list[tuple[Snapshot, Counter[str], Counter[str]]] = []
    root: int | None = None
    for crash in plan:
        said = place.do(root, crash=crash)
        # Side by side, a resumption may need an effect fewer than the one that was counted.
        if said is not None and (
            until_it_ends or (root is not None and 'concurrency="' in case.xml)
        ):
            break
        made.append(crash)
        counts.points += 1
        counts.killed += said is None
        if said is not None:
            problems.append(f"it ended before it came to {crash}")
        there = recordings(place.tasks)
        root = root_in(there)
        seen.append((snapshot(case, there), place.posts(), place.effects()))
    said = place.resume_twice(root, fault=fault)
    found = result_of(said["outcome"])
    posts, effects = place.posts(), place.effects()
    expected = reference.result
    told = {**found, "usage": known_to(expected["usage"], found["usage"])}
    if told != expected:
        counts.lost += 1
        other = {
            name: (value, reference.result[name])
            for name, value in told.items()
            if value != expected[name]
        }
        problems.append(f"another result, found and expected: {other}")
    elif root is None:
        counts.begun += 1
    else:
        counts.resumed += 1
    if result_of(said["again"]) != found or said["again_posts"]:
        problems.append(f"resumed once more: {said['again']}, {said['again_posts']} calls")
    if root is not None and said["outcome"]["task_id"] != root:
        problems.append(f"another task: {said['outcome']['task_id']}")
    for taken, posts_then, effects_then in seen:
        twice = [key for key in taken.answered if posts[key] > posts_then[key]]
        twice += [label for label in taken.done if effects[label] > effects_then[label]]
        counts.completed_again += len(twice)
        if twice:
            problems.append(f"completed, and done again: {twice}")
    calls, in_flight = posts - reference.posts, sum(taken.calls_in_flight for taken, _, _ in seen)
    counts.in_flight += sum(calls.values())
    if sum(calls.values()) > in_flight:
        problems.append(f"{sum(calls.values())} calls repeated, {in_flight} were in flight")
    interrupted, again = (
        said[which]["notes"].get("interrupted_calls", 0) for which in ("outcome", "again")
    )
    if not sum(calls.values()) <= interrupted <= in_flight or again != interrupted:
        problems.append(
            f"{interrupted} and then {again} interrupted calls are shown, {sum(calls.values())} were "
            f"repeated, {in_flight} were in flight"
        )
    acts = effects - reference.effects
    unsure = sum(len(taken.acts_in_flight) + taken.looks_in_flight for taken, _, _ in seen)
    counts.acts += sum(acts.values())
    if sum(acts.values()) > unsure:
        problems.append(f"effects twice: {dict(acts)}; {unsure} were in flight")
    missing = (reference.posts - posts) + (reference.effects - effects)
    if missing:
        problems.append(f"not done at all: {dict(missing)}")
    if said["interrupted"]:
        problems.append(f"still listed as interrupted: {said['interrupted']}")
    return problems


def files_of(tasks: Path) -> dict[str, bytes]:
    """The whole content of a task folder."""
    return {
        str(path.relative_to(tasks)): path.read_bytes()
        for path in sorted(tasks.rglob("*"))
        if path.is_file()
    }


def store_of(place: Place) -> TaskStore:
    return TaskStore(place.tasks)


def shared_memory() -> Path | None:
    """A folder in memory for many small files, where there is one."""
    path = Path("/dev/shm")
    return path if path.is_dir() and os.access(path, os.W_OK) else None
