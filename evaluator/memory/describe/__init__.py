"""Describers: what a file is about, by its kind. Each is a pure function of the text, linear in it and bounded.

A file whose kind has no describer is described by its name alone: text that nobody knows how to read
metadata out of (a log, a key, a list of passwords) leaves nothing in the index.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from evaluator.memory.describe.base import Description, make
from evaluator.memory.describe.code import LANGUAGES, describe_code
from evaluator.memory.describe.data import describe_json, describe_settings, describe_sql, describe_table, describe_xml
from evaluator.memory.describe.documents import describe_html, describe_markdown, describe_notebook, describe_rst
from evaluator.memory.describe.python import describe_python

VERSION = 1
"""Goes up with every change of what describers find or terms weigh: what another version indexed is read anew."""

_BY_EXTENSION: dict[str, Callable[[str], Description]] = {
    ".py": describe_python,
    ".pyi": describe_python,
    ".pyw": describe_python,
    ".md": describe_markdown,
    ".markdown": describe_markdown,
    ".mdx": describe_markdown,
    ".rst": describe_rst,
    ".html": describe_html,
    ".htm": describe_html,
    ".ipynb": describe_notebook,
    ".csv": lambda text: describe_table(text, ","),
    ".tsv": lambda text: describe_table(text, "\t"),
    ".json": describe_json,
    ".toml": lambda text: describe_settings("toml", text),
    ".ini": lambda text: describe_settings("ini", text),
    ".cfg": lambda text: describe_settings("ini", text),
    ".yaml": lambda text: describe_settings("yaml", text),
    ".yml": lambda text: describe_settings("yaml", text),
    ".sql": describe_sql,
    ".xml": describe_xml,
    ".xsd": describe_xml,
    ".svg": describe_xml,
}
_SHEBANG_LANGUAGES = (
    ("python", "python"),
    ("bash", "shell"),
    ("/sh", "shell"),
    ("ruby", "ruby"),
    ("node", "javascript"),
)


def describe(path: str, text: str) -> Description:
    """The description of the file called `path` whose text is `text`; by its extension, or else its first line."""
    text = text.replace("\r\n", "\n")
    extension = os.path.splitext(path)[1].lower()
    describer = _BY_EXTENSION.get(extension)
    if describer is not None:
        return describer(text)
    if extension in LANGUAGES:
        return describe_code(LANGUAGES[extension], text, extension)
    if text.startswith("#!"):
        first = text[:200].partition("\n")[0]
        for mark, language in _SHEBANG_LANGUAGES:
            if mark in first:
                return describe_python(text) if language == "python" else describe_code(language, text)
    return make("")


__all__ = ["VERSION", "Description", "describe"]
