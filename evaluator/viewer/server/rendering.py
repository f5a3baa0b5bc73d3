"""Pages from Jinja2 templates. Every value is text: control characters are made visible, then
markup is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, Undefined
from markupsafe import Markup

from evaluator.errors.messages import duration_text, visible
from evaluator.errors.results import Usage
from evaluator.output.strict import too_deep
from evaluator.record.conversation import MAX_SHOWN_DEPTH, TOO_DEEP
from evaluator.record.render import cost_text, tokens_text
from evaluator.record.steps import plain_json

MAX_TEXT_CHARS = 200_000
MAX_PAGE_CHARS = 5_000_000
"""What the texts of a page have together; after that each is cut to MIN_TEXT_CHARS."""
MIN_TEXT_CHARS = 1_000
_used_chars: ContextVar[int] = ContextVar("used_chars", default=0)


@dataclass(frozen=True, slots=True)
class Page:
    """A page to be rendered: the file in `pages/`, its values, and the status of the response."""

    template: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    status: int = 200


def make_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "pages"),
        autoescape=True,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "address": with_query,
        "brief": brief,
        "cost": lambda usage: cost_text(_counted(usage)),
        "count": lambda number: f"{number:,}",
        "duration": _duration,
        "minute": lambda time: str(time or "")[:16].replace("T", " "),
        "pretty": pretty,
        "time": _time,
        "tokens": lambda usage: tokens_text(_counted(usage)),
    }
    return environment


def render(environment: Environment, page: Page, **shared: Any) -> str:
    """The HTML of a page; `shared` are values that all pages have."""
    _used_chars.set(0)
    return environment.get_template(page.template).render(**shared, **page.values)


def _finalized(value: Any) -> Any:
    if isinstance(value, Markup):
        return value
    if value is None:
        return ""
    text = str(value)
    used = _used_chars.get()
    limit = max(MIN_TEXT_CHARS, min(MAX_TEXT_CHARS, MAX_PAGE_CHARS - used))
    _used_chars.set(used + min(len(text), limit))
    if len(text) > limit:
        text = f"{text[:limit]}… (the first {limit:,} of {len(text):,} characters)"
    return visible(text)


def pretty(value: Any) -> str:
    """Text as it is, anything else as indented JSON."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, Undefined):
        return ""
    if too_deep(value, MAX_SHOWN_DEPTH):
        return TOO_DEEP
    return json.dumps(value, ensure_ascii=False, indent=2, default=plain_json)


def brief(value: Any, limit: int = 120) -> str:
    """A value in one line of at most `limit` characters."""
    if isinstance(value, str):
        text = value
    elif value is None:
        text = ""
    else:
        text = pretty(value)
    text = " ".join(text[: 4 * limit].split())
    if len(text) <= limit:
        return text
    return f"{text[: limit - 1]}…"


def with_query(path: str, **values: Any) -> str:
    """`path` with a query; empty values and None are left out."""
    given = {name: value for name, value in values.items() if value not in (None, "")}
    if given:
        return f"{path}?{urlencode(given, errors='replace')}"
    return path


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a JSON object, else an empty one: what a file of somebody else holds may be
    anything.
    """
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    return {}


def items(value: Any) -> list[Any]:
    """`value` if it is a JSON array, else an empty one."""
    if isinstance(value, list):
        return cast("list[Any]", value)
    return []


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return duration_text(seconds)


def _time(seconds: float) -> str:
    """A moment in seconds since 1970, in UTC as the other times are."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _counted(usage: Any) -> Mapping[str, Any] | None:
    """The usage in a record with the figures that it leaves out, which are 0; None stays
    unknown.
    """
    if isinstance(usage, Mapping):
        return {**Usage().to_dict(), **mapping(usage)}
    return None
