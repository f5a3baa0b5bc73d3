"""Python functions as scorers, and where a command line finds them.

A function names what it wants to see: `output` (the text), `parsed`, `target`, `inputs`, `metadata`, `result` (the
TaskResult), `recording` (the task file, read when it is named). Lists and mappings among them are copies of its own. It
returns a bool, a number in [0, 1] or a Score; numbers of NumPy, PyTorch, `decimal` and `fractions` are numbers too. One
that is not async runs on the event loop: make it async if it waits.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import marshal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, overload

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import ReadsOnly, Scored, on_scale, outcome_apart, words, yes_or_no
from evaluator.batch.scorers.settings import check_name
from evaluator.batch.scorers.values import copied, plain_scalar, type_name
from evaluator.errors import UsageError
from evaluator.library.syntax import nearest

_SEEN: dict[str, Callable[[Scored], Any]] = {
    "output": lambda scored: scored.outcome.content,
    "parsed": lambda scored: copied(scored.outcome.parsed_content),
    "target": lambda scored: copied(scored.sample.target),
    "inputs": lambda scored: copied(dict(scored.sample.inputs)),
    "metadata": lambda scored: copied(dict(scored.sample.metadata)),
    "result": lambda scored: outcome_apart(scored.outcome),
    "recording": lambda scored: scored.recording(),
}
# The names under which files were imported, which say where they are, and the files' own names.
_FILES: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class FunctionScorer(ReadsOnly):
    """A scorer made of a function, which it can still be called as. `pass_at` is for numbers.

    `describe` has the hash of the function's source: not of what it calls, nor of values that it closes over.
    Raises: UsageError, for parameters that no scorer is given, or a name that cannot be one.
    """

    function: Callable[..., Any]
    name: str
    pass_at: float = 0.5
    wants: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        if isinstance(self.pass_at, bool) or not isinstance(self.pass_at, int | float) or not 0 <= self.pass_at <= 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{self.name}: pass_at is {self.pass_at!r}, expected a number in [0, 1]")
        object.__setattr__(self, "wants", _wanted(self.function, self.name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def describe(self) -> dict[str, Any]:
        function = self.function.func if isinstance(self.function, partial) else self.function
        module = getattr(function, "__module__", "")
        where = f"{_FILES.get(module, module)}:{getattr(function, '__qualname__', type(function).__qualname__)}"
        more = {}
        if isinstance(self.function, partial):
            more["arguments"] = repr((self.function.args, sorted(self.function.keywords.items())))
        return {
            "type": "function", "function": where, "source_sha256": _source_sha256(function), "pass_at": self.pass_at,
            **more,
        }  # fmt: skip

    async def score(self, scored: Scored) -> Score:
        given = self.function(**{name: _SEEN[name](scored) for name in self.wants})
        if inspect.isawaitable(given):
            given = await given
        if isinstance(given, Score):
            return given
        found = plain_scalar(given)
        if isinstance(found, bool):
            return yes_or_no(found)
        if isinstance(found, int | float):
            return on_scale(found, self.pass_at)
        hint = "; is a return missing?" if given is None else ""
        raise UsageError(f"{self.name} returned {type_name(given)}, expected a bool, a number or a Score{hint}")


def _wanted(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    if not callable(function):
        raise UsageError(f"{name} is a {type(function).__name__}, expected a function")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: its parameters cannot be read: {words(error)}") from error
    wants: list[str] = []
    for parameter in parameters:
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if by_name and parameter.name in _SEEN:
            wants.append(parameter.name)
        elif parameter.default is parameter.empty:
            known = f"{nearest(parameter.name, _SEEN)} (there are {', '.join(_SEEN)})"
            raise UsageError(f"{name} has the parameter {str(parameter)!r}, which a scorer is not given{known}")
    return tuple(wants)


def _source_sha256(function: Any) -> str:
    """Of the source; of the compiled code where there is none, as for what was typed in."""
    target = function if hasattr(function, "__code__") or isinstance(function, type) else type(function)
    target = inspect.unwrap(getattr(target, "__func__", target))
    try:
        data = inspect.getsource(target).encode("utf-8", "surrogatepass")
    except (OSError, TypeError):
        code = getattr(target, "__code__", None)
        data = repr(target).encode() if code is None else marshal.dumps(code)
    return sha256(data).hexdigest()


@overload
def scorer(function: Callable[..., Any], /) -> FunctionScorer: ...
@overload
def scorer(*, name: str | None = None, pass_at: float = 0.5) -> Callable[[Callable[..., Any]], FunctionScorer]: ...
def scorer(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, pass_at: float = 0.5
) -> FunctionScorer | Callable[[Callable[..., Any]], FunctionScorer]:
    """Decorates a function to be a scorer, of its own name unless `name` says another.

    Raises: UsageError, as FunctionScorer does.
    """
    if function is None:
        return partial(of_function, name=name, pass_at=pass_at)
    return of_function(function, name, pass_at)


def of_function(function: Callable[..., Any], name: str | None = None, pass_at: float = 0.5) -> FunctionScorer:
    """A function as a scorer. Raises: UsageError; a lambda needs a `name`."""
    called = name or getattr(function, "__name__", None) or type(function).__name__
    if called == "<lambda>":
        raise UsageError("a lambda has no name: give one, as in make_scorer(function, name='close')")
    return FunctionScorer(function, called, pass_at)


def load_function(path: str) -> Any:
    """What stands at `module:name` or `file.py:name`; importing it runs its module, once.

    Raises: UsageError, where there is no such file, module or name, or importing it fails.
    """
    place, _, attribute = path.rpartition(":")
    try:
        module = _file_module(place) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:
        raise UsageError(f"scorer {path!r}: {place} cannot be imported: {words(error)}") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [name for name in vars(module) if not name.startswith("_")]
            raise UsageError(f"scorer {path!r}: {place} has no {attribute!r}{nearest(attribute, known)}")
        found = getattr(found, part)
    return found


def _file_module(place: str) -> Any:
    path = Path(place).resolve()
    name = f"{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name], _FILES[name] = module, path.name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
