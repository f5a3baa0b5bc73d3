"""The tools that one task offers its model: those that its profile grants and those that its template names.

A name is a registered tool, the general `subtask` tool, or a template of the library, which is then a
subtask tool for just that template.
"""

from __future__ import annotations

from dataclasses import replace

from evaluator.errors import ConfigurationError
from evaluator.handler.tools import Tool, ToolRegistry
from evaluator.interpreter.frame import Run
from evaluator.interpreter.operators.prepared import Prepared
from evaluator.interpreter.subtasks import SUBTASK, subtask_tool, template_tool
from evaluator.nodes import Task


def tools_for(run: Run, task: Task, prepared: Prepared) -> ToolRegistry | None:
    """None where the task has no tools.

    Raises: ConfigurationError, for a name that is neither a tool nor a template.
    """
    granted = {grant.name: grant.policy for grant in prepared.config.tools}
    names = list(dict.fromkeys([*granted, *task.tools]))
    if not names:
        return None
    tools: list[Tool] = []
    for name in names:
        tool = _find(run, name, prepared)
        policy = granted.get(name)
        tools.append(tool if policy is None else replace(tool, policy=policy))
    return ToolRegistry(tools)


def _find(run: Run, name: str, prepared: Prepared) -> Tool:
    services = run.services
    registered = services.tools.get(name)
    if registered is not None:
        return registered
    if name == SUBTASK:
        return subtask_tool(run, prepared)
    if name in services.library:
        return template_tool(run, prepared, services.library.get(name))
    known = ", ".join([*services.tools.names(), SUBTASK])
    raise ConfigurationError(f"no tool and no template is called {name!r}; the tools are: {known}")
