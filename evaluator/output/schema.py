"""Compiles declared schemas: a type name, a JSON Schema (inline or a file), `module:Model`, or a
class.

A compiled schema has the JSON Schema document that guides reading and the check that a value has to
pass. No reference is ever fetched: `$ref` works only inside its own document. A check has bounded
steps, and its patterns have bounded
time: a value that takes longer is refused with a `NotChecked`.
"""

from __future__ import annotations

import json
import marshal
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, cast

from evaluator.errors import ConfigurationError
from evaluator.errors.messages import cut, json_problem
from evaluator.language.scopes import TYPE_NAMES, describe, is_type_name, matches
from evaluator.lazy_dataclass import dataclass
from evaluator.output.result import OutputError, json_path

if TYPE_CHECKING:
    from evaluator.output.coerce import Guide

_CLASSES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    dict: "object",
    list: "array",
    object: "any",
    Any: "any",
}
_MAX_SHOWN = 300
MAX_PARTS = 5000
"""At most this many objects are in a schema: the check of the schema itself takes 0.2 ms for
each.
"""

Imports = Literal["all", "allowed", "none"]
_imports: ContextVar[tuple[Imports, list[str]]] = ContextVar(
    "evaluator_schema_imports", default=("all", [])
)

Check = Callable[[Any], OutputError | None]


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A compiled schema. `guide` guides the reading (None: nothing is known); `build` makes an
    instance of a class.
    """

    label: str
    guide: Guide | None
    check: Check
    build: Callable[[Any], Any] | None = None

    @property
    def types(self) -> frozenset[str] | None:
        """The JSON types that the value may have; None if any or unknown."""
        if self.guide is not None:
            return self.guide.top
        return None


@dataclass(frozen=True, slots=True)
class NotChecked(OutputError):
    """The check took too long, so it is not known whether the value matches, or where it does not.

    For a pattern `path` is that of the text or object where it is known (not under `not`, `if` or
    `contains`), else `$`.
    """


class UnusableSchema(Exception):
    """A schema cannot be used; the message says why. It becomes an OutputError of kind
    bad_schema.
    """


def compile_schema(declared: Any) -> Schema | None:
    """The compiled form of a declared schema; None for no schema and for `any`.

    Names and inline text are compiled once per process, files once per modification.
    Raises: UnusableSchema.
    """
    if declared is None:
        return None
    if isinstance(declared, str):
        if declared in TYPE_NAMES:
            return _named(declared)
        name = declared.strip()
        if not name:
            return None
        if name.startswith("{"):
            return _inline(name)
        if is_type_name(name):
            return _named(name)
        if name.lower().endswith(".json"):
            return _file(name)
        if ":" in name:
            imports, named = _imports.get()
            if imports == "none":
                named.append(name)
                return Schema(name, None, check=_always)
            return _model(name, os.getcwd(), imports)
        names = ", ".join(TYPE_NAMES)
        raise UnusableSchema(
            f"the schema {name!r} is unknown: use one of {names}, T[], a .json file, JSON Schema "
            "or module:Model"
        )
    if isinstance(declared, dict):
        try:
            return _compile_document(cast("dict[str, Any]", declared))
        except (TypeError, ValueError, RecursionError) as error:
            raise UnusableSchema(f"the schema is not JSON: {json_problem(error)}") from error
    try:
        if declared in _CLASSES:
            return _named(_CLASSES[declared])
        return _adapted(declared)
    except TypeError as error:
        raise UnusableSchema(f"{declared!r} is not a schema") from error


class schema_imports:
    """Inside, the module of a `module:Model` is imported: always (the default); if it is not in the
    current folder, or the user has allowed its code; or never. Then such a schema allows every
    value, and is added to the list that this context gives.
    """

    __slots__ = ("_imports", "_token")

    def __init__(self, imports: Imports) -> None:
        self._imports: Imports = imports

    def __enter__(self) -> list[str]:
        named: list[str] = []
        self._token = _imports.set((self._imports, named))
        return named

    def __exit__(self, *_: object) -> None:
        _imports.reset(self._token)


def schema_problem(declared: Any) -> str | None:
    """The reason why a declared schema cannot be used; None if it can be. Imports the module of
    `module:Model`.
    """
    try:
        compile_schema(declared)
    except UnusableSchema as error:
        return str(error)
    return None


def schema_text(declared: str) -> str | None:
    """The JSON Schema of a declared schema file or `module:Model` as text, to be shown to a model.

    None if it cannot be used; reading the output then says why.
    """
    try:
        schema = compile_schema(declared)
    except UnusableSchema:
        return None
    if schema is None or schema.guide is None:
        return None
    return json.dumps(schema.guide.root, ensure_ascii=False)


@lru_cache(maxsize=256)
def _named(name: str) -> Schema | None:
    from evaluator.output.coerce import Guide

    if name == "any":
        return None

    plain = {"object": dict, "array": list, "[]": list, "string": str}.get(name)

    def check(value: Any) -> OutputError | None:
        if value.__class__ is plain or matches(value, name):
            return None
        return _explain_type(value, name, path=[])

    return Schema(name, Guide(_document_of(name)), check=check)


def _document_of(name: str) -> dict[str, Any]:
    if name in ("[]", "array"):
        return {"type": "array"}
    if name.endswith("[]"):
        return {"type": "array", "items": _document_of(name[:-2])}
    if name == "any":
        return {}
    return {"type": name}


def _explain_type(value: Any, name: str, path: list[str | int]) -> OutputError:
    if isinstance(value, list) and name.endswith("[]") and name != "[]":
        inner = name[:-2]
        for index, item in enumerate(cast(list[Any], value)):
            if not matches(item, inner):
                return _explain_type(item, inner, path=[*path, index])
    shown = "array" if name == "[]" else name
    actual = describe(value)
    return OutputError(
        "type_mismatch",
        f"expected {shown}, got {actual}",
        path=json_path(path),
        expected=shown,
        actual=actual,
    )


_MAX_DOCUMENTS = 256
_documents: dict[bytes, Schema] = {}


@lru_cache(maxsize=256)
def _inline(text: str) -> Schema:
    return _from_text(text, "the inline JSON Schema")


def _compile_document(document: dict[str, Any]) -> Schema:
    try:
        key = marshal.dumps(document)  # a quarter of the time that JSON takes
    except ValueError:  # a subclass of dict or str
        return _inline(json.dumps(document))
    known = _documents.get(key)
    if known is None:
        if len(_documents) >= _MAX_DOCUMENTS:
            _documents.clear()
        known = _documents[key] = _inline(json.dumps(document))
    return known


def _file(path: str) -> Schema:
    try:
        stat = os.stat(path)
        return _file_at(path, stat.st_mtime_ns, _size=stat.st_size)
    except (OSError, ValueError) as error:
        raise UnusableSchema(f"the schema file {path} cannot be read: {error}") from error


@lru_cache(maxsize=256)
def _file_at(path: str, _mtime_ns: int, _size: int) -> Schema:
    with open(path, encoding="utf-8-sig") as file:
        return _from_text(file.read(), path)


def _from_text(text: str, label: str) -> Schema:
    from evaluator.output.coerce import Guide

    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableSchema(f"{label} is not JSON: {json_problem(error)}") from error
    if not isinstance(document, dict):
        raise UnusableSchema(f"{label} must be a JSON object, not {describe(document)}")
    known = cast(dict[str, Any], document)
    return Schema(label, Guide(known), check=_document_check(known, label))


def _document_check(document: dict[str, Any], label: str) -> Check:
    from jsonschema import exceptions, validators
    from referencing.exceptions import Unresolvable

    from evaluator.output.validator import BoundedValidator, Watch

    if sum(1 for _ in _parts(document)) > MAX_PARTS:
        raise UnusableSchema(f"{label} has more than {MAX_PARTS:,} parts; divide it, or check less")
    for reference in _references(document):
        if not reference.startswith("#"):
            raise UnusableSchema(
                f"{label} refers to {reference!r}: only references inside the schema (#/…) are "
                "followed"
            )
    kind: Any = validators.validator_for(document, default=validators.Draft202012Validator)
    try:
        kind.check_schema(document)
    except (exceptions.SchemaError, RecursionError) as error:
        reason = getattr(error, "message", "it is nested too deeply")
        raise UnusableSchema(f"{label} is not a valid JSON Schema: {reason}") from error
    validator = BoundedValidator(document, kind)

    def check(value: Any) -> OutputError | None:
        verdict = validator.verdict(value)
        if verdict:
            return None
        watch = Watch()
        try:
            error = next(iter(validator.errors(value, 1, watch)), None)
            if watch.late is not None:
                return _explain_late(watch.late, error)
            if watch.is_spent:
                return _explain_spent(verdict)
            if error is None:
                return None
            return _explain(exceptions.best_match(iter([error])))
        except Unresolvable as failure:
            return OutputError(
                "bad_schema", f"{label} has a reference to something that does not exist: {failure}"
            )
        except RecursionError:
            return OutputError(
                "schema_violation", "the value is nested too deeply to be checked", path="$"
            )
        except (
            Exception
        ) as failure:  # An invalid or too large pattern, or a keyword of the wrong type.
            return OutputError("bad_schema", f"{label} cannot be applied: {failure}")

    return check


def _explain_spent(verdict: bool | None) -> NotChecked:
    from evaluator.output.validator import MAX_STEPS

    if verdict is False:
        message = (
            "the value does not match its schema; the place was not found within "
            f"{MAX_STEPS:,} steps"
        )
    else:
        message = f"the value is not checked: that takes more than {MAX_STEPS:,} steps"
    advice = "shorten the value, or simplify the schema: unions inside unions take long"
    return NotChecked("schema_violation", f"{message}; {advice}", path="$")


def _references(document: Any) -> Iterator[str]:
    for part in _parts(document):
        for key in ("$ref", "$dynamicRef"):
            if isinstance(reference := part.get(key), str):
                yield reference


def _parts(document: Any) -> Iterator[dict[str, Any]]:
    """The objects in a schema, without the values in it."""
    pending = [document]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            part = cast(dict[str, Any], current)
            yield part
            pending += [
                item
                for key, item in part.items()
                if key not in ("const", "enum", "default", "examples")
            ]
        elif isinstance(current, list):
            pending.extend(cast(list[Any], current))


def _explain(error: Any) -> OutputError:
    """A jsonschema error in words: where it is, what was expected, what was found."""
    path = json_path(list(error.absolute_path))
    actual = describe(error.instance)
    rule = error.validator
    wanted = error.validator_value
    if rule == "type":
        if isinstance(wanted, list):
            expected = " or ".join(cast(list[str], wanted))
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
            expected = " or ".join(cast(list[str], kinds))
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


@lru_cache(maxsize=256)
def _model(name: str, folder: str, imports: Imports) -> Schema:
    """The schema of a class. `folder` is the current one, in which its module may be."""
    from evaluator.files.project_code import CodeGuard, import_place

    place, _, attribute = name.rpartition(":")
    if imports == "allowed":
        guard = CodeGuard(folder)
    else:
        guard = None
    try:
        found: Any = import_place(place, guard)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ConfigurationError as error:
        raise UnusableSchema(f"{name} is not imported: {error}") from error
    except Exception as error:  # Importing runs the author's module, which may raise anything.
        raise UnusableSchema(
            f"{name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, type):
        raise UnusableSchema(f"{name} is not a class but {describe(found)}")
    return _adapted(found)


@lru_cache(maxsize=256)
def _adapted(model: Any) -> Schema:
    """The schema of a class or type that Pydantic supports: models, dataclasses, TypedDicts,
    `list[Model]`, …
    """
    import pydantic

    from evaluator.output.coerce import Guide

    label = getattr(model, "__name__", None) or str(model)
    try:
        adapter: Any = pydantic.TypeAdapter(model)
    except (
        Exception
    ) as error:  # Pydantic raises errors of several families for types that it cannot describe.
        raise UnusableSchema(
            f"{label} is not a Pydantic model, a dataclass or a type of JSON values: {error}"
        ) from error
    guide: Guide | None = None
    by_document: Check = _always
    try:
        document: dict[str, Any] = adapter.json_schema()
        guide = Guide(document)
        by_document = _document_check(document, label)
    except pydantic.errors.PydanticInvalidForJsonSchema:
        pass  # A type without a JSON Schema, such as a callable: only Pydantic checks it.

    def check(value: Any) -> OutputError | None:
        error = by_document(value)
        if error is not None:
            return error
        try:
            adapter.validate_python(value)
        except pydantic.ValidationError as failure:
            return _explain_model(failure)
        except Exception as failure:  # The model's own validators may raise anything.
            return OutputError(
                "schema_violation",
                f"{label} refused the value: {type(failure).__name__}: {failure}",
                path="$",
            )
        return None

    return Schema(label, guide, check=check, build=adapter.validate_python)


def _always(_value: Any) -> OutputError | None:
    return None


def _explain_model(failure: Any) -> OutputError:
    first = failure.errors(include_url=False, include_context=False)[0]
    actual = describe(first.get("input"))
    return OutputError(
        "schema_violation",
        str(first["msg"]),
        path=json_path(list(first["loc"])),
        expected=str(first["type"]),
        actual=actual,
    )
