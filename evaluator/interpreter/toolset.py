"""The tools that a task offers to its model: those that its profile grants and those that its
template names.

A name is a registered tool, the general `subtask` tool, `manage_task` if tasks are recorded, or a
template of the library, which becomes a subtask tool for that template.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from evaluator.errors import ConfigurationError
from evaluator.files.locations import shipped
from evaluator.handler.config import ToolGrant
from evaluator.interpreter.authority import granted
from evaluator.interpreter.background import BACKGROUND_TOOLS
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.context import Recorder
from evaluator.interpreter.evaluation import EVALUATION_REQUEST, evaluation_tool
from evaluator.interpreter.frame import Run
from evaluator.interpreter.spawning import Spawner
from evaluator.interpreter.subtasks import SUBTASK, subtask_tool, template_tool
from evaluator.nodes import Task
from evaluator.processes.shell import Shell
from evaluator.tools import Tool, ToolContext, ToolRegistry
from evaluator.tools.anthropic import BASH, TEXT_EDITOR, bash_tool, text_editor_tool
from evaluator.tools.computer import COMPUTER, computer_tool
from evaluator.tools.controls import OF_TASK_TOOLS
from evaluator.tools.mcp import McpServer
from evaluator.tools.mcp.content import placeholder_tools
from evaluator.tools.mcp.servers import server_of_tool
from evaluator.tools.tool import MANAGE_TASK


async def tools_for(run: Run, task: Task, bound: BoundTask, provider: str) -> ToolRegistry | None:
    """The tools of a task that calls `provider`; None if it has none. Its authority bounds their
    names and policies.

    Raises: ConfigurationError, for a name that is neither a tool nor a template; ToolError, if the
    MCP server of a tool cannot be used.
    """
    grants = {grant.name: grant for grant in bound.config.tools}
    authority = bound.frame.domain.authority
    # The tools that the template names are checked where the task starts.
    names = [
        n
        for n in dict.fromkeys([*grants, *task.tools])
        if authority.tools is None or n in authority.tools
    ]
    if not names:
        return None
    served = await _served(run, names, bound=bound)
    spawner = Spawner(run, bound, provider=provider)
    background = _background(run, names, spawner=spawner)
    for name in names:
        tool = served.get(name) or background.get(name) or _find(run, name, spawner=spawner)
        above = tuple(
            (policy.rules, policy.policy or tool.policy) for policy in authority.policies(tool)
        )
        if name in grants:
            task_grant = granted(grants[name], tool)
            tool = replace(tool, policy=task_grant.policy or tool.policy, rules=task_grant.rules)
        if background:
            tool = _with_notifications(tool, run, spawner=spawner)
        spawner.offered[name] = replace(tool, bounds=above)
    return ToolRegistry(spawner.offered.values())


def _background(run: Run, names: Iterable[str], spawner: Spawner) -> Mapping[str, Tool]:
    """The tools for background tasks, if one of them is among `names`.

    Raises: ConfigurationError, where there are no background tasks.
    """
    background_names = [name for name in names if name in BACKGROUND_TOOLS]
    if not background_names:
        return {}
    if run.services.background is None:
        raise ConfigurationError(
            f"the tool {background_names[0]!r} needs a place for background tasks: pass "
            "Evaluator(background=BackgroundTools(folder)) of evaluator.background"
        )
    return run.services.background.tools(spawner)


def _with_notifications(tool: Tool, run: Run, spawner: Spawner) -> Tool:
    """`tool`, whose textual answers end with the notifications of background tasks that do not wait
    for the user.
    """

    async def call(arguments: dict[str, Any], context: ToolContext) -> Any:
        answer = await tool.run(arguments, context)
        service = run.services.background
        if service is None or not isinstance(answer, str):
            return answer
        told = service.notifications(spawner.session, later=False)
        if told:
            return f"{answer}\n{told}"
        return answer

    return replace(tool, run=call)


async def _served(run: Run, names: Iterable[str], bound: BoundTask) -> dict[str, Tool]:
    """The tools of MCP servers among `names`.

    A server's description of its tools is a step of the record: a resumed run or a replay offers
    the same tools and starts no server.
    """
    by_server: dict[McpServer, list[str]] = {}
    for name in names:
        server = server_of_tool(name, bound.config.mcp)
        if server is None:
            continue
        if name in run.services.tools or name in run.services.library:
            raise ConfigurationError(
                f"{name!r} is a tool of the MCP server {server.name!r} and another tool or "
                "template; rename one of them"
            )
        by_server.setdefault(server, []).append(name)
    connections = run.services.mcp
    recorder = Recorder(run.steps, bound.frame.path)
    tools: dict[str, Tool] = {}
    for server, tool_names in by_server.items():
        if run.services.dry_run:
            described = placeholder_tools(server, tool_names)
        else:
            look = partial(connections.describe, server, tool_names)
            args = {"server": server.name, "tools": tool_names}
            described = await recorder.step(f"mcp[{server.name}]", server.name, args, look)
        tools |= {tool.name: tool for tool in connections.tools_of(server, described)}
    return tools


def _find(run: Run, name: str, spawner: Spawner) -> Tool:
    services = run.services
    registered = services.tools.get(name)
    if registered is not None:
        return registered
    makers = {
        tool: make
        for tool, make in TASK_TOOLS.items()
        if tool != MANAGE_TASK or services.store is not None
    }
    if name in makers:
        return makers[name](spawner)
    if name in services.library:
        return template_tool(spawner, name)
    names = [*services.tools.names(), *makers]
    if services.background is not None:
        names += BACKGROUND_TOOLS
    known = ", ".join(names)
    raise ConfigurationError(
        f"no tool and no template has the name {name!r}; the tools are: {known}"
    )


def _bash(spawner: Spawner) -> Tool:
    config = spawner.bound.config
    return bash_tool(
        Shell(
            spawner.run.services.root,
            memory_bytes=config.script_memory_bytes,
            sandbox=config.sandbox,
        )
    )


def _computer(spawner: Spawner) -> Tool:
    config = spawner.bound.config
    if config.computer is None:
        raise ConfigurationError(
            f"the tool {COMPUTER!r} needs a display; write into the profile {config.name!r}: "
            '<computer display=":1" width="1024" height="768"/>'
        )
    return computer_tool(config.computer)


def _manage_task(spawner: Spawner) -> Tool:
    """The tool that manages task lists. The profile's grant sets its role, which is the profile's
    name by default.
    """
    from evaluator.interpreter.run_access import run_access
    from evaluator.record.task_lists import TaskLists
    from evaluator.tools.manage_task import manage_task_tool

    config = spawner.bound.config
    services = spawner.run.services
    if services.store is None:
        raise ConfigurationError(f"the tool {MANAGE_TASK!r} needs a folder of task files")
    grant = next(
        (grant for grant in config.tools if grant.name == MANAGE_TASK), ToolGrant(MANAGE_TASK)
    )
    runs = run_access(spawner, services.store, grant=grant.runs or "list")
    folders = (*services.library.folders, shipped("templates"))
    return manage_task_tool(
        TaskLists(services.store.root),
        grant.role or config.name,
        runs=runs,
        folders=tuple(dict.fromkeys(folders)),
    )


TASK_TOOLS: Mapping[str, Callable[[Spawner], Tool]] = {
    SUBTASK: subtask_tool,
    EVALUATION_REQUEST: evaluation_tool,
    TEXT_EDITOR: lambda _: text_editor_tool(),
    BASH: _bash,
    COMPUTER: _computer,
    MANAGE_TASK: _manage_task,
}
"""Makes the tools that depend on the task that offers them; `manage_task` exists only if tasks are
recorded.
"""

if undeclared := {*TASK_TOOLS, *BACKGROUND_TOOLS} ^ {*OF_TASK_TOOLS}:
    raise TypeError(
        "OF_TASK_TOOLS in evaluator/tools/controls.py and the tools of tasks differ: "
        f"{', '.join(sorted(undeclared))}; "
        "declare there what each tool controls: programs, the screen or None"
    )
