"""The environment of a node, in four objects with one lifetime each.

- `Services`: the program. The Evaluator makes them; some calls use a changed copy.
- `Run`: one task file, of a request or of a subtask. `requests.py` and `subtasks.py` make it; its
  `RunOptions` are those of the caller.
- `BoundTask` (in `binding.py`): one task. `interpret.py` makes it once the inputs are bound.
- `Frame`: one node. `runs.py` makes the first one, `Frame.at` those of the nodes inside.

What does not depend on a row is prepared once and kept: a `Domain` of the services has the
`PreparedTask` of each task in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator import randomness
from evaluator.errors.results import Outcome, TaskId, TaskResult
from evaluator.files.locations import user_folder
from evaluator.files.pinned_code import PinnedCode
from evaluator.handler.config import HandlerConfig
from evaluator.handler.conversation import OnMessage
from evaluator.handler.model_choice import ModelChooser
from evaluator.handler.profiles import profile_named
from evaluator.handler.tracing import UNTRACED, Tracer
from evaluator.interpreter.authority import FULL, Authority
from evaluator.language.scopes import NO_NAMES, Scope
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.library import TemplateLibrary
from evaluator.limits.budget import Budget
from evaluator.nodes import Function, Node, Task, TopLevel
from evaluator.output.schema import schema_imports
from evaluator.processes.sandboxes import NO_SANDBOX, Sandbox
from evaluator.processes.scripts import SandboxTrials
from evaluator.record.redact import Redactor
from evaluator.record.step_log import StepLog
from evaluator.record.steps import fingerprint
from evaluator.record.store import TaskStore
from evaluator.tools import Asker, FileAccess, ToolRegistry
from evaluator.tools.mcp.connections import McpConnections

if TYPE_CHECKING:
    from evaluator.interpreter.background import BackgroundService
    from evaluator.limits.call_limiter import CallLimiter
    from evaluator.memory import Memory
    from evaluator.models.cache import ResponseCache
    from evaluator.output.schema import Imports


def identity_of(template: str | None, description: str, inputs: Mapping[str, Any]) -> str:
    """Identifies a task by what it does. A subtask that equals one of its ancestors would never
    end.
    """
    return fingerprint({"template": template, "description": description, "inputs": dict(inputs)})


DEFAULT_MAX_DEPTH = 5
EventCallback = Callable[[str, str], None]
OnBegin = Callable[[TaskId], None]
Shots = Sequence[tuple[Mapping[str, Any], str]]
"""Few-shot examples: the inputs of each, and its answer."""


@frozen
class RunOptions:
    """The options of one run: those of `Evaluator.evaluate`, which documents them."""

    model: str | None = None
    handler: str | None = None
    model_roles: Mapping[str, str] | None = None
    target: str | None = None
    epoch: int = 1
    ask_model: bool = True
    labels: Mapping[str, str] | None = None
    shots: Shots = ()
    on_text: Callable[[str], None] | None = None
    on_event: EventCallback | None = None
    on_message: OnMessage | None = None
    on_begin: OnBegin | None = None

    def inner(self, target: str | None = None) -> RunOptions:
        """The options of a task inside this run: its text is not streamed, its beginning not
        reported, it has no few-shot examples, and `target` is its own.
        """
        return replace(self, on_text=None, on_begin=None, target=target, shots=())


NO_OPTIONS = RunOptions()
RECORDED_OPTIONS = ("handler", "target", "epoch", "model_roles")
"""The options that a task file has in its header, and that a resumed run takes from it.

