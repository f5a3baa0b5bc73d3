"""The JSON form of what a page shows, and the HTML file whose script draws it.

The server's pages and the report are drawn by the same script from the same JSON. No value becomes
markup: the script enters every text as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from functools import cache
from importlib.resources import files
from typing import Any, cast

from evaluator.batch.export.result_table import clean
from evaluator.errors.messages import visible, visible_json
from evaluator.lazy_dataclass import frozen

MAX_TEXT_CHARS = 200_000
MAX_PAGE_CHARS = 5_000_000
"""What the texts of a page have together; after that each is cut to MIN_TEXT_CHARS."""
MIN_TEXT_CHARS = 1_000
MAX_DEPTH = 100
_EXACT = 2**53

SCRIPTS = (
    "vendor/marked.js",
    "dom.js",
    "text.js",
    "parts.js",
    "plots.js",
    "numbers.js",
    "decision.js",
    "matrix.js",
    "sample.js",
    "compare.js",
    "run.js",
    "start.js",
    "lists.js",
    "label.js",
    "report.js",
    "main.js",
)
STYLE = "page.css"


Query = Mapping[str, str]
"""The values of an address and of a form."""


@frozen
class Page:
    """A page: the view of the script that draws it, its values, how often it asks for newer ones
    (in milliseconds; 0: never), and the status of the response.
    """

    view: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    live_ms: int = 0
    status: int = 200


class JsonForm:
    """Values as JSON that a browser reads without loss, except that texts are cut: each after
    `max_text` characters, and further once all have `max_total` together.
    """

    def __init__(
        self, max_text: int = MAX_TEXT_CHARS, max_total: float = math.inf, note: bool = True
    ) -> None:
        """`note`: a text that is cut says so at its end."""
        self._max_text = max_text
        self._left = max_total
        self._note = note

    def encode(self, value: Any) -> bytes:
        """JSON for a script element: without `<`, NaN and control characters, as UTF-8."""
        text = json.dumps(
            self.plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
        return visible_json(clean(text)).replace("<", "\\u003c").encode()

    def plain(self, value: Any, depth: int = 0) -> Any:
        """The value of dicts, lists, texts and numbers only."""
        match value:
            case str():
                return self._text(value)
            case bool() | None:
                return value
            case int():
                if abs(value) <= _EXACT:
                    return value
                return self._text(str(value))
            case float():
                if math.isfinite(value):
                    return value
                return repr(value)
            case _ if depth > MAX_DEPTH:
                return "[nested too deeply to show]"
            case Mapping():
                pairs = cast("Mapping[Any, Any]", value).items()
                return {self._text(str(name)): self.plain(each, depth + 1) for name, each in pairs}
            case list() | tuple():
                return [self.plain(each, depth + 1) for each in cast("list[Any]", value)]
            case _ if is_dataclass(value):
                return {
                    each.name: self.plain(getattr(value, each.name), depth + 1)
                    for each in fields(value)
                }
            case _:
                return self._text(str(value))

    def _text(self, text: str) -> str:
        text = str(text)
        limit = self._max_text
        if len(text) > self._left:
            limit = min(limit, max(MIN_TEXT_CHARS, int(self._left)))
        self._left = max(0, self._left - min(len(text), limit))
        if len(text) <= limit:
            return text
        if not self._note:
            return f"{text[:limit]}…"
        return f"{text[:limit]}… (the first {limit:,} of {len(text):,} characters)"


def encoded(value: Any, max_text: int = MAX_TEXT_CHARS) -> bytes:
    """As `JsonForm.encode`."""
    return JsonForm(max_text).encode(value)


@cache
def style() -> str:
    return _asset(STYLE)


@cache
def icon() -> str:
    return _asset("icon.svg")


@cache
def script() -> str:
    parts = "\n".join(_asset(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


@cache
def file_parts() -> tuple[str, str]:
    """A page of one file before and after its data; it loads nothing. The first part has a
    placeholder for the title, see `with_title`.

    The policy names style and script by their hashes, so that markup which got into the page would
    not run. Source: https://www.w3.org/TR/CSP3/, "Hash usage for script elements".
    """
    policy = (
        f"default-src 'none'; style-src '{_hash(style())}'; script-src '{_hash(script())}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return _parts(
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<style>{style()}</style>",
        f"<script>{script()}</script>",
    )


@cache
def served_parts() -> tuple[str, str]:
    """As `file_parts`, of a page that loads style and script from the server."""
    return _parts(
        '<link rel="icon" href="/assets/icon.svg">\n'
        '<link rel="stylesheet" href="/assets/page.css">\n'
        '<script src="/assets/page.js" defer></script>',
        "",
    )


def with_title(before: str, title: str) -> str:
    return before.replace("{{title}}", html.escape(visible(clean(title), one_line=True)), 1)


def _parts(head: str, script: str) -> tuple[str, str]:
    page = _asset("page.html").replace("{{head}}", head).replace("{{script}}", script)
    before, _, after = page.partition("{{data}}")
    return before, after


def _asset(name: str) -> str:
    return (files("evaluator.viewer") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
