"""HTML for notebooks: tables in which every text is data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from evaluator.errors.messages import visible

_MAX_CHARS = 2000


def text(value: object) -> str:
    """A value as escaped text, with control characters made visible, cut at 2,000 characters."""
    shown = str(value)
    if len(shown) > _MAX_CHARS:
        shown = f"{shown[:_MAX_CHARS]}…"
    return escape(visible(shown))


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table; its head has the names of the columns."""
    names = "".join(f"<th>{text(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def fields(title: str, values: Mapping[str, object]) -> str:
    """A table with a row for each value that is not None or empty."""
    rows = "".join(
        f'<tr><th>{text(name)}</th><td style="white-space: pre-wrap; text-align: '
        f'left">{text(value)}</td></tr>'
        for name, value in values.items()
        if value not in (None, "", ())
    )
    return f"<table><caption>{text(title)}</caption><tbody>{rows}</tbody></table>"
