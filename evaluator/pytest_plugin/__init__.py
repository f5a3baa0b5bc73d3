"""The pytest plugin: a batch is a test, or each of its samples is.

    @pytest.mark.evaluator_batch("answer_question", rows="rows.jsonl", scorers=["includes"],
                                 thresholds=["accuracy >= 0.8"])
    def test_capitals(batch): ...

Every model is simulated, whatever a batch, a template, a profile or a scorer names, unless pytest's
command line or EVALUATOR_MODEL says otherwise: running tests costs nothing and sends nothing.

A marker is one batch. All tests with the same marker (of a class, of a module, of each sample)
share one run, in all processes of pytest-xdist. It runs when the first of them is set up, with all
samples at once.

Every pytest in an environment where the package is installed imports this module; it imports
nothing else before a test needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from evaluator.batch import BatchResult, SampleResult
    from evaluator.pytest_plugin.runs import Runs, SharedBatch

MARKER = "evaluator_batch"
EACH = "_evaluator_each"
_shared = pytest.StashKey["SharedBatch"]()
_runs = pytest.StashKey["Runs"]()
_PREFIX = "evaluator."
UNKNOWN = "unknown"
"""The property of a test for an unknown cost or number of tokens."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("evaluator", "batches of evaluator")
    group.addoption(
        "--evaluator-model",
        metavar="MODEL",
        help="Evaluate batches with this model instead of theirs.",
    )
    group.addoption(
        "--evaluator-handler", metavar="NAME", help="Evaluate batches with this handler profile."
    )
    group.addoption(
        "--evaluator-live",
        action="store_true",
        help="Evaluate batches with the models that they name.",
    )
    group.addoption(
        "--evaluator-output", metavar="DIR", help="Store the folders of batches in DIR."
    )
    group.addoption(
        "--evaluator-resume", action="store_true", help="Resume the batches in --evaluator-output."
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(definition_or_template, rows=…, scorers=…, thresholds=…, each=False, …): run a "
        "batch, fail unless "
        "it is complete and its thresholds are met; with each=True each sample is a test. "
        "See docs/howto/test-with-pytest.md",
    )
    if config.getoption("evaluator_resume") and not config.getoption("evaluator_output"):
        raise pytest.UsageError(
            "--evaluator-resume resumes the batches in --evaluator-output DIR: give both"
        )
    config.pluginmanager.register(_Summary(), "evaluator-summary")


# -- tests of batches ------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes a test for each sample, and one for the thresholds."""
    mark = metafunc.definition.get_closest_marker(MARKER)
    # A test with two markers fails in its setup, which explains it.
    if (
        mark is None
        or not mark.kwargs.get("each")
        or _node_with_several(metafunc.definition) is not None
    ):
        return
    params, ids = _runs_of(metafunc.config).parameters(mark, metafunc.definition.path.parent)
    metafunc.fixturenames.append(EACH)
    metafunc.parametrize(EACH, params, ids=ids, indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    names = getattr(item, "fixturenames", None)
    if (
        names is not None
        and "_evaluator_shared" not in names
        and item.get_closest_marker(MARKER) is not None
    ):
        names.append("_evaluator_shared")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Samples whose tests were deselected are not evaluated."""
    if _runs in session.config.stash:
        session.config.stash[_runs].note_selected(session.items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    mark = item.get_closest_marker(MARKER)
    if mark is None:
        return
    if _shared not in item.stash:
        pytest.fail(f"the marker {MARKER} is for test functions and methods only", pytrace=False)
    item.stash[_shared].check(item)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """The test of the thresholds has no sample, so that its function is not called."""
    if _shared in pyfuncitem.stash and _is_about_thresholds(pyfuncitem):
        return True
    return None


def _is_about_thresholds(item: pytest.Item) -> bool:
    """Whether `item` is the test with `each` that is about no sample."""
    from evaluator.pytest_plugin.runs import place_of

    return place_of(item) is None


def _node_with_several(item: pytest.Item) -> str | None:
    """The node that has the nearest marker, if it has several: it is undecided which one is
    meant.
    """
    found = list(item.iter_markers_with_node(MARKER))
    nearest, mark = found[0]
    if any(node is nearest and each is not mark for node, each in found):
        return nearest.nodeid
    return None


def _runs_of(config: pytest.Config) -> Runs:
    if _runs not in config.stash:
        from evaluator.pytest_plugin.runs import Runs

        config.stash[_runs] = Runs(config)
    return config.stash[_runs]


def _report_usage(item: pytest.Item, used: Mapping[str, Any]) -> None:
    """Adds properties to the test, for the summary (which another process may print) and for
    JUnit's file.
    """
    item.user_properties.extend(
        (f"{_PREFIX}{name}", UNKNOWN if value is None else value) for name, value in used.items()
    )


# -- fixtures --------------------------------------------------------------------------------------


@pytest.fixture
def _evaluator_each(request: pytest.FixtureRequest) -> Any:  # pyright: ignore[reportUnusedFunction]
    return getattr(request, "param", None)


@pytest.fixture
def _evaluator_shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SharedBatch:  # pyright: ignore[reportUnusedFunction]
    """The batch of the test's marker, after it has run."""
    item: pytest.Item = request.node
    mark = item.get_closest_marker(MARKER)
    if mark is None:
        pytest.fail(
            "this test uses the batch of a marker but has no marker: add "
            f"@pytest.mark.{MARKER}(…), or call the "
            "fixture evaluator_batch",
            pytrace=False,
        )
    node = _node_with_several(item)
    if node is not None:
        pytest.fail(
            f"{MARKER}: {node} has several markers, but a test is about one batch: give it one "
            "marker, and call the "
            f"fixture {MARKER} for further batches",
            pytrace=False,
        )
    shared = _runs_of(request.config).shared(item, mark, tmp_path_factory.getbasetemp())
    item.stash[_shared] = shared
    _report_usage(item, shared.run())
    shared.expect_answer(item)
    return shared


@pytest.fixture
def batch(_evaluator_shared: SharedBatch) -> BatchResult:
    """The result of the marker's batch. It is complete and its thresholds are met when the test
    starts.
    """
    return _evaluator_shared.result


@pytest.fixture
def sample(_evaluator_shared: SharedBatch, request: pytest.FixtureRequest) -> SampleResult | None:
    """The result that a test with `each=True` is about. It has passed when the test starts."""
    if _is_about_thresholds(request.node):
        return None
    return _evaluator_shared.sample(request.node)


@pytest.fixture
def evaluator_batch(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """`evaluator_batch(definition_or_template, rows, scorers=…, thresholds=…, check=True, …) ->
    BatchResult`.

    Runs a batch in a folder of the test. With `check` the test fails unless the batch is complete
    and its thresholds are met.
    """

    def run(what: Any, rows: Any = None, *, check: bool = True, **options: Any) -> BatchResult:
        __tracebackhide__ = True
        item: pytest.Item = request.node
        runs = _runs_of(request.config)
        result, used = runs.call(item, what, rows, options, tmp_path_factory.getbasetemp())
        _report_usage(item, used)
        if check:
            runs.check(item, result)
        return result

    return run


# -- usage -----------------------------------------------------------------------------------------


class _Summary:
    """Adds up what all tests used, also those of other processes."""

    def __init__(self) -> None:
        self._used: dict[str, list[Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            for name, value in report.user_properties:
                if name.startswith(_PREFIX):
                    self._used.setdefault(name.removeprefix(_PREFIX), []).append(value)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._used:
            from evaluator.pytest_plugin.report import summary_line

            terminalreporter.write_line(summary_line(self._used))
