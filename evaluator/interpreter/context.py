"""What a task sees besides its prompt: three dimensions with an operator's defaults, and explicit files.

`inherit_context` passes on the parent's items (full, the relevant ones, or none); `fresh_context` asks memory
for relevant paths, which the Handler's file access reads; `accumulate_data` is the operators' own (they add
items for what was done so far). `file_paths` are always included. An item is never sent twice.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evaluator.binding.sandbox import render
from evaluator.binding.scopes import Scope
from evaluator.errors import ConfigurationError, ContextError, ToolError
from evaluator.handler.attachments import Attachment, media_type_of, size_problem
from evaluator.handler.mcp import McpServer
from evaluator.handler.mcp.servers import SCHEME, split_resource
from evaluator.handler.tools.script import MEMORY_BYTES, run_script
from evaluator.handler.tools.texts import decode
from evaluator.interpreter.frame import ContextItem, join
from evaluator.library.words import query_terms, stems
from evaluator.memory import Memory
from evaluator.nodes import AccumulationFormat, FilePaths, FreshContext, InheritContext, Task, TaskType
from evaluator.record.steplog import StepLog

if TYPE_CHECKING:
    from evaluator.interpreter.services import Services

MAX_FRESH = 10
SUBSET_CHARACTERS = 40_000
COMMAND_TIMEOUT_S = 30.0
LOOKED_AT_CHARACTERS = 20_000
RELEVANT = 0.15
"""The share of a description's weighted words that an item has to hold to be passed on by `subset`."""


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """The three dimensions, decided: an explicit setting overrides the default of that dimension only."""

    inherit_context: InheritContext
    accumulate_data: bool
    accumulation_format: AccumulationFormat
    fresh_context: FreshContext


DEFAULTS: dict[TaskType, ContextPolicy] = {
    "atomic": ContextPolicy("full", False, "notes_only", "disabled"),
    "sequential": ContextPolicy("full", True, "notes_only", "disabled"),
    "reduce": ContextPolicy("none", True, "notes_only", "enabled"),
    "script": ContextPolicy("full", False, "notes_only", "disabled"),
    "director_evaluator_loop": ContextPolicy("none", True, "notes_only", "enabled"),
}
SUBTASK_DEFAULT = ContextPolicy("subset", False, "notes_only", "enabled")


def policy_of(task: Task, *, is_subtask: bool = False) -> ContextPolicy:
    """The defaults of the task's operator, or of subtasks, with what the template says laid over them."""
    default = SUBTASK_DEFAULT if is_subtask else DEFAULTS[task.type]
    said = task.context
    if said.inherit_context is said.accumulate_data is said.accumulation_format is said.fresh_context is None:
        return default
    return ContextPolicy(
        said.inherit_context or default.inherit_context,
        default.accumulate_data if said.accumulate_data is None else said.accumulate_data,
        said.accumulation_format or default.accumulation_format,
        said.fresh_context or default.fresh_context,
    )


@dataclass(frozen=True, slots=True)
class AttachedItem(ContextItem):
    """An image or a PDF: its content only says what it is; the file itself goes with the message."""

    attachment: Attachment


@dataclass(frozen=True, slots=True)
class Assembled:
    items: tuple[ContextItem, ...]
    warnings: tuple[str, ...]


NOTHING = Assembled((), ())


async def assemble(
    task: Task,
    policy: ContextPolicy,
    inherited: Sequence[ContextItem],
    description: str,
    scope: Scope,
    services: Services,
    steps: StepLog,
    path: str,
    servers: Sequence[McpServer] = (),
    script_memory_bytes: int = MEMORY_BYTES,
) -> Assembled:
    """The items that `task`, which stands at `path`, sees. A file that cannot be read is a warning, never an error.

    What a command printed, what memory found and what a resource of one of the MCP `servers` says are recorded steps;
    files are read each time.
    """
    fresh = policy.fresh_context == "enabled" and services.memory is not None
    kept = inherited if policy.inherit_context != "none" else ()
    if not kept and not fresh and task.file_paths is None:
        return NOTHING
    recorder = Recorder(steps, path)
    subset = policy.inherit_context == "subset" and bool(kept)
    remembered: list[str] = []
    if services.memory is not None and (fresh or subset):
        remembered = await _remembered(services.memory, description, recorder, "memory")
    if subset:
        kept = relevant(kept, description, SUBSET_CHARACTERS, {f"file:{name}" for name in remembered})
    items = {item.source: item for item in kept}
    warnings: list[str] = []
    if task.file_paths is not None:
        for name in await _explicit_paths(task.file_paths, scope, services, warnings, recorder, script_memory_bytes):
            if task.file_paths.source == "literal" and name.startswith(SCHEME):
                await _read_resource(name, items, services, servers, warnings, recorder)
            else:
                await _read(name, items, services, warnings, attach=True)
    for name in remembered if fresh else ():
        await _read(name, items, services, warnings, attach=False)
    return Assembled(tuple(items.values()), tuple(warnings))


def relevant(
    items: Sequence[ContextItem], description: str, characters: int, known: Collection[str] = ()
) -> list[ContextItem]:
    """The items that share enough words with `description`, or whose source is `known` to be relevant; best
    first, as many as fit in `characters`."""
    terms = query_terms(description)
    most = sum(term.weight for term in terms)
    scored: list[tuple[float, int, ContextItem]] = []
    for order, item in enumerate(items):
        there = set(stems(f"{item.source} {item.content[:LOOKED_AT_CHARACTERS]}"))
        score = sum(term.weight for term in terms if term.stem in there)
        if item.source in known or (most and score / most >= RELEVANT):
            scored.append((-score, order, item))
    kept: list[ContextItem] = []
    for _, _, item in sorted(scored, key=lambda entry: entry[:2]):
        if len(item.content) <= characters:
            kept.append(item)
            characters -= len(item.content)
    return kept


