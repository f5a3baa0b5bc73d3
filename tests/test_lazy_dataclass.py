"""A lazy dataclass behaves as one of the standard library, and compiles nothing before it is used."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import KW_ONLY, FrozenInstanceError, InitVar, field
from typing import Any, ClassVar

import pytest

from evaluator.lazy_dataclass import dataclass, frozen

Decorator = Callable[..., Any]


class Plain:
    """No dataclass."""

    given = 3


def classes(decorator: Decorator) -> dict[str, type]:
    """Classes of each shape that the package uses, made with `decorator`."""

    @decorator(frozen=True, slots=True)
    class Point:
        """A point."""

        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list, compare=False)
        hidden: str = field(default="h", repr=False)

    @decorator(frozen=True, slots=True)
    class Named(Point):
        """A point with a name."""

        name: str = field(default="n", kw_only=True)
        length: int = field(init=False, default=0)

        def __post_init__(self) -> None:
            object.__setattr__(self, "length", len(self.name))

    @decorator(slots=True, order=True)
    class Counter:
        """A counter."""

        count: int
        other: float = 0.0

    @decorator(frozen=True)
    class Open:
        """With a dictionary."""

        x: int

    @decorator(frozen=True, slots=True, eq=False, weakref_slot=True)
    class Identity:
        """Compared by identity."""

        x: int

    @decorator(frozen=True, slots=True, kw_only=True)
    class Empty:
        """Without fields."""

    @decorator(frozen=True, slots=True)
    class Mixed(Point):
        """With a class variable, a field of its base with another default, and one by name only."""

        kind: ClassVar[str] = "mixed"
        x: int = 7
        _: KW_ONLY
        z: int = 1

    @decorator
    class Default(Plain):
        """With a default that a base has."""

        given: int
        other: str = field(default="o", repr=False)

    made = (Point, Named, Counter, Open, Identity, Empty, Mixed, Default)
    return {each.__name__: each for each in made}


ARGUMENTS: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
    ("Point", (1,), {}),
    ("Point", (1, 3, ["a"], "z"), {}),
    ("Point", (), {"y": 5, "x": 4}),
    ("Named", (1,), {"name": "long"}),
    ("Counter", (3,), {"other": 0.5}),
    ("Open", (1,), {}),
    ("Identity", (1,), {}),
    ("Empty", (), {}),
    ("Mixed", (), {}),
    ("Mixed", (3, 4), {"z": 5}),
    ("Default", (), {}),
    ("Default", (4,), {"other": "p"}),
)


@pytest.mark.parametrize(("name", "args", "kwargs"), ARGUMENTS)
def test_instances_are_as_those_of_the_standard_library(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    ours, theirs = classes(dataclass)[name], classes(dataclasses.dataclass)[name]
    one, other = ours(*args, **kwargs), theirs(*args, **kwargs)

    assert repr(one) == repr(other)
    assert dataclasses.asdict(one) == dataclasses.asdict(other) or name == "Counter"
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__match_args__ == theirs.__match_args__
    assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)
    assert repr(ours.__dataclass_fields__) == repr(theirs.__dataclass_fields__)
    for attribute in ("kind", "given", "other"):
        defaults = [getattr(cls, attribute, None) for cls in (ours, theirs)]
        assert defaults[0] == defaults[1] or inspect.ismemberdescriptor(defaults[0])
    again = dataclasses.replace(one)
    assert (one == again) is (other == dataclasses.replace(other))
    assert (one == other) is False
    assert (ours.__hash__ is None) is (theirs.__hash__ is None)
    if ours.__hash__ is not None and name != "Identity":
        assert hash(one) == hash(again)
    assert dataclasses.asdict(copy.copy(one)) == dataclasses.asdict(one) or name == "Counter"


@pytest.mark.parametrize("name", ["Point", "Named", "Open"])
def test_a_frozen_instance_cannot_be_changed_but_that_of_a_derived_class_has_attributes(
    name: str,
) -> None:
    frozen = classes(dataclass)[name]
    made = frozen(1)
    for change in (
        lambda: setattr(made, "x", 2),
        lambda: setattr(made, "new", 2),
        lambda: delattr(made, "x"),
    ):
        with pytest.raises(FrozenInstanceError):
            change()

    derived = type("Derived", (frozen,), {})(1)
    derived.own = 3
    with pytest.raises(FrozenInstanceError):
        derived.x = 2
    assert (derived.own, derived.x) == (3, 1)


@pytest.mark.parametrize(("ours", "theirs"), [(True, True), (False, False)])
def test_an_ordinary_dataclass_may_be_derived(ours: bool, theirs: bool) -> None:
    base = dataclass(frozen=ours, slots=True)(type("Base", (), {"__annotations__": {"x": "int"}}))
    made = dataclasses.dataclass(frozen=theirs)(
        type("Derived", (base,), {"__annotations__": {"y": "int"}})
    )
    assert repr(made(1, 2)) == "Derived(x=1, y=2)"
    with pytest.raises(TypeError, match="cannot inherit"):
        dataclass(frozen=not ours)(type("Other", (base,), {}))


@pytest.mark.parametrize(
    "body",
    [
        {"__annotations__": {"x": "list[int]"}, "x": []},
        {"__annotations__": {"x": "int"}, "y": field(default=1)},
        {"__annotations__": {"x": "ClassVar[int]"}, "x": field(default_factory=int)},
        {"__annotations__": {"x": "int", "y": "int"}, "x": 1},
    ],
)
def test_invalid_fields_are_refused_as_by_the_standard_library(body: dict[str, Any]) -> None:
    messages: list[tuple[type, str]] = []
    for decorator in (dataclass, dataclasses.dataclass):
        with pytest.raises((TypeError, ValueError)) as raised:
            decorator(frozen=True, slots=True)(type("New", (), {"__module__": __name__, **body}))
        messages.append((raised.type, str(raised.value)))
    # From Python 3.12 on it names the earlier argument too.
    assert messages[0][0] is messages[1][0] and messages[0][1].startswith(messages[1][1])


def test_a_variable_of_init_is_refused() -> None:
    body = {"__annotations__": {"x": InitVar[int]}, "__module__": __name__}
    with pytest.raises(TypeError, match="'x' is an InitVar, which is not supported"):
        dataclass(frozen=True, slots=True)(type("New", (), body))


def test_order_and_wrong_arguments() -> None:
    counter = classes(dataclass)["Counter"]
    assert counter(1) < counter(2) <= counter(2) and not counter(1) > counter(2)
    assert counter(1).__lt__(3) is NotImplemented
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'count'"):
        counter()


@dataclass(frozen=True, slots=True)
class Stored:
    """Pickled by its module and name."""

    x: int
    y: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Counted:
    """With a field that `__init__` does not take."""

    x: int
    calls: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "calls", self.calls + 1)


@dataclass(frozen=True, slots=True)
class Constructed:
    """With a constructor of its own and a field of the same number."""

    x: int

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "x", int(text) + 1)


@dataclass(frozen=True, slots=True)
class Reduced:
    """With a way to be pickled of its own."""

    x: int
    y: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Reduced, (self.x, 1)


class Derived(Stored):
    """With a constructor of its own."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        super().__init__(int(text))


