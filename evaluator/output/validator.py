"""Checks values by JSON Schemas in bounded work.

`jsonschema` evaluates every alternative of a union, compares each item of `uniqueItems` with every
other one, and searches patterns with Python's `re`, which cannot be stopped. Here a value that fits
is usually accepted by `fast_check`. For the others `bounded` makes a validator class of the same
draft that counts steps and searches with a time limit wherever a key or a text is matched: in
`pattern`, in `patternProperties`, and in `additionalProperties` and `unevaluatedProperties`, which
depend on the keys that a pattern matched.

A value has MAX_STEPS steps; after that it is not judged, and `Watch.is_spent` is set. The patterns
of one value share 100 ms, and 20 µs more for each search, so that a long value has time in
proportion. After that nothing is searched and the value is not judged: `Watch.late` says so, also
where the schema would let a violation pass (`not`, `anyOf`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from typing import Any, cast

from evaluator import clock
from evaluator.errors.messages import cut
from evaluator.language.scopes import describe
from evaluator.lazy_dataclass import dataclass
from evaluator.output.fast_check import fast_check, identity_of, is_dict, is_list, size_of
from evaluator.output.result import NotChecked, OutputError, json_path
from evaluator.patterns import compile_as_re

MAX_STEPS = 150_000
"""A step is a keyword, and each value and each part of a schema that it loops over; about 5 µs."""
VALUE_S = 0.1
SEARCH_S = 0.000_02


@dataclass(slots=True, eq=False)
class Watch:
    """What is left for the check of one value: time for its patterns, and steps.

    `late` is the error of the pattern that used up the time; `is_spent`: the steps were used up.
    """

    left_s: float = VALUE_S
    late: Any = None
    left_steps: int = MAX_STEPS
    is_spent: bool = False


_watch: ContextVar[Watch] = ContextVar("watch")


class _Spent(Exception):
    """There are no steps left."""


def undecided(_value: Any) -> bool | None:
    return None


class BoundedValidator:
    """Checks values by one valid schema, in bounded time and without following references to other
    documents.
    """

    def __init__(self, document: Any, kind: Any, label: str = "the schema") -> None:
        from jsonschema import Draft202012Validator
        from referencing import Registry

        is_newest = kind is Draft202012Validator and is_dict(document)
        plain = undrafted(document)
        # An empty registry: a reference to a remote schema is an error, not a request.
        registry: Any = Registry()
        self._label = label
        self._validator = bounded(kind)(plain, registry=registry)
        self.verdict = undecided
        """Whether a value fits, decided quickly; None if only `errors` can tell."""
        if is_newest:
            self.verdict = fast_check(plain, kind.VALIDATORS) or undecided

    def errors(self, value: Any, most: int, watch: Watch) -> list[Any]:
        """At most `most` errors of a value that `verdict` does not find to fit, each a
        ValidationError. With `watch.late` or `watch.is_spent` there may be others.
        """
        return first_errors(self._validator, value, watch=watch, most=most)

    def check(self, value: Any) -> OutputError | None:
        """Why a value does not match; None if it does."""
        verdict = self.verdict(value)
        if verdict:
            return None
        return self.explain(value, verdict)

    def explain(self, value: Any, verdict: bool | None) -> OutputError | None:
        """Why a value with this verdict does not match; None if it does."""
        from jsonschema.exceptions import best_match
        from referencing.exceptions import Unresolvable

        watch = Watch()
        try:
            error = next(iter(self.errors(value, 1, watch)), None)
            if watch.late is not None:
                return _explain_late(watch.late, error)
            if watch.is_spent:
                message = f"the value is not checked: that takes more than {MAX_STEPS:,} steps"
                if verdict is False:
                    message = (
                        "the value does not match its schema; the place was not found within "
                        f"{MAX_STEPS:,} steps"
                    )
                advice = "shorten the value, or simplify the schema: unions inside unions take long"
                return NotChecked("schema_violation", f"{message}; {advice}", path="$")
            if error is None:
                return None
            return _explain(best_match(iter([error])))
        except Unresolvable as failure:
            message = f"has a reference to something that does not exist: {failure}"
            return OutputError("bad_schema", f"{self._label} {message}")
        except RecursionError:
            message = "the value is nested too deeply to be checked"
            return OutputError("schema_violation", message, path="$")
        except Exception as failure:  # An invalid or too large pattern, or a wrong keyword.
            return OutputError("bad_schema", f"{self._label} cannot be applied: {failure}")


def first_errors(validator: Any, value: Any, watch: Watch, most: int) -> list[Any]:
    """At most `most` errors of a bounded validator. `watch.late` or `watch.is_spent` is set if
    there may be others. Raises: RecursionError.
    """
    token = _watch.set(watch)
    found: list[Any] = []
    try:
        for error in islice(validator.iter_errors(value), most):
            found.append(error)
    except _Spent:
        watch.is_spent = True
    except BaseException as error:
        # At the limit of recursion `rpds`, which `jsonschema` uses, raises this BaseException.
        if type(error).__name__ == "PanicException":
            raise RecursionError from None
        raise
    finally:
        _watch.reset(token)
    return found


@lru_cache(maxsize=16)
def bounded(kind: Any) -> Any:
    """The validator class `kind` with patterns in bounded time and a bound on steps, to be used by
    `first_errors` only.

    For a document that names its draft (`$schema`), `jsonschema` would return to its own class: see
    `undrafted`.
    """
    from jsonschema import validators

    ours = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "unevaluatedProperties": _unevaluated_properties,
        "uniqueItems": _unique_items,
    }
    rules = {name: _metered(name, ours.get(name, rule)) for name, rule in kind.VALIDATORS.items()}
    return validators.extend(kind, rules)


_LOOPING_KEYWORDS = """
    additionalItems additionalProperties allOf anyOf contains dependencies dependentRequired
    dependentSchemas disallow enum extends items oneOf patternProperties prefixItems properties
    propertyNames required unevaluatedItems unevaluatedProperties
