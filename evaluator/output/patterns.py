"""Searches the patterns of a JSON Schema in bounded time, and compiles patterns that come as data.

`jsonschema` searches with Python's `re`, which cannot be stopped: one pattern and one text can block the process
forever. `bounded` makes a validator class of the same draft that searches with the `regex` library and a time limit
wherever a key or a text is matched: in `pattern`, in `patternProperties`, and in `additionalProperties` and
`unevaluatedProperties`, which depend on the keys that a pattern matched.

The patterns of one value share 100 ms, and 20 µs more for each search, so that a long value has time in proportion.
After that nothing is searched and the value is not judged: `Watch.late` says so, also where the schema would let a
violation pass (`not`, `anyOf`). `regex` accepts the syntax of `re` and some of its own; what is a plain character in
`re` (`a{e}`, `[[:alpha:]]`) stays one. `\\w` matches combining marks too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, cast

MAX_EXPANDED = 10_000
VALUE_S = 0.1
SEARCH_S = 0.000_02
# Escaped characters and whole classes count as one; of a repeat, the numbers matter.
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d*),?(\d*)\}|[()]|.", re.DOTALL)
_FOREIGN = re.compile(r"\\.|\(\?#[^)]*\)|(\[\^?\]?)((?:\\.|[^\]\\])*\])|\{(?!\d+(?:,\d*)?\}|,\d*\})", re.DOTALL)


class BadPattern(ValueError):
    """A pattern that is invalid or too large to be compiled; the message says why."""


@dataclass(slots=True, eq=False)
class Watch:
    """The time left for the patterns of one value, and the error of the pattern that used it up."""

    left_s: float = VALUE_S
    late: Any = None


_watch: ContextVar[Watch] = ContextVar("watch")


def first_error(validator: Any, value: Any, watch: Watch) -> Any:
    """The first error of a bounded validator, or None. `watch.late` is set if there was not enough time to know."""
    return next(iter(first_errors(validator, value, watch, 1)), None)


def first_errors(validator: Any, value: Any, watch: Watch, most: int) -> list[Any]:
    """At most `most` errors of a bounded validator. `watch.late` is set if there may be others."""
    token = _watch.set(watch)
    try:
        return list(islice(validator.iter_errors(value), most))
    finally:
        _watch.reset(token)


@lru_cache(maxsize=16)
def bounded(kind: Any) -> Any:
    """The validator class `kind` with patterns in bounded time, to be used by `first_errors` only.

    For a document that names its draft (`$schema`), `jsonschema` would return to its own class: see `undrafted`.
    """
    from jsonschema import validators

    ours = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "unevaluatedProperties": _unevaluated_properties,
    }
    return validators.extend(kind, {name: rule for name, rule in ours.items() if name in kind.VALIDATORS})


def undrafted(node: Any) -> Any:
    """A schema without the `$schema` that names its draft, at any depth; values in it are unchanged."""
    if isinstance(node, list):
        return [undrafted(item) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    return {
        key: item if key in ("const", "enum", "default", "examples") else undrafted(item)
        for key, item in cast("dict[str, Any]", node).items()
        if key != "$schema" or not isinstance(item, str)
    }


def compile_pattern(pattern: str, ignore_case: bool = False) -> Any:
    """The pattern compiled by `regex`, in its syntax. Raises: BadPattern, if it is invalid or has over 10,000 parts."""
    import regex

    if expanded_size(pattern) > MAX_EXPANDED:
        raise BadPattern(f"has more than {MAX_EXPANDED} parts when its repeats are written out")
    try:
        return regex.compile(pattern, regex.V0 | (regex.IGNORECASE if ignore_case else 0))
    except (regex.error, RecursionError) as error:
        raise BadPattern(f"is invalid: {error}") from error


def expanded_size(pattern: str) -> int:
    """The number of parts of a pattern with each `{n,m}` written out; an upper bound for valid patterns."""
    sums, last = [0], [0]
    for piece in _PIECE.finditer(pattern):
        token = piece[0]
        if token == "(":
            sums.append(0)
            last.append(0)
        elif token == ")" and len(sums) > 1:
            size = sums.pop() + 1
            last.pop()
            sums[-1] += size
            last[-1] = size
        elif token[0] == "{" and (piece[1] or piece[2]):
            times = max(int(piece[1] or 0), int(piece[2] or 0))
            sums[-1] += last[-1] * max(0, times - 1)
            last[-1] *= max(1, times)
        elif token not in "*+?":
            sums[-1] += 1
            last[-1] = 1
    return sum(sums)


@lru_cache(maxsize=1024)
def compile_as_re(pattern: str) -> Any:
    """The pattern compiled by `regex` with the meaning that it has in `re`. Raises: BadPattern."""
    try:
        return compile_pattern(_FOREIGN.sub(_plain, pattern))
    except BadPattern as error:
        raise BadPattern(f"the pattern {pattern!r:.200} {error}") from error


def _plain(match: re.Match[str]) -> str:
    if match[0] == "{":
        return r"\{"
    return match[0] if match[1] is None else match[1] + re.sub(r"(\\.)|\[", _in_class, match[2], flags=re.DOTALL)


def _in_class(match: re.Match[str]) -> str:
    return match[1] or r"\["


class _Late(Exception):
    """A search had no time left; the argument is the jsonschema error that says so."""


def _found(pattern: str, text: str) -> bool:
    """Raises: BadPattern, _Late."""
    compiled, watch = compile_as_re(pattern), _watch.get()
    watch.left_s += SEARCH_S
    began = time.thread_time()
    try:
        if watch.late is None and watch.left_s > 0:
            return compiled.search(text, timeout=watch.left_s) is not None
    except TimeoutError:
        pass
    finally:
        watch.left_s -= time.thread_time() - began
    from jsonschema import ValidationError

    late = ValidationError(
        f"the pattern {pattern!r:.200} took too long on a text of {len(text)} characters; avoid repeats within repeats"
    )
    watch.late = watch.late or late
    raise _Late(late)


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    try:
        if validator.is_type(instance, "string") and not _found(pattern, instance):
            yield ValidationError(f"{instance!r} does not match {pattern!r}")
    except _Late as late:
        yield late.args[0]


def _pattern_properties(validator: Any, patterns: dict[str, Any], instance: Any, _schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for key, value in instance.items():
            try:
                taken = _found(pattern, key)
            except _Late as late:
                yield late.args[0]
                return
            if taken:
                yield from validator.descend(value, subschema, path=key, schema_path=pattern)


def _additional_properties(validator: Any, wanted: Any, instance: Any, schema: dict[str, Any]) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    known = schema.get("properties", {})
    try:
        more = [key for key in instance if key not in known and not _matched(schema, key)]
    except _Late as late:
        yield late.args[0]
        return
    if validator.is_type(wanted, "object"):
        for key in more:
            yield from validator.descend(instance[key], wanted, path=key)
    elif wanted is False and more:
        yield _unexpected("Additional", more)


def _unevaluated_properties(validator: Any, wanted: Any, instance: Any, schema: dict[str, Any]) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    try:
        known = _evaluated(validator, instance, {**schema, "unevaluatedProperties": False})
    except _Late as late:
        yield late.args[0]
        return
    more = [
        key
        for key in instance
        if key not in known and next(validator.descend(instance[key], wanted, path=key), None) is not None
    ]
    if more:
        yield _unexpected("Unevaluated", more)


def _unexpected(which: str, keys: list[str]) -> Any:
    from jsonschema import ValidationError

    names = ", ".join(map(repr, sorted(keys)))
    return ValidationError(
        f"{which} properties are not allowed ({names} {'was' if len(keys) == 1 else 'were'} unexpected)"
    )


def _matched(schema: dict[str, Any], key: str) -> bool:
    return any(_found(pattern, key) for pattern in schema.get("patternProperties", ()))


def _evaluated(validator: Any, instance: dict[str, Any], schema: Any) -> set[str]:
    """The keys that are evaluated by a schema and by those of its references and subschemas that the object fulfils.

    Source: JSON Schema 2020-12 Core, 11.3 ("unevaluatedProperties"); the version in `jsonschema` is private.
    """
    if not isinstance(schema, dict):
        return set()
    known = cast("dict[str, Any]", schema)
    keys = {key for key in instance if key in known.get("properties", ()) or _matched(known, key)}
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in known:
            more = known[keyword]
            keys |= {key for key in instance if next(validator.descend(instance[key], more), None) is None}
    for target, resolver in _references(validator, known):
        keys |= _evaluated(validator.evolve(schema=target, _resolver=resolver), instance, target)
    inner = [part for key, part in known.get("dependentSchemas", {}).items() if key in instance]
    for keyword in ("allOf", "oneOf", "anyOf"):
        inner += [part for part in known.get(keyword, ()) if next(validator.descend(instance, part), None) is None]
    if "if" in known:
        holds = next(validator.descend(instance, known["if"]), None) is None
        inner += [known["if"]] if holds else []
        inner += [known[branch] for branch in ("then" if holds else "else",) if branch in known]
    for part in inner:
        keys |= _evaluated(validator, instance, part)
    return keys


def _references(validator: Any, schema: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    from referencing.jsonschema import lookup_recursive_ref

    for keyword in ("$ref", "$dynamicRef"):
        if keyword in schema:
            resolved = validator._resolver.lookup(schema[keyword])
            yield resolved.contents, resolved.resolver
    if "$recursiveRef" in schema:
        resolved = lookup_recursive_ref(validator._resolver)
        yield resolved.contents, resolved.resolver
