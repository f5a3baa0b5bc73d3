"""JSON of results and of hashed values, in the bytes of the standard library's encoder: ASCII,
without spaces. What is stored and hashed has these bytes in every version.

orjson writes the same bytes for almost every value, ten times as fast. Where it would not (small
and large floats, NaN, integers past 64 bits, keys that are not texts, lone surrogates, objects of
subclasses), the standard encoder writes the value.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from json import encoder
from typing import Any

import orjson

from evaluator.record.steps import json_pieces

_quoted: Any = encoder.encode_basestring_ascii
_ESCAPES = "evaluator-json-escapes"
_PLAIN = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS
_SMALLEST_PLAIN = 1e-4
_LARGEST_PLAIN = 1e15
"""Floats between them are written without an exponent."""
_ALIKE = frozenset({str, int, bool, type(None)})
_compact = json_pieces((",", ":"), ascii_only=True, allow_nan=False)
_canonical = json_pieces((",", ":"), ascii_only=True, sort_keys=True, allow_nan=False)


def _escape(error: UnicodeError) -> tuple[str, int]:
    """The characters that ASCII lacks as escapes of JSON: they are inside strings."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return _quoted(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(_ESCAPES, _escape)


def compact_json(value: Any, parts: Iterable[Any] | None = None) -> bytes:
    """`value` as JSON. `parts` are the values in it that may have floats inside, where it is known
    that no others have; None: it may have them anywhere.

    Raises: ValueError, TypeError or RecursionError, if it is not JSON; NaN is not.
    """
    return _encoded(value, _PLAIN, _compact, [value] if parts is None else [*parts])


def canonical_json(value: Any) -> bytes:
    """As `compact_json`, with the keys of each object in their order."""
    return _encoded(value, _PLAIN | orjson.OPT_SORT_KEYS, _canonical, [value])


def _encoded(
    value: Any,
    option: int,
    standard: Callable[[Any, bool], Iterable[str]],
    parts: list[Any],
) -> bytes:
    try:
        data = orjson.dumps(value, option=option)
    except TypeError:
        return "".join(standard(value, False)).encode()
    # Whether both encoders write the same, except for characters. The values inside a value are
    # added to the list while it is read.
    for part in parts:
        kind = type(part)
        if kind in _ALIKE:
            continue
        if kind is dict:
            inner = part.values()
        elif kind is list or kind is tuple:
            inner = part
        elif kind is float and (
            _SMALLEST_PLAIN <= part < _LARGEST_PLAIN
            or -_LARGEST_PLAIN < part <= -_SMALLEST_PLAIN
            or part == 0.0
        ):
            continue
        else:
            return "".join(standard(value, False)).encode()
        if not _ALIKE.issuperset(map(type, inner)):
            parts += inner
    if not data.isascii():
        data = data.decode().encode("ascii", _ESCAPES)
    # The standard encoder escapes this character too.
    return data.replace(b"\x7f", b"\\u007f") if b"\x7f" in data else data
