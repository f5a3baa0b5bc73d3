"""The Evaluator: a request, a template's name or a node goes in; a TaskResult or a TaskError comes back."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from evaluator.binding.scopes import Scope, plain
from evaluator.errors import ConfigurationError, UsageError
from evaluator.handler.backend import Backend
from evaluator.handler.choice import ModelChooser
from evaluator.handler.config import HandlerConfig, load_profiles, profile_named
from evaluator.handler.tools import Asker, FileAccess, Tool, builtin_tools
from evaluator.interpreter.batch import evaluate_rows
from evaluator.interpreter.extraction import extract_inputs
from evaluator.interpreter.failures import failure, to_task_error
from evaluator.interpreter.frame import Frame, Outcome, Run
from evaluator.interpreter.interpret import evaluate_node
from evaluator.interpreter.operators.call import call_function
from evaluator.interpreter.runs import RunStart, record_run
from evaluator.interpreter.services import Services
from evaluator.interpreter.sync import run_sync
from evaluator.library import Match, TemplateLibrary
from evaluator.library.matching import LOW_SCORE
from evaluator.library.near import did_you_mean
from evaluator.memory import Memory
from evaluator.nodes import Atomic, Call, Cond, Function, Node, Task
from evaluator.record.redact import Redactor
from evaluator.record.store import TaskStore
from evaluator.results import TaskError

if TYPE_CHECKING:
    from evaluator.interpreter.preview import Preview

# In scripts without spaces a whole request is one word: only ASCII ones are taken for names.
_NAME = re.compile(r"[A-Za-z0-9_./-]+")
EventCallback = Callable[[str, str], None]


class Evaluator:
    """Evaluates tasks. One Evaluator serves any number of concurrent evaluations of one event loop.

    `library`: the templates, or a folder of them (default: `templates/` here, then the shipped ones).
    `handler`: a profile or its name (default: `default`). `model`: used for every task, whatever templates and
    profiles say.
    `backend`: answers every model call itself (a simulated or replaying one, or your own). `tasks_dir`: the
    folder of task files (default `tasks`; None records nothing). `roots`: the folders that tasks may read,
    the first one also being where scripts run (default: the current folder). `memory` answers
    `fresh_context`. `max_depth`: levels of subtasks. `reparse`: whether a task that ran out of turns, context
    or output may be decomposed, once, where its template allows it. `tools`: further tools that templates may
    name. `asker` answers questions to the user.

    Raises: ConfigurationError, if the profile cannot be read or has no such name, or a root is no folder.
    """

    def __init__(
        self,
        library: TemplateLibrary | str | Path | None = None,
        handler: HandlerConfig | str | None = None,
        *,
        model: str | None = None,
        backend: Backend | None = None,
        tasks_dir: str | Path | None = "tasks",
        memory: Memory | None = None,
        tools: Iterable[Tool] = (),
        roots: Iterable[str | Path] = (),
        asker: Asker | None = None,
        max_depth: int = 5,
        reparse: bool = False,
        profiles: Mapping[str, HandlerConfig] | None = None,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        profiles = load_profiles() if profiles is None else profiles
        default = handler if isinstance(handler, HandlerConfig) else profile_named(profiles, handler or "default")
        tools = tuple(tools)
        _check_arguments(model=model, backend=backend, tools=tools, max_depth=max_depth)
        self._model = model
        self._profile = default.name if handler is not None else None
        self._max_depth = max_depth
        folders = _given_roots(roots) or [Path(root) for root in default.roots] or [Path.cwd()]
        self.library = library if isinstance(library, TemplateLibrary) else _load_library(library)
        self._chooser = ModelChooser(backend=backend, notice=notice or _log_notice)
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
            store=None if tasks_dir is None else TaskStore(Path(tasks_dir), redactor=Redactor.from_environment()),
            evaluate=evaluate_node,
            reparse=reparse,
        )

    @property
    def services(self) -> Services:
        """The parts that this Evaluator was put together from."""
        return self._services

    async def evaluate(
        self,
        request: str | Node | Function,
        inputs: Mapping[str, Any] | None = None,
        *,
        model: str | None = None,
        handler: str | None = None,
        target: str | None = None,
        ask_model: bool = True,
        on_text: Callable[[str], None] | None = None,
        on_event: EventCallback | None = None,
    ) -> Outcome:
        """Evaluates a template's name, a request in words, or a node.

        Words are matched to the atomic templates; the best is taken if it fits at all. Inputs that it needs
        and `inputs` lacks are extracted from the words by the model, as a recorded step, or, with
        `ask_model` False, are an error that lists them. A node is evaluated as it stands; an atomic node that
        has neither name nor instructions is a request, matched like words. `target` is the answer that a
        simulated model gives. `on_text` receives text as it streams in; `on_event` `(path, what)` as steps start.

        Returns: a TaskResult, or a TaskError for every way of failing. Raises nothing but cancellation and
        UsageError, for arguments of the wrong Python type.
        """
        _check_types(request, inputs)
        try:
            values = cast("dict[str, Any]", plain(dict(inputs or {})))
            start = self._start(request, values, ask_model)
        except Exception as error:
            return to_task_error(error)
        if isinstance(start, TaskError):
            return start
        return await record_run(
            self._services,
            RunStart(
                **start, max_depth=self._max_depth, model=model or self._model, target=target,
                profile=handler or self._profile, on_text=on_text, on_event=on_event,
            ),
        )  # fmt: skip

    def _start(
        self, request: str | Node | Function, values: dict[str, Any], ask_model: bool
    ) -> dict[str, Any] | TaskError:
        """The parts of a RunStart that the request decides."""
        if isinstance(request, str) and (request in self.library or request in self.library.broken):
            return self._start_template(request, request, values)
        if isinstance(request, str) and _NAME.fullmatch(request):
            # One word is a name: a misspelt one must not run whatever is nearest to it.
            return _no_template(request, self.library)
        if isinstance(request, str) or _is_request(request):
            return self._start_matched(request, values, ask_model)
        if isinstance(request, Function):
            return self._start_function(request, request.name, None, values)
        if isinstance(request, Task):
            request = self.library.whole(request)
        name = request.name if isinstance(request, Task) else None
        label = name or ("call" if isinstance(request, Call) else "node")
        return {
            "node": request, "request": label, "inputs": values, "template": name,
            **_arguments(request, values),
        }  # fmt: skip

    def _start_template(
        self, name: str, request: str, values: dict[str, Any], score: float | None = None
    ) -> dict[str, Any]:
        template = self.library.get(name)
        node = template.node
        if isinstance(node, Function):
            return self._start_function(node, request, template.sha256, values)
        return {
            "node": node, "request": request, "inputs": values, "template": name, "match_score": score,
            "template_sha256": template.sha256, "arguments": values,
        }  # fmt: skip

    def _start_function(
        self, node: Function, request: str, sha256: str | None, values: dict[str, Any]
    ) -> dict[str, Any]:
        async def body(run: Run, frame: Frame) -> Outcome:
            return await call_function(run, node, [], values, node.span, frame)

        return {
            "node": None, "request": request, "inputs": values, "template": node.name, "template_sha256": sha256,
            "body": body,
        }  # fmt: skip

    def _start_matched(self, request: Any, values: dict[str, Any], ask_model: bool) -> dict[str, Any] | TaskError:
        words = request if isinstance(request, str) else request.description.value
        matches = self.library.match(request, limit=5)
        best = matches[0] if matches else None
        if best is None or best.score < LOW_SCORE:
            if not isinstance(request, str):
                return {"node": request, "request": words, "inputs": values, **_arguments(request, values)}
            return _no_match(words, matches)
        start = self._start_template(best.template.name, words, values, best.score)
        node = start["node"]
        missing = [i for i in node.inputs if i.required and i.default is None and i.task is None and i.source is None
                   and i.name not in values]  # fmt: skip
        if not missing:
            return start
        names = ", ".join(f"{i.name} ({i.type})" for i in missing)
        if not ask_model:
            return failure(
                "input_validation_failure",
                f"{best.template.name!r} fits the request (score {best.score:.2f}) and needs: {names}",
                location=node.span,
            )

        async def body(run: Run, frame: Frame) -> Outcome:
            found = await extract_inputs(run, frame, words, missing, node)
            if isinstance(found, TaskError):
                return found
            return await evaluate_node(run, node, replace(frame, arguments={**found, **values}))

        return {**start, "body": body}

    def evaluate_sync(
        self, request: str | Node | Function, inputs: Mapping[str, Any] | None = None, **options: Any
    ) -> Outcome:
        """`evaluate` for code that is not async; works inside a running event loop too (a notebook's)."""
        return run_sync(self.evaluate(request, inputs, **options))

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
    ) -> AsyncIterator[Outcome]:
        """Evaluates `name` with each row as its inputs; results come in the order of the rows.

        At most `concurrency` evaluations run at once and at most four times as many results wait for an
        earlier one, so memory does not grow with the number of rows. A row that fails is a TaskError in its
        place; nothing is left out. Closing the iterator cancels what still runs.
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
        """Closes pooled connections. An Evaluator is usable again afterwards."""
        await self._chooser.aclose()

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Evaluator:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """`aclose` for code that is not async."""
        run_sync(self.aclose())

    def __repr__(self) -> str:
        return f"Evaluator({len(self.library.templates)} templates, handler={self._services.default_profile.name!r})"


def _no_template(name: str, library: TemplateLibrary) -> TaskError:
    hint = did_you_mean(name, library.templates, f"{len(library.templates)} templates are loaded")
    return failure("no_matching_template", f"there is no template {name!r}; {hint}. A request in words has several")


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


def _check_types(request: object, inputs: object) -> None:
    if inputs is not None and not isinstance(inputs, Mapping):
        raise UsageError(f"inputs is a {type(inputs).__name__}, expected a mapping of names to values")
    if not isinstance(request, (str, Task, Call, Cond, Function)):
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


def _is_request(node: object) -> bool:
    return isinstance(node, Atomic) and node.name is None and node.instructions is None and node.ref is None


def _arguments(node: Node, values: dict[str, Any]) -> dict[str, Any]:
    """Declared inputs take their values as arguments; what a node does not declare it sees in its scope."""
    if isinstance(node, Task) and node.inputs:
        declared = {i.name for i in node.inputs}
        rest = {k: v for k, v in values.items() if k not in declared}
        return {"arguments": {k: v for k, v in values.items() if k in declared}, "scope": Scope(rest)}
    return {"arguments": None, "scope": Scope(values)}


def _no_match(words: str, matches: list[Match]) -> TaskError:
    nearest = ", ".join(f"{m.template.name} ({m.score:.2f})" for m in matches) or "none"
    shown = words if len(words) <= 80 else words[:77] + "…"
    return failure(
        "no_matching_template",
        f"no template fits the request {shown!r}; the nearest are: {nearest}. Name one with its exact name, "
        "or add a template for it",
    )
