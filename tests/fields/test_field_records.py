"""Fields are declared once: values are checked, read from tables and written as JSON by their annotations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.fields import (
    MERGED,
    SESSION,
    Checked,
    Count,
    FieldError,
    Flag,
    Key,
    Name,
    Names,
    Section,
    Share,
    check_names,
    kind_of,
    to_dict,
)
from evaluator.fields.listing import entries_of

if TYPE_CHECKING:
    from somewhere import Engine  # pyright: ignore[reportMissingImports]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Point(Checked):
    x: int
    y: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Checked, error=LookupError):
    name: Annotated[Name, Section("First"), Flag("--name", "Its name.")] = "n"
    epochs: Annotated[Count, Flag("--epochs", "How often.")] = 1
    point: Annotated[Point | None, Section("Second")] = None
    mode: Annotated[Literal["fast", "slow"], Flag("--mode", "How.")] = "fast"
    points: tuple[Point, ...] = ()
    colour: Colour = Colour.RED
    table: Mapping[str, Share] = field(default_factory=dict[str, float])
    engine: Engine | Literal["local"] | None = None
    secret: Annotated[str, SESSION] = ""

    def check(self) -> None:
        if self.mode == "slow" and self.epochs > 1:
            raise LookupError("slow is for one epoch")


@dataclass(frozen=True, slots=True)
class Definition(Checked):
    rows: Annotated[Name, Key("file")]
    options: Annotated[Options, MERGED] = Options()


@pytest.mark.parametrize(
    ("hint", "value", "stored"),
    [
        (int, 3, 3),
        (float, 3, 3),
        (str | None, None, None),
        (Names, "a", ("a",)),
        (Names, ["a", "b"], ("a", "b")),
        (Sequence[int], [1], [1]),
        (Mapping[str, int], {"a": 1}, {"a": 1}),
        (Colour, "blue", Colour.BLUE),
        (Point, {"x": 1}, Point(1)),
        (tuple[int, ...] | str, "a", "a"),
        (Share, 1, 1),
    ],
)
def test_a_value_that_fits_is_stored_in_one_form(hint: Any, value: Any, stored: Any) -> None:
    accepted = kind_of(hint).accept(value)
    assert accepted == stored and type(accepted) is type(stored)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, True, "is True, expected an integer"),
        (float, float("inf"), "is inf, expected a number"),
        (float, True, "is True, expected a number"),
        (bool, 1, "is 1, expected true or false"),
        (Count, 0, "is 0, expected an integer, at least 1"),
        (Share, 1.5, "is 1.5, expected a number in [0, 1]"),
        (Literal[1, 2], True, "is True, expected one of 1, 2"),
        (Literal["a", "bcd"], "bce", "is 'bce', expected one of a, bcd; did you mean `bcd`?"),
        (Names, ["a", "a"], "names 'a' twice"),
        (Names, ["a", 3], "[1] is 3, expected a string"),
        (Name, " ", "is ' ', expected a string that is not blank"),
        (Mapping[str, int], {"a": "b"}, "a is 'b', expected an integer"),
        (Mapping[str, int], {1: 1}, "has the key 1, expected a string"),
        (tuple[Point, ...], [{"x": 1}, {"x": 1, "why": 2}], "[1].why is unknown; expected one of"),
        (tuple[Point, ...], [{"y": 1}], "[0].x is missing"),
        (tuple[Name, ...] | Mapping[str, Name], {"a": 1}, "a is 1, expected a string"),
        (tuple[Name, ...] | Mapping[str, Name], 5, "is 5, expected a list of strings or a table"),
        (str, "x" * 100 + "y", None),
        (int, "x" * 100, "…, expected an integer"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_what_was_expected(
    hint: Any, value: Any, message: str | None
) -> None:
    if message is None:
        assert kind_of(hint).accept(value) == value
        return
    with pytest.raises(FieldError) as caught:
        kind_of(hint).accept(value)
    assert message in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, "epochs is 0, expected an integer, at least 1"),
        ({"point": {"x": "1"}}, "point.x is '1', expected an integer"),
        ({"engine": "lokal"}, "engine is 'lokal', expected an Engine or one of local"),
        ({"engine": 3}, "engine is 3, expected"),
        ({"table": {"a": 2}}, "table.a is 2, expected a number in [0, 1]"),
        ({"mode": "slow", "epochs": 2}, "slow is for one epoch"),
    ],
)
def test_the_error_of_the_class_names_the_field(values: dict[str, Any], message: str) -> None:
    for make in (lambda: Options(**values), lambda: Options.from_table(values)):
        with pytest.raises(LookupError) as caught:
            make()
        assert message in str(caught.value)
    assert Options(engine=object()).engine is not None


def test_a_table_has_only_known_names_and_the_required_ones() -> None:
    with pytest.raises(FieldError, match=r"^epoch is unknown; did you mean `epochs`\?$"):
        Definition.from_table({"file": "f", "epoch": 1})
    with pytest.raises(FieldError, match=r"^only-Fast is unknown; did you mean `only_fast`\?$"):
        check_names(["only-Fast"], ["only_fast", "only_fist"])
    with pytest.raises(FieldError, match=r"^secret is unknown"):
        Definition.from_table({"file": "f", "secret": "x"})
    with pytest.raises(FieldError, match=r"^file is missing$"):
        Definition.from_table({"epochs": 1})
    assert Definition.from_table({"file": "f", "epochs": 2}).options == Options(epochs=2)


def test_the_entries_have_sections_and_defaults() -> None:
    entries = [(entry.parameter, entry.section, entry.help) for entry in entries_of(Definition)]
    assert entries == [
        ("name", "First", "Its name. Default: n."),
        ("epochs", "First", "How often. Default: 1."),
        ("mode", "Second", "How. Default: fast."),
    ]


NAMES = st.text("abc", min_size=1, max_size=3)
POINTS = st.builds(Point, st.integers(), st.floats(allow_nan=False, allow_infinity=False))


@given(
    st.builds(
        Options,
        name=NAMES,
        epochs=st.just(1) | st.integers(1, 9),
        point=st.none() | POINTS,
        points=st.lists(POINTS, max_size=2),
        colour=st.sampled_from(Colour),
        table=st.dictionaries(NAMES, st.floats(0, 1), max_size=2),
    ),
    NAMES,
    st.booleans(),
)
def test_what_is_written_is_read_again(options: Options, rows: str, only_changed: bool) -> None:
    definition = Definition(rows, options)
    data = to_dict(definition, only_changed=only_changed)
    assert Definition.from_table(json.loads(json.dumps(data))) == definition
    assert "secret" not in data and data["file"] == rows
    if only_changed:
        assert ("epochs" in data) == (options.epochs != 1)
