"""Fixtures of the tests of runs."""

from __future__ import annotations

import pytest

from tests.interpreter.resume_runs import echo


@pytest.fixture
def echoing(scripted):
    """A script that answers with the prompt and keeps what it was asked."""
    return scripted({"": echo})
