"""Which tools run programs, act on the screen or send to the network. A profile and a template name
a tool before it is made.

A tool of `@tool` declares it itself (`controls`); those that are made for each task are listed
here.
"""

from __future__ import annotations

from collections.abc import Mapping

from evaluator.tools.anthropic import BASH, TEXT_EDITOR
from evaluator.tools.builtin import builtin_tools
from evaluator.tools.computer import COMPUTER
from evaluator.tools.registry import ToolRegistry
from evaluator.tools.tool import MANAGE_TASK, Control

OF_TASK_TOOLS: Mapping[str, Control | None] = {
    BASH: "programs",
    "start_script": "programs",
    COMPUTER: "screen",
    **dict.fromkeys((TEXT_EDITOR, MANAGE_TASK, "subtask", "evaluation_request")),
    **dict.fromkeys(
        ("start_subtask", "start_session", "start_watch", "send_message", "kill_background")
    ),
    **dict.fromkeys(("list_background", "read_background", "wait_background")),
}


def controls_of(name: str, tools: ToolRegistry | None = None) -> Control | None:
    """What the tool `name` controls; `tools` has the tools of `@tool`, by default the built-in
    ones.
    """
    found = (builtin_tools() if tools is None else tools).get(name)
    if found is None:
        return OF_TASK_TOOLS.get(name)
    return found.controls
