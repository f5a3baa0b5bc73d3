"""Progress in Python: a live table in a notebook, a live display on a terminal, nothing elsewhere; results as HTML."""

from __future__ import annotations

import os
import sys
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from evaluator import (
    Evaluator,
    Status,
    TaskError,
    TaskResult,
    TemplateLibrary,
    UsageError,
    run_batch_sync,
)
from evaluator.batch import NoDisplay
from evaluator.batch.compare import compare
from evaluator.batch.display import LiveDisplay, NotebookDisplay, PlainDisplay, make_display

ROWS = [
    {"question": "What is the symbol of iron?", "target": "Fe"},
    {"question": "<b>2+2?</b>", "target": "<i>4</i>"},
]
HOSTILE = "<script>alert(1)</script>\x1b[2J"


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What a notebook shows, in order: each time the HTML of the object."""
    shown: list[tuple[str, str]] = []

    def display(value: Any, *, display_id: bool) -> Any:
        assert display_id
        shown.append(("new", value._repr_html_()))
        return SimpleNamespace(update=lambda value: shown.append(("update", value._repr_html_())))

    ipython, displays = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    displays.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    return shown


@pytest.fixture
def offline() -> Evaluator:
    return Evaluator(handler="offline", tasks_dir=None)


def test_a_notebook_gets_one_table_that_is_updated(notebook, offline, tmp_path: Path) -> None:
    run_batch_sync(
        "answer_question",
        ROWS,
        evaluator=offline,
        scorers=["exact"],
        output=tmp_path / "b",
        name="<b>quiz</b>",
    )
    assert [kind for kind, _ in notebook].count("new") == 1
    last = notebook[-1][1]
    assert "2 of 2" in last and "complete" in last
    assert "&lt;b&gt;quiz&lt;/b&gt;" in last and "<b>" not in last


def test_a_terminal_is_live_and_anything_else_shows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(make_display("auto"), LiveDisplay)
    monkeypatch.setattr(sys, "stderr", StringIO())
    assert type(make_display("auto")) is NoDisplay
    assert isinstance(make_display("plain"), PlainDisplay)
    assert type(make_display("none")) is NoDisplay
    own = NotebookDisplay()
    assert make_display(own) is own
    monkeypatch.setattr(sys, "stderr", None)
    assert type(make_display("auto")) is NoDisplay


def test_a_batch_outside_of_a_terminal_prints_nothing(
    offline, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not os.isatty(2)
    run_batch_sync("answer_question", ROWS, evaluator=offline, output=tmp_path / "b")
    assert capfd.readouterr() == ("", "")


def test_an_unknown_display_is_refused_before_anything_runs(offline) -> None:
    with pytest.raises(UsageError, match=r"display is 'liev', expected .*did you mean `live`"):
        run_batch_sync("answer_question", ROWS, evaluator=offline, display="liev")  # type: ignore[arg-type]


def test_what_a_notebook_shows_is_escaped(offline, tmp_path: Path) -> None:
    notes = {"template": HOSTILE, "models": [HOSTILE], "warnings": [HOSTILE]}
    for outcome in (
        TaskResult(Status.COMPLETE, HOSTILE, notes=notes),
        TaskError("TASK_FAILURE", HOSTILE, "unexpected_error", content=HOSTILE, notes=notes),
    ):
        shown = outcome._repr_html_()
        assert "&lt;script&gt;" in shown and "<script" not in shown and "\x1b" not in shown
    rows = [{**row, "kind": HOSTILE} for row in ROWS]
    result = run_batch_sync(
        "answer_question",
        rows,
        evaluator=offline,
        scorers=["exact"],
        metadata=["kind"],
        group_by="kind",
        output=tmp_path / "b",
    )
    for value in (result, result.summary, compare(result.results(), result.results())):
        shown = value._repr_html_()
        assert "<table>" in shown and "<script" not in shown and "\x1b" not in shown
    assert "&lt;script&gt;" in result._repr_html_()
    match = TemplateLibrary.load().match("summarise a text")[0]._repr_html_()
    assert "summarise" in match and "<table>" in match
