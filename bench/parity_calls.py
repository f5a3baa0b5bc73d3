"""Function calls for `parity.py`: expected calls as in BFCL, and the calls of an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

FUNCTIONS: list[Any] = [
    {
        "name": "weather.get",
        "description": "The weather",
        "parameters": {
            "type": "dict",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"type": "string"},
            },
            "required": ["city"],
        },
    },
    {
        "name": "area",
        "description": "An area",
        "parameters": {
            "type": "dict",
            "properties": {
                "base": {"type": "float"},
                "height": {"type": "float"},
                "exact": {"type": "boolean"},
            },
            "required": ["base", "height"],
        },
    },
    {
        "name": "mean",
        "description": "A mean",
        "parameters": {
            "type": "dict",
            "properties": {
                "numbers": {"type": "array", "items": {"type": "float"}},
                "names": {"type": "array", "items": {"type": "string"}},
                "range": {"type": "dict"},
                "rows": {"type": "array", "items": {"type": "dict"}},
            },
            "required": ["numbers"],
        },
    },
    {
        "name": "grid",
        "description": "A grid",
        "parameters": {
            "type": "dict",
            "properties": {
                "cells": {
                    "type": "array",
                    "items": {"type": "array", "items": {"type": "integer"}},
                },
                "size": {"type": "tuple", "items": {"type": "integer"}},
                "style": {"type": "dict"},
                "of": {"type": "any"},
                "flags": {"type": "array", "items": {"type": "boolean"}},
                "scale": {"type": "float"},
            },
            "required": ["cells"],
        },
    },
]
WEATHER = {"weather.get": {"city": ["New York", "NYC"], "days": ["", 3], "units": ["", "metric"]}}
AREA = {"area": {"base": [10], "height": [5.0], "exact": ["", True]}}
MEAN = {
    "mean": {
        "numbers": [[1.0, 2.0, 3.0], [1, 2, 3]],
        "names": ["", ["A b", "c"]],
        "range": ["", {"from": [1], "to": ["", 9]}],
        "rows": ["", [{"x": [1]}, {"x": [2, 3]}]],
    }
}
GRID = {
    "grid": {
        "cells": [[[1, 2], [3, 4]]],
        "size": ["", [2, 2]],
        "style": ["", {"line": ["dot-ted", "solid"], "w": ["", 1.5]}],
        "of": ["", "data", "rows"],
        "flags": ["", [True, False]],
        "scale": ["", 1.0],
    }
}
FLOATS = {"mean": {"numbers": [[1.0, 2.0]], "names": ["", ["x"], ["y", "z"]]}}
# The expected calls, and the answers: lists of a name and its arguments.
CALLS: list[tuple[list[Any], list[list[tuple[str, Any]]]]] = [
    (
        [WEATHER],
        [
            [("weather.get", {"city": city, **more})]
            for city in (
                "New York",
                "new york",
                "NewYork!",
                "N.Y.C",
                "nyc",
                "Boston",
                7,
                None,
                ["NYC"],
                "",
            )
            for more in (
                {},
                {"days": 3},
                {"days": 3.0},
                {"days": "3"},
                {"days": True},
                {"units": "Metric"},
                {"wind": 1},
            )
        ]
        + [
            [],
            [("weather.get", {})],
            [("weather", {"city": "NYC"})],
            [("area", {"city": "NYC"})],
            [("weather.get", {"city": "NYC"})] * 2,
            [("weather.get", {"days": 3})],
        ],
    ),
    (
        [AREA],
        [
            [("area", {"base": base, "height": height, **more})]
            for base in (10, 10.0, "10", True, 11)
            for height in (5, 5.0, 5.5, None)
            for more in ({}, {"exact": True}, {"exact": 1}, {"exact": False}, {"exact": "true"})
        ],
    ),
    (
        [MEAN],
        [
            [("mean", {"numbers": numbers, **more})]
            for numbers in (
                [1, 2, 3],
                [1.0, 2, 3],
                [3, 2, 1],
                [1, 2],
                "1,2,3",
                [],
                [1, 2, "3"],
                [[1, 2, 3]],
            )
            for more in (
                {},
                {"names": ["a B", "C"]},
                {"names": ["c", "a b"]},
                {"names": "a b"},
                {"range": {"from": 1}},
                {"range": {"from": 1, "to": 9}},
                {"range": {"from": 2}},
                {"range": {"to": 9}},
                {"range": {"at": 1}},
                {"rows": [{"x": 1}, {"x": 3}]},
                {"rows": [{"x": 1}]},
                {"rows": [{"x": 2}, {"x": 1}]},
                {"rows": {"x": 1}},
            )
        ],
    ),
    (
        [GRID],
        [
            [("grid", {"cells": cells, **more})]
            for cells in (
                [[1, 2], [3, 4]],
                [[1, 2], [3, 4.0]],
                [[1, 2]],
                [1, 2, 3, 4],
                [[3, 4], [1, 2]],
            )
            for more in (
                {},
                {"size": [2, 2]},
                {"size": [2, 2.0]},
                {"size": "2,2"},
                {"size": [2]},
                {"of": "Data"},
                {"of": 5},
                {"of": "dat a"},
                {"style": {"line": "dotted"}},
                {"style": {"line": "SOLID", "w": 1.5}},
                {"style": {}},
                {"style": {"w": 1.5}},
                {"style": {"line": "solid", "w": "1.5"}},
                {"style": "solid"},
                {"flags": [True, False]},
                {"flags": [1, 0]},
                {"flags": [False, True]},
                {"scale": 1},
                {"scale": True},
                {"scale": "1.0"},
                {"style": {"line": "solid", "w": None}},
                {"flags": []},
                {"of": None},
                {"of": ""},
            )
        ],
    ),
    (
        [FLOATS],
        [
            [("mean", {"numbers": numbers, **more})]
            for numbers in (
                [1.0, 2.0],
                [1, 2],
                [1, 2.0],
                [1.0, True],
                [1.0],
                "1.0, 2.0",
                [1.0, 2.5],
            )
            for more in (
                {},
                {"names": ["x"]},
                {"names": ["X "]},
                {"names": ["y", "z"]},
                {"names": ["x", "z"]},
                {"names": "x"},
            )
        ],
    ),
    (
        [WEATHER, AREA],
        [
            [("area", {"base": 10, "height": 5}), ("weather.get", {"city": "NYC"})],
            [("weather.get", {"city": "NYC"}), ("area", {"base": 10, "height": 5})],
            [("weather.get", {"city": "NYC"}), ("area", {"base": 10, "height": 6})],
            [("weather.get", {"city": "NYC"}), ("weather.get", {"city": "NYC"})],
            [("weather.get", {"city": "NYC"})],
            [
                ("weather.get", {"city": "NYC"}),
                ("area", {"base": 10, "height": 5}),
                ("area", {"base": 10, "height": 5}),
            ],
        ],
    ),
    (
        [{"area": {"base": [1, 2], "height": [1]}}, {"area": {"base": [1], "height": [1]}}],
        [
            [("area", {"base": first, "height": 1}), ("area", {"base": second, "height": 1})]
            for first in (1, 2, 3)
            for second in (1, 2, 3)
        ],
    ),
    ([], [[], [("area", {"base": 10, "height": 5})]]),
]
GREEDY = "an expected call that takes the only call of a later one"
OPTIONAL_ITEMS = "items of another type in an optional array"
NO_ITEMS = "an empty array for an optional parameter"

JUDGED_CALLS = {
    GREEDY: "ours: each call matches an expected one; the reference never moves a match",
    OPTIONAL_ITEMS: "ours: the declared type of items holds; the reference checks it for no "
    "optional array",
    NO_ITEMS: "ours: the parameter may be left out, not be empty; the reference reads the mark as "
    "a value",
}


def calls() -> Iterator[tuple[str, str, Any]]:
    """The form, the output and the target of each case."""
    for expected, answers in CALLS:
        for found in answers:
            output = json.dumps(
                [{"name": name, "arguments": arguments} for name, arguments in found]
            )
            yield form_of_calls(found), output, expected


def form_of_calls(calls: list[tuple[str, Any]]) -> str:
    arguments = [each[1] for each in calls]
    if [each.get("base") for each in arguments] == [1, 2]:
        return GREEDY
    if any(each.get("flags") == [] for each in arguments):
        return NO_ITEMS
    is_mixed = any(
        {type(item) for item in each.get("size", ())} == {int, float} for each in arguments
    )
    has_numbers = any(type(flag) is int for each in arguments for flag in each.get("flags", ()))
    return OPTIONAL_ITEMS if is_mixed or has_numbers else ""
