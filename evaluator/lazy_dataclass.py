"""A `dataclass` whose methods are not compiled when the class is made.

The decorator of the standard library compiles six functions for a frozen class. That takes half a
millisecond, and a command imports more than two hundred classes. Here `__init__` is compiled when
the fourth instance is made, because most classes of a command have fewer, and the other methods are
closures over the names of the fields. The `__init__` of a frozen class with slots sets the slots
directly, which is faster than `object.__setattr__`.

Fields, slots, defaults and inheritance are those of the standard library: `fields`, `replace`,
`asdict`, `match`, pickling and ordinary dataclasses as subclasses work. Fields are compared as
tuples on every version of Python, so a field that is the same NaN in two instances is equal. Type
checkers see the standard decorator.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import reprlib
import types
from collections.abc import Callable, Sequence
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


_FEW = 3
"""Instances made before `__init__` is compiled, which takes as long as making fifty of them."""
_NOT_PLAIN = ("ClassVar", "InitVar", "KW_ONLY")


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
    params = made.__dataclass_params__
    params.init = params.repr = True
    params.eq = eq
    params.order = order
    params.frozen = frozen
    if hasattr(params, "slots"):  # from Python 3.12 on
        params.slots = slots
        params.weakref_slot = weakref_slot
    fields = dataclasses.fields(made)
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
    names = [field.name for field in fields]
    if frozen and slots:
        methods["__getstate__"], methods["__setstate__"] = _state(names)
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
    is_simple = all(field.init and not field.kw_only for field in fields)
    is_simple = is_simple and not hasattr(made, "__post_init__") and "__reduce_ex__" not in own
    if frozen and slots and is_simple:
        made.__reduce_ex__ = _reduction(made, _values(names))
    return made


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
    namespace["__slots__"] = tuple(name for name in slots if name not in inherited)
    made = type(cls)(cls.__name__, cls.__bases__, namespace | methods)
    made.__qualname__ = cls.__qualname__
    return made


class _Init:
    """`__init__` of the class `cls`. The first instances are initialised a field at a time; then
    the method is compiled and takes the place of this one.
    """

    cls: type

    def __init__(self, *, is_direct: bool) -> None:
        self._is_direct = is_direct
        self._left = _FEW

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
        fields = dataclasses.fields(self.cls)  # type: ignore[arg-type]
        positional: list[str] = []
        known: set[str] = set()
        needed: set[str] = set()
        for field in fields:
            if field.init:
                known.add(field.name)
                if not field.kw_only:
                    positional.append(field.name)
                if field.default is MISSING and field.default_factory is MISSING:
                    needed.add(field.name)
        arguments = dict(zip(positional, args, strict=False))
        is_valid = (
            len(args) <= len(positional)
            and arguments.keys().isdisjoint(kwargs)
            and kwargs.keys() <= known
        )
        arguments |= kwargs
        if not is_valid or not arguments.keys() >= needed:
            self._compiled()(instance, *args, **kwargs)  # raises the TypeError that says why
            return
        for field in fields:
            if field.name in arguments:
                value = arguments[field.name]
            elif field.default_factory is not MISSING:
                value = field.default_factory()
            elif field.default is not MISSING:
                value = field.default
            else:
                continue
            slot = getattr(self.cls, field.name, None)
            if not self._is_direct:
                setattr(instance, field.name, value)
            elif isinstance(slot, types.MemberDescriptorType):
                slot.__set__(instance, value)
            else:
                object.__setattr__(instance, field.name, value)
        if hasattr(self.cls, "__post_init__"):
            instance.__post_init__()


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

    An instance of a frozen class with many fields has a class without `__setattr__` until
    `__init__` returns, which halves the time that it takes. An instance of a derived class keeps
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
            *(f"    {line}" for line in plain_lines),
            "    self.__class__ = _cls",
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


def _state(names: Sequence[str]) -> tuple[Callable[[Any], Any], Callable[[Any, Any], None]]:
    """How instances are pickled: a frozen one has no state that could be set otherwise."""
    values = _values(names)

    def __getstate__(self: Any) -> tuple[Any, ...]:
        return values(self)

    def __setstate__(self: Any, state: Sequence[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return __getstate__, __setstate__


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
