"""What a task may cause: at most what the task that started it may cause.

The person who runs the program has every authority, and so has the template that this person names,
with the tasks inside it and those that it calls. The policies of profiles add up on the way down: a
call of a tool needs the consent of each profile above it.

Authority is narrowed where a model chooses what runs: a subtask, a requested evaluation, a
decomposition. What runs then has the tools, files, providers and limits of the task whose model
chose, and starts no process. A template that the task has as a tool is an exception: the author of
the task has granted what that template contains.

`interpret` checks every task against the authority in its frame, whatever started it.

What each transformation of an Authority does with its fields ("all": no limit):

| field | `under` | `chosen_by_model` | `of_template_tools` | `approved` | `with_files` |
|---|---|---|---|---|---|
| `tools` | same | those offered, of those allowed before | the author's | all | same |
| `processes` | same | no | the author's | yes | same |
| `files` | same | none | the author's | all | with more paths |
| `reader` | same | `read_file`, if offered | the author's | none needed | same |
| `grants` | with the profile's | with the policies of the offered tools | same | same | same |
| `providers`, `profile` | same | those of the task | the author's | all | same |
| `limits` | same | the smaller of the task's and those above | the author's | all | same |
| `author` | same | `of_template_tools()` | the author's | none | same |

Where there is no `author`, no model has chosen yet, and `of_template_tools` changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from evaluator.errors import NotAllowed
from evaluator.handler.config import HandlerConfig, ToolGrant
from evaluator.language.syntax import has_markup
from evaluator.lazy_dataclass import frozen
from evaluator.library import TemplateLibrary
from evaluator.library.calls import calls_of
from evaluator.nodes import FilePaths, Span, Task, TopLevel
from evaluator.nodes.walk import tasks
from evaluator.tools import FileAccess, Policy, Tool
from evaluator.tools.mcp.servers import SCHEME
from evaluator.tools.policy import decide

READ_FILE = "read_file"


@frozen
class Excess:
    """Something that a task needs and may not have. `what` continues "it may not"."""

    kind: Literal["process", "tool", "file"]
    what: str
    span: Span


@frozen
class Authority:
    """The authority of a task. A field with None sets no limit; without arguments nothing is
    limited.

    `tools` are the names of the tools that it may offer. `processes`: whether it may be a script or
    run a command. `files` are paths that `file_paths` may name; others need the consent of
    `reader`, the tool `read_file` of the task above, and without one are refused. `grants` are the
    policies of the tasks above, which hold for each call. `providers` and `profile` are those of
    the task whose model chose. `limits` bound settings of the profile. `author` is the authority of
    the templates that are tools.
    """

    tools: frozenset[str] | None = None
    processes: bool = True
    files: frozenset[str] | None = None
    reader: Tool | None = None
    grants: tuple[tuple[ToolGrant, ...], ...] = ()
    providers: frozenset[str] | None = None
    profile: str | None = None
    limits: Mapping[str, float] | None = None
    author: Authority | None = None

    @property
    def is_of_model(self) -> bool:
        """Whether a model chose what has this authority."""
        return self.author is not None

    def under(self, config: HandlerConfig) -> Authority:
        """The authority of a task with this profile, and of the tasks inside it."""
        if not config.tools or config.tools in self.grants:
            return self
        return replace(self, grants=(*self.grants, config.tools))

    def chosen_by_model(
        self, config: HandlerConfig, offered: Iterable[Tool], provider: str
    ) -> Authority:
        """The authority of what the model of a task chooses, which has this profile, these tools
        and this provider.
        """
        tools = {tool.name: tool for tool in offered}
        policies = tuple(
            ToolGrant(tool.name, tool.policy, rules=tool.rules) for tool in tools.values()
        )
        names = frozenset(tools)
        if self.tools is not None:
            names &= self.tools
        limits = {
            name: getattr(config, name) for name in _LIMITS if getattr(config, name) is not None
        }
        above = self.limits or {}
        return Authority(
            tools=names,
            processes=False,
            files=frozenset(),
            reader=tools.get(READ_FILE),
            grants=(*self.grants, policies),
            providers=frozenset({provider}),
            profile=config.name,
            limits={**above, **{n: min(v, above.get(n, v)) for n, v in limits.items()}},
            author=self.of_template_tools(),
        )

    def of_template_tools(self) -> Authority:
        """The authority of a template that the task has as a tool: what its author granted, under
        every policy.
        """
        if self.author is None:
            return self
        return replace(self.author, grants=self.grants)

    def approved(self) -> Authority:
        """The authority of what a person has seen and allowed: only the policies above remain."""
        return Authority(grants=self.grants)

    def with_files(self, paths: Iterable[str]) -> Authority:
        """The same, with these paths allowed in `file_paths`."""
        if self.files is None:
            return self
        return replace(self, files=self.files | frozenset(paths))

    def limited(self, config: HandlerConfig) -> HandlerConfig:
        """`config` within the limits of the tasks above."""
        limits = self.limits
        if limits is None:
            return config
        values: dict[str, Any] = {name: getattr(config, name) for name in limits}
        return config.override(
            **{n: limits[n] for n, value in values.items() if value is None or value > limits[n]}
        )

    def policies(self, tool: Tool) -> tuple[ToolGrant, ...]:
        """The policies of the tasks above for `tool`, which still has its own policy."""
        return tuple(
            granted(grant, tool)
            for grants in self.grants
            for grant in grants
            if grant.name == tool.name
        )

    def grants_all(self, file_paths: FilePaths) -> bool:
        """Whether `file_paths`, as its author wrote it, is allowed whatever it finds."""
        files = self.files
        return files is None or all(
            item.value in files and not has_markup(item.value) for item in file_paths.items
        )

    def reading(self, path: str, access: FileAccess) -> Policy:
        """Whether `file_paths` may name this path."""
        if self.files is None or path in self.files:
            return "allow"
        if self.reader is None or path.startswith(SCHEME):
            return "deny"
        return self.reader.policy_for({"path": path}, access)

    def denies_reading(self, path: str, access: FileAccess) -> bool:
        """Whether a rule or policy above denies `read_file` this path. It holds for what memory
        finds, too.
        """
        reading_grants = (
            grant for grants in self.grants for grant in grants if grant.name == READ_FILE
        )
        return any(
            decide(
                grant.rules, grant.policy or "allow", arguments={"path": path}, roots=access.roots
            )
            == "deny"
            for grant in reading_grants
        )

    def excess(self, task: Task) -> Iterator[Excess]:
        """What `task` itself needs and may not have, without the tasks inside it."""
        files = task.file_paths
        if task.runs_process and not self.processes:
            yield Excess("process", "run a script", span=task.span)
        if files is not None and files.source == "command" and not self.processes:
            yield Excess("process", "run a command", span=task.span)
        for tool in task.tools:
            if self.tools is not None and tool not in self.tools:
                yield Excess("tool", f"have the tool {tool!r}", span=task.span)
        if (
            files is None
            or files.source == "command"
            or self.files is None
            or self.reader is not None
        ):
            return  # what a reader allows is decided for each path
        for item in files.items:
            if item.value not in self.files and not (self.files and has_markup(item.value)):
                yield Excess("file", f"read the file {item.value[:60]!r}", span=item.span)

    def check(self, task: Task) -> None:
        """Raises: NotAllowed, if `task` needs what it may not have."""
        excesses = [excess.what for excess in self.excess(task)]
        if excesses:
            raise NotAllowed(
                f"{_name(task)} may not {' or '.join(excesses)}: the task that started it may not"
            )

    def check_provider(self, task: Task, provider: str, profile: str) -> None:
        """Raises: NotAllowed, if the task would send its prompt where the task above does not.

        The models of that task's own profile are allowed, unless the template names one.
        """
        is_of_profile = profile == self.profile and task.model is None
        if self.providers is None or provider in self.providers or is_of_profile:
            return
        raise NotAllowed(
            f"{_name(task)} may not call {provider}: the task that started it calls "
            f"{', '.join(sorted(self.providers))}"
        )


_LIMITS = ("max_output_tokens", "max_context_fraction", "script_memory_mb")
FULL = Authority()


def granted(grant: ToolGrant, tool: Tool) -> ToolGrant:
    """`grant` with the tool's own policy and rules where it states none. The tool's rules cannot
    relax a policy.
    """
    tool_rules = ()
    if grant.policy is None:
        tool_rules = tool.rules
    return ToolGrant(tool.name, grant.policy or tool.policy, rules=(*grant.rules, *tool_rules))


def excess_of(node: TopLevel, library: TemplateLibrary, authority: Authority) -> list[Excess]:
    """What `node` needs and may not have, with the tasks inside it and the templates that it
    reaches.
    """
    excesses = [excess for task in tasks(node) for excess in authority.excess(task)]
    for _, _, task in reached_tasks(node, library, granted_tools=authority.tools or ()):
        excesses += authority.excess(task)
    return list({excess.what: excess for excess in excesses}.values())


def reached_tasks(
    node: TopLevel, library: TemplateLibrary, granted_tools: Collection[str] = ()
) -> Iterator[tuple[str, Span, Task]]:
    """The tasks of the templates that `node` calls or offers as tools, and so on, each with the
    name of its template and the place in `node` that leads there. Templates in `granted_tools` are
    left out where they are tools.
    """
    waiting = _names_in(node, library, granted_tools=granted_tools)
    seen: set[str] = set()
    while waiting:
        name, span = waiting.pop()
        if name in seen or name not in library:
            continue
        seen.add(name)
        template = library.get(name).node
        for task in tasks(template):
            yield name, span, task
        waiting += [
            (other, span) for other, _ in _names_in(template, library, granted_tools=granted_tools)
        ]


def _names_in(
    node: TopLevel, library: TemplateLibrary, granted_tools: Collection[str]
) -> list[tuple[str, Span]]:
    named = [(name, span) for name, (_, span) in calls_of(node).items()]
    tools = ((tool, task.span) for task in tasks(node) for tool in task.tools)
    return named + [
        (tool, span) for tool, span in tools if tool in library and tool not in granted_tools
    ]


def _name(task: Task) -> str:
    if task.name is None:
        return "the task"
    return f"{task.name!r}"
