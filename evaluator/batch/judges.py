"""The judges of a batch: the models that scorers ask in a role, known before any of them is asked.
Whether templates ask for the log probabilities that scorers read is known then too.

If nothing names a model for a role, the profile's own model judges, which may be the one that is
judged: a notice says so at the start. The manifest stores the models, but no hash includes them
(`plan.scorer_parts` does that).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from evaluator.batch.identity import Cell
from evaluator.batch.scorers import Scorer, describe_scorer, member_scorers
from evaluator.batch.scorers.model_graded import GradedScorer
from evaluator.batch.scorers.panels import ConfidenceScorer
from evaluator.batch.work import GRADER
from evaluator.batch.work_items import Variant
from evaluator.errors import UsageError
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Atomic, Task
from evaluator.nodes.walk import tasks

if TYPE_CHECKING:
    from evaluator.interpreter.evaluator import Evaluator
    from evaluator.library import TemplateLibrary

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
    evaluator: Evaluator, scorers: Sequence[Scorer], cells: Sequence[tuple[Cell, Variant]]
) -> Judges:
    """The judges of a batch of these cells.

    Raises: UsageError or TemplateError, for a template of a scorer that cannot be used;
    ConfigurationError, for a profile or model that cannot be used.
    """
    models: dict[str, _Models] = {}
    unchosen: dict[str, list[tuple[str, str]]] = {}
    for scorer in scorers:
        for handler in handlers_of(cells):
            for judge in _judges_of(evaluator, scorer, handler=handler):
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
    members = [member for scorer in scorers for member in member_scorers(scorer)]
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
    for scorer in (member for each in scorers for member in member_scorers(each)):
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


def _judges_of(evaluator: Evaluator, scorer: Scorer, handler: str) -> Iterator[_Judge]:
    library = evaluator.library
    services = evaluator.services
    config = services.profile(handler or None)
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
                label = services.chooser.choose(evaluator.model, None, config).label
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
