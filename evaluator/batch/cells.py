"""The cells of a batch, templates × variants, and the hashes of what determines their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from evaluator.batch.identity import (
    Cell,
    digest,
    handler_settings,
    roles_reached,
    storable_settings,
    template_part,
)
from evaluator.batch.judges import handlers_of
from evaluator.batch.options import BatchOptions
from evaluator.batch.scorers import (
    Scorer,
    describe_scorer,
    member_scorers,
    score_names,
)
from evaluator.batch.work_items import Variant
from evaluator.handler.profiles import turns_by_profile
from evaluator.library.bounds import CallBound, CallCounter
from evaluator.nodes import Function, Input

if TYPE_CHECKING:
    from evaluator.interpreter.evaluator import Evaluator


ANSWERS = "answers"
"""The variant of a batch that scores existing answers, if it names no model."""


def make_variants(models: Sequence[str], handlers: Sequence[str]) -> list[Variant]:
    """Each model with each handler; without any, the evaluator's own, which `make_cells` names."""
    found: list[Variant] = []
    for model, handler in product(models or (None,), handlers or (None,)):
        found.append(
            Variant(" @ ".join(part for part in (model, handler) if part), model, handler=handler)
        )
    return found


def make_cells(
    evaluator: Evaluator, templates: Sequence[str], variants: Sequence[Variant]
) -> tuple[list[tuple[Cell, Variant]], dict[str, Any]]:
    """Each template with each variant, and the `storable_settings` of their handlers by hash.

    Raises: UsageError or TemplateError, for a template that is missing or has errors;
    ConfigurationError, for a model or profile that cannot be used, such as one without its key.
    """
    found: list[tuple[Cell, Variant]] = []
    stored: list[dict[str, Any]] = []
    services = evaluator.services
    for template in templates:
        part = template_part(evaluator.library, template)
        roles = roles_reached(evaluator.library, [template])
        for variant in variants:
            config = services.profile(variant.handler)
            choice = services.chooser.choose(variant.model or evaluator.model, None, config)
            settings = handler_settings(
                config, choice.label, roles=evaluator.model_roles, named=roles
            )
            stored.append(storable_settings(settings))
            name = variant.name or choice.label
            cell = Cell(
                template,
                name,
                template_part=part,
                handler_part=digest(settings),
                is_simulated=choice.is_simulated,
            )
            found.append((cell, replace(variant, name=name)))
    cells = _told_apart(found)
    return cells, {
        cell.handler_part: settings for (cell, _), settings in zip(cells, stored, strict=True)
    }


def _told_apart(cells: Sequence[tuple[Cell, Variant]]) -> list[tuple[Cell, Variant]]:
    """Of cells with equal settings, such as two profiles that are copies, the later ones get a part
    of their own. Otherwise their samples have one identity, and continue from each other's records.
    """
    seen: set[tuple[str, str]] = set()
    found: list[tuple[Cell, Variant]] = []
    for cell, variant in cells:
        if (cell.template, cell.handler_part) in seen:
            cell = replace(cell, handler_part=digest([cell.handler_part, cell.variant]))
        seen.add((cell.template, cell.handler_part))
        found.append((cell, variant))
    return found


def answered_cells(
    evaluator: Evaluator, templates: Sequence[str], variants: Sequence[Variant]
) -> list[tuple[Cell, Variant]]:
    """As `make_cells`, for rows with existing answers: no model is chosen, and `models` only name
    the variants.

    Raises: UsageError or TemplateError, for a template that is missing or has errors.
    """
    named = [replace(variant, name=variant.name or ANSWERS) for variant in variants]
    cells = [
        (
            Cell(
                template,
                variant.name,
                template_part=template_part(evaluator.library, template),
                handler_part="",
                is_simulated=False,
            ),
            variant,
        )
        for template in templates
        for variant in named
    ]
    return _told_apart(cells)


def scoring_part(parts: Mapping[str, Any], options: BatchOptions) -> str:
    """The hash of everything that judges, for scorers with these `scorer_parts`; empty without
    any.
    """
    if parts:
        return digest([parts, sorted(options.count_as_failed), options.limited])
    return ""


def scorer_parts(
    evaluator: Evaluator, scorers: Sequence[Scorer], cells: Sequence[tuple[Cell, Variant]]
) -> dict[str, Any]:
    """The hash of everything that determines the judgements of each scorer, including the model
    that it asks.
    """
    services = evaluator.services
    found: dict[str, Any] = {}
    for scorer in scorers:
        part = describe_scorer(scorer, evaluator.library)
        found.update(dict.fromkeys(score_names(scorer), part))
        templates = part.get("templates")
        if not templates:
            continue
        # A scorer's model may be the name of a role.
        asked = {
            model
            for each in member_scorers(scorer)
            if isinstance(model := each.describe().get("model"), str)
        }
        roles = roles_reached(evaluator.library, templates) | asked
        part["judges"] = {}
        for handler in handlers_of(cells):
            config = services.profile(handler or None)
            label = services.chooser.choose(evaluator.model, None, config).label
            part["judges"][handler] = digest(
                handler_settings(config, label, roles=evaluator.model_roles, named=roles)
            )
    return found


def inputs_of(evaluator: Evaluator, templates: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names of the inputs that any of the templates declares, and of those that any of them
    requires.
    """
    declared: dict[str, None] = {}
    required: dict[str, None] = {}
    for template in templates:
        node = evaluator.library.get(template).node
        for each in node.params if isinstance(node, Function) else node.inputs:
            declared[each.name] = None
            is_needed = not isinstance(each, Input) or (
                each.required and each.task is None and each.source is None
            )
            if is_needed and each.default is None:
                required[each.name] = None
    return list(declared), list(required)


def bound_of_cells(evaluator: Evaluator, cells: Sequence[tuple[Cell, Variant]]) -> CallBound:
    """The number of model calls that one row can take, over all cells."""
    bounds: list[CallBound] = []
    for cell, variant in cells:
        services = evaluator.services
        use = turns_by_profile(services.profiles, services.default_profile, variant.handler)
        node = evaluator.library.get(cell.template).node
        bounds.append(CallCounter(evaluator.library, use=use).bound(node))
    most = [each.max_calls for each in bounds if each.max_calls is not None]
    lines = [
        f"{cell.template}, {cell.variant}: {each}"
        for (cell, _), each in zip(cells, bounds, strict=True)
    ]
    if len(most) == len(bounds):
        high = sum(most)
    else:
        high = None
    return CallBound(sum(each.min_calls for each in bounds), high, lines=lines)
