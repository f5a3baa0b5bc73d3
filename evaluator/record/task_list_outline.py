"""The outline of a task list: its sections and steps, and which changes a role may make.

A section is a heading (`#` to `######`) with the lines up to the next one. A role in square brackets at the start of
the title of a section of level 2 or deeper applies to the sections below it that name no role of their own. A step
is a list item with a checkbox. Inside a fenced block nothing is a heading or a step; a fence that is not closed
reaches to the end. Underlined headings are plain text here.

Ownership depends on the outline alone: two texts are compared by the same reading, so that a text
which is read in an unexpected way is at worst refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evaluator.errors import UsageError

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})(.*)")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?")
# Neither a checkbox nor the text of a link.
_ROLE = re.compile(r"\[(?![xX]?\]|\s+\])([^\[\]]{1,64})\](?![(\[:])[ \t]*(.*)")
_STEP = re.compile(r"[ \t]*(?:[-*+]|[0-9]{1,9}[.)])[ \t]+\[([ xX])\](?:[ \t]+(.*))?")


@dataclass(frozen=True, slots=True)
class TaskStep:
    """A checkbox item. `line` counts from 1; `section` is the title of its section, "" before the first.

    `role` is the section's, as it is written there; None where the step is everybody's.
    """

    line: int
    text: str
    done: bool
    section: str
    role: str | None

    def __str__(self) -> str:
        place = " ".join(part for part in (self.role and f"[{self.role}]", self.section) if part)
        return f"line {self.line} {place}: {self.text}" if place else f"line {self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the lines below it, up to the next heading of any level.

    `line` is the heading's, from 1; `title` is without the role; `body` has no blank lines at its end. `parent`
    is the index of the section around it.
    """

    line: int
    level: int
    heading: str
    title: str
    role: str | None
    body: str
    parent: int | None


@dataclass(frozen=True, slots=True)
class Outline:
    """The sections and steps of a text, in order."""

    sections: tuple[Section, ...]
    steps: tuple[TaskStep, ...]

    def next_step(self, role: str | None = None) -> TaskStep | None:
        """The first step that is not done; with `role`, the first in a section of that role or of nobody."""
        return next((step for step in self.steps if not step.done and not _is_foreign(step.role, role)), None)


def role_key(role: str) -> str:
    """A role without differences of case and spacing."""
    return " ".join(role.split()).casefold()


def read_outline(text: str) -> Outline:
    """The sections and steps of a text whose lines end with a line feed. Any text has an outline."""
    lines = text.split("\n")
    heads: list[tuple[int, int, str]] = []
    boxes: list[tuple[int, int, str, bool]] = []
    for number, line in _outside_fences(lines):
        heading = _HEADING.fullmatch(line)
        if heading is not None:
            heads.append((number, len(heading[1]), _without_closing(heading[2] or "")))
            continue
        box = _STEP.fullmatch(line)
        if box is not None:
            boxes.append((number, len(heads), (box[2] or "").strip(), box[1] != " "))
    sections = _sections(lines, heads)
    steps: list[TaskStep] = []
    for number, before, words, done in boxes:
        section = sections[before - 1] if before else None
        steps.append(TaskStep(number, words, done, section.title if section else "", section.role if section else None))
    return Outline(tuple(sections), tuple(steps))


def check_update(before: Outline, after: Outline, role: str) -> None:
    """Checks that a change by `role` leaves the sections of other roles as they are: heading, order and text.

    Line ends and blank lines at the end of a section do not count.

    Raises: UsageError, with the first such section that is changed, moved, removed or added, and its owner.
    """
    old, new = _foreign(before, role), _foreign(after, role)
    same = 0
    while same < min(len(old), len(new)) and old[same][0] == new[same][0]:
        same += 1
    if same == len(old) == len(new):
        return
    was = old[same][1] if same < len(old) else None
    now = new[same][1] if same < len(new) else None
    if was is not None and _count(new, was) < _count(old, was):
        raise _refusal(was, role, "is removed or renamed")
    if now is not None and _count(new, now) > _count(old, now):
        raise _refusal(now, role, "is added, renamed or repeated")
    # Both sides have the same headings, so neither of the two is missing.
    if was is not None and now is not None and was.heading == now.heading and was.body != now.body:
        raise _refusal(was, role, f"differs from the old text at line {_first_changed_line(was, now)} of the new text")
    if was is not None:
        raise _refusal(was, role, "is moved")


def check_new(outline: Outline, role: str) -> None:
    """Checks the text of a task that `role` creates: it may have sections for other roles, with open steps only.

    Raises: UsageError, with the first step of another role that is marked as done.
    """
    for step in outline.steps:
        if step.done and _is_foreign(step.role, role):
            raise UsageError(
                f"line {step.line}: this step of {step.role} is marked as done; "
                f"as {role} you may add steps for other roles, but only they may mark them"
            )


def _outside_fences(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The lines outside fenced blocks and their fences, with their numbers from 1."""
    fence = ""
    for number, line in enumerate(lines, 1):
        mark = _FENCE.fullmatch(line)
        if fence:
            if mark is not None and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        elif mark is not None and not (mark[1][0] == "`" and "`" in mark[2]):
            fence = mark[1]
        else:
            yield number, line


def _without_closing(title: str) -> str:
    """A heading's words without the `##` that may end it."""
    title = title.strip(" \t")
    bare = title.rstrip("#")
    return bare.rstrip(" \t") if not bare or bare[-1] in " \t" else title


def _sections(lines: Sequence[str], heads: Sequence[tuple[int, int, str]]) -> list[Section]:
    sections: list[Section] = []
    above: list[int] = []
    for place, (number, level, title) in enumerate(heads):
        while above and sections[above[-1]].level >= level:
            above.pop()
        parent = above[-1] if above else None
        role = None if parent is None else sections[parent].role
        named = _ROLE.match(title) if level > 1 else None
        if named is not None:
            role, title = " ".join(named[1].split()), named[2]
        end = heads[place + 1][0] - 1 if place + 1 < len(heads) else len(lines)
        while end > number and not lines[end - 1].strip():
            end -= 1
        body = "\n".join(lines[number:end])
        sections.append(Section(number, level, lines[number - 1].rstrip(), title, role, body, parent))
        above.append(place)
    return sections


def _is_foreign(owner: str | None, role: str | None) -> bool:
    return owner is not None and role is not None and role_key(owner) != role_key(role)


def _foreign(outline: Outline, role: str) -> list[tuple[object, Section]]:
    """The sections of other roles, each with all that must stay: its owner, its text, the foreign section around it."""
    found: list[tuple[object, Section]] = []
    # For each section: which of the foreign sections it is, or is inside.
    around: list[int | None] = []
    for section in outline.sections:
        outer = None if section.parent is None else around[section.parent]
        if _is_foreign(section.role, role):
            around.append(len(found))
            found.append(((role_key(section.role or ""), section.heading, section.body, outer), section))
        else:
            around.append(outer)
    return found


def _count(sections: Sequence[tuple[object, Section]], wanted: Section) -> int:
    """The number of times the heading occurs for the same role."""
    return sum((s.heading, s.role) == (wanted.heading, wanted.role) for _, s in sections)


def _first_changed_line(was: Section, now: Section) -> int:
    old, new = was.body.split("\n"), now.body.split("\n")
    same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    return now.line + 1 + same


def _refusal(section: Section, role: str, what: str) -> UsageError:
    heading = section.heading.strip()[:200]
    return UsageError(
        f"the section {heading!r} belongs to {section.role} and {what}; "
        f"as {role} you may change only sections of {role} and sections without a role"
    )
