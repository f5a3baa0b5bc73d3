"""The notes that one step leaves for later ones: a short summary of its answer, and the data that
the answer rests on.

Where a later step will see only the notes of a task, its prompt ends with `REQUEST`, and the two
entries are taken out of the end of the answer. Nothing is added to any other prompt. An answer
without the entries stays as it is and is summarised by its beginning. `Data used:` at the end of
any other answer is read too, and stays in the answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from evaluator.errors.results import TaskError
from evaluator.interpreter.context import policy_of
from evaluator.language.analysis import references_in
from evaluator.lazy_dataclass import frozen
from evaluator.library import TemplateLibrary
from evaluator.nodes import Call, Cond, Function, Node, Sequential
from evaluator.nodes.walk import children
from evaluator.patterns import Pattern

MAX_SUMMARY = 400
"""Characters of a summary that is the beginning of an answer."""
MAX_ENTRIES = 4_000
"""Characters at the end of an answer in which the entries are looked for."""

REQUEST = (
    "End your answer with these two lines, which later steps read:\n"
    "Notes for later steps: <what they need to know, in one or two sentences>\n"
    "Data used: <the inputs, files and sources that the answer rests on, or none>"
)

_NOTES = "notes for later steps"
_DATA = "data used"
_MARKS = r"[ \t>*_#`-]*"
_LABEL = Pattern(rf"^{_MARKS}({_NOTES}|{_DATA})[ \t*_`]*[:：][ \t*_`]*(.*)$", "im")
_ITEM = Pattern(r"[ \t]*(?:[-*•]|\d+[.)])[ \t]+")
_RULE = Pattern(r"(?:\s*^[ \t]*(?:-{3,}|\*{3,}|_{3,})[ \t]*$)+\s*\Z", "m")
_FENCE = Pattern(r"^[ \t]*(`{3,}|~{3,})[^`\n]*$", "m")
_NOTHING = frozenset({"none", "nothing", "n/a", "-", "no data", "none used"})


@frozen
class Notes:
    """The entries at the end of an answer; None where there is none. `content` is the answer
    without them.
    """

    content: str
    summary: str | None = None
    data_usage: list[str] | None = None


def read_notes(answer: str, *, asked: bool) -> Notes:
    """The entries at the end of `answer`. Unless they were `asked` for, only `Data used:` is read,
    and nothing is cut.

    What is not certainly an entry stays in the content: text after the entries, or an answer that
    is nothing else.
    """
    if ":" not in answer and "：" not in answer:
        return Notes(answer)  # a label has a colon, and looking for one is faster than the pattern
    for label in _LABEL.finditer(answer, max(0, len(answer) - MAX_ENTRIES)):
        if label.start() and answer[label.start() - 1] != "\n":
            continue  # the search began inside a line
        entries = _entries(answer[label.start() :])
        if entries is None or (not asked and _NOTES in entries):
            continue
        data = entries.get(_DATA)
        notes = Notes(
            answer, entries.get(_NOTES) or None, data_usage=None if data is None else _sources(data)
        )
        if asked:
            return _without_entries(notes, label.start())
        return notes
    return Notes(answer)


def _entries(text: str) -> dict[str, str] | None:
    """The entries that `text` consists of, by label; None if it has anything else, or an entry
    twice.
    """
    entries: dict[str, list[str]] = {}
    lines: list[str] = []
    is_closed = is_after_blank = False
    for line in text.rstrip().split("\n"):
        label = _LABEL.match(line)
        if label is not None:
            if label[1].lower() in entries:
                return None
            lines = entries[label[1].lower()] = [label[2].rstrip(" \t*_`")]
        elif not line.strip():
            is_after_blank = True
            continue
        elif _FENCE.match(line) or _RULE.match(line):
            is_closed = True
        elif is_closed or (is_after_blank and not _ITEM.match(line)):
            return None
        else:
            lines.append(line.strip())
        is_after_blank = False
    return {label: "\n".join(line for line in value if line) for label, value in entries.items()}


def _without_entries(notes: Notes, start: int) -> Notes:
    """`notes` with the content before `start`. A fence that closes after the entries is closed
    before them.
    """
    body = notes.content[:start].rstrip()
    entries = notes.content[start:]
    if len(_FENCE.findall(body)) % 2:
        opening = list(_FENCE.finditer(body))[-1]
        if not body[opening.end() :].strip():
            body = body[: opening.start()]  # only the entries are fenced
        elif _FENCE.search(entries):
            body += f"\n{opening[1]}"
    body = _RULE.sub("", body).rstrip()
    if body.strip():
        return Notes(body, notes.summary, data_usage=notes.data_usage)
    return Notes(notes.content)


def _sources(text: str) -> list[str]:
    """The sources that the entry `Data used:` names; a list of lines, or separated by commas or
    semicolons.
    """
    lines = [_ITEM.sub("", line, count=1).strip() for line in text.split("\n")]
    if len(lines) > 1:
        parts = lines
    else:
        parts = re.split(r"[;,]\s+", text)
    named = [part.strip().rstrip(".;,").strip("`") for part in parts]
    return [part for part in named if part and part.lower() not in _NOTHING]


def summary_of(content: str) -> str:
    """The beginning of a text in one line, of at most MAX_SUMMARY characters."""
    words = " ".join(content[: 4 * MAX_SUMMARY].split())
    if len(words) <= MAX_SUMMARY:
        return words
    cut = words[:MAX_SUMMARY]
    return f"{cut[: cut.rfind(' ')] if ' ' in cut[MAX_SUMMARY // 2 :] else cut} …"


def needs_notes(node: Node, library: TemplateLibrary, read: Collection[str | int]) -> bool:
    """Whether `node` sees context items, and does not read in full the result that has the names
    `read`.
    """
    return _sees_context(node, library) and not reads(node, read)


def reads(node: Node, names: Collection[str | int]) -> bool:
    """Whether a text of `node` reads a result by one of `names`: `steps.NAME`, `steps[i]`, or a
    variable.
    """
    for reference in references_in(node):
        key: str | int = reference.name
        part = reference.path
        if reference.name == "steps":
            if not part:
                return True
            key = part[0]
            part = part[1:]
        if key in names and (not part or part[0] != "notes"):
            return True
    # The steps of a sequence inside are other steps.
    return not isinstance(node, Sequential) and any(reads(child, names) for child in children(node))


def _sees_context(node: Node, library: TemplateLibrary, depth: int = 0) -> bool:
    if isinstance(node, Cond):
        return any(_sees_context(body, library, depth=depth) for body in children(node))
    if isinstance(node, Call):
        if node.template not in library or depth > 20:
            return False
        called = library.get(node.template).node
        return not isinstance(called, Function) and _sees_context(called, library, depth=depth + 1)
    return not node.runs_process and policy_of(node).inherit_context != "none"


def advice_for(error: TaskError) -> str:
    """What a caller can do about a failed task, in one sentence."""
    if error.resource is not None:
        if error.resource.name in ("turns", "context", "output"):
            return (
                "split the task into smaller ones (reparse does so), or raise the limit; "
                "content has what there is"
            )
        return (
            f"raise the limit on {error.resource.name} and resume the run, which keeps the "
            "completed steps"
        )
    if error.type == "INVALID_OUTPUT":
        return "evaluate the task again, or change its output_format; content has the answer"
    if error.type in ("VALIDATION_ERROR", "XML_PARSE_ERROR"):
        return "correct what violations and location name; the same evaluation fails again"
    if error.reason == "input_validation_failure":
        return "give the inputs that violations name"
    if error.retryable:
        return "resume the run, or evaluate the task again: the same evaluation may succeed later"
    return "correct what the message names; the same evaluation fails again"
