"""What an Evaluator is made of: its arguments, checked, and the services that are made of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict

from evaluator.errors import ConfigurationError, RecordError, UsageError
from evaluator.errors.messages import LOGGER, amount, type_of, visible
from evaluator.fields import Natural, accept
from evaluator.files.locations import given_path
from evaluator.files.pinned_code import PinnedCode
from evaluator.handler.config import HandlerConfig
from evaluator.handler.model_choice import ModelChooser
from evaluator.handler.profiles import Profiles, load_profiles, profile_named
from evaluator.handler.tracing import UNTRACED, LoggedTracer, Tracer
from evaluator.interpreter.frame import DEFAULT_MAX_DEPTH, RunOptions, Services
from evaluator.interpreter.interpret import evaluate_node
from evaluator.interpreter.preflight import check_reached
from evaluator.interpreter.sandboxing import check_sandbox, needed_sandboxes
from evaluator.interpreter.sync import run_sync
from evaluator.library import TemplateLibrary
from evaluator.models.backend import Backend
from evaluator.output.schema import Imports, schema_imports
from evaluator.processes.sandboxes import NO_SANDBOX, Sandbox
from evaluator.record.journal import Sync
from evaluator.record.redact import Redactor
from evaluator.record.store import TaskStore
from evaluator.record.task_folder import TaskSummary
from evaluator.tools import Asker, FileAccess, Tool, ToolRegistry
from evaluator.tools.mcp.connections import McpConnections
from evaluator.tools.tool import check_tool

if TYPE_CHECKING:
    from opentelemetry import trace

    from evaluator.errors.results import Outcome
    from evaluator.interpreter.background import BackgroundService
    from evaluator.limits.budget import Budget
    from evaluator.limits.call_limiter import CallLimiter, CallParking
    from evaluator.memory import Memory
    from evaluator.models.cache import ResponseCache

MAX_REPORTED = 5


def _has(*methods: str) -> Callable[[object], bool]:
    return lambda value: all(callable(getattr(value, method, None)) for method in methods)


_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "handler": (lambda value: isinstance(value, (str, HandlerConfig)), "a profile or its name"),
    "model": (lambda value: isinstance(value, str), "a model's id as text"),
    "model_roles": (lambda value: isinstance(value, Mapping), "a mapping of roles to models"),
    "backend": (
        lambda value: isinstance(value, Backend),
        "an object with name, complete and aclose",
    ),
    "memory": (_has("get_relevant_context_for"), "a Memory"),
    "asker": (_has("ask"), "an object with ask, such as CallbackAsker"),
    "cache": (
        lambda value: isinstance(value, (str, Path)) or _has("close")(value),
        "a file or a ResponseCache",
    ),
    "profiles": (lambda value: isinstance(value, Mapping), "a mapping of names to profiles"),
    "sandbox": (
        lambda value: isinstance(value, (str, Sandbox)),
        "a kind of sandbox, such as 'bubblewrap'",
    ),
    "rerank": (lambda value: isinstance(value, bool), "True or False"),
    "trust": (lambda value: isinstance(value, bool), "True or False"),
}


def check_arguments(arguments: Mapping[str, object]) -> None:
    """Raises: UsageError, for an argument of the wrong Python type."""
    for name, (fits, expected) in _ARGUMENTS.items():
        if arguments[name] is not None and not fits(arguments[name]):
            raise UsageError(f"{name} is {type_of(arguments[name])}, expected {expected}")
    accept(Natural, arguments["max_depth"], "max_depth", UsageError)


def log_notice(line: str) -> None:
    """Logs a line for the user as a warning."""
    LOGGER.warning("%s", visible(line))


def check_tools(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """The tools as a tuple. Raises: UsageError, for anything but tools."""
    if not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"tools is {type_of(tools)}, expected a list of tools")
    tools = tuple(tools)
    for tool in tools:
        if not isinstance(tool, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"tools has {tool!r}, expected a Tool: decorate the function with @tool"
            )
        check_tool(tool)
    return tools


def _with_builtin(tools: Iterable[Tool]) -> ToolRegistry:
    """The built-in tools, which take 5 ms to make, and these."""
    from evaluator.tools.builtin import builtin_tools

    return builtin_tools().with_tools(*tools)


def root_folders(roots: Iterable[str | Path]) -> list[Path]:
    """The roots as paths.

    Raises: UsageError, for one path in place of several; ConfigurationError, where there is no such
    folder.
    """
    if isinstance(roots, (str, Path)):
        raise UsageError(f"roots is one path, expected a list of folders: [{str(roots)!r}]")
    if not isinstance(roots, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"roots is {type_of(roots)}, expected a list of folders")
    folders = [given_path(root, "a root") for root in roots]
    for folder in folders:
        if not os.path.isdir(folder):
            raise ConfigurationError(
                f"the root {str(folder)!r} is not a folder; make it, or name another one"
            )
    return folders


def open_cache(
    cache: ResponseCache | str | Path | None, notice: Callable[[str], None]
) -> ResponseCache | None:
    """The cache itself, or the one in that file."""
    if not isinstance(cache, (str, Path)):
        return cache
    from evaluator.models.cache import ResponseCache

    return ResponseCache(cache, notice=notice)


def _open_profiles(
    profiles: Mapping[str, HandlerConfig] | None,
    handler: HandlerConfig | str | None,
    trust: bool,
    notice: Callable[[str], None],
) -> tuple[Mapping[str, HandlerConfig], HandlerConfig]:
    """The profiles and the default one. A profile of a project that replaces a shipped one is
    reported.
    """
    if profiles is None:
        profiles = load_profiles(trust=trust)
    if isinstance(handler, HandlerConfig):
        default = handler
    else:
        default = profile_named(profiles, handler or "default")
    name = default.name
    if isinstance(profiles, Profiles) and name in profiles.replacing and default is profiles[name]:
        notice(f"the profile {name!r} is that of {profiles.replacing[name]}, not the shipped one")
    return profiles, default


def _open_redactor(default: HandlerConfig, profiles: Mapping[str, HandlerConfig]) -> Redactor:
    """Removes the values of all variables that the profiles name for keys."""
    secrets = {
        name for profile in (default, *profiles.values()) for name in profile.secret_variables()
    }
    return Redactor.from_environment(also=secrets)


def _open_tracer(tracer: trace.Tracer | Literal[True] | None, redactor: Redactor) -> Tracer:
    if tracer is None:
        return LoggedTracer(UNTRACED, redactor)
    from evaluator.handler.otel import open_tracer

    return LoggedTracer(open_tracer(tracer, redactor), redactor)


async def _resume_within(services: Services, task_id: int, above: Budget) -> Outcome:
    from evaluator.interpreter.recovery import resume_within

    return await resume_within(services, task_id, above)


class _Arguments(TypedDict):
    """The arguments of an Evaluator that another process may have too."""

    library: TemplateLibrary
    handler: HandlerConfig | str | None
    model: str | None
    model_roles: dict[str, str]
    backend: Backend | None
    memory: Memory | None
    tools: tuple[Tool, ...]
    roots: tuple[str, ...]
    asker: Asker | None
    max_depth: int
    reparse: bool
    rerank: bool
    sync: Sync
    profiles: Mapping[str, HandlerConfig]
    sandbox: Sandbox | None
    trust: bool
    background: BackgroundService | None


def _make_services(
    init_args: _Arguments,
    default_profile: HandlerConfig,
    *,
    redactor: Redactor,
    store: TaskStore | None,
    cache: ResponseCache | None,
    notice: Callable[[str], None],
    tracer: Tracer,
) -> Services:
    """The services of an Evaluator with these arguments, and what belongs to its process."""
    roots = init_args["roots"]
    root = Path(roots[0])
    return Services(
        library=init_args["library"],
        chooser=ModelChooser(backend=init_args["backend"], notice=notice, cache=cache),
        profiles=init_args["profiles"],
        default_profile=default_profile,
        tools=ToolRegistry(partial(_with_builtin, init_args["tools"])),
        files=FileAccess(roots),
        root=root,
        asker=init_args["asker"],
        memory=init_args["memory"],
        store=store,
        mcp=McpConnections(root, notice=notice),
        evaluate=evaluate_node,
        code=_pin_code(init_args["library"], roots),
        redactor=redactor,
        notice=notice,
        cache=cache,
        max_depth=init_args["max_depth"],
        reparse=init_args["reparse"],
        rerank=init_args["rerank"],
        trust=init_args["trust"],
        tracer=tracer,
        resume=_resume_within,
        sandbox=init_args["sandbox"],
        background=init_args["background"],
    )


def _pin_code(library: TemplateLibrary, roots: Iterable[str]) -> PinnedCode:
    """The code below the current folder and the roots, where the tools of a task may write."""
    return PinnedCode.of(library.schema_places, dict.fromkeys((os.getcwd(), *roots)))


class EvaluatorParts:
    """The arguments and services of an Evaluator, copies with other ones, and their end."""

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
        rerank: bool = False,
        sync: Sync = "off",
        cache: ResponseCache | str | Path | None = None,
        profiles: Mapping[str, HandlerConfig] | None = None,
        sandbox: Sandbox | str | None = None,
        trust: bool = False,
        notice: Callable[[str], None] | None = None,
        tracer: trace.Tracer | Literal[True] | None = None,
        background: BackgroundService | None = None,
    ) -> None:
        check_arguments(locals())
        notice = notice or log_notice
        profiles, default = _open_profiles(profiles, handler, trust=trust, notice=notice)
        folders = root_folders(roots) or default.roots or [Path.cwd()]
        if library is None:
            library = TemplateLibrary.load()
        elif not isinstance(library, TemplateLibrary):
            library = TemplateLibrary.load(library)
        if isinstance(sandbox, str):
            sandbox = Sandbox.parse(sandbox)
        arguments: _Arguments = {
            "library": library,
            "handler": handler,
            "model": model,
            "model_roles": dict(model_roles or {}),
            "backend": backend,
            "memory": memory,
            "tools": check_tools(tools),
            "roots": tuple(os.path.abspath(root) for root in folders),
            "asker": asker,
            "max_depth": max_depth,
            "reparse": reparse,
            "rerank": rerank,
            "sync": sync,
            "profiles": profiles,
            "sandbox": sandbox,
            "trust": trust,
            "background": background,
        }
        self.init_args: Mapping[str, Any] = arguments
        """The arguments with which another process can make an equal Evaluator.

        Library and profiles are loaded. `tasks_dir`, `cache`, `notice` and `tracer` belong to one
        process.
        """
        cache = open_cache(cache, notice)
        redactor = _open_redactor(default, profiles)
        store = None
        if tasks_dir is not None:
            store = TaskStore(tasks_dir, redactor=redactor, sync=sync)
        self.services = _make_services(
            arguments,
            default,
            redactor=redactor,
            store=store,
            cache=cache,
            notice=notice,
            tracer=_open_tracer(tracer, redactor),
        )
        self._options = _default_options(self.init_args, self.services)
        self._reports_interrupted = True

    # The name in Python's messages about wrong arguments.
    __init__.__qualname__ = "Evaluator.__init__"

    @classmethod
    def _of(cls, init_args: Mapping[str, Any], services: Services) -> Self:
        """Makes an Evaluator of these parts. It does not report interrupted runs."""
        evaluator = cls.__new__(cls)
        evaluator.init_args = init_args
        evaluator.services = services
        evaluator._options = _default_options(init_args, services)
        evaluator._reports_interrupted = False
        return evaluator

    def _copy(self, init_args: Mapping[str, Any] = MappingProxyType({}), **changed: Any) -> Self:
        """A copy with these arguments and services changed. Closing either closes the connections
        of both.
        """
        return self._of({**self.init_args, **init_args}, replace(self.services, **changed))

    def with_limiter(
        self,
        limiter: CallLimiter,
        tasks_dir: str | Path,
        cache: ResponseCache | str | Path | None = None,
        denied: Iterable[Path] = (),
        *,
        is_packed: bool = False,
        parking: CallParking | None = None,
    ) -> Self:
        """A copy of this Evaluator whose calls pass through `limiter`, with task files in
        `tasks_dir`, packed into segments with `is_packed`. `parking` takes calls for provider
        batches; each step is then synced, because the calls are paid while no run has them.

        `cache` replaces this evaluator's, if given. File tools cannot access paths in `denied`.
        Closing either evaluator closes the connections of both.
        """
        services = self.services
        if cache is None:
            cache = services.cache
        else:
            cache = open_cache(cache, services.notice)
        return self._copy(
            chooser=services.chooser.with_limiter(limiter, cache, parking),
            store=TaskStore(
                tasks_dir,
                redactor=services.redactor,
                sync=self.init_args["sync"] if parking is None else "step",
                is_packed=is_packed,
            ),
            files=services.files.without(denied),
            cache=cache,
            limiter=limiter,
        )

    def with_sandbox(self, sandbox: Sandbox) -> Self:
        """A copy of this Evaluator whose scripts run in `sandbox`. Closing either closes the
        connections of both.
        """
        return self._copy({"sandbox": sandbox}, sandbox=sandbox)

    def with_library(self, library: TemplateLibrary) -> Self:
        """A copy of this Evaluator with these templates. Closing either closes the connections of
        both.
        """
        return self._copy({"library": library}, library=library)

    def with_code(self, code: PinnedCode) -> Self:
        """A copy of this Evaluator that imports schemas from code as it was in another process.
        Closing either closes the connections of both.
        """
        return self._copy(code=code)

    def without_files(self, denied: Iterable[Path]) -> Self:
        """A copy of this Evaluator whose file tools cannot access the paths in `denied`. Closing
        either closes the connections of both.
        """
        return self._copy(files=self.services.files.without(denied))

    def check_reached(
        self, runs: Iterable[tuple[str, str | None]], *, imports: bool = False
    ) -> None:
        """Checks the tools and schemas of the tasks that runs of these templates, each with a
        profile or None, reach by name. Nothing is run; `imports`: the modules of schemas are
        imported, as a run would.

        Raises: TemplateError, for a tool that is unknown or a schema that is invalid.
        """
        services = self.services
        mode: Imports = "none"
        if imports:
            mode = services.imports(services.authority)
        with schema_imports(mode, (services.code,)):
            for template, handler in runs:
                check_reached(services.domain(handler or self._options.handler), template)

    async def check_sandboxes(
        self, runs: Iterable[tuple[str, str | None]], asker: Asker | None = None
    ) -> Self:
        """Tries the sandboxes that runs of these templates, each with a profile or None, need.

        `asker` (default: that of this Evaluator) asks whether scripts may run without a sandbox
        that does not work. Returns this Evaluator, or with the answer yes a copy without sandboxes.
        Raises: ConfigurationError, if one does not work.
        """
        services = self.services
        for template, handler in runs:
            domain = services.new_domain(handler or self._options.handler)
            for sandbox in needed_sandboxes(domain, services.library.get(template).node):
                await check_sandbox(services, sandbox, asker or services.asker)
        if services.sandbox is None and services.sandbox_trials.is_waived:
            return self.with_sandbox(NO_SANDBOX)
        return self

    def without_network(self) -> Self:
        """A copy of this Evaluator that contacts no server to choose a model, for plans that are
        not run.
        """
        return self._copy(chooser=self.services.chooser.without_network())

    @property
    def library(self) -> TemplateLibrary:
        """The templates."""
        return self.services.library

    @property
    def limiter(self) -> CallLimiter | None:
        """The limiter that model calls pass through, see `with_limiter`."""
        return self.services.limiter

    @property
    def cache(self) -> ResponseCache | None:
        """The cache of responses."""
        return self.services.cache

    @property
    def model(self) -> str | None:
        """The model that every task uses; None: templates and profiles decide."""
        return self.init_args["model"]

    @property
    def model_roles(self) -> Mapping[str, str]:
        """The models of roles that templates name."""
        return self.init_args["model_roles"]

    def previewing(self, backend: Backend, default_model: str | None = None) -> Self:
        """A copy that sends every request to `backend`, runs no script and writes no task file.

        `default_model` is the model of requests for which nothing else names one.
        """
        environ = None
        if default_model is not None:
            environ = {"EVALUATOR_MODEL": default_model}
        chooser = ModelChooser(backend=backend, environ=environ)
        return self._copy({"model": None}, chooser=chooser, store=None, dry_run=True)

    def interrupted(self) -> list[TaskSummary]:
        """Interrupted runs, newest first: they have no end, and their process is gone. `resume`
        continues one.

        Leaves out subtasks, which are resumed with the run that asked for them, and files that end
        inside their header, where nothing was done.
        """
        store = self.services.store
        summaries = ()
        if store is not None:
            summaries = store.interrupted()
        return [
            task for task in summaries if task.header is not None and task.header.parent is None
        ]

    def _report_interrupted(self) -> None:
        """Tells the user about interrupted runs, once. They are never resumed automatically."""
        if not self._reports_interrupted:
            return
        self._reports_interrupted = False
        try:
            ids = [str(task.id) for task in self.interrupted()]
        except (RecordError, OSError, ValueError):
            # The next run reports the problem with the folder.
            return
        if ids and self.services.store is not None:
            more = ""
            if len(ids) > MAX_REPORTED:
                more = " and more"
            self.services.notice(
                f"interrupted and not resumed: TASK-{', TASK-'.join(ids[:MAX_REPORTED])}{more}; "
                f"see: evaluator tasks list --interrupted{self.services.store.option}"
            )

    async def aclose(self) -> None:
        """Closes pooled connections, MCP servers and the cache. An Evaluator is usable again
        afterwards.
        """
        self.services.domains.clear()  # the prepared tasks hold connections
        await self.services.chooser.aclose()
        await self.services.mcp.aclose()
        if self.services.store is not None:
            self.services.store.close()
        if self.cache is not None:
            await asyncio.to_thread(self.cache.close)

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
        return (
            f"Evaluator({amount(len(self.library.templates), 'template')}, "
            f"handler={self.services.default_profile.name!r})"
        )


def _default_options(init_args: Mapping[str, Any], services: Services) -> RunOptions:
    """The options of a run for which the caller gives none."""
    handler = None
    if init_args["handler"] is not None:
        handler = services.default_profile.name
    return RunOptions(init_args["model"], handler, model_roles=init_args["model_roles"])
