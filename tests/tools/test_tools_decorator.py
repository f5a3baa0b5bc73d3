"""A Python function becomes a tool: its schema comes from the signature, its descriptions from the docstring."""

import asyncio
import dataclasses
import functools
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, Optional

import pytest
from pydantic import Field
from typing_extensions import (
    TypedDict,
)  # that of typing only since Python 3.12, as pydantic wants it

from evaluator import UsageError, tool
from evaluator.tools import FileAccess, ToolContext, ToolRegistry


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Box:
    width: float
    color: Color = Color.RED


class Row(TypedDict):
    id: int
    note: NotRequired[str]


@dataclass
class Chain:
    next: "Chain | None"


def schema_of(annotation):
    def function(value): ...

    function.__annotations__ = {"value": annotation}
    parameters = tool(function).spec.parameters
    schema = parameters["properties"]["value"]
    if "$ref" not in schema:
        return schema
    found = dict(parameters["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    return {key: value for key, value in found.items() if key != "title"}


def pass_through(annotation, value):
    seen = []

    def function(value):
        seen.append(value)

    function.__annotations__ = {"value": annotation}
    registry = ToolRegistry([tool(function)])
    context = ToolContext(roots=FileAccess([]))
    outcome = asyncio.run(registry.call("function", json.dumps({"value": value}), context))
    return seen[0] if outcome.ok else outcome


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Any, {}),
        (list, {"type": "array", "items": {}}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (dict, {"type": "object", "additionalProperties": True}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Optional[int], {"type": ["integer", "null"]}),  # noqa: UP045  (the older spelling is meant)
        (str | int | None, {"type": ["string", "integer", "null"]}),
        (
            list[str] | None,
            {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        ),
        (Color, {"type": "string", "enum": ["red", "blue"]}),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
        (
            Box,
            {
                "type": "object",
                "properties": {
                    "width": {"type": "number", "title": "Width"},
                    "color": {"$ref": "#/$defs/Color", "default": "red"},
                },
                "required": ["width"],
                "additionalProperties": False,
            },
        ),
        (
            Row,
            {
                "type": "object",
                "properties": {
                    "id": {"type": "integer", "title": "Id"},
                    "note": {"type": "string", "title": "Note"},
                },
                "required": ["id"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_an_annotation_becomes_a_schema(annotation, schema):
    assert schema_of(annotation) == schema


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, 3.0, 3),
        (float, 3, 3.0),
        (Color, "blue", Color.BLUE),
        (list[Color], ["red"], [Color.RED]),
        (dict[str, Color], {"a": "red"}, {"a": Color.RED}),
        (Color | None, None, None),
        (Box, {"width": 2}, Box(2.0)),
        (list[Box], [{"width": 1, "color": "blue"}], [Box(1.0, Color.BLUE)]),
        (Box | str, "plain", "plain"),
        (Box | str, {"width": 1}, Box(1.0)),
        (Row, {"id": 1}, {"id": 1}),
        (Any, {"x": [1]}, {"x": [1]}),
        (Chain, {"next": {"next": None}}, Chain(Chain(None))),
        (tuple[int, int], [1, 2], (1, 2)),
        (date, "2026-03-02", date(2026, 3, 2)),
        (Annotated[int, Field(ge=1)], 1, 1),
    ],
)
def test_a_value_is_converted_to_the_annotated_type(annotation, value, expected):
    given = pass_through(annotation, value)
    assert given == expected
    assert type(given) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (int, "3", "'3' is not of type 'integer'"),
        (bool, 1, "1 is not of type 'boolean'"),
        (str, 3, "3 is not of type 'string'"),
        (Color, "green", "'green' is not one of"),
        (list[Color], ["red", 1], "$.value[1]"),
        (Box, {"width": "2"}, "'2' is not of type 'number'"),
        (Box, {"width": 2, "depth": 1}, "'depth' was unexpected"),
        (Box | None, {}, "value"),
        (date, "soon", "argument value: "),
        (Annotated[int, Field(ge=1)], 0, "0 is less than the minimum of 1"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_the_argument_named(annotation, value, words):
    outcome = pass_through(annotation, value)
    assert not outcome.ok
    assert words in outcome.error
    assert "value" in outcome.error


@pytest.mark.parametrize("annotation", [Callable, slice])
def test_an_annotation_that_a_schema_cannot_express_is_named(annotation):
    with pytest.raises(UsageError, match="parameter 'value'"):
        schema_of(annotation)


def test_a_parameter_that_a_model_cannot_pass_is_refused():
    with pytest.raises(UsageError, match="'a' has no annotation"):
        tool(lambda a: a)
    with pytest.raises(UsageError, match=r"\*rest"):

        @tool
        def spread(*rest: int): ...

    with pytest.raises(UsageError, match="Missing"):

        @tool
        def unknown(a: "Missing"): ...  # noqa: F821  (the name is missing on purpose)


def test_a_docstring_in_sections_gives_the_descriptions():
    @tool
    def find(term: str, limit: int = 10, *, exact: bool = False) -> list[str]:
        """Find documents.

        Looks at titles: only those.

        Args:
            term: what to look for,
                over two lines
            limit (int): how many: at most

        Returns:
            the titles
        """
        return []

    assert find.spec.description == "Find documents.\n\nLooks at titles: only those."
    assert find.spec.parameters == {
        "type": "object",
        "properties": {
            "term": {"type": "string", "description": "what to look for, over two lines"},
            "limit": {"type": "integer", "description": "how many: at most", "default": 10},
            "exact": {"type": "boolean", "default": False},
        },
        "required": ["term"],
        "additionalProperties": False,
    }


def test_a_plain_docstring_gives_the_descriptions():
    @tool
    def find(term: str):
        """Find documents.

        term: what to look for
        """

    assert find.spec.description == "Find documents."
    assert find.spec.parameters["properties"]["term"]["description"] == "what to look for"


def test_the_decorators_options_are_the_tools():
    @tool(name="other", description="Words.", policy="ask", retryable=True, effect=False)
    def function(): ...

    assert (function.name, function.spec.description) == ("other", "Words.")
    assert (function.policy, function.retryable, function.effect) == ("ask", True, False)
    assert (
        tool(
            lambda: None,
        ).retryable
        is False
    )


def test_the_function_itself_is_an_attribute_of_the_tool():
    @tool
    def double(a: int) -> int:
        return 2 * a

    assert double.function(4) == 8


def test_the_context_is_passed_in_and_hidden_from_the_model():
    @tool
    def where(context: ToolContext, word: str) -> str:
        return f"{word} {context.step_path}"

    context = ToolContext(roots=FileAccess([]), step_path="root/step[1]")
    outcome = asyncio.run(ToolRegistry([where]).call("where", '{"word": "at"}', context))
    assert outcome.content == "at root/step[1]"
    assert list(where.spec.parameters["properties"]) == ["word"]


def test_a_sync_function_runs_in_a_thread_and_an_async_one_on_the_loop():
    @tool
    def sync() -> bool:
        return threading.current_thread() is threading.main_thread()

    @tool
    async def on_loop() -> bool:
        return threading.current_thread() is threading.main_thread()

    class Callee:
        __name__ = "callee"

        async def __call__(self, a: int) -> int:
            return a

    async def all_of_them():
        context = ToolContext(roots=FileAccess([]))
        registry = ToolRegistry([sync, on_loop, tool(Callee())])
        calls = (("sync", ""), ("on_loop", ""), ("callee", '{"a": 1}'))
        return [
            (await registry.call(name, arguments, context)).content for name, arguments in calls
        ]

    assert asyncio.run(all_of_them()) == ["false", "true", "1"]


async def shout(text: str) -> str:
    return text.upper()


def wrapped(text: str):
    return shout(text)


@pytest.mark.parametrize(
    "function", [functools.wraps(shout)(wrapped), functools.partial(shout), wrapped]
)
def test_a_plain_function_around_an_async_one_is_awaited(function):
    made = tool(name="shout")(function)
    outcome = asyncio.run(
        ToolRegistry([made]).call("shout", '{"text": "ho"}', ToolContext(roots=FileAccess([])))
    )
    assert (outcome.ok, outcome.content) == (True, "HO")


def test_a_decorated_function_is_called_as_before() -> None:
    @tool(policy="deny")
    def join(first: str, *, second: str = "b") -> str:
        """Joins two texts."""
        return first + second

    assert join("a") == "ab"
    assert join("a", second="c") == "ac"
    bare = dataclasses.replace(join, function=None)
    with pytest.raises(UsageError, match="'join' was not made from a function"):
        bare("a")


@pytest.mark.parametrize(
    ("docstring", "message"),
    [
        (
            "Find.\n\nArgs:\n    trem: what",
            "tool 'find': its docstring describes 'trem', which is not a parameter; did you mean `term`",
        ),
        (
            "Find.\n\nArgs:\n    term: what:\n        more: of it\n    other (int): x",
            "describes 'other'",
        ),
        (
            "Find.\n\nArgs:\n    term: what\n\n    query: x\n\nReturns:\n    str: y",
            "describes 'query'",
        ),
    ],
)
def test_a_docstring_that_describes_an_unknown_parameter_is_refused(docstring, message):
    def find(term: str) -> str:
        return term

    find.__doc__ = docstring
    with pytest.raises(UsageError, match=re.escape(message)):
        tool(find)


@pytest.mark.parametrize(
    "docstring",
    [
        "Find.\n\nArgs:\n    term: what\n        as: here\n\nReturns:\n    text: the title",
        "Find.\n\nArgs:\n    term: what\nhint: this is not an entry",
        "Find.\n\nhint: this is not an entry",
    ],
)
def test_what_only_looks_like_an_entry_is_left_alone(docstring):
    def find(term: str) -> str:
        return term

    find.__doc__ = docstring
    assert "term" in tool(find).spec.parameters["properties"]
