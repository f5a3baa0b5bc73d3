"""The tools with which a model starts, reads, awaits and kills background tasks.

A model sees only the tasks that its own session started. They run within the authority of its task:
a script with its sandbox, memory and first root, a subtask or a session as the tool `subtask` would
run it, within the limits of the task above, a watch on a server of its profile. Everything ends
with the session.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from evaluator.errors import ToolError, UsageError
from evaluator.errors.results import Outcome
from evaluator.handler.conversation import OnMessage
from evaluator.interpreter.background import START_SUBTASK
from evaluator.interpreter.frame import OnBegin
from evaluator.interpreter.spawning import Spawner, Start
from evaluator.models.backend import ToolSpec
from evaluator.tools import Tool, ToolContext, tool

if TYPE_CHECKING:
    from evaluator.jobs.background_tasks import BackgroundTasks
    from evaluator.jobs.tasks import BackgroundTask, Work

READ_BYTES = 20_000
WAIT_S = 60.0
MAX_WAIT_S = 600.0
MAX_READ_BYTES = 200_000


class BackgroundTools:
    """Background tasks for the models of an Evaluator, with their states and outputs in `folder`.

    Nothing is created, and little imported, before the first task is started. A pickled copy uses
    the same folder: the worker processes of a batch record their tasks there.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).absolute()
        self._tasks: BackgroundTasks | None = None

    def __reduce__(self) -> tuple[type[BackgroundTools], tuple[Path]]:
        return BackgroundTools, (self._folder,)

    def tools(self, spawner: Spawner) -> Mapping[str, Tool]:
        """See `BackgroundService`."""
        return _SessionTools(self, spawner).tools()

    def notifications(self, session: str, *, later: bool) -> str:
        """See `BackgroundService`."""
        if self._tasks is None:
            return ""
        from evaluator.jobs.tasks import PRIORITIES

        if later:
            priorities = PRIORITIES
        else:
            priorities = PRIORITIES[:1]
        notices = self._tasks.store.claim(session=session, priorities=priorities)
        return "\n".join(notice.xml for notice in notices)

    async def end_session(self, session: str) -> None:
        """Ends everything that the session started."""
        if self._tasks is not None:
            await self._tasks.end_session(session)

    def make_tasks(self) -> BackgroundTasks:
        """The tasks; the first call creates their folder. Raises: as `BackgroundTasks`."""
        if self._tasks is None:
            from evaluator.jobs.background_tasks import BackgroundTasks

            self._tasks = BackgroundTasks(self._folder)
        return self._tasks


