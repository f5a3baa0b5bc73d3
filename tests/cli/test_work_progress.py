"""Long work of a command is shown on a terminal, and nowhere else, and leaves nothing behind."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, clock, run_batch_sync
from evaluator.cli import common, main
from evaluator.cli.common import WorkProgress

ROWS = [{"question": f"What is {n} + {n}?", "target": str(2 * n)} for n in range(3)]


class Terminal(StringIO):
    """A terminal, and whether a count was drawn on it."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        written = super().write(text)
        if "·" in text:
            self.drawn.set()
        return written


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """For standard error: work waits at its first count until it is drawn, so that a test does not depend on time."""
    found, update = Terminal(), WorkProgress.update

    def update_and_wait(self: WorkProgress, done: int) -> None:
        update(self, done)
        assert found.drawn.wait(200)

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(common, "DELAY_S", 0.0)
    monkeypatch.setattr(WorkProgress, "update", update_and_wait)
    return found


def test_work_is_counted_on_a_terminal_and_erased_at_its_end(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(clock, "monotonic", lambda: 0.0)
    with WorkProgress("reading", "row", 3) as progress:
        assert list(progress.each("abc")) == ["a", "b", "c"]
    drawn = terminal.getvalue()
    assert "reading: 1 of 3 rows · 0:00" in drawn
    assert drawn.endswith("\x1b[2K"), "erased"


def test_an_error_ends_the_display_and_is_raised(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> Iterator[str]:
        yield "a"
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(KeyboardInterrupt), WorkProgress("reading", "row") as progress:
        list(progress.each(stop()))
    assert "reading: 1 row" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")


@pytest.mark.parametrize(
    ("stream", "delay_s", "is_shown"),
    [
        (Terminal, 3600.0, True),
        (StringIO, 0.0, True),
        (Terminal, 0.0, False),
        (lambda: None, 0.0, True),
    ],
    ids=["short work", "no terminal", "switched off", "no standard error"],
)
def test_nothing_is_shown(
    stream: Callable[[], Any], delay_s: float, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = stream()
    monkeypatch.setattr(sys, "stderr", error)
    monkeypatch.setattr(common, "DELAY_S", delay_s)
    with WorkProgress("reading", "row", is_shown=is_shown) as shown:
        assert list(shown.each("abc")) == ["a", "b", "c"]
    assert error is None or error.getvalue() == ""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a template, and two batches."""
    monkeypatch.chdir(tmp_path)
    text = '<task name="own" type="atomic"><description>Own</description><instructions>Hi</instructions></task>'
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "own.xml").write_text(text, encoding="utf-8")
    offline = Evaluator(handler="offline", tasks_dir=None)
    for name in "ab":
        run_batch_sync(
            "answer_question", ROWS, evaluator=offline, scorers=["exact"], output=tmp_path / name
        )
    return tmp_path


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("compare a b", "comparing: 1 of 6 results"),
        ("report a b", "writing the report: 1 of 6 results"),
        ("export a --format csv -o a.csv", "exporting: 1 of 3 results"),
        ("memory index templates", "indexing: 1 file"),
        ("lint templates", "loading templates: 1 file"),
        ("templates", "loading templates: 1 file"),
    ],
)
def test_a_command_shows_long_work(
    command: str, shown: str, folder: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 0
    assert shown in terminal.getvalue()
