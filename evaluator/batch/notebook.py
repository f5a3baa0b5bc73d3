"""The display of a batch in a notebook, and the choice of the display: terminal, notebook or
none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import IO, Any, Literal, cast

from evaluator.batch.progress import (
    Display,
    LiveDisplay,
    NoDisplay,
    PlainDisplay,
    Snapshot,
    figures,
    of_total,
)
from evaluator.errors import messages

DisplayName = Literal["auto", "live", "plain", "none"]


class NotebookDisplay(NoDisplay):
    """A table in the output of a notebook's cell that is updated in place."""

    def __init__(self) -> None:
        self._name = self._state = ""
        self._notices: list[str] = []
        self._snapshot: Snapshot | None = None
        self._handle: Any = None

    def start(self, name: str, snapshot: Snapshot) -> None:
        self._name = name
        self._snapshot = snapshot
        self._handle = import_module("IPython.display").display(self, display_id=True)

    def progress(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        if self._handle is not None:
            self._handle.update(self)

    def notice(self, line: str) -> None:
        self._notices.append(line)

    def end(self, snapshot: Snapshot, state: str) -> None:
        self._state = state
        self.progress(snapshot)

    def _repr_html_(self) -> str:
        snapshot = self._snapshot
        if snapshot is None:
            return ""
        counts = {name: f"{count:,}" for name, count in snapshot.verdicts.items()}
        errors = {f"error: {kind}": f"{count:,}" for kind, count in snapshot.errors.items()}
        share = (
            f'<progress value="{snapshot.done}" '
            f'max="{snapshot.total or snapshot.done or 1}"></progress>'
        )
        values = {
            "done": of_total(snapshot),
            **counts,
            **errors,
            "now": self._state or " · ".join(figures(snapshot)),
        }
        return share + messages.fields(self._name, values | {"notices": "\n".join(self._notices)})


def make_display(display: Display | DisplayName) -> Display:
    """The display that `run_batch` was given. "auto" is a table in a notebook, else live on a
    terminal, else none.
    """
    stream = cast("IO[str] | None", sys.stderr)
    if display == "auto":
        if _is_notebook():
            return NotebookDisplay()
        if stream is not None and stream.isatty():
            display = "live"
        else:
            display = "none"
    if isinstance(display, str):
        kinds: dict[str, Callable[[IO[str]], Display]] = {
            "live": LiveDisplay,
            "plain": PlainDisplay,
        }
        if stream is None or display == "none":
            return NoDisplay()
        return kinds[display](stream)
    return display


def _is_notebook() -> bool:
    """Whether a Jupyter kernel runs this program; a shell of IPython in a terminal is not one."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        shell = None
    else:
        shell = ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None
