"""Who judges: the models that scorers ask in a role, as they are known before any is asked.

Where nothing names a model for a role, the profile's own is asked, which may be the one that is judged: that is said at
the start. The models are told in the manifest and hashed nowhere: what judgements depend on is `plan.described`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evaluator.batch.identity import Cell
from evaluator.batch.scorers import Scorer, describe_scorer, members
from evaluator.batch.work import GRADER, Variant
from evaluator.nodes import Node, Task, TopLevel, children

if TYPE_CHECKING:
    from evaluator.interpreter.evaluator import Evaluator
    from evaluator.library import TemplateLibrary

_Models = dict[str, dict[str, list[str]]]


@dataclass(frozen=True, slots=True)
class Judges:
    """`models`: scorer → handler profile ("" where none is named) → role → the models that are asked in it, each once.
    Scorers that ask no model in a role are not in it. `notices`: a line for each role that nothing gives a model."""

    models: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]] = field(default_factory=dict[str, _Models])
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Asked:
    """`is_chosen`: a scorer, the batch, the profile or the template says which model this role is."""

    role: str
    model: str
    is_chosen: bool


def handlers_of(cells: Sequence[tuple[Cell, Variant]]) -> list[str]:
    """The handler profiles of the cells, sorted; "" where none is named."""
    return sorted({variant.handler or "" for _, variant in cells})


def judges_of(evaluator: Evaluator, scorers: Sequence[Scorer], cells: Sequence[tuple[Cell, Variant]]) -> Judges:
    """The judges of a batch of these cells.

    Raises: UsageError or TemplateError, for a template that a scorer calls and that cannot be used;
    ConfigurationError, for a profile or model that cannot be.
    """
    models: dict[str, _Models] = {}
    unmapped: dict[str, dict[str, dict[str, None]]] = {}
    for scorer in scorers:
        for handler in handlers_of(cells):
            for asked in _asked(evaluator, scorer, handler):
                named = models.setdefault(scorer.name, {}).setdefault(handler, {}).setdefault(asked.role, [])
                if asked.model not in named:
                    named.append(asked.model)
                if not asked.is_chosen:
                    who = f"{asked.model!r} (handler {handler})" if handler else repr(asked.model)
                    unmapped.setdefault(asked.role, {}).setdefault(who, {})[scorer.name] = None
    return Judges(models, tuple(_notice(role, found) for role, found in unmapped.items()))


def _notice(role: str, found: Mapping[str, Mapping[str, None]]) -> str:
    names = list(dict.fromkeys(name for scorers in found.values() for name in scorers))
    return (
        f"{'scorer' if len(names) == 1 else 'scorers'} {', '.join(names)}: no model is named for the role {role!r}, so "
        f"the judge is the model {', '.join(found)}; to choose another: --model-role {role}=MODEL, model_roles, or "
        f'<role name="{role}" model="MODEL"/> in the handler profile'
    )


def _asked(evaluator: Evaluator, scorer: Scorer, handler: str) -> Iterator[_Asked]:
    library, services = evaluator.library, evaluator.services
    config = services.profile(handler or None)
    for member in members(scorer):
        said = describe_scorer(member, library)
        own = said.get("model")
        mapped = {**config.roles, **evaluator.model_roles}
        if isinstance(own, str):
            mapped[GRADER] = mapped.get(own, own)
        for role, task in _tasks_of(library, said.get("templates") or ()):
            template = None if task.model is None else task.model.value.strip()
            if named := mapped.get(role):
                yield _Asked(role, named, True)
            elif template is not None and evaluator.model is None:
                yield _Asked(role, template, True)
            elif handler or evaluator.model is not None or task.handler is None or task.handler.ref is None:
                # A task with a profile of its own is asked there, and says so itself.
                label = services.chooser.choose(evaluator.model, None, config).label
                yield _Asked(role, label, template is not None)


def _tasks_of(library: TemplateLibrary, templates: Iterable[str]) -> Iterator[tuple[str, Task]]:
    for reached in dict.fromkeys(each for name in templates for each in (name, *library.called_by(name))):
        yield from _with_roles(library.get(reached).node)


def _with_roles(node: TopLevel | Node) -> Iterator[tuple[str, Task]]:
    if isinstance(node, Task) and node.model_role is not None:
        yield node.model_role, node
    for child in children(node):
        yield from _with_roles(child)
