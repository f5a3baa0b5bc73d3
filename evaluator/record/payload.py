"""The fields of a record: a bullet with a short text, or a bullet and fenced blocks with a value.

A fence's info string gives the payload's language and its length in bytes. Reading takes exactly
that many bytes. The fence is one backtick longer than any run inside, for other readers of
Markdown. Readable text is written unchanged. Any other value is written as JSON; texts of several
lines in it are moved into separate blocks, each with its place:

    - **Args**:
    ```json 30
    {"role":"user","content":"↓"}
    ```
    ```text 11 /content
    two
    lines
    ```
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json import encoder
from typing import Any, cast

from evaluator.errors import UsageError
from evaluator.record.steps import Scrub, json_encoder

_scan = cast("Callable[[str, int], tuple[Any, int]]", getattr(json.JSONDecoder(), "scan_once"))  # noqa: B009


def loads(text: str) -> Any:
    """`json.loads` for JSON that this package wrote: without a mark or space around the value."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("a JSON value was expected") from None
    if end != len(text):
        raise ValueError("there is text after a JSON value")
    return value


_compact = json_encoder((", ", ": "), ascii_only=False)
_ascii = json_encoder((", ", ": "), ascii_only=True)
_quoted = encoder.encode_basestring

# Control characters affect a terminal, \r is changed by editors, and surrogates have no UTF-8.
_UNPLAIN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_POINTER = re.compile(r"(?:/[A-Za-z0-9_.-]+)*")
_BACKTICKS = re.compile("`{3,}")
_FENCE = re.compile(rb"(`{3,})(json|text) ([0-9]+)(?: ((?:/[A-Za-z0-9_.-]+)*))?\n")
_FIELD = re.compile(rb"\n*- \*\*([A-Z][A-Za-z0-9 -]*)\*\*:(?: ([^\n]*))?\n")
_PLACE = re.compile(r"(```text [0-9]+ /[^ \n]*)\n")
_BETWEEN = re.compile(rb"(?:\n|<!-- [^\n]*\n)*")
# Replaces a text that follows below; reading puts the text back.
_BELOW = "↓"
_LIFT_DEPTH = 4
_LIFT_ITEMS = 256
_PRETTY_KEYS = 16
_INLINE_CHARS = 240


def is_plain(text: str) -> bool:
    """Whether a person can read `text` as it is, and no editor or terminal changes it."""
    # isprintable is several times faster than the expression and right for most texts.
    return text.replace("\n", "").isprintable() or _UNPLAIN.search(text) is None


def inline(text: str) -> str:
    """`text` on one line: unchanged where that can be read back, else as a JSON string."""
    if text and text.isprintable() and text[0] not in '" ' and text[-1] != " ":
        return text
    return _ascii(text)


def read_inline(data: bytes) -> str:
    text = data.decode()
    if text.startswith('"'):
        return _text(loads(text))
    return text


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a quoted text was expected")
    return value


def text_field(label: str, text: str, scrub: Scrub | None = None) -> str:
    """A bullet with a text, without the secrets that `scrub` knows: on its own line where it is
    short and plain, else fenced.
    """
    if scrub is not None:
        text = scrub.redact(text)
    if (
        len(text) <= _INLINE_CHARS
        and text
        and text.isprintable()
        and text[0] not in '" '
        and text[-1] != " "
    ):
        return f"- **{label}**: {text}\n"
    return f"- **{label}**:\n{_block(text)}"


