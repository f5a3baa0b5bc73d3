"""The HTML of the page: one file that loads nothing, with a content security policy that allows
only its own scripts.

The policy names the style and the script by their hashes, so that text which got into the page as
markup would not run. Source: https://www.w3.org/TR/CSP3/, "Hash usage for script elements".
"""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from importlib.resources import files

_SCRIPTS = (
    "dom.js",
    "plots.js",
    "summary.js",
    "comparison.js",
    "filters.js",
    "samples.js",
    "detail.js",
    "main.js",
)


@cache
def page_parts() -> tuple[str, str]:
    """The page before and after the data. The first part has a placeholder for the title; see
    `with_title`.
    """
    style = f"\n{_asset('report.css')}"
    script = (
        '\n(function () {\n"use strict";\n'
        + "\n".join(map(_asset, _SCRIPTS))
        + "\nmain();\n})();\n"
    )
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _asset("report.html").replace("{{policy}}", policy).replace("{{style}}", style)
    before, _, after = page.replace("{{script}}", script).partition("{{data}}")
    return before, after


def with_title(before: str, title: str) -> str:
    return before.replace("{{title}}", html.escape(title), 1)


def _asset(name: str) -> str:
    return (files("evaluator.viewer") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
