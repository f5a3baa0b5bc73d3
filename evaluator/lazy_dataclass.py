"""A `dataclass` whose methods are not compiled when the class is made.

The decorator of the standard library compiles six functions for a frozen class. That takes half a
millisecond, and a command imports more than two hundred classes. Here `__init__` is compiled when
the eleventh instance is made, because most classes of a command have fewer, and the other methods
are closures over the names of the fields. The `__init__` of a frozen class with slots does not use
`object.__setattr__`, which is slow: it sets the slots directly or, where there are many, while the
instance has a class that allows it.

Fields, slots, defaults and inheritance are those of the standard library: `fields`, `replace`,
`asdict`, `match`, pickling and ordinary dataclasses as subclasses work; an `InitVar` is refused.
Fields are compared as tuples on every version of Python, so a field that is the same NaN in two
instances is equal. Type checkers see the standard decorator.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
import reprlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, FrozenInstanceError
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform, overload

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass

    _C = TypeVar("_C", bound=type)

    @overload
    def frozen(cls: _C, /) -> _C: ...
    @overload
    def frozen(*, kw_only: bool = False, eq: bool = True) -> Callable[[_C], _C]: ...
    @dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
    def frozen(cls: Any = None, /, **options: bool) -> Any: ...
else:

    def dataclass(cls=None, /, **options):
        """As `dataclasses.dataclass`, with the options `frozen`, `slots`, `eq`, `order`, `kw_only`
        and `weakref_slot`.
        """
        if cls is None:
            return lambda cls: _make(cls, **options)
        return _make(cls, **options)

    def frozen(cls=None, /, **options):
        """A frozen dataclass with slots: `@dataclass(frozen=True, slots=True)`."""
        return dataclass(cls, frozen=True, slots=True, **options)


_FEW = 10
"""Instances made before `__init__` is compiled, which takes as long as making forty of them."""


@dataclasses.dataclass(init=False, repr=False, eq=False)
class _Sample:
    """Has what only the standard library makes."""

    field: object
    variable: ClassVar[object]


_SAMPLES: Mapping[str, Any] = _Sample.__dataclass_fields__  # type: ignore[attr-defined]
# The methods with which a class says itself how it is made again.
_OWN_WAY = ("__init__", "__new__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
# The marks of a field and of a class variable.
_FIELD = _SAMPLES["field"]._field_type
_VARIABLE = _SAMPLES["variable"]._field_type
# What `copy.replace` calls, from Python 3.13 on.
_REPLACE: Any = vars(_Sample).get("__replace__")


@functools.cache
def _params(**options: bool) -> Any:
    """`__dataclass_params__` for these options; this version of Python may not have all of them."""
    params: Any = copy.copy(_Sample.__dataclass_params__)  # type: ignore[attr-defined]
    for name, value in {"init": True, "repr": True, **options}.items():
        if hasattr(params, name):
            setattr(params, name, value)
    return params


def _make(
    cls: type,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    order: bool = False,
    weakref_slot: bool = False,
    kw_only: bool = False,
) -> type:
    own = vars(cls)
    declared = _own_fields(cls, kw_only=kw_only)
    known = _inherited_fields(cls, is_frozen=frozen) | declared
    names: list[str] = []
    compared: list[str] = []
    shown: list[str] = []
    for field in known.values():
        if field._field_type is _FIELD:
            names.append(field.name)
            if field.compare:
                compared.append(field.name)
            if field.repr:
                shown.append(field.name)
    positional = _positional(known.values())
    values = _values(names)
    compared_values = values if compared == names else _values(compared)
    init = _Init(is_direct=frozen)
    members: dict[str, Any] = {
        "__init__": init,
        "__repr__": _repr(shown),
        "__match_args__": tuple(positional),
    }
    if _REPLACE is not None:
        members["__replace__"] = _REPLACE
    if eq:
        members["__eq__"] = _comparison(operator.eq, compared_values)
        members["__hash__"] = _hash(compared_values) if frozen else None
    if order:
        for compare in (operator.lt, operator.le, operator.gt, operator.ge):
            members[f"__{compare.__name__}__"] = _comparison(compare, compared_values)
    if frozen and slots:
        members["__getstate__"] = _get_state(values)
        members["__setstate__"] = _set_state(names)
    for name in members.keys() & own.keys():
        del members[name]
    if frozen:
        members["__setattr__"] = _refuse_to_set
        members["__delattr__"] = _refuse_to_delete
    if not own["__doc__"]:
        members["__doc__"] = cls.__name__
    members["__dataclass_fields__"] = known
    members["__dataclass_params__"] = _params(
        frozen=frozen,
        slots=slots,
        eq=eq,
        order=order,
        weakref_slot=weakref_slot,
        kw_only=kw_only,
    )
    made: Any = cls
    if slots:
        made = _with_slots(cls, names, members, has_weakref=weakref_slot)
    else:
        _set_defaults(cls, declared)
        for name, member in members.items():
            setattr(cls, name, member)
    init.cls = made
    is_simple = positional == names and own.keys().isdisjoint(_OWN_WAY) and not _has_post_init(cls)
    if frozen and slots and is_simple:
        made.__reduce_ex__ = _reduction(made, values)
    return made


def _positional(fields: Iterable[Any]) -> list[str]:
    """The names of the arguments of `__init__` that are not by name only. Raises: TypeError, if
    one without a default follows one that has a default.
    """
    names: list[str] = []
    optional = None
    for field in fields:
        if field._field_type is _FIELD and field.init and not field.kw_only:
            if not _is_without_default(field):
                optional = field.name
            elif optional is not None:
                raise TypeError(
                    f"non-default argument {field.name!r} follows default argument {optional!r}"
                )
            names.append(field.name)
    return names


def _inherited_fields(cls: type, *, is_frozen: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for base in cls.__mro__[-2:0:-1]:
        if dataclasses.is_dataclass(base):
            fields.update(base.__dataclass_fields__)
            if base.__dataclass_params__.frozen and not is_frozen:  # type: ignore[attr-defined]
                raise TypeError("cannot inherit non-frozen dataclass from a frozen one")
            if is_frozen and not base.__dataclass_params__.frozen:  # type: ignore[attr-defined]
                raise TypeError("cannot inherit frozen dataclass from a non-frozen one")
    return fields


def _own_fields(cls: type, *, kw_only: bool) -> dict[str, Any]:
    """The fields that the annotations of a class declare, and its class variables, by name."""
    own = vars(cls)
    annotations: dict[str, Any] = own.get("__annotations__", {})
    inherits = cls.__bases__ != (object,)
    is_plain = True
    variables: set[str] = set()
    fields: dict[str, Any] = {}
    for name, annotation in annotations.items():
        field: Any = own.get(name, MISSING)
        if field is MISSING and inherits:
            field = getattr(cls, name, MISSING)
        if isinstance(field, types.MemberDescriptorType):
            field = MISSING
        if not isinstance(field, dataclasses.Field):
            field = dataclasses.field(default=field)
        field.name = name
        field.type = annotation
        fields[name] = field
        if type(annotation) is not str:
            is_plain = False
        elif annotation.startswith("ClassVar["):
            variables.add(name)
        elif field.default.__class__.__hash__ is None:
            is_plain = False
    if is_plain:
        words = " ".join(annotations.values())
        is_plain = (
            words.count("ClassVar") == len(variables)
            and "InitVar" not in words
            and "KW_ONLY" not in words
        )
    for name, value in own.items():
        if isinstance(value, dataclasses.Field) and (name not in fields or name in variables):
            is_plain = False
    if not is_plain:
        return _standard_fields(cls, fields, kw_only=kw_only)
    # What the standard decorator does with a field. It would parse each annotation three times.
    for name, field in fields.items():
        if name in variables:
            field._field_type = _VARIABLE
            continue
        field._field_type = _FIELD
        if field.kw_only is MISSING:
            field.kw_only = kw_only
    return fields


def _standard_fields(cls: type, fields: dict[str, Any], *, kw_only: bool) -> dict[str, Any]:
    """What the standard decorator makes of these fields. Raises: TypeError or ValueError, if they
    are invalid.
    """
    own = vars(cls)
    names = ("__module__", "__annotations__", "__doc__")
    namespace = {
        name: value
        for name, value in own.items()
        if name in names or isinstance(value, dataclasses.Field)
    }
    standard = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)
    sample: Any = standard(type(cls.__name__, (), namespace | fields))
    _set_defaults(cls, fields)
    made: dict[str, Any] = sample.__dataclass_fields__
    for name, field in made.items():
        if field._field_type not in (_FIELD, _VARIABLE):
            raise TypeError(f"field {name!r} is an InitVar, which is not supported")
    return made


def _set_defaults(cls: type, fields: dict[str, Any]) -> None:
    """The attributes of a class are the defaults of its fields, instead of the fields."""
    for name, field in fields.items():
        if vars(cls).get(name) is field:
            if field.default is MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, field.default)


def _with_slots(
    cls: type, names: Sequence[str], members: dict[str, Any], *, has_weakref: bool
) -> type:
    """The class again, with slots for the fields that no base has a slot for, and these members."""
    left_out = {*names, "__dict__", "__weakref__"}
    inherited: set[str] = set()
    for base in cls.__mro__[1:-1]:
        slots = vars(base).get("__slots__", ())
        inherited.update([slots] if isinstance(slots, str) else slots)
        if base.__weakrefoffset__:
            inherited.add("__weakref__")
    slots = [*names, "__weakref__"] if has_weakref else names
    namespace = {name: value for name, value in vars(cls).items() if name not in left_out}
    namespace |= members
    namespace["__qualname__"] = cls.__qualname__
    namespace["__slots__"] = tuple([name for name in slots if name not in inherited])
    return type(cls)(cls.__name__, cls.__bases__, namespace)


def _has_post_init(cls: type) -> bool:
    """`hasattr` is slow where the attribute is missing."""
    return any("__post_init__" in vars(base) for base in cls.__mro__)


class _Init:
    """`__init__` of the class `cls`. The first instances are initialised a field at a time; then
    the method is compiled and takes the place of this one.
    """

    cls: type

    def __init__(self, *, is_direct: bool) -> None:
        self._is_direct = is_direct
        self._left = _FEW
        self._steps: list[tuple[str, Any, Any, Callable[[Any, Any], None]]] = []

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self._compiled()
        # Python 3.13 binds it to the class, to show the signature.
        if self._left > 0 and not isinstance(instance, type):
            self._left -= 1
            return functools.partial(self._initialise, instance)
        return types.MethodType(self._compiled(), instance)

    def _compiled(self) -> types.FunctionType:
        function = _compile_init(self.cls, self._is_direct)
        self.cls.__init__ = function  # type: ignore[misc]
        return function

    def _initialise(self, instance: Any, /, *args: Any, **kwargs: Any) -> None:
        if not self._steps:
            self._prepare()
        values = dict(zip(self._positional, args, strict=False))
        is_valid = len(args) <= len(self._positional) and kwargs.keys() <= self._keywords
        is_valid = is_valid and values.keys().isdisjoint(kwargs)
        values |= kwargs
        if not is_valid or not values.keys() >= self._needed:
            self._compiled()(instance, *args, **kwargs)  # raises the TypeError that says why
            return
        for name, default, factory, assign in self._steps:
            if name in values:
                value = values[name]
            elif factory is not MISSING:
                value = factory()
            else:
                value = default
            assign(instance, value)
        if self._has_post_init:
            instance.__post_init__()

    def _prepare(self) -> None:
        """Finds what `_initialise` needs for each instance."""
        fields = dataclasses.fields(self.cls)  # type: ignore[arg-type]
        arguments = [field for field in fields if field.init]
        self._positional = [field.name for field in arguments if not field.kw_only]
        self._keywords = {field.name for field in arguments}
        self._needed = {field.name for field in arguments if _is_without_default(field)}
        self._has_post_init = hasattr(self.cls, "__post_init__")
        self._steps = [
            (field.name, field.default, field.default_factory, self._assignment(field.name))
            for field in fields
            if field.init or not _is_without_default(field)
        ]

    def _assignment(self, name: str) -> Callable[[Any, Any], None]:
        slot = getattr(self.cls, name, None)
        if not self._is_direct:
            return lambda instance, value: setattr(instance, name, value)
        if isinstance(slot, types.MemberDescriptorType):
            return slot.__set__
        return lambda instance, value: object.__setattr__(instance, name, value)


def _is_without_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


class _Default:
    """The default in the signature of a field that has a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Default()
