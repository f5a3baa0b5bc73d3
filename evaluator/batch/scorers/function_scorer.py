"""Python functions as scorers, loaded from a module or file, or only named.

A function's parameters select what it gets: `output` (the text), `parsed`, `turns`, `target`,
`inputs`, `metadata`, `result` (the TaskResult), `recording` (the task file, read only for this
parameter). Lists and mappings are copies. The function returns a bool, a number in [0, 1] or a
Score; numbers of NumPy, PyTorch, `decimal` and `fractions` are accepted. A function that is not
async runs in a thread, one sample after the other: make it async if it waits.

`unloaded` names a function whose code is not imported: to plan a batch, and to ask the user about
its code.
"""

from __future__ import annotations

import inspect
import marshal
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import field, replace
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, TypeAlias, cast, overload

from evaluator.batch.records import Score
from evaluator.batch.scorers.builtin_scorer import check_name, suggestion
from evaluator.batch.scorers.contract import (
    LeavesInputUnchanged,
    ScorerInput,
    binary_score,
    compute_queue,
    copied,
    copy_outcome,
    exception_text,
    graded_score,
    plain_scalar,
    type_name,
)
from evaluator.errors import ConfigurationError, UsageError
from evaluator.errors.messages import type_of
from evaluator.fields import Share, accept
from evaluator.files.pinned_code import PinnedCode
from evaluator.files.project_code import FILE_NAMES, guarded_import, import_place
from evaluator.lazy_dataclass import frozen
from evaluator.output.schema import schema_imports

Around: TypeAlias = Callable[[], AbstractContextManager[None]]
_ARGUMENTS: dict[str, Callable[[ScorerInput], Any]] = {
    "output": lambda scored: scored.outcome.content,
    "parsed": lambda scored: copied(scored.outcome.parsed_content),
    "target": lambda scored: copied(scored.sample.target),
    "inputs": lambda scored: copied(dict(scored.sample.inputs)),
    "turns": lambda scored: copied(list(scored.outcome.notes.get("turns", ()))),
    "metadata": lambda scored: copied(dict(scored.sample.metadata)),
    "result": lambda scored: copy_outcome(scored.outcome),
    "recording": lambda scored: scored.recording(),
}


