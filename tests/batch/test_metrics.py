"""Metrics over all results: macro and weighted averages, functions of one's own, in every place that shows numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from evaluator import RecordError, UsageError
from evaluator.batch import MetricValue, SampleResult, metric, open_batch
from evaluator.batch.export import export
from evaluator.batch.metrics import compute_metrics, make_metrics, stored_metrics
from tests.batch.conftest import ROWS, Calls, Run

SCHEMA = etree.XMLSchema(etree.parse(Path(__file__).parent / "export" / "junit.xsd"))
# Eight rows of "a", of which four fail; two of "b", which pass.
ROWS_OF = [{**row, "of": "a" if n < 8 else "b", "points": n} for n, row in enumerate(ROWS)]
WRONG = {f"Answer in a word: What is {n} + {n}?": "wrong" for n in range(4)}


@metric(values=("share", "length"))
def two(results: Iterator[SampleResult]) -> dict[str, Any]:
    answers = [result.content for result in results if result.failure is None]
    return {
        "share": sum(map(str.isdecimal, answers)) / len(answers),
        "length": MetricValue(max(map(len, answers)), len(answers) - 1),
    }


def values(result: Any) -> dict[str, tuple[Any, int, int]]:
    return {
        name: (one.value, one.n, one.of) for name, one in result.summary.groups[0].metrics.items()
    }


def test_averages_over_groups_and_with_weights(run: Run, calls: Calls) -> None:
    calls.answers.update(WRONG)
    result = run(
        ROWS_OF,
        group_by="of",
        metrics=[
            "macro",
            "macro:name=by_parity,by={{ target | int % 4 }}",
            "weighted:weight=points",
            {
                "type": "macro",
                "name": "mostly_b",
                "by": "of",
                "weights": {"a": 1, "b": 3},
                "of": "exact",
            },
        ],
    )
    assert values(result) == {
        "macro": (0.75, 10, 10),
        "by_parity": (0.6, 10, 10),
        "weighted": (39 / 45, 10, 10),
        "mostly_b": (0.875, 10, 10),
    }


def test_averages_have_a_standard_error_and_an_interval_everywhere(
    run: Run, calls: Calls, tmp_path: Path
) -> None:
    calls.answers.update(WRONG)
    result = run(
        ROWS_OF,
        group_by="of",
        metrics=["macro", "weighted:weight=points"],
        thresholds=["metric_low(macro) >= 0.5", "metric(macro) >= 0.5"],
    )
    macro = result.summary.groups[0].metrics["macro"]
    # Eight results with the standard deviation sqrt(2/7), and two without a spread.
    assert macro.se == pytest.approx(0.5 * (2 / 7 / 8) ** 0.5)
    assert (
        macro.low is not None
        and macro.high is not None
        and 0 < macro.low < 0.5 < 0.75 < macro.high <= 1
    )
    assert [each.status.value for each in result.thresholds] == ["missed", "met"]
    assert result.thresholds[0].value == macro.low
    cells = f"macro     10 of 10    0.75   0.094  {macro.low:.4g} to {macro.high:.4g}"
    assert " ".join(cells.split()) in " ".join(str(result.summary).split())
    assert open_batch(result.folder).summarise().groups[0].metrics["macro"] == macro
    batch, (group,) = open_batch(result.folder), result.summary.groups
    assert batch.metrics_of(batch.cells[0]) == group.metrics
    for kind, text in (
        ("markdown", f"macro | 10 of 10 | 0.75 | 0.094 | {macro.low:.4g} to {macro.high:.4g}"),
        ("junit", '<property name="metric.macro" value="0.75 (10 of 10)"/>'),
    ):
        export(
            batch.results(),
            batch.manifest,
            kind,
            tmp_path / kind,
            total=batch.totals,
            summary=batch.summarise(),
        )
        assert text in (tmp_path / kind).read_text()
    SCHEMA.assertValid(etree.parse(tmp_path / "junit"))


def test_epochs_and_clusters_are_not_taken_as_independent(run: Run, calls: Calls) -> None:
    calls.answers.update(WRONG)
    metrics = ["macro:by=of", "weighted:weight=points"]
    once = run(ROWS_OF, metrics=metrics).summary.groups[0].metrics
    thrice = run(ROWS_OF, metrics=metrics, epochs=3, resume=True).summary.groups[0].metrics
    assert [value.n for value in thrice.values()] == [30, 30]
    assert [each.se for each in thrice.values()] == [
        pytest.approx(each.se) for each in once.values()
    ]
    rows = [{**row, "text": n // 2} for n, row in enumerate(ROWS_OF)]
    clustered = run(
        rows, metrics=metrics, cluster="text", epochs=1, resume=True, on_changed="run"
    ).summary
    assert clustered.groups[0].metrics["weighted"].se != pytest.approx(once["weighted"].se)
    crossing = [{**row, "text": n % 2} for n, row in enumerate(ROWS_OF)]
    macro = (
        run(crossing, metrics=metrics, cluster="text", epochs=1, resume=True)
        .summary.groups[0]
        .metrics["macro"]
    )
    assert (macro.value, macro.se, macro.low) == (0.75, None, None)


def test_all_averages_read_the_results_once_and_each_function_once_more(run: Run) -> None:
    reads = 0
    batch = open_batch(run(ROWS_OF).folder)

    def read() -> Iterator[SampleResult]:
        nonlocal reads
        reads += 1
        return batch.results()

    metrics = make_metrics(
        ["macro:by=of", "macro:name=more,by=target", "weighted:weight=points", two]
    )
    assert len(compute_metrics(metrics, read, 10)) == 5 and reads == 2
    assert (
        compute_metrics(metrics[:3], read, 10).keys() == {"macro", "more", "weighted"}
        and reads == 3
    )


def test_errors_are_counted_and_a_group_without_a_value_is_not_left_out(
    run: Run, calls: Calls
) -> None:
    def fail(prompt: str) -> str:
        raise RuntimeError("down")

    calls.otherwise = lambda prompt: (
        fail(prompt) if prompt.split()[6] in "89" else str(2 * int(prompt.split()[6]))
    )
    result = run(
        ROWS_OF, metrics=["macro:by=of", "weighted:weight=points"], limits={"stop_after": 0}
    )
    (group,) = result.summary.groups
    assert (group.metrics["macro"].value, group.metrics["macro"].n, group.metrics["macro"].of) == (
        None,
        8,
        10,
    )
    assert group.metrics["macro"].error == "1 of 2 groups of of have no value: b"
    assert (group.metrics["weighted"].value, group.metrics["weighted"].n) == (1.0, 8)


def test_a_function_of_ones_own_is_in_summary_thresholds_and_report(
    run: Run, calls: Calls, tmp_path: Path
) -> None:
    calls.answers.update(WRONG)
    thresholds = ["metric(two.share) >= 0.5", "metric(two.length) <= 4"]
    result = run(ROWS_OF, metrics=[two], thresholds=thresholds)
    assert values(result) == {"two.share": (0.6, 10, 10), "two.length": (5.0, 9, 10)}
    assert [threshold.status.value for threshold in result.thresholds] == ["met", "missed"]
    assert (result.thresholds[1].n, result.thresholds[1].of) == (9, 10)
    assert "two.share   10 of 10    0.6" in str(result.summary)
    written = json.loads((result.folder / "summary.json").read_text())
    assert written["groups"][0]["metrics"]["two.length"] == {
        "value": 5.0,
        "n": 9,
        "of": 10,
        "error": "",
        "se": None,
        "low": None,
        "high": None,
    }


def test_a_folder_shows_stored_values_until_its_results_change_and_a_session_computes_them_again(
    run: Run, calls: Calls
) -> None:
    run(ROWS_OF[:4], metrics=[two, "macro:by=of"])
    shown = (
        open_batch(run(ROWS_OF[:4], metrics=[two, "macro:by=of"], resume=True).folder)
        .summarise()
        .groups[0]
        .metrics
    )
    assert (shown["two.share"].value, shown["macro"].value) == (1.0, 1.0)
    longer = run(ROWS_OF, metrics=[two, "macro:by=of"], resume=True)
    assert values(longer)["two.share"] == (1.0, 10, 10)
    with open(longer.folder / "results.jsonl", "ab") as file:
        file.write(b"")
    manifest = json.loads((longer.folder / "manifest.json").read_text())
    assert manifest["metric_values"]["bytes"] == (longer.folder / "results.jsonl").stat().st_size
    run(ROWS_OF, metrics=["macro:by=of"], resume=True)
    assert open_batch(longer.folder).summarise().groups[0].metrics.keys() == {"macro"}


def test_values_of_a_function_are_unknown_where_the_results_have_changed_since(run: Run) -> None:
    (stored,) = stored_metrics([{"type": "function", "name": "two", "values": ["a"]}], {})
    (value,) = stored.compute(()).values()
    assert value.value is None and "resume the batch" in value.error
    result = run(ROWS_OF, metrics=[two])
    with open(result.folder / "results.jsonl", "rb") as file:
        last = file.readlines()[-1]
    with open(result.folder / "results.jsonl", "ab") as file:
        file.write(last)
    assert open_batch(result.folder).summarise().groups[0].metrics["two.share"].value is None


@pytest.mark.parametrize(
    ("described", "stored"),
    [
        ([{}], {}),
        (["x"], {}),
        ([{"name": "own"}], {"own": {"valeu": 1}}),
        ([{"name": "own", "values": 1}], {}),
        (3, {}),
    ],
)
def test_a_manifest_that_somebody_has_changed_is_an_error_and_no_crash(
    described: Any, stored: Any
) -> None:
    with pytest.raises(RecordError, match="the metrics in the manifest cannot be read"):
        stored_metrics(described, stored)


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ("x", "expected a finite number or a MetricValue"),
        (float("nan"), "expected a finite number"),
        (None, "it returned no value"),
        (MetricValue(0.5, 11), "it returned n=11, expected 0 to 10"),
        (True, "expected a finite number"),
        (MetricValue(0.5, 1, low=float("nan")), "se, low or high is not a finite number"),
    ],
)
def test_what_is_not_a_number_is_an_error_of_the_metric(
    run: Run, returned: Any, error: str
) -> None:
    @metric
    def own(results: Any) -> Any:
        return returned

    result = run(ROWS_OF, metrics=[own], thresholds=["metric(own) >= 0"])
    assert error in result.summary.groups[0].metrics["own"].error
    assert result.thresholds[0].status.value == "incomplete" and result.is_complete


def test_an_exception_is_an_error_of_the_metric(run: Run) -> None:
    @metric(values=("a", "b"))
    def own(results: Any) -> Any:
        raise KeyError("x")

    found = run(ROWS_OF, metrics=[own]).summary.groups[0].metrics
    assert {name: one.error for name, one in found.items()} == {
        "own.a": "KeyError: 'x'",
        "own.b": "KeyError: 'x'",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["macro"]}, "metric 'macro' needs the field of its groups: by, or group_by"),
        (
            {"metrics": ["macro:by=off"]},
            "metric macro: no row has 'off' in its metadata; did you mean `of`",
        ),
        ({"metrics": ["macro:by={{ of + }}"]}, "metric macro:1:9: unexpected"),
        ({"metrics": ["weighted"]}, "weighted: weight is missing"),
        (
            {"metrics": ["macro:by=of,of=exat"]},
            "metric 'macro': the batch has no scorer 'exat'; did you mean `exact`",
        ),
        (
            {"metrics": ["macr:by=of"]},
            "there is no metric 'macr'; did you mean `macro`|there is no metric 'macr:by=of'",
        ),
        ({"metrics": ["macro:by=of,x=1"]}, "macro: x is unknown; expected one of"),
        ({"metrics": ["macro:by=of", "macro:by=of"]}, "two metrics are named 'macro'"),
        (
            {"metrics": [{"type": "macro", "by": "of", "weights": {"a": -1}}]},
            "weights has to have numbers of at least 0",
        ),
        (
            {"metrics": ["macro:by=of"], "thresholds": ["metric(macr) > 0"]},
            "has no metric 'macr'; did you mean `macro`",
        ),
        ({"thresholds": ["metric > 0"]}, r"name the metric; write metric\(NAME\)"),
    ],
)
def test_what_cannot_be_computed_is_refused_before_a_call(
    run: Run, calls: Calls, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(ROWS_OF, **options)
    assert calls == []


def test_a_file_has_a_metric_which_needs_a_permission_and_a_dry_run_does_not_import_it(
    tmp_path: Path,
) -> None:
    from evaluator.batch.permissions import read_with_claims
    from evaluator.batch.scorers.function_scorer import without_code

    (tmp_path / "own.py").write_text("raise RuntimeError('imported')")
    file = tmp_path / "batch.toml"
    file.write_text('template = "t"\nrows = "r.jsonl"\nmetrics = ["own.py:kappa"]\n')
    assert any(
        "own.py:kappa, which is run as a metric" in name
        for claim in read_with_claims(file, tmp_path)[1]
        for name in claim.names
    )
    with without_code():
        assert [each.name for each in make_metrics(["own.py:kappa"])] == ["kappa"]
