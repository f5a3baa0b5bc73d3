"""Describers: what a file is about, by its kind. Each is a pure function of the text, linear in it
and bounded.

A file whose kind has no describer is described by its name alone, so that a log, a key or a list of
passwords leaves nothing in the index.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from evaluator.memory.describe.base import Description, make
from evaluator.memory.describe.code import EXTENSIONS, describe_code, describe_python
from evaluator.memory.describe.documents import (
    describe_html,
    describe_json,
    describe_markdown,
    describe_notebook,
    describe_rst,
    describe_settings,
    describe_sql,
    describe_table,
    describe_xml,
)

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
