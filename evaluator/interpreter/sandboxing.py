"""The sandbox of each task, and the check that the sandboxes of a run work before its first model call.

The profile decides; the template of the task may ask for a stricter sandbox, and a task is never in a weaker one than
the task that started it. `Evaluator(sandbox=…)` (`--sandbox`) is the user's own decision and replaces all of these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from evaluator.handler.config import HandlerConfig
from evaluator.interpreter.frame import Frame, Run, Services
from evaluator.library.calls import calls_of
from evaluator.nodes import Node, Task, TopLevel
from evaluator.nodes.walk import tasks
from evaluator.processes.sandboxes import NO_SANDBOX, Sandbox, SandboxKind
from evaluator.tools.anthropic import BASH

_SCRIPT_TOOLS = frozenset({"run_script", BASH})


def sandbox_of(services: Services, config: HandlerConfig, task: Task | None, above: Sandbox) -> Sandbox:
    """The sandbox of a task with the profile `config`, below a task in the sandbox `above`.

    Raises: ConfigurationError, if the template asks for a container and the profile names no image.
    """
    chosen = services.sandbox
    if chosen is None:
        asked = None if task is None or task.handler is None else cast("SandboxKind | None", task.handler.sandbox)
        chosen = config.sandbox.stricter(asked).stricter(above).stricter(services.least_sandbox)
    if chosen.kind == "none":
        return chosen
    roots = services.files.roots
    return replace(chosen, readable=roots.folders[1:], hidden=tuple(map(Path, roots.denied_paths)))


async def check_sandboxes(run: Run, node: TopLevel | Node, frame: Frame) -> None:
    """Starts each sandbox that `node` needs once, unless nothing is run for real.

    Raises: ConfigurationError, if one does not work.
    """
    services, earlier = run.services, run.steps.earlier
    if services.dry_run or (earlier is not None and not earlier.may_run()):
        return
    for sandbox in needed_sandboxes(services, node, run.options.handler, frame.sandbox):
        await services.sandbox_trials.check(sandbox, services.root)


def needed_sandboxes(
    services: Services, node: TopLevel | Node, handler: str | None, above: Sandbox = NO_SANDBOX
) -> Iterator[Sandbox]:
    """The sandboxes, other than `none`, of the tasks that a run of `node` with the profile `handler` reaches by name.

    Raises: ConfigurationError, for a profile that cannot be used.
    """
    seen: set[str] = set()
    waiting: list[TopLevel | Node] = [node]
    while waiting:
        here = waiting.pop()
        named = set(calls_of(here))
        for task in tasks(here):
            config = services.profile(handler or (None if task.handler is None else task.handler.ref))
            granted = (grant.name for grant in config.tools) if task.asks_model else ()
            tools = {*task.tools, *granted}
            named |= tools
            sandbox = sandbox_of(services, config, task, above)
            if sandbox.kind != "none" and starts_process(task, tools):
                yield sandbox
        for name in sorted(named - seen):
            if name in services.library:
                waiting.append(services.library.get(name).node)
        seen |= named


def starts_process(task: Task, tools: Collection[str]) -> bool:
    """Whether a task with these tools can start a program that its template or a model chooses."""
    runs_command = task.file_paths is not None and task.file_paths.source == "command"
    return task.runs_process or runs_command or not _SCRIPT_TOOLS.isdisjoint(tools)
