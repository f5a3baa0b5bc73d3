"""Reads a task that a model generated: finds it in the answer, repairs it where the meaning is
clear, validates it.

A valid task is read unchanged. Of an invalid one the readable parts are kept and the others are in
the warnings, each with its line in the answer; what is still wrong after the repairs is an error.
Nothing is run, resolved or fetched; there are no entities, no DTD and no includes; time is bounded
for any text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial

from evaluator.errors import Diagnostic, TemplateError
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Span, Task
from evaluator.nodes.declare import FIELDS, OPERATORS
from evaluator.patterns import Pattern
from evaluator.xml.build import build
from evaluator.xml.layout import Limits
from evaluator.xml.lenient import Element, Tree, read_tree
from evaluator.xml.repair import Repairer, TooBroken, write_elements
from evaluator.xml.schema import validate
from evaluator.xml.source import read_source
from evaluator.xml.vocabulary import Vocabulary, task_vocabulary

MAX_CHARACTERS = 300_000
MAX_ELEMENTS = 2_000
MAX_ATTRIBUTES = 100
"""Of one element. A parser compares the attributes of an element with each other; more are refused
before that.
"""
MAX_STEPS_TRIED = 100
"""Steps of an invalid task that are validated one by one."""

DOUBTFUL = frozenset({"lost-part", "several-tasks"})
"""Codes of warnings after which the task may lack a part that the model meant."""

_STEPS = Pattern(r"""\bsteps\b(?:\s*\.\s*([A-Za-z_]\w*)|\s*\[\s*(?:"([^"]*)"|'([^']*)')\s*\])?""")
_EXPRESSION = Pattern(r"\{\{|\{%|<<")
_OPENING_TAG_CUT = Pattern(r"<[A-Za-z_][^<>]*\Z")
_CLOSING_TAG_CUT = Pattern(r"</[^<>]*\Z")


@frozen
class GeneratedTask:
    """What was read from the answer `original`. `node` is None where `errors` say why; lines are
    those of the answer.

    `xml` is the repaired XML, also where it cannot be used; empty where there is none.
    """

    node: Task | None
    warnings: tuple[Diagnostic, ...]
    errors: tuple[Diagnostic, ...]
    xml: str
    original: str

    @property
    def doubts(self) -> tuple[Diagnostic, ...]:
        """The warnings after which the task should not be run before a person has seen it."""
        return tuple(warning for warning in self.warnings if warning.code in DOUBTFUL)

    def with_warning(self, code: str, message: str, span: Span) -> GeneratedTask:
        """The same with one more warning."""
        return replace(
            self, warnings=(*self.warnings, Diagnostic("warning", code, message=message, span=span))
        )

    def with_errors(self, errors: list[Diagnostic]) -> GeneratedTask:
        """The same with further errors; without its node, if there are any."""
        if errors:
            return replace(self, node=None, errors=(*self.errors, *errors))
        return self


