"""What a proposed template may be: it passes `lint`, asks for the same inputs and output, reaches
nothing more, and makes no more calls than the template that it is made from.

The text of a proposal is data. It may use the variables and expressions that the template already
has, and no others: a call, a filter or a loop of its own would be code of the model that wrote it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

from evaluator.errors import EvaluatorError, TemplateError, UsageError
from evaluator.improve.edits import Edit, apply_edits
from evaluator.improve.steps import MAX_ADDED, added_steps, is_plain
from evaluator.interpreter.cost_bounds import CostBounds
from evaluator.interpreter.evaluator import Evaluator
from evaluator.interpreter.linting import Linter
from evaluator.library import TemplateLibrary
from evaluator.library.bounds import CallCounter
from evaluator.nodes import Function, Task, TopLevel
from evaluator.nodes.walk import descendants, replace_children, tasks, texts
from evaluator.xml.write import to_xml

GROWTH = 4
"""A candidate's text may be this many times as long as the template's, and its bound on the price
this many times as high.
"""
LEAST_TEXT = 8_000
"""Characters that a candidate may have in any case."""
_MARKUP = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)


class CandidateChecker:
    """Checks candidates for one template of an evaluator's library, with one model.

    Raises: UsageError, for a template that cannot be improved.
    """

    def __init__(
        self, evaluator: Evaluator, name: str, *, model: str | None, handler: str | None
    ) -> None:
        library = evaluator.library
        template = library.get(name)
        text = library.source_text(template.file)
        if not any(task.asks_model for task in tasks(template.node)):
            raise UsageError(f"{name} asks no model, so it has no prompt to edit")
        if template.file is None or text is None:
            raise UsageError(f"{name} is in no file; save it in a folder of templates")
        self.name = name
        self.node = template.node
        self.file = os.path.realpath(template.file)
        self.text = text
        self.notice = evaluator.services.notice
        self._evaluator = evaluator
        self._model = model
        self._handler = handler
        self._linter = Linter(evaluator.services.profiles)

    @cached_property
    def _known_findings(self) -> frozenset[tuple[str, str]]:
        return self._lint(self._evaluator.library)

    @cached_property
    def _markup(self) -> frozenset[str]:
        """The expressions that candidates may use."""
        inputs = {f"{{{{{name}}}}}" for task in tasks(self.node) for name in input_names(task)}
        own = {f"{{{{{name}}}}}" for name in input_names(self.node)}
        return frozenset(inputs | own | set(_markup_in(self.node)))

    def edited(self, edits: Sequence[Edit]) -> str:
        """The text with edits made to the template. Raises: EditError."""
        return apply_edits(self.text, self.name, edits)

    def evaluator_of(self, text: str) -> Evaluator:
        """An evaluator whose template has this text."""
        if text == self.text:
            return self._evaluator
        return self._evaluator.with_library(self._evaluator.library.with_edit(self.file, text))

    def findings(self, text: str) -> list[str]:
        """Why the text is not a candidate; empty if it is one."""
        if text == self.text:
            return ["the edits change nothing"]
        most = max(GROWTH * len(self.text), LEAST_TEXT)
        if len(text) > most:
            return [f"the template has {len(text):,} characters, at most {most:,} are allowed"]
        try:
            evaluator = self.evaluator_of(text)
            node = evaluator.library.get(self.name).node
        except TemplateError as error:
            return [f"{each.code}: {each.message}" for each in error.diagnostics]
        found = [
            f"{code}: {message}"
            for code, message in sorted(self._lint(evaluator.library) - self._known_findings)
        ]
        found += [
            f"the expression {piece} is not one of the template's; use {self._shown_inputs()}"
            for piece in dict.fromkeys(_markup_in(node))
            if piece not in self._markup and piece not in _step_results(node)
        ]
        return [*found, *self._larger(evaluator, node)]

    def _larger(self, evaluator: Evaluator, node: TopLevel) -> Iterator[str]:
        """What the candidate has more of than the template."""
        same, added = added_steps(node, self.node)
        if to_xml(_masked(same)) != to_xml(_masked(self.node)) or not all(map(is_plain, added)):
            yield "more changed than descriptions, prompts, examples and steps"
            return
        if len(added) > MAX_ADDED:
            yield f"{len(added)} steps are added, at most {MAX_ADDED} are allowed"
        before = CallCounter(self._evaluator.library).bound(self.node)
        after = CallCounter(evaluator.library).bound(node)
        if before.max_calls is None:
            most = None
        else:
            most = before.max_calls + len(added)
        if most is not None and (after.max_calls is None or after.max_calls > most):
            yield f"at most {most} calls are allowed, this could make {after.max_calls}"
        old = self.price_bound(self._evaluator)
        new = self.price_bound(evaluator)
        if old and new and new > GROWTH * old:
            yield f"a run could cost ${new:.4f}, more than {GROWTH} times the ${old:.4f} of before"

    def price_bound(self, evaluator: Evaluator) -> float | None:
        """The most that a run of the template costs in US dollars; None if there is no bound."""
        node = evaluator.library.get(self.name).node
        try:
            bounds = CostBounds(
                evaluator.without_network(), model=self._model, handler=self._handler
            )
            return bounds.most(node, {})[None].cost_usd
        except EvaluatorError:
            return None

    def _lint(self, library: TemplateLibrary) -> frozenset[tuple[str, str]]:
        found = self._linter.lint(library)
        return frozenset(
            (diagnostic.code, diagnostic.message)
            for file, diagnostics in found.items()
            if file is not None and os.path.realpath(file) == self.file
            for diagnostic in diagnostics
        )

    def _shown_inputs(self) -> str:
        names = input_names(self.node)
        return ", ".join(f"{{{{ {name} }}}}" for name in names) or "no variable"


def input_names(node: TopLevel) -> list[str]:
    """The names of a template's inputs, or of a function's parameters."""
    if isinstance(node, Function):
        return [one.name for one in node.params]
    return [one.name for one in node.inputs]


def _markup_in(node: TopLevel) -> Iterator[str]:
    for each in descendants(node):
        for text in texts(each):
            value = getattr(text, "value", None)
            if isinstance(value, str):
                yield from ("".join(piece.split()) for piece in _MARKUP.findall(value))


def _step_results(node: TopLevel) -> set[str]:
    """The expressions that read what a step has answered."""
    names = {getattr(each, "name", None) for each in descendants(node)}
    return {f"{{{{steps.{name}.content}}}}" for name in names if name}


def _masked(node: Any) -> Any:
    """A node without what edits may change, in it and in the tasks inside it."""
    node = replace_children(node, _masked)
    if isinstance(node, Function):
        return replace(node, description="")
    if not isinstance(node, Task):
        return node
    output = node.output
    if output is not None and output.schema is not None:
        output = replace(output, schema=_without_descriptions(output.schema))
    return replace(
        node,
        description=replace(node.description, value="", marks=()),
        instructions=None,
        system=None,
        criteria=None,
        examples=(),
        shots=False,
        output=output,
    )


def _without_descriptions(schema: str) -> str:
    try:
        return json.dumps(_stripped(json.loads(schema)), sort_keys=True)
    except ValueError:
        return schema


def _stripped(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_stripped(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _stripped(value)
        for name, value in cast("dict[str, Any]", schema).items()
        if name != "description" or not isinstance(value, str)
    }
