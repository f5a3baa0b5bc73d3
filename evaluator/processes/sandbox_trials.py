"""Tries whether a sandbox works on this machine, by starting a program in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import replace
from pathlib import Path

from evaluator.errors import ConfigurationError, ToolError
from evaluator.processes.sandboxes import Sandbox
from evaluator.processes.scripts import run_script

TIMEOUT_S = 60.0
_MAX_DONE = 1_000
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
            "doctor), or choose "
            "another one with --sandbox (none: scripts run without a sandbox)"
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
        self._done: dict[tuple[int, tuple[Hashable, ...]], object] = {}

    def are_done(self, user: object, *settings: Hashable) -> bool:
        """Whether all sandboxes that `user` needs with these settings are known to work."""
        return (id(user), settings) in self._done

    def set_done(self, user: object, *settings: Hashable) -> None:
        """Remembers that all sandboxes that `user` needs with these settings work."""
        if len(self._done) >= _MAX_DONE:
            self._done.clear()
        self._done[id(user), settings] = user  # keeps its id from being used again

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
