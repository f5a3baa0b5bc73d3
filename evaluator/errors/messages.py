"""Parts of messages, made safe to print; the loggers of the package; HTML tables for notebooks.

The loggers of the package, all below `evaluator`. They are silent until the program configures
logging.

| logger | DEBUG | INFO | WARNING |
|---|---|---|---|
| `evaluator.models` | a model call and its duration | a failed attempt, a retry | a wrong report |
| `evaluator.tools` | a tool call and its duration | a failed call, a retry | |
| `evaluator.tasks` | the beginning and end of a task, a sample or a batch | a failed task | |
| `evaluator.output` | | a repair of an answer | |
| `evaluator` | details of connections and processes | a lost process | what a user should know |
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol, get_args

from evaluator.hints import correction as correction
from evaluator.hints import cut as cut
from evaluator.hints import did_you_mean as did_you_mean
from evaluator.hints import limited_hints as limited_hints
from evaluator.hints import listed as listed
from evaluator.hints import with_article as with_article
from evaluator.patterns import Pattern

_ACTING = Pattern(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

MAX_DIGITS = 4_300
"""Python converts no longer integers from and to text."""


def shortened(text: str, limit: int = 60) -> str:
    """`text` quoted for a message, on one line, cut after `limit` characters."""
    return repr(cut(" ".join(text.split()), limit))


def json_problem(error: Exception) -> str:
    """What is wrong with a JSON or TOML text, from the error that reading it raised; never a hint
    for programmers of Python.
    """
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if str(error).startswith("Exceeds the limit"):
        return f"an integer has more than {MAX_DIGITS:,} digits; write it as a string"
    return str(error)


def amount(count: int, noun: str) -> str:
    """`count` with its noun: `1 call`, `2 calls`, `2 batches`, `2 entries`."""
    if count != 1:
        if noun.endswith("ry"):
            noun = f"{noun[:-1]}ie"
        noun += "es" if noun.endswith(("ch", "ss")) else "s"
    return f"{count:,} {noun}"


def agree(count: int, singular: str, plural: str) -> str:
    """The word that agrees with `count` things: `1 call was`, `2 calls were`."""
    return singular if count == 1 else plural


def minutes_text(seconds: float) -> str:
    """`65.4` as `1:05`, `3725` as `1:02:05`."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours}:{minutes:02}:{whole % 60:02}"
    return f"{minutes}:{whole % 60:02}"


def duration_text(seconds: float) -> str:
    """A duration of at least 0 with a unit that fits it: `5.5 µs`, `120 ms`, `1.5 s`, `3 min 20
    s`.
    """
    if 0 < seconds < 0.001:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 119.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def type_of(value: object) -> str:
    """The type of `value` for a message: "an int"."""
    return with_article(type(value).__name__)


def visible(text: str, *, one_line: bool = False) -> str:
    """`text` with every character escaped that a terminal would act on; with `one_line`, line feeds
    and tabs too.
    """
    if one_line:
        text = text.replace("\n", "\\n").replace("\t", "\\t")
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return _ACTING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def visible_json(text: str) -> str:
    """JSON text with the same characters escaped as JSON escapes them; it has the same value."""
    return _ACTING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_MAX_CHARS = 2000


def text(value: object) -> str:
    """A value as escaped text, with control characters made visible, cut at 2,000 characters."""
    from html import escape

    shown = str(value)
    if len(shown) > _MAX_CHARS:
        shown = f"{shown[:_MAX_CHARS]}…"
    return escape(visible(shown))


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table; its head has the names of the columns."""
    names = "".join(f"<th>{text(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def fields(title: str, values: Mapping[str, object]) -> str:
    """A table with a row for each value that is not None or empty."""
    rows = "".join(
        f'<tr><th>{text(name)}</th><td style="white-space: pre-wrap; text-align: '
        f'left">{text(value)}</td></tr>'
        for name, value in values.items()
        if value not in (None, "", ())
    )
    return f"<table><caption>{text(title)}</caption><tbody>{rows}</tbody></table>"


LOGGER = logging.getLogger("evaluator")
LOGGER.addHandler(logging.NullHandler())

Subject = Literal["models", "tools", "tasks", "output"]
LOGGERS = {subject: logging.getLogger(f"evaluator.{subject}") for subject in get_args(Subject)}


class Redacts(Protocol):
    """Removes secrets from a text."""

    def redact(self, text: str) -> str: ...


def log(subject: Subject, level: int, redactor: Redacts, message: str, *arguments: object) -> None:
    """Logs one line without secrets and control characters. Nothing is formatted if the level is
    not enabled.
    """
    logger = LOGGERS[subject]
    if logger.isEnabledFor(level):
        if arguments:
            text = message % arguments
        else:
            text = message
        logger.log(level, "%s", visible(redactor.redact(text), one_line=True), stacklevel=2)