`model` is a field of the header, `shots` may hold secrets, and `labels` are not needed again.
"""


@frozen
class Services:
    """The parts of an Evaluator that its runs use: library, models, profiles, tools, files, memory,
    task files.
    """

    library: TemplateLibrary
    chooser: ModelChooser
    profiles: Mapping[str, HandlerConfig]
    default_profile: HandlerConfig
    tools: ToolRegistry
    files: FileAccess
    root: Path
    """The first root, as an absolute path: where scripts run."""
    asker: Asker | None
    memory: Memory | None
    store: TaskStore | None
    mcp: McpConnections
    evaluate: Callable[[Run, Node, Frame], Awaitable[Outcome]]
    code: PinnedCode
    """The code of the project that templates name, as it was when the Evaluator was made."""
    redactor: Redactor
    """Removes secrets from what is recorded."""
    notice: Callable[[str], None]
    cache: ResponseCache | None = None
    limiter: CallLimiter | None = None
    max_depth: int = DEFAULT_MAX_DEPTH
    """How many levels of subtasks a run may have."""
    reparse: bool = False
    """Whether a task that ran out of turns, context or output may be decomposed."""
    rerank: bool = False
    """Whether a model chooses a template where the words of a request do not decide."""
    dry_run: bool = False
    """Whether the run is a preview: scripts and commands are named but not run."""
    tracer: Tracer = UNTRACED
    trust: bool = False
    """Whether the user trusts what files of the project, and task files, name."""
    resume: Callable[[Services, int, Budget], Awaitable[Outcome]] | None = None
    """Continues an interrupted run within the limits of a task."""
    sandbox: Sandbox | None = None
    """The sandbox of every script; None: profiles and templates decide."""
    least_sandbox: Sandbox = NO_SANDBOX
    """No task is in a weaker one, unless `sandbox` says so."""
    authority: Authority = FULL
    """The authority of a run without a parent: everything, unless a model resumes it."""
    background: BackgroundService | None = None
    """The background tasks that models may start."""
    sandbox_trials: SandboxTrials = field(default_factory=SandboxTrials)
    domains: dict[tuple[str | None, bool], Domain] = field(
        init=False, default_factory=dict[tuple[str | None, bool], "Domain"]
    )
    """See `domain`. A changed copy of these services begins with none."""

    def __post_init__(self) -> None:
        # The tools of a task cannot access task files, the index and the user's permissions, even
        # inside a root.
        if self.store is None:
            denied = [user_folder()]
        else:
            denied = [user_folder(), self.store.root]
        index = getattr(self.memory, "path", None)
        if index is not None:
            ends = ("", "-wal", "-shm", "-journal", ".consolidated")
            denied += [Path(f"{index}{end}") for end in ends]
        object.__setattr__(self, "files", self.files.without(denied))

    def profile(self, name: str | None) -> HandlerConfig:
        """The profile called `name`, or the default one.

        Raises: ConfigurationError, if there is none of that name or it cannot be used.
        """
        if name is None or name == self.default_profile.name:
            return self.default_profile
        return profile_named(self.profiles, name)

    def imports(self, authority: Authority) -> Imports:
        """Which modules of schemas a task with this authority imports.

        A preview runs nothing of the project, so it imports nothing either. With `trust`, the
        caller vouches for the code that templates name. That does not cover what a model chooses,
        which may also have written that code.
        """
        if self.dry_run:
            return "none"
        if self.trust and not authority.is_of_model:
            return "all"
        return "allowed"

    def schema_imports(self, authority: Authority) -> schema_imports:
        """Inside, schemas are imported as `imports` says, and no code that has changed since an
        Evaluator with these services was made.
        """
        return schema_imports(self.imports(authority), (self.code,))

    def new_domain(self, handler: str | None) -> Domain:
        """The domain of a run without a parent that has the profile `handler`, or those that its
        tasks name.
        """
        return Domain(self, handler, authority=self.authority)

    def domain(self, handler: str | None) -> Domain:
        """The same, shared by all runs of templates of the library: a template is prepared once."""
        key = (handler, self.sandbox_trials.is_waived)
        domain = self.domains.get(key)
        if domain is None:
            domain = self.domains[key] = self.new_domain(handler)
        return domain


@dataclass(slots=True, eq=False)
class Domain:
    """What holds for a task and for the tasks inside it, whatever their inputs are.

    `handler` is the profile of every task; None: each names its own. `authority` says what tasks
    here may cause, `sandbox` is that of the task around them, and `is_reparsed` says that they are
    part of a decomposition. `prepared` has the tasks that were prepared here, see
    `prepared.prepare`.
    """

    services: Services
    handler: str | None
    authority: Authority
    sandbox: Sandbox = NO_SANDBOX
    is_reparsed: bool = False
    prepared: dict[tuple[int, bool, bool], Any] = field(
        default_factory=dict[tuple[int, bool, bool], Any]
    )
    tried: dict[int, tuple[TopLevel | Node, object]] = field(
        default_factory=dict[int, "tuple[TopLevel | Node, object]"]
    )
    """The nodes, by their ids, that a run has passed `check_start` with, unless it was resumed, and
    the content of the library then.
    """

    def has_tried(self, node: TopLevel | Node) -> bool:
        """Whether `check_start` has passed `node`, and no template has changed since."""
        tried = self.tried.get(id(node))
        return tried is not None and tried[1] is self.services.library.content

    def profile_of(self, task: Task) -> HandlerConfig:
        """The profile of a task here: that of every task, else the one that it names, else that of
        the task whose model chose it, else the default one.

        Raises: ConfigurationError, if it cannot be used.
        """
        return self.services.profile(self.handler or task.profile or self.authority.profile)

    def inside(
        self, authority: Authority, sandbox: Sandbox, *, is_reparsed: bool | None = None
    ) -> Domain:
        """This domain, if it has this authority and this sandbox, else a new one."""
        if is_reparsed is None:
            is_reparsed = self.is_reparsed
        if (
            authority is self.authority
            and sandbox == self.sandbox
            and is_reparsed == self.is_reparsed
        ):
            return self
        return Domain(self.services, self.handler, authority, sandbox, is_reparsed)


@frozen
class ContextItem:
    """A piece of context that a task may see besides its prompt. `source` identifies it: it is
    never sent twice.
    """

    source: str
    content: str


@dataclass(slots=True)
class Run:
    """One evaluation with a task file of its own: what is evaluated, how, and the state that its
    nodes share.

    `node` is evaluated with `arguments` (values of its declared inputs) in `scope`. A `body` runs
    in its place. `warnings` are about the request, and `context` is given with it. `extra` holds
    further fields of the header that are needed to start the run again. `depth_limit` counts levels
    of subtasks from the root; None: as many as the run above has.

    A subtask is a separate run: `parent` is the run whose model asked for it, and `caller` the
    frame of the tool call there, with what the subtask gets from it. `domain` is that of runs of
    the same node that is not a template of the library. `budget` and `steps` are those of
    `record_run`.
    """

    services: Services
    request: str
    inputs: Mapping[str, Any]
    options: RunOptions = NO_OPTIONS
    node: Node | Function | None = None
    template: str | None = None
    template_sha256: str | None = None
    template_version: str | None = None
    arguments: Mapping[str, Any] | None = None
    scope: Scope = NO_NAMES
    match_score: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    body: Callable[[Run, Frame], Awaitable[Outcome]] | None = None
    warnings: tuple[str, ...] = ()
    context: tuple[ContextItem, ...] = ()
    depth_limit: int | None = None
    parent: Run | None = None
    caller: Frame | None = None
    domain: Domain | None = None
    unmapped: set[str] = field(default_factory=set[str])
    """Roles without a model that a warning has already named."""

    key: str = ""
    """Identifies a run that is not recorded, once a session has asked."""

    budget: Budget = field(init=False)
    steps: StepLog = field(init=False)

    def inner(self, target: str | None = None) -> Run:
        """This run for a task that it starts itself, whose text is not streamed. `target` is the
        answer of a simulated model.
        """
        run = replace(self, options=self.options.inner(target))
        run.budget = self.budget
        run.steps = self.steps
        return run

    @property
    def depth(self) -> int:
        """How many levels of subtasks the run is below the root."""
        if self.parent is None:
            return 0
        return self.parent.depth + 1

    @property
    def max_depth(self) -> int:
        """How many levels of subtasks there may be, from the root."""
        if self.depth_limit is not None:
            return self.depth_limit
        if self.parent is None:
            return self.services.max_depth
        return self.parent.max_depth

    def identities(self) -> tuple[str, ...]:
        """The identities of this run and those above it.

        A root may have been requested in words or by the name of its template: it has both.
        """
        identity = identity_of(self.template, self.request, inputs=self.inputs)
        if self.parent is not None:
            return (*self.parent.identities(), identity)
        if not isinstance(self.node, Task):
            return (identity,)
        described = self.node.description.value
        return (identity, identity_of(self.template, described, inputs=self.inputs))

    def session(self, path: str) -> str:
        """Identifies the session with a model at `path`: the same after a resume, if the run is
        recorded.
        """
        store = self.services.store
        journal = self.steps.journal
        if store is not None and journal is not None:
            return f"{store.root}/TASK-{journal.id}:{path}"
        self.key = self.key or randomness.token_hex(8)
        return f"{self.key}:{path}"

    def event(self, path: str, what: str) -> None:
        if self.options.on_event is not None:
            self.options.on_event(path, what)


@frozen
class Frame:
    """The position of a node: its scope, its domain, the context from its parent, its stable path,
    and its parent's budget.

    `arguments` are values that a caller gives to the node's declared inputs; None means that the
    node is inside another and takes its inputs from the scope. `is_subtask` selects the context
    defaults, `calls` are the templates being called, `wants_notes` says that a later step sees only
    the notes of the node's result.
    """

    scope: Scope
    domain: Domain
    path: str = ""
    context: tuple[ContextItem, ...] = ()
    arguments: Mapping[str, Any] | None = None
    is_subtask: bool = False
    budget: Budget | None = None
    calls: tuple[str, ...] = ()
    wants_notes: bool = False

    def at(
        self,
        segment: str,
        *,
        scope: Scope | None = None,
        domain: Domain | None = None,
        context: tuple[ContextItem, ...] | None = None,
        arguments: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
        calls: tuple[str, ...] | None = None,
        wants_notes: bool = False,
    ) -> Frame:
        """A frame one segment further down, with the given parts replaced; no arguments and no
        notes unless given.
        """
        return Frame(
            self.scope if scope is None else scope,
            self.domain if domain is None else domain,
            path=f"{self.path}/{segment}" if self.path else segment,
            context=self.context if context is None else context,
            arguments=arguments,
            is_subtask=False,
            budget=self.budget if budget is None else budget,
            calls=self.calls if calls is None else calls,
            wants_notes=wants_notes,
        )


def join(path: str, segment: str) -> str:
    """The path of `segment` below `path`."""
    if path:
        return f"{path}/{segment}"
    return segment


def value_of(outcome: TaskResult) -> Any:
    """The value of a result in later texts: the parsed value if there is one, else the text."""
    if outcome.parsed_content is None:
        return outcome.content
    return outcome.parsed_data


def step_value(outcome: TaskResult) -> dict[str, Any]:
    """The value that a step's result is bound to: `content`, `parsed`, `notes`."""
    return {"content": outcome.content, "parsed": outcome.parsed_data, "notes": dict(outcome.notes)}
