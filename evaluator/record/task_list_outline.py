"""The text of task lists: names, templates, and the outline of sections and steps.

Templates of task lists: Markdown files from which a new list begins.
They are in `task_lists/` below the folders of templates. `{{ title }}`, `{{ name }}`, `{{ date }}`
and `{{ role }}` are replaced; every other placeholder stays for the person or model that fills in
the list.

A section is a heading (`#` to `######`) with the lines up to the next one. A role in square
brackets at the start of the title of a section of level 2 or deeper does that section, with the
sections below it; a bracketed word further below is a part of it and not a role. The owner is named
by a line `Owner: ROLE` before the first section of level 2.

A step is a list item with a checkbox. In a text without checkboxes, numbered headings (`### 2.
Compare`, `### Step 2: Compare`) are its steps; without those too, the items of its lists below a
heading `Steps`; without such a heading, the items of its numbered lists. Such a step is done where
a mark says so: a check mark, `(done)`, `— done` at its end, struck-out text, or, below a heading, a
line `Status: done`.

Inside a fenced block nothing is a heading or a step; a fence that is not closed reaches to the end.
Underlined headings are plain text here.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path

from evaluator import clock
from evaluator.errors import UsageError
from evaluator.errors.messages import did_you_mean
from evaluator.lazy_dataclass import frozen
from evaluator.patterns import Pattern

MAX_BYTES = 1_000_000
_DATED = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})-([a-z0-9][a-z0-9-]{0,99})")
_BEGINS_WITH_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(-|$)")
_BARE = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
_EXPECTED = (
    "expected YYYY-MM-DD-name, or the name alone: lowercase letters, digits and hyphens, "
    "at most 100 of them"
)


def parse_name(name: object) -> tuple[str | None, str]:
    """The name with its date, if it has one, and the name without.

    Raises: UsageError, for an invalid name or date.
    """
    if not isinstance(name, str):
        raise UsageError(f"{name!r} is not a name of a task; {_EXPECTED}")
    text = name.removesuffix(".md")
    shown = repr(name[:200])
    if re.fullmatch(r"TASK-[0-9]+", text, re.IGNORECASE):
        raise UsageError(f"{shown} is the file of a run (see: evaluator tasks show); {_EXPECTED}")
    if not _BEGINS_WITH_DATE.match(text):
        if not _BARE.fullmatch(text):
            raise UsageError(f"{shown} is not a name of a task; {_EXPECTED}")
        return None, text
    if not is_dated(text):
        raise UsageError(f"{shown} is not a name of a task; {_EXPECTED}")
    return text, text[11:]


def is_dated(text: str) -> bool:
    """Whether `text` is a whole name with a date."""
    if not _DATED.fullmatch(text):
        return False
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True


def checked_content(content: str) -> bytes:
    """The bytes of a text, with line feeds and an end to its last line.

    Raises: UsageError, for a text that is empty, too large or holds what is not a character.
    """
    text = with_line_feeds(content)
    if not text.strip():
        raise UsageError("the text of the task is empty; give the whole text")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(f"line {line} of the text has a NUL character; remove it")
    if not text.endswith("\n"):
        text += "\n"
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise UsageError(
            f"line {line} of the text has half a surrogate pair, which is not a character"
        ) from error
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"the text has {len(data):,} bytes, more than {MAX_BYTES:,}; split the task"
        )
    return data


def with_line_feeds(text: str) -> str:
    """`text` without a byte order mark, its line ends as line feeds."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


FOLDER = "task_lists"
DEFAULT = "feature"
ANY_ROLE = "the one who created it"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_PLACEHOLDER = re.compile(r"\{\{[ \t]*(title|name|date|role)[ \t]*\}\}")
# The line that names the owner, and the role at the start of a heading.
_OF_ROLE = re.compile(
    r"^[-*+ \t]*[*_]{0,2}owner[*_]{0,2}:[*_]{0,2}[ \t]*\{\{[ \t]*role[ \t]*\}\}[ \t]*\n"
    r"|(?<=\# )\[\{\{[ \t]*role[ \t]*\}\}\][ \t]*",
    re.IGNORECASE | re.MULTILINE,
)
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def template_names(folders: Iterable[Path]) -> list[str]:
    """The names of the templates in `folders`, sorted."""
    found: set[str] = set()
    for folder in folders:
        with contextlib.suppress(OSError):
            found.update(
                path.stem for path in (folder / FOLDER).glob("*.md") if _NAME.fullmatch(path.stem)
            )
    return sorted(found)


