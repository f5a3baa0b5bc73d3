"""`calls`: function calls, compared with allowed calls as BFCL's AST evaluation compares those of
Python functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.builtin_scorer import (
    ResultScorer,
    ScoredExpression,
    as_list,
    evaluate,
)
from evaluator.batch.scorers.contract import NO_TARGET, ScorerInput, binary_score
from evaluator.batch.scorers.json_scorers import first_unmatched
from evaluator.errors import UsageError
from evaluator.language.scopes import describe as type_of
from evaluator.lazy_dataclass import frozen
from evaluator.output import parse_output

_IGNORED = re.compile(r"[ ,./\-_*^]")
_SCHEMA_INPUTS = ("functions", "function", "tools")
_OPTIONAL = ""
"""Among the allowed values: the parameter may be left out."""

_PYTHON: Mapping[str, type] = {
    "object": dict,
    "dict": dict,
    "array": list,
    "list": list,
    "tuple": list,
    "string": str,
    "any": str,
    "integer": int,
    "number": float,
    "float": float,
    "boolean": bool,
    "bool": bool,
}


class FunctionCall(NamedTuple):
    name: str
    arguments: Mapping[str, Any]


class Allowed(NamedTuple):
    """An expected call: for each parameter the values that are right."""

    name: str
    values: Mapping[str, Sequence[Any]]


@frozen(kw_only=True)
class CallsScorer(ResultScorer):
    """Function calls: the names and arguments of a list `[{name, arguments}]`, such as the result
    of a task with `<tools from>`. The order of the calls does not matter.

    The target is a list of expected calls: `{name: {parameter: [allowed values]}}`, where an
    allowed `""` makes the parameter optional, or `{name, arguments}` with one value each. An empty
    list: no call is right. `functions` is an expression for the schemas, which give the types and
    the required parameters; the default is the input `functions`, `function` or `tools`, if there
    is one. Dots and underscores in names are equal.
    """

    type: ClassVar[str] = "calls"
    functions: ScoredExpression | None = None

    def check_target(self, target: Any) -> None:
        if target is not None:
            _expected(target)

    async def score(self, scored: ScorerInput) -> Score:
        if scored.sample.target is None:
            return NO_TARGET
        expected = _expected(scored.sample.target)
        calls = _found(self.value(scored))
        if isinstance(calls, str):
            return binary_score(False, None, explanation=calls)
        problem = _problem(expected, calls, schemas=self._schemas(scored))
        shown: list[str] = []
        for call in calls:
            arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
            shown.append(f"{call.name}({arguments})")
        return binary_score(problem is None, ", ".join(shown), explanation=problem or "")

    def _schemas(self, scored: ScorerInput) -> dict[str, Mapping[str, Any]]:
        """The parameters of each function, by its comparable name."""
        inputs = scored.sample.inputs
        if self.functions is not None:
            value = evaluate(self.functions, scored)
        else:
            value = next((inputs[name] for name in _SCHEMA_INPUTS if name in inputs), [])
        value = _from_text(value)
        schemas: dict[str, Mapping[str, Any]] = {}
        for item in as_list(value):
            if isinstance(item, Mapping):
                inner = item.get("function", item)
            else:
                inner = None
            if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
                if self.functions is None:
                    return {}
                raise UsageError(
                    f"calls: the functions are {type_of(value)}, expected a list of schemas with "
                    "names"
                )
            function = cast("Mapping[str, Any]", inner)
            schemas[_plain_name(function["name"])] = function.get("parameters") or {}
        return schemas


def calls_of(target: Any) -> list[dict[str, Any]]:
    """Calls that a target of `calls` allows: each parameter has the first of its values.

    Raises: UsageError, for a target that is not a list of calls.
    """
    return [
        {"name": each.name, "arguments": _first_values(each.values)} for each in _expected(target)
    ]


def _first_values(allowed: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, values in allowed.items():
        if isinstance(values, list | tuple):
            given = [each for each in values if each != _OPTIONAL]
        else:
            given = [values]
        if given:
            found[name] = _first_value(given[0])
    return found


def _first_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _first_values(cast("Mapping[str, Any]", value))
    if isinstance(value, list | tuple):
        return [_first_value(each) for each in cast("list[Any]", value)]
    return value


def _from_text(value: Any) -> Any:
    if isinstance(value, str):
        return parse_output(value, "json", schema="any").value
    return value


def _expected(target: Any) -> list[Allowed]:
    """Raises: UsageError, for a target that is not a list of calls."""
    return [_allowed(item) for item in as_list(_from_text(target))]


def _allowed(item: Any) -> Allowed:
    if isinstance(item, Mapping):
        call = cast("Mapping[str, Any]", item)
        name = call.get("name")
        arguments = call.get("arguments")
        if isinstance(name, str) and isinstance(arguments, Mapping) and len(call) == 2:
            return Allowed(name, _only(cast("Mapping[str, Any]", arguments)))
        if len(call) == 1:
            ((name, values),) = call.items()
            if isinstance(values, Mapping) and all(
                isinstance(each, list | tuple) for each in values.values()
            ):
                return Allowed(name, cast("Mapping[str, Sequence[Any]]", values))
    raise UsageError(
        f"calls: the target has {type_of(item)} {str(item)[:80]!r}, expected {{name: {{parameter: "
        f"[values]}}}} or "
        "{name, arguments}"
    )


def _only(value: Any) -> Any:
    """A value as the only allowed one: each field of an object gets a list of values."""
    if isinstance(value, Mapping):
        return {key: [_only(inner)] for key, inner in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_only(each) for each in cast("list[Any]", value)]
    return value


def _found(value: Any) -> list[FunctionCall] | str:
    """The calls of an answer, or why it has none that can be read. A text without JSON has no
    calls.
    """
    if isinstance(value, str):
        if "[" in value:
            read = parse_output(value, "json", schema="array")
        else:
            read = None
        if read is None or read.error is not None or read.value is None:
            value = []
        else:
            value = read.value
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list | tuple):
        return f"the answer is {type_of(value)}, not a list of calls"
    calls: list[FunctionCall] = []
    for item in cast("Sequence[Any]", value):
        if isinstance(item, Mapping):
            name, arguments = (item.get("name"), item.get("arguments"))
        else:
            name, arguments = (None, None)
        if not isinstance(name, str):
            return f"an item of the answer is not a call with a name: {str(item)[:80]}"
        if not isinstance(arguments, Mapping):
            return f"the arguments of {name} are not a JSON object: {str(arguments)[:80]}"
        calls.append(FunctionCall(name, cast("Mapping[str, Any]", arguments)))
    return calls


def _problem(
    expected: Sequence[Allowed],
    found: Sequence[FunctionCall],
    schemas: Mapping[str, Mapping[str, Any]],
) -> str | None:
    """Why the calls are not the expected ones; None if each is one of them, in any order."""
    if len(expected) != len(found):
        return f"{len(found)} call{'' if len(found) == 1 else 's'}, expected {len(expected)}"
    problems = [[_difference(want, call, schemas=schemas) for call in found] for want in expected]
    want = first_unmatched(
        [[at for at, problem in enumerate(row) if problem is None] for row in problems]
    )
    if want is None:
        return None
    reasons = [problem for problem in problems[want] if problem]
    if len(reasons) == 1:
        return reasons[0]
    return f"no call is {expected[want].name} as expected: {'; '.join(reasons)}"


def _difference(
    want: Allowed, call: FunctionCall, schemas: Mapping[str, Mapping[str, Any]]
) -> str | None:
    name = _plain_name(want.name)
    if _plain_name(call.name) != name:
        return f"{call.name} is called, expected {want.name}"
    schema = schemas.get(name, {})
    types = cast("Mapping[str, Any]", schema.get("properties") or {})
    for parameter in cast("Sequence[str]", schema.get("required") or ()):
        if parameter not in call.arguments:
            return f"{call.name}: the required {parameter} is missing"
    for parameter, value in call.arguments.items():
        if parameter not in want.values or (schema and parameter not in types):
            return f"{call.name}: {parameter} is not expected"
        allowed = want.values[parameter]
        if not _fits(value, allowed, schema=types.get(parameter)):
            return (
                f"{call.name}: {parameter} is {str(value)[:80]!r}, expected one of "
                f"{str(list(allowed))[:200]}"
            )
    for parameter, allowed in want.values.items():
        if parameter not in call.arguments and _OPTIONAL not in allowed:
            return f"{call.name}: {parameter} is missing"
    return None


def _fits(value: Any, allowed: Sequence[Any], schema: Any) -> bool:
    """Whether a value has the declared type, or that of the allowed values, and is one of them."""
    wanted = _declared_type(schema)
    if wanted is float and type(value) is int:
        value = float(value)
    allowed_type = next((_kind(each) for each in allowed if each != _OPTIONAL), None)
    if wanted is not None and type(value) is not wanted and type(value) is not allowed_type:
        return False
    if wanted is list and type(value) is list and allowed_type is list:
        items = schema.get("items")
        if not any(
            _items_fit(value, each, schema=items)
            for each in allowed
            if isinstance(each, list | tuple)
        ):
            return False
    return any(_equal(value, each) for each in allowed)


def _declared_type(schema: Any) -> type | None:
    if isinstance(schema, Mapping):
        type_name: Any = cast("Mapping[str, Any]", schema).get("type")
        if isinstance(type_name, str):
            return _PYTHON.get(type_name.lower())
    return None


def _items_fit(value: list[Any], allowed: Sequence[Any], schema: Any) -> bool:
    """Whether the items of an array have the type that the schema declares, or that of the allowed
    items.
    """
    wanted = _declared_type(schema)
    if wanted is None:
        return True
    types = {wanted, *(_kind(each) for each in allowed)}
    return all(type(item) in types for item in value)


def _equal(value: Any, allowed: Any) -> bool:
    """Equality as BFCL has it: texts without capitals, spaces and some punctuation; objects with
    allowed values.
    """
    if isinstance(value, str) and isinstance(allowed, str):
        return _plain_text(value) == _plain_text(allowed)
    if isinstance(value, Mapping) and isinstance(allowed, Mapping):
        return _equal_objects(cast("Mapping[str, Any]", value), cast("Mapping[str, Any]", allowed))
    if isinstance(value, list) and isinstance(allowed, list | tuple):
        items = cast("list[Any]", value)
        wanted = cast("Sequence[Any]", allowed)
        return len(items) == len(wanted) and all(map(_equal, items, wanted))
    return isinstance(value, bool) == isinstance(allowed, bool) and value == allowed


def _equal_objects(value: Mapping[str, Any], allowed: Mapping[str, Any]) -> bool:
    """Each field of an allowed object has a list of values, as parameters have."""
    for name, inner in value.items():
        if name not in allowed or not any(_equal(inner, each) for each in as_list(allowed[name])):
            return False
    return all(name in value or _OPTIONAL in as_list(each) for name, each in allowed.items())


def _kind(value: Any) -> type:
    if isinstance(value, tuple):
        return list
    if isinstance(value, Mapping):
        return dict
    return type(value)


def _plain_text(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')


def _plain_name(name: str) -> str:
    return name.replace(".", "_")