def read_generated_task(text: str, file: str = "<answer>") -> GeneratedTask:
    """The `<task>` in a model's `text`; `file` is the name to report. No text makes it raise an
    error.

    Of several tasks side by side the last whole one is read. Codes besides those of any template:
    `no-task`, `too-broken`; of warnings `repaired`, `respelt`, `misplaced`, `unwrapped`,
    `markup-as-text`, `type-told`, `left-out`, `cut-off`, and the DOUBTFUL ones.
    """
    refused = partial(_no_task, text, file)
    if len(text) > MAX_CHARACTERS:
        message = f"{len(text):,} characters; at most {MAX_CHARACTERS:,} are read"
        return refused("too-large", message)
    vocabulary = task_vocabulary()
    tree = read_tree(text, vocabulary)
    tasks, count, most_attributes = _tasks(tree, vocabulary)
    if not tasks:
        return refused("no-task", "the answer contains no <task>")
    if count > MAX_ELEMENTS:
        message = f"{count:,} elements; at most {MAX_ELEMENTS:,} are read"
        return refused("too-many-elements", message)
    if most_attributes > MAX_ATTRIBUTES:
        return refused("too-broken", f"an element has {most_attributes:,} attributes")
    chosen = next((task for task in reversed(tasks) if task.end is not None), tasks[-1])
    cut = _cut_element(tree, text, vocabulary=vocabulary)
    repairer = Repairer(text, vocabulary, file=file, cut=cut)
    around = [
        Diagnostic("warning", "repaired", message=message, span=repairer.span(at))
        for message, at in tree.warnings.items()
    ]
    exact = _exact(text, chosen, repairer=repairer, around=around)
    generated = exact or _repair(text, chosen, repairer=repairer, around=around)
    if len(tasks) > 1:
        message = f"the answer contains {len(tasks)} tasks side by side; the last whole one is read"
        generated = generated.with_warning("several-tasks", message, repairer.span(chosen.start))
    if exact is None and cut is None and tree.open and _OPENING_TAG_CUT.search(text[-1000:]):
        message = "the answer was cut off inside a tag; what it began is missing"
        generated = generated.with_warning("lost-part", message, repairer.span(len(text)))
    return generated


def _no_task(text: str, file: str, code: str, message: str) -> GeneratedTask:
    return GeneratedTask(
        None,
        (),
        errors=(Diagnostic("error", code, message=message, span=Span(file)),),
        xml="",
        original=text,
    )


def _tasks(tree: Tree, vocabulary: Vocabulary) -> tuple[list[Element], int, int]:
    """The outermost tasks in order, the number of all elements, and the largest number of
    attributes of one.
    """
    found: list[Element] = []
    count = most = 0
    waiting = [(root, False) for root in reversed(tree.roots)]
    while waiting:
        element, is_inside = waiting.pop()
        count = count + 1
        most = max(most, len(element.attributes))
        if not is_inside and vocabulary.fold(element.name) == "task":
            found.append(element)
            is_inside = True
        waiting += [(child, is_inside) for child in reversed(element.children)]
    return found, count, most


def _cut_element(tree: Tree, text: str, vocabulary: Vocabulary) -> Element | None:
    """The element whose text was cut off, if the answer ends inside one that may contain text."""
    if not tree.open or _CLOSING_TAG_CUT.search(text[-1000:]):
        return None
    last = tree.open[-1]
    kinds = vocabulary.kinds_of(vocabulary.known(last.name) or "")
    if any(kind.has_text for kind in kinds):
        return last
    return None


def _exact(
    text: str, chosen: Element, repairer: Repairer, around: list[Diagnostic]
) -> GeneratedTask | None:
    """The task as the model wrote it, if it is valid."""
    if chosen.end is None or chosen.name != "task":
        return None
    place = repairer.span(chosen.start)
    xml = text[chosen.start : chosen.end]
    node, found = _validate("\n" * (place.line - 1) + " " * (place.column - 1) + xml, repairer.file)
    if node is None:
        return None
    end = repairer.span(chosen.end)
    outside = [
        one
        for one in around
        if not (
            (place.line, place.column) <= (one.span.line, one.span.column) < (end.line, end.column)
        )
    ]
    return GeneratedTask(node, (*outside, *found), errors=(), xml=xml, original=text)


def _repair(
    text: str, chosen: Element, repairer: Repairer, around: list[Diagnostic]
) -> GeneratedTask:
    try:
        root = repairer.task(chosen)
    except TooBroken as error:
        message = f"it cannot be repaired: {error}"
        return replace(
            _no_task(text, repairer.file, code="too-broken", message=message),
            warnings=tuple(around),
        )
    node, found, xml = _read(root, repairer)
    if node is None and _leave_out_steps(root, repairer):
        node, found, xml = _read(root, repairer)
    warnings = [*around, *repairer.warnings, *(one for one in found if one.severity == "warning")]
    errors = tuple(one for one in found if one.severity == "error")
    ordered = sorted(dict.fromkeys(warnings), key=lambda one: (one.span.line, one.span.column))
    return GeneratedTask(node, tuple(ordered), errors=errors, xml=xml.lstrip("\n"), original=text)


