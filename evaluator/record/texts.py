"""The texts in a JSON value, among which secrets are searched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, cast

BETWEEN_TEXTS = '"\n"'
"""What texts are joined with to be searched at once: each is a line of its own, in quotes. So a
dump of bytes begins where its text does, and no two texts look like one that is broken into lines.
"""
_SCALARS = frozenset({int, bool, type(None)})


def find_texts(values: Iterable[Any], known: set[str] | frozenset[str], found: list[str]) -> bool:
    """Adds the texts and keys in JSON values to `found`, except those of `known`. Returns: False,
    if they have a number that is NaN or infinite, or a value of another type than those of JSON.
    """
    is_json = True
    pending: list[Iterable[Any]] = [values]
    # Values inside a value are added to the list while it is read.
    for container in pending:
        for value in container:
            kind = type(value)
            if kind is str:
                if value not in known:
                    found.append(value)
            elif kind in _SCALARS:
                continue
            elif kind is dict:
                if not known.issuperset(value):
                    found += [key for key in value if isinstance(key, str)]
                pending.append(value.values())
            elif kind is list or kind is tuple:
                if value:
                    pending.append(value)
            elif kind is float:
                is_json = is_json and isfinite(value)
            elif isinstance(value, list | tuple):
                pending.append(cast("Iterable[Any]", value))
            elif isinstance(value, Mapping):
                mapping = cast("Mapping[Any, Any]", value)
                found += [key for key in mapping if isinstance(key, str)]
                pending.append(mapping.values())
            elif isinstance(value, str):
                found.append(str.__str__(value))
            else:
                is_json = False
    return is_json
