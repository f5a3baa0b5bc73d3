"""A task that a model wrote: found in its answer, mended where that is clear, validated like any template.

A valid task passes untouched. Of a broken one what was readable is kept and the rest is in the warnings, each
with its line in the answer; what cannot be used afterwards is an error. Pure: nothing is run, resolved or
fetched, there are no entities, no DTD and no includes; time is bounded for any text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from evaluator.errors import Diagnostic, TemplateError
from evaluator.nodes import Span, Task
from evaluator.xml.build import build
from evaluator.xml.lenient import Element, Tree, read_tree
from evaluator.xml.mending import Mender, TooBroken, write_elements
from evaluator.xml.schema import validate
from evaluator.xml.source import Limits, Source, read_source
from evaluator.xml.vocabulary import Vocabulary, task_vocabulary

MAX_CHARACTERS = 300_000
MAX_ELEMENTS = 2_000
MAX_ATTRIBUTES = 100
"""Of one element: what has more is refused before a parser compares them with each other."""
MAX_STEPS_TRIED = 100
"""Steps of a task that does not validate that are looked at one by one."""

DOUBTFUL = frozenset({"lost-part", "several-tasks"})
"""Codes of warnings after which what was kept may not be all that was meant."""

_STEPS = re.compile(r"""\bsteps\b(?:\s*\.\s*([A-Za-z_]\w*)|\s*\[\s*(?:"([^"]*)"|'([^']*)')\s*\])?""")
_BRACES = re.compile(r"\{\{|\}\}|\{%|%\}|<<|>>")
_OPENING_TAG_CUT = re.compile(r"<[A-Za-z_][^<>]*\Z")
_CLOSING_TAG_CUT = re.compile(r"</[^<>]*\Z")


@dataclass(frozen=True, slots=True)
class WrittenTask:
    """What was read. `node` is None where `errors` say why; lines are those of `original`.

    `kept_xml` is the XML that was kept, mended, also where it cannot be used; empty where there is none.
    """

    node: Task | None
    warnings: tuple[Diagnostic, ...]
    errors: tuple[Diagnostic, ...]
    kept_xml: str
    original: str

    @property
    def doubts(self) -> tuple[Diagnostic, ...]:
        """The warnings after which nobody should run the task unseen."""
        return tuple(warning for warning in self.warnings if warning.code in DOUBTFUL)

    def warned(self, code: str, message: str, span: Span) -> WrittenTask:
        """The same with one more warning."""
        return replace(self, warnings=(*self.warnings, Diagnostic("warning", code, message, span)))

    def refused(self, errors: list[Diagnostic]) -> WrittenTask:
        """The same with further errors, if there are any."""
        return replace(self, node=None, errors=(*self.errors, *errors)) if errors else self


