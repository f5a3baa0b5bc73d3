"""The process that forks one process for each evaluation that is killed, after it has run one itself.

It reads commands as lines of JSON and answers each with a line of the same `id`: `start` forks processes that begin at
the same moment and returns their ids, `wait` returns how one ended. It has no thread or event loop of its own. Its
argument is a job that it runs itself first.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import errno
import gc
import json
import os
import resource
import signal
import sys
import threading
from asyncio.selector_events import _SelectorSocketTransport
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recovery_cases import BY_NAME, MODEL, Case

from evaluator import Evaluator, HandlerConfig, TemplateLibrary, ToolError, disk, tool
from evaluator.interpreter import generated
from evaluator.record import recorded_steps

_libraries: dict[str, TemplateLibrary] = {}


class Effects:
    """Every effect on the task folder, counted; at one of them the process kills itself, or the disk is full.

    `seen` has of each its kind, its bytes, and whether the run did something outside the folder just before it.

    `crash` is `(number, how)`: before it, after it, half of its bytes later, or `fork`: before it, leaving a
    child behind that holds what was open. `full` is the number of the effect from which on the disk is full.
    """

    def __init__(
        self, folder: str, crash: list[Any] | None, full: int | None, leave: Callable[[], None]
    ) -> None:
        self.folder, self.seen = folder, list[tuple[str, int, bool]]()
        self._is_after_call = False
        self._at, self._how = crash or (None, "")
        self._full, self._leave = full, leave

    def install(self) -> None:
        for name in ("rename", "mkdir", "ftruncate", "fsync", "fdatasync", "unlink"):
            setattr(disk, name, self._simple(name, getattr(disk, name)))
        disk.pwrite = self._pwrite(disk.pwrite)
        disk.open = self._open(disk.open)
        disk.fdopen = self._fdopen
        send = _SelectorSocketTransport.write

        def write(transport: Any, data: Any) -> None:
            self._is_after_call = True
            send(transport, data)

        _SelectorSocketTransport.write = write
        sys.addaudithook(self._see)

    def _see(self, event: str, args: tuple[Any, ...]) -> None:
        """Notes what a run does outside the task folder: programs that it starts, and files that it writes."""
        if event == "subprocess.Popen" or (
            event == "open" and isinstance(args[1], str) and "a" in args[1]
        ):
            self._is_after_call = True

    def happen(
        self, kind: str, size: int, do: Callable[[], Any], half: Callable[[], Any] | None = None
    ) -> Any:
        number = len(self.seen)
        self.seen.append((kind, size, self._is_after_call))
        self._is_after_call = False
        if (
            self._full is not None
            and number >= self._full
            and kind in ("pwrite", "write", "open", "mkdir")
        ):
            return self._refuse(kind, number, half)
        if number != self._at:
            return do()
        if self._how == "fork":
            self._leave()
        elif self._how == "half" and half is not None:
            half()
        elif self._how == "after":
            # Also after an effect that was refused, as creating a file that is there already.
            with contextlib.suppress(OSError):
                do()
        os.kill(os.getpid(), signal.SIGKILL)

    def _refuse(self, kind: str, number: int, half: Callable[[], Any] | None) -> Any:
        if kind in ("pwrite", "write"):
            if number == self._full and half is not None and number % 2:
                # The disk takes what there is room for, and only then nothing more.
                return half()
            with builtins.open("/dev/full", "wb", buffering=0) as file:
                file.write(b"x")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_inside(self, path: Any, dir_fd: int | None = None) -> bool:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        elif dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        return os.path.abspath(os.fspath(path)).startswith(self.folder)

    def _simple(self, name: str, real: Any) -> Any:
        def call(path: Any, *args: Any, **named: Any) -> Any:
            if not self._is_inside(path, named.get("src_dir_fd", named.get("dir_fd"))):
                return real(path, *args, **named)
            return self.happen(name, 0, lambda: real(path, *args, **named))

        return call

    def _pwrite(self, real: Any) -> Any:
        def call(fd: int, data: Any, offset: int) -> int:
            size = len(data)
            return self.happen(
                "pwrite",
                size,
                lambda: real(fd, data, offset),
                lambda: real(fd, data[: size // 2], offset),
            )

        return call

    def _open(self, real: Any) -> Any:
        def call(path: Any, flags: int, *args: Any, **named: Any) -> int:
            if not flags & os.O_CREAT or not self._is_inside(path, named.get("dir_fd")):
                return real(path, flags, *args, **named)
            return self.happen("open", 0, lambda: real(path, flags, *args, **named))

        return call

    def _fdopen(self, fd: int, mode: str = "wb") -> Any:
        file = os.fdopen(fd, mode, buffering=0)
        effects = self

        class File:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

            def fileno(self) -> int:
                return fd

            def flush(self) -> None:
                pass

            def write(self, data: bytes) -> None:
                effects.happen(
                    "write",
                    len(data),
                    lambda: file.write(data),
                    lambda: file.write(data[: len(data) // 2]),
                )

        return File()


def tools_in(folder: str) -> list[Any]:
    def append(label: str) -> None:
        with builtins.open(f"{folder}/effects.txt", "a") as file:
            file.write(f"{label}\n")

    @tool
    def deliver(what: str) -> str:
        """Delivers something.

        Args:
            what: the thing
        """
        append(what)
        return f"delivered {what}"

    @tool
    def break_it(what: str) -> str:
        """Breaks something.

        Args:
            what: the thing
        """
        append(what)
        raise ToolError(f"{what} is broken now")

    @tool(retryable=True)
    def knock(what: str) -> str:
        """Fails until it was called three times.

        Args:
            what: the thing
        """
        with builtins.open(f"{folder}/knocks.txt", "a") as file:
            file.write("x")
            if file.tell() < 3:
                raise ToolError("nobody opens")
        return f"{what} opens"

    return [deliver, break_it, knock]


def library_of(case: Case, folder: str) -> TemplateLibrary:
    if case.name not in _libraries:
        place = Path(folder) / "templates"
        place.mkdir(parents=True, exist_ok=True)
        (place / "t.xml").write_text(f"<library>{case.xml}</library>", encoding="utf-8")
        library = TemplateLibrary.load(place, shipped=False)
        assert not library.errors, "\n".join(map(str, library.errors))
        _libraries[case.name] = library
    return _libraries[case.name]


def evaluator_for(
    case: Case, folder: str, *, url: str | None = None, backend: Any = None
) -> Evaluator:
    """An evaluator over the case's templates, with its task files and its effects in `folder`."""
    config = HandlerConfig(
        name="sweep",
        backend="openai_compatible",
        base_url=url,
        model=MODEL,
        backoff_s=(0.0, 0.0),
        prices=(1.0, 2.0),
    )
    return Evaluator(
        library_of(case, folder),
        "sweep",
        profiles={"sweep": config},
        backend=backend,
        tasks_dir=f"{folder}/tasks",
        tools=tools_in(folder),
        roots=[folder],
        reparse=case.reparse,
        sync=case.sync,
        notice=lambda _: None,
    )


