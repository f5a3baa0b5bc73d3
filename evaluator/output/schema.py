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
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from evaluator.errors import ConfigurationError
from evaluator.errors.messages import json_problem
from evaluator.language.scopes import TYPE_NAMES, describe, is_type_name, matches
from evaluator.lazy_dataclass import frozen
from evaluator.output.fast_check import Verdict, is_dict, is_list
from evaluator.output.result import MESSAGES, NotChecked, OutputError, ParsedOutput, json_path

if TYPE_CHECKING:
    from evaluator.files.project_code import Guard
    from evaluator.output.coerce import Guide
    from evaluator.output.validator import BoundedValidator

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
_imports: ContextVar[tuple[Imports, tuple[Guard, ...], list[str]]] = ContextVar(
    "evaluator_schema_imports", default=("all", (), [])
)

_MAX_PLACES = 3


@frozen(eq=False)
class Schema:
    """A compiled schema.

    `guide` guides the reading (None: nothing is known). `types` are the JSON types that the value
    may have (None: any or unknown). `fits` decides quickly whether a value fits; where it does not
    say so, `explain` gets the value and that verdict. `build` makes an instance of a class.
    """

    label: str
    guide: Guide | None
    types: frozenset[str] | None
    fits: Verdict
    explain: Callable[[Any, bool | None], OutputError | None]
    build: Callable[[Any], Any] | None = None

    def check(self, value: Any) -> OutputError | None:
        """Why a value does not match; None if it does."""
        verdict = self.fits(value)
        if verdict:
            return None
        return self.explain(value, verdict)


@frozen
class CheckedValue:
    """A value that was coerced and checked by a schema, with a warning for each kind of coercion,
    or an error.
    """

    value: Any
    warnings: tuple[str, ...]
    error: OutputError | None

    def output(self, warnings: Iterable[str], text: str) -> ParsedOutput:
        """The result of reading `text`; `warnings` come before those of the coercion."""
        every = tuple(dict.fromkeys((*warnings, *self.warnings)))
        if self.error is not None:
            return ParsedOutput(None, every, error=self.error, text=text)
        return ParsedOutput(self.value, every, error=None, text=text)


class UnusableSchema(Exception):
    """A schema cannot be used; the message says why. It becomes an OutputError of kind
    bad_schema.
    """


def conform(value: Any, schema: Schema | None, *warnings: str) -> CheckedValue:
    """Coerces a plain value to its schema and checks it. Containers are changed in place.

    `warnings` come before those of the coercion.
    """
    from evaluator.output.coerce import Coercion

    if schema is None:
        return CheckedValue(value, warnings, error=None)
    error = schema.check(value)
    # A value that fits is not coerced: texts are read as scalars only where the schema allows no
    # text.
    if (
        error is not None
        and not isinstance(error, NotChecked)
        and schema.guide is not None
        and isinstance(value, str | dict | list)
    ):
        coercion = Coercion(schema.guide)
        value = coercion.apply(value, schema.guide.root)
        if coercion.notes:
            warnings += tuple(
                _coercion_warning(kind, places) for kind, places in coercion.notes.items()
            )
            error = schema.check(value)
    if error is None and schema.build is not None:
        value = schema.build(value)
    return CheckedValue(value, warnings, error=error)


