"""What the tests of the pytest plugin share: a pytest of their own."""

from __future__ import annotations

import os

import pytest

from tests.pytest_plugin.plugin_run import QUIZ, ROOT, TEMPLATE, Run


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run(test file, *arguments)`: a pytest that has no other plugin, with `apart` in a process of its own."""
    installed = pytester.mkdir("site")
    (installed / "plugin-1.dist-info").mkdir()
    (installed / "plugin-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: plugin\nVersion: 1\n"
    )
    (installed / "plugin-1.dist-info" / "entry_points.txt").write_text(
        "[pytest11]\nevaluator = evaluator.pytest_plugin\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{installed}{os.pathsep}{ROOT}")
    pytester.syspathinsert(installed)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    (pytester.mkdir("library") / "t.xml").write_text(TEMPLATE)
    pytester.makepyfile(quiz=QUIZ)

    def run(test: str, *arguments: str, apart: bool = False) -> pytest.RunResult:
        pytester.makepyfile(test_it=f"import pytest, quiz\n{test}")
        fixed = ("-p", "evaluator", "-p", "no:cacheprovider", "--strict-markers", "-W", "error")
        if apart:
            return pytester.runpytest_subprocess(*fixed, *arguments)
        # Here the package is imported already.
        return pytester.runpytest_inprocess(
            *fixed, "-W", "ignore::pytest.PytestAssertRewriteWarning", *arguments
        )

    return run
