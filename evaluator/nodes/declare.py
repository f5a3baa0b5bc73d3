"""The declarations that node classes consist of: what each field is, where XML has it, which names
it binds.

| function | declares | XML |
|---|---|---|
| `text` | a text that is resolved before the node runs | element |
| `condition` | an expression with names of its own | element |
| `expression` | an expression | attribute of a child element |
| `setting` | a number or boolean, or a placeholder for one | element or attribute |
| `choice` | one of several words | element |
| `attribute`, `flag`, `names`, `literal` | a string, a boolean, names of inputs, data | attribute |
| `child` | one node or several, and the names that it sees | element |
| `part` | an object with fields of its own, or several | element |
| `inner` | a field of such an object, which XML reads and writes by hand | |

`declared` makes a class of them, `operator` the class of a task type. `FIELDS` has the declarations
of each class. Walks use `values` and `fields_with`, which select by role.

The shapes of the names that operators bind for their child nodes, see `declare.Binding`.

A binding that is a function takes the node, the position of the child in its field, and what is
known.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, replace
from functools import cache, partial
from typing import Any, Literal, Protocol, TypeVar, cast, dataclass_transform

from evaluator.lazy_dataclass import frozen
from evaluator.nodes.values import ANY, BOOLEAN, INTEGER, STRING, Shape, record, value_shape

Role = Literal["data", "text", "setting", "node", "part"]
Form = Literal[
    "attribute",
    "flag",
    "names",
    "text",
    "model",
    "integer",
    "decimal",
    "boolean",
    "choice",
    "condition",
    "command",
    "role",
    "steps",
    "script",
    "fields",
    "inputs",
    "tools",
    "examples",
    "file_paths",
    "output_format",
    "stop",
    "extra_body",
    "turns",
    "expression",
]


class Known(Protocol):
    """The surroundings that a node class may query to describe a shape."""

    def result(self, node: Any) -> Shape:
        """The shape of the parsed result of `node`; NULL where it is text only."""
        ...

    def variable(self, name: str) -> Shape:
        """The shape of a variable in the scope of the node."""
        ...

    def step_places(self, node: Any) -> Mapping[str, Sequence[int]]:
        """The positions of the steps of `node` by name, in order; computed once for each node."""
        ...


Binding = Shape | Callable[[Any, int, Known], Shape | None]
"""The shape of a bound name, or a function of the node, the position of the child in its field, and
what is known.