def _coercion_warning(kind: str, places: list[str]) -> str:
    shown = ", ".join(places[:_MAX_PLACES])
    if len(places) > _MAX_PLACES:
        more = f" and {len(places) - _MAX_PLACES} more"
    else:
        more = ""
    if kind in ("unit", "multiplier"):
        return f"{MESSAGES[kind]}: {shown}{more}"
    if kind == "word":
        what = "one of the allowed words"
    else:
        what = f"a {kind}, which the schema asks for"
    return f"text was read as {what}: {shown}{more}"


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
            imports, guards, named = _imports.get()
            if imports == "none":
                named.append(name)
                return Schema(name, None, None, fits=_is_any, explain=lambda _value, _verdict: None)
            return _model(name, os.getcwd(), imports, guards)
        names = ", ".join(TYPE_NAMES)
        raise UnusableSchema(
            f"the schema {name!r} is unknown: use one of {names}, T[], a .json file, JSON Schema "
            "or module:Model"
        )
    if is_dict(declared):
        try:
            return _compile_document(declared)
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
    value, and is added to the list that this context gives. Inside a context that never imports,
    no other one does.

    `guards` decide on each file of code that importing the module, and checking a value, runs.
    """

    __slots__ = ("_guards", "_imports", "_token")

    def __init__(self, imports: Imports, guards: tuple[Guard, ...] = ()) -> None:
        self._imports: Imports = imports
        self._guards = guards

    def __enter__(self) -> list[str]:
        named: list[str] = []
        imports = self._imports
        if _imports.get()[0] == "none":
            imports = "none"
        self._token = _imports.set((imports, self._guards, named))
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
    guide = Guide(_document_of(name))

    def fits(value: Any) -> bool:
        return value.__class__ is plain or matches(value, name)

    def explain(value: Any, _verdict: bool | None) -> OutputError:
        return _explain_type(value, name, path=[])

    return Schema(name, guide, guide.top, fits=fits, explain=explain)


def _document_of(name: str) -> dict[str, Any]:
    if name in ("[]", "array"):
        return {"type": "array"}
    if name.endswith("[]"):
        return {"type": "array", "items": _document_of(name[:-2])}
    if name == "any":
        return {}
    return {"type": name}


def _explain_type(value: Any, name: str, path: list[str | int]) -> OutputError:
    if is_list(value) and name.endswith("[]") and name != "[]":
        inner = name[:-2]
        for index, item in enumerate(value):
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
    if not is_dict(document):
        raise UnusableSchema(f"{label} must be a JSON object, not {describe(document)}")
    guide = Guide(document)
    validator = _validator_of(document, label)
    return Schema(label, guide, guide.top, fits=validator.verdict, explain=validator.explain)


def _validator_of(document: dict[str, Any], label: str) -> BoundedValidator:
    from jsonschema import exceptions, validators

    from evaluator.output.validator import BoundedValidator

    parts = list(_parts(document))
    if len(parts) > MAX_PARTS:
        raise UnusableSchema(f"{label} has more than {MAX_PARTS:,} parts; divide it, or check less")
    references = [part.get(key) for part in parts for key in ("$ref", "$dynamicRef")]
    for reference in references:
        if isinstance(reference, str) and not reference.startswith("#"):
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
    return BoundedValidator(document, kind, label)


def _parts(document: Any) -> Iterator[dict[str, Any]]:
    """The objects in a schema, without the values in it."""
    pending = [document]
    while pending:
        current = pending.pop()
        if is_dict(current):
            yield current
            pending += [
                item
                for key, item in current.items()
                if key not in ("const", "enum", "default", "examples")
            ]
        elif is_list(current):
            pending.extend(current)


@lru_cache(maxsize=256)
def _model(name: str, folder: str, imports: Imports, guards: tuple[Guard, ...]) -> Schema:
    """The schema of a class. `folder` is the current one, in which its module may be."""
    from evaluator.files.project_code import CodeGuard, guarded_import, import_place

    place, _, attribute = name.rpartition(":")
    if imports == "allowed":
        guard = CodeGuard(folder)
    else:
        guard = None
    try:
        found: Any = import_place(place, guard, always=guards)
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
    # The code of a class may import more when a schema is made of it, and when it checks a value.
    if guard is not None and place.endswith(".py"):
        guards = (*guards, guard.beside(os.path.realpath(place)))
    with guarded_import(*guards):
        return _adapted(found, guards)


@lru_cache(maxsize=256)
def _adapted(model: Any, guards: tuple[Guard, ...] = ()) -> Schema:
    """The schema of a class or type that Pydantic supports: models, dataclasses, TypedDicts,
    `list[Model]`, … `guards` decide on what it imports when it checks a value.
    """
    import pydantic

    from evaluator.files.project_code import guarded_import
    from evaluator.output.coerce import Guide
    from evaluator.output.validator import undecided

    label = getattr(model, "__name__", None) or str(model)
    try:
        adapter: Any = pydantic.TypeAdapter(model)
    # Pydantic raises errors of several families for types that it cannot describe.
    except Exception as error:
        raise UnusableSchema(
            f"{label} is not a Pydantic model, a dataclass or a type of JSON values: {error}"
        ) from error
    guide: Guide | None = None
    types: frozenset[str] | None = None
    validator: BoundedValidator | None = None
    try:
        document: dict[str, Any] = adapter.json_schema()
        guide = Guide(document)
        types = guide.top
        validator = _validator_of(document, label)
    except pydantic.errors.PydanticInvalidForJsonSchema:
        pass  # A type without a JSON Schema, such as a callable: only Pydantic checks it.

    def build(value: Any) -> Any:
        with guarded_import(*guards):
            return adapter.validate_python(value)

    def explain(value: Any, _verdict: bool | None) -> OutputError | None:
        if validator is not None and (error := validator.check(value)) is not None:
            return error
        try:
            build(value)
        except pydantic.ValidationError as failure:
            first: Any = failure.errors(include_url=False, include_context=False)[0]
            return OutputError(
                "schema_violation",
                str(first["msg"]),
                path=json_path(list(first["loc"])),
                expected=str(first["type"]),
                actual=describe(first.get("input")),
            )
        except Exception as failure:  # The model's own validators may raise anything.
            return OutputError(
                "schema_violation",
                f"{label} refused the value: {type(failure).__name__}: {failure}",
                path="$",
            )
        return None

    return Schema(label, guide, types, fits=undecided, explain=explain, build=build)


def _is_any(_value: Any) -> bool:
    return True