def read_written_task(text: str, file: str = "<answer>") -> WrittenTask:
    """The `<task>` in a model's `text`; `file` is the name in its places. Never raises for what the text holds.

    Of several tasks side by side the last one is read. Codes besides those of any template: `no-task`,
    `too-broken`; of warnings `repaired`, `respelt`, `misplaced`, `unwrapped`, `markup-as-text`, `type-told`,
    `left-out`, `cut-off`, and the DOUBTFUL ones.
    """
    if len(text) > MAX_CHARACTERS:
        return _nothing(text, file, "too-large", f"{len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
    vocabulary = task_vocabulary()
    tree = read_tree(text, vocabulary)
    tasks, count, most_attributes = _tasks(tree, vocabulary)
    if not tasks:
        return _nothing(text, file, "no-task", "the answer holds no <task>")
    if count > MAX_ELEMENTS:
        return _nothing(text, file, "too-many-elements", f"{count:,} elements; at most {MAX_ELEMENTS:,} are read")
    if most_attributes > MAX_ATTRIBUTES:
        return _nothing(text, file, "too-broken", f"an element has {most_attributes:,} attributes")
    chosen = next((task for task in reversed(tasks) if task.end is not None), tasks[-1])
    cut = _cut_element(tree, text, vocabulary)
    mender = Mender(text, vocabulary, file, cut)
    around = [Diagnostic("warning", "repaired", message, mender.span(at)) for message, at in tree.warnings.items()]
    exact = _exact(text, chosen, mender, around)
    written = exact or _mended(text, chosen, mender, around)
    if len(tasks) > 1:
        message = f"the answer holds {len(tasks)} tasks side by side; the last whole one is read"
        written = written.warned("several-tasks", message, mender.span(chosen.start))
    if exact is None and cut is None and tree.open and _OPENING_TAG_CUT.search(text[-1000:]):
        message = "the answer was cut off inside a tag; what it began is missing"
        written = written.warned("lost-part", message, mender.span(len(text)))
    return written


def _nothing(text: str, file: str, code: str, message: str) -> WrittenTask:
    return WrittenTask(None, (), (Diagnostic("error", code, message, Span(file)),), "", text)


def _tasks(tree: Tree, vocabulary: Vocabulary) -> tuple[list[Element], int, int]:
    """The outermost tasks in order, how many elements there are in all, and the most attributes of one."""
    found: list[Element] = []
    count = most = 0
    waiting = [(root, False) for root in reversed(tree.roots)]
    while waiting:
        element, is_inside = waiting.pop()
        count, most = count + 1, max(most, len(element.attributes))
        if not is_inside and vocabulary.fold(element.name) == "task":
            found.append(element)
            is_inside = True
        waiting += [(child, is_inside) for child in reversed(element.children)]
    return found, count, most


def _cut_element(tree: Tree, text: str, vocabulary: Vocabulary) -> Element | None:
    """The element whose text was cut off, if the text ends inside one that may hold text."""
    if not tree.open or _CLOSING_TAG_CUT.search(text[-1000:]):
        return None
    last = tree.open[-1]
    kinds = vocabulary.kinds_of(vocabulary.known(last.name) or "")
    return last if any(kind.has_text for kind in kinds) else None


def _exact(text: str, chosen: Element, mender: Mender, around: list[Diagnostic]) -> WrittenTask | None:
    """The task as it stands, if it is valid."""
    if chosen.end is None or chosen.name != "task":
        return None
    place = mender.span(chosen.start)
    xml = text[chosen.start : chosen.end]
    source, _ = _source("\n" * (place.line - 1) + " " * (place.column - 1) + xml, place.file)
    if source is None:
        return None
    node, found = _validated(source)
    if node is None:
        return None
    outside = [one for one in around if not _is_within(one.span, place, mender.span(chosen.end))]
    return WrittenTask(node, (*outside, *found), (), xml, text)


def _is_within(span: Span, start: Span, end: Span) -> bool:
    return (start.line, start.column) <= (span.line, span.column) < (end.line, end.column)


def _mended(text: str, chosen: Element, mender: Mender, around: list[Diagnostic]) -> WrittenTask:
    try:
        root = mender.task(chosen)
    except TooBroken as error:
        broken = _nothing(text, mender.span(0).file or "", "too-broken", f"it cannot be mended: {error}")
        return replace(broken, warnings=tuple(around))
    node, found, xml = _read(root, mender)
    if node is None and _leave_out_steps(root, mender):
        node, found, xml = _read(root, mender)
    warnings = [*around, *mender.warnings, *(one for one in found if one.severity == "warning")]
    errors = tuple(one for one in found if one.severity == "error")
    ordered = sorted(dict.fromkeys(warnings), key=lambda one: (one.span.line, one.span.column))
    return WrittenTask(node, tuple(ordered), errors, xml.lstrip("\n"), text)


def _read(root: Element, mender: Mender) -> tuple[Task | None, list[Diagnostic], str]:
    xml = write_elements(root, mender)
    source, found = _source(xml, mender.span(0).file)
    node = None
    if source is not None:
        node, found = _validated(source)
    # A mended tag is not where it was in its line; the line is right.
    return node, [replace(one, span=replace(one.span, column=1)) for one in found], xml


def _source(xml: str, file: str | None) -> tuple[Source | None, list[Diagnostic]]:
    try:
        return read_source(xml, file, Limits(max_elements=MAX_ELEMENTS)), []
    except TemplateError as error:
        return None, list(error.diagnostics)


def _validated(source: Source) -> tuple[Task | None, list[Diagnostic]]:
    """The task that a source is, or None with at least one error."""
    found = validate(source, "task")
    if found:
        return None, found
    built = build(source)
    found = list(built.diagnostics)
    if any(one.severity == "error" for one in found):
        return None, found
    node = built.templates[0] if len(built.templates) == 1 else None
    if isinstance(node, Task):
        return node, found
    return None, [Diagnostic("error", "no-task", "this is no <task>", Span(source.file))]


# Steps that cannot be mended


def _leave_out_steps(root: Element, mender: Mender) -> bool:
    """Takes out steps that are invalid by themselves and that nothing refers to; whether there was one."""
    places = [element for element in _walk(root) if element.name == "steps"]
    if sum(len(steps.children) for steps in places) > MAX_STEPS_TRIED:
        return False
    has_changed = False
    for steps in reversed(places):  # those inside others first
        for step in reversed(steps.children):
            error = _error_of(step, mender)
            if error is None or _is_referred_to(step, steps):
                continue
            has_changed = True
            name = step.attributes.get("name")
            label = f"the step {name!r}" if name else f"a step (<{step.name}>)"
            mender.warn("left-out", f"{label} cannot be used and is left out: {error.message}", step.start)
            if step is steps.children[-1]:
                mender.warn("lost-part", "the last step, which gives the result, is missing", step.start)
            steps.content.remove(step)
    return has_changed


def _walk(root: Element) -> list[Element]:
    found = [root]
    for element in found:
        found += element.children
    return found


def _error_of(step: Element, mender: Mender) -> Diagnostic | None:
    """The first thing wrong with a step alone."""
    alone = step
    if step.name != "task":
        described = Element("description", {}, ["."], step.start, step.start)
        steps = Element("steps", {}, [step], step.start, step.start)
        alone = Element("task", {"type": "sequential"}, [described, steps], step.start, step.start)
    node, found, _ = _read(alone, mender)
    return None if node is not None else next(one for one in found if one.severity == "error")


def _is_referred_to(step: Element, steps: Element) -> bool:
    """Whether a later step may read this one's result, by name, by number or as the previous one.

    A text that reads `steps` in another way than by the name of another step counts as reading this one.
    """
    siblings = steps.children
    later = siblings[siblings.index(step) + 1 :]
    name = step.attributes.get("name")
    for number, other in enumerate(later):
        for expression in _expressions(other):
            if number == 0 and re.search(r"\bprevious\b", expression):
                return True
            for match in _STEPS.finditer(expression):
                read = next((group for group in match.groups() if group is not None), None)
                if read is None or read == name:
                    return True
    return False


def _expressions(root: Element) -> list[str]:
    """What is evaluated in the texts of an element and those inside it; attributes and arguments whole."""
    found: list[str] = []
    for element in _walk(root):
        found += element.attributes.values()
        text = "".join(child for child in element.content if isinstance(child, str))
        if element.name in ("arg", "condition", "termination_condition"):
            found.append(text)
        else:
            found += _in_braces(text)
    return found


def _in_braces(text: str) -> list[str]:
    """What stands between an opening brace and the next closing one, or the end."""
    found: list[str] = []
    start: int | None = None
    for match in _BRACES.finditer(text):
        if match[0] in ("{{", "{%", "<<"):
            start = match.end() if start is None else start
        elif start is not None:
            found.append(text[start : match.start()])
            start = None
    return found if start is None else [*found, text[start:]]