@frozen
class FunctionScorer(LeavesInputUnchanged):
    """A scorer made from a function; calling it calls the function. `pass_at` is for numbers.

    With `values` the function returns a mapping of these names, each to what a function with one
    value returns. `decides` is the one on which the verdict depends; None: on all of them.

    `describe` has the hash of the function's source, not of what it calls or of values that it
    closes over. The function runs inside the context that `around` gives; for one that was named as
    code, nothing is imported there that has changed since.
    Raises: UsageError, for parameters that scorers do not get, or an invalid name.
    """

    function: Callable[..., Any]
    name: str
    pass_at: float = 0.5
    values: tuple[str, ...] = ()
    decides: str | None = None
    around: Around = field(default=nullcontext, repr=False, compare=False, kw_only=True)
    wants: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        accept(Share, self.pass_at, f"{self.name}: pass_at", UsageError)
        object.__setattr__(self, "values", value_names(self.name, self.values))
        if self.decides is not None and self.decides not in self.values:
            if self.values:
                known = f"expected one of {', '.join(self.values)}"
            else:
                known = "it has no values"
            raise UsageError(f"{self.name}: decides is {self.decides!r}; {known}")
        object.__setattr__(self, "wants", _wanted(self.function, self.name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def describe(self) -> dict[str, Any]:
        if isinstance(self.function, partial):
            function = self.function.func
        else:
            function = self.function
        module = getattr(function, "__module__", "")
        name = getattr(function, "__qualname__", type(function).__qualname__)
        where = f"{FILE_NAMES.get(module, module)}:{name}"
        more: dict[str, Any] = {}
        if isinstance(self.function, partial):
            more["arguments"] = repr((self.function.args, sorted(self.function.keywords.items())))
        if self.values:
            more |= {"values": list(self.values), "decides": self.decides}
        return {
            "type": "function",
            "function": where,
            "source_sha256": source_sha256(function),
            "pass_at": self.pass_at,
            **more,
        }

    async def score(self, scored: ScorerInput) -> Score | dict[Any, Score]:
        call = partial(self.function, **{name: _ARGUMENTS[name](scored) for name in self.wants})
        with self.around():
            given = await self._given(call)
        if not self.values:
            return self._score_of(given, self.name)
        if not isinstance(given, Mapping):
            raise UsageError(
                f"{self.name} returned {type_name(given)}, expected a mapping of "
                f"{', '.join(self.values)}"
            )
        scores: dict[Any, Score] = {}
        for name, value in cast("Mapping[Any, Any]", given).items():
            try:
                score = self._score_of(value, f"{self.name}.{name}")
            except UsageError as error:
                score = Score(None, None, error=str(error))
            if self.decides is not None:
                score = replace(score, decides=name == self.decides)
            scores[name] = score
        return scores

    async def _given(self, call: Callable[[], Any]) -> Any:
        """What the function returns."""
        if inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(
            type(self.function).__call__
        ):
            given = call()
        else:
            given = await compute_queue().call(call)
        if inspect.isawaitable(given):
            given = await given
        return given

    def _score_of(self, given: Any, name: str) -> Score:
        if isinstance(given, Score):
            return given
        found = plain_scalar(given)
        if isinstance(found, bool):
            return binary_score(found)
        if isinstance(found, int | float):
            return graded_score(found, self.pass_at)
        if given is None:
            hint = "; is a return missing?"
        else:
            hint = ""
        raise UsageError(
            f"{name} returned {type_name(given)}, expected a bool, a number or a Score{hint}"
        )


def value_names(name: str, values: Any) -> tuple[str, ...]:
    """Raises: UsageError, for names that cannot be those of values."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise UsageError(f"{name}: values is {values!r:.60}, expected a list of names")
    names = tuple(cast("Sequence[Any]", values))
    for value in names:
        if not isinstance(value, str) or names.count(value) > 1:
            raise UsageError(f"{name}: values has {value!r:.60}, expected names, each once")
        check_name(f"{name}.{value}")
    return names


def _wanted(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    if not callable(function):
        raise UsageError(f"{name} is {type_of(function)}, expected a function")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name}: its parameters cannot be read: {exception_text(error)}"
        ) from error
    wants: list[str] = []
    for parameter in parameters:
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if by_name and parameter.name in _ARGUMENTS:
            wants.append(parameter.name)
        elif parameter.default is parameter.empty:
            hint = f"{suggestion(parameter.name, _ARGUMENTS)} (parameters: {', '.join(_ARGUMENTS)})"
            raise UsageError(
                f"{name} has the parameter {str(parameter)!r}, which scorers do not get{hint}"
            )
    return tuple(wants)


def source_sha256(function: Any) -> str:
    """The hash of the source, or of the compiled code where the source is not available."""
    if hasattr(function, "__code__") or isinstance(function, type):
        target = function
    else:
        target = type(function)
    target = inspect.unwrap(getattr(target, "__func__", target))
    try:
        data = inspect.getsource(target).encode("utf-8", "surrogatepass")
    except (OSError, TypeError):
        code = getattr(target, "__code__", None)
        if code is None:
            data = repr(target).encode()
        else:
            data = marshal.dumps(code)
    return sha256(data).hexdigest()


@overload
def scorer(function: Callable[..., Any], /) -> FunctionScorer: ...
@overload
def scorer(
    *,
    name: str | None = None,
    pass_at: float = 0.5,
    values: Sequence[str] = (),
    decides: str | None = None,
) -> Callable[[Callable[..., Any]], FunctionScorer]: ...
def scorer(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    pass_at: float = 0.5,
    values: Sequence[str] = (),
    decides: str | None = None,
) -> FunctionScorer | Callable[[Callable[..., Any]], FunctionScorer]:
    """Decorates a function to make it a scorer, named after the function unless `name` is given.

    With `values` it returns a mapping of these names, which are scores of their own; with `decides`
    only that one decides whether the answer passes.

    Raises: UsageError, as FunctionScorer does.
    """
    if function is None:
        return partial(function_scorer, name=name, pass_at=pass_at, values=values, decides=decides)
    return function_scorer(function, name, pass_at=pass_at, values=values, decides=decides)


def function_scorer(
    function: Callable[..., Any],
    name: str | None = None,
    pass_at: float = 0.5,
    values: Sequence[str] = (),
    decides: str | None = None,
) -> FunctionScorer:
    """A function as a scorer. Raises: UsageError; a lambda needs a `name`."""
    called = name or getattr(function, "__name__", None) or type(function).__name__
    if called == "<lambda>":
        raise UsageError(
            "a lambda has no name; give one, as in make_scorer(function, name='close')"
        )
    return FunctionScorer(function, called, pass_at, cast("tuple[str, ...]", values), decides)


def load_function(path: str) -> tuple[Any, Around]:
    """The object at `module:name` or `file.py:name`, and a context in which nothing is imported
    that has changed since; importing it runs its module once.

    Raises: UsageError, for a missing file, module or name, or a failed import; ConfigurationError,
    for code that the user has not allowed.
    """
    place, _, attribute = path.rpartition(":")
    code = _pin_code(place, os.getcwd())
    try:
        module = import_place(place)
    except ConfigurationError:
        raise
    except Exception as error:
        raise UsageError(
            f"scorer {path!r}: {place} cannot be imported: {exception_text(error)}"
        ) from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [name for name in vars(module) if not name.startswith("_")]
            raise UsageError(
                f"scorer {path!r}: {place} has no {attribute!r}{suggestion(attribute, known)}"
            )
        found = getattr(found, part)
    return found, partial(guarded_import, code)


@lru_cache(maxsize=256)
def _pin_code(place: str, folder: str) -> PinnedCode:
    """The code in the current folder, and beside the file `place`, as it was when this place was
    first named in this process: no module is imported twice.
    """
    folders = [folder]
    if place.endswith(".py"):
        place = os.path.realpath(place)
        folders.append(os.path.dirname(place))
    return PinnedCode.of([place], folders)


@frozen
class NamedCode:
    """Code that was named and not imported: functions, and classes that are schemas, as
    `place:name`.
    """

    functions: list[str]
    schemas: list[str]


_named: ContextVar[NamedCode | None] = ContextVar("evaluator_unloaded_code", default=None)


@frozen
class UnloadedScorer(LeavesInputUnchanged):
    """Stands for the function at `path`, which is not imported. It cannot score."""

    path: str
    name: str

    def describe(self) -> dict[str, Any]:
        return {"type": "function", "function": self.path}

    async def score(self, scored: ScorerInput) -> Score:
        raise UsageError(f"the scorer {self.path} was not imported")


@contextmanager
def without_code() -> Generator[NamedCode]:
    """Inside, scorers, metrics and schemas of a project are not imported. Yields: their code, as it
    is found.
    """
    with schema_imports("none") as schemas:
        named = NamedCode([], schemas)
        token = _named.set(named)
        try:
            yield named
        finally:
            _named.reset(token)


def unloaded(path: str, name: object) -> UnloadedScorer | None:
    """What stands for the code at `path` inside `without_code`; None outside of it."""
    named = _named.get()
    if named is None:
        return None
    named.functions.append(path)
    return UnloadedScorer(path, name if isinstance(name, str) else path.rpartition(":")[2])
