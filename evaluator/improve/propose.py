"""Proposals: how a model is asked for edits, and which ones are allowed.

The model sees the template, rows of the train part with what was answered, and the values of
earlier candidates. Its answer is data: each edit is read as one of the known operations and
checked, and what is refused is returned once with the reasons.

A proposed template passes `lint`, asks for the same inputs and output, reaches nothing more, and
makes no more calls than the template that it is made from.

The text of a proposal is data. It may use the variables and expressions that the template already
has, and no others: a call, a filter or a loop of its own would be code of the model that wrote it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, cast

from evaluator.batch.folder import TASKS
from evaluator.batch.records import SampleResult, Verdict
from evaluator.errors import EvaluatorError, TemplateError, UsageError
from evaluator.errors.messages import cut
from evaluator.fields.records import mapping_of
from evaluator.improve.edits import AddExample, Edit, EditError, apply_edits, read_edit
from evaluator.improve.search import Candidate, Proposal, Request
from evaluator.improve.steps import MAX_ADDED, added_steps, is_plain
from evaluator.interpreter.cost_bounds import CostBounds
from evaluator.interpreter.evaluator import Evaluator
from evaluator.interpreter.linting import Linter
from evaluator.library import TemplateLibrary
from evaluator.library.bounds import CallCounter
from evaluator.nodes import Atomic, Function, Task, TopLevel
from evaluator.nodes.walk import descendants, replace_children, tasks, texts
from evaluator.record.conversation import conversations
from evaluator.record.store import TaskStore
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
        inputs = ", ".join(f"{{{{ {name} }}}}" for name in input_names(self.node)) or "no variable"
        steps = {getattr(each, "name", None) for each in descendants(node)}
        step_results = {f"{{{{steps.{name}.content}}}}" for name in steps if name}
        found += [
            f"the expression {piece} is not one of the template's; use {inputs}"
            for piece in dict.fromkeys(_markup_in(node))
            if piece not in self._markup and piece not in step_results
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
        if before.max_calls is not None:
            most = before.max_calls + len(added)
            if after.max_calls is None or after.max_calls > most:
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


def _masked(node: Any) -> Any:
    """A node without what edits may change, in it and in the tasks inside it."""
    node = replace_children(node, _masked)
    if isinstance(node, Function):
        return replace(node, description="")
    if not isinstance(node, Task):
        return node
    output = node.output
    if output is not None and output.schema is not None:
        with suppress(ValueError):
            schema = json.dumps(_stripped(json.loads(output.schema)), sort_keys=True)
            output = replace(output, schema=schema)
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


def _stripped(schema: Any) -> Any:
    """A JSON Schema without its descriptions."""
    if isinstance(schema, list):
        return [_stripped(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _stripped(value)
        for name, value in cast("dict[str, Any]", schema).items()
        if name != "description" or not isinstance(value, str)
    }


TEMPLATE = "propose_edits"
FAILURES = 6
"""Failed rows that the proposer sees in a round."""
SUCCESSES = 3
MAX_CHARS = 2_000
"""Characters of one text of a row that the proposer sees."""
MAX_EDITS = 12
MAX_STEPS = 20
"""Steps of a composite template that the proposer sees of a row."""


class ProposalReader:
    """Reads proposals for one template. `results` are what the parent did on train rows."""

    def __init__(
        self, checker: CandidateChecker, parent: Candidate, results: Mapping[str, SampleResult]
    ) -> None:
        self._checker = checker
        self._parent = parent
        self._results = results

    def read(self, value: Any) -> tuple[list[Proposal], list[str]]:
        """The proposals of an answer, and why others were refused."""
        found: list[Proposal] = []
        findings: list[str] = []
        entries = mapping_of(value).get("proposals")
        if not isinstance(entries, list):
            return [], ["the answer has no list of proposals"]
        for number, entry in enumerate(cast("list[Any]", entries), 1):
            try:
                found.append(self._proposal(mapping_of(entry)))
            except EditError as error:
                findings.append(f"proposal {number}: {error}")
        return found, findings

    def _proposal(self, table: Mapping[str, Any]) -> Proposal:
        edits = table.get("edits")
        if not isinstance(edits, list) or not edits or len(cast("list[Any]", edits)) > MAX_EDITS:
            raise EditError(f"edits is not a list of 1 to {MAX_EDITS} edits")
        own = tuple(self._resolved(read_edit(edit)) for edit in cast("list[Any]", edits))
        both = (*self._parent.edits, *own)
        sha = check_edits(self._checker, both)
        why = table.get("why")
        return Proposal(both, cut(str(why or ""), MAX_CHARS), sha, (self._parent.id,))

    def _resolved(self, edit: Edit) -> Edit:
        """The edit with the content of the row that it names."""
        if not isinstance(edit, AddExample):
            return edit
        result = self._results.get(edit.row)
        if result is None:
            raise EditError(f"add_example: {edit.row!r} is not the id of a row that was shown")
        node = self._checker.node
        if not isinstance(node, Atomic) or edit.task is not None:
            raise EditError("add_example: rows are examples of atomic templates only")
        kind = node.output
        if result.verdict is Verdict.PASSED:
            output = result.content
        elif isinstance(result.target, str) and (kind is None or kind.type == "text"):
            output = result.target
        else:
            raise EditError(
                f"add_example: row {edit.row} has no right answer in the form of the output"
            )
        declared = input_names(node)
        inputs = {
            name: _as_text(value) for name, value in result.inputs.items() if name in declared
        }
        return AddExample(row=edit.row, inputs=inputs, output=output)


def check_edits(checker: CandidateChecker, edits: Sequence[Edit]) -> str:
    """The hash of the text that edits make. Raises: EditError, if it is no candidate."""
    text = checker.edited(edits)
    findings = checker.findings(text)
    if findings:
        raise EditError("; ".join(findings[:5]))
    return hash_of(text)


def hash_of(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def question(
    text: str,
    request: Request,
    results: Mapping[str, SampleResult],
    *,
    batch: Path,
    count: int,
    seed: int,
) -> dict[str, Any]:
    """The inputs of the proposer's template. `text` is that of the parent, `batch` the folder of
    its results on train rows.
    """
    return {
        "template": text,
        "rows": "\n".join(
            json.dumps(_shown(result, batch), ensure_ascii=False)
            for result in _chosen(results, Random(f"{seed}/{request.round}/rows"))
        ),
        "count": count,
        "history": "\n".join(
            f"{mean:.3f}  {candidate.why or 'the template as it is'}"
            for candidate, mean in request.history
        ),
        "findings": "none",
    }


def _chosen(results: Mapping[str, SampleResult], draws: Random) -> list[SampleResult]:
    chosen: list[SampleResult] = []
    for is_passed, most in ((False, FAILURES), (True, SUCCESSES)):
        part = [one for one in results.values() if (one.verdict is Verdict.PASSED) is is_passed]
        # Of the methods of Random, only this one gives the same numbers in every version.
        chosen += sorted(part, key=lambda result: draws.random())[:most]
    return chosen


def _shown(result: SampleResult, batch: Path) -> dict[str, Any]:
    scores: dict[str, Any] = {}
    for name, score in result.scores.items():
        parts = {"value": score.value, "explanation": score.explanation, "error": score.error}
        scores[name] = {
            part: _cut(value) for part, value in parts.items() if value not in (None, "")
        }
    found: dict[str, Any] = {
        "id": result.sample_id,
        "inputs": {name: _cut(value) for name, value in result.inputs.items()},
        "target": _cut(result.target),
        "answer": _cut(result.content),
        "verdict": result.verdict.value,
        "scores": scores,
    }
    if result.failure is not None:
        found["error"] = _cut(result.failure.message)
    steps = _steps(result, batch)
    if len(steps) > 1:
        found["steps"] = steps
    return found


def _steps(result: SampleResult, batch: Path) -> list[dict[str, Any]]:
    """What each step of a composite template answered, from the record of the run."""
    if result.task_id is None:
        return []
    try:
        recording = TaskStore(batch / TASKS).read(result.task_id)
    except EvaluatorError:
        return []
    return [
        {"step": talk.path, "answer": _cut(talk.messages[-1].get("content"))}
        for talk in conversations(recording)[:MAX_STEPS]
    ]


def _cut(value: Any) -> Any:
    if isinstance(value, bool | int | float | None):
        return value
    return cut(_as_text(value), MAX_CHARS)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
