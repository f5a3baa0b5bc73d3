"""Describers: what a file is about, by its kind. Each is a pure function of the text, linear in it
and bounded.

A file whose kind has no describer is described by its name alone, so that a log, a key or a list of
passwords leaves nothing in the index.

Documents: the headings of Markdown, reStructuredText, HTML and notebooks.

Data and settings: columns, keys, sections, tables and root elements, without any value.
"""

from __future__ import annotations

import csv
import html
import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, pairwise
from typing import Any, cast

from evaluator.memory.describe.code import (
    EXTENSIONS,
    LOOKED_AT_CHARS,
    MAX_ITEMS,
    Description,
    describe_code,
    describe_python,
    make,
)
from evaluator.patterns import Pattern

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
    front = ""
    if text.startswith("---"):
        front = text[:4_000].split("\n---", 1)[0]
    titled = _TITLE.search(front)
    summary = ""
    if titled:
        summary = titled.group(1)
    elif headings:
        summary = headings.pop(0)
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
        elif not above and line.strip()[:1] not in ("", "-", "|", ">", "*"):
            above = line.strip()
        else:
            above = ""  # a heading has one line; several lines are a paragraph


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
        (match.group(1).lower(), html.unescape(_TAG.sub("", match.group(2))))
        for match in _HTML_HEADING.finditer(text)
    ]
    title = next((text for tag, text in found if tag == "title"), "")
    meta = _META.search(text)
    headings = [text for tag, text in found if tag != "title"]
    return make(
        "html",
        summary=title,
        headings=[html.unescape(meta.group(1)), *headings] if meta else headings,
    )


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
    cells: Any
    if isinstance(notebook, dict):
        cells = cast("dict[str, Any]", notebook).get("cells")
    else:
        cells = None
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


_HEADER_CHARS = 20_000
# Strings and brackets. An unfinished string reaches to the end, as comments do below, so that one
# pass is enough.
_JSON_TOKEN = Pattern(r'"((?:[^"\\]|\\.)*+)(?:"(\s*+:)?|\\?\Z)|[{}\[\]]', "s")
# At the beginning of a line and without a comma: the values of an array are not a section.
_SECTION = Pattern(r"^\[{1,2}+([^\[\],\n]{1,200}+)\]{1,2}+[ \t]*+(?:[#;]|$)", "m")
_TOP_KEY = Pattern(r"^([A-Za-z_][\w.-]{0,80}|\"[^\"\n]{1,80}\")[ \t]*[=:]", "m")
_TABLE = Pattern(
    r"\b(?:CREATE|ALTER)[ \t\n]+(?:(?:OR[ \t\n]+REPLACE|TEMP(?:ORARY)?|UNIQUE"
    r"|MATERIALIZED)[ \t\n]+)?"
    r"(?:TABLE|VIEW|INDEX|FUNCTION|PROCEDURE|TRIGGER|TYPE"
    r"|SCHEMA)[ \t\n]+(?:IF[ \t\n]+NOT[ \t\n]+EXISTS[ \t\n]+)?"
    r"[\"`\[]?([\w.]{1,100})",
    "i",
)
_SQL_COMMENT = Pattern(r"--[^\n]*|/\*.*?(?:\*/|\Z)", "s")

_XML_SKIPPED = Pattern(r"<!--.*?(?:-->|\Z)|<\?.*?(?:\?>|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)", "s")
_XML_TAG = Pattern(r"<([A-Za-z_][\w.:-]{0,100})")
_TEMPLATE_ROOTS = frozenset({"task", "library", "function", "cond", "call", "handler"})
_XML_NAME = Pattern(
    r"<(?:task|function|handler|cond)\b[^<>]{0,500}?\bname\s*=\s*[\"']([^\"'<>]{1,100})[\"']"
)
_XML_DESCRIPTION = Pattern(r"<description\b[^<>]{0,100}>([^<]{1,600})</description\s*>")


