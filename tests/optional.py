"""Marks of tests that need a package which only an extra installs."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(module: str, reason: str) -> pytest.MarkDecorator:
    """Skips tests where `module` is not installed. Each test process collects all tests: unlike `pytest.importorskip`, this
    imports nothing, which takes up to a second for some packages."""
    return pytest.mark.skipif(find_spec(module) is None, reason=reason)
