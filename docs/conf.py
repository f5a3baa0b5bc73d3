"""Sphinx with MyST and Furo; needs no network. Build: sphinx-build -W -b html docs docs/_build/html"""

from evaluator import __version__

project = "evaluator"
author = "the evaluator authors"
copyright = "the evaluator authors, Apache-2.0"
release = version = __version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
root_doc = "index"

myst_heading_anchors = 3
myst_enable_extensions = ["deflist", "fieldlist"]
# `sh` and `text` are shown as they are; template text inside `xml` is not always XML that Pygments knows.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"evaluator {release}"
html_copy_source = False
