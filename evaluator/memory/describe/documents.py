"""Documents: the headings of Markdown, reStructuredText, HTML and notebooks."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

from evaluator.memory.describe.base import LOOKED_AT_CHARS, Description, make
from evaluator.memory.describe.code import describe_code

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ATX = re.compile(r" {0,3}#{1,6}[ \t]+(.{1,300}?)[ \t#]*$")
_MARKUP = re.compile(r"!?\[([^\[\]\n]{0,200})\]\([^()\n]{0,500}\)|[*_`]{1,3}")
_TITLE = re.compile(r"^title:[ \t]*[\"']?([^\n]{1,200}?)[\"']?[ \t]*$", re.MULTILINE)

_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1{2,}[ \t]*$")

# An element that is never closed reaches to the end: looking for its end at each place would be
# quadratic.
_NOT_SHOWN = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style)\b[^>]{0,500}>.*?(?:</\1\s{0,20}>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_HTML_HEADING = re.compile(
    r"<(title|h[1-6])\b[^>]{0,500}>([^\x00]{0,600}?)</\1\s{0,20}>", re.IGNORECASE
)
_META = re.compile(
    r"<meta\b[^>]{0,100}\bname=[\"']description[\"'][^>]{0,100}\bcontent=[\"']([^\"'>]{1,300})",
    re.I,
)
_TAG = re.compile(r"<[^<>]{0,500}>")

MAX_NOTEBOOK_CHARS = 4_000_000
_CELLS = 400
_CELL_CHARS = 20_000


def describe_markdown(text: str) -> Description:
    """Returns the headings outside fenced blocks; the summary is the title, from the front matter
    if it has one.
    """
    headings = list(_markdown_headings(text[:LOOKED_AT_CHARS]))
    if text.startswith("---"):
        front = text[:4_000].split("\n---", 1)[0]
    else:
        front = ""
    titled = _TITLE.search(front)
    if titled:
        summary = titled.group(1)
    elif headings:
        summary = headings.pop(0)
    else:
        summary = ""
    return make("markdown", summary=summary, headings=headings)


def _markdown_headings(text: str) -> Iterator[str]:
    fence = above = ""
    for line in text.split("\n"):
        line = line.rstrip("\r")
        mark = _FENCE.match(line)
        if fence:
            if mark and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            continue
        if mark:
            fence = mark.group(1)
            above = ""
        elif found := _ATX.match(line[:400]):
            yield _MARKUP.sub(r"\1", found.group(1))
            above = ""
        elif (
            above and len(above) <= 200 and re.fullmatch(r" {0,3}(?:={2,}|-{3,})[ \t]*", line[:300])
        ):
            yield _MARKUP.sub(r"\1", above)
            above = ""
        else:
            # A heading has one line; several lines are a paragraph.
            if not above and line.strip()[:1] not in ("", "-", "|", ">", "*"):
                above = line.strip()
            else:
                above = ""


def describe_rst(text: str) -> Description:
    """Returns the titles, found by their underlines; the summary is the first."""
    lines = [line[:300].rstrip() for line in text[:LOOKED_AT_CHARS].split("\n")]
    titles: list[str] = []
    for above, line in pairwise(lines):
        is_title = above and not above[0].isspace() and not _ADORNMENT.match(above)
        if is_title and _ADORNMENT.match(line) and len(line) >= len(above) * 0.8:
            titles.append(above.replace("`", "").replace("*", ""))
    return make("restructuredtext", summary=titles[0] if titles else "", headings=titles[1:])


def describe_html(text: str) -> Description:
    """Returns the title, the headings and the meta description."""
    text = _NOT_SHOWN.sub(" ", text[:LOOKED_AT_CHARS])
    found = [
        (match.group(1).lower(), _plain(match.group(2))) for match in _HTML_HEADING.finditer(text)
    ]
    title = next((text for tag, text in found if tag == "title"), "")
    meta = _META.search(text)
    headings = [text for tag, text in found if tag != "title"]
    return make(
        "html",
        summary=title,
        headings=[html.unescape(meta.group(1)), *headings] if meta else headings,
    )


def _plain(markup: str) -> str:
    return html.unescape(_TAG.sub("", markup))


def describe_notebook(text: str) -> Description:
    """Returns the headings of Markdown cells and the names that code cells define; outputs are
    ignored.
    """
    headings: list[str] = []
    names: list[str] = []
    for kind, source in _cells(text):
        if kind == "markdown":
            headings += _markdown_headings(source)
        elif kind == "code":
            names += describe_code("python", source).names
    return make(
        "notebook", summary=headings[0] if headings else "", headings=headings[1:], names=names
    )


def _cells(text: str) -> Iterator[tuple[str, str]]:
    if len(text) > MAX_NOTEBOOK_CHARS:
        return
    try:
        notebook: Any = json.loads(text)
    except (ValueError, RecursionError):
        return
    cells: Any = (
        cast("dict[str, Any]", notebook).get("cells") if isinstance(notebook, dict) else None
    )
    for cell in cast("list[Any]", cells)[:_CELLS] if isinstance(cells, list) else []:
        if not isinstance(cell, dict):
            continue
        fields = cast("dict[str, Any]", cell)
        source = fields.get("source")
        if isinstance(source, list):
            lines = cast("list[Any]", source)[:1_000]
            source = "".join(line for line in lines if isinstance(line, str))
        if isinstance(source, str):
            yield str(fields.get("cell_type")), source[:_CELL_CHARS]
