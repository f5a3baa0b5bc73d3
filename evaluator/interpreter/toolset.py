"""The tools that a task offers to its model: those that its profile grants and those that its template names.

A name is a registered tool, the general `subtask` tool, `manage_task` if tasks are recorded, or a template of the
library, which becomes a subtask tool for that template.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from evaluator.errors import ConfigurationError
from evaluator.files.shipped import shipped
from evaluator.handler.config import HandlerConfig, ToolGrant
from evaluator.interpreter.context import Recorder
from evaluator.interpreter.evaluation_request import EVALUATION_REQUEST, evaluation_tool
from evaluator.interpreter.frame import Run
from evaluator.interpreter.prepared import Prepared
from evaluator.interpreter.run_access import run_access
from evaluator.interpreter.subtasks import SUBTASK, subtask_tool, template_tool
from evaluator.nodes import Task
from evaluator.processes.shell import Shell
from evaluator.record.store import TaskStore
from evaluator.record.task_lists import TaskLists
from evaluator.tools import Tool, ToolRegistry
from evaluator.tools.anthropic import BASH, TEXT_EDITOR, bash_tool, text_editor_tool
from evaluator.tools.computer import COMPUTER, computer_tool
from evaluator.tools.manage_task import MANAGE_TASK, manage_task_tool
from evaluator.tools.mcp import McpServer
from evaluator.tools.mcp.content import placeholder_tools
from evaluator.tools.mcp.servers import server_of_tool
from evaluator.tools.x_display import XDisplay


async def tools_for(run: Run, task: Task, prepared: Prepared) -> ToolRegistry | None:
    """The tools of a task; None if it has none.

    Raises: ConfigurationError, for a name that is neither a tool nor a template; ToolError, if the MCP server of a tool
    cannot be used.
    """
    granted = {grant.name: grant for grant in prepared.config.tools}
    names = list(dict.fromkeys([*granted, *task.tools]))
    if not names:
        return None
    served = await _served(run, names, prepared)
    tools: list[Tool] = []
    for name in names:
        tool = served.get(name) or _find(run, name, prepared)
        grant = granted.get(name)
        if grant is not None:
            # The tool's own rules cannot relax a policy that the profile states.
            own = () if grant.policy is not None else tool.rules
            tool = replace(tool, policy=grant.policy or tool.policy, rules=(*grant.rules, *own))
        tools.append(tool)
    return ToolRegistry(tools)


async def _served(run: Run, names: Iterable[str], prepared: Prepared) -> dict[str, Tool]:
    """The tools of MCP servers among `names`.

    A server's description of its tools is a step of the record: a resumed run or a replay offers the same tools and
    starts no server.
    """
    by_server: dict[McpServer, list[str]] = {}
    for name in names:
        server = server_of_tool(name, prepared.config.mcp)
        if server is None:
            continue
        if name in run.services.tools or name in run.services.library:
            raise ConfigurationError(
                f"{name!r} is a tool of the MCP server {server.name!r} and another tool or template; rename one of them"
            )
        by_server.setdefault(server, []).append(name)
    connections, recorder = run.services.mcp, Recorder(run.steps, prepared.frame.path)
    tools: dict[str, Tool] = {}
    for server, wanted in by_server.items():
        if run.services.dry_run:
            described = placeholder_tools(server, wanted)
        else:
            look = partial(connections.describe, server, wanted)
            args = {"server": server.name, "tools": wanted}
            described = await recorder.step(f"mcp[{server.name}]", server.name, args, look)
        tools |= {tool.name: tool for tool in connections.tools_of(server, described)}
    return tools


def _find(run: Run, name: str, prepared: Prepared) -> Tool:
    services = run.services
    registered = services.tools.get(name)
    if registered is not None:
        return registered
    if name == SUBTASK:
        return subtask_tool(run, prepared)
    if name == EVALUATION_REQUEST:
        return evaluation_tool(run, prepared)
    if name == TEXT_EDITOR:
        return text_editor_tool()
    if name == BASH:
        config = prepared.config
        return bash_tool(Shell(services.root, memory_bytes=config.script_memory_bytes, sandbox=config.sandbox))
    if name == COMPUTER:
        return computer_tool(_display(prepared.config))
    if name == MANAGE_TASK and services.store is not None:
        return _manage_task(run, prepared, services.store)
    if name in services.library:
        return template_tool(run, prepared, services.library.get(name))
    known = ", ".join(
        [
            *services.tools.names(),
            SUBTASK,
            EVALUATION_REQUEST,
            TEXT_EDITOR,
            BASH,
            COMPUTER,
            *([MANAGE_TASK] if services.store else []),
        ]
    )
    raise ConfigurationError(f"no tool and no template has the name {name!r}; the tools are: {known}")


def _display(config: HandlerConfig) -> XDisplay:
    if config.computer is None:
        raise ConfigurationError(
            f"the tool {COMPUTER!r} needs a display; write into the profile {config.name!r}: "
            '<computer display=":1" width="1024" height="768"/>'
        )
    return config.computer


def _manage_task(run: Run, prepared: Prepared, store: TaskStore) -> Tool:
    """The tool that manages task lists. The profile's grant sets its role, which is the profile's name by default."""
    config = prepared.config
    grant = next((grant for grant in config.tools if grant.name == MANAGE_TASK), ToolGrant(MANAGE_TASK))
    runs = run_access(run, prepared, store, grant.runs or "list")
    folders = (*run.services.library.folders, shipped("templates"))
    return manage_task_tool(TaskLists(store.root), grant.role or config.name, runs, tuple(dict.fromkeys(folders)))
