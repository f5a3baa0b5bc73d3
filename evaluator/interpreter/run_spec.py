"""What a run evaluates (`RunSpec`) and, for a subtask, which task asked for it (`Parent`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evaluator.errors.results import Outcome
from evaluator.interpreter.authority import Authority
from evaluator.interpreter.frame import ContextItem, Frame, Run
from evaluator.language.scopes import Scope
from evaluator.limits.budget import Budget
from evaluator.nodes import Function, Node
from evaluator.processes.sandboxes import Sandbox
from evaluator.record.steps import fingerprint


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The task that a run evaluates, and what its task file records about it.

    `node` is evaluated with `arguments` (values of its declared inputs) in `scope`. A `body` runs
    in its place. `warnings` are about the request. `extra` holds further fields of the header that
    are needed to start the run again. `context` is given with the request, for the whole run.
    """

    request: str
    inputs: Mapping[str, Any]
    node: Node | Function | None = None
    template: str | None = None
    template_sha256: str | None = None
    template_version: str | None = None
    arguments: Mapping[str, Any] | None = None
    scope: Scope = field(default_factory=Scope)
    match_score: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    body: Callable[[Run, Frame], Awaitable[Outcome]] | None = None
    warnings: tuple[str, ...] = ()
    context: tuple[ContextItem, ...] = ()


@dataclass(frozen=True, slots=True)
class Parent:
    """The parent of a subtask: its run, the step at `path` that requested the subtask, and what it
    passes on.

    Equal subtasks have the same `identity`. `max_depth` counts levels from the root. `authority` is
    the subtask's.
    """

    run: Run
    path: str
    budget: Budget
    context: tuple[ContextItem, ...]
    identity: str
    max_depth: int
    sandbox: Sandbox
    authority: Authority


def identity_of(template: str | None, description: str, inputs: Mapping[str, Any]) -> str:
    """Identifies a task by what it does. A subtask that equals one of its ancestors would never
    end.
    """
    return fingerprint({"template": template, "description": description, "inputs": dict(inputs)})