None: the name is not bound there.
"""


@frozen(eq=False)
class Field:
    """The declaration of one field of a node class.

    `role` says what walks do with its value: `text` (a Text or an Expression) is resolved before
    the node runs, unless `resolved` is false; `setting` is a number or a boolean, or a Text to be
    resolved to one; `node` is a child node; `part` is a declared object with fields of its own; a
    tuple holds several. `form` says how XML writes it: in the child element `element`, in
    `attribute` of the node's own element, or in `attribute` of `element`.
    """

    role: Role
    form: Form
    element: str | None = None
    attribute: str | None = None
    name: str = ""
    required: bool = False
    resolved: bool = True
    may_call: bool = True
    """Whether its texts may call function templates."""
    binds: Mapping[str, Binding] | None = None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    one_of: bool = False
    """One child runs, among those of all fields of the node that say so."""
    guard: str | None = None
    """The field beside it with the expression that has to hold; the first child of `one_of` whose
    guard holds runs.
    """
    may_fail: bool = False
    """The task may succeed though the child failed."""
    expects: tuple[tuple[tuple[str, ...], str], ...] = ()
    """Groups of names: a child has to read at least one of each; the text says what it means that
    it reads none.
    """
    choices: Mapping[str, Any] | None = None
    """The spellings of a `choice` and what they mean; the first one of each meaning is the one to
    write.
    """
    of: type | None = None
    default: Any = None

    @property
    def wanted(self) -> str:
        """A description of the valid values of a setting or a choice, for messages."""
        if self.choices is not None:
            return " or ".join(self.choices)
        if self.form == "boolean":
            return "true or false"
        if self.least is not None:
            limits = [f"of at least {self.least:g}"]
        else:
            limits = []
        limits += [f"above {self.above:g}"] if self.above is not None else []
        limits += [f"at most {self.most:g}"] if self.most is not None else []
        if self.form == "integer":
            what = "a whole number"
            if self.most is None:
                limits.append(f"at most {_LARGEST:,.0f}")
        else:
            what = "a number"
        return f"{what} {' and '.join(limits)}".rstrip()

    def admits(self, number: float) -> bool:
        """Whether a number is in the range of a setting; infinity and NaN never are."""
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and number <= (_LARGEST if self.most is None else self.most)
        )

    def bound(self, node: Any, position: int, known: Known) -> dict[str, Shape]:
        """The names that the child at `position` of this field sees in addition to the scope of
        `node`.
        """
        shapes = {
            name: shape if isinstance(shape, Shape) else shape(node, position, known)
            for name, shape in (self.binds or {}).items()
        }
        return {name: shape for name, shape in shapes.items() if shape is not None}


_LARGEST = 1e15


def _declare(role: Role, form: Form, default: Any, **more: Any) -> Any:
    # `_named` makes it, when the class tells the field's name.
    make = partial(Field, role, form, default=default, **more)
    return dataclasses.field(default=default, metadata={"declared": make})


def attribute(*, default: Any, of: str | None = None, name: str = "") -> Any:
    """A string in the attribute `name`, by default the field's name, of the child element `of` if
    given.
    """
    return _declare("data", "attribute", default=default, element=of, attribute=name)


def names(*, default: Any, of: str) -> Any:
    """Names among those in the field `of`, in an attribute of its element, which is required."""
    return _declare("data", "names", default=default, element=of, attribute="", required=True)


def flag(*, default: bool, of: str) -> Any:
    """A boolean that cannot hold a placeholder, in an attribute of the child element `of`."""
    return _declare("data", "flag", default=default, element=of, attribute="")


def literal(form: Literal["stop", "extra_body"], *, default: Any) -> Any:
    """A value of more than one word in the attribute that has the field's name, without
    placeholders.
    """
    return _declare("data", form, default=default, attribute="")


def choice(choices: Mapping[str, Any], *, default: Any) -> Any:
    """One of several words, in an element."""
    return _declare("data", "choice", default=default, element="", choices=choices)


def text(
    *, default: Any = MISSING, form: Form = "text", resolved: bool = True, may_call: bool = True
) -> Any:
    """A text in an element. Without a default it is required."""
    return _declare(
        "text",
        form,
        default=default,
        element="",
        required=default is MISSING,
        resolved=resolved,
        may_call=may_call,
    )


def condition(*, default: Any = MISSING, binds: Mapping[str, Binding]) -> Any:
    """An expression in an element, evaluated with the names that `binds` has. Without a default it
    is required.
    """
    return _declare(
        "text", "condition", default=default, element="", required=default is MISSING, binds=binds
    )


def expression(*, of: str, name: str, default: None) -> Any:
    """An optional expression in the attribute `name` of the child element `of`. It calls no
    function template.
    """
    return _declare(
        "text", "expression", default=default, element=of, attribute=name, may_call=False
    )


def setting(
    form: Literal["integer", "decimal", "boolean"],
    *,
    default: Any,
    element: str | None = None,
    attribute: str | None = None,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
) -> Any:
    """A number or a boolean that may be a placeholder, which calls no function template: at least
    `least`, above `above`, at most `most`.
    """
    return _declare(
        "setting",
        form,
        default=default,
        element=element,
        attribute=attribute,
        may_call=False,
        least=least,
        above=above,
        most=most,
    )


def child(
    *,
    default: Any = MISSING,
    form: Literal["role", "steps", "script"] = "role",
    binds: Mapping[str, Binding],
    one_of: bool = False,
    may_fail: bool = False,
    expects: tuple[tuple[tuple[str, ...], str], ...] = (),
) -> Any:
    """A child node in an element of its own, or with form `steps` several; it sees the names that
    `binds` has.

    `one_of`: only one of the children that are declared so runs. `may_fail`: the task may succeed
    though the child failed, as after an answer that cannot be read. `expects`: groups of names; the
    child has to read at least one of each. The message is for a child that reads none.
    """
    return _declare(
        "node",
        form,
        default=default,
        element="",
        required=default is MISSING,
        binds=binds,
        one_of=one_of,
        may_fail=may_fail,
        expects=expects,
    )


def part(of: type | None, form: Form, *, default: Any, element: str = "") -> Any:
    """A declared object of class `of`, or several; None for plain data that only its XML form
    knows.
    """
    return _declare("data" if of is None else "part", form, default=default, element=element, of=of)


def inner(
    role: Literal["text", "node", "part"],
    *,
    default: Any = MISSING,
    of: type | None = None,
    binds: Mapping[str, Binding] | None = None,
    one_of: bool = False,
    guard: str | None = None,
    may_call: bool = True,
) -> Any:
    """A field of a part, whose XML is written by hand: it only says what walks do with it."""
    return _declare(
        role,
        "attribute",
        default=default,
        of=of,
        binds=binds,
        one_of=one_of,
        guard=guard,
        may_call=may_call,
    )


FIELDS: dict[type, tuple[Field, ...]] = {}
"""The declared fields of each class, in order. Fields that are not declared are data without an XML
form.
"""

_Class = TypeVar("_Class", bound=type)
_SPECIFIERS = (
    attribute,
    names,
    flag,
    literal,
    choice,
    text,
    condition,
    expression,
    setting,
    child,
    part,
    inner,
)


@dataclass_transform(frozen_default=True, field_specifiers=_SPECIFIERS)
def declared(cls: _Class) -> _Class:
    """Makes a frozen dataclass of a class whose fields are declared above, and enters it in
    FIELDS.
    """
    return _declared(cls, kw_only=False)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=_SPECIFIERS)
def declared_by_name(cls: _Class) -> _Class:
    """The same as `declared`, for a class that takes its fields by name only."""
    return _declared(cls, kw_only=True)


def _declared(cls: _Class, *, kw_only: bool) -> _Class:
    made = frozen(kw_only=kw_only)(cls)
    inherited: dict[str, Field] = {}
    for base in reversed(cls.__mro__[1:]):
        inherited.update((field.name, field) for field in FIELDS.get(base, ()))
    for name in vars(cls).get("__annotations__", ()):
        inherited.pop(name, None)
    FIELDS[made] = tuple(
        inherited.get(field.name) or _named(field.name, field.metadata["declared"])
        for field in dataclasses.fields(made)
        if "declared" in field.metadata
    )
    return made


def _named(name: str, make: partial[Field]) -> Field:
    # "" stands for the field's own name.
    own_name = {key: name for key in ("element", "attribute") if make.keywords.get(key) == ""}
    return make(name=name, **own_name)


OPERATORS: dict[str, Any] = {}
"""The class of each operator by its type."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=_SPECIFIERS)
def operator(type_name: str) -> Callable[[_Class], _Class]:
    """Declares the class of the tasks of one type, and registers it in OPERATORS."""

    def register(cls: _Class) -> _Class:
        made: Any = declared_by_name(cls)
        made.type = type_name
        OPERATORS[type_name] = made
        return made

    return register