@dataclass(frozen=True, slots=True)
class Recorder:
    """Looks up what is outside a task as steps of the record, so that a resumed run sees what the first one saw."""

    steps: StepLog
    path: str

    async def step(self, segment: str, name: str, args: Any, look: Callable[[], Awaitable[Any]]) -> Any:
        path, steps = join(self.path, segment), self.steps
        fingerprint = steps.fingerprint(args)
        recorded = steps.recorded(path, "context", fingerprint, args)
        if recorded is not None:
            return recorded.output
        number = await steps.begin(path, "context", name, args, fingerprint)
        started = time.perf_counter()
        try:
            output = await look()
        except BaseException as error:
            steps.abort(number, None, time.perf_counter() - started, f"{type(error).__name__}: {error}")
            raise
        await steps.succeed(number, output, time.perf_counter() - started)
        return output


async def _explicit_paths(
    file_paths: FilePaths,
    scope: Scope,
    services: Services,
    warnings: list[str],
    recorder: Recorder,
    script_memory_bytes: int,
) -> list[str]:
    items = [(await render(text, scope)).strip() for text in file_paths.items]
    if file_paths.source == "literal":
        return items
    if file_paths.source == "glob":
        found: list[str] = []
        for pattern in items:
            try:
                matched = await services.files.aglob(pattern)
            except ToolError as error:
                warnings.append(f"file_paths: {pattern}: {error}")
                continue
            if not matched:
                warnings.append(f"file_paths: no file matches {pattern}")
            found += matched
        return found
    if file_paths.source == "command":
        return await _paths_of_command(items, services, warnings, recorder, script_memory_bytes)
    if services.memory is None:
        warnings.append("file_paths: a description needs a memory; the evaluator was made without one")
        return []
    found_paths = await _remembered(services.memory, items[0], recorder, "file_paths")
    if not found_paths:
        warnings.append(f"file_paths: memory knows no path for {items[0]!r}")
    return found_paths


async def _remembered(memory: Memory, description: str, recorder: Recorder, segment: str) -> list[str]:
    """Raises: ContextError, whatever a memory raises; its own exception is the cause."""

    async def look() -> list[str]:
        try:
            return [found.path for found in await memory.get_relevant_context_for(description, MAX_FRESH)]
        except Exception as error:
            raise ContextError(f"memory failed: {type(error).__name__}: {error}") from error

    return await recorder.step(segment, "memory", {"description": description, "limit": MAX_FRESH}, look)


async def _paths_of_command(
    argv: list[str], services: Services, warnings: list[str], recorder: Recorder, memory_bytes: int
) -> list[str]:
    if services.dry_run:
        warnings.append(f"file_paths: {argv[0]} was not run")
        return []

    async def look() -> dict[str, Any]:
        try:
            result = await run_script(
                argv, stdin=None, timeout_s=COMMAND_TIMEOUT_S, cwd=services.root, memory_bytes=memory_bytes
            )
        except ToolError as error:
            return {"error": str(error)}
        return {"exit_code": result.exit_code, "stdout": result.stdout, "stderr": result.stderr[:200]}

    ended = await recorder.step("file_paths", argv[0][:60] or "command", {"argv": argv}, look)
    if "error" in ended:
        warnings.append(f"file_paths: {ended['error']}")
        return []
    if ended["exit_code"] != 0:
        warnings.append(f"file_paths: {argv[0]} ended with exit code {ended['exit_code']}: {ended['stderr']}")
        return []
    return [line for line in ended["stdout"].splitlines() if line.strip()]


async def _read_resource(
    path: str,
    items: dict[str, ContextItem],
    services: Services,
    servers: Sequence[McpServer],
    warnings: list[str],
    recorder: Recorder,
) -> None:
    """Raises: MissingExtra, and ConfigurationError for a variable that is not set."""
    if path in items:
        return
    try:
        server, uri = split_resource(path, servers)
    except ConfigurationError as error:
        warnings.append(f"file_paths: {error}")
        return
    if services.dry_run:
        warnings.append(f"file_paths: {path} was not read")
        return

    async def look() -> dict[str, str]:
        try:
            return {"text": await services.mcp.read_resource(server, uri)}
        except ToolError as error:
            return {"error": str(error)}

    found = await recorder.step(f"resource[{path}]", path[:60], {"server": server.name, "uri": uri}, look)
    if "error" in found:
        warnings.append(f"file_paths: {found['error']}")
    else:
        items[path] = ContextItem(path, found["text"])


async def _read(
    path: str, items: dict[str, ContextItem], services: Services, warnings: list[str], *, attach: bool
) -> None:
    source = f"file:{path}"
    if source in items:
        return
    try:
        data = await services.files.aread_bytes(path)
        media_type = media_type_of(data)
        if media_type is None:
            items[source] = ContextItem(source, decode(data, path)[0])
            return
    except ToolError as error:
        warnings.append(f"{path} was not read: {error}")
        return
    problem = size_problem(data, media_type) if attach else "only file_paths attaches images and PDFs"
    if problem is not None:
        warnings.append(f"{path} was not attached: {problem}")
        return
    shown = f"[{media_type}, {len(data):,} bytes]"
    items[source] = AttachedItem(source, shown, Attachment(media_type, data, path))


def attachments_of(items: Sequence[ContextItem]) -> tuple[Attachment, ...]:
    """What goes with the message that shows `items`, in their order."""
    return tuple(item.attachment for item in items if isinstance(item, AttachedItem))


def format_items(items: Sequence[ContextItem]) -> str:
    """The items as the model sees them, each with its source."""
    return "\n\n".join(f'<context source="{item.source}">\n{item.content}\n</context>' for item in items)
