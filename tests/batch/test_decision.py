"""A batch that has to decide: it plans its rows, looks at them, stops, and says so everywhere."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from zipfile import ZipFile

import pytest

from evaluator import Evaluator, ProviderError, RecordError, TemplateLibrary, UsageError, run_batch
from evaluator.batch import Decision, Design, LookResult, Stop, batch_status, open_batch
from evaluator.batch.compare import compare
from evaluator.batch.export import export
from evaluator.viewer import ReportBatch, write_report
from tests.batch.conftest import QUIZ, Calls, Run, Scripted
from tests.conftest import MakeEvaluator


def rows_of(count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"r{n}", "question": f"What is {n} + {n}?", "target": str(2 * n)}
        for n in range(count)
    ]


def right_for(share: float, salt: int = 0) -> Any:
    """Answers that are right for this share of the numbers, the same ones every time."""

    def answer(prompt: str) -> str:
        number = int(prompt.split()[-1].rstrip("?"))
        is_right = (number * 7919 + salt) % 100 < 100 * share
        return str(2 * number) if is_right else "wrong"

    return answer


EARLY = {"detect": 0.2, "stop_early": True}


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A batch of 100 rows of which 60 % pass. Tests only read it."""
    folder = tmp_path_factory.mktemp("baseline")
    (folder / "t.xml").write_text(f"<library>{QUIZ}</library>")
    calls = Calls()
    calls.otherwise = right_for(0.6)
    library = TemplateLibrary.load(folder, shipped=False)
    evaluator = Evaluator(library, backend=Scripted(script=calls), tasks_dir=None)
    output = folder / "before"
    asyncio.run(
        run_batch("quiz", rows_of(100), evaluator=evaluator, scorers=["exact"], output=output)
    )
    return output


def test_a_batch_stops_early_and_says_so_in_every_output(
    run: Run, calls: Calls, baseline: Path, tmp_path: Path
) -> None:
    calls.otherwise = right_for(0.95)
    found = run(rows_of(100), decide={"detect": 0.2, "baseline": baseline, "stop_early": True})
    decision = found.summary.decision
    assert decision is not None and decision.last is not None and found.ok
    design = decision.design
    assert design.looks == 5 and decision.last.number < 5 and decision.last.verdict == "shown"
    assert found.summary.counts.total == decision.last.rows == len(calls) < design.rows <= 100
    said = f"stopped at look {decision.last.number} of 5: a difference is shown"
    assert decision.status == said == found.ended.reason
    assert decision.last.low is not None and 0 < decision.last.low < 0.35 < decision.last.high  # type: ignore[operator]
    assert said in str(found) and said in found.summary.to_markdown()
    stored = json.loads((found.folder / "summary.json").read_text())
    assert stored["decision"]["looks"][-1]["verdict"] == "shown" and stored["complete"]
    assert stored["decision"]["status"] == said and stored["decision"]["ahead"] == []
    assert batch_status(found.folder).reason == said
    assert batch_status(found.folder).state == "complete"
    export_all(found.folder, "junit", tmp_path / "out.xml")
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()[0]
    properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert properties["decision"] == said and suite.get("errors") == "0"
    export_all(found.folder, "inspect", tmp_path / "out.eval")
    with ZipFile(tmp_path / "out.eval") as log:
        header = json.loads(log.read("header.json"))
    assert header["results"]["metadata"]["decision"]["status"] == said
    export_all(found.folder, "markdown", tmp_path / "out.md")
    assert said in (tmp_path / "out.md").read_text()
    stopped = open_batch(found.folder)
    write_report(tmp_path / "out.html", [ReportBatch(stopped.results(), stopped.manifest)])
    assert said in (tmp_path / "out.html").read_text()
    compared = compare(open_batch(baseline).results(), stopped.results())
    assert any(f"side b {said}" in warning for warning in compared.warnings)