def test_a_generic_factory_makes_a_new_value_for_each_instance() -> None:
    @dataclass
    class Found:
        names: list[str] = field(default_factory=list[str])
        sizes: dict[str, int] = field(default_factory=dict[str, int])
        counts: Counter[str] = field(default_factory=Counter[str])
        other: list[str] = field(default_factory=lambda: ["a"])

    first = Found()
    first.names.append("x")
    first.counts["x"] += 1
    assert Found() == Found([], {}, Counter(), ["a"]) != first
    assert [type(value) for value in vars(first).values()] == [list, dict, Counter, list]


def test_init_is_compiled_for_the_eleventh_instance_and_for_a_signature() -> None:
    def new() -> type:
        return dataclass(frozen=True, slots=True)(
            type("New", (), {"__annotations__": {"x": "int"}})
        )

    cls = new()
    for number in range(10):
        assert cls(number).x == number
        assert not inspect.isfunction(vars(cls)["__init__"])
    assert cls(10).x == 10 and inspect.isfunction(vars(cls)["__init__"])

    other = new()
    assert str(inspect.signature(other)) == "(x: 'int') -> None"
    assert inspect.isfunction(vars(other)["__init__"])


@pytest.mark.parametrize(("name", "args", "kwargs"), ARGUMENTS)
def test_the_compiled_init_does_what_the_first_instances_had(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    cls = classes(dataclass)[name]
    shown = {repr(cls(*args, **kwargs)) for _ in range(12)}
    assert len(shown) == 1 and inspect.isfunction(vars(cls)["__init__"])


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, [], "h", 5), {}), ((1,), {"x": 1}), ((1,), {"z": 1})]
)
def test_the_first_instance_refuses_what_the_standard_library_refuses(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    messages: list[str] = []
    for decorator in (dataclass, dataclasses.dataclass):
        with pytest.raises(TypeError) as raised:
            classes(decorator)["Point"](*args, **kwargs)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    "stored", [Stored(1, (2,)), Counted(1), Derived("3"), Constructed("4"), Reduced(5, 1)]
)
def test_instances_are_pickled_and_copied_without_a_second_initialization(stored: Any) -> None:
    for again in (pickle.loads(pickle.dumps(stored)), copy.deepcopy(stored), copy.copy(stored)):
        assert again == stored and type(again) is type(stored)