def field_of(cls: type, name: str) -> Field:
    """The declared field `name` of a class. Raises: LookupError, if there is none."""
    for field in FIELDS[cls]:
        if field.name == name:
            return field
    raise LookupError(f"{cls.__name__} declares no field {name!r}")


@cache
def fields_with(cls: type, *roles: Role) -> tuple[Field, ...]:
    """The declared fields of a class that have one of these roles."""
    return tuple(field for field in FIELDS[cls] if field.role in roles)


@cache
def elements_of(cls: type) -> frozenset[str]:
    """The child elements in which XML has the declared fields of a class."""
    return frozenset(field.element for field in FIELDS[cls] if field.element is not None)


def values(owner: Any, *roles: Role) -> list[tuple[Field, int, Any]]:
    """The fields of a node or part with one of these roles, with each value and its position in its
    field.
    """
    found: list[tuple[Field, int, Any]] = []
    for field in fields_with(type(owner), *roles):
        value = getattr(owner, field.name)
        if isinstance(value, tuple):
            for place, item in enumerate(cast("tuple[Any, ...]", value)):
                found.append((field, place, item))
        elif value is not None:
            found.append((field, 0, value))
    return found


CONVERSATION = Shape("array", item=record("a turn", role=STRING, content=STRING))


@frozen(eq=False)
class _EarlierSteps(Mapping[str | int, Shape]):
    """The results of the steps before `position`, by index and by name. Each is found when it is
    asked for.
    """

    node: Any
    position: int
    known: Known

    def __getitem__(self, key: str | int) -> Shape:
        index = key
        if isinstance(index, str):
            places = self.known.step_places(self.node).get(index, ())
            at = bisect_left(places, self.position)
            index = places[at - 1] if at else -1
        if not 0 <= index < self.position:
            raise KeyError(key)
        return _step_result(self.node, index, known=self.known)

    def __iter__(self) -> Iterator[str | int]:
        yield from range(self.position)
        places = self.known.step_places(self.node)
        yield from (name for name, indexes in places.items() if indexes[0] < self.position)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def earlier_steps(node: Any, position: int, known: Known) -> Shape:
    """`steps`: the results of the steps before the one at `position`, by index and by name. The
    field of the children is called `steps`.
    """

    def why_absent(key: str | int) -> str | None:
        if isinstance(key, int):
            if position <= key < len(node.steps):
                return "it has not run yet"
            return None
        if key == node.steps[position].name:
            return "that is this step itself"
        places = known.step_places(node).get(key, ())
        at = bisect_left(places, position)
        if at < len(places):
            return f"that step runs later, as step {places[at] + 1}"
        return None

    return Shape(
        kind="object",
        fields=_EarlierSteps(node, position, known=known),
        open=False,
        absent=why_absent,
    )