def test_the_looks_ahead_have_the_boundaries_that_they_will_have(
    run: Run, calls: Calls, baseline: Path
) -> None:
    calls.otherwise = right_for(0.82)
    decision = run(rows_of(100), decide={**EARLY, "baseline": baseline}).summary.decision
    assert decision is not None and len(decision.looks) > 1
    before = replace(decision, looks=decision.looks[:1]).shown()
    assert before["status"] == "look 1 of 5 taken: not decided yet"
    assert [look["number"] for look in before["ahead"]] == [2, 3, 4, 5]
    second = decision.looks[1]
    assert before["ahead"][0]["rows"] == second.rows
    assert before["ahead"][0]["efficacy"] == pytest.approx(second.efficacy)
    assert before["ahead"][0]["futility"] == pytest.approx(second.futility)
    race = Decision(Design("race", 5, rows=20, epochs=1, variants=3)).shown()
    assert [look["efficacy"] for look in race["ahead"]] == [None] * 5
    assert race["ahead"][-1]["rows"] == 20


def test_a_batch_decides_by_the_values_of_a_score(run: Run, calls: Calls, tmp_path: Path) -> None:
    def answer(prompt: str) -> str:
        number = int(prompt.split()[-1].rstrip("?"))
        return " ".join([str(2 * number), *["or"] * (number % 4)])

    # Every answer fails `exact`; its F1 is 2 / (2 + n) with n words too many.
    calls.otherwise = answer
    decide = {
        "detect": 0.2,
        "measure": "f1",
        "baseline": 0.3,
        "stop_early": True,
    }
    scorers = ["exact", "f1"]
    found = run(rows_of(100), scorers=scorers, decide=decide)
    decision = found.summary.decision
    assert decision is not None and decision.last is not None
    assert decision.last.verdict == "shown" and decision.last.number < 5
    assert decision.design.measure == "f1"
    entries = {row.sample_id: row.scores["f1"].value or 0.0 for row in found.results()}
    mean = sum(entries.values()) / len(entries)
    assert decision.last.difference == pytest.approx(mean - 0.3)
    first, look, *_ = decision.lines()
    assert first.startswith("to show a difference of 0.2 in the mean of f1 to 0.3")
    assert f"{mean - 0.3:+.3g}, |z|" in look and "points" not in look
    # The values of an earlier batch are paired with those of the next one.
    calls.otherwise = lambda prompt: answer(prompt) + " hm"
    decide = {"detect": 0.1, "measure": "f1", "baseline": found.folder, "like": found.folder}
    with pytest.raises(UsageError, match="the values of f1 do not vary"):
        run(rows_of(100), scorers=scorers, decide=decide, output=tmp_path / "same")
    del decide["like"]
    after = run(rows_of(100), scorers=scorers, decide=decide, output=tmp_path / "after")
    assert after.summary.decision is not None and after.summary.decision.last is not None
    pairs = [(row.scores["f1"].value or 0.0) - entries[row.sample_id] for row in after.results()]
    assert after.summary.decision.last.verdict == "shown"
    assert after.summary.decision.last.difference == pytest.approx(sum(pairs) / len(pairs))


def test_a_race_by_the_values_of_a_score(make_evaluator: MakeEvaluator, tmp_path: Path) -> None:
    words = {"short": 0, "long": 20}
    templates = (QUIZ.replace('name="quiz"', f'name="{name}"') for name in words)
    texts = "".join(
        text.replace("Answer in", f"{name}: answer in")
        for name, text in zip(words, templates, strict=True)
    )

    def answer(request: Any) -> str:
        prompt = request.messages[-1].content
        number = int(prompt.split()[-1].rstrip("?"))
        return " ".join([str(2 * number), "or", *["so"] * words[prompt.partition(":")[0]]])

    # No answer is exact, so whether results passed would drop none.
    batch = run_batch(
        list(words),
        rows_of(60),
        evaluator=make_evaluator(texts, backend=Scripted(script=answer)),
        scorers=["exact", "f1"],
        output=tmp_path / "race",
        decide={"race": True, "measure": "f1"},
    )
    decision = asyncio.run(batch).summary.decision
    assert decision is not None and decision.last is not None
    (dropped,) = decision.last.dropped
    assert dropped.name.startswith("long") and dropped.difference < 0
    assert "by the mean of f1" in next(decision.lines())
    assert "points" not in " ".join(decision.lines())


