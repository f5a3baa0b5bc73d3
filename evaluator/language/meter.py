"""The bounds of one rendering, and the meter that counts its use of them.

Jinja's own sandbox bounds nothing. Here every loop, call, filter and operation that can grow pays
before it
works: in steps (one, plus one for each 512 characters), in characters and items allocated, and in
wall time.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from evaluator import clock
from evaluator.language.locating import LocatedError
from evaluator.language.scopes import MISSING, Scope
from evaluator.lazy_dataclass import dataclass

MAX_ITEMS: Final = 1_000_000
MAX_RANGE: Final = 100_000
MAX_BITS: Final = 10_000
MAX_NESTING: Final = 100
MAX_MACRO_DEPTH: Final = 40

_CLOCK_EVERY = 500


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that one rendering or evaluation may use. Every text has the same bounds.

    `output_chars`: characters of the result; intermediate values may hold four times as many in
    all.
    `seconds`: wall time, not counting the time that called function templates take.
    `steps`: iterations, calls and filters, weighted by the size of what they work on.
    `calls`: calls of function templates.
    """

    output_chars: int = 10_000_000
    seconds: float = 2.0
    steps: int = 2_000_000
    calls: int = 1000


BOUNDS = Bounds()


class PendingCall(Exception):
    """Stops a rendering until a function template has been called."""

    def __init__(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], offset: int, index: int
    ) -> None:
        super().__init__(name)
        self.name = name
        self.args_ = args
        self.kwargs = dict(kwargs)
        self.offset = offset
        self.index = index


class Rendering:
    """One pass over a text: its local names, its scope and its remaining bounds."""

    __slots__ = (
        "_due",
        "_steps",
        "allowance",
        "blocks",
        "bounds",
        "calls",
        "deadline",
        "macro_depth",
        "names",
        "remaining",
        "results",
        "scope",
    )

    def __init__(self, scope: Scope, results: list[Any] | None = None) -> None:
        self.scope = scope
        self.bounds = bounds = BOUNDS
        self.results = results
        self.calls = 0
        self.names: dict[str, Any] = {}
        self.blocks: list[Any] = []
        self.macro_depth = 0
        self.remaining = bounds.output_chars
        self.allowance = bounds.output_chars * 4
        self.deadline = clock.monotonic() + bounds.seconds
        self._steps = bounds.steps
        self._due = _CLOCK_EVERY

    def tick(self, cost: int = 1) -> None:
        """Charges `cost` steps. Raises: LocatedError, if steps or time are used up."""
        self._steps -= cost
        self._due -= cost
        if self._due < 0:
            self._due = _CLOCK_EVERY
            if self._steps < 0:
                raise LocatedError(
                    f"takes more than {self.bounds.steps:,} steps",
                    None,
                    code="too-long",
                    forbidden=True,
                )
            if clock.monotonic() > self.deadline:
                raise LocatedError(
                    f"takes more than {self.bounds.seconds:g} s",
                    None,
                    code="too-long",
                    forbidden=True,
                )

    def charge(self, chars: int) -> None:
        """Charges for a value before it is made: one unit for each character, eight for each item
        of a list.
        """
        if chars > 64:
            self.allowance -= chars
            if self.allowance < 0 or chars > self.bounds.output_chars:
                raise self.too_large()
        self.tick(1 + (chars >> 9))

    def charge_items(self, count: int) -> None:
        """Charges for a list of this many items before it is made."""
        if count > MAX_ITEMS:
            raise LocatedError(
                f"makes a list of more than {MAX_ITEMS:,} items",
                None,
                code="too-large",
                forbidden=True,
            )
        self.charge(count * 8)

    def too_large(self) -> LocatedError:
        """Returns the error for an intermediate value past the bounds."""
        message = f"makes values of more than {self.bounds.output_chars:,} characters"
        return LocatedError(message, None, code="too-large", forbidden=True)

    def too_long(self, offset: int) -> LocatedError:
        """Returns the error for a result past the bounds, whose characters `remaining` counts."""
        limit = self.bounds.output_chars
        return LocatedError(
            f"the result is longer than {limit:,} characters",
            offset,
            code="too-large",
            forbidden=True,
        )

    @contextmanager
    def inner_names(self, names: Mapping[str, Any]) -> Generator[None]:
        """Makes a copy of `names` the local names; names that are set inside are forgotten
        afterwards.
        """
        outside = self.names
        self.names = dict(names)
        try:
            yield
        finally:
            self.names = outside

    def look_up(self, name: str) -> Any:
        """Returns the value of a name, locals first, or MISSING."""
        value = self.names.get(name, MISSING)
        if value is MISSING:
            return self.scope.get(name)
        return value

    def visible(self) -> list[str]:
        """Returns every name that can be used at this point, sorted."""
        return sorted({*self.names, *self.scope.names()})

    def call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], offset: int) -> Any:
        """Returns the recorded result of a function template, or raises Pending.

        A text is deterministic, so a rendering that stops for a call is started again with the
        call's result.
        """
        index = self.calls
        self.calls += 1
        self.tick()
        if self.results is None:
            message = f"{name!r} is not a function that can be called here"
            raise LocatedError(message, offset, code="unknown-function")
        if index < len(self.results):
            return self.results[index]
        if index >= self.bounds.calls:
            raise LocatedError(
                f"calls more than {self.bounds.calls} templates",
                offset,
                code="too-long",
                forbidden=True,
            )
        raise PendingCall(name, args, kwargs=kwargs, offset=offset, index=index)
