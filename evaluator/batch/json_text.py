"""JSON of results and of hashed values, in the bytes of the standard library's encoder: ASCII,
without spaces. What is stored and hashed has these bytes in every version.

orjson writes the same bytes for almost every value, ten times as fast. Where it would not (small
and large floats, NaN, integers past 64 bits, keys that are not texts, lone surrogates, objects of
subclasses), the standard encoder writes the value.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from functools import partial
from json import encoder
from typing import Any

import orjson

from evaluator.record.redact import find_texts
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


def _encoded(
    value: Any,
    parts: Iterable[Any] | None = None,
    texts: list[Any] | None = None,
    *,
    option: int,
    standard: Callable[[Any, bool], Iterable[str]],
) -> bytes:
    found: list[Any] = [] if texts is None else texts
    try:
        data = orjson.dumps(value, option=option)
    except TypeError:
        return _encoded_as_standard(value, standard, found)
    # Whether both encoders write the same, except for characters. The values inside a value are
    # added to the list while it is read.
    pending = [value] if parts is None else [*parts]
    for part in pending:
        kind = type(part)
        if kind is dict:
            if not part:
                continue
            found += part
            inner = part.values()
        elif kind is list or kind is tuple:
            inner = part
        elif kind in _ALIKE:
            found.append(part)
            continue
        elif kind is float and (
            _SMALLEST_PLAIN <= part < _LARGEST_PLAIN
            or -_LARGEST_PLAIN < part <= -_SMALLEST_PLAIN
            or part == 0.0
        ):
            continue
        else:
            return _encoded_as_standard(value, standard, found)
        if _ALIKE.issuperset(map(type, inner)):
            found += inner
        else:
            pending += inner
    if not data.isascii():
        data = data.decode().encode("ascii", _ESCAPES)
    # The standard encoder escapes this character too.
    return data.replace(b"\x7f", b"\\u007f") if b"\x7f" in data else data


def _encoded_as_standard(
    value: Any, standard: Callable[[Any, bool], Iterable[str]], texts: list[Any]
) -> bytes:
    """`value` in the standard encoder's bytes. Its texts and keys are added to `texts`."""
    text = "".join(standard(value, False))
    # After it: a value that contains itself has no end.
    find_texts((value,), frozenset(), texts)
    return text.encode()


compact_json = partial(_encoded, option=_PLAIN, standard=_compact)
"""Encodes a value. `parts` are all values in it, where it is known how they are best taken
together; None: the value itself. `texts` gets all texts and keys in `parts`, with numbers among
them.

Raises: ValueError, TypeError or RecursionError, if it is not JSON; NaN is not.
"""
canonical_json = partial(_encoded, option=_PLAIN | orjson.OPT_SORT_KEYS, standard=_canonical)
"""As `compact_json`, with the keys of each object in their order."""
