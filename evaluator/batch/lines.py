"""The lines of `results.jsonl`: a result as JSON with a checksum, without secrets."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable
from typing import Any, cast

import orjson

from evaluator.batch.identity import seal_line
from evaluator.batch.records import SampleResult
from evaluator.record.steps import Scrub, json_encoder

_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS = b"0" * 19
_compact = json_encoder((",", ":"), ascii_only=True, allow_nan=False)


def encode_results(
    results: Iterable[SampleResult], scrub: Scrub | None
) -> list[tuple[bytes, dict[str, Any]]]:
    """The line of each result, without the secrets that `scrub` knows, and the result as JSON, as
    readers get it.
    """
    texts: list[str] = []
    stored = [result.to_dict() for result in results]
    for place, data in enumerate(stored):
        try:
            text = _compact(data)
        except ValueError:
            # A scorer or a row from Python may hold NaN or an infinity, which JSON lacks.
            text = _compact(_finite(data))
            stored[place] = json.loads(text)
        texts.append(text)
    # One search through all lines: few hold a secret.
    if scrub is not None and scrub.suspects("\n".join(texts)):
        for place, text in enumerate(texts):
            if scrub.suspects(text):
                texts[place] = _compact(scrub.redact_value(json.loads(text)))
                stored[place] = json.loads(texts[place])
    return list(zip(map(seal_line, texts), stored, strict=True))


def decode_line(line: bytes) -> dict[str, Any]:
    """A line of results as JSON. Raises: ValueError."""
    # orjson reads integers past 64 bits as floats, and no lone surrogates.
    if _MANY_DIGITS not in line.translate(_DIGITS):
        with contextlib.suppress(orjson.JSONDecodeError):
            return orjson.loads(line)
    return json.loads(line)


def parse_line(line: bytes) -> SampleResult:
    """The result in a line. Raises: ValueError, KeyError, TypeError or AttributeError."""
    return SampleResult.from_dict(decode_line(line))


def _finite(value: Any) -> Any:
    """`value` with NaN and the infinities as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in cast("list[Any]", value)]
    return value
