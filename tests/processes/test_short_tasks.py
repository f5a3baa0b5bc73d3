"""The garbage collector leaves out what existed before many short tasks, and nothing else."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from evaluator.processes import concurrency
from evaluator.processes.concurrency import short_tasks


@pytest.fixture(autouse=True)
def _nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """The process of the tests has frozen what it imported, and that may have been seen."""
    monkeypatch.setattr(concurrency, "_program_freezes", False)
    gc.unfreeze()
    yield
    gc.freeze()


def test_objects_from_before_are_left_out_until_the_last_run_ends() -> None:
    assert gc.get_freeze_count() == 0
    with short_tasks():
        assert gc.get_freeze_count() > 0
        with short_tasks():
            pass
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_they_are_collected_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="a row"), short_tasks():
        raise ValueError("a row")
    assert gc.get_freeze_count() == 0


def test_objects_that_a_program_has_frozen_stay_frozen() -> None:
    gc.freeze()
    try:
        with short_tasks():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
