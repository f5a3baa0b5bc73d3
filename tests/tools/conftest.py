"""What the tests of tools share."""

import pytest

from evaluator.files import open_below


@pytest.fixture(params=["openat2", "by steps"])
def road(request, monkeypatch):
    """A test runs on both roads: with openat2, and component by component for systems without it."""
    if request.param == "by steps":
        monkeypatch.setattr(open_below, "openat2", lambda: None)
    elif open_below.openat2() is None:
        pytest.skip("this system has no openat2")
    return request.param
