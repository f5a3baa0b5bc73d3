"""The arguments of filters, tests and methods, as far as they are wrong whatever the values are."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from inspect import signature
from types import NoneType
from typing import Any

from jinja2 import nodes

from evaluator.language.filters import FILTER_NAMES, FILTERS, describe_filter, unknown_filter
from evaluator.language.functions import METHODS, OF_LOOP
from evaluator.language.locating import LocatedError, nearest
from evaluator.language.operators import TEST_NAMES, TESTS, unknown_test
from evaluator.language.scopes import describe
from evaluator.language.values import LOOP_FIELDS

_METHOD_NAMES = frozenset(OF_LOOP).union(*METHODS.values())
_KINDS: dict[type, str] = {str: "a text", int: "a number", float: "a number"}
_ENDS = ((str,), (int, NoneType), (int, NoneType))
_TYPES: dict[str, tuple[tuple[type, ...], ...]] = {
    "count": ((str,), (int,), (int,)),
    "endswith": _ENDS,
    "find": ((str,), (int,), (int,)),
    "lstrip": ((str,),),
    "removeprefix": ((str,),),
    "removesuffix": ((str,),),
    "replace": ((str,), (str,), (int, float, NoneType)),
    "rstrip": ((str,),),
    "split": ((str, NoneType), (int,)),
    "startswith": _ENDS,
    "strip": ((str,),),
}
"""The types of literals that a method of texts may take, by position."""
_TEST_ARGUMENT = {"select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}
"""The argument of a filter that names a test."""


def argument_error(node: nodes.Node) -> LocatedError | None:
    """The error of a filter, a test or a method that does not exist or that does not take the
    arguments it is given; None for any other node.
    """
    if isinstance(node, nodes.Filter):
        if node.name not in FILTER_NAMES:
            return unknown_filter(node.name)
        return _named_in(node) or _filter_arity(node)
    if isinstance(node, nodes.Test):
        if node.name not in TEST_NAMES:
            return unknown_test(node.name)
        return _test_arity(node)
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
        return _method_error(node, node.node)
    return None


def _method_error(node: nodes.Call, target: nodes.Getattr) -> LocatedError | None:
    name = target.attr
    offset = target.lineno  # the node begins at the dot
    methods = [table[name] for table in (*METHODS.values(), OF_LOOP) if name in table]
    if not methods and name not in LOOP_FIELDS:
        hint = nearest(name, sorted(_METHOD_NAMES))
        if name in FILTER_NAMES:
            hint = f"; there is a filter: | {name}"
        message = f"there is no method {name!r}{hint}"
        forbidden = name.startswith("_")
        return LocatedError(message, "unknown-method", offset=offset, forbidden=forbidden)
    if methods and not any(_accepts(method, node) for method in methods):
        by_name = ", not by name" if node.kwargs and _is_unnamed(methods[0]) else ""
        message = f"method {name!r} takes {_names(methods[0])}{by_name}, and {_given(node)}"
        return LocatedError(message, "wrong-arity", offset=offset)
    of_text = isinstance(target.node, nodes.Const) and isinstance(target.node.value, str)
    if name in _TYPES and (of_text or len(methods) == 1):
        return _type_error(name, node.args, offset)
    return None


def _type_error(name: str, args: list[nodes.Expr], offset: int) -> LocatedError | None:
    """The error of a literal that a method of texts never takes."""
    for number, (argument, types) in enumerate(zip(args, _TYPES[name], strict=False), 1):
        if isinstance(argument, nodes.Const) and not isinstance(argument.value, types):
            kinds = [_KINDS[kind] for kind in types if kind in _KINDS]
            message = (
                f"argument {number} of method {name!r} is {describe(argument.value)}, expected "
                f"{' or '.join(dict.fromkeys(kinds))}"
            )
            return LocatedError(message, "wrong-type", offset=offset)
    return None


def _named_in(node: nodes.Filter) -> LocatedError | None:
    """The error of a filter or a test that an argument names, as in `map("upper")`."""
    if node.name == "map":
        index = 0
    elif node.name in _TEST_ARGUMENT:
        index = _TEST_ARGUMENT[node.name]
    else:
        return None
    if len(node.args) <= index:
        return None
    argument = node.args[index]
    if not isinstance(argument, nodes.Const) or not isinstance(argument.value, str):
        return None
    if node.name == "map" and argument.value not in FILTER_NAMES:
        error = unknown_filter(argument.value)
        error.offset = argument.lineno  # the node begins at the quote
        return error
    if node.name != "map" and argument.value not in TEST_NAMES:
        return unknown_test(argument.value)
    return None


def _filter_arity(node: nodes.Filter) -> LocatedError | None:
    if node.name in ("d", "default"):
        fits = _accepts(_default, node)
    else:
        fits = _accepts(FILTERS[node.name], node)
    if fits:
        return None
    takes = describe_filter(node.name)[0] or "no argument"
    return LocatedError(f"filter {node.name!r} takes {takes}, and {_given(node)}", "wrong-arity")


def _test_arity(node: nodes.Test) -> LocatedError | None:
    test = TESTS.get(node.name, _no_argument)
    if _accepts(test, node):
        return None
    message = f"test {node.name!r} takes {_names(test)}, and {_given(node)}"
    return LocatedError(message, "wrong-arity")


def _names(function: Callable[..., Any]) -> str:
    """The arguments of a function after the run and the value."""
    parameters = [*signature(function).parameters.values()][2:]
    names = [f"*{one.name}" if one.kind is one.VAR_POSITIONAL else one.name for one in parameters]
    return f"({', '.join(names)})" if names else "no argument"


def _is_unnamed(function: Callable[..., Any]) -> bool:
    parameters = signature(function).parameters.values()
    return any(one.kind is one.POSITIONAL_ONLY for one in parameters)


def _given(node: nodes.Filter | nodes.Test | nodes.Call) -> str:
    count = len(node.args) + len(node.kwargs)
    what = (
        f"{count or 'no'} argument{'' if count < 2 else 's'} {'are' if count > 1 else 'is'} given"
    )
    names = ", ".join(f"{keyword.key}=" for keyword in node.kwargs)
    return f"{what} ({names})" if names else what


def _accepts(function: Callable[..., Any], node: nodes.Filter | nodes.Test | nodes.Call) -> bool:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        return True
    keywords = tuple(str(keyword.key) for keyword in node.kwargs)
    return _binds(function, len(node.args), keywords)


@lru_cache(maxsize=512)
def _binds(function: Callable[..., Any], positional: int, keywords: tuple[str, ...]) -> bool:
    """Whether a function takes these arguments after the run and the value."""
    try:
        signature(function).bind(*[None] * (positional + 2), **dict.fromkeys(keywords))
    except TypeError:
        return False
    return True


def _default(run: Any, value: Any, default_value: Any = "", boolean: Any = False) -> None:
    """The arguments of the filter `default`, which the compiler applies."""


def _no_argument(run: Any, value: Any) -> None:
    """The arguments of the tests `defined` and `undefined`, which the compiler applies."""
