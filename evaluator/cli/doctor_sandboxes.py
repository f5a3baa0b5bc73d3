"""The findings of `evaluator doctor` about scripts: which sandboxes work, and what scripts can do
without one.
"""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.errors import ConfigurationError
from evaluator.processes import seccomp, starting
from evaluator.processes.launcher import can_confine
from evaluator.processes.sandbox_trials import try_sandbox
from evaluator.processes.sandboxes import KINDS, Sandbox, SandboxKind, program_of

if TYPE_CHECKING:
    from evaluator.handler.config import HandlerConfig

ENGINE_TIMEOUT_S = 20.0
Finding = tuple[str, str, str]
"""What, the result, the state."""


def sandbox_findings(profiles: Mapping[str, HandlerConfig]) -> Iterator[Finding]:
    """A finding for each kind of sandbox, each tried by starting it, and for each profile that has
    one.
    """
    used = {
        name: profile.sandbox
        for name, profile in sorted(profiles.items())
        if profile.sandbox.kind != "none"
    }
    for kind in KINDS[1:]:
        images = [sandbox.image for sandbox in used.values() if sandbox.image is not None]
        yield (f"sandbox {kind}", *_try_kind(kind, images[0] if images else None))
    for name, sandbox in used.items():
        problem = _problem_of(sandbox)
        yield (
            f"handler {name}, sandbox {sandbox}",
            problem or "works",
            "problem" if problem else "ok",
        )
    yield "scripts without a sandbox", _without_sandbox(), "note"


def _try_kind(kind: SandboxKind, image: str | None) -> tuple[str, str]:
    can_start = kind == "bubblewrap" or image is not None
    if can_start:
        problem = _problem_of(Sandbox(kind, image))
    else:
        problem = _engine_problem(kind)
    if problem is not None:
        return problem, "note"
    if kind == "bubblewrap" and seccomp.machine() is None:
        return f"works, without a filter of system calls for {platform.machine()}", "note"
    return ("works" if can_start else "answers; no profile names an image to try"), "ok"


def _problem_of(sandbox: Sandbox) -> str | None:
    try:
        asyncio.run(try_sandbox(sandbox, Path.cwd()))
    except ConfigurationError as error:
        return str(error)
    return None


def _engine_problem(kind: SandboxKind) -> str | None:
    """Why the engine does not answer; None if it does."""
    try:
        done = starting.run(
            [program_of(kind), "info"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ENGINE_TIMEOUT_S,
        )
    except (ConfigurationError, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    reason = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode == 0:
        return None
    return f"{kind} does not work: {reason[-1] if reason else 'no reason given'}"


def _without_sandbox() -> str:
    if platform.system() != "Linux":
        return (
            "they can read and change what you can; keys that other programs hold are not "
            "hidden from them"
        )
    found = ["they can read and change what you can"]
    if os.geteuid() == 0 and not can_confine():
        found.append(
            "you are root, so they can read the keys in the memory of the command evaluator"
        )
    else:
        found.append(
            "keys of the command evaluator are hidden from them, those of your other programs "
            "(also Python programs that use the package) are not"
        )
    if not can_confine():
        found.append(
            "this kernel cannot keep them from killing other programs (Landlock, Linux 6.12)"
        )
    return "; ".join(found)
