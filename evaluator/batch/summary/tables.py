"""Tables for terminals and for Markdown. Cells hold data: nothing in them is markup or acts on a
terminal.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from evaluator.batch.statistics import Estimate
from evaluator.errors import messages
from evaluator.errors.messages import visible
from evaluator.lazy_dataclass import frozen

_ACTS = re.compile(r"([\\`*_{}\[\]<>()#|~!&$])")
_ADDRESS = re.compile(r"(?i)\b(https?|ftp|www)(?=[:.])")
_MOST_PARTS = 3
UNKNOWN = "–"


@frozen
class Table:
    """A `title`, `lines` of prose, and rows under `head` if there are any."""

    title: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    lines: Sequence[str] = ()


class Tabular:
    """A value that is shown as tables: as text when it is printed, as Markdown in a notebook."""

    __slots__ = ()

    def tables(self) -> Iterable[Table]:
        raise NotImplementedError

    def __str__(self) -> str:
        return self.to_text()

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """The tables as HTML, with every text escaped."""
        return as_html(self.tables())

    def to_text(self, width: int = 100) -> str:
        """The tables for a terminal of `width` columns. Ends with a newline."""
        return as_text(self.tables(), width)

    def to_markdown(self) -> str:
        """The tables as Markdown. Ends with a newline."""
        return as_markdown(self.tables())


def number(value: float | None) -> str:
    """A number with four digits; "–" where it is unknown."""
    if value is None:
        return UNKNOWN
    return f"{value:.4g}"


def percent(share: float | None) -> str:
    """A share with one decimal of a percent; "–" where it is unknown."""
    if share is None:
        return UNKNOWN
    return f"{100 * share:.1f} %"


def interval(low: float | None, high: float | None) -> str:
    """An interval with four digits; "–" without one."""
    if low is None or high is None:
        return UNKNOWN
    return f"{low:.4g} to {high:.4g}"


def percent_interval(estimate: Estimate) -> str:
    """The interval of a share; "–" without one."""
    if estimate.low is None or estimate.high is None:
        return UNKNOWN
    return f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f} %"


def as_text(tables: Iterable[Table], width: int) -> str:
    """Tables for a terminal of `width` columns, at least 20. Ends with a newline.

    A table that is too wide is split into up to three parts below each other, each with the first
    column. A table that needs more parts is written as a list with a few lines for each row.
    """
    width = max(20, width)
    parts = [
        [
            *_wrapped(_plain(table.title), width, indent=""),
            *_prose(table.lines, width),
            *_rows(table, width),
        ]
        for table in tables
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def as_html(tables: Iterable[Table]) -> str:
    """Tables as HTML, with every text escaped."""
    parts: list[str] = []
    for each in tables:
        parts.append(f"<h4>{messages.text(each.title)}</h4>")
        parts.extend(f"<div>{messages.text(line)}</div>" for line in each.lines)
        if each.rows:
            parts.append(messages.table(each.head, each.rows))
    return "".join(parts)


def as_markdown(tables: Iterable[Table]) -> str:
    """Tables as GitHub-flavoured Markdown with markup in cells escaped. Ends with a newline."""
    parts: list[str] = []
    for table in tables:
        parts.append(f"### {_escaped(table.title)}")
        parts.extend(_escaped(line) for line in table.lines)
        if table.rows:
            rule = ["---", *["---:"] * (len(table.head) - 1)]
            cells = [[_escaped(cell) for cell in row] for row in (table.head, *table.rows)]
            parts.append(
                "\n".join("| " + " | ".join(row) + " |" for row in (cells[0], rule, *cells[1:]))
            )
    return "\n\n".join(parts) + "\n"


def _rows(table: Table, width: int) -> list[str]:
    if not table.rows:
        return []
    cells = [[_plain(cell) for cell in row] for row in (table.head, *table.rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.head))]
    parts = _parts(widths, width)
    if len(parts) > _MOST_PARTS or any(_length(part, widths) > width for part in parts):
        return _list(cells, width)
    lines = [[_line(row, part, widths=widths) for row in cells] for part in parts]
    return [line for part in lines for line in ("", *part)][1:]


def _parts(widths: Sequence[int], width: int) -> list[list[int]]:
    """The columns of each part: as few parts as possible, of about equal width."""
    count = len(_filled(widths, width))
    narrower = (_filled(widths, limit) for limit in range(width + 1))
    return next(parts for parts in narrower if len(parts) == count)


def _filled(widths: Sequence[int], width: int) -> list[list[int]]:
    """The columns of each part: the first column and as many others as fit, at least one."""
    parts = [[0]]
    for column in range(1, len(widths)):
        if len(parts[-1]) > 1 and _length([*parts[-1], column], widths) > width:
            parts.append([0])
        parts[-1].append(column)
    return parts


def _length(columns: Sequence[int], widths: Sequence[int]) -> int:
    return sum(2 + widths[column] for column in columns)


def _line(row: Sequence[str], columns: Sequence[int], widths: Sequence[int]) -> str:
    first, *others = columns
    cells = [
        row[first].ljust(widths[first]),
        *(row[column].rjust(widths[column]) for column in others),
    ]
    return ("  " + "  ".join(cells)).rstrip()


def _list(cells: list[list[str]], width: int) -> list[str]:
    """Each row as a list: its first cell on a line, the others with their heads below it."""
    head, *rows = cells
    lines: list[str] = []
    for first, *others in rows:
        lines.extend(_wrapped(first, width, indent="  "))
        named = ", ".join(
            f"{name} {cell}" for name, cell in zip(head[1:], others, strict=True) if cell
        )
        lines.extend(_wrapped(named, width, indent="    "))
    return lines


def _prose(lines: Sequence[str], width: int) -> list[str]:
    return [part for line in lines for part in _wrapped(_plain(line), width, indent="  ")]


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ") or [
        indent
    ]


def _plain(text: str) -> str:
    return visible(" ".join(text.split()), one_line=True)


def _escaped(text: str) -> str:
    return _ADDRESS.sub(r"\1\\", _ACTS.sub(r"\\\1", _plain(text)))
