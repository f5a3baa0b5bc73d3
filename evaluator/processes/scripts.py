"""Runs a script within limits of time, output and memory, and tries whether a sandbox works by
running one in it.

Each script is a `SupervisedProcess`: when `run_script` returns or raises, nothing that the script
started is running.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Literal

from evaluator.errors import ConfigurationError, ToolError
from evaluator.lazy_dataclass import frozen
from evaluator.processes.sandboxes import MAX_PROCESSES, MEMORY_BYTES, NO_SANDBOX, Sandbox

Overrun = Literal["output", "processes", "memory"]


@frozen
class ScriptResult:
    """The end of a script, and the beginning of its output with undecodable bytes as U+FFFD.

    Exactly one of `exit_code` and `signal` is set. `overrun`: killed for endless output, too many
    processes or too much memory. `survivors` counts processes that could not be killed because they
    belong to another user; usually 0. `stdout_bytes` is what `stdout` was decoded from.
    """

    stdout: str
    stderr: str
    exit_code: int | None
    signal: int | None
    timed_out: bool
    stdout_truncated: bool
    stderr_truncated: bool
    duration_s: float
    overrun: Overrun | None = None
    survivors: int = 0
    stdout_bytes: bytes = field(default=b"", repr=False)


async def run_script(
    argv: Sequence[str] | str,
    *,
    stdin: bytes | str | None = None,
    timeout_s: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    max_output_bytes: int = 1_000_000,
    memory_bytes: int | None = MEMORY_BYTES,
    max_processes: int = MAX_PROCESSES,
    sandbox: Sandbox = NO_SANDBOX,
) -> ScriptResult:
    """Runs a program to its end and returns its output. A string is passed to `/bin/sh -c`.

    The script has no terminal; its standard input is `stdin`, or empty. The first
    `max_output_bytes` of each stream are kept and the rest is discarded; above 100 times that, and
    above 10 MB, the script is killed. The other limits are those of `Command`. Processes that
    outlive the script have 0.2 s to end before they are killed; in a `sandbox` they end with it,
    and a script that a signal ended has the exit code 128 and the signal's number.

    Raises: ToolError, if it cannot be started (not found, not executable, no such folder, empty
    argv, no sandbox). When cancelled, it raises CancelledError after the process tree is dead.
    """
    from evaluator.processes.supervisor import Capture, Command, SupervisedProcess

    if not isinstance(argv, str):
        words = argv
    elif argv.strip():
        words = ["/bin/sh", "-c", argv]
    else:
        words = []
    command = Command(
        tuple(words),
        timeout_s,
        cwd=cwd,
        env=env,
        memory_bytes=memory_bytes,
        max_processes=max_processes,
        sandbox=sandbox,
    )
    stdout = Capture(max_output_bytes)
    stderr = Capture(max_output_bytes)
    process = SupervisedProcess(command, stdout, stderr=stderr, has_input=stdin is not None)
    try:
        if stdin is not None:
            pipe = await process.open_input()
            pipe.write(stdin.encode("utf-8", "surrogatepass") if isinstance(stdin, str) else stdin)
            pipe.write_eof()
        end = await process.run()
    finally:
        await process.end()
    overrun: Overrun | None
    if stdout.flooded or stderr.flooded:
        overrun = "output"
    else:
        overrun = None
    return ScriptResult(
        stdout=stdout.text(),
        stderr=stderr.text(),
        exit_code=end.exit_code,
        signal=end.signal,
        timed_out=end.reason == "timeout",
        stdout_truncated=stdout.truncated,
        stderr_truncated=stderr.truncated,
        duration_s=end.duration_s,
        overrun=end.reason if end.reason in ("processes", "memory") else overrun,
        survivors=end.survivors,
        stdout_bytes=bytes(stdout.kept),
    )


TIMEOUT_S = 60.0
_QUESTION = "Run the scripts of this run without a sandbox, with all of your rights? [y/N]"


async def try_sandbox(sandbox: Sandbox, cwd: Path) -> None:
    """Starts `true` in `sandbox`. Raises: ConfigurationError, with the reason, if that does not
    work.
    """
    sandbox.program()
    try:
        ended = await run_script(["true"], timeout_s=TIMEOUT_S, cwd=cwd, sandbox=sandbox)
    except ToolError as error:
        raise ConfigurationError(
            f"the sandbox {sandbox.kind} does not work here: {error}; fix that (see: evaluator "
            "doctor), or choose another one with --sandbox (none: scripts run without a sandbox)"
        ) from error
    if ended.exit_code != 0:
        if ended.timed_out:
            reason = f"a trial did not end within {TIMEOUT_S:g} s"
        else:
            reason = ended.stderr.strip()[:300]
        raise ConfigurationError(
            f"the sandbox {sandbox.kind} does not work here: {reason}; see: evaluator doctor"
        )


class SandboxTrials:
    """Tries each sandbox once and remembers those that work.

    `is_waived`: a person has said that scripts run without the sandbox that their templates and
    profiles ask for, because it does not work here.
    """

    def __init__(self) -> None:
        self.is_waived = False
        self._working: set[Sandbox] = set()

    async def check(
        self, sandbox: Sandbox, cwd: Path, ask: Callable[[str], Awaitable[str]] | None = None
    ) -> None:
        """Tries the sandbox. Where it does not work, `ask` asks a person once whether scripts may
        run without one.

        Raises: ConfigurationError, if it does not work and nobody allows to do without it.
        """
        kind = replace(sandbox, readable=(), writable=(), hidden=(), protected=())
        if self.is_waived or kind in self._working:
            return
        try:
            await try_sandbox(sandbox, cwd)
        except ConfigurationError as error:
            if ask is None or not await _is_allowed(f"{error}. {_QUESTION}", ask):
                raise
            self.is_waived = True
        else:
            self._working.add(kind)


async def _is_allowed(question: str, ask: Callable[[str], Awaitable[str]]) -> bool:
    try:
        answer = await ask(question)
    except ToolError:
        return False  # nobody answered
    return answer.strip().lower() in ("y", "yes")
