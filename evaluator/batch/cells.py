"""The cells of a batch, templates × variants, the hashes of what determines their results, and the
judges: the models that scorers ask in a role, known before any of them is asked. Whether templates
ask for the log probabilities that scorers read is known then too.

If nothing names a model for a role, the profile's own model judges, which may be the one that is
judged: a notice says so at the start. The manifest stores the models of judges, but no hash
includes them (`scorer_parts` does that).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from evaluator.batch.identity import (
    Cell,
    digest,
    handler_settings,
    storable_settings,
    template_part,
)
from evaluator.batch.options import BatchOptions
from evaluator.batch.scorers import (
    Scorer,
    describe_scorer,
    member_scorers,
    score_names,
)
from evaluator.batch.scorers.model_graded import GradedScorer
from evaluator.batch.scorers.panels import ConfidenceScorer
from evaluator.batch.work import GRADER
from evaluator.batch.work_items import Variant
from evaluator.errors import UsageError
from evaluator.handler.config import HandlerConfig
from evaluator.handler.profiles import turns_by_profile
from evaluator.lazy_dataclass import frozen
from evaluator.library.bounds import CallBound, call_bound
from evaluator.nodes import Atomic, Function, Input, Task
from evaluator.nodes.walk import tasks

if TYPE_CHECKING:
    from evaluator.interpreter.evaluator import Evaluator
    from evaluator.library import TemplateLibrary


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
        roles = evaluator.library.needs(template).roles
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
        models = [each.describe().get("model") for each in member_scorers(scorer)]
        asked = {model for model in models if isinstance(model, str)}
        roles = asked.union(*(evaluator.library.needs(name).roles for name in templates))
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
    services = evaluator.services
    bounds: list[CallBound] = []
    for cell, variant in cells:
        use = turns_by_profile(services.profiles, services.default_profile, variant.handler)
        bounds.append(call_bound(services.library, cell.template, use))
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


_Models = dict[str, dict[str, list[str]]]


@frozen
class Judges:
    """`models`: scorer → handler profile ("" if none is named) → role → the models that are asked
    in it, each once. Scorers that ask no model in a role are left out. `notices`: one line for each
    role that nothing gives a model.
    `templates`: those that scorers call.
    """

    models: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]] = field(
        default_factory=dict[str, _Models]
    )
    notices: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()


class _Judge(NamedTuple):
    """`is_chosen`: a scorer, the batch, the profile or the template names the model of this
    role.
    """

    role: str
    model: str
    is_chosen: bool


def handlers_of(cells: Sequence[tuple[Cell, Variant]]) -> list[str]:
    """The handler profiles of the cells, sorted; "" if none is named."""
    return sorted({variant.handler or "" for _, variant in cells})


def find_judges(
    evaluator: Evaluator,
    scorers: Sequence[Scorer],
    parts: Mapping[str, Any],
    cells: Sequence[tuple[Cell, Variant]],
) -> Judges:
    """The judges of a batch of these cells; `parts` are the `scorer_parts`.

    Raises: UsageError or TemplateError, for a template of a scorer that cannot be used;
    ConfigurationError, for a profile or model that cannot be used.
    """
    models: dict[str, _Models] = {}
    unchosen: dict[str, list[tuple[str, str]]] = {}
    asking: list[Scorer] = []
    for scorer in scorers:
        templates = parts[score_names(scorer)[0]].get("templates")
        if templates:
            asking.append(scorer)
        for handler in handlers_of(cells):
            config = evaluator.services.profile(handler or None)
            for judge in _judges_of(evaluator, scorer, config, handler) if templates else ():
                found = (
                    models.setdefault(scorer.name, {})
                    .setdefault(handler, {})
                    .setdefault(judge.role, [])
                )
                if judge.model not in found:
                    found.append(judge.model)
                if not judge.is_chosen:
                    if handler:
                        model = f"{judge.model!r} (handler {handler})"
                    else:
                        model = repr(judge.model)
                    unchosen.setdefault(judge.role, []).append((scorer.name, model))
    if not asking:
        return Judges()
    members = [member for scorer in asking for member in member_scorers(scorer)]
    called = (
        describe_scorer(member, evaluator.library).get("templates") or () for member in members
    )
    return Judges(
        models,
        tuple(_notice(role, pairs) for role, pairs in unchosen.items()),
        templates=tuple(dict.fromkeys(name for names in called for name in names)),
    )


def check_logprobs(
    evaluator: Evaluator,
    scorers: Sequence[Scorer],
    cells: Sequence[tuple[Cell, Variant]],
    *,
    is_answered: bool,
) -> None:
    """Checks that what a scorer reads log probabilities of asks for them. `is_answered`: the
    answers exist, and only judges are asked.

    Raises: UsageError, with the place of a template that does not.
    """
    members: list[Scorer] = []
    for scorer in scorers:
        members += member_scorers(scorer)
    for scorer in members:
        templates: set[str] = set()
        if isinstance(scorer, ConfidenceScorer) and not is_answered:
            templates = {cell.template for cell, _ in cells}
        elif isinstance(scorer, GradedScorer) and scorer.by_probability:
            templates = {scorer.template}
        for name in sorted(templates):
            node = evaluator.library.get(name).node
            if isinstance(node, Atomic):
                own = node.handler
            else:
                own = None
            if not isinstance(node, Atomic) or (own is not None and own.logprobs is not None):
                continue
            ref = None if own is None else own.ref
            for handler in handlers_of(cells):
                if evaluator.services.profile(handler or ref).logprobs is None:
                    raise UsageError(
                        f"{node.span}: the scorer {scorer.name!r} reads log probabilities, and "
                        f"{name} asks for none; write logprobs in its <handler>, as in "
                        '<handler logprobs="5"/>, or in the profile'
                    )


def _notice(role: str, pairs: Iterable[tuple[str, str]]) -> str:
    names, models = (tuple(dict.fromkeys(column)) for column in zip(*pairs, strict=True))
    return (
        f"{'scorer' if len(names) == 1 else 'scorers'} {', '.join(names)}: no model is named for "
        f"the role {role!r}, so "
        f"the judge is the model {', '.join(models)}; to choose another: --model-role "
        f"{role}=MODEL, model_roles, or "
        f'<role name="{role}" model="MODEL"/> in the handler profile'
    )


def _judges_of(
    evaluator: Evaluator, scorer: Scorer, config: HandlerConfig, handler: str
) -> Iterator[_Judge]:
    """`config` is the profile `handler`."""
    library = evaluator.library
    for member in member_scorers(scorer):
        if getattr(member, "asks_tested_model", False):
            continue
        described = describe_scorer(member, library)
        own = described.get("model")
        mapped = {**config.roles, **evaluator.model_roles}
        if isinstance(own, str):
            mapped[GRADER] = mapped.get(own, own)
        for role, task in _tasks_with_roles(library, described.get("templates") or ()):
            if task.model is None:
                template = None
            else:
                template = task.model.value.strip()
            if named := mapped.get(role):
                yield _Judge(role, named, is_chosen=True)
            elif template is not None and evaluator.model is None:
                yield _Judge(role, template, is_chosen=True)
            elif (
                handler
                or evaluator.model is not None
                or task.handler is None
                or task.handler.ref is None
            ):
                # A task with a profile of its own names its model itself.
                label = evaluator.services.chooser.choose(evaluator.model, None, config).label
                yield _Judge(role, label, is_chosen=template is not None)


def _tasks_with_roles(
    library: TemplateLibrary, templates: Iterable[str]
) -> Iterator[tuple[str, Task]]:
    for reached in dict.fromkeys(
        each for name in templates for each in (name, *library.called_by(name))
    ):
        for task in tasks(library.get(reached).node):
            if task.model_role is not None:
                yield task.model_role, task
