"""The pytest plugin: a batch is a test, or its samples are.

    @pytest.mark.evaluator_batch("answer_question", rows="rows.jsonl", scorers=["includes"], gates=["accuracy >= 0.8"])
    def test_capitals(batch): ...

Unless something else is asked for on pytest's command line, or by EVALUATOR_MODEL, every model is simulated, whatever
a batch, a template, a profile or a scorer names: running tests costs nothing and reaches nothing.

A marker is one batch: the tests that share it (those of a class, of a module, each sample's) share its run, in every
process of pytest-xdist. It runs when the first of them is set up, all its samples side by side.

This module is imported by every pytest in an environment where the package is installed;
nothing else is imported before a test needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from evaluator.batch import BatchResult, SampleResult
    from evaluator.pytest_plugin.runs import Runs, Shared

MARKER = "evaluator_batch"
EACH = "_evaluator_each"
_shared = pytest.StashKey["Shared"]()
_runs = pytest.StashKey["Runs"]()
_PREFIX = "evaluator."
UNKNOWN = "unknown"
"""What a test says of a cost or number of tokens that nobody knows."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("evaluator", "batches of evaluator")
    group.addoption("--evaluator-model", metavar="MODEL", help="Evaluate batches with this model, in place of theirs.")
    group.addoption("--evaluator-handler", metavar="NAME", help="Evaluate batches with this handler profile.")
    group.addoption(
        "--evaluator-live", action="store_true", help="Evaluate batches with the models that they name themselves."
    )
    group.addoption("--evaluator-output", metavar="DIR", help="Keep the batches' folders in DIR.")
    group.addoption(
        "--evaluator-resume", action="store_true", help="Go on with the batches that are in --evaluator-output."
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(definition_or_template, rows=…, scorers=…, gates=…, each=False, …): run a batch, and fail unless it "
        "is complete and its gates hold; with each=True every sample is a test of its own. See docs/testing.md",
    )
    if config.getoption("evaluator_resume") and not config.getoption("evaluator_output"):
        raise pytest.UsageError("--evaluator-resume goes on with what is in --evaluator-output DIR: give that, too")
    config.pluginmanager.register(_Summary(), "evaluator-summary")


# -- tests of batches ------------------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each sample, and one for the gates."""
    mark = metafunc.definition.get_closest_marker(MARKER)
    # Of a test with two markers its setup says what is wrong.
    if mark is None or not mark.kwargs.get("each") or _crowded(metafunc.definition) is not None:
        return
    params, ids = _runs_of(metafunc.config).cells(mark, metafunc.definition.path.parent)
    metafunc.fixturenames.append(EACH)
    metafunc.parametrize(EACH, params, ids=ids, indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    names = getattr(item, "fixturenames", None)
    if names is not None and "_evaluator_shared" not in names and item.get_closest_marker(MARKER) is not None:
        names.append("_evaluator_shared")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Of a batch whose samples are tests only those are evaluated that were not deselected."""
    if _runs in session.config.stash:
        session.config.stash[_runs].note_selected(session.items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    mark = item.get_closest_marker(MARKER)
    if mark is None:
        return
    if _shared not in item.stash:
        pytest.fail(f"the marker {MARKER} is for test functions and methods; this is none", pytrace=False)
    item.stash[_shared].check(item)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """The test about the gates has no sample: what is in the function is not for it."""
    shared = pyfuncitem.stash.get(_shared, None)
    return True if shared is not None and shared.is_about_gates(pyfuncitem) else None


def _crowded(item: pytest.Item) -> str | None:
    """Where the nearest marker stands, if another one does too: which of the two is meant, nobody can say."""
    found = list(item.iter_markers_with_node(MARKER))
    nearest, mark = found[0]
    return nearest.nodeid if any(node is nearest and each is not mark for node, each in found) else None


def _runs_of(config: pytest.Config) -> Runs:
    if _runs not in config.stash:
        from evaluator.pytest_plugin.runs import Runs

        config.stash[_runs] = Runs(config)
    return config.stash[_runs]


def _tell(item: pytest.Item, spent: Mapping[str, Any]) -> None:
    """For the summary, in whichever process that is made, and for JUnit's file."""
    item.user_properties.extend(
        (f"{_PREFIX}{name}", UNKNOWN if value is None else value) for name, value in spent.items()
    )


# -- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _evaluator_each(request: pytest.FixtureRequest) -> Any:  # pyright: ignore[reportUnusedFunction]
    return getattr(request, "param", None)


@pytest.fixture
def _evaluator_shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shared:  # pyright: ignore[reportUnusedFunction]
    """The batch of the test's marker, which has run."""
    item: pytest.Item = request.node
    mark = item.get_closest_marker(MARKER)
    if mark is None:
        pytest.fail(
            f"this test uses the batch of a marker and has none: add @pytest.mark.{MARKER}(…), or call the fixture "
            "evaluator_batch",
            pytrace=False,
        )
    place = _crowded(item)
    if place is not None:
        pytest.fail(
            f"{MARKER}: several markers stand at {place}; a test is about one batch: give it one marker, and call the "
            f"fixture {MARKER} for further batches",
            pytrace=False,
        )
    shared = _runs_of(request.config).shared(item, mark, tmp_path_factory.getbasetemp())
    item.stash[_shared] = shared
    _tell(item, shared.run())
    shared.expect_answer(item)
    return shared


@pytest.fixture
def batch(_evaluator_shared: Shared) -> BatchResult:
    """What came of the batch of the test's marker; complete, and its gates hold, as soon as the test begins."""
    return _evaluator_shared.result


@pytest.fixture
def sample(_evaluator_shared: Shared, request: pytest.FixtureRequest) -> SampleResult | None:
    """The result that a test of `each=True` is about: it passed, as soon as the test begins."""
    gates = _evaluator_shared.is_about_gates(request.node)
    return None if gates else _evaluator_shared.sample(request.node)


@pytest.fixture
def evaluator_batch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`evaluator_batch(definition_or_template, rows, scorers=…, gates=…, check=True, …) -> BatchResult`.

    Runs a batch in a folder of the test. With `check` the test fails unless it is complete and its gates hold.
    """

    def run(what: Any, rows: Any = None, *, check: bool = True, **options: Any) -> BatchResult:
        __tracebackhide__ = True
        item: pytest.Item = request.node
        runs = _runs_of(request.config)
        result, spent = runs.call(item, what, rows, options, tmp_path_factory.getbasetemp())
        _tell(item, spent)
        if check:
            runs.check(item, result)
        return result

    return run


# -- what it took ----------------------------------------------------------------------------------------------------


class _Summary:
    """Adds up what the tests say that they used, those of other processes too."""

    def __init__(self) -> None:
        self._said: dict[str, list[Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            for name, value in report.user_properties:
                if name.startswith(_PREFIX):
                    self._said.setdefault(name.removeprefix(_PREFIX), []).append(value)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._said:
            from evaluator.pytest_plugin.report import summary_line

            terminalreporter.write_line(summary_line(self._said))