class _SessionTools:
    """The tools of one session."""

    def __init__(self, service: BackgroundTools, spawner: Spawner) -> None:
        self._service = service
        self._spawner = spawner
        self._id = spawner.session

    def tools(self) -> Mapping[str, Tool]:
        from evaluator.interpreter.subtasks import PARAMETERS, subtask_tool

        close = partial(self._service.end_session, self._id)
        general = subtask_tool(self._spawner)
        text = (
            "Starts a part of the work as a subtask in the background and returns its task_id "
            "at once."
        )
        made = [
            replace(tool(policy="ask")(self.start_script), close=close),
            Tool(
                ToolSpec(START_SUBTASK, text, parameters=PARAMETERS),
                self.start_subtask,
                preview=general.preview,
                close=close,
            ),
            replace(tool(self.start_session), close=close),
            replace(tool(policy="ask")(self.start_watch), close=close),
            tool(self.send_message),
            tool(effect=False)(self.list_background),
            tool(effect=False)(self.read_background),
            tool(effect=False)(self.wait_background),
            tool(self.kill_background),
        ]
        return {each.name: each for each in made}

    async def start_script(
        self,
        context: ToolContext,
        command: Annotated[list[str], "the program and its arguments, one string each; no shell"],
        description: Annotated[str, "what it does, in a few words"] = "",
        timeout_s: Annotated[
            float | None, "seconds after which it is killed; without it, the end of this task"
        ] = None,
    ) -> dict[str, Any]:
        """Start a program in the task's folder in the background, with an empty standard input.
        Returns its task_id at once; read its output with read_background. It is killed when this
        task ends.
        """
        import shlex

        from evaluator.jobs.scripts import ScriptWork

        folders = context.roots.roots.folders
        work = ScriptWork(
            command,
            cwd=folders[0] if folders else None,
            memory_bytes=context.script_memory_bytes,
            timeout_s=min(context.remaining_s, inf if timeout_s is None else timeout_s),
            sandbox=context.sandbox,
            redactor=self._spawner.run.services.redactor,
        )
        return self._start(work, description or shlex.join(command), context=context)

    async def start_subtask(
        self, arguments: dict[str, Any], context: ToolContext
    ) -> dict[str, Any]:
        from evaluator.interpreter.subtasks import read_request, spawn
        from evaluator.jobs.in_process import EvaluationWork, type_of

        request = read_request(arguments)

        async def evaluate(on_message: OnMessage, on_begin: OnBegin) -> Outcome:
            return await spawn(self._spawner, request, context, on_message, on_begin)

        library = self._spawner.run.services.library
        name = request.template
        kind = "a"
        if name is not None and name in library:
            kind = type_of(library.get(name).node)
        work = EvaluationWork(kind, evaluate, redactor=self._spawner.run.services.redactor)
        return self._start(work, request.description, context=context)

    async def start_session(
        self, context: ToolContext, message: Annotated[str, "its first message"]
    ) -> dict[str, Any]:
        """Start an interactive session in the background: it answers each message that send_message
        sends to it and remembers the earlier ones. Returns its task_id at once; wait_background
        waits for its answer, read_background reads it.
        """
        from evaluator.interpreter.chat import Chat, run_of
        from evaluator.jobs.in_process import SessionWork

        spawner = self._spawner
        services = spawner.run.services

        async def converse(
            ask: Any, show: Any, on_message: OnMessage, on_begin: OnBegin
        ) -> Outcome:
            async def choose() -> Start:
                return Start(session, spawner.authority())

            session = run_of(Chat(ask, show), services, spawner.bound.task.profile)
            return await spawner.start(choose, context, on_message, on_begin)

        work = SessionWork(converse, services.redactor)
        started = self._start(work, message, context=context)
        await self._service.make_tasks().send(started["task_id"], message)
        return started

    async def start_watch(
        self,
        context: ToolContext,
        server: Annotated[str, "the name of an MCP server of this profile"],
        resources: Annotated[
            list[str] | None, "URIs of resources whose changes are reported"
        ] = None,
        max_events: Annotated[
            int | None, "events after which it completes; without it, the end of this task"
        ] = None,
    ) -> dict[str, Any]:
        """Watch an MCP server in the background: changes of resources and of its lists, and its log
        messages. Returns its task_id at once; each event comes as a notification and is in its
        output.
        """
        from evaluator.jobs.in_process import WatchWork

        config = self._spawner.bound.config
        found = next((each for each in config.mcp if each.name == server), None)
        if found is None:
            known = ", ".join(each.name for each in config.mcp) or "none"
            raise ToolError(
                f"the profile has no MCP server {server[:100]!r}; its servers are: {known}"
            )
        if max_events is not None and max_events < 1:
            raise ToolError("max_events is at least 1; nothing was started")
        root = self._spawner.run.services.root
        work = WatchWork(found, tuple(resources or ()), cwd=root, max_events=max_events)
        return self._start(work, " ".join(["watch", server, *(resources or ())]), context=context)

    async def send_message(
        self,
        task_id: Annotated[str, "the id that start_session returned"],
        message: Annotated[str | None, "what to say; null ends the session after its last answer"],
    ) -> dict[str, Any]:
        """Send a message to an interactive session. Wait for its answer with wait_background."""
        await self._own(task_id)
        try:
            await self._service.make_tasks().send(task_id, message)
        except UsageError as error:
            raise ToolError(str(error)) from error
        return _shown(await self._own(task_id))

    async def list_background(self) -> dict[str, Any]:
        """List the background tasks that this session started, and the notifications that it has
        not seen yet.
        """
        tasks = self._service.make_tasks()
        await tasks.end_orphans()
        found = [_shown(task) for task in tasks.store.list(session=self._id)]
        told = self._service.notifications(self._id, later=True)
        return {"tasks": found} | ({"notifications": told} if told else {})

    async def read_background(
        self,
        task_id: Annotated[str, "the id that the start returned"],
        offset: Annotated[
            int | None, "first byte; default: the beginning, or the last 50 messages of a subtask"
        ] = None,
        max_bytes: Annotated[int, "maximum size of the text"] = READ_BYTES,
    ) -> dict[str, Any]:
        """Read the output of a background task. Continue with offset=next_offset."""
        from evaluator.jobs.output import read_output, window_start

        task = await self._own(task_id)
        path = Path(task.output_file)
        if offset is None:
            if path.suffix == ".jsonl":
                offset = window_start(path)
            else:
                offset = 0
        if offset < 0 or max_bytes < 1:
            raise ToolError("offset is at least 0 and max_bytes at least 1; nothing was read")
        data = read_output(path, offset, max_bytes=min(max_bytes, MAX_READ_BYTES))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data, final=task.has_ended and len(data) < max_bytes)
        read = len(data) - len(decoder.getstate()[0])
        return {**_shown(task), "text": text, "offset": offset, "next_offset": offset + read}

    async def wait_background(
        self,
        context: ToolContext,
        task_id: Annotated[str, "the id that the start returned"],
        timeout_s: Annotated[float, "how long to wait at most, in seconds"] = WAIT_S,
    ) -> dict[str, Any]:
        """Wait until a background task has ended, or until a session has answered, and return its
        state.
        """
        tasks = self._service.make_tasks()
        await self._own(task_id)
        task = await tasks.wait(
            task_id, max(0.0, min(timeout_s, context.remaining_s, MAX_WAIT_S)), idle=True
        )
        if task.has_ended or task.activity == "idle":
            tasks.store.claim(task_id=task_id)  # this answer is the notification
        return _shown(task)

    async def kill_background(
        self, task_id: Annotated[str, "the id that the start returned"]
    ) -> dict[str, Any]:
        """Kill a background task with everything that it started."""
        tasks = self._service.make_tasks()
        await self._own(task_id)
        task = await tasks.kill(task_id, "killed by the model that started it")
        if task.has_ended:
            tasks.store.claim(task_id=task_id)
        return _shown(task)

    def _start(self, work: Work, description: str, context: ToolContext) -> dict[str, Any]:
        description = self._spawner.run.services.redactor.redact(description)
        task = self._service.make_tasks().start(
            work, description, session=self._id, tool_use_id=context.call_id or None
        )
        return {"task_id": task.id, "status": task.status}

    async def _own(self, task_id: str) -> BackgroundTask:
        """The task, which this session started. Raises: ToolError."""
        tasks = self._service.make_tasks()
        await tasks.end_orphans()
        try:
            task = tasks.store.get(task_id)
        except UsageError:
            task = None
        if task is None or task.session != self._id:
            raise ToolError(
                f"this session has not started a background task {task_id[:40]!r}; call "
                "list_background"
            )
        return task


def _shown(task: BackgroundTask) -> dict[str, Any]:
    values = {
        "task_id": task.id,
        "description": task.description,
        "status": task.status,
        "exit_code": task.exit_code,
        "activity": task.activity,
        "signal": task.signal,
        "reason": task.reason,
        "summary": task.summary or None,
        "waits_for_an_answer": task.is_waiting or None,
    }
    return {name: value for name, value in values.items() if value is not None}
