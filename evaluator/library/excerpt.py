"""Formats a diagnostic for a person: place, message, the offending line with a caret, the hint."""

from __future__ import annotations

import unicodedata

from evaluator.errors import Diagnostic

_WIDTH = 160


def excerpt(line: str, column: int) -> str:
    """`line` and a caret under its `column` (from 1), cut to a readable width around it.

    Control characters are shown as `?`, so that a hostile file cannot control a terminal.
    """
    column = max(1, min(column, len(line) + 1))
    start = 0
    if len(line) > _WIDTH:
        start = max(0, min(column - 1 - _WIDTH // 2, len(line) - _WIDTH))
        line = line[start : start + _WIDTH]
    shown = "".join(c if c == "\t" or c.isprintable() else "?" for c in line)
    pad = "".join(_blank(c) for c in shown[: column - 1 - start])
    return f"    {shown}\n    {pad}^"


def _blank(character: str) -> str:
    if character == "\t":
        return "\t"
    if unicodedata.combining(character):
        return ""
    if unicodedata.east_asian_width(character) in "WF":
        return "  "
    return " "


def format_with_line(diagnostic: Diagnostic, line: str | None) -> str:
    """The diagnostic over several lines; without an excerpt where the source has no such line."""
    parts = [f"{diagnostic.span}: {diagnostic.severity}: {diagnostic.message} [{diagnostic.code}]"]
    if line is not None:
        parts.append(excerpt(line, diagnostic.span.column))
    if diagnostic.hint:
        parts.append(f"  hint: {diagnostic.hint}")
    return "\n".join(parts)
