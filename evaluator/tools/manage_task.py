"""The tool `manage_task`: a model manages tasks of several steps in its role.

`TaskLists` decides what a model may change; a model always has to name the version that it read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from evaluator.errors import RecordError, ToolError, UsageError
from evaluator.models.backend import ToolSpec
from evaluator.processes.threads import in_thread
from evaluator.record.task_lists import TaskList, TaskLists
from evaluator.tools.registry import Tool, ToolContext, check_action

Interrupted = Callable[[], Iterable[tuple[int, str | None, str | None]]]

_MAX_LISTED = 100
_MAX_RUNS = 20
_MAX_STEP_CHARS = 500

# The arguments that each action requires.
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "list_active": (),
    "read": ("name",),
    "create": ("name", "content"),
    "update": ("name", "content", "version"),
    "close": ("name",),
}

_DESCRIPTION = """\
Keep tasks of several steps: Markdown files with sections and checkbox steps (- [ ] open, - [x] done), which outlive \
this conversation. Call list_active first: it says what there is and where each task goes on. A section belongs to \
the role in square brackets at the start of its heading ("## [PLANNER] Preparation"), with the sections below it; \
one without a role is everybody's."""

MANAGE_TASK = "manage_task"
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "action": {
            "type": "string",
            "enum": list(_ARGUMENTS),
            "description": "list_active: all active tasks; read: one task with its text and version; create: a new "
            "task; update: replace the whole text; close: put a task whose steps are all done among the finished ones",
        },
        "name": {
            "type": "string",
            "description": "all but list_active: YYYY-MM-DD-name, or the name alone (lowercase letters, digits, "
            "hyphens); a new task without a date gets today's",
        },
        "content": {"type": "string", "description": "create, update: the whole text of the task, in Markdown"},
        "version": {"type": "string", "description": "update: the version that read gave, or the last change"},
    },
    "required": ["action"],
    "additionalProperties": False,
}


def manage_task_tool(tasks: TaskLists, role: str | None, interrupted: Interrupted | None = None) -> Tool:
    """The tool for a model in the role `role`; with None it may change the sections of all roles.

    `interrupted` returns the interrupted runs as (id, template, time of creation) for `list_active`; it is called in a
    thread. A repeated `create` could create a second task on the next day, so the tool is not `retryable`.
    """

    async def run(arguments: dict[str, Any], context: ToolContext) -> Any:
        given = _checked(arguments)
        try:
            return await in_thread(lambda: _act(tasks, role, interrupted, given))
        except (UsageError, RecordError) as error:
            raise ToolError(str(error)) from error

    return Tool(ToolSpec(MANAGE_TASK, _described(role), _SCHEMA), run)


def _described(role: str | None) -> str:
    if role is None:
        return _DESCRIPTION
    return (
        f"{_DESCRIPTION} You are {role}: change only sections of {role} and sections without a role, and leave all "
        f"others exactly as they are. In a new task you may lay out open steps for other roles."
    )


def _checked(arguments: dict[str, Any]) -> dict[str, str]:
    """The arguments of the action without empty ones: models send "" for an argument that they leave out."""
    given = {key: value for key, value in arguments.items() if value != ""}
    if given["action"] == "update" and {"name", "content", "version"} - given.keys() == {"version"}:
        raise ToolError("update needs version; read returns it")
    check_action(given, _ARGUMENTS[given["action"]])
    return given


def _act(tasks: TaskLists, role: str | None, interrupted: Interrupted | None, given: dict[str, str]) -> Any:
    match given["action"]:
        case "list_active":
            return _listed(tasks, role, interrupted)
        case "read":
            task = tasks.read(given["name"])
            # The version comes last: a text that was cut lacks it, and so cannot be written back.
            shown = _shown(task, role)
            version = shown.pop("version")
            return {**shown, "content": task.content, "version": version}
        case "create":
            return _shown(tasks.create(given["name"], given["content"], role=role), role)
        case "update":
            task = tasks.update(given["name"], given["content"], role=role, if_unchanged=given["version"])
            return _shown(task, role)
        case _:
            return _shown(tasks.close(given["name"], role=role), role)


def _listed(tasks: TaskLists, role: str | None, interrupted: Interrupted | None) -> dict[str, Any]:
    active = tasks.list_active()
    result: dict[str, Any] = {"tasks": [_shown(task, role) for task in active[:_MAX_LISTED]]}
    if len(active) > _MAX_LISTED:
        result["tasks_left_out"] = len(active) - _MAX_LISTED
    if interrupted is not None:
        runs = list(islice(interrupted(), _MAX_RUNS + 1))
        result["interrupted_runs"] = [
            {"id": number, "template": template, "created": created} for number, template, created in runs[:_MAX_RUNS]
        ]
        if len(runs) > _MAX_RUNS:
            result["more_interrupted_runs"] = True
    return result


def _shown(task: TaskList, role: str | None) -> dict[str, Any]:
    shown = task.to_dict(role)
    for key in ("next", "next_of_role"):
        step = shown.get(key)
        if step is not None:
            step |= {name: step[name][:_MAX_STEP_CHARS] for name in ("text", "section")}
    return shown
