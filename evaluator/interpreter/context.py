"""Assembles the context of a task, which the model sees besides the prompt.

Three settings, each with a default from its operator, and explicit files determine it.

`inherit_context` passes on the parent's items (full, the relevant ones, or none); `fresh_context`
asks memory for relevant paths, which the Handler's file access reads; `accumulate_data` is up to
the operators, which add items for the results so far. `file_paths` are always included. An item is
never sent twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from evaluator import clock
from evaluator.errors import ConfigurationError, ContextError, RecordError, ToolError, machine_error
from evaluator.files.open_below import decode
from evaluator.handler.config import HandlerConfig
from evaluator.interpreter.authority import Authority
from evaluator.interpreter.frame import ContextItem, Run, Services, join
from evaluator.language.fences import block
from evaluator.language.sandbox import render
from evaluator.language.scopes import Scope
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.models.attachments import Attachment, media_type_of, size_problem
from evaluator.nodes import AccumulationFormat, FilePaths, FreshContext, InheritContext, Task
from evaluator.processes.concurrency import in_thread
from evaluator.record.step_log import StepLog
from evaluator.record.steps import cut_off_reason
from evaluator.tools.mcp.servers import SCHEME, split_resource

if TYPE_CHECKING:
    from evaluator.memory import Memory

MAX_FRESH = 10
SUBSET_CHARACTERS = 40_000
COMMAND_TIMEOUT_S = 30.0
MAX_SCORED_CHARACTERS = 20_000
MIN_RELEVANCE = 0.15
"""The share of a description's weighted words that an item must contain to be passed on by
`subset`.
"""


@frozen
class ContextPolicy:
    """The three context settings of one task: each is the template's, else the operator's
    default.
    """

    inherit_context: InheritContext
    accumulate_data: bool
    accumulation_format: AccumulationFormat
    fresh_context: FreshContext


SUBTASK_DEFAULT = ContextPolicy(
    "subset", False, accumulation_format="notes_only", fresh_context="enabled"
)


def policy_of(task: Task, *, is_subtask: bool = False) -> ContextPolicy:
    """The template's settings, each else the default of subtasks, or of the task's operator."""
    # Every operator declares all of its defaults.
    settings = task.context
    if is_subtask:
        default = SUBTASK_DEFAULT
    else:
        default = cast("ContextPolicy", task.default_context)
    accumulates = settings.accumulate_data
    if accumulates is None:
        accumulates = default.accumulate_data
    return ContextPolicy(
        settings.inherit_context or default.inherit_context,
        accumulates,
        accumulation_format=settings.accumulation_format or default.accumulation_format,
        fresh_context=settings.fresh_context or default.fresh_context,
    )


@frozen
class AttachedItem(ContextItem):
    """An image or a PDF: its content only says what it is; the file itself is attached to the
    message.
    """

    attachment: Attachment


@frozen
class Assembled:
    """The context of one task, and a warning for each part of it that could not be read."""

    items: tuple[ContextItem, ...]
    warnings: tuple[str, ...]


NOTHING = Assembled((), ())


async def assemble(
    run: Run,
    task: Task,
    policy: ContextPolicy,
    inherited: Sequence[ContextItem],
    description: str,
    scope: Scope,
    path: str,
    config: HandlerConfig,
    authority: Authority,
) -> Assembled:
    """The items that `task`, at `path`, sees. A file that cannot be read is a warning, never an
    error.

    The output of a command, the paths that memory found and the content of an MCP resource are
    recorded steps. Files are read again in each run.
    """
    memory = run.services.memory
    wants_fresh = policy.fresh_context == "enabled" and memory is not None
    if policy.inherit_context != "none":
        items = inherited
    else:
        items = ()
    if not items and not wants_fresh and task.file_paths is None:
        return NOTHING
    context = _Assembly(run.services, Recorder(run.steps, path), config=config, authority=authority)
    is_subset = policy.inherit_context == "subset" and bool(items)
    paths: list[str] = []
    if memory is not None and (wants_fresh or is_subset):
        paths = await context.ask_memory(memory, description, "memory")
    if is_subset:
        items = relevant(
            items,
            description,
            characters=SUBSET_CHARACTERS,
            known={f"file:{run.services.files.name_of(name)}" for name in paths},
        )
    context.items = {item.source: item for item in items}
    if task.file_paths is not None:
        await context.add_file_paths(task.file_paths, scope)
    if not wants_fresh:
        paths = []
    for name in paths:
        if not authority.denies_reading(name, run.services.files):
            await context.read_file(name, attach=False)
    return Assembled(tuple(context.items.values()), tuple(context.warnings))


def task_list_at(services: Services, path: str) -> str | None:
    """The name of the task list whose file `path` is; None for other files."""
    from evaluator.record.task_lists import TaskLists

    if services.store is None:
        return None
    lists = TaskLists(services.store.root)
    return lists.name_at(services.root / path) or lists.name_at(Path(path))


def relevant(
    items: Sequence[ContextItem], description: str, characters: int, known: Collection[str] = ()
) -> list[ContextItem]:
    """The items that share enough words with `description`, or whose source is `known` to be
    relevant; best first, as many as fit in `characters`.
    """
    from evaluator.library.words import query_terms, stems

    terms = query_terms(description)
    most = sum(term.weight for term in terms)
    scored: list[tuple[float, int, ContextItem]] = []
    for order, item in enumerate(items):
        there = set(stems(f"{item.source} {item.content[:MAX_SCORED_CHARACTERS]}"))
        score = sum(term.weight for term in terms if term.stem in there)
        if item.source in known or (most and score / most >= MIN_RELEVANCE):
            scored.append((-score, order, item))
    chosen: list[ContextItem] = []
    for _, _, item in sorted(scored, key=lambda entry: entry[:2]):
        if len(item.content) <= characters:
            chosen.append(item)
            characters -= len(item.content)
    return chosen


@frozen
class Recorder:
    """Records lookups outside a task as steps, so that a resumed run sees the same results as the
    first one.
    """

    steps: StepLog
    path: str

    async def step(
        self, segment: str, name: str, args: Any, look: Callable[[], Awaitable[Any]]
    ) -> Any:
        """The recorded output of this step, else what `look` returns."""
        path = join(self.path, segment)
        steps = self.steps
        fingerprint = steps.fingerprint(args)
        recorded = steps.recorded(path, "context", fingerprint, args)
        if recorded is not None:
            return recorded.output
        number = await steps.begin(path, "context", name, args, fingerprint)
        started = clock.monotonic()
        try:
            output = await look()
        except BaseException as error:
            steps.abort(number, None, clock.monotonic() - started, cut_off_reason(error))
            raise
        await steps.succeed(number, output, clock.monotonic() - started)
        return output


@dataclass(slots=True)
class _Assembly:
    """Collects the items of one task, by source."""

    services: Services
    recorder: Recorder
    config: HandlerConfig
    authority: Authority
    items: dict[str, ContextItem] = field(default_factory=dict[str, ContextItem])
    warnings: list[str] = field(default_factory=list[str])

    def _warn(self, message: str) -> None:
        self.warnings.append(f"file_paths: {message}")

    async def add_file_paths(self, file_paths: FilePaths, scope: Scope) -> None:
        """Adds the files that the template names: literally, by pattern, command or description."""
        texts = [(await render(text, scope)).strip() for text in file_paths.items]
        if file_paths.source == "literal":
            names = texts
        elif file_paths.source == "glob":
            names = await self._match(texts)
        elif file_paths.source == "command":
            names = await self._run_command(texts, file_paths.shell)
        else:
            names = await self._find_described(texts[0])
        is_granted = self.authority.grants_all(file_paths)
        for name in names:
            if not is_granted and not self._may_name(name):
                self._warn(f"{name} was not read: the task that started this one may not read it")
            elif file_paths.source == "literal" and name.startswith(SCHEME):
                await self._read_resource(name)
            else:
                await self.read_file(name, attach=True)

    def _may_name(self, path: str) -> bool:
        """Whether a task that a model has chosen may read a file that its author did not write
        down. A task list needs `manage_task` in the task above, which has allowed it then.
        """
        if path in (self.authority.files or ()):
            return True
        is_allowed = self.authority.reading(path, self.services.files) == "allow"
        return is_allowed and task_list_at(self.services, path) is None

    async def _match(self, patterns: Sequence[str]) -> list[str]:
        names: list[str] = []
        for pattern in patterns:
            try:
                matched = await self.services.files.aglob(pattern)
            except ToolError as error:
                _raise_machine_error(error)
                self._warn(f"{pattern}: {error}")
                continue
            if not matched:
                self._warn(f"no file matches {pattern}")
            names += matched
        return names

    async def _find_described(self, description: str) -> list[str]:
        if self.services.memory is None:
            self._warn("a description of files needs a memory, but the evaluator has none")
            return []
        paths = await self.ask_memory(self.services.memory, description, segment="file_paths")
        if not paths:
            self._warn(f"memory knows no path for {description!r}")
        return paths

    async def ask_memory(self, memory: Memory, description: str, segment: str) -> list[str]:
        """The paths that `memory` finds. Raises: ContextError, whatever a memory raises; that is
        its cause.
        """

        async def look() -> list[str]:
            try:
                return [
                    match.path
                    for match in await memory.get_relevant_context_for(description, MAX_FRESH)
                ]
            except Exception as error:
                raise ContextError(f"memory failed: {type(error).__name__}: {error}") from error

        args = {"description": description, "limit": MAX_FRESH}
        return await self.recorder.step(segment, "memory", args, look)

    async def _run_command(self, argv: list[str], shell: bool) -> list[str]:
        from evaluator.processes.scripts import run_script

        if self.services.dry_run:
            self._warn(f"{argv[0]} was not run")
            return []

        async def look() -> dict[str, Any]:
            try:
                result = await run_script(
                    argv[0] if shell else argv,
                    stdin=None,
                    timeout_s=COMMAND_TIMEOUT_S,
                    cwd=self.services.root,
                    memory_bytes=self.config.script_memory_bytes,
                    # It lists the files that are there.
                    sandbox=replace(self.config.sandbox, folder="read_only_root"),
                )
            except ToolError as error:
                _raise_machine_error(error)
                return {"error": str(error)}
            return {
                "exit_code": result.exit_code,
                "stdout": result.stdout,
                "stderr": result.stderr[:200],
            }

        args: dict[str, Any] = {"argv": argv}
        if shell:
            args["shell"] = True
        ended = await self.recorder.step("file_paths", argv[0][:60] or "command", args, look)
        if "error" in ended:
            self._warn(ended["error"])
        elif ended["exit_code"] != 0:
            self._warn(f"{argv[0]} ended with exit code {ended['exit_code']}: {ended['stderr']}")
        else:
            return [line for line in ended["stdout"].splitlines() if line.strip()]
        return []

    async def _read_resource(self, path: str) -> None:
        """Raises: MissingExtra, and ConfigurationError for a variable that is not set."""
        if path in self.items:
            return
        try:
            server, uri = split_resource(path, self.config.mcp)
        except ConfigurationError as error:
            self._warn(str(error))
            return
        if self.services.dry_run:
            self._warn(f"{path} was not read")
            return

        async def look() -> dict[str, str]:
            try:
                return {"text": await self.services.mcp.read_resource(server, uri)}
            except ToolError as error:
                _raise_machine_error(error)
                return {"error": str(error)}

        answer = await self.recorder.step(
            f"resource[{path}]", path[:60], {"server": server.name, "uri": uri}, look
        )
        if "error" in answer:
            self._warn(answer["error"])
        else:
            self.items[path] = ContextItem(path, answer["text"])

    async def _task_list(self, path: str) -> bytes | None:
        """The text of the task list at `path`; None for other files.

        The tools of a task cannot access the folder of task files, but a template may be given a
        task list to read.
        """
        from evaluator.record.task_lists import TaskLists

        store = self.services.store
        name = task_list_at(self.services, path)
        if store is None or name is None:
            return None
        lists = TaskLists(store.root)
        try:
            return (await in_thread(lambda: lists.read(name))).content.encode()
        except RecordError as error:
            raise ToolError(str(error)) from error

    async def read_file(self, path: str, *, attach: bool) -> None:
        """Adds a file's text, or, if `attach`, the image or PDF itself. A file is added once,
        however it is spelled.
        """
        source = f"file:{self.services.files.name_of(path)}"
        if source in self.items:
            return
        try:
            data = await self._task_list(path) or await self.services.files.aread_bytes(path)
            media_type = media_type_of(data)
            if media_type is None:
                self.items[source] = ContextItem(source, decode(data, path)[0])
                return
        except ToolError as error:
            _raise_machine_error(error)
            self.warnings.append(f"{path} was not read: {error}")
            return
        if attach:
            problem = size_problem(data, media_type)
        else:
            problem = "only file_paths attaches images and PDFs"
        if problem is not None:
            self.warnings.append(f"{path} was not attached: {problem}")
            return
        label = f"[{media_type}, {len(data):,} bytes]"
        self.items[source] = AttachedItem(
            source, label, attachment=Attachment(media_type, data, source=path)
        )


def _raise_machine_error(error: ToolError) -> None:
    """Raises: MachineError, if this machine's own trouble is the cause: the model must not answer
    without the file.
    """
    if (trouble := machine_error(error)) is not None:
        raise trouble from error


def attachments_of(items: Sequence[ContextItem]) -> tuple[Attachment, ...]:
    """The attachments of the message that shows `items`, in their order."""
    return tuple(item.attachment for item in items if isinstance(item, AttachedItem))


def format_items(items: Sequence[ContextItem]) -> str:
    """The items as text, each with its source. Attached files add no text: a benchmark's prompt is
    its author's.
    """
    texts = (item for item in items if not isinstance(item, AttachedItem))
    return "\n\n".join(block("context", item.content, source=item.source) for item in texts)
