"""What a text calls besides methods and function templates: its macros, `range`, `dict`, `namespace`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evaluator.binding.bounds import MAX_MACRO_DEPTH, MAX_RANGE, Namespace, Run
from evaluator.binding.operations import items_of
from evaluator.library.syntax import Fault

Evaluate = Callable[[Run], Any]
Execute = Callable[[Run, list[str]], None]


class Macro:
    """What `{% macro %}` binds: parameters, body, and the names around it."""

    __slots__ = ("body", "defaults", "name", "names", "params")

    def __init__(
        self, name: str, params: tuple[str, ...], defaults: tuple[Evaluate, ...], body: Execute,
        names: dict[str, Any],
    ) -> None:  # fmt: skip
        self.name, self.params, self.defaults, self.body, self.names = name, params, defaults, body, names

    def call(self, run: Run, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        run.tick(10)
        if run.macro_depth >= MAX_MACRO_DEPTH:
            message = f"macros call one another more than {MAX_MACRO_DEPTH} deep"
            raise Fault(message, None, "too-deep", True)
        if len(args) > len(self.params):
            message = f"macro {self.name!r} takes {len(self.params)} arguments, got {len(args)}"
            raise Fault(message, None, "wrong-arity")
        outside, run.names = run.names, dict(self.names)
        run.macro_depth += 1
        try:
            bound = dict(zip(self.params, args, strict=False))
            for key, value in kwargs.items():
                if key not in self.params or key in bound:
                    problem = "twice" if key in bound else "but it takes no such argument"
                    raise Fault(f"macro {self.name!r} is given {key!r} {problem}", None, "wrong-arity")
                bound[key] = value
            run.names.update(bound)
            optional = len(self.params) - len(self.defaults)
            for index, name in enumerate(self.params):
                if name in bound:
                    continue
                if index < optional:
                    raise Fault(f"macro {self.name!r} needs {name!r}", None, "wrong-arity")
                run.names[name] = self.defaults[index - optional](run)
            out: list[str] = []
            self.body(run, out)
        finally:
            run.names = outside
            run.macro_depth -= 1
        text = "".join(out)
        run.charge(len(text))
        return text


def _range(run: Run, *bounds: Any) -> list[int]:
    count = len(range(*bounds))
    if count > MAX_RANGE:
        raise Fault(f"a range has at most {MAX_RANGE:,} numbers", None, "too-large", True)
    run.charge_items(count)
    return list(range(*bounds))


def _dict(run: Run, *pairs: Any, **fields: Any) -> dict[str, Any]:
    result: dict[Any, Any] = {}
    for source in pairs:
        result.update(source if isinstance(source, Mapping) else dict(items_of(run, source)))
    run.charge_items(2 * (len(result) + len(fields)))
    if not all(isinstance(key, str) for key in result):
        raise Fault("a key is a string", None, "wrong-type")
    return {**result, **fields}


def _namespace(run: Run, *pairs: Any, **fields: Any) -> Namespace:
    return Namespace(_dict(run, *pairs, **fields))


GLOBAL_FUNCTIONS: dict[str, Callable[..., Any]] = {"dict": _dict, "namespace": _namespace, "range": _range}
