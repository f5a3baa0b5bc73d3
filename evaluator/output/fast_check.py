"""Decides whether a value fits a JSON Schema, for the keywords that most schemas use, in time
linear in both.

`jsonschema` evaluates every alternative of a union in full, so a recursive union takes exponential
time, and it builds an object for each item of an array. Here each part of a schema is compiled to a
function once, and the verdict on a container under a `$ref` is computed once. The functions give a
verdict only; `jsonschema` explains a value that does not fit, and decides where a schema has other
keywords or names another draft than 2020-12. The verdicts are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from math import isnan
from typing import Any, TypeGuard, cast

MAX_STEPS = 2_000_000
"""A step is one value under one part of a schema; a million take about half a second."""

Verdict = Callable[[Any], bool | None]
"""Whether a value fits; None if it is not decided: too many steps, or nested too deeply."""

_Rule = Callable[[Any, "_CheckState"], bool]


class _Undecided(Exception):
    """There is no verdict within the bounds."""


class _Unsupported(Exception):
    """The schema has a part that is left to `jsonschema`."""


class _CheckState:
    """The check of one value: the steps left, and the verdicts on containers under references."""

    __slots__ = ("left", "verdicts")

    def __init__(self) -> None:
        self.left = MAX_STEPS
        # By ids: the value and the schema live as long as the run.
        self.verdicts: dict[tuple[int, int], bool] = {}

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _Undecided


def fast_check(document: Mapping[str, Any], known_keywords: Collection[str]) -> Verdict | None:
    """The compiled check of a valid schema of draft 2020-12; None if it has a part that is not
    supported here.

    `known_keywords` are those that the draft defines; others have no effect.
    """
    try:
        rule = _Compiler(document, known_keywords).rule(document)
    except (_Unsupported, RecursionError):
        return None

    def verdict(value: Any) -> bool | None:
        try:
            return rule(value, _CheckState())
        except (_Undecided, RecursionError):
            return None

    return verdict


def is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def identity_of(value: Any) -> Hashable:
    """A key that is equal for values that are equal in JSON: 1 and 1.0 are, 1 and true are not.

    Raises: TypeError, for values that are not plain JSON, and NaN, which is not equal to itself.
    """
    if is_dict(value):
        return frozenset((key, identity_of(item)) for key, item in value.items())
    if is_list(value):
        return tuple(identity_of(item) for item in value)
    if isinstance(value, float) and isnan(value):
        raise TypeError("NaN has no identity")
    if value is None or isinstance(value, str | int | float):
        return (isinstance(value, bool), value)
    raise TypeError(f"{type(value).__name__} is not plain JSON")


def size_of(value: Any) -> int:
    """The number of values in a JSON value, itself included."""
    count = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        count += 1
        if is_dict(one):
            waiting += one.values()
        elif is_list(one):
            waiting += one
    return count


class _Compiler:
    def __init__(self, root: Mapping[str, Any], known_keywords: Collection[str]) -> None:
        self._root = root
        self._unsupported = frozenset(known_keywords) - _RULES.keys() - _IGNORED
        self._rules: dict[int, _Rule] = {}
        self._referenced: dict[str, _Rule] = {}

    def rule(self, schema: Any) -> _Rule:
        if schema is True:
            return _always
        if schema is False:
            return _never
        known = self._rules.get(id(schema))
        if known is None:
            known = self._rules[id(schema)] = self._compiled(schema)
        return known

    def quick(self, schema: Any) -> frozenset[type]:
        """The classes whose values fit a part of the schema without a look at them."""
        if is_dict(schema) and schema.keys() & (_RULES.keys() | {"$ref"}) == {"type"}:
            declared = schema["type"]
            if isinstance(declared, str):
                names = [declared]
            else:
                names = declared
            return frozenset[type]().union(*(_CLASSES[name] for name in names))
        return frozenset()

    def _compiled(self, schema: Mapping[str, Any]) -> _Rule:
        if not self._unsupported.isdisjoint(schema) or (
            "$id" in schema and schema is not self._root
        ):
            raise _Unsupported  # an `$id` below the root changes what references mean
        keywords = schema.keys() & (_RULES.keys() | {"$ref"})
        if (
            "properties" in keywords
            and keywords <= _OF_RECORD
            and schema.get("type") == "object"
            and isinstance(schema.get("additionalProperties", True), bool)
        ):
            return _record(self, schema)
        # The rule of the items knows the type "array" too.
        is_covered = "items" in keywords and schema.get("type") == "array"
        rules = [
            _RULES[keyword](self, wanted, schema)
            for keyword, wanted in schema.items()
            if keyword in _RULES and not (is_covered and keyword == "type")
        ]
        if "$ref" in schema:
            rules.append(self._reference(schema["$ref"]))
        if not rules:
            return _always
        if len(rules) == 1:
            return rules[0]
        return _all(rules)

    def _reference(self, reference: str) -> _Rule:
        """A rule that finds its target at its first use, since a schema may refer to itself."""
        known = self._referenced.get(reference)
        if known is not None:
            return known
        target: Any = self._root
        for part in _pointer(reference):
            if (
                not is_dict(target)
                or part not in target
                or ("$id" in target and target is not self._root)
            ):
                raise _Unsupported
            target = target[part]
        if not isinstance(target, dict | bool):
            raise _Unsupported
        compiled: _Rule | None = None

        def rule(value: Any, run: _CheckState) -> bool:
            found = compiled
            if found is None:
                raise _Undecided
            run.spend(1)
            if not isinstance(value, dict | list):
                return found(value, run)
            key = id(found), id(cast("object", value))
            verdict = run.verdicts.get(key)
            if verdict is None:
                verdict = run.verdicts[key] = found(value, run)
            return verdict

        self._referenced[reference] = rule
        compiled = self.rule(target)
        return rule


def _pointer(reference: str) -> Iterable[str]:
    if reference == "#":
        return ()
    if not reference.startswith("#/") or "%" in reference:
        raise _Unsupported
    return (part.replace("~1", "/").replace("~0", "~") for part in reference[2:].split("/"))


def _always(_value: Any, _run: _CheckState) -> bool:
    return True


def _never(_value: Any, _run: _CheckState) -> bool:
    return False


def _all(rules: list[_Rule]) -> _Rule:
    steps = len(rules)

    def rule(value: Any, run: _CheckState) -> bool:
        run.left -= steps
        if run.left < 0:
            raise _Undecided
        for one in rules:  # noqa: SIM110  (a generator costs more than the check)
            if not one(value, run):
                return False
        return True

    return rule


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": is_dict,
    "array": is_list,
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}

# The classes of plain JSON values that certainly have a type; an integral float is an integer too.
_CLASSES: dict[str, frozenset[type]] = {
    "object": frozenset({dict}),
    "array": frozenset({list}),
    "string": frozenset({str}),
    "number": frozenset({int, float}),
    "integer": frozenset({int}),
    "boolean": frozenset({bool}),
    "null": frozenset({type(None)}),
}

_Maker = Callable[[_Compiler, Any, Mapping[str, Any]], _Rule]


def _type(_compiler: _Compiler, wanted: Any, _schema: Mapping[str, Any]) -> _Rule:
    if isinstance(wanted, str):
        names = [wanted]
    else:
        names = wanted
    tests = [_TYPES[name] for name in names]
    classes = frozenset[type]().union(*(_CLASSES[name] for name in names))
    return lambda value, run: value.__class__ in classes or any(test(value) for test in tests)


def _compared(is_of: Callable[[Any], bool], test: Callable[[Any, Any], bool]) -> _Maker:
    """A keyword that compares values of one type with its own value."""

    def make(_compiler: _Compiler, wanted: Any, _schema: Mapping[str, Any]) -> _Rule:
        return lambda value, run: not is_of(value) or test(value, wanted)

    return make


def _among(values: Iterable[Any]) -> _Rule:
    try:
        known = frozenset(identity_of(value) for value in values)
    except TypeError:
        raise _Unsupported from None

    def rule(value: Any, run: _CheckState) -> bool:
        if isinstance(value, dict | list):
            run.spend(size_of(value))
        try:
            return identity_of(value) in known
        except TypeError:
            raise _Undecided from None

    return rule


def _unique(_compiler: _Compiler, wanted: Any, _schema: Mapping[str, Any]) -> _Rule:
    def rule(value: Any, run: _CheckState) -> bool:
        if not wanted or not is_list(value):
            return True
        run.spend(size_of(value))
        try:
            return len({identity_of(item) for item in value}) == len(value)
        except TypeError:
            raise _Undecided from None

    return rule


_OF_RECORD = frozenset({"type", "properties", "required", "additionalProperties"})
# So many combinations of names and classes are remembered for a record, of so many members each.
_MAX_SHAPES = 64
_MAX_MEMBERS = 64


def _record(compiler: _Compiler, schema: Mapping[str, Any]) -> _Rule:
    """The rule of most objects, in one function: their type, properties and required names.

    Most objects of an answer have the same names and classes, which decide about all members but
    those that are remembered for them.
    """
    rules = {
        name: (compiler.rule(part), compiler.quick(part))
        for name, part in schema["properties"].items()
    }
    needed = frozenset(schema.get("required", ()))
    is_closed = schema.get("additionalProperties", True) is False
    base_steps = 1 + len(needed)
    shapes: dict[tuple[str | type, ...], tuple[tuple[str, _Rule], ...]] = {}

    def members_to_check(members: dict[str, Any]) -> tuple[tuple[str, _Rule], ...] | None:
        """The members that need a look at their values, and their rules; None if names do not
        fit.
        """
        if not needed <= members.keys() or (is_closed and not members.keys() <= rules.keys()):
            return None
        return tuple(
            (name, rules[name][0])
            for name, item in members.items()
            if name in rules and item.__class__ not in rules[name][1]
        )

    def rule(value: Any, run: _CheckState) -> bool:
        if not isinstance(value, dict):
            return False
        members: dict[str, Any] = value
        run.left -= base_steps + len(members)
        if run.left < 0:
            raise _Undecided
        shape = (*members, *map(type, members.values()))
        try:
            unsure = shapes[shape]
        except KeyError:
            unsure = members_to_check(members)
            if unsure is None:
                return False
            if len(members) <= _MAX_MEMBERS and len(shapes) < _MAX_SHAPES:
                shapes[shape] = unsure
        for name, member_rule in unsure:  # noqa: SIM110  (a generator costs more than the check)
            if not member_rule(members[name], run):
                return False
        return True

    return rule


def _required(_compiler: _Compiler, wanted: Any, _schema: Mapping[str, Any]) -> _Rule:
    needed = frozenset(wanted)

    def rule(value: Any, run: _CheckState) -> bool:
        if not is_dict(value):
            return True
        run.spend(len(wanted))
        return needed <= value.keys()

    return rule


def _properties(compiler: _Compiler, wanted: Any, _schema: Mapping[str, Any]) -> _Rule:
    rules = [(name, compiler.rule(part), compiler.quick(part)) for name, part in wanted.items()]

    def rule(value: Any, run: _CheckState) -> bool:
        if not is_dict(value):
            return True
        run.spend(len(rules))
        for name, one, quick in rules:
            if name not in value:
                continue
            item = value[name]
            if item.__class__ not in quick and not one(item, run):
                return False
        return True

    return rule


def _additional(compiler: _Compiler, wanted: Any, schema: Mapping[str, Any]) -> _Rule:
    known = frozenset(schema.get("properties", ()))
    one = compiler.rule(wanted)

    def rule(value: Any, run: _CheckState) -> bool:
        if not is_dict(value):
            return True
        run.spend(len(value))
        if value.keys() <= known:
            return True
        return all(one(item, run) for name, item in value.items() if name not in known)

    return rule


def _items(compiler: _Compiler, wanted: Any, schema: Mapping[str, Any]) -> _Rule:
    begin = len(schema.get("prefixItems", ()))
    one = compiler.rule(wanted)
    quick = compiler.quick(wanted)
    is_array = schema.get("type") == "array"

    def rule(value: Any, run: _CheckState) -> bool:
        if not isinstance(value, list):
            return not is_array
        items: list[Any] = value
        run.left -= len(items)
        if run.left < 0:
            raise _Undecided
        if begin:
            items = items[begin:]
        if quick.issuperset(map(type, items)):
            return True
        for item in items:  # noqa: SIM110  (a generator costs more than the check)
            if not one(item, run):
                return False
        return True

    return rule


def _prefix(compiler: _Compiler, wanted: Any, _schema: Mapping[str, Any]) -> _Rule:
    rules = [compiler.rule(part) for part in wanted]

    def rule(value: Any, run: _CheckState) -> bool:
        if not is_list(value):
            return True
        run.spend(len(rules))
        return all(one(item, run) for one, item in zip(rules, value, strict=False))

    return rule


def _any_of(compiler: _Compiler, wanted: Any, _schema: Mapping[str, Any]) -> _Rule:
    rules = [compiler.rule(part) for part in wanted]

    def rule(value: Any, run: _CheckState) -> bool:
        run.spend(len(rules))
        return any(one(value, run) for one in rules)

    return rule


def _one_of(compiler: _Compiler, wanted: Any, _schema: Mapping[str, Any]) -> _Rule:
    rules = [compiler.rule(part) for part in wanted]

    def rule(value: Any, run: _CheckState) -> bool:
        run.spend(len(rules))
        found = 0
        for one in rules:
            found += one(value, run)
            if found > 1:
                return False
        return found == 1

    return rule


def _not(compiler: _Compiler, wanted: Any, _schema: Mapping[str, Any]) -> _Rule:
    one = compiler.rule(wanted)
    return lambda value, run: not one(value, run)


def _if(compiler: _Compiler, wanted: Any, schema: Mapping[str, Any]) -> _Rule:
    test = compiler.rule(wanted)
    then = compiler.rule(schema.get("then", True))
    otherwise = compiler.rule(schema.get("else", True))
    return lambda value, run: (then if test(value, run) else otherwise)(value, run)


_IGNORED = frozenset({"$ref", "format"})  # `$ref` has its own place; formats are not checked

_RULES: dict[str, _Maker] = {
    "type": _type,
    "enum": lambda _compiler, wanted, _schema: _among(wanted),
    "const": lambda _compiler, wanted, _schema: _among([wanted]),
    "minimum": _compared(_is_number, lambda value, wanted: not value < wanted),
    "maximum": _compared(_is_number, lambda value, wanted: not value > wanted),
    "exclusiveMinimum": _compared(_is_number, lambda value, wanted: not value <= wanted),
    "exclusiveMaximum": _compared(_is_number, lambda value, wanted: not value >= wanted),
    "minLength": _compared(_TYPES["string"], lambda value, wanted: len(value) >= wanted),
    "maxLength": _compared(_TYPES["string"], lambda value, wanted: len(value) <= wanted),
    "minItems": _compared(is_list, lambda value, wanted: len(value) >= wanted),
    "maxItems": _compared(is_list, lambda value, wanted: len(value) <= wanted),
    "minProperties": _compared(is_dict, lambda value, wanted: len(value) >= wanted),
    "maxProperties": _compared(is_dict, lambda value, wanted: len(value) <= wanted),
    "uniqueItems": _unique,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "prefixItems": _prefix,
    "allOf": lambda compiler, wanted, _schema: _all([compiler.rule(part) for part in wanted]),
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
}
