"""The tools that one task offers its model: those that its profile grants and those that its template names.

A name is a registered tool, the general `subtask` tool, `manage_task` where tasks are recorded, or a template of
the library, which is then a subtask tool for just that template.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from evaluator.errors import ConfigurationError
from evaluator.handler.config import HandlerConfig
from evaluator.handler.mcp import McpServer
from evaluator.handler.mcp.content import unasked
from evaluator.handler.mcp.servers import server_of_tool
from evaluator.handler.tools import Tool, ToolRegistry
from evaluator.handler.tools.anthropic import BASH, TEXT_EDITOR, bash_tool, text_editor_tool
from evaluator.handler.tools.computer import COMPUTER, computer_tool
from evaluator.handler.tools.display import Display
from evaluator.handler.tools.manage_task import MANAGE_TASK, manage_task_tool
from evaluator.handler.tools.shell import Shell
from evaluator.interpreter.context import Recorder
from evaluator.interpreter.evaluation_request import EVALUATION_REQUEST, evaluation_tool
from evaluator.interpreter.frame import Run
from evaluator.interpreter.operators.prepared import Prepared
from evaluator.interpreter.subtasks import SUBTASK, subtask_tool, template_tool
from evaluator.nodes import Task
from evaluator.record.named import NamedTasks
from evaluator.record.store import TaskStore


async def tools_for(run: Run, task: Task, prepared: Prepared) -> ToolRegistry | None:
    """None where the task has no tools.

    Raises: ConfigurationError, for a name that is neither a tool nor a template; ToolError, where an MCP server that
    has one of them cannot be used.
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
            # A policy that the profile states is not softened by the tool's own rules.
            own = () if grant.policy is not None else tool.rules
            tool = replace(tool, policy=grant.policy or tool.policy, rules=(*grant.rules, *own))
        tools.append(tool)
    return ToolRegistry(tools)


async def _served(run: Run, names: Iterable[str], prepared: Prepared) -> dict[str, Tool]:
    """The tools of MCP servers among `names`.

    What a server says of them is a step of the record: a resumed run and a replay offer the same, and start nothing.
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
            described = unasked(server, wanted)
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
        return bash_tool(Shell(services.root, memory_bytes=prepared.config.script_memory_bytes))
    if name == COMPUTER:
        return computer_tool(_display(prepared.config))
    if name == MANAGE_TASK and services.store is not None:
        return _manage_task(services.store, prepared.config.name)
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
    raise ConfigurationError(f"no tool and no template is called {name!r}; the tools are: {known}")


def _display(config: HandlerConfig) -> Display:
    if config.computer is None:
        raise ConfigurationError(
            f"the tool {COMPUTER!r} needs a display; write into the profile {config.name!r}: "
            '<computer display=":1" width="1024" height="768"/>'
        )
    return config.computer


def _manage_task(store: TaskStore, role: str) -> Tool:
    """The tool that keeps tasks by hand, in the role that is the profile's name."""

    def interrupted() -> Iterator[tuple[int, str | None, str | None]]:
        for task in store.interrupted():
            header = task.header
            yield task.id, None if header is None else header.template, None if header is None else header.created

    return manage_task_tool(NamedTasks(store.root), role, interrupted)
