"""Policies: whether a call is allowed, needs consent or is denied, by the tool and by patterns over
its arguments.

Rules are tried in order; the first that matches decides, otherwise the tool's own policy. If an
argument can be read in several ways, `ask` and `deny` match if any reading matches, `allow` only if
all readings match.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from evaluator.errors import ConfigurationError
from evaluator.fields import Checked
from evaluator.files.roots import Roots
from evaluator.lazy_dataclass import frozen

Policy = Literal["allow", "ask", "deny"]
POLICIES: tuple[Policy, ...] = ("allow", "ask", "deny")


@frozen
class PolicyRule(Checked, error=ConfigurationError):
    """Sets `policy` for the calls whose argument `argument` matches the shell pattern `matches` as
    a whole.

    `*` and `?` match any characters including `/`, `[…]` one character of a set. A string is
    matched as it is, a list as its items joined by spaces, any other value as JSON; an argument
    that is missing or null never matches. An argument named `path` or `…_path` (`paths`: each item
    of a list) is normalised first: without `.`, `..` and double `/`, relative to its root, or
    absolute for a pattern that begins with `/`.
    """

    policy: Policy
    argument: str
    matches: str

    def check(self) -> None:
        if not self.argument or not self.matches:
            raise ConfigurationError("a rule needs the name of an argument and a non-empty pattern")


def strictest(policies: Iterable[Policy]) -> Policy:
    """The policy of a call that needs the consent of each of `policies`."""
    return max(policies, key=POLICIES.index)


def decide(
    rules: Sequence[PolicyRule], otherwise: Policy, arguments: Mapping[str, Any], roots: Roots
) -> Policy:
    """The policy for a call with these arguments."""
    for rule in rules:
        value = arguments.get(rule.argument)
        if value is not None and _matches(rule, value, roots=roots):
            return rule.policy
    return otherwise


def _matches(rule: PolicyRule, value: Any, roots: Roots) -> bool:
    strict = rule.policy == "allow"
    kind = rule.argument.rpartition("_")[2]
    if kind == "path" and isinstance(value, str):
        return _path_matches(rule.matches, value, roots=roots, strict=strict)
    if kind == "paths" and isinstance(value, list) and value:
        found = [
            _path_matches(rule.matches, str(item), roots=roots, strict=strict)
            for item in cast("list[Any]", value)
        ]
        if strict:
            return all(found)
        return any(found)
    if (
        strict
        and isinstance(value, list)
        and value
        and re.search(r"\s", _as_text(cast("list[Any]", value)[0]))
    ):
        return False  # a program name with a space could look like another program with arguments
    return fnmatchcase(_as_text(value), rule.matches)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " ".join(map(_as_text, cast("list[Any]", value)))
    return json.dumps(value, ensure_ascii=False)


def _path_matches(pattern: str, path: str, roots: Roots, strict: bool) -> bool:
    readings = _spellings(path, roots)
    if strict:
        return all(
            any(fnmatchcase(spelling, pattern) for spelling in reading) for reading in readings
        )
    # The disk may ignore case. `secrets/*` also covers the folder `secrets` itself, which can be
    # listed.
    plain = _folded(pattern)
    folded = {_folded(spelling) for reading in readings for spelling in reading}
    return any(
        fnmatchcase(spelling, plain) or fnmatchcase(f"{spelling}/", plain) for spelling in folded
    )


def _spellings(path: str, roots: Roots) -> list[set[str]]:
    """For each root that the path may lie in, the ways to write the path there."""
    written = _normal(path)
    found: list[set[str]] = []
    for names in roots.spellings:
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
    # normpath keeps two leading slashes, which mean one.
    return re.sub(r"\A//", "/", os.path.normpath(path))


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()