def _step_result(node: Any, index: int, known: Known) -> Shape:
    step = node.steps[index]
    if step.name:
        what = f"step `{step.name}`"
    else:
        what = f"step {index + 1}"
    return record(what, content=STRING, parsed=known.result(step), notes=Shape("object"))


def previous_step(node: Any, position: int, known: Known) -> Shape | None:
    """`previous`: the result of the step before the one at `position`; the first step has none. As
    `earlier_steps`.
    """
    if position:
        return _step_result(node, position - 1, known=known)
    return None


def _item(node: Any, position: int, known: Known) -> Shape:
    """`current_input`: an item of the iterated input, where only one is iterated and its items are
    known. A value that is not a list is the only item.
    """
    shapes = [known.variable(name) for name in node.iterated]
    if len(shapes) != 1:
        return ANY
    if shapes[0].kind == "array":
        return shapes[0].item or ANY
    return shapes[0]


def inner_result(node: Any, position: int, known: Known) -> Shape:
    """`current_result`: the result of `inner_task` for the item."""
    return value_shape(known.result(node.inner_task))


ITEM: Mapping[str, Binding] = {"current_input": _item, "index": INTEGER}


def _script_output(node: Any, position: int, known: Known) -> Shape:
    output = record("script_output", stdout=STRING, stderr=STRING, exit_code=INTEGER)
    if node.script_execution is None:
        return replace(output, empty="the loop has no script_execution")
    return output


def _directed(node: Any, position: int, known: Known) -> Shape:
    return value_shape(known.result(node.director))


ITERATION: Mapping[str, Binding] = {
    "current_iteration": INTEGER,
    "director_result": ANY,
    "script_output": _script_output,
    "evaluation": record("evaluation", True, success=BOOLEAN, feedback=STRING, details=ANY),
    "evaluation_feedback": STRING,
}
AFTER_DIRECTOR: Mapping[str, Binding] = {**ITERATION, "director_result": _directed}
