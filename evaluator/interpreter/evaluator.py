"""The Evaluator: a request, a template's name or a node goes in; a TaskResult or a TaskError comes back."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Collection, Iterable, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from evaluator.binding.scopes import plain
from evaluator.errors import ConfigurationError, RecordError, UsageError
from evaluator.handler.backend import Backend
from evaluator.handler.choice import ModelChooser
from evaluator.handler.config import HandlerConfig, load_profiles, profile_named
from evaluator.handler.mcp.connections import McpConnections
from evaluator.handler.tools import Asker, FileAccess, Tool, builtin_tools
from evaluator.handler.tracing import UNTRACED, Tracer
from evaluator.interpreter.batch import evaluate_rows
from evaluator.interpreter.chat import CHAT, Chat, Reply, chat, resume_chat
from evaluator.interpreter.failures import failure, to_task_error
from evaluator.interpreter.frame import Outcome
from evaluator.interpreter.interpret import evaluate_node
from evaluator.interpreter.recovery import ON_UNFINISHED, OnUnfinished, resume
from evaluator.interpreter.replay import Replay, replay
from evaluator.interpreter.requests import is_request_type, start_of
from evaluator.interpreter.runs import RunStart, record_run
from evaluator.interpreter.services import Services
from evaluator.interpreter.sync import run_sync, sync_form
from evaluator.library import TemplateLibrary
from evaluator.memory import Memory
from evaluator.nodes import Function, Node
from evaluator.record.journal import Sync
from evaluator.record.redact import Redactor
from evaluator.record.steps import Header, Scrub
from evaluator.record.store import TaskStore, TaskSummary
from evaluator.results import TaskError, TaskId

if TYPE_CHECKING:
    from opentelemetry import trace

    from evaluator.handler.cache import ResponseCache
    from evaluator.handler.gate import Gate
    from evaluator.interpreter.compile import CompiledTask
    from evaluator.interpreter.preview import Preview

DEFAULT_MAX_DEPTH = 5
MAX_REPORTED = 5
EventCallback = Callable[[str, str], None]


class Evaluator:
    """Evaluates tasks. One Evaluator serves any number of concurrent evaluations of one event loop.

    `library`: the templates, or a folder of them (default: `templates/` here, then the shipped ones).
    `handler`: a profile or its name (default: `default`). `model`: used for every task, whatever templates and
    profiles say, but for those that name a role which `model_roles`, or the profile, maps to a model.
    `backend`: answers every model call itself (a simulated or replaying one, or your own). `tasks_dir`: the
    folder of task files (default `tasks`; None records nothing). `roots`: the folders that tasks may read,
    the first one also being where scripts run (default: the current folder). `memory` answers
    `fresh_context`. `max_depth`: levels of subtasks. `reparse`: whether a task that ran out of turns, context
    or output may be decomposed, once, where its template allows it. `tools`: further tools that templates may
    name. `asker` answers questions to the user. `sync`: what of the task files survives a loss of power: "off"
    what the system had written back, "task" every ended task, "step" every step; a killed process loses nothing
    with any of them. `cache`, or the file of one: responses that were given before, see `handler.cache`. `tracer`, an
    OpenTelemetry one, or True for the global provider's: gets spans of what runs, see docs/tracing.md.

    Raises: ConfigurationError, if the profile cannot be read or has no such name, or a root is no folder.
    """

    def __init__(
        self,
        library: TemplateLibrary | str | Path | None = None,
        handler: HandlerConfig | str | None = None,
        *,
        model: str | None = None,
        model_roles: Mapping[str, str] | None = None,
        backend: Backend | None = None,
        tasks_dir: str | Path | None = "tasks",
        memory: Memory | None = None,
        tools: Iterable[Tool] = (),
        roots: Iterable[str | Path] = (),
        asker: Asker | None = None,
        max_depth: int = DEFAULT_MAX_DEPTH,
        reparse: bool = False,
        sync: Sync = "off",
        cache: ResponseCache | str | Path | None = None,
        profiles: Mapping[str, HandlerConfig] | None = None,
        notice: Callable[[str], None] | None = None,
        tracer: trace.Tracer | Literal[True] | None = None,
    ) -> None:
        profiles = load_profiles() if profiles is None else profiles
        default = handler if isinstance(handler, HandlerConfig) else profile_named(profiles, handler or "default")
        tools = tuple(tools)
        _check_arguments(model=model, backend=backend, tools=tools, max_depth=max_depth)
        self._model = model
        self._roles = dict(model_roles or {})
        self._profile = default.name if handler is not None else None
        self._max_depth = max_depth
        secret = [name for profile in (default, *profiles.values()) for s in profile.mcp for name in s.variables()]
        self._sync: Sync = sync
        self._redactor = Redactor.from_environment(also=secret)
        store = None if tasks_dir is None else TaskStore(tasks_dir, redactor=self._redactor, sync=sync)
        folders = _given_roots(roots) or [Path(root) for root in default.roots] or [Path.cwd()]
        self.library = library if isinstance(library, TemplateLibrary) else _load_library(library)
        self._notice = notice or _log_notice
        self._has_reported = False
        self._root = os.path.abspath(folders[0])
        self._gate: Gate | None = None
        self._made_of: dict[str, Any] = {
            "library": self.library, "handler": handler, "model": model, "model_roles": self._roles,
            "backend": backend, "memory": memory, "tools": tools, "roots": [os.path.abspath(each) for each in folders],
            "asker": asker, "max_depth": max_depth, "reparse": reparse, "sync": sync, "profiles": profiles,
        }  # fmt: skip
        self._cache = _given_cache(cache, self._notice)
        self._chooser = ModelChooser(backend=backend, notice=self._notice, cache=self._cache)
        self._services = Services(
            library=self.library,
            chooser=self._chooser,
            profiles=profiles,
            default_profile=default,
            tools=builtin_tools().with_tools(*tools),
            files=FileAccess(folders),
            root=folders[0],
            asker=asker,
            memory=memory,
            store=store,
            mcp=McpConnections(folders[0], notice=self._notice),
            evaluate=evaluate_node,
            reparse=reparse,
            tracer=UNTRACED if tracer is None else _given_tracer(tracer, self._redactor),
        )

    @property
    def services(self) -> Services:
        """The parts that this Evaluator was put together from."""
        return self._services

    def behind(
        self,
        gate: Gate,
        tasks_dir: str | Path,
        cache: ResponseCache | str | Path | None = None,
        closed: Iterable[Path] = (),
    ) -> Self:
        """This evaluator with its calls passing through `gate`, its task files in `tasks_dir` and, where one is
        given, another `cache`; tools on files do not touch what is in `closed`. Closing either closes the connections
        of both."""
        other = copy(self)
        other._gate = gate
        other._cache = self._cache if cache is None else _given_cache(cache, self._notice)
        other._chooser = self._chooser.behind(gate, other._cache)
        new = TaskStore(tasks_dir, redactor=self._redactor, sync=self._sync)
        files = self._services.files.without(closed)
        other._services = replace(self._services, chooser=other._chooser, store=new, files=files)
        other._has_reported = True
        return other

    @property
    def made_of(self) -> Mapping[str, Any]:
        """The arguments that make such an Evaluator in another process, where templates and profiles are not read
        again; without the folder of task files, the cache, and who is told notices."""
        return self._made_of

    @property
    def gate(self) -> Gate | None:
        """What its calls pass through, see `behind`."""
        return self._gate

    @property
    def cache(self) -> ResponseCache | None:
        """The responses that were given before."""
        return self._cache

    @property
    def model(self) -> str | None:
        """The model that every task uses; None: templates and profiles say."""
        return self._model

    @property
    def model_roles(self) -> Mapping[str, str]:
        """The models of roles that templates name."""
        return self._roles

    async def evaluate(
        self,
        request: str | Node | Function,
        inputs: Mapping[str, Any] | None = None,
        *,
        model: str | None = None,
        handler: str | None = None,
        model_roles: Mapping[str, str] | None = None,
        target: str | None = None,
        epoch: int = 1,
        ask_model: bool = True,
        labels: Mapping[str, str] | None = None,
        on_text: Callable[[str], None] | None = None,
        on_event: EventCallback | None = None,
    ) -> Outcome:
        """Evaluates a template's name, a request in words, or a node.

        Words are matched to the atomic templates; the best is taken if it fits at all. Inputs that it needs
        and `inputs` lacks are extracted from the words by the model, as a recorded step, or, with
        `ask_model` False, are an error that lists them. A node is evaluated as it stands; an atomic node that
        has neither name nor instructions is a request, matched like words. `target` is the answer that a
        simulated model gives. `model_roles` stand above the evaluator's. `epoch`, from 1, tells repetitions apart
        to the cache. `labels` stand in the task file's header, for whoever looks for it. `on_text` receives text as
        it streams in; `on_event` `(path, what)` as steps start.

        Returns: a TaskResult, or a TaskError for every way of failing. Raises nothing but cancellation and
        UsageError, for arguments of the wrong Python type.
        """
        _check_types(request, inputs)
        _check_epoch(epoch)
        self._report_interrupted()
        try:
            values = cast("dict[str, Any]", plain(dict(inputs or {})))
            start = start_of(self.library, request, values, ask_model)
            if isinstance(start, TaskError):
                return start
            profile, roles = handler or self._profile, {**self._roles, **(model_roles or {})}
            origin = self._origin(start, profile, roles, target=target, epoch=epoch, labels=labels)
            start.max_depth, start.model, start.profile = self._max_depth, model or self._model, profile
            start.roles, start.target, start.epoch, start.origin = roles, target, epoch, origin
            start.on_text, start.on_event = on_text, on_event
            self._services.mcp.check(self._services.profile(profile).mcp)
        except Exception as error:
            return to_task_error(error)
        return await record_run(self._services, start)

    def _origin(
        self,
        start: RunStart,
        profile: str | None,
        roles: Mapping[str, str],
        *,
        target: str | None = None,
        epoch: int = 1,
        labels: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """What a task file says besides, so that its run can be started again: where it is not the default."""
        origin: dict[str, Any] = {**start.origin}
        store = self._services.store
        if store is not None:
            said = {
                "handler": profile,
                "target": target,
                "epoch": epoch if epoch != 1 else None,
                "model_roles": roles or None,
                "max_depth": self._max_depth if self._max_depth != DEFAULT_MAX_DEPTH else None,
                "reparse": self._services.reparse or None,
                "redacted_inputs": _redacted(start.inputs, store.redactor) or None,
                "root": self._root,
            }
            origin.update((key, value) for key, value in said.items() if value is not None)
        if labels:
            origin["labels"] = dict(labels)
        return origin

    async def resume(
        self,
        task_id: int,
        inputs: Mapping[str, Any] | None = None,
        *,
        unfinished: OnUnfinished = "ask",
        allow_changed: bool = False,
        on_text: Callable[[str], None] | None = None,
        on_event: EventCallback | None = None,
    ) -> Outcome:
        """Goes on with a run that was interrupted, aborted or failed: what its task file holds is not done again.

        Steps that were completed are taken from the record; calls that were in flight are made again. A tool
        call or script with a side effect that was begun and has no recorded end is asked about through the
        evaluator's `asker`; `unfinished` decides in its place: "repeat" it, "tell" the model that its end is
        not known, or "stop". `inputs` are those that the record lacks because they are secret.

        Where a template, a file that the task reads, or the model is not what it was, the run stops at the first
        step that shows it, and does not run it; `allow_changed` goes on with what is there now.

        Returns: the outcome, with `notes["resumed"]`; of a completed run the recorded one. A TaskError too where
        the run cannot be gone on with: its cause is a RecordError (TaskBusy, StepChanged, StepUnfinished, …).
        Raises: UsageError, for arguments of the wrong Python type.
        """
        if unfinished not in ON_UNFINISHED:
            raise UsageError(f"unfinished is one of {', '.join(ON_UNFINISHED)}, not {unfinished!r}")
        _check_types("", inputs)
        _check_flag("allow_changed", allow_changed)

        def finish(start: RunStart, header: Header) -> RunStart:
            return self._again(replace(start, on_text=on_text, on_event=on_event), header)

        try:
            values = cast("dict[str, Any]", plain(dict(inputs or {})))
            return await resume(self._services, task_id, values, unfinished, allow_changed, finish)
        except Exception as error:
            number = TaskId(task_id) if type(task_id) is int else None
            return replace(to_task_error(error), task_id=number)

    def _again(self, start: RunStart, header: Header) -> RunStart:
        """`start` with what the header says of how it was called.

        Raises: UsageError, where this evaluator was made for another folder or another way of running.
        """
        extra = header.extra
        if extra.get("root", self._root) != self._root:
            raise UsageError(
                f"TASK-{header.task_id} ran with the root {extra['root']}, not {self._root}; resume it with that root"
            )
        return replace(
            start, max_depth=extra.get("max_depth", DEFAULT_MAX_DEPTH), model=header.model,
            profile=extra.get("handler"), target=extra.get("target"), roles=extra.get("model_roles", {}),
            epoch=extra.get("epoch", 1),
        )  # fmt: skip

    async def replay(self, task: int | str | Path, *, template_changes: bool = False) -> Replay:
        """Evaluates a recorded run again from its record alone: no call is made, no tool run, nothing written.

        Stops at the first step that is not what was recorded. With `template_changes` goes on past steps whose
        content has changed, with the recorded answers, and keeps what the model would now see differently.

        Raises: RecordError, if there is no such task or it cannot be read; UsageError or TemplateError, if its
        template is not there.
        """

        def finish(start: RunStart, header: Header) -> RunStart:
            return self._again(start, header)

        _check_flag("template_changes", template_changes)
        return await replay(self._services, Path(task) if isinstance(task, str) else task, template_changes, finish)

    async def compile(
        self,
        words: str,
        *,
        allow_scripts: bool = False,
        allow_tools: Collection[str] = (),
        model: str | None = None,
        handler: str | None = None,
    ) -> CompiledTask:
        """The task that `words` describe, in XML, written by a model and checked; nothing of it is run.

        Scripts and commands are refused unless `allow_scripts`, tools but for `allow_tools`. The call is a recorded
        run. `evaluate(task.node, …)` runs what came of it.

        Raises: UsageError, where there are no words.
        """
        from evaluator.interpreter.compile import compile_task

        def finish(start: RunStart) -> RunStart:
            profile = handler or self._profile
            return replace(
                start, max_depth=self._max_depth, model=model or self._model, roles=self._roles, profile=profile,
                origin=self._origin(start, profile, self._roles),
            )  # fmt: skip

        return await compile_task(
            self._services, words, allow_scripts=allow_scripts, allow_tools=allow_tools, finish=finish
        )

    async def chat(
        self,
        ask: Callable[[], Awaitable[str | None]],
        show: Callable[[Reply], None],
        *,
        resume: int | None = None,
        on_text: Callable[[str], None] | None = None,
        on_start: Callable[[Chat], None] | None = None,
    ) -> Outcome:
        """An interactive session: one Handler, with the profile's tools, its limits for each query, and what memory
        finds for it.

        `ask` gives the next query, None to end; `show` gets each reply. `on_start` gets the session, whose
        `break_off` ends the answer that is being given. `resume` goes on with the session of a task file, whose
        replies are shown again, from the record.

        Returns: the outcome of the whole, its content the last answer.
        """
        session = Chat(ask, show)
        if on_start is not None:
            on_start(session)

        def finish(start: RunStart, header: Header) -> RunStart:
            return self._again(replace(start, on_text=on_text), header)

        try:
            if resume is not None:
                return await resume_chat(self._services, session, resume, finish)
            start = RunStart(
                None, CHAT, {}, model=self._model, profile=self._profile, roles=self._roles,
                max_depth=self._max_depth, on_text=on_text,
            )  # fmt: skip
            start = replace(start, origin=self._origin(start, self._profile, self._roles))
            return await chat(self._services, session, start)
        except Exception as error:
            return to_task_error(error)

    def interrupted(self) -> list[TaskSummary]:
        """Runs without an end whose process is gone, newest first; `resume` goes on with one.

        Neither subtasks, which go on with the run that asked for them, nor files that end inside their header:
        nothing was done there.
        """
        store = self._services.store
        return [] if store is None else [task for task in store.interrupted() if _can_go_on(task)]

    def _report_interrupted(self) -> None:
        """Once: that there are such runs. They are never gone on with unasked."""
        if self._has_reported:
            return
        self._has_reported = True
        try:
            found = [str(task.id) for task in self.interrupted()]
        except (RecordError, OSError, ValueError):
            # The run that follows says what is wrong with the folder.
            return
        if found:
            more = " and more" if len(found) > MAX_REPORTED else ""
            self._notice(
                f"interrupted earlier and not gone on with: TASK-{', TASK-'.join(found[:MAX_REPORTED])}{more}; "
                "see: evaluator tasks list --interrupted"
            )

    evaluate_sync = sync_form(
        evaluate, "`evaluate` for code that is not async; works inside a running event loop too (a notebook's)."
    )
    resume_sync = sync_form(resume, "`resume` for code that is not async.")
    replay_sync = sync_form(replay, "`replay` for code that is not async.")

    def render(
        self, request: str | Node | Function, inputs: Mapping[str, Any] | None = None
    ) -> tuple[Outcome, list[Preview]]:
        """What the model would see for `request`, without a call, a script or a task file.

        Returns: the outcome (a TaskError where something cannot be resolved) and each request in order. Only
        the first is exact: what follows an answer follows a simulated one.
        """
        from evaluator.interpreter.preview import LookingBackend

        backend = LookingBackend()
        services = replace(self._services, chooser=ModelChooser(backend=backend), store=None, dry_run=True)
        looking = copy(self)
        looking._services, looking._model = services, None
        outcome = looking.evaluate_sync(request, inputs)
        return outcome, backend.seen

    def evaluate_batch(
        self,
        name: str | Node,
        rows: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        *,
        concurrency: int = 16,
        **options: Any,
    ) -> AsyncGenerator[Outcome, None]:
        """Evaluates `name` with each row as its inputs; results come in the order of the rows.

        At most `concurrency` evaluations run at once and at most four times as many results wait for an
        earlier one, so memory does not grow with the number of rows. A row that fails is a TaskError in its
        place; nothing is left out. Closing the iterator cancels what still runs.

        Raises: UsageError, at once, for text, a path, a mapping or a frame: `batch` takes those.
        """
        if concurrency < 1:
            raise UsageError(f"concurrency is {concurrency}, expected 1 or more")

        async def one(row: Mapping[str, Any]) -> Outcome:
            if not isinstance(row, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                return failure(
                    "input_validation_failure",
                    f"a row is a {type(row).__name__}, expected a mapping of names to values",
                )
            return await self.evaluate(name, row, **options)

        return evaluate_rows(one, rows, concurrency)

    async def aclose(self) -> None:
        """Closes pooled connections, MCP servers and the cache. An Evaluator is usable again afterwards."""
        await self._chooser.aclose()
        await self._services.mcp.aclose()
        if self._cache is not None:
            await asyncio.to_thread(self._cache.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """`aclose` for code that is not async."""
        run_sync(self.aclose())

    def __repr__(self) -> str:
        return f"Evaluator({len(self.library.templates)} templates, handler={self._services.default_profile.name!r})"


def _load_library(folder: str | Path | None) -> TemplateLibrary:
    return TemplateLibrary.load() if folder is None else TemplateLibrary.load(folder)


def _log_notice(line: str) -> None:
    logging.getLogger("evaluator").warning(line)


def _check_arguments(*, model: object, backend: object, tools: tuple[object, ...], max_depth: object) -> None:
    if model is not None and not isinstance(model, str):
        raise UsageError(f"model is a {type(model).__name__}, expected a model's id as text")
    if backend is not None and not isinstance(backend, Backend):
        raise UsageError(f"backend is a {type(backend).__name__}, expected an object with name, complete and aclose")
    for tool in tools:
        if not isinstance(tool, Tool):
            raise UsageError(f"tools holds {tool!r}, expected a Tool: decorate the function with @tool")
    if not isinstance(max_depth, int) or max_depth < 0:
        raise UsageError(f"max_depth is {max_depth!r}, expected an integer, 0 or more")


def _check_epoch(epoch: object) -> None:
    if type(epoch) is not int or epoch < 1:
        raise UsageError(f"epoch is {epoch!r}, expected an integer, 1 or more")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}, expected True or False")


def _check_types(request: object, inputs: object) -> None:
    if inputs is not None and not isinstance(inputs, Mapping):
        raise UsageError(f"inputs is a {type(inputs).__name__}, expected a mapping of names to values")
    if not is_request_type(request):
        raise UsageError(f"request is a {type(request).__name__}, expected text or a node")


def _given_roots(roots: Iterable[str | Path]) -> list[Path]:
    """Raises: UsageError, for one path in place of several; ConfigurationError, where there is no such folder."""
    if isinstance(roots, (str, Path)):
        raise UsageError(f"roots is one path, expected a list of folders: [{str(roots)!r}]")
    folders = [Path(root) for root in roots]
    for folder in folders:
        if not os.path.isdir(folder):
            raise ConfigurationError(f"the root {str(folder)!r} is not a folder; make it, or name another one")
    return folders


def _given_tracer(tracer: object, redactor: Redactor) -> Tracer:
    from evaluator.handler.otel import open_tracer

    return open_tracer(tracer, redactor)


def _given_cache(cache: ResponseCache | str | Path | None, notice: Callable[[str], None]) -> ResponseCache | None:
    if not isinstance(cache, (str, Path)):
        return cache
    from evaluator.handler.cache import ResponseCache

    return ResponseCache(cache, notice=notice)


def _redacted(inputs: Mapping[str, Any], scrub: Scrub | None) -> list[str]:
    """The inputs that a task file does not hold as they are."""
    return [] if scrub is None else [name for name, value in inputs.items() if scrub.redact_value(value) != value]


def _can_go_on(task: TaskSummary) -> bool:
    return task.header is not None and task.header.parent is None