def test_a_class_says_itself_how_it_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Reduced(5))) == copy.copy(Reduced(5)) == Reduced(5, 1)


def test_a_class_has_the_members_that_the_standard_library_gives_it() -> None:
    ours = classes(dataclass)
    for name, theirs in classes(dataclasses.dataclass).items():
        assert vars(theirs).keys() - vars(ours[name]).keys() == set()


def test_the_members_of_a_class_can_be_listed() -> None:
    for cls in classes(dataclass).values():
        assert callable(dict(inspect.getmembers(cls))["__reduce_ex__"])


def test_frozen_makes_a_frozen_class_with_slots():
    @frozen
    class Point:
        x: int

    @frozen(kw_only=True)
    class Named:
        name: str

    for instance in (Point(1), Named(name="n")):
        assert not hasattr(instance, "__dict__")
        with pytest.raises(FrozenInstanceError):
            instance.x = 2
    with pytest.raises(TypeError):
        Named("n")


def test_an_instance_with_many_fields_is_of_its_class_and_frozen_also_one_of_a_derived_class() -> (
    None
):
    @frozen
    class Base:
        type: int
        self_: int = 2
        c: list[int] = dataclasses.field(default_factory=list)
        d: int = 4
        e: int = 5
        f: int = dataclasses.field(default=6, init=False)

    @frozen
    class Derived(Base):
        g: int = 7

    class Ordinary(Base):
        pass

    for cls, last in ((Base, "f"), (Derived, "g"), (Ordinary, "f")):
        one = cls(1, c=[3])
        assert type(one) is cls
        assert (one.type, one.self_, one.c, one.d, one.e, one.f) == (1, 2, [3], 4, 5, 6)
        assert cls(1).c == [] and cls(1).c is not cls(1).c
        with pytest.raises(FrozenInstanceError):
            setattr(one, last, 0)
        with pytest.raises(FrozenInstanceError):
            delattr(one, last)
        assert copy.copy(one) == one == cls(1, c=[3]) != cls(2, c=[3])


def test_an_instance_whose_init_fails_is_frozen_too() -> None:
    def fail() -> int:
        raise ValueError("no value")

    @frozen
    class Many:
        a: int
        b: int = 2
        c: int = 3
        d: int = field(default_factory=fail)

    for _ in range(12):
        one = Many.__new__(Many)
        with pytest.raises(ValueError, match="no value"):
            one.__init__(1)
        assert type(one) is Many
        with pytest.raises(FrozenInstanceError):
            one.a = 5
