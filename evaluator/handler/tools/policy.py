"""Policies: whether a call is allowed, asked for or denied, by the tool and by patterns over its arguments.

Rules are tried in order and the first that matches decides, else the tool's own policy. What could be read in two
ways counts against the call: `ask` and `deny` match where any reading of an argument does, `allow` only where all
readings do.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from evaluator.errors import ConfigurationError
from evaluator.handler.tools.places import Places

Policy = Literal["allow", "ask", "deny"]
POLICIES: tuple[Policy, ...] = ("allow", "ask", "deny")


@dataclass(frozen=True, slots=True)
class Rule:
    """`policy` for the calls whose `argument` matches the shell pattern `matches` as a whole.

    `*` and `?` stand for any characters, `/` too, `[…]` for one of a set. A text is matched as it is, a list as its
    items joined by spaces, any other value as JSON; an argument that is missing or null never matches. An argument
    named `path` or `…_path` (`paths`: each of a list) is matched by where it leads: without `.`, `..` and double `/`,
    relative to its root, or absolute for a pattern that begins with `/`.
    """

    policy: Policy
    argument: str
    matches: str

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ConfigurationError(f"a rule's policy is {self.policy!r}, not allow, ask or deny")
        if not self.argument or not self.matches:
            raise ConfigurationError("a rule needs the name of an argument and a pattern that is not empty")


def decide(rules: Sequence[Rule], otherwise: Policy, arguments: Mapping[str, Any], places: Places) -> Policy:
    """The policy for a call with these arguments."""
    for rule in rules:
        value = arguments.get(rule.argument)
        if value is not None and _matches(rule, value, places):
            return rule.policy
    return otherwise


def _matches(rule: Rule, value: Any, places: Places) -> bool:
    strict = rule.policy == "allow"
    kind = rule.argument.rpartition("_")[2]
    if kind == "path" and isinstance(value, str):
        return _path_matches(rule.matches, value, places, strict)
    if kind == "paths" and isinstance(value, list) and value:
        found = [_path_matches(rule.matches, str(item), places, strict) for item in cast("list[Any]", value)]
        return all(found) if strict else any(found)
    if strict and isinstance(value, list) and value and re.search(r"\s", _as_text(cast("list[Any]", value)[0])):
        return False  # a program whose name holds a space could pass for another one with arguments
    return fnmatchcase(_as_text(value), rule.matches)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " ".join(map(_as_text, cast("list[Any]", value)))
    return json.dumps(value, ensure_ascii=False)


def _path_matches(pattern: str, path: str, places: Places, strict: bool) -> bool:
    roots = _spellings(path, places)
    if strict:
        return all(any(fnmatchcase(spelling, pattern) for spelling in root) for root in roots)
    # Also on a disk that knows no capitals; and `secrets/*` holds for the folder `secrets`, which can be listed.
    plain = _folded(pattern)
    folded = {_folded(spelling) for root in roots for spelling in root}
    return any(fnmatchcase(spelling, plain) or fnmatchcase(f"{spelling}/", plain) for spelling in folded)


def _spellings(path: str, places: Places) -> list[set[str]]:
    """For each root that the path may lie in, how it can be written there."""
    written = _normal(path)
    found: list[set[str]] = []
    for names in places.spellings():
        if not written.startswith("/"):
            found.append({written, *(_normal(f"{name}/{written}") for name in names)})
            continue
        for name in names:
            if written == name or written.startswith(f"{name.rstrip('/')}/"):
                below = os.path.relpath(written, name)
                found.append({below, *(_normal(f"{other}/{below}") for other in names)})
                break
    return found or [{written}]


def _normal(path: str) -> str:
    normal = os.path.normpath(path)
    return normal[1:] if normal.startswith("//") else normal  # POSIX keeps two slashes, and they mean one


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()
