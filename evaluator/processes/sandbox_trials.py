"""Tries whether a sandbox works on this machine, by starting a program in it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

from evaluator.errors import ConfigurationError, ToolError
from evaluator.processes.sandboxes import Sandbox
from evaluator.processes.scripts import run_script

TIMEOUT_S = 60.0
_MAX_DONE = 1_000


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
    """Tries each sandbox once and remembers those that work."""

    def __init__(self) -> None:
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

    async def check(self, sandbox: Sandbox, cwd: Path) -> None:
        """Raises: ConfigurationError, if the sandbox does not work."""
        kind = replace(sandbox, readable=(), writable=(), hidden=(), protected=())
        if kind not in self._working:
            await try_sandbox(sandbox, cwd)
            self._working.add(kind)
