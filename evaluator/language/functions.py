"""The functions of a text besides methods and function templates: macros, `range`, `dict` and
`namespace`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evaluator.language.locating import LocatedError, nearest
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
        self,
        name: str,
        params: tuple[str, ...],
        defaults: tuple[Evaluate, ...],
        body: Execute,
        names: dict[str, Any],
    ) -> None:
        self.name = name
        self.params = params
        self.defaults = defaults
        self.body = body
        self.names = names

    def call(self, run: Rendering, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Returns the text that the body writes. Raises: LocatedError, if the arguments do not
        fit.
        """
        run.tick(10)
        if run.macro_depth >= MAX_MACRO_DEPTH:
            message = f"macros call one another more than {MAX_MACRO_DEPTH} deep"
            raise LocatedError(message, None, code="too-deep", forbidden=True)
        run.macro_depth += 1
        try:
            with run.inner_names(self.names):
                required = self.params[: len(self.params) - len(self.defaults)]
                bound = bind_names(
                    f"macro {self.name!r}", self.params, required=required, args=args, kwargs=kwargs
                )
                run.names.update(bound)
                self._add_defaults(run, bound)
                out: list[str] = []
                self.body(run, out)
        finally:
            run.macro_depth -= 1
        text = "".join(out)
        run.charge(len(text))
        return text

    def _add_defaults(self, run: Rendering, bound: Mapping[str, Any]) -> None:
        """Evaluates the defaults in order, so that one may use the parameters before it."""
        for name, default in zip(
            self.params[len(self.params) - len(self.defaults) :], self.defaults, strict=True
        ):
            if name not in bound:
                run.names[name] = default(run)


def bind_names(
    what: str,
    names: Sequence[str],
    required: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """The values of the parameters `names` that a call of `what` gives, by name.

    Raises: LocatedError `wrong-arity`, `unknown-argument` or `duplicate-argument`.
    """
    if len(args) > len(names):
        takes = f"{len(names)} argument{'' if len(names) == 1 else 's'}"
        raise LocatedError(f"{what} takes {takes}, got {len(args)}", None, code="wrong-arity")
    bound = dict(zip(names, args, strict=False))
    for key, value in kwargs.items():
        if key not in names:
            raise LocatedError(
                f"{what} has no parameter {key!r}{nearest(key, names)}",
                None,
                code="unknown-argument",
            )
        if key in bound:
            raise LocatedError(f"{what} is given {key!r} twice", None, code="duplicate-argument")
        bound[key] = value
    missing = [name for name in required if name not in bound]
    if missing:
        raise LocatedError(
            f"{what} needs {', '.join(map(repr, missing))}", None, code="wrong-arity"
        )
    return bound


def _range(run: Rendering, *bounds: Any) -> list[int]:
    count = len(range(*bounds))
    if count > MAX_RANGE:
        raise LocatedError(
            f"a range has at most {MAX_RANGE:,} numbers", None, code="too-large", forbidden=True
        )
    run.charge_items(count)
    return list(range(*bounds))


def _dict(run: Rendering, *pairs: Any, **fields: Any) -> dict[str, Any]:
    result: dict[Any, Any] = {}
    for source in pairs:
        result.update(source if isinstance(source, Mapping) else dict(items_of(run, source)))
    run.charge_items(2 * (len(result) + len(fields)))
    if not all(isinstance(key, str) for key in result):
        raise LocatedError("a key is a string", None, code="wrong-type")
    return {**result, **fields}


def _namespace(run: Rendering, *pairs: Any, **fields: Any) -> Namespace:
    return Namespace(_dict(run, *pairs, **fields))


GLOBAL_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "dict": _dict,
    "namespace": _namespace,
    "range": _range,
}
