"""`evaluator batch --provider-batch` on the command line: what it submits, says, collects and cancels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluator.batch import waves
from tests.batch.wave_driver import write_project
from tests.cli.conftest import Run
from tests.provider_jobs import DAY_S
from tests.provider_server import ProviderServer

COMMAND = (
    "batch",
    "--library",
    "quiz.xml",
    "--template",
    "quiz",
    "--rows",
    "rows.jsonl",
    "--scorer",
    "exact",
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProviderServer]:
    monkeypatch.setattr(waves, "POLL_S", 0.001)
    with ProviderServer() as server:
        yield server


@pytest.fixture
def project(server: ProviderServer, tmp_path: Path) -> Path:
    write_project(tmp_path / "p", server.url, "openai", rows=4)
    return tmp_path / "p"


def test_a_batch_is_submitted_shown_and_collected(
    cli: Run, project: Path, server: ProviderServer
) -> None:
    submitted = cli(
        *COMMAND, "--handler", "p", "--output", "b", "--provider-batch", "--trust", cwd=project
    )
    assert submitted.code == 6
    assert "submitted 4 calls of openai/gpt-4o-mini as batch_2, at most $0.000" in submitted.err
    assert "waiting: 4 calls wait in 1 provider batch, at the latest until 20" in submitted.err
    assert "resume with: evaluator batch --resume b" in submitted.err
    status = cli("batch", "status", "b", cwd=project)
    assert (
        "provider batch 1, batch_2 (openai/gpt-4o-mini): created, 4 calls, at most $" in status.out
    )
    tiny = ("--max-cost", "0.000001")
    again = (*COMMAND, "--handler", "p", "--dry-run", "--trust", *tiny)
    assert cli(*again, "--output", "c", "--provider-batch", cwd=project).code == 5
    planned = cli("batch", "--resume", "b", "--dry-run", "--trust", *tiny, "--json", cwd=project)
    plan = json.loads(planned.out)
    assert (planned.code, plan["refused"]) == (0, [])
    submitted_usd = json.loads(cli("batch", "status", "b", "--json", cwd=project).out)[
        "provider_batches"
    ][0]["max_cost_usd"]
    assert (
        plan["total"]["most"]["cost_usd"] == pytest.approx(submitted_usd)
        and submitted_usd > 0.000001
    )
    server.now += DAY_S
    collected = cli("batch", "--resume", "b", "--trust", *tiny, cwd=project)
    assert collected.code == 0
    found = json.loads(cli("batch", "status", "b", "--json", cwd=project).out)["provider_batches"]
    assert [(each["state"], each["counts"]) for each in found] == [("deleted", {"answered": 4})]
    assert found[0]["cost_usd"] == pytest.approx(server.billed)


def test_a_cancelled_batch_keeps_the_answers_that_were_paid(
    cli: Run, project: Path, server: ProviderServer
) -> None:
    server.takes_s = DAY_S
    options = ("--handler", "p", "--output", "b", "--provider-batch", "--trust")
    assert cli(*COMMAND, *options, cwd=project).code == 6
    cancelled = cli("batch", "cancel", "b", "--trust", cwd=project)
    assert cancelled.code == 5
    assert "of 4 calls 2 answered, 2 unanswered" in cancelled.err
    assert "incomplete: its provider batches were cancelled; the calls without" in cancelled.err
    status = json.loads(cli("batch", "status", "b", "--json", cwd=project).out)
    assert (status["state"], status["done"], len(server.ledger)) == ("incomplete", 2, 2)
    assert server.operations.count("create") == 1
    server.takes_s = 0.0
    assert cli("batch", "--resume", "b", "--wait", "--trust", cwd=project).code == 0
    assert server.twice == [] and len(server.ledger) == 4 and server.interactive == []


def test_a_model_without_a_batch_api_is_refused(cli: Run, project: Path) -> None:
    refused = cli(
        *COMMAND, "--model", "simulated/default", "--provider-batch", "--trust", cwd=project
    )
    assert refused.code == 2 and "has no batch API" in refused.err