# The expressions that make what these factories make, without a call.
_DISPLAYS: dict[Any, str] = {dict: "{}", list: "[]"}
# Changing the class of an instance twice takes as long as setting three slots directly.
_MANY_FIELDS = 4


def _compile_init(cls: type, is_frozen: bool) -> types.FunctionType:
    """Compiles `__init__`.

    An instance of a frozen class with many fields has a class with the `__setattr__` of `object`
    until they are set, which halves the time that it takes. An instance of a derived class keeps
    its own.
    """
    parameters: list[str] = []
    keywords: list[str] = []
    lines: list[str] = []
    plain_lines: list[str] = []
    names: dict[str, Any] = {"_FACTORY": _FACTORY, "_set": object.__setattr__}
    annotations: dict[str, Any] = {}
    has_slots = True
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        name = field.name
        value = name
        parameter = name
        if field.default_factory is not MISSING:
            factory = field.default_factory
            if isinstance(factory, types.GenericAlias):
                # Calling `dict[str, int]` takes ten times as long as `dict`.
                factory = factory.__origin__
            names[f"_make_{name}"] = factory
            parameter = f"{name}=_FACTORY"
            value = _DISPLAYS.get(factory, f"_make_{name}()")
            if field.init:
                value = f"{value} if {name} is _FACTORY else {name}"
        elif field.default is not MISSING:
            names[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
            if not field.init:
                value = f"_default_{name}"
        elif not field.init:
            continue
        if field.init:
            (keywords if field.kw_only else parameters).append(parameter)
            annotations[name] = field.type
        plain_lines.append(f"self.{name} = {value}")
        slot = getattr(cls, name, None)
        if isinstance(slot, types.MemberDescriptorType):
            names[f"_set_{name}"] = slot.__set__
            lines.append(f"_set_{name}(self, {value})")
        else:
            has_slots = False
            lines.append(f"_set(self, {name!r}, {value})")
    if not is_frozen:
        lines = plain_lines
    elif has_slots and len(lines) >= _MANY_FIELDS and type(cls) is type:
        names["_cls"] = cls
        names["_open"] = _open_form(cls)
        names["_set_class"] = object.__dict__["__class__"].__set__
        lines = [
            "if self.__class__ is _cls:",
            "    _set_class(self, _open)",
            "    try:",
            *(f"        {line}" for line in plain_lines),
            "    finally:",
            "        self.__class__ = _cls",
            "else:",
            *(f"    {line}" for line in lines),
        ]
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    if keywords:
        parameters += ["*", *keywords]
    head = f"def __init__({', '.join(['self', *parameters])}):"
    exec("\n    ".join([head, *(lines or ["pass"])]), names)
    function = names["__init__"]
    function.__qualname__ = f"{cls.__qualname__}.__init__"
    function.__module__ = cls.__module__
    function.__annotations__ = annotations | {"return": None}
    return function


def _open_form(cls: type) -> type:
    """A class with the slots of the frozen class `cls`, whose instances can be changed."""
    namespace = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__setattr__": object.__setattr__,
        "__delattr__": object.__delattr__,
    }
    return type(cls.__name__, (cls,), namespace)


