"""What an Evaluator hands to everything it runs: library, models, profiles, tools, files, memory, records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.handler.choice import ModelChooser
from evaluator.handler.config import HandlerConfig, profile_named
from evaluator.handler.mcp.connections import McpConnections
from evaluator.handler.tools import Asker, FileAccess, ToolRegistry
from evaluator.handler.tracing import UNTRACED, Tracer
from evaluator.library import TemplateLibrary
from evaluator.memory import Memory
from evaluator.nodes import Node
from evaluator.record.store import TaskStore

if TYPE_CHECKING:
    from evaluator.interpreter.frame import Frame, Outcome, Run


@dataclass(frozen=True, slots=True)
class Services:
    library: TemplateLibrary
    chooser: ModelChooser
    profiles: Mapping[str, HandlerConfig]
    default_profile: HandlerConfig
    tools: ToolRegistry
    files: FileAccess
    root: Path
    asker: Asker | None
    memory: Memory | None
    store: TaskStore | None
    mcp: McpConnections
    evaluate: Callable[[Run, Node, Frame], Awaitable[Outcome]]
    reparse: bool = False
    """Whether a task that ran out of turns, context or output may be decomposed."""
    dry_run: bool = False
    """Nothing outside happens: scripts and commands are named, not run."""
    tracer: Tracer = UNTRACED

    def __post_init__(self) -> None:
        # Whatever roots hold them, task files and index are not for the tools of a task.
        kept = [] if self.store is None else [self.store.root]
        index = getattr(self.memory, "path", None)
        kept += [] if index is None else [Path(f"{index}{end}") for end in ("", "-wal", "-shm", "-journal")]
        object.__setattr__(self, "files", self.files.without(kept))

    def profile(self, name: str | None) -> HandlerConfig:
        """The profile called `name`, or the default one.

        Raises: ConfigurationError, if there is none of that name or it cannot be used.
        """
        if name is None or name == self.default_profile.name:
            return self.default_profile
        return profile_named(self.profiles, name)