@pytest.mark.parametrize(
    ("decide", "why"),
    [
        ({"measure": "f1"}, "measure is the score that detect or race compares"),
        ({"detect": 0.1, "baseline": 0.5, "measure": "f2"}, "no score 'f2'; the scores are"),
        ({"detect": 1, "baseline": 3, "measure": "f1"}, "give like"),
        ({"detect": 2, "baseline": 0.5}, "expected a difference of shares"),
    ],
)
def test_a_measure_that_cannot_be_compared_is_refused(
    run: Run, calls: Calls, decide: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        run(rows_of(10), scorers=["exact", "f1"], decide=decide)
    assert not calls


def export_all(folder: Path, kind: str, path: Path) -> None:
    batch = open_batch(folder)
    export(batch.results(), batch.manifest, kind, path, total=batch.totals)


def test_the_order_of_results_a_stop_and_a_resume_do_not_change_the_decision(
    run: Run, calls: Calls, baseline: Path, tmp_path: Path
) -> None:
    calls.otherwise = right_for(0.82)
    options = {"decide": {**EARLY, "baseline": baseline}}
    whole = run(rows_of(100), output=tmp_path / "whole", **options)
    asked = len(calls)
    calls.clear()
    one = {**options, "output": tmp_path / "one", "limits": {"concurrency": 1}}
    for first, resume in ((7, False), (60, True), (1_000, True)):
        stop = Stop()
        found = run(rows_of(100), display=StopAfter(stop, first), stop=stop, resume=resume, **one)
        manifest = open_batch(tmp_path / "one").manifest
        assert manifest["decision"]["design"] == whole.summary.decision.to_dict()["design"]  # type: ignore[union-attr]
    assert found.summary.decision == whole.summary.decision and found.ok
    assert len(calls) == asked
    again = run(rows_of(100), resume=True, **one)
    assert again.summary.decision == whole.summary.decision and len(calls) == asked


def test_results_of_later_looks_stay_if_a_session_stops_before_them(
    run: Run, calls: Calls, baseline: Path, tmp_path: Path
) -> None:
    same = right_for(0.6)
    calls.otherwise = lambda prompt: (
        ProviderError("no", kind="bad_request")
        if int(prompt.split()[-1].rstrip("?")) % 3 == 0
        else same(prompt)
    )
    one: dict[str, Any] = {"decide": {**EARLY, "baseline": baseline}, "count_as_failed": "none"}
    one |= {"output": tmp_path / "one", "limits": {"concurrency": 1}}
    whole = run(rows_of(100), **one)
    calls.otherwise = same
    stop = Stop()
    again = {**one, "resume": True, "retry_errors": True}
    found = run(rows_of(100), display=StopAfter(stop, 1), stop=stop, **again)
    before, after = (each.summary.counts for each in (whole, found))
    assert after.results == before.results == after.total
    assert 0 < after.error < before.error
    assert run(rows_of(100), **again).summary.counts.error == 0


class StopAfter:
    """A display that ends the session after so many results."""

    def __init__(self, stop: Stop, results: int) -> None:
        self._stop = stop
        self._left = results

    def result(self, result: Any) -> None:
        self._left -= 1
        if self._left == 0:
            self._stop.ask()

    def start(self, name: str, snapshot: Any) -> None: ...
    def progress(self, snapshot: Any) -> None: ...
    def notice(self, line: str) -> None: ...
    def end(self, snapshot: Any, state: str) -> None: ...


def test_a_difference_that_is_not_there_is_futile(run: Run, calls: Calls, baseline: Path) -> None:
    calls.otherwise = right_for(0.6, salt=29)
    found = run(rows_of(100), decide={**EARLY, "baseline": baseline})
    last = found.summary.decision.last  # type: ignore[union-attr]
    assert last is not None and last.verdict == "futile" and last.number < 5
    assert last.p is not None and last.p > 0.05 and found.ok
    assert last.low < 0 < last.high  # type: ignore[operator]


def test_errors_make_no_pair_and_are_not_zero(run: Run, calls: Calls, baseline: Path) -> None:
    """A third of the answers are errors. The others pass as in the baseline: nothing is shown."""
    same = right_for(0.6)
    calls.otherwise = lambda prompt: (
        ProviderError("no", kind="bad_request")
        if int(prompt.split()[-1].rstrip("?")) % 3 == 0
        else same(prompt)
    )
    found = run(rows_of(100), decide={**EARLY, "baseline": baseline}, count_as_failed="none")
    decision = found.summary.decision
    assert decision is not None and decision.last is not None
    assert decision.last.difference == 0 and found.summary.counts.error > 5
    assert decision.last.verdict == "futile"
    assert decision.last.pairs == decision.last.rows - found.summary.counts.error
    assert decision.last.time == decision.last.pairs / decision.design.rows


def test_rows_of_a_sorted_file_are_spread_over_the_looks_and_clusters_stay_together(
    run: Run, calls: Calls, tmp_path: Path
) -> None:
    rows = [{**row, "topic": f"t{n // 4}"} for n, row in enumerate(rows_of(120))]
    calls.otherwise = right_for(0.9)
    found = run(rows, decide={"detect": 0.3, "baseline": 0.5, "stop_early": True}, cluster="topic")
    evaluated = [int(result.sample_id[1:]) for result in found.results()]
    topics = {number // 4 for number in evaluated}
    assert len(evaluated) == 4 * len(topics) < 120
    assert min(evaluated) < 40 and max(evaluated) > 80
    assert found.summary.decision.last.verdict == "shown"  # type: ignore[union-attr]


def test_without_stopping_the_batch_takes_the_rows_that_are_needed(
    run: Run, calls: Calls, baseline: Path
) -> None:
    calls.otherwise = right_for(0.95)
    found = run(rows_of(100), decide={"detect": 0.2, "baseline": baseline})
    decision = found.summary.decision
    assert decision is not None and decision.last is not None
    assert decision.design.rows == len(calls) == found.summary.samples < 100
    assert decision.status == "after all rows: a difference is shown"
    assert decision.design.epochs == 1
    assert "which is a guess" in decision.design.notes[0]


def test_too_few_rows_are_made_up_for_by_epochs_or_named(
    run: Run, calls: Calls, tmp_path: Path
) -> None:
    """Answers of the earlier batch change from epoch to epoch: more epochs help, to a point."""
    turn = iter(range(10_000))
    calls.otherwise = lambda prompt: right_for(1 if next(turn) % 2 else 0)(prompt)
    limits = {"concurrency": 1}
    run(rows_of(24), output=tmp_path / "noisy", epochs=4, limits=limits)
    run(rows_of(24), output=tmp_path / "other", epochs=4, limits=limits)
    calls.otherwise = right_for(1)
    decide = {"detect": 0.3, "baseline": tmp_path / "noisy", "like": tmp_path / "other"}
    found = run(rows_of(20), decide=decide)
    design = found.summary.decision.design  # type: ignore[union-attr]
    assert design.epochs > 1 and design.rows <= 20 and design.effect == 0.3
    assert found.summary.epochs == design.epochs
    named = run(rows_of(20), output=tmp_path / "few", decide={"detect": 0.05, "baseline": 0.5})
    design = named.summary.decision.design  # type: ignore[union-attr]
    assert design.rows == 20 and design.effect > 0.25
    assert "rows are needed, and 20 can be compared" in design.notes[-1]


def test_the_interval_of_the_anytime_mode_is_given_at_every_look(
    run: Run, calls: Calls, baseline: Path
) -> None:
    calls.otherwise = right_for(0.75)
    decide = {**EARLY, "anytime": True, "baseline": baseline}
    found = run(rows_of(100), decide=decide)
    decision = found.summary.decision
    assert decision is not None and decision.design.looks == 20
    looks = [look for look in decision.looks if look.pairs >= 30]
    assert looks and all(look.low is not None and look.p is not None for look in looks)
    assert any("more than with one look" in line for line in decision.design.lines())


def test_a_race_drops_the_hopeless_variants_while_all_see_the_same_rows(
    make_evaluator: MakeEvaluator, tmp_path: Path
) -> None:
    shares = {"good": 0.95, "close": 0.93, "bad": 0.3}
    templates = {
        name: QUIZ.replace('name="quiz"', f'name="{name}"').replace(
            "Answer in", f"{name}: answer in"
        )
        for name in shares
    }

    def answer(request: Any) -> str:
        prompt = request.messages[-1].content
        return right_for(shares[prompt.partition(":")[0]])(prompt)

    evaluator = make_evaluator("".join(templates.values()), backend=Scripted(script=answer))
    found = asyncio.run(
        run_batch(
            list(shares),
            rows_of(100),
            evaluator=evaluator,
            scorers=["exact"],
            output=tmp_path / "race",
            decide={"race": True},
        )
    )
    decision = found.summary.decision
    assert decision is not None and found.ok
    (dropped,) = [each for look in decision.looks for each in look.dropped]
    assert dropped.name.startswith("bad × ") and dropped.by.startswith("good × ")
    of_look = next(look.rows for look in decision.looks if look.dropped)
    totals = {group.template: group.part.counts.total for group in found.summary.groups}
    assert totals == {"good": 100, "close": 100, "bad": of_look} and of_look < 100
    ids = {
        name: {result.sample_id for result in found.results() if result.template == name}
        for name in shares
    }
    assert ids["bad"] < ids["good"] == ids["close"]
    assert decision.status == "ended at look 5 of 5: several variants are left"
    assert "bad" in str(found) and "is dropped" in str(found)


@pytest.mark.parametrize(("rows", "options"), [(3, {}), (20, {"cluster": "{{ 1 }}"})])
def test_a_race_ends_if_looks_have_no_further_rows(
    run: Run, calls: Calls, rows: int, options: dict[str, Any]
) -> None:
    calls.otherwise = right_for(0.9)
    found = run(rows_of(rows), models=["simulated", "scripted"], decide={"race": True}, **options)
    decision = found.summary.decision
    assert decision is not None and found.summary.counts.total == 2 * rows
    assert decision.status == "ended at look 5 of 5: several variants are left"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decide": {"detect": 0.1}}, "detect needs a baseline"),
        ({"decide": {"baseline": 0.5}}, "need detect"),
        ({"decide": {"detect": 5, "baseline": 0.5}}, "detect is 5"),
        ({"decide": {"detect": 0.1, "baseline": 1.5}}, "baseline is 1.5"),
        ({"decide": {"detect": 0.1, "baseline": 0.5, "power": 0.2}}, "power is 0.2"),
        ({"decide": {"detect": 0.1, "baseline": 0.5, "anytime": True}}, "way of stop_early"),
        ({"decide": {"race": True, "detect": 0.1}}, "race compares"),
        ({"decide": {"race": True}}, "race needs several variants"),
        (
            {"decide": {"detect": 0.1, "baseline": 0.5}, "models": ["simulated", "scripted"]},
            "detect compares one template with one model",
        ),
        ({"decide": {"detect": 0.1, "baseline": 0.5}, "select": {"shard": "1/2"}}, "a shard"),
        ({"decide": {**EARLY, "baseline": 0.5}, "select": {"limit": 3}}, "5 looks need"),
        ({"decide": {"detect": 0.1, "baseline": 0.5}, "rows": iter(rows_of(9))}, "several times"),
    ],
)
def test_a_decision_that_cannot_be_made_is_refused(
    run: Run, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(options.pop("rows", rows_of(20)), **options)


@pytest.mark.parametrize(
    "damage",
    [3, {"design": 4}, {"design": {"looks": 10**9}}, {"looks": [{"verdict": "x"}]}, {"more": 1}],
)
def test_a_damaged_decision_is_an_error_that_says_so(damage: Any) -> None:
    design = Design("group", 5, rows=100, epochs=1, variants=1)
    good = Decision(design, (LookResult(1, 20, pairs=20, time=0.2, verdict="continue"),)).to_dict()
    assert Decision.of({"decision": json.loads(json.dumps(good))}) is not None
    if isinstance(damage, dict):
        damage = {
            name: {**good[name], **value} if isinstance(value, dict) else value
            for name, value in damage.items()
        } | {name: value for name, value in good.items() if name not in damage}
    with pytest.raises(RecordError):
        Decision.of({"decision": damage})


def test_a_batch_keeps_its_design(run: Run, calls: Calls, baseline: Path, tmp_path: Path) -> None:
    """Neither another difference, nor other rows, nor a design for a batch that has none."""
    decide = {**EARLY, "baseline": baseline}
    stop = Stop()
    run(rows_of(100), decide=decide, stop=stop, display=StopAfter(stop, 3))
    for changed, rows, message in (
        ({**decide, "detect": 0.1}, 100, "another decision"),
        ({}, 100, "designed before the first call"),
        (decide, 40, "rows of the batch have changed"),
    ):
        with pytest.raises(UsageError, match=message):
            run(rows_of(rows), decide=changed, resume=True)
    with pytest.raises(UsageError, match="designed before the first call"):
        run(rows_of(100), decide=decide, resume=True, output=baseline)
    with pytest.raises(UsageError, match="no row of the batch is in the baseline"):
        run(
            [{**row, "id": f"x{row['id']}"} for row in rows_of(9)],
            decide=decide,
            output=tmp_path / "x",
        )
