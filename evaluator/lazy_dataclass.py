"""A `dataclass` whose methods are not compiled when the class is made.

The decorator of the standard library compiles six functions for a frozen class. That takes half a
millisecond, and a command imports more than two hundred classes. Here `__init__` is compiled when
the first instance is made, and the other methods are closures over the names of the fields. The
`__init__` of a frozen class with slots sets the slots directly, which is faster than
`object.__setattr__`. An instance of one with many fields has a class without `__setattr__` until
`__init__` returns: setting its fields takes half of that time.

Fields, slots, defaults and inheritance are those of the standard library: `fields`, `replace`,
`asdict`, `match`, pickling and ordinary dataclasses as subclasses work. Fields are compared as
tuples on every version of Python, so a field that is the same NaN in two instances is equal. Type
checkers see the standard decorator.
"""

from __future__ import annotations

import dataclasses
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


def _make(
    cls: type,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    order: bool = False,
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
        slots=slots,
        **options,
    )
    annotations: dict[str, Any] = vars(cls).get("__annotations__", {})
    is_plain = not any(word in str(annotations) for word in ("ClassVar", "InitVar", "KW_ONLY"))
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
    fields = dataclasses.fields(made)
    compared = _values([field.name for field in fields if field.compare])
    methods: dict[str, Any] = {
        "__init__": _Init(made, is_direct=frozen),
        "__repr__": _repr([field.name for field in fields if field.repr]),
    }
    if eq:
        methods["__eq__"] = _comparison(operator.eq, compared)
        methods["__hash__"] = _hash(compared) if frozen else None
    if order:
        for compare in (operator.lt, operator.le, operator.gt, operator.ge):
            methods[f"__{compare.__name__}__"] = _comparison(compare, compared)
    if frozen and slots:
        names = [field.name for field in fields]
        methods["__getstate__"], methods["__setstate__"] = _state(names)
        is_simple = all(field.init and not field.kw_only for field in fields)
        if is_simple and not hasattr(made, "__post_init__"):
            methods["__reduce_ex__"] = _reduction(made, _values(names))
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    if frozen:
        made.__setattr__ = _refuse_to_set
        made.__delattr__ = _refuse_to_delete
    return made


class _Init:
    """Compiles `__init__` of a class when it is first looked up, and takes its place."""

    def __init__(self, cls: type, *, is_direct: bool) -> None:
        self._cls = cls
        self._is_direct = is_direct

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        function = _compile_init(self._cls, self._is_direct)
        self._cls.__init__ = function  # type: ignore[misc]
        return function if instance is None else types.MethodType(function, instance)


class _Default:
    """The default in the signature of a field that has a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Default()
# The expressions that make what these factories make, without a call.
_DISPLAYS: dict[Any, str] = {dict: "{}", list: "[]"}
# With fewer fields, making the other class takes longer than most programs would save.
_MANY_FIELDS = 6
# What a class needs so that its instances may be changed.
_OPEN = {
    "__slots__": (),
    "__setattr__": object.__setattr__,
    "__delattr__": object.__delattr__,
}


def _compile_init(cls: type, is_frozen: bool) -> types.FunctionType:
    parameters: list[str] = []
    keywords: list[str] = []
    lines: list[str] = []
    set_fields: list[str] = []
    setters: dict[str, Any] = {}
    names: dict[str, Any] = {"_FACTORY": _FACTORY}
    annotations: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        name = field.name
        parameter = name
        if field.default_factory is not MISSING:
            factory = field.default_factory
            if isinstance(factory, types.GenericAlias):
                # Calling `dict[str, int]` takes ten times as long as `dict`.
                factory = factory.__origin__
            names[f"_make_{name}"] = factory
            parameter = f"{name}=_FACTORY"
            if field.init:
                lines.append(f"if {name} is _FACTORY:")
            indent = "    " * field.init
            lines.append(f"{indent}{name} = {_DISPLAYS.get(factory, f'_make_{name}()')}")
        elif field.default is not MISSING:
            names[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
            if not field.init:
                lines.append(f"{name} = _default_{name}")
        elif not field.init:
            continue
        if field.init:
            (keywords if field.kw_only else parameters).append(parameter)
            annotations[name] = field.type
        set_fields.append(name)
        slot = getattr(cls, name, None)
        if isinstance(slot, types.MemberDescriptorType):
            setters[f"_set_{name}"] = slot.__set__
    sets = [f"self.{name} = {name}" for name in set_fields]
    if not is_frozen:
        lines += sets
    elif len(setters) < len(set_fields):
        names["_set"] = object.__setattr__
        lines += [f"_set(self, {name!r}, {name})" for name in set_fields]
    elif len(set_fields) < _MANY_FIELDS or type(cls) is not type:
        names |= setters
        lines += [f"_set_{name}(self, {name})" for name in set_fields]
    else:
        names["_cls"] = cls
        names["_open"] = type(cls.__name__, (cls,), dict(_OPEN))
        names["_set_class"] = object.__dict__["__class__"].__set__
        names["_setters"] = tuple(setters.values())
        lines.append("if self.__class__ is _cls:")
        lines += [f"    {line}" for line in ("_set_class(self, _open)", *sets)]
        lines.append("    _set_class(self, _cls)")
        # A class that is derived from it has no other form.
        lines.append("else:")
        lines.append(f"    for _set, _value in zip(_setters, ({', '.join(set_fields)})):")
        lines.append("        _set(self, _value)")
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
