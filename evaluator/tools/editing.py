"""Replaces exact text, and shows a change as a diff. No file is accessed here."""

from __future__ import annotations

import difflib

from evaluator.errors import ToolError
from evaluator.patterns import Pattern

_NEAR_LINES = 5_000
_NEAR_CHARS = 200
_DIFFED_LINES = 1_000
_CONTEXT = 3
_LINE = Pattern(r"[^\n]*\n|[^\n]+")
_BARE_LF = Pattern(r"(?<!\r)\n")


def replace_text(text: str, old: str, new: str, count: int, path: str) -> tuple[str, int]:
    """`text` with each `old` replaced by `new`, and the number of replacements.

    In a text whose lines all end in CR LF, a line feed in `old` and `new` means that too. Raises
    ToolError where `old` does not occur, with the nearest lines, or more than `count` times.
    """
    if not old:
        raise ToolError("old is empty; give the text to replace, or write the whole file")
    if "\r\n" in text and not _BARE_LF.search(text):
        old = _BARE_LF.sub("\r\n", old)
        new = _BARE_LF.sub("\r\n", new)
    if old == new:
        raise ToolError("old and new are the same text; nothing would change")
    found = text.count(old)
    if found == 0:
        raise ToolError(f"old does not occur in {path!r}{_help(text, old)}")
    if found > count:
        raise ToolError(
            f"old occurs {found} times in {path!r} and count is {count}; give more of the lines "
            "around it, "
            f"or count={found} to change them all"
        )
    return text.replace(old, new), found


def _help(text: str, old: str) -> str:
    """A hint for a text that does not occur: similar lines among the first 5,000."""
    lines = text.split("\n", _NEAR_LINES)[:_NEAR_LINES]
    if " ".join(old.split()) in " ".join(" ".join(lines).split()):
        hint = "; it occurs with different white space or line ends"
    else:
        hint = ""
    wanted = next((line.strip()[:_NEAR_CHARS] for line in old.split("\n") if line.strip()), "")
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        numbers.setdefault(line.strip()[:_NEAR_CHARS], number)
    near = difflib.get_close_matches(wanted, [line for line in numbers if line], n=3, cutoff=0.6)
    if not near:
        return hint or "; no line is similar"
    shown = "; ".join(f"line {numbers[line]}: {line!r}" for line in near)
    return f"{hint}. Nearest to its first line: {shown}"


def diff(before: str, after: str) -> str:
    """The changed lines, marked with `-` and `+`, with three unchanged lines around them.

    If there are more than 1,000 lines from the first to the last change, all of them are shown as
    replaced.
    """
    old = _lines(before)
    new = _lines(after)
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    tail = 0
    while tail < min(len(old), len(new)) - same and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    start = max(same - _CONTEXT, 0)
    left = old[start : len(old) - max(tail - _CONTEXT, 0)]
    right = new[start : len(new) - max(tail - _CONTEXT, 0)]
    if max(len(left), len(right)) > _DIFFED_LINES:
        shown = [f"-{line}" for line in left] + [f"+{line}" for line in right]
        return "\n".join([f"@@ from line {start + 1} @@", *shown])
    hunks: list[str] = []
    for group in difflib.SequenceMatcher(None, left, right, autojunk=False).get_grouped_opcodes(
        _CONTEXT
    ):
        hunks.append(f"@@ from line {start + group[0][1] + 1} @@")
        for kind, i1, i2, j1, j2 in group:
            if kind == "equal":
                hunks += [f" {line}" for line in left[i1:i2]]
            else:
                hunks += [f"-{line}" for line in left[i1:i2]] + [
                    f"+{line}" for line in right[j1:j2]
                ]
    return "\n".join(hunks)


def lines_of(text: str) -> list[str]:
    """Lines with their line feed; only the last may have none."""
    return _LINE.findall(text)


def _lines(text: str) -> list[str]:
    """Lines without their line feed; a last line without one is marked."""
    return [
        line[:-1] if line[-1] == "\n" else f"{line}  (no line feed at the end)"
        for line in lines_of(text)
    ]