"""
_LOOPS = frozenset(_LOOPING_KEYWORDS.split())
_COMPARISONS = frozenset({"const", "enum"})


def _metered(keyword: str, rule: Any) -> Any:
    """`rule`, which costs a step for each value and each part of the schema that it looks at."""
    loops = keyword in _LOOPS
    compares = keyword in _COMPARISONS
    is_unique = keyword == "uniqueItems"

    def metered(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
        steps = 1
        if loops:
            steps += len(instance) if isinstance(instance, list | dict) else 0
            steps += len(wanted) if isinstance(wanted, list | dict) else 0
        if is_unique or (compares and isinstance(instance, list | dict)):
            steps += size_of(instance if is_unique else wanted)
        watch = _watch.get()
        watch.left_steps -= steps
        if watch.left_steps < 0:
            raise _Spent
        return rule(validator, wanted, instance, schema)

    return metered


def undrafted(node: Any) -> Any:
    """A schema without the `$schema` that names its draft, at any depth; values in it are
    unchanged.
    """
    if is_list(node):
        return [undrafted(item) for item in node]
    if not is_dict(node):
        return node
    return {
        key: item if key in ("const", "enum", "default", "examples") else undrafted(item)
        for key, item in node.items()
        if key != "$schema" or not isinstance(item, str)
    }


class _Late(Exception):
    """A search had no time left; the argument is the jsonschema error that says so."""


def _found(pattern: str, text: str) -> bool:
    """Raises: BadPattern, _Late."""
    compiled = compile_as_re(pattern)
    watch = _watch.get()
    watch.left_s += SEARCH_S
    began = clock.cpu()
    try:
        if watch.late is None and watch.left_s > 0:
            return compiled.search(text, timeout=watch.left_s) is not None
    except TimeoutError:
        pass
    finally:
        watch.left_s -= clock.cpu() - began
    from jsonschema import ValidationError

    late = ValidationError(
        f"the pattern {pattern!r:.200} took too long on a text of {len(text)} characters; avoid "
        "repeats within repeats"
    )
    watch.late = watch.late or late
    raise _Late(late)


def _searching(rule: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """A rule that searches with patterns: a search that had no time left is its error."""

    def checked(*arguments: Any) -> Iterator[Any]:
        try:
            yield from rule(*arguments)
        except _Late as late:
            yield late.args[0]

    return checked


@_searching
def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """As in `jsonschema`, which compares each item with each other one."""
    from jsonschema import Draft202012Validator, ValidationError

    if not wanted or not validator.is_type(instance, "array"):
        return
    try:
        is_unique = len({identity_of(item) for item in instance}) == len(instance)
    except TypeError:  # not plain JSON
        yield from (
            Draft202012Validator.VALIDATORS["uniqueItems"](validator, wanted, instance, schema)
            or ()
        )
        return
    if not is_unique:
        yield ValidationError(f"{instance!r} has non-unique elements")


@_searching
def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, _schema: Any
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for key, value in instance.items():
            if _found(pattern, key):
                yield from validator.descend(value, subschema, path=key, schema_path=pattern)


@_searching
def _additional_properties(
    validator: Any, wanted: Any, instance: Any, schema: dict[str, Any]
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    known = schema.get("properties", {})
    more = [key for key in instance if key not in known and not _matched(schema, key)]
    if validator.is_type(wanted, "object"):
        for key in more:
            yield from validator.descend(instance[key], wanted, path=key)
    elif wanted is False and more:
        yield _unexpected("Additional", more)


@_searching
def _unevaluated_properties(
    validator: Any, wanted: Any, instance: Any, schema: dict[str, Any]
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    known = _evaluated(validator, instance, schema={**schema, "unevaluatedProperties": False})
    more = [
        key
        for key in instance
        if key not in known
        and next(validator.descend(instance[key], wanted, path=key), None) is not None
    ]
    if more:
        yield _unexpected("Unevaluated", more)


def _unexpected(which: str, keys: list[str]) -> Any:
    from jsonschema import ValidationError

    names = ", ".join(map(repr, sorted(keys)))
    return ValidationError(
        f"{which} properties are not allowed ({names} {'was' if len(keys) == 1 else 'were'} "
        "unexpected)"
    )


def _matched(schema: dict[str, Any], key: str) -> bool:
    return any(_found(pattern, key) for pattern in schema.get("patternProperties", ()))


def _evaluated(validator: Any, instance: dict[str, Any], schema: Any) -> set[str]:
    """The keys that are evaluated by a schema and by those of its references and subschemas that
    the object fulfils.

    Source: JSON Schema 2020-12 Core, 11.3 ("unevaluatedProperties"); the version in `jsonschema` is
    private.
    """
    if not is_dict(schema):
        return set()
    keys = {key for key in instance if key in schema.get("properties", ()) or _matched(schema, key)}
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in schema:
            more = schema[keyword]
            keys |= {
                key
                for key in instance
                if next(validator.descend(instance[key], more), None) is None
            }
    for target, resolver in _references(validator, schema):
        keys |= _evaluated(
            validator.evolve(schema=target, _resolver=resolver), instance, schema=target
        )
    inner = [part for key, part in schema.get("dependentSchemas", {}).items() if key in instance]
    for keyword in ("allOf", "oneOf", "anyOf"):
        inner += [
            part
            for part in schema.get(keyword, ())
            if next(validator.descend(instance, part), None) is None
        ]
    if "if" in schema:
        holds = next(validator.descend(instance, schema["if"]), None) is None
        inner += [schema["if"]] if holds else []
        inner += [schema[branch] for branch in ("then" if holds else "else",) if branch in schema]
    for part in inner:
        keys |= _evaluated(validator, instance, schema=part)
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


# What a value breaks, in words

_MAX_SHOWN = 300


def _explain(error: Any) -> OutputError:
    """A jsonschema error in words: where it is, what was expected, what was found."""
    path = json_path(list(error.absolute_path))
    actual = describe(error.instance)
    rule = error.validator
    wanted = error.validator_value
    if rule == "type":
        if is_list(wanted):
            expected = " or ".join(wanted)
        else:
            expected = str(wanted)
        return OutputError(
            "type_mismatch",
            f"expected {expected}, got {actual}",
            path=path,
            expected=expected,
            actual=actual,
        )
    if rule in ("anyOf", "oneOf"):
        kinds = [_alternative(part) for part in error.context]
        if (
            kinds
            and None not in kinds
            and all(part.instance is error.instance for part in error.context)
        ):
            expected = " or ".join(cast("list[str]", kinds))
            return OutputError(
                "type_mismatch",
                f"expected {expected}, got {actual}",
                path=path,
                expected=expected,
                actual=actual,
            )
    if rule == "required":
        missing = [name for name in wanted if name not in error.instance]
        names = ", ".join(repr(name) for name in missing) or str(wanted)
        return OutputError(
            "schema_violation",
            f"required property {names} is missing",
            path=path,
            expected=f"property {names}",
            actual="missing",
        )
    return OutputError(
        "schema_violation", cut(str(error.message), _MAX_SHOWN), path, *_rule_and_value(error)
    )


def _rule_and_value(error: Any) -> tuple[str, str]:
    """The rule of a jsonschema error and the value that it was applied to, as JSON."""
    wanted, value = (
        json.dumps(one, ensure_ascii=False, default=str)
        for one in (error.validator_value, error.instance)
    )
    return cut(f"{error.validator}: {wanted}", _MAX_SHOWN), cut(value, _MAX_SHOWN)


def _explain_late(late: Any, first: Any) -> NotChecked:
    """`late` has its whole path only if it is the first error, or was reported by it as part of an
    alternative.
    """
    top = late
    while top.parent is not None:
        top = top.parent
    if top is first:
        path = json_path(list(late.absolute_path))
    else:
        path = "$"
    return NotChecked(
        "schema_violation", cut(str(late.message), _MAX_SHOWN), path, *_rule_and_value(late)
    )


def _alternative(error: Any) -> str | None:
    wanted = error.validator_value
    if error.validator != "type":
        return None
    if isinstance(wanted, str):
        return wanted
    return " or ".join(wanted)