def _values(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that returns these attributes of an object."""
    if not names:
        return lambda self: ()
    get = operator.attrgetter(*names)
    if len(names) == 1:
        return lambda self: (get(self),)
    return get


def _get_state(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], Any]:
    """How instances are pickled: a frozen one has no state that could be set otherwise."""

    def __getstate__(self: Any) -> tuple[Any, ...]:
        return values(self)

    return __getstate__


def _set_state(names: Sequence[str]) -> Callable[[Any, Any], None]:
    def __setstate__(self: Any, state: Sequence[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return __setstate__


def _reduction(
    cls: type, values: Callable[[Any], tuple[Any, ...]]
) -> Callable[[Any, Any], str | tuple[Any, ...]]:
    """The faster way for a class whose `__init__` only stores its arguments."""

    def __reduce_ex__(self: Any, protocol: Any) -> str | tuple[Any, ...]:
        if self.__class__ is cls:
            return cls, values(self)
        return object.__reduce_ex__(self, protocol)

    return __reduce_ex__


def _repr(names: Sequence[str]) -> Callable[[Any], str]:
    @reprlib.recursive_repr()
    def __repr__(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({values})"

    return __repr__


def _comparison(
    compare: Callable[[Any, Any], bool], values: Callable[[Any], tuple[Any, ...]]
) -> Callable[[Any, Any], Any]:
    def __compare__(self: Any, other: Any) -> Any:
        if other.__class__ is self.__class__:
            return compare(values(self), values(other))
        return NotImplemented

    return __compare__


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    _refuse(self, name, "assign to")
    object.__setattr__(self, name, value)


def _refuse_to_delete(self: Any, name: str) -> None:
    _refuse(self, name, "delete")
    object.__delattr__(self, name)


def _refuse(instance: Any, name: str, what: str) -> None:
    """A class that is derived from a frozen dataclass may have attributes of its own."""
    cls = type(instance)
    if "__dataclass_params__" in vars(cls) or name in cls.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot {what} field {name!r}")