class FixedValue:
    """A JSON value that many records have: its field is encoded once."""

    __slots__ = ("_fields", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._fields: dict[str, str] = {}

    def field(self, label: str, scrub: Scrub | None) -> str:
        """As `value_field`."""
        if scrub is not None:
            return value_field(label, self.value, scrub)
        field = self._fields.get(label)
        if field is None:
            field = self._fields[label] = value_field(label, self.value)
        return field


def value_field(label: str, value: Any, scrub: Scrub | None = None) -> str:
    """A bullet and the blocks that contain `value` exactly, except the secrets that `scrub` knows.

    Raises: UsageError, if it is neither JSON nor text.
    """
    if type(value) is FixedValue:
        return value.field(label, scrub)
    lifted: list[tuple[str, str]] = []
    try:
        if scrub is not None:
            value = scrub.redact_value(value)
        if type(value) is str:
            return f"- **{label}**:\n{_block(value)}"
        blocks = _json(value)
        # A line end in a text is an escape in JSON: without one there is nothing to move.
        if "\\n" in blocks:
            blocks = _json(_lift(value, "", lifted=lifted, depth=_LIFT_DEPTH))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{label} of a step is not a JSON value: {error}") from error
    blocks = _fenced("json", blocks)
    for pointer, text in lifted:
        blocks += _fenced("text", text, suffix=" " + pointer)
    return f"- **{label}**:\n{blocks}"


def json_field(label: str, value: Any, scrub: Scrub | None = None) -> str:
    """A bullet with a small JSON value on its own line, without the secrets that `scrub` knows."""
    try:
        text = _ascii(value if scrub is None else scrub.redact_value(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{label} is not a JSON value: {error}") from error
    return f"- **{label}**: {text}\n"


def _block(text: str) -> str:
    if is_plain(text):
        return _fenced("text", text)
    return _fenced("json", _json(text))


def _fenced(language: str, payload: str, suffix: str = "") -> str:
    fence = "```"
    if fence in payload:
        fence = "`" * (max(map(len, _BACKTICKS.findall(payload))) + 1)
    if payload.isascii():
        size = len(payload)
    else:
        size = len(payload.encode())
    return f"{fence}{language} {size}{suffix}\n{payload}\n{fence}\n"


def _json(value: Any) -> str:
    """JSON that encodes to UTF-8; a small object gets a line for each key."""
    text = ""
    if type(value) is dict and 1 < len(members := cast("dict[Any, Any]", value)) <= _PRETTY_KEYS:
        lines = [
            f"  {_quoted(key)}: {_quoted(item) if type(item) is str else _compact(item)}"
            for key, item in members.items()
            if type(key) is str
        ]
        if len(lines) == len(members):
            text = "{\n" + ",\n".join(lines) + "\n}"
    text = text or _compact(value)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return _ascii(value)
    return text


def _lift(value: Any, pointer: str, lifted: list[tuple[str, str]], depth: int) -> Any:
    """`value` without its texts of several lines, which are added to `lifted`. Copies only what it
    changes.
    """
    if type(value) is str:
        if (
            "\n" not in value
            or not pointer
            or not is_plain(value)
            or not _POINTER.fullmatch(pointer)
        ):
            return value
        lifted.append((pointer, value))
        return _BELOW
    if depth == 0 or type(value) not in (dict, list):
        return value
    container = cast("dict[Any, Any] | list[Any]", value)
    if len(container) > _LIFT_ITEMS:
        return container
    copy: Any = None
    for key, item in container.items() if isinstance(container, dict) else enumerate(container):
        kind = type(item)
        if ("\n" not in item) if kind is str else (kind is not dict and kind is not list):
            continue
        # A key with a slash would read as two steps of a pointer.
        if isinstance(container, dict) and (type(key) is not str or "/" in key):
            continue
        rest = _lift(item, f"{pointer}/{key}", lifted=lifted, depth=depth - 1)
        if rest is not item:
            copy = container.copy() if copy is None else copy
            copy[key] = rest
    if copy is None:
        return container
    return copy


def without_fences(field: str) -> str:
    """A field whose fences do not look as if a long word went on in the next line, as a secret
    does that is broken into lines.
    """
    return _PLACE.sub("\\1\0", field)


def read_fields(data: bytes, start: int, end: int) -> dict[str, Any]:
    """The fields written in `data[start:end]`, by label; short ones as text, fenced ones as their
    value.

    Raises: ValueError, if the bytes are anything else.
    """
    fields: dict[str, Any] = {}
    at = start
    while field := _FIELD.match(data, at, end):
        label, line = field.groups()
        if line is None:
            fields[label.decode()], at = _read_blocks(data, field.end(), end=end)
        else:
            fields[label.decode()] = read_inline(line)
            at = field.end()
    rest = _BETWEEN.match(data, at, end)
    if rest is None or rest.end() != end:
        raise ValueError("a field was expected")
    return fields


def _read_blocks(data: bytes, at: int, end: int) -> tuple[Any, int]:
    value: Any = None
    first = True
    while fence := _FENCE.match(data, at, end):
        marks, language, size, pointer = fence.groups()
        begin = fence.end()
        stop = begin + int(size)
        at = stop + len(marks) + 2
        if at > end or data[stop:at] != b"\n%b\n" % marks:
            raise ValueError("a payload does not have the length that its fence gives")
        text = data[begin:stop].decode()
        item = loads(text) if language == b"json" else text
        if first:
            value = item
            first = False
        else:
            _put(value, (pointer or b"").decode(), item=item)
    if first:
        raise ValueError("a fenced payload was expected")
    return value, at


def _put(value: Any, pointer: str, item: Any) -> None:
    """Puts a text that was moved out back at `pointer` of `value`."""
    keys = pointer.split("/")[1:]
    if not keys:
        raise ValueError("a second payload without its place")
    for key in keys[:-1]:
        if isinstance(value, list):
            value = value[int(key)]
        else:
            value = value[key]
    if isinstance(value, list):
        value[int(keys[-1])] = item
    else:
        value[keys[-1]] = item