def _make(fault: str) -> None:
    """A mistake in the code that resumes, for the tests of the sweep itself."""
    if fault == "forgets what was answered":
        recorded_steps.ResumedSteps._find_answer = lambda *_: None  # type: ignore[method-assign]
    elif fault == "takes an old answer":
        recorded_steps.ResumedSteps._find_answer = lambda self, path, kind, fingerprint: next(  # type: ignore[method-assign]
            (
                step.end
                for step in self.recording.steps
                if step.start.kind == kind and step.end is not None
            ),
            None,
        )
    else:
        raise ValueError(fault)


async def _evaluate(job: dict[str, Any], effects: Effects) -> dict[str, Any]:
    case = BY_NAME[job["case"]]
    async with evaluator_for(case, job["folder"], url=job["url"]) as evaluator:
        if job["task_id"] is None:
            outcome = await evaluator.evaluate(case.request, case.inputs)
        else:
            outcome = await evaluator.resume(job["task_id"], unfinished=job["unfinished"])
    said: dict[str, Any] = {"outcome": outcome.to_dict(), "effects": list(effects.seen)}
    if job.get("again") is not None:
        # Another address, so that a call of the second time is seen as such.
        async with evaluator_for(case, job["folder"], url=job["again"]) as evaluator:
            said["again"] = (await evaluator.resume(outcome.task_id, unfinished="stop")).to_dict()
        # Nothing is deleted: a file that ends inside its header stays, but cannot be resumed.
        listed = evaluator.services.store.interrupted()
        said["interrupted"] = [str(task.path) for task in listed if task.header is not None]
    return said


def _child(job: dict[str, Any], go: int) -> None:
    """One evaluation, in a process of its own. Never returns."""
    code = 1
    try:
        os.read(go, 1)
        folder = job["folder"]

        def leave_a_child() -> None:
            if os.fork() == 0:
                # Open until it exits, which is how the test learns that it has.
                gone, hold = (
                    os.open(f"{folder}/gone", os.O_WRONLY),
                    os.open(f"{folder}/hold", os.O_RDONLY),
                )
                os.read(hold, 1)
                os._exit(gone * 0)

        effects = Effects(f"{folder}/tasks", job.get("crash"), job.get("full"), leave_a_child)
        effects.install()
        if job.get("fault"):
            _make(job["fault"])
        if job.get("most_bytes") is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (job["most_bytes"], resource.RLIM_INFINITY))
        said = asyncio.run(_evaluate(job, effects))
        if job.get("most_bytes") is not None:
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )
        with builtins.open(job["out"], "w") as file:
            json.dump(said, file)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _start(jobs: list[dict[str, Any]]) -> list[int]:
    """Processes that begin together, when the last of them is there."""
    go, let = os.pipe()
    pids: list[int] = []
    for job in jobs:
        pid = os.fork()
        if pid == 0:
            os.close(let)
            _child(job, go)
        pids.append(pid)
    os.close(go)
    os.close(let)
    return pids


def warm(job: dict[str, Any]) -> None:
    """Runs `job` here: what a process imports, reads and compiles once would else be done by each of thousands."""
    library_of(BY_NAME[job["case"]], job["folder"])
    asyncio.run(_evaluate(job, Effects(f"{job['folder']}/tasks", None, None, lambda: None)))
    for name in ("decompose", "extract_inputs"):
        generated._shipped(name)
    settle()


def settle() -> None:
    """Prepares this process to be forked: waits for the threads of a run, and leaves its objects as they are."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(60)
    assert threading.active_count() == 1, "a process with threads is not forked"
    gc.collect()
    gc.freeze()
    # The children are short: collecting in them would copy the pages that they share.
    gc.disable()


def main() -> None:
    commands = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    warm(json.loads(sys.argv[1]))
    for line in commands:
        command = json.loads(line)
        said: Any = None
        if command["do"] == "start":
            for job in command["jobs"]:
                library_of(BY_NAME[job["case"]], job["folder"])
            said = _start(command["jobs"])
        elif command["do"] == "wait":
            said = os.waitstatus_to_exitcode(os.waitpid(command["pid"], 0)[1])
        answers.write(json.dumps({"id": command["id"], "result": said}).encode() + b"\n")


if __name__ == "__main__":
    main()
