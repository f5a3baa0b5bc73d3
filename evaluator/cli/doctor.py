"""`evaluator doctor`: what is configured, what is missing, which sandboxes work, and what scripts
can do without one.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from evaluator.cli.common import PATH, json_option, print_json
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import library_option
from evaluator.errors import ConfigurationError
from evaluator.errors.messages import amount
from evaluator.library import TemplateLibrary
from evaluator.processes import seccomp, starting
from evaluator.processes.launcher import can_confine
from evaluator.processes.sandboxes import KINDS, Sandbox, SandboxKind, program_of
from evaluator.processes.scripts import try_sandbox

if TYPE_CHECKING:
    from evaluator.handler.config import HandlerConfig
    from evaluator.tools.mcp import McpServer

ENGINE_TIMEOUT_S = 20.0


class Finding(NamedTuple):
    """What was looked at, and the result. `state` is ok, note or problem."""

    what: str
    found: str
    state: str = "ok"


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
        yield Finding(f"sandbox {kind}", *_try_kind(kind, images[0] if images else None))
    for name, sandbox in used.items():
        problem = _problem_of(sandbox)
        yield Finding(
            f"handler {name}, sandbox {sandbox}",
            problem or "works",
            state="problem" if problem else "ok",
        )
    yield Finding("scripts without a sandbox", _without_sandbox(), state="note")


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


def _platform() -> list[Finding]:
    if platform.system() == "Linux":
        return []
    return [
        Finding(
            "platform",
            "not tested here; without Linux a process that leaves its process group outlives its "
            "script, and of the sandboxes only containers exist",
            state="note",
        )
    ]


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


PACKAGES = ("lxml", "xmlschema", "jinja2", "jsonschema", "aiohttp", "httptools", "litellm", "click")


@click.command(epilog="Example:  evaluator doctor")
@library_option
@click.option(
    "--tasks",
    "tasks_dir",
    default="tasks",
    type=PATH,
    help="The folder of task files.",
)
@json_option
def doctor(folders: tuple[Path, ...], tasks_dir: Path, as_json: bool) -> None:
    """Show what is configured and what is missing. Makes no model call; names keys, never shows
    one.

    Starts each sandbox that is installed once, to see whether it works.

    Exit code 1 if something prevents a run.
    """
    from evaluator.handler.profiles import load_profiles

    findings = [
        Finding("python", f"{platform.python_version()} on {platform.system()}"),
        *_platform(),
        *_packages(),
        _model(),
        *_unusable_keys(),
        *_profiles(),
        *sandbox_findings(load_profiles()),
        _templates(folders),
        _tasks_dir(tasks_dir),
    ]
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            mark = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}[finding.state]
            echo(f"{mark}  {finding.what}: {finding.found}")
    if any(finding.state == "problem" for finding in findings):
        raise click.exceptions.Exit(1)


def _packages() -> list[Finding]:
    found: list[Finding] = []
    for name in PACKAGES:
        try:
            if find_spec(name):
                state = "ok"
            else:
                state = "problem"
            found.append(Finding(name, version(name), state=state))
        except PackageNotFoundError:
            found.append(Finding(name, "not installed", state="problem"))
    return found


def _model() -> Finding:
    from evaluator.handler.backends import SIMULATED
    from evaluator.handler.model_choice import find_provider

    named = os.environ.get("EVALUATOR_MODEL")
    if named:
        return Finding("model", f"{named} (EVALUATOR_MODEL)")
    model, why, _ = find_provider(os.environ)
    if model == SIMULATED:
        return Finding(
            "model",
            f"simulated: {why}; set EVALUATOR_MODEL or a provider's key for real answers",
            state="note",
        )
    return Finding("model", f"{model} ({why})")


def _unusable_keys() -> list[Finding]:
    """The variables of known providers whose value no request can carry."""
    from evaluator.handler.backends import KEYS, key_in

    found: list[Finding] = []
    for variable, _ in KEYS:
        try:
            key_in(variable, os.environ)
        except ConfigurationError as error:
            found.append(Finding("key", str(error), state="problem"))
    return found


def _profiles() -> list[Finding]:
    from evaluator.cli.trust import shown_profiles
    from evaluator.handler.profiles import load_profiles

    profiles = shown_profiles()
    untrusted = load_profiles().untrusted
    found = [Finding("handlers", ", ".join(sorted(profiles)))]
    found += [
        Finding(f"handler {name}", problem, state="problem")
        for name, problem in profiles.broken.items()
    ]
    for name, file in sorted(untrusted.items()):
        found.append(
            Finding(f"handler {name}", f"not allowed yet: {file.describe()}", state="note")
        )
    for name, path in sorted(profiles.replacing.items()):
        found.append(
            Finding(f"handler {name}", f"is that of {path}, not the shipped one", state="note")
        )
    for name, profile in sorted(profiles.items()):
        if profile.api_key_env and not os.environ.get(profile.api_key_env, "").strip():
            found.append(
                Finding(f"handler {name}", f"{profile.api_key_env} is not set", state="note")
            )
        found += [_server(name, server) for server in profile.mcp]
    return found


def _server(profile: str, server: McpServer) -> Finding:
    """Whether an MCP server could be started or reached. Nothing is started, and no address is
    contacted.
    """
    missing = [f"{name} is not set" for name in server.variables() if name not in os.environ]
    if server.command is not None and shutil.which(server.command) is None:
        missing.insert(0, f"the program {server.command} is not found")
    if find_spec("mcp") is None:
        missing.insert(
            0, "the package mcp is not installed; install it with: pip install 'evaluator[mcp]'"
        )
    found = "; ".join(missing) or f"{server.command or server.url} (not started)"
    return Finding(
        f"handler {profile}, MCP server {server.name}", found, state="note" if missing else "ok"
    )


def _templates(folders: tuple[Path, ...]) -> Finding:
    library = TemplateLibrary.load(*folders)
    counts = (
        f"{len(library.templates)} usable, {amount(len(library.errors), 'error')}, "
        f"{amount(len(library.warnings), 'warning')}"
    )
    return Finding("templates", counts, state="problem" if library.errors else "ok")


def _tasks_dir(folder: Path) -> Finding:
    from evaluator.record.store import TaskStore

    if not folder.exists():
        return Finding("task files", f"the first run creates {folder}")
    if folder.is_symlink() or not folder.is_dir():
        return Finding("task files", f"{folder} is not a folder", state="problem")
    if not os.access(folder, os.W_OK):
        return Finding("task files", f"{folder} is not writable", state="problem")
    interrupted = len(list(TaskStore(folder).interrupted()))
    if interrupted:
        return Finding(
            "task files",
            f"{amount(interrupted, 'interrupted run')} in {folder}: evaluator tasks list",
            state="note",
        )
    return Finding("task files", str(folder))
