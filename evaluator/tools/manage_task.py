"""The tool `manage_task`: a model manages tasks of several steps in its role, and sees interrupted
runs.

`TaskLists` decides what a model may change. A change is based on the version that the model has
seen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import Any

from evaluator.errors import RecordError, ToolError, UsageError
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.models.backend import ToolSpec
from evaluator.processes.concurrency import in_thread
from evaluator.record.task_list_outline import fill_template, read_template, template_names
from evaluator.record.task_lists import TaskList, TaskLists
from evaluator.tools.arguments import check_action
from evaluator.tools.tool import MANAGE_TASK, Tool, ToolContext, object_schema, text_schema

_MAX_LISTED = 100
_MAX_RUNS = 20
_MAX_STEP_CHARS = 500


@frozen
class RunAccess:
    """What the tool offers of runs. None of a function: the grant does not allow its action.

    `interrupted` returns the interrupted runs as (id, template, time of creation); it is called in
    a thread. `read` returns what is recorded of one of them; `resume` continues it, and returns its
    result as text.
    """

    interrupted: Callable[[], Iterable[tuple[int, str | None, str | None]]]
    read: Callable[[int], Awaitable[Any]] | None = None
    resume: Callable[[int, ToolContext], Awaitable[str]] | None = None


# The arguments that each action requires and those that it may have.
_ARGUMENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "list_active": ((), ()),
    "read": (("name",), ()),
    "create": (("name",), ("content", "template")),
    "update": (("name", "content"), ("version",)),
    "close": (("name",), ("force",)),
    "read_run": (("id",), ()),
    "resume_run": (("id",), ()),
}

_DESCRIPTION = """\
Keep tasks of several steps: Markdown files with sections and steps (- [ ] open, - [x] done), \
which outlive this conversation. Call list_active first: it says what there is and where each \
task goes on; resume there at the first open step. The role that creates a task owns it: it \
alone changes the file, marks the steps of every section and closes it; other roles read it. A \
role in square brackets at the start of a heading ("## [PLANNER] Preparation") says who does \
that part."""

_ACTIONS = (
    "list_active: all active tasks; read: one task with its text and version; create: a new task; "
    "update: replace the "
    "whole text; close: put a task whose steps are all done among the finished ones"
)
_PROPERTIES: dict[str, Any] = {
    "name": text_schema(
        "all but list_active: YYYY-MM-DD-name, or the name alone (lowercase letters, digits, "
        "hyphens); a new task without a date gets today's"
    ),
    "content": text_schema("create, update: the whole text of the task, in Markdown"),
    "template": text_schema(
        "create, in place of content: the name of a template that list_active names; the answer "
        "has the text to fill in"
    ),
    "version": text_schema("update: the version to replace; by default the one you saw last"),
    "force": {
        "type": "boolean",
        "description": "close: although steps are open; only if the user says so",
    },
}


@dataclass(slots=True)
class _TaskListSession:
    """What one conversation does with task lists. `seen` has the version of each list that the
    model saw last.
    """

    tasks: TaskLists
    role: str | None
    folders: Sequence[Path]
    runs: RunAccess | None
    seen: dict[str, str] = field(default_factory=dict[str, str])

    def act(self, given: dict[str, Any]) -> Any:
        tasks = self.tasks
        role = self.role
        match given["action"]:
            case "list_active":
                return self._list()
            case "read":
                return self._with_content(tasks.read(given["name"]))
            case "create":
                return self._create(given)
            case "update":
                version = given.get("version") or self._seen(given["name"])
                return self._shown(
                    tasks.update(given["name"], given["content"], role=role, if_unchanged=version)
                )
            case _:
                return self._shown(
                    tasks.close(given["name"], role=role, force=given.get("force", False))
                )

    def _create(self, given: dict[str, Any]) -> Any:
        name = given["name"]
        content = given.get("content")
        template = given.get("template")
        if (content is None) == (template is None):
            raise ToolError("create needs either content or template")
        if content is not None:
            return self._shown(self.tasks.create(name, content, role=self.role))
        text = fill_template(read_template(template or "", self.folders), name, role=self.role)
        return self._with_content(self.tasks.create(name, text, role=self.role))

    def _seen(self, name: str) -> str:
        # A list that is named without its date is the one active list of that name.
        if name in self.seen:
            full = name
        else:
            full = self.tasks.read(name).name
        if full not in self.seen:
            raise ToolError(
                f"update replaces the text that you have seen; call read for {full} first, or "
                "give version"
            )
        return self.seen[full]

    def _list(self) -> dict[str, Any]:
        active = self.tasks.list_active()
        result: dict[str, Any] = {
            "tasks": [_shorten(task.to_dict(self.role)) for task in active[:_MAX_LISTED]]
        }
        if len(active) > _MAX_LISTED:
            result["tasks_left_out"] = len(active) - _MAX_LISTED
        if self.folders:
            result["templates"] = template_names(self.folders)
        if self.runs is not None:
            runs = list(islice(self.runs.interrupted(), _MAX_RUNS + 1))
            result["interrupted_runs"] = [
                {"id": number, "template": template, "created": created}
                for number, template, created in runs[:_MAX_RUNS]
            ]
            if len(runs) > _MAX_RUNS:
                result["more_interrupted_runs"] = True
        return result

    def _shown(self, task: TaskList) -> dict[str, Any]:
        self.seen[task.name] = task.version
        return _shorten(task.to_dict(self.role))

    def _with_content(self, task: TaskList) -> dict[str, Any]:
        shown = self._shown(task)
        # The version comes last: a text that was cut lacks it.
        version = shown.pop("version")
        return {**shown, "content": task.content, "version": version}


def manage_task_tool(
    tasks: TaskLists, role: str | None, runs: RunAccess | None = None, folders: Sequence[Path] = ()
) -> Tool:
    """The tool for a model in the role `role`; with None it may change the tasks of all roles.

    `folders` are those whose templates of task lists may be used. A repeated `create` could create
    a second task on the next day, so the tool is not `retryable`.
    """
    session = _TaskListSession(tasks, role, folders=folders, runs=runs)
    offered = [name for name in _ARGUMENTS if not name.endswith("_run")]
    about = _ACTIONS
    if runs is not None and runs.read is not None:
        offered.append("read_run")
        about += "; read_run: what an interrupted run did and where it stopped"
    if runs is not None and runs.resume is not None:
        offered.append("resume_run")
        about += "; resume_run: continue an interrupted run where it stopped, and return its result"

    async def run(arguments: dict[str, Any], context: ToolContext) -> Any:
        # Models send "" for an argument that they leave out.
        given = {
            name: value for name, value in arguments.items() if value != "" and value is not False
        }
        check_action(given, *_ARGUMENTS[given["action"]])
        try:
            if given["action"] == "read_run" and runs is not None and runs.read is not None:
                return await runs.read(given["id"])
            if given["action"] == "resume_run" and runs is not None and runs.resume is not None:
                return await runs.resume(given["id"], context)
            return await in_thread(lambda: session.act(given))
        except (UsageError, RecordError) as error:
            raise ToolError(str(error)) from error

    properties = {
        "action": {"type": "string", "enum": offered, "description": about},
        **_PROPERTIES,
    }
    if len(offered) > len(_ARGUMENTS) - 2:
        properties["id"] = {
            "type": "integer",
            "minimum": 1,
            "description": "read_run, resume_run: the id of the run",
        }
    if role is None:
        described = _DESCRIPTION
    else:
        described = f"{_DESCRIPTION} You are {role}."
    spec = ToolSpec(MANAGE_TASK, described, parameters=object_schema(properties, ["action"]))
    return Tool(spec, run)


def _shorten(shown: dict[str, Any]) -> dict[str, Any]:
    for key in ("next", "next_of_role"):
        step = shown.get(key)
        if step is not None:
            step |= {name: step[name][:_MAX_STEP_CHARS] for name in ("text", "section")}
    return shown
