"""The progress of long work that is not a batch: one line on a terminal, erased when the work has
ended.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import IO, Self, TypeVar, cast

from evaluator import clock
from evaluator.errors.messages import minutes_text

DELAY_S = 1.0
"""How long the work takes before it is shown."""
_TICK_S = 0.25
_Item = TypeVar("_Item")


class WorkProgress:
    """Shows on standard error what a command does, how much of it is done, and for how long;
    nothing in the first DELAY_S, and nothing where standard error is not a terminal. A context
    manager.

    >>> with WorkProgress("comparing", "results") as progress:
    ...     sum(progress.each([1, 2, 3]))
    6
    """

    def __init__(
        self, what: str, unit: str, total: int | None = None, *, is_shown: bool = True
    ) -> None:
        """`unit` names what is counted; `total`: how many there will be, None if that is not
        known.
        """
        self._what = what
        self._unit = unit
        self._total = total
        self._is_shown = is_shown
        self._done = 0
        self._started = clock.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        stream = cast("IO[str] | None", sys.stderr)
        if self._is_shown and stream is not None and stream.isatty():
            self._thread = threading.Thread(target=self._show, args=(stream,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def update(self, done: int) -> None:
        """Sets how many are done."""
        self._done = done

    def each(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yields `items` and counts them, after those that are done already."""
        for item in items:
            yield item
            self.update(self._done + 1)

    def _show(self, stream: IO[str]) -> None:
        if self._ended.wait(DELAY_S):
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        live = Live(
            console=Console(file=stream),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        # A terminal that is gone does not end the work.
        with contextlib.suppress(OSError), live:
            while True:
                elapsed = minutes_text(clock.monotonic() - self._started)
                live.update(
                    Text(self._line(elapsed), overflow="ellipsis", no_wrap=True), refresh=True
                )
                if self._ended.wait(_TICK_S):
                    return

    def _line(self, elapsed: str) -> str:
        if self._total is None:
            total = ""
        else:
            total = f" of {self._total:,}"
        if self._done:
            done = f" {self._done:,}{total} {self._unit} ·"
        else:
            done = ""
        return f"{self._what}:{done} {elapsed}"