def describe_table(separator: str, text: str) -> Description:
    """Returns the columns of a CSV or TSV, if its first line looks like a header: text in each
    cell, no number.

    Data without a header must not become names.
    """
    first = text[:_HEADER_CHARS].split("\n", 1)[0]
    if separator == "," and first.count(";") > first.count(","):
        separator = ";"
    try:
        cells = next(csv.reader([first], delimiter=separator), [])
    except csv.Error:
        cells = []
    columns = [cell.strip() for cell in islice(cells, MAX_ITEMS)]
    is_header = all(len(column) <= 60 and not _is_value(column) for column in columns)
    return make("tsv" if separator == "\t" else "csv", names=columns if is_header else ())


def _is_value(cell: str) -> bool:
    return bool(re.match(r"[-+]?[\d.]|\w+@|https?:", cell))


def describe_json(text: str) -> Description:
    """Returns the keys of the topmost object, or of the objects in a topmost list."""
    return make("json", names=_top_keys(text[:LOOKED_AT_CHARS]))


def _top_keys(text: str) -> Iterator[str]:
    """Reads token by token, so that deep and broken files take time by their length only."""
    depth = 0
    top = 2 if text.lstrip().startswith("[") else 1
    for match in _JSON_TOKEN.finditer(text):
        if match.group(0) in "{}[]":
            depth += 1 if match.group(0) in "{[" else -1
        elif match.group(2) is not None and depth == top:
            yield match.group(1)


def describe_settings(language: str, text: str) -> Description:
    """Returns the sections of TOML and INI; keys if there is no section, as in YAML."""
    text = text[:LOOKED_AT_CHARS]
    if language == "yaml":
        sections = []
    else:
        sections = [found.strip("\"' \t") for found in _SECTION.findall(text)]
    if sections:
        return make(language, names=sections)
    return make(language, names=(key.strip('"') for key in _TOP_KEY.findall(text)))


def describe_sql(text: str) -> Description:
    """Returns the tables, views and functions that statements create or alter."""
    return make("sql", names=_TABLE.findall(_SQL_COMMENT.sub(" ", text[:LOOKED_AT_CHARS])))


def describe_xml(text: str) -> Description:
    """Returns the root element; for task templates and profiles their names and descriptions."""
    text = _XML_SKIPPED.sub(" ", text[:LOOKED_AT_CHARS])
    root = _XML_TAG.search(text)
    if root is None:
        return make("xml")
    if root.group(1) not in _TEMPLATE_ROOTS:
        return make("xml", names=[root.group(1)])
    described = _XML_DESCRIPTION.findall(text)
    summary = described[0] if described else ""
    return make("template", summary=summary, headings=described[1:], names=_XML_NAME.findall(text))


__all__ = ["VERSION", "Description", "describe"]

VERSION = 2
"""Rises with every change of what describers find; files that another version described are
described again.
"""

_DESCRIBERS: dict[str, Callable[[str], Description]] = {
    ".py .pyi .pyw": describe_python,
    ".md .markdown .mdx": describe_markdown,
    ".rst": describe_rst,
    ".html .htm": describe_html,
    ".ipynb": describe_notebook,
    ".csv": partial(describe_table, ","),
    ".tsv": partial(describe_table, "\t"),
    ".json": describe_json,
    ".toml": partial(describe_settings, "toml"),
    ".ini .cfg": partial(describe_settings, "ini"),
    ".yaml .yml": partial(describe_settings, "yaml"),
    ".sql": describe_sql,
    ".xml .xsd .svg": describe_xml,
    **{extensions: partial(describe_code, language) for language, extensions in EXTENSIONS.items()},
}
_BY_EXTENSION = {
    extension: describer
    for extensions, describer in _DESCRIBERS.items()
    for extension in extensions.split()
}
_BY_SHEBANG: dict[str, Callable[[str], Description]] = {
    "python": describe_python,
    "bash": partial(describe_code, "shell"),
    "/sh": partial(describe_code, "shell"),
    "ruby": partial(describe_code, "ruby"),
    "node": partial(describe_code, "javascript"),
}


def describe(path: str, text: str) -> Description:
    """Returns the description of the file at `path` with this text, by its extension, or else its
    first line.
    """
    text = text.replace("\r\n", "\n")
    describer = _BY_EXTENSION.get(os.path.splitext(path)[1].lower())
    if describer is None and text.startswith("#!"):
        first = text[:200].partition("\n")[0]
        describer = next(
            (found for program, found in _BY_SHEBANG.items() if program in first), None
        )
    if describer is None:
        return make("")
    return describer(text)