def read_template(name: str, folders: Iterable[Path]) -> str:
    """The text of the template called `name`; an earlier folder comes first.

    Raises: UsageError, if there is none, or it cannot be read.
    """
    folders = list(folders)
    for folder in folders if _NAME.fullmatch(name) else ():
        path = folder / FOLDER / f"{name}.md"
        try:
            with open(os.open(path, _FILE), "rb") as file:
                return template_text(file.read(MAX_BYTES + 1), str(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(f"{path}: the template cannot be read: {error.strerror}") from error
    known = template_names(folders)
    hint = did_you_mean(name[:100], known, otherwise=f"the templates are: {', '.join(known)}")
    raise UsageError(f"there is no template of task lists called {name[:100]!r}; {hint}")


def template_text(data: bytes, path: str) -> str:
    """The text of a template's file. Raises: UsageError, if it is too large or not text."""
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {MAX_BYTES:,} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error


def fill_template(
    text: str, name: str, *, role: str | None = None, today: date | None = None
) -> str:
    """The text of a new list called `name`, which `role` creates.

    Without a role nobody owns the list, and the parts of the template's role are for any role.
    Raises: UsageError, for an invalid name.
    """
    full, bare = parse_name(name)
    if full is None:
        day = (today or clock.now().date()).isoformat()
    else:
        day = full[:10]
    words = bare.replace("-", " ")
    values = {
        "title": words[:1].upper() + words[1:],
        "name": full or f"{day}-{bare}",
        "date": day,
    }
    if role is None:
        text = _OF_ROLE.sub("", text)
        values["role"] = ANY_ROLE
    else:
        values["role"] = " ".join(role.split())
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)


_FENCE = Pattern(r"[ \t]*(`{3,}|~{3,})(.*)")
_HEADING = Pattern(r" {0,3}(#{1,6})(?:[ \t]+(.*))?")
# Neither a checkbox nor the text of a link.
_ROLE = Pattern(r"\[(?![xX]?\]|\s+\])([^\[\]]{1,64})\](?![(\[:])[ \t]*(.*)")
_STEP = Pattern(r"[ \t]*(?:[-*+]|[0-9]{1,9}[.)])[ \t]+\[([ xX])\](?:[ \t]+(.*))?")
_OWNER = Pattern(r"[ \t]*(?:[-*+][ \t]+)?(?:\*\*|__)?owner(?:\*\*|__)?:(?:\*\*|__)?[ \t]+(.*)", "i")
_NUMBERED_TITLE = Pattern(
    r"(?:step[ \t]+[0-9]{1,9}\b[.):–—-]?|[0-9]{1,9}[.):])(?:[ \t]+(.*))?", "i"
)
# Two spaces or more make an item a part of the one above.
_ITEM = Pattern(r" ?(?:[-*+]|[0-9]{1,9}[.)])[ \t]+(.*)")
_STEPS_TITLE = Pattern(r"(?:the[ \t]+)?(?:steps?|plan|to[ -]?dos?|tasks)[ \t]*:?", "i")
_NUMBERED_ITEM = Pattern(r" ?[0-9]{1,9}[.)][ \t]+(.*)")
_DONE = Pattern(
    r"[✅☑✔]|\[[xX]\](?![(\[:])|\((?:done|completed|finished)\)|~~[^~]+~~"
    r"|(?:[–—→]|[ \t]-{1,2}|:)[ \t]*[*_]{0,2}(?:done|completed|finished)[*_.]{0,3}[ \t]*$",
    "i",
)
_DONE_BELOW = Pattern(r"\W*(?:status|result)\W+(?:done|completed?|finished|succe\w+|ok)\b.*", "i")


@frozen
class TaskStep:
    """A step. `line` counts from 1; `section` is the title of its section, "" before the first.

    `role` does the step, as it is written there; None where no role is named.
    """

    line: int
    text: str
    done: bool
    section: str
    role: str | None

    def __str__(self) -> str:
        place = " ".join(part for part in (self.role and f"[{self.role}]", self.section) if part)
        if place:
            return f"line {self.line} {place}: {self.text}"
        return f"line {self.line}: {self.text}"


@frozen
class Section:
    """A heading and the lines below it, up to the next heading of any level.

    `line` is the heading's, from 1; `title` is without the role. `parent` is the index of the
    section around it.
    """

    line: int
    level: int
    title: str
    role: str | None
    parent: int | None


@frozen
class Outline:
    """The sections and steps of a text, in order, and the role that owns it (None where it names
    none).
    """

    sections: tuple[Section, ...] = ()
    steps: tuple[TaskStep, ...] = ()
    owner: str | None = None

    def next_step(self, role: str | None = None) -> TaskStep | None:
        """The first step that is not done; with `role`, the first that this role or any role
        does.
        """
        return next(
            (step for step in self.steps if not step.done and not _is_others(step.role, role)), None
        )

    def is_owned_by(self, role: str) -> bool:
        """Whether `role` may change the text: it owns it, or no role does."""
        return not _is_others(self.owner, role)


def role_key(role: str) -> str:
    """A role without differences of case and spacing."""
    return " ".join(role.split()).casefold()


def _is_others(named: str | None, role: str | None) -> bool:
    return named is not None and role is not None and role_key(named) != role_key(role)


def read_outline(text: str) -> Outline:
    """The outline of a text whose lines end with a line feed. Any text has one."""
    lines = text.split("\n")
    outside = list(_outside_fences(lines))
    heads = [
        (number, len(head[1]), _without_closing(head[2] or ""))
        for number, line in outside
        if (head := _HEADING.fullmatch(line)) is not None
    ]
    sections = _sections(heads)
    steps = (
        _checkboxes(outside, sections)
        or _numbered_headings(outside, sections)
        or _items(outside, sections, _ITEM, below=_STEPS_TITLE)
        or _items(outside, sections, _NUMBERED_ITEM)
    )
    first = next((section.line for section in sections if section.level > 1), len(lines) + 1)
    return Outline(tuple(sections), tuple(steps), owner=_owner(outside, first))


def with_owner(text: str, owner: str) -> str:
    """`text`, which names no owner, with a line that does: below its title, or at its beginning."""
    lines = text.split("\n")
    title = next((at for at, line in enumerate(lines) if line.strip()), 0)
    line = f"- **Owner**: {' '.join(owner.split())}"
    if re.match(r" {0,3}#[ \t]", lines[title]):
        return "\n".join([*lines[: title + 1], "", line, *lines[title + 1 :]])
    return "\n".join([line, "", *lines])


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
    if not bare or bare[-1] in " \t":
        return bare.rstrip(" \t")
    return title


def _sections(heads: Sequence[tuple[int, int, str]]) -> list[Section]:
    sections: list[Section] = []
    above: list[int] = []
    for place, (number, level, title) in enumerate(heads):
        while above and sections[above[-1]].level >= level:
            above.pop()
        parent = None
        if above:
            parent = above[-1]
        role = None
        if parent is not None:
            role = sections[parent].role
        if level > 1 and role is None:
            named = _ROLE.match(title)
        else:
            named = None
        if named is not None:
            role = " ".join(named[1].split())
            title = named[2]
        sections.append(Section(number, level, title=title, role=role, parent=parent))
        above.append(place)
    return sections


def _owner(outside: Sequence[tuple[int, str]], end: int) -> str | None:
    for number, line in outside:
        if number >= end:
            break
        named = _OWNER.fullmatch(line)
        if named is not None:
            return " ".join(named[1].strip().strip("[]").split()) or None
    return None


# -- steps -----------------------------------------------------------------------------------------


def _in_sections(
    outside: Sequence[tuple[int, str]], sections: Sequence[Section]
) -> Iterator[tuple[int, str, Section | None]]:
    """The lines, each with the section that it is in; a heading is in its own."""
    current = None
    following = iter(sections)
    coming = next(following, None)
    for number, line in outside:
        if coming is not None and number == coming.line:
            current = coming
            coming = next(following, None)
        yield number, line, current


def _step(number: int, text: str, done: bool, section: Section | None) -> TaskStep:
    if section is None:
        return TaskStep(number, text.strip(), done=done, section="", role=None)
    return TaskStep(number, text.strip(), done=done, section=section.title, role=section.role)


def _checkboxes(outside: Sequence[tuple[int, str]], sections: Sequence[Section]) -> list[TaskStep]:
    return [
        _step(number, box[2] or "", done=box[1] != " ", section=section)
        for number, line, section in _in_sections(outside, sections)
        if (box := _STEP.fullmatch(line)) is not None
    ]


def _numbered_headings(
    outside: Sequence[tuple[int, str]], sections: Sequence[Section]
) -> list[TaskStep]:
    done_below = {
        section.line
        for _, line, section in _in_sections(outside, sections)
        if section and _DONE_BELOW.fullmatch(line)
    }
    steps: list[TaskStep] = []
    for section in sections:
        if section.level > 1 and _NUMBERED_TITLE.fullmatch(section.title):
            if section.parent is None or sections[section.parent].level == 1:
                around = None
            else:
                around = sections[section.parent]
            done = _DONE.search(section.title) is not None or section.line in done_below
            steps.append(
                TaskStep(
                    section.line,
                    section.title,
                    done=done,
                    section=around.title if around else "",
                    role=section.role,
                )
            )
    return steps


def _items(
    outside: Sequence[tuple[int, str]],
    sections: Sequence[Section],
    pattern: Pattern,
    below: Pattern | None = None,
) -> list[TaskStep]:
    """The list items that are steps; with `below`, those of the sections with such a title."""
    return [
        _step(number, item[1], done=_DONE.search(item[1]) is not None, section=section)
        for number, line, section in _in_sections(outside, sections)
        if (item := pattern.fullmatch(line)) is not None
        and (below is None or (section is not None and below.fullmatch(section.title)))
    ]
