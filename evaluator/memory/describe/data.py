"""Data and settings: columns, keys, sections, tables and root elements, without any value."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import islice

from evaluator.memory.describe.base import LOOKED_AT_CHARS, MAX_ITEMS, Description, make
from evaluator.patterns import Pattern

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
