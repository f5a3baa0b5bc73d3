"""Sphinx with MyST and Furo; needs no network. Build: sphinx-build -W -b html docs
docs/_build/html
"""

import re

from sphinx.application import Sphinx

from evaluator import __version__

project = "evaluator"
author = "the evaluator authors"
copyright = "the evaluator authors, Apache-2.0"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
root_doc = "index"

myst_heading_anchors = 3
myst_enable_extensions = ["deflist", "fieldlist"]
# `sh` and `text` are shown as they are; template text inside `xml` is not always XML that Pygments
# knows.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"evaluator {release}"
html_copy_source = False

# The API pages come from the docstrings. These are plain text with names in single backticks:
# everything else that reStructuredText would read as markup is escaped.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
default_role = "code"


def _escape(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    indented = False
    for index, line in enumerate(lines):
        indented = bool(line[:1].isspace()) if line.strip() else indented
        if not indented:
            escaped = re.sub(r"[*|\\_](?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\\g<0>", line)
            # A closing backtick must not be followed by a letter, as in the plural of a name.
            lines[index] = re.sub(
                r"(`[^`]+`)(\w)?",
                lambda code: rf"{code[1]}\ {code[2]}" if code[2] else code[1],
                escaped,
            )


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _escape)
