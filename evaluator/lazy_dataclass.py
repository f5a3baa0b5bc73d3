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

import dataclasses
import functools
import operator
import reprlib
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, FrozenInstanceError
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform, overload

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


_NOT_PLAIN = ("ClassVar", "InitVar", "KW_ONLY")
# The methods with which a class says itself how it is made again.
_OWN_WAY = {"__init__", "__new__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"}


def _make(
    cls: type,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    order: bool = False,
    weakref_slot: bool = False,
    **options: bool,
) -> type:
    own = set(vars(cls))
    made: Any = _with_fields(cls, frozen=frozen, **options)
    params = made.__dataclass_params__
    params.init = params.repr = True
    params.eq = eq
    params.order = order
    params.frozen = frozen
    if hasattr(params, "slots"):  # from Python 3.12 on
        params.slots = slots
        params.weakref_slot = weakref_slot
    fields = dataclasses.fields(made)
    names = [field.name for field in fields]
    values = _values(names)
    compared = _values([field.name for field in fields if field.compare])
    init = _Init(is_direct=frozen)
    methods: dict[str, Any] = {
        "__init__": init,
        "__repr__": _repr([field.name for field in fields if field.repr]),
    }
    if eq:
        methods["__eq__"] = _comparison(operator.eq, compared)
        methods["__hash__"] = _hash(compared) if frozen else None
    if order:
        for compare in (operator.lt, operator.le, operator.gt, operator.ge):
            methods[f"__{compare.__name__}__"] = _comparison(compare, compared)
    if frozen and slots:
        methods["__getstate__"] = _get_state(values)
        methods["__setstate__"] = _set_state(names)
    methods = {name: method for name, method in methods.items() if name not in own}
    if frozen:
        methods["__setattr__"] = _refuse_to_set
        methods["__delattr__"] = _refuse_to_delete
    if slots:
        made = _with_slots(made, names, methods, has_weakref=weakref_slot)
    else:
        for name, method in methods.items():
            setattr(made, name, method)
    init.cls = made
    is_simple = _positional(fields) == names and own.isdisjoint(_OWN_WAY)
    if frozen and slots and is_simple and not hasattr(made, "__post_init__"):
        made.__reduce_ex__ = _reduction(made, values)
    return made


def _with_fields(cls: type, *, frozen: bool, **options: bool) -> type:
    """The class with what the standard decorator makes of its annotations, and without methods.
    Raises: TypeError or ValueError, for what it refuses, and for an `InitVar`.
    """
    if not cls.__doc__:
        cls.__doc__ = cls.__name__  # otherwise the signature is inspected for it
    # It compares `frozen` with that of the bases, and compiles two functions for a frozen class.
    standard: Any = dataclasses.dataclass(
        init=False,
        repr=False,
        eq=False,
        frozen=frozen and dataclasses.is_dataclass(cls),
        **options,
    )
    annotations: dict[str, Any] = vars(cls).get("__annotations__", {})
    words = " ".join(map(str, annotations.values()))
    is_plain = not any(word in words for word in _NOT_PLAIN)
    if annotations and is_plain:
        # The decorator would parse each annotation three times, to find these words.
        cls.__annotations__ = dict.fromkeys(annotations, object)
    made: Any = standard(cls)
    if annotations and is_plain:
        made.__annotations__ = annotations
        for name, annotation in annotations.items():
            made.__dataclass_fields__[name].type = annotation
    names = {field.name for field in dataclasses.fields(made)}
    for name, annotation in annotations.items():
        if name not in names and "InitVar" in str(annotation):
            raise TypeError(f"field {name!r} is an InitVar, which is not supported")
    return made


def _positional(fields: Iterable[dataclasses.Field[Any]]) -> list[str]:
    """The names of the arguments of `__init__` that are not by name only. Raises: TypeError, if
    one without a default follows one that has a default.
    """
    names: list[str] = []
    optional = None
    for field in fields:
        if field.init and not field.kw_only:
            if not _is_without_default(field):
                optional = field.name
            elif optional is not None:
                raise TypeError(
                    f"non-default argument {field.name!r} follows default argument {optional!r}"
                )
            names.append(field.name)
    return names


def _with_slots(
    cls: type, names: Sequence[str], methods: dict[str, Any], *, has_weakref: bool
) -> type:
    """The class again, with slots for the fields that no base has a slot for, and these methods."""
    left_out = {*names, "__dict__", "__weakref__"}
    inherited: set[str] = set()
    for base in cls.__mro__[1:-1]:
        slots = vars(base).get("__slots__", ())
        inherited.update([slots] if isinstance(slots, str) else slots)
        if base.__weakrefoffset__:
            inherited.add("__weakref__")
    slots = [*names, "__weakref__"] if has_weakref else names
    namespace = {name: value for name, value in vars(cls).items() if name not in left_out}
    namespace |= methods
    namespace["__qualname__"] = cls.__qualname__
    namespace["__slots__"] = tuple([name for name in slots if name not in inherited])
    return type(cls)(cls.__name__, cls.__bases__, namespace)


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
