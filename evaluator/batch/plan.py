"""A batch made ready: every part found, checked and hashed, and nothing run yet."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from evaluator.batch.definition import BatchLimits
from evaluator.batch.fields import check_fields
from evaluator.batch.gates import Gate
from evaluator.batch.identity import (
    SCHEMA,
    Cell,
    digest,
    handler_settings,
    roles_reached,
    template_part,
    told_settings,
)
from evaluator.batch.judges import Judges, handlers_of
from evaluator.batch.rows import RowSource
from evaluator.batch.scorers import Scorer, describe_scorer, members
from evaluator.batch.work import Variant
from evaluator.library.bounds import CallBound, bound
from evaluator.nodes import Function, Input

if TYPE_CHECKING:
    from evaluator.handler.session import ModelChoice
    from evaluator.interpreter.evaluator import Evaluator

_PACKAGES = ("evaluator", "litellm", "lxml", "jinja2", "aiohttp")


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What a session runs. `call_bound` is of one row in each cell, one epoch, judges left out; `described` what
    determines the judgements of each scorer; `judges` who judges, no part of that.

    Raises: UsageError, if no row has the metadata field `cluster` or `group_by` (see `check_fields`).
    """

    name: str
    cells: Sequence[tuple[Cell, Variant]]
    epochs: int
    rows: RowSource
    scorers: Sequence[Scorer]
    limits: BatchLimits
    gates: Sequence[Gate]
    count_as_failed: Collection[str]
    call_bound: CallBound
    described: Mapping[str, Any]
    cluster: str | None = None
    group_by: str | None = None
    reducers: tuple[str, ...] | None = None
    judges: Judges = field(default_factory=Judges)

    def __post_init__(self) -> None:
        check_fields(self.rows, {"cluster": self.cluster, "group_by": self.group_by})

    @property
    def notices(self) -> tuple[str, ...]:
        """What its author may not have meant, a line each."""
        return self.judges.notices

    @property
    def scorers_part(self) -> str:
        """The hash of what judges; empty where nothing does."""
        if not self.scorers:
            return ""
        return digest([self.described, sorted(self.count_as_failed)])

    @property
    def total(self) -> int | None:
        """Samples, where the number of rows is known before they are read."""
        return None if self.rows.total is None else self.rows.total * self.epochs * len(self.cells)


def variants_of(models: Sequence[str], handlers: Sequence[str]) -> list[Variant]:
    """Each model with each handler; without any, the one that the evaluator has, which is named by `cells_of`."""
    found: list[Variant] = []
    for model, handler in product(models or (None,), handlers or (None,)):
        found.append(Variant(" @ ".join(part for part in (model, handler) if part), model, handler))
    return found


def cells_of(evaluator: Evaluator, templates: Sequence[str], variants: Sequence[Variant]) -> list[tuple[Cell, Variant]]:
    """Each template with each variant.

    Raises: UsageError or TemplateError, for a template that is not there or cannot be used; ConfigurationError,
    for a model or profile that cannot be used: a missing key is found here, before anything runs.
    """
    found: list[tuple[Cell, Variant]] = []
    for template in templates:
        part = template_part(evaluator.library, template)
        for variant in variants:
            choice, settings = _settled(evaluator, template, variant)
            is_simulated = choice.backend.name == "simulated"
            name = variant.name or choice.label
            found.append((Cell(template, name, part, digest(settings), is_simulated), replace(variant, name=name)))
    return found


def _settled(evaluator: Evaluator, template: str, variant: Variant) -> tuple[ModelChoice, dict[str, Any]]:
    """The model of a cell, and what determines its answers besides the template."""
    services = evaluator.services
    config = services.profile(variant.handler)
    choice = services.chooser.choose(variant.model or evaluator.model, None, config)
    named = roles_reached(evaluator.library, [template])
    return choice, handler_settings(config, choice.label, evaluator.model_roles, named)


def described(evaluator: Evaluator, scorers: Sequence[Scorer], cells: Sequence[tuple[Cell, Variant]]) -> dict[str, Any]:
    """What determines the judgements of each scorer: of one that asks a model, also which.

    Raises: UsageError or TemplateError, for a template that it calls and that cannot be used.
    """
    services = evaluator.services
    found: dict[str, Any] = {}
    for scorer in scorers:
        said = describe_scorer(scorer, evaluator.library)
        templates = said.get("templates")
        if templates:
            # A scorer's model may be the name of a role.
            asked = {model for each in members(scorer) if isinstance(model := each.describe().get("model"), str)}
            named = roles_reached(evaluator.library, templates) | asked
            said["judges"] = {}
            for handler in handlers_of(cells):
                config = services.profile(handler or None)
                label = services.chooser.choose(evaluator.model, None, config).label
                said["judges"][handler] = digest(handler_settings(config, label, evaluator.model_roles, named))
        found[scorer.name] = said
    return found


def inputs_of(evaluator: Evaluator, templates: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names of the inputs that any of the templates declares, and of those that one of them cannot do without."""
    declared: dict[str, None] = {}
    required: dict[str, None] = {}
    for template in templates:
        node = evaluator.library.get(template).node
        for each in node.params if isinstance(node, Function) else node.inputs:
            declared[each.name] = None
            is_needed = not isinstance(each, Input) or (each.required and each.task is None and each.source is None)
            if is_needed and each.default is None:
                required[each.name] = None
    return list(declared), list(required)


def calls_of(evaluator: Evaluator, cells: Sequence[tuple[Cell, Variant]]) -> CallBound:
    """How many model calls one row can take, over all cells."""
    low, high = 0, 0
    lines: list[str] = []
    for cell, variant in cells:
        config = evaluator.services.profile(variant.handler)
        one = bound(
            evaluator.library.get(cell.template).node, evaluator.library,
            max_turns=config.max_turns, tools_granted=bool(config.tools),
        )  # fmt: skip
        low += one.min_calls
        high = None if high is None or one.max_calls is None else high + one.max_calls
        lines.append(f"{cell.template}, {cell.variant}: {one}")
    return CallBound(low, high, "\n".join(lines))


def manifest_of(plan: BatchPlan, evaluator: Evaluator, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that is needed to run the batch again, or to see why it would not be the same."""
    return {
        "schema": SCHEMA,
        "name": plan.name,
        "versions": _versions(),
        "rows": dict(plan.rows.description),
        "epochs": plan.epochs,
        "templates": {cell.template: cell.template_part for cell, _ in plan.cells},
        "cells": [
            {"template": cell.template, "variant": cell.variant, "model": variant.model, "handler": variant.handler,
             "handler_part": cell.handler_part, "simulated": cell.is_simulated}
            for cell, variant in plan.cells
        ],
        "settings": {
            cell.handler_part: told_settings(_settled(evaluator, cell.template, variant)[1])
            for cell, variant in plan.cells
        },
        "scorers": dict(plan.described),
        "judges": dict(plan.judges.models),
        "count_as_failed": sorted(plan.count_as_failed),
        "limits": plan.limits.to_dict(),
        "gates": [str(gate) for gate in plan.gates],
        "cluster": plan.cluster,
        "group_by": plan.group_by,
        "reducers": None if plan.reducers is None else list(plan.reducers),
        "call_bound": {"min": plan.call_bound.min_calls, "max": plan.call_bound.max_calls},
        "cwd": os.getcwd(),
        "arguments": dict(arguments),
    }  # fmt: skip


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
