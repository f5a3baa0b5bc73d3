"""What batches do beside their provider batches: tools, judges, looks, skips, retries, budgets and scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluator import UsageError
from evaluator.batch import (
    batch_status,
    control_batch,
    score_batch_sync,
)
from tests.batch.wave_driver import TWO
from tests.batch.waves.wave_batch import ALL_FORMATS, Batch, answers, asks, cost, once
from tests.provider_jobs import DAY_S
from tests.provider_replies import last_prompt
from tests.provider_server import ProviderServer

TOOLS = """<library>
<task name="quiz" type="atomic"><description>Look and answer</description><instructions>{{ question }}</instructions>
<inputs><input name="question" type="string" required="true">it</input></inputs>
<tools><tool name="list_files"/></tools></task></library>"""
ITEMS = """<task name="quiz" type="map" concurrency="3"><description>Count</description>
<inputs><input name="texts" type="array" required="true">it</input></inputs><inner_task><task name="each" type="atomic">
<description>Inner</description><instructions>{{ current_input }}</instructions></task></inner_task></task>"""


@pytest.mark.parametrize("format", ALL_FORMATS)
def test_turns_after_tool_calls_and_judges_are_the_next_waves(
    server: ProviderServer, tmp_path: Path, format: str
) -> None:
    verdict = json.dumps({"reason": "right", "correct": True, "score": 1})
    server.answer = lambda prompt: verdict if "<reference>" in prompt else "files"
    batch = Batch(tmp_path / "b", server, format, template=TOOLS)
    result = batch.run(scorers=["reference"])
    assert result.is_complete and result.summary.counts.passed == 4
    assert batch.counts() == [{"answered": 4}] * 3
    samples = list(result.results())
    assert all(sample.usage.turns == 2 and sample.usage.tool_calls == 1 for sample in samples)
    spent = sum((each.usage.cost_usd or 0) + (each.scoring_usage.cost_usd or 0) for each in samples)
    assert spent == pytest.approx(server.billed, rel=1e-9) and server.interactive == []


def test_calls_that_run_beside_each_other_are_in_one_wave(
    server: ProviderServer, tmp_path: Path
) -> None:
    batch = Batch(tmp_path / "b", server, "openai", rows=1, template=ITEMS)
    (batch.folder / "rows.jsonl").write_text(
        json.dumps({"texts": ["a", "bb", "ccc", "dddd"]}) + "\n"
    )
    result = batch.run(scorers=())
    assert result.is_complete and cost(result) == pytest.approx(server.billed, rel=1e-9)
    assert [len(each.calls) for each in batch.log().submissions.values()] == [3, 1]


@pytest.mark.parametrize("wait", [True, False])
def test_a_batch_that_stops_early_asks_look_by_look(
    server: ProviderServer, tmp_path: Path, wait: bool
) -> None:
    batch = Batch(tmp_path / "b", server, "openai", rows=60)
    decide = {"detect": 0.3, "baseline": 0.5, "stop_early": True}
    result = batch.run(wait=wait, decide=decide)
    sessions = 1
    while result.ended.state == "waiting":
        server.now += 3600
        result = batch.run(wait=wait, decide=decide)
        sessions += 1
    decision = json.loads((tmp_path / "b" / "batch" / "manifest.json").read_text())["decision"]
    taken = decision["looks"]
    assert result.is_complete and taken[-1]["verdict"] == "shown" and len(taken) < 5
    assert len(answers(result)) == len(server.ledger) == taken[-1]["rows"]
    assert len(batch.counts()) == len(taken)
    assert sessions == (1 if wait else len(taken) + 1)


def test_errors_are_run_again_after_looks_were_taken(
    server: ProviderServer, tmp_path: Path
) -> None:
    batch = Batch(tmp_path / "b", server, "openai", rows=60)
    decide = {"detect": 0.3, "baseline": 0.5, "stop_early": True}
    server.fate = lambda custom_id, body: (
        "errored" if len(last_prompt(body)) % 4 == 0 else "succeeded"
    )
    first = batch.run(decide=decide).summary
    assert first.decision is not None and len(first.decision.looks) > 1
    assert first.counts.error and first.complete
    server.fate = lambda custom_id, body: "succeeded"
    sent = len(server.ledger)
    second = batch.run(decide=decide, retry_errors=True)
    assert second.is_complete and second.summary.decision == first.decision
    assert second.summary.counts.total == first.counts.total
    assert second.summary.counts.error == 0
    assert len(server.ledger) == sent + first.counts.error


def test_a_sample_that_waits_is_not_skipped(
    server: ProviderServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch(tmp_path / "b", server, "openai")
    folder = tmp_path / "b" / "batch"
    tick = server.tick
    sent: list[int] = []

    def tick_after_the_command(job: Any) -> None:
        if not sent:
            sent.append(control_batch(folder, "skip", ["r1"], wait_s=0).id)
        if all(command.is_final for command in batch_status(folder).commands):
            tick(job)

    monkeypatch.setattr(server, "tick", tick_after_the_command)
    assert batch.run().is_complete
    (command,) = batch_status(folder).commands
    assert command.state == "refused" and "1 is in flight" in command.message
    assert answers(batch.run())["r1"] == "2"


def test_a_sample_whose_provider_batch_is_over_is_run_again(
    server: ProviderServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires = once(server, "expired")
    server.fate = lambda custom_id, body: "errored" if asks(body, "x") else expires(custom_id, body)
    batch = Batch(tmp_path / "b", server, "openai", rows=2)
    folder = tmp_path / "b" / "batch"
    tick = server.tick
    sent: list[int] = []

    def tick_after_the_command(job: Any) -> None:
        # The second provider batch is that of the call that expired.
        if len(server.jobs) > 1 and not sent:
            server.fate = lambda custom_id, body: "succeeded"
            sent.append(control_batch(folder, "retry", [], wait_s=0).id)
        if all(command.state != "sent" for command in batch_status(folder).commands):
            tick(job)

    monkeypatch.setattr(server, "tick", tick_after_the_command)
    result = batch.run()
    (command,) = batch_status(folder).commands
    assert (command.state, command.message) == ("done", "1 sample was run again")
    assert answers(result) == {"r0": "1", "r1": "2"}


@pytest.mark.parametrize("takes_s", [0.0, DAY_S])
def test_a_paid_answer_is_not_skipped_in_a_later_session(
    server: ProviderServer, tmp_path: Path, takes_s: float
) -> None:
    server.fate = once(server, "expired")
    server.takes_s = takes_s
    batch = Batch(tmp_path / "b", server, "openai")
    folder = tmp_path / "b" / "batch"
    batch.run(wait=False)
    # xx is unanswered where the batch is over: it may be skipped then.
    control_batch(folder, "skip", ["r0", "r1"], wait_s=0)
    batch.run(wait=False)
    (command,) = batch_status(folder).commands
    if takes_s:
        assert (command.state, command.message[:17]) == ("refused", "2 are in flight: ")
    else:
        assert (command.state, command.message[:17]) == ("done", "1 is in flight: p")
    server.now += 2 * DAY_S
    server.fate = lambda custom_id, body: "succeeded"
    found = answers(batch.run())
    assert found == {"r0": "1", "r1": "2" if takes_s else "", "r2": "3", "r3": "4"}
    assert len(server.ledger) == (4 if takes_s else 3)


def test_rows_after_a_refusal_of_the_budget_are_part_of_the_batch(
    server: ProviderServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch(tmp_path / "b", server, "openai", rows=2)
    folder = tmp_path / "b" / "batch"
    rows = [{"id": f"r{n}", "question": "x" * size} for n, size in enumerate((1, 4000, 1, 1))]
    (batch.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # The second row alone passes the limit, which is raised while the first one waits.
    limits = {"max_cost": 0.00004, "concurrency": 1}
    tick = server.tick
    sent: list[int] = []

    def tick_after_the_command(job: Any) -> None:
        if not sent:
            sent.append(control_batch(folder, "set", ["max_cost=1"], wait_s=0).id)
        if all(command.is_final for command in batch_status(folder).commands):
            tick(job)

    monkeypatch.setattr(server, "tick", tick_after_the_command)
    result = batch.run(limits=limits, scorers=())
    assert result.is_complete and result.ended.total == 4 and len(answers(result)) == 4
    assert json.loads((folder / "manifest.json").read_text())["left_out"] == []


def test_scores_are_added_when_the_answers_are_collected(
    server: ProviderServer, tmp_path: Path
) -> None:
    batch = Batch(tmp_path / "b", server, "openai", rows=2)
    folder = tmp_path / "b" / "batch"
    batch.run(wait=False)
    server.now += DAY_S
    with pytest.raises(UsageError, match=f"evaluator batch --resume {folder}"):
        score_batch_sync(folder, ["includes"], display="none")
    assert batch.run(wait=False).is_complete
    scored = score_batch_sync(folder, ["includes"], display="none")
    assert scored.is_complete and scored.ended.ran == 2


def test_collected_answers_are_in_the_cache(server: ProviderServer, tmp_path: Path) -> None:
    first = Batch(tmp_path / "a", server, "openai", template=TWO).run(cache="../cache.sqlite3")
    paid = server.billed
    second = Batch(tmp_path / "b", server, "openai", template=TWO).run(cache="../cache.sqlite3")
    assert answers(second) == answers(first)
    assert server.billed == paid and [each.cached_calls for each in second.results()] == [2] * 4


def test_a_request_with_a_secret_is_in_no_file(server: ProviderServer, tmp_path: Path) -> None:
    secret = "sk-" + "ant-api03-" + "a1B2" * 6
    batch = Batch(tmp_path / "b", server, "openai", rows=1)
    rows = [{"question": secret}, {"question": "plain"}]
    (batch.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = batch.run(scorers=(), wait=False, keep_provider_files=True)
    assert result.ended.state == "waiting" and len(server.interactive) == 1
    files = [path for path in (batch.folder / "batch").rglob("*") if path.is_file()]
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    assert not [file for file in server.files.values() if secret.encode() in file["data"]]
    server.now += DAY_S
    assert batch.run(scorers=(), keep_provider_files=True).is_complete and len(server.files) == 2


def test_variants_with_equal_settings_are_not_mixed_up(
    server: ProviderServer, tmp_path: Path
) -> None:
    batch = Batch(tmp_path / "b", server, "openai", rows=3)
    profile = (batch.folder / "handlers" / "p.xml").read_text()
    copies = batch.folder / "handlers"
    (copies / "copy.xml").write_text(profile.replace('name="p"', 'name="copy"'))
    (copies / "other.xml").write_text(
        profile.replace('name="p"', 'name="other"').replace('"50"', '"51"')
    )
    result = batch.run(handlers=["p", "copy", "other"])
    found = {(each.sample_id, each.variant) for each in result.results()}
    assert result.is_complete and len(found) == 9
    assert len(server.ledger) == 9 and not server.twice
    assert cost(result) == pytest.approx(server.billed, rel=1e-9)
