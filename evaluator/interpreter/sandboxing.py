"""The sandbox of each task, and the check that the sandboxes of a run work before its first model
call.

The profile decides; the template of the task may ask for a stricter sandbox, and a task is never in
a weaker one than the task that started it. `Evaluator(sandbox=…)` (`--sandbox`) is the user's own
decision and replaces all of these. So does the answer yes to the question whether scripts may run
without a sandbox, which is asked where one does not work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from evaluator.files.locations import cache_folder, user_folder
from evaluator.handler.config import HandlerConfig
from evaluator.interpreter.frame import Domain, Run, Services
from evaluator.library.calls import text_calls
from evaluator.nodes import Call, Node, Task, TopLevel
from evaluator.nodes.walk import children
from evaluator.processes.sandboxes import NO_SANDBOX, Sandbox, SandboxKind
from evaluator.tools.ask import Asker
from evaluator.tools.registry import ToolRegistry


def sandbox_of(
    services: Services, config: HandlerConfig, task: Task | None, above: Sandbox
) -> Sandbox:
    """The sandbox of a task with the profile `config`, below a task in the sandbox `above`.

    Raises: ConfigurationError, if the template asks for a container and the profile names no image.
    """
    chosen = services.sandbox
    if chosen is None and services.sandbox_trials.is_waived:
        return NO_SANDBOX
    if chosen is None:
        if task is None or task.handler is None:
            asked = None
        else:
            asked = cast("SandboxKind | None", task.handler.sandbox)
        chosen = config.sandbox.stricter(asked).stricter(above).stricter(services.least_sandbox)
    if chosen.kind == "none":
        return chosen
    roots = services.files.roots
    return replace(
        chosen,
        readable=roots.folders,
        hidden=tuple(map(Path, roots.denied_paths)),
        protected=(*services.library.folders, user_folder(), cache_folder()),
    )


async def check_sandboxes(run: Run, node: TopLevel | Node, domain: Domain) -> None:
    """Starts each sandbox that `node` needs in `domain` once, unless nothing is run for real.

    Raises: ConfigurationError, if one does not work.
    """
    services = run.services
    earlier = run.steps.earlier
    if services.dry_run or (earlier is not None and not earlier.may_run()):
        return
    content = services.library.content
    for sandbox in needed_sandboxes(domain, node):
        await check_sandbox(services, sandbox, services.asker)
    if earlier is None:
        domain.tried[id(node)] = (node, content)


async def check_sandbox(services: Services, sandbox: Sandbox, asker: Asker | None) -> None:
    """Tries the sandbox; `asker` asks whether scripts may run without it, unless the user chose it
    for this run.

    Raises: ConfigurationError, if it does not work.
    """
    is_chosen = services.sandbox is not None
    if asker is None or is_chosen:
        ask = None
    else:
        ask = asker.ask
    await services.sandbox_trials.check(sandbox, services.root, ask)


def needed_sandboxes(domain: Domain, node: TopLevel | Node) -> Iterator[Sandbox]:
    """The sandboxes, other than `none`, of the tasks that a run of `node` in `domain` reaches by
    name.

    Raises: ConfigurationError, for a profile that cannot be used.
    """
    services = domain.services
    seen: set[tuple[str, Sandbox]] = set()
    waiting: list[tuple[TopLevel | Node, Sandbox]] = [(node, domain.sandbox)]
    while waiting:
        here, above = waiting.pop()
        named = {call.name for call, _ in text_calls(here)}
        if isinstance(here, Call):
            named.add(here.template)
        if isinstance(here, Task):
            config = domain.profile_of(here)
            if here.asks_model:
                granted = (grant.name for grant in config.tools)
            else:
                granted = ()
            tools = {*here.tools, *granted}
            named |= tools
            above = sandbox_of(services, config, task=here, above=above)
            if above.kind != "none" and starts_process(here, tools, registry=services.tools):
                yield above
        waiting += [(child, above) for child in children(here)]
        for name in sorted(named):
            if name in services.library and (name, above) not in seen:
                seen.add((name, above))
                waiting.append((services.library.get(name).node, above))


def starts_process(task: Task, tools: Collection[str], registry: ToolRegistry) -> bool:
    """Whether a task with these tools can start a program that its template or a model chooses."""
    from evaluator.tools.controls import controls_of

    runs_command = task.file_paths is not None and task.file_paths.source == "command"
    return (
        task.runs_process
        or runs_command
        or any(controls_of(name, registry) == "programs" for name in tools)
    )
