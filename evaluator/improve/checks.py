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
from evaluator.interpreter.cost_bounds import CostBounds
from evaluator.interpreter.evaluator import Evaluator
from evaluator.interpreter.linting import Linter
from evaluator.library import TemplateLibrary
from evaluator.library.bounds import CallCounter
from evaluator.nodes import Atomic, OutputFormat, TopLevel
from evaluator.nodes.walk import texts
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
        if not isinstance(template.node, Atomic):
            kind = getattr(template.node, "type", "function")
            raise UsageError(
                f"{name} is a {kind} template, and only atomic ones have a prompt to edit; name "
                "the template of one of its steps"
            )
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
        inputs = {f"{{{{{one.name}}}}}" for one in self.node.inputs}
        return frozenset(inputs.union(_markup_in(self.node)))

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
            if piece not in self._markup
        ]
        return [*found, *self._larger(evaluator, node)]

    def _larger(self, evaluator: Evaluator, node: TopLevel) -> Iterator[str]:
        """What the candidate has more of than the template."""
        if not isinstance(node, Atomic) or to_xml(_masked(node, self.node)) != to_xml(self.node):
            yield "more changed than descriptions, prompts and examples"
            return
        before = CallCounter(self._evaluator.library).bound(self.node)
        after = CallCounter(evaluator.library).bound(node)
        if before.max_calls is not None and (after.max_calls or before.max_calls + 1) > (
            before.max_calls
        ):
            yield f"at most {before.max_calls} calls are allowed, this could make {after.max_calls}"
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
            return bounds.most(cast("Atomic", node), {})[None].cost_usd
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
        return ", ".join(f"{{{{ {one.name} }}}}" for one in self.node.inputs) or "no variable"


def _markup_in(node: TopLevel) -> Iterator[str]:
    for text in texts(node):
        value = getattr(text, "value", None)
        if isinstance(value, str):
            yield from ("".join(piece.split()) for piece in _MARKUP.findall(value))


def _masked(node: Atomic, base: Atomic) -> Atomic:
    """`node` with everything that edits may change as it is in `base`."""
    output = node.output
    if _without_descriptions(output) == _without_descriptions(base.output):
        output = base.output
    return replace(
        node,
        description=base.description,
        instructions=base.instructions,
        system=base.system,
        criteria=base.criteria,
        examples=base.examples,
        shots=base.shots,
        output=output,
    )


def _without_descriptions(output: OutputFormat | None) -> Any:
    if output is None or output.schema is None:
        return output and (output.type, output.schema)
    try:
        schema = json.loads(output.schema)
    except ValueError:
        schema = output.schema
    return output.type, _stripped(schema)


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