def _read(root: Element, repairer: Repairer) -> tuple[Task | None, list[Diagnostic], str]:
    xml = write_elements(root, repairer)
    node, found = _validate(xml, repairer.file)
    # A repaired tag is on the right line, but not at its column.
    return node, [replace(one, span=replace(one.span, column=1)) for one in found], xml


def _validate(xml: str, file: str) -> tuple[Task | None, list[Diagnostic]]:
    """The task that `xml` is and its warnings, or None and at least one error."""
    try:
        source = read_source(xml, file, limits=Limits(max_elements=MAX_ELEMENTS))
    except TemplateError as error:
        return None, list(error.diagnostics)
    found = validate(source, "task")
    if found:
        return None, found
    built = build(source)
    found = list(built.diagnostics)
    if any(one.severity == "error" for one in found):
        return None, found
    if len(built.templates) == 1:
        node = built.templates[0]
        if isinstance(node, Task):
            return node, found
    return None, [Diagnostic("error", "no-task", message="this is not a <task>", span=Span(file))]


# Steps that cannot be repaired


def _leave_out_steps(root: Element, repairer: Repairer) -> bool:
    """Removes the steps that are invalid and to which no later step refers. Returns whether there
    was one.
    """
    places = [element for element in root.walk() if element.name == "steps"]
    if sum(len(steps.children) for steps in places) > MAX_STEPS_TRIED:
        return False
    has_changed = False
    for steps in reversed(places):  # those inside others first
        for step in reversed(steps.children):
            error = _error_of(step, repairer)
            if error is None or _is_referred_to(step, steps):
                continue
            has_changed = True
            name = step.attributes.get("name")
            if name:
                label = f"the step {name!r}"
            else:
                label = f"a step (<{step.name}>)"
            repairer.warn(
                "left-out", f"{label} cannot be used and is left out: {error.message}", step.start
            )
            if step is steps.children[-1]:
                repairer.warn(
                    "lost-part", "the last step, which gives the result, is missing", step.start
                )
            steps.content.remove(step)
    return has_changed


def _error_of(step: Element, repairer: Repairer) -> Diagnostic | None:
    """The first error of a step by itself."""
    alone = step
    if step.name != "task":
        described = Element("description", {}, content=["."], start=step.start, inside=step.start)
        steps = Element("steps", {}, content=[step], start=step.start, inside=step.start)
        alone = Element(
            "task",
            {"type": "sequential"},
            content=[described, steps],
            start=step.start,
            inside=step.start,
        )
    node, found, _ = _read(alone, repairer)
    if node is not None:
        return None
    return next(one for one in found if one.severity == "error")


def _is_referred_to(step: Element, steps: Element) -> bool:
    """Whether a later step may read this one's result, by name, by number or as the previous one.

    A text that reads `steps` in another way than by the name of another step counts as reading this
    one.
    """
    siblings = steps.children
    later = siblings[siblings.index(step) + 1 :]
    name = step.attributes.get("name")
    fields = (field for operator in OPERATORS.values() for field in FIELDS[operator])
    evaluated = {
        "arg",
        "condition",
        *(field.element for field in fields if field.form == "condition"),
    }
    for number, other in enumerate(later):
        for text in _texts_with_expressions(other, evaluated):
            if number == 0 and re.search(r"\bprevious\b", text):
                return True
            for match in _STEPS.finditer(text):
                read = next((group for group in match.groups() if group is not None), None)
                if read is None or read == name:
                    return True
    return False


def _texts_with_expressions(root: Element, evaluated: Collection[str | None]) -> Iterator[str]:
    """The texts and attributes of an element, and of those inside it, in which something may be
    evaluated.

    `evaluated` are the names of the elements whose whole text is an expression.
    """
    for element in root.walk():
        yield from element.attributes.values()
        text = "".join(child for child in element.content if isinstance(child, str))
        if element.name in evaluated or _EXPRESSION.search(text):
            yield text
