"""The functions of a text besides methods and function templates: macros, `range`, `dict` and `namespace`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evaluator.language.locating import LocatedError
from evaluator.language.meter import MAX_MACRO_DEPTH, MAX_RANGE, Rendering
from evaluator.language.values import Namespace, items_of

Evaluate = Callable[[Rendering], Any]
"""A compiled expression: it returns the expression's value."""
Execute = Callable[[Rendering, list[str]], None]
"""A compiled statement: it appends what the statement writes."""


class Macro:
    """The value that `{% macro %}` binds: parameters, body, and the names around it."""

    __slots__ = ("body", "defaults", "name", "names", "params")

    def __init__(
        self, name: str, params: tuple[str, ...], defaults: tuple[Evaluate, ...], body: Execute,
        names: dict[str, Any],
    ) -> None:  # fmt: skip
        self.name, self.params, self.defaults, self.body, self.names = name, params, defaults, body, names

    def call(self, run: Rendering, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Returns the text that the body writes. Raises: LocatedError, if the arguments do not fit."""
        run.tick(10)
        if run.macro_depth >= MAX_MACRO_DEPTH:
            message = f"macros call one another more than {MAX_MACRO_DEPTH} deep"
            raise LocatedError(message, None, "too-deep", True)
        run.macro_depth += 1
        try:
            with run.inner_names(self.names):
                bound = self._bound(args, kwargs)
                run.names.update(bound)
                self._add_defaults(run, bound)
                out: list[str] = []
                self.body(run, out)
        finally:
            run.macro_depth -= 1
        text = "".join(out)
        run.charge(len(text))
        return text

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) > len(self.params):
            message = f"macro {self.name!r} takes {len(self.params)} arguments, got {len(args)}"
            raise LocatedError(message, None, "wrong-arity")
        bound = dict(zip(self.params, args, strict=False))
        for key, value in kwargs.items():
            if key not in self.params or key in bound:
                problem = "twice" if key in bound else "but it takes no such argument"
                raise LocatedError(f"macro {self.name!r} is given {key!r} {problem}", None, "wrong-arity")
            bound[key] = value
        required = self.params[: len(self.params) - len(self.defaults)]
        missing = next((name for name in required if name not in bound), None)
        if missing is not None:
            raise LocatedError(f"macro {self.name!r} needs {missing!r}", None, "wrong-arity")
        return bound

    def _add_defaults(self, run: Rendering, bound: Mapping[str, Any]) -> None:
        """Evaluates the defaults in order, so that one may use the parameters before it."""
        for name, default in zip(self.params[len(self.params) - len(self.defaults) :], self.defaults, strict=True):
            if name not in bound:
                run.names[name] = default(run)


def _range(run: Rendering, *bounds: Any) -> list[int]:
    count = len(range(*bounds))
    if count > MAX_RANGE:
        raise LocatedError(f"a range has at most {MAX_RANGE:,} numbers", None, "too-large", True)
    run.charge_items(count)
    return list(range(*bounds))


def _dict(run: Rendering, *pairs: Any, **fields: Any) -> dict[str, Any]:
    result: dict[Any, Any] = {}
    for source in pairs:
        result.update(source if isinstance(source, Mapping) else dict(items_of(run, source)))
    run.charge_items(2 * (len(result) + len(fields)))
    if not all(isinstance(key, str) for key in result):
        raise LocatedError("a key is a string", None, "wrong-type")
    return {**result, **fields}


def _namespace(run: Rendering, *pairs: Any, **fields: Any) -> Namespace:
    return Namespace(_dict(run, *pairs, **fields))


GLOBAL_FUNCTIONS: dict[str, Callable[..., Any]] = {"dict": _dict, "namespace": _namespace, "range": _range}
