"""Batches with provider batches: each state of a provider batch is read, and each dollar is counted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, TaskError, UsageError, clock
from evaluator.batch import NoDisplay
from tests.batch.wave_driver import TWO
from tests.batch.waves.wave_batch import ALL_FORMATS, FORMATS, Batch, answers, asks, cost, once
from tests.provider_jobs import DAY_S
from tests.provider_server import Fault, ProviderServer


@pytest.mark.parametrize("format", ALL_FORMATS)
def test_a_provider_batch_has_the_results_of_an_interactive_one_at_half_price(
    server: ProviderServer, tmp_path: Path, format: str
) -> None:
    usual = Batch(tmp_path / "usual", server, "openai", template=TWO).run(
        provider_batch=False, wait=False
    )
    server.interactive.clear()
    batch = Batch(tmp_path / "half", server, format, template=TWO)
    half = batch.run()
    assert half.is_complete and answers(half) == answers(usual)
    assert server.interactive == [] and len(server.ledger) == 8 and server.twice == []
    assert cost(half) == pytest.approx(server.billed, rel=1e-9)
    if format == "openai":
        assert cost(half) == pytest.approx((cost(usual) or 0.0) / 2, rel=1e-9)
    assert batch.counts() == [{"answered": 4}, {"answered": 4}]
    assert not [file for file in server.files.values() if file["purpose"] == "batch"]
    assert not (format in ("anthropic", "gemini") and server.jobs)


@pytest.mark.parametrize("format", FORMATS)
def test_a_session_that_does_not_wait_ends_and_later_ones_collect(
    server: ProviderServer, tmp_path: Path, format: str
) -> None:
    batch = Batch(tmp_path / "b", server, format, template=TWO)
    states: list[str] = []
    for _ in range(4):
        states.append(batch.run(wait=False).ended.state)
        server.now += 3600
    assert states == ["waiting", "waiting", "complete", "complete"]
    assert server.operations.count("create") == 2


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("fate", "first", "calls", "is_known"),
    [
        ("expired", "unanswered", 5, True),
        ("failed", "failed", 5, True),
        ("missing", "missing", 5, False),
        ("double", "answered", 4, True),
        ("foreign", "answered", 4, True),
    ],
)
def test_a_call_without_an_answer_goes_into_one_further_batch(
    server: ProviderServer,
    tmp_path: Path,
    format: str,
    fate: str,
    first: str,
    calls: int,
    is_known: bool,
) -> None:
    server.fate = once(server, fate)
    batch = Batch(tmp_path / "b", server, format)
    result = batch.run()
    assert result.is_complete and answers(result) == {"r0": "1", "r1": "2", "r2": "3", "r3": "4"}
    counts = batch.counts()
    if fate in ("double", "foreign"):
        assert counts == [{"answered": 4, fate: 1}]
    else:
        assert counts == [{"answered": 3, first: 1}, {"answered": 1}]
    assert sum(map(len, server.ledger.values())) == calls - (fate in ("expired", "failed"))
    if is_known:
        assert cost(result) == pytest.approx(server.billed, rel=1e-9)
    else:
        assert cost(result) is None


# They have no word for a request that a batch did not answer in time.
@pytest.mark.parametrize("format", ["gemini", "mistral"])
@pytest.mark.parametrize(("fate", "cause"), [("expired", "failed"), ("errored", "refused")])
def test_gemini_and_mistral_name_what_was_not_answered(
    server: ProviderServer, tmp_path: Path, format: str, fate: str, cause: str
) -> None:
    server.fate = once(server, fate)
    server.faults = [Fault("create", "after"), Fault("upload", "after")]
    batch = Batch(tmp_path / "b", server, format, rows=3)
    result = batch.run()
    counts = [{"answered": 2, cause: 1}, {"answered": 1}]
    assert batch.counts() == counts[: 2 if fate == "expired" else 1]
    assert result.is_complete and cost(result) == pytest.approx(server.billed, rel=1e-9)
    assert server.twice == [] and server.operations.count("create") == len(batch.counts())


@pytest.mark.parametrize("format", ["gemini", "mistral"])
def test_gemini_and_mistral_refuse_a_whole_batch(
    server: ProviderServer, tmp_path: Path, format: str
) -> None:
    server.invalid = "invalid_json_line"
    result = Batch(tmp_path / "b", server, format, rows=1).run()
    [failure] = [sample.failure for sample in result.results()]
    assert failure is not None and "invalid_json_line" in failure.message
    assert server.billed == 0 and cost(result) == 0


@pytest.mark.parametrize("format", FORMATS)
def test_an_invalid_request_and_a_second_failure_are_errors(
    server: ProviderServer, tmp_path: Path, format: str
) -> None:
    server.fate = lambda custom_id, body: (
        "errored" if asks(body, "x") else "expired" if asks(body, "xx") else "succeeded"
    )
    batch = Batch(tmp_path / "b", server, format, rows=3)
    result = batch.run()
    failures = {s.sample_id: s.failure.kind for s in result.results() if s.failure is not None}
    assert result.is_complete and failures == {"r0": "provider_failure", "r1": "provider_failure"}
    assert batch.counts() == [{"answered": 1, "unanswered": 1, "refused": 1}, {"unanswered": 1}]
    assert cost(result) == pytest.approx(server.billed, rel=1e-9)
    server.fate = lambda custom_id, body: "succeeded"
    again = batch.run(retry_errors=True)
    assert answers(again) == {"r0": "1", "r1": "2", "r2": "3"}


def test_the_rest_is_made_interactively_on_request(server: ProviderServer, tmp_path: Path) -> None:
    server.fate = once(server, "expired")
    result = Batch(tmp_path / "b", server, "openai").run(provider_batch_rest="interactive")
    assert result.is_complete and len(server.interactive) == 1
    assert cost(result) == pytest.approx(server.billed, rel=1e-9)


def test_an_empty_file_id_is_no_file(server: ProviderServer, tmp_path: Path) -> None:
    server.empty_ids = True
    result = Batch(tmp_path / "b", server, "openai").run()
    assert result.is_complete and cost(result) == pytest.approx(server.billed, rel=1e-9)


def test_a_batch_that_fails_its_validation_is_an_error_and_not_billed(
    server: ProviderServer, tmp_path: Path
) -> None:
    server.invalid = "invalid_json_line"
    result = Batch(tmp_path / "b", server, "openai", rows=2).run()
    assert [
        s.failure is not None and "invalid_json_line" in s.failure.message for s in result.results()
    ] == [True] * 2
    assert server.billed == 0 and cost(result) == 0


def test_a_batch_refused_for_enqueued_tokens_is_split(
    server: ProviderServer, tmp_path: Path
) -> None:
    new_job = server.new_job

    def limited(requests: Any, **fields: Any) -> Any:
        server.invalid = "token_limit_exceeded" if len(requests) > 2 else None
        return new_job(requests, **fields)

    server.new_job = limited  # type: ignore[method-assign]
    batch = Batch(tmp_path / "b", server, "openai")
    result = batch.run()
    assert result.is_complete and server.twice == [] and len(server.ledger) == 4
    assert [len(each.calls) for each in batch.log().submissions.values()] == [4, 2, 2]
    assert cost(result) == pytest.approx(server.billed, rel=1e-9)


@pytest.mark.parametrize("operation", ["upload", "get", "results", "delete", "create"])
@pytest.mark.parametrize("what", [503, 429, "before", "after"])
def test_a_passing_failure_changes_nothing(
    server: ProviderServer, tmp_path: Path, operation: str, what: int | str
) -> None:
    server.faults = [Fault(operation, what, times=2)]
    result = Batch(tmp_path / "b", server, "openai", rows=2).run()
    assert result.is_complete and server.twice == [] and len(server.ledger) == 2
    assert cost(result) == pytest.approx(server.billed, rel=1e-9)


@pytest.mark.parametrize("format", FORMATS)
def test_results_that_are_gone_may_have_been_billed(
    server: ProviderServer, tmp_path: Path, format: str
) -> None:
    batch = Batch(tmp_path / "b", server, format, rows=2)
    batch.run(wait=False)
    server.now += DAY_S
    server.faults = [Fault("get", 404, times=9)]
    result = batch.run()
    assert result.is_complete and cost(result) is None
    assert all(s.failure is not None and "is gone" in s.failure.message for s in result.results())


@pytest.mark.parametrize("format", ALL_FORMATS)
def test_a_running_batch_that_is_listed_is_not_gone(
    server: ProviderServer, tmp_path: Path, format: str
) -> None:
    """As after its creation, where a provider answers from a copy of its data."""
    server.takes_s = DAY_S / 2
    batch = Batch(tmp_path / "b", server, format, rows=2)
    batch.run(wait=False)
    server.faults = [Fault("get", 404)]
    batch.run(wait=False)
    server.now += DAY_S
    result = batch.run()
    assert result.is_complete and answers(result) == {"r0": "1", "r1": "2"}
    assert server.operations.count("create") == 1


def test_past_the_deadline_what_runs_is_cancelled_and_the_rest_is_interactive(
    server: ProviderServer, tmp_path: Path
) -> None:
    server.takes_s = DAY_S
    batch = Batch(tmp_path / "b", server, "openai")
    batch.run(wait=False)
    result = batch.run(wait=False, provider_batch_deadline=0.000001)
    assert result.is_complete and answers(result) == {"r0": "1", "r1": "2", "r2": "3", "r3": "4"}
    assert batch.counts() == [{"answered": 2, "unanswered": 2}]
    assert len(server.ledger) == 2 and len(server.interactive) == 2
    assert cost(result) == pytest.approx(server.billed, rel=1e-9)


def test_the_budget_holds_before_anything_is_submitted(
    server: ProviderServer, tmp_path: Path
) -> None:
    batch = Batch(tmp_path / "b", server, "openai")
    # A call costs at most 0.0000161; two of them fit.
    result = batch.run(limits={"max_cost": 0.00004})
    assert all((each.max_cost_usd or 1) <= 0.00004 for each in batch.log().submissions.values())
    assert len(batch.log().submissions[1].calls) == 2
    assert result.is_complete and server.billed <= 0.00004
    created = server.operations.count("create")
    none = Batch(tmp_path / "c", server, "openai").run(limits={"max_cost": 0.000001})
    assert none.ended.state == "budget" and server.operations.count("create") == created


@pytest.mark.parametrize("expires", [None, 0, 253_000_000_000])
def test_a_batch_that_never_ends_is_waited_for_until_its_end_is_long_past(
    server: ProviderServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expires: int | None
) -> None:
    server.takes_s = float("inf")
    server.returned = {"expires_at": expires}
    started = time.time()

    def wall() -> float:
        # Half a day for each look.
        looks = server.operations.count("get")
        return started + looks * DAY_S / 2

    monkeypatch.setattr(clock, "wall", wall)
    # It is cancelled in the end, which has no effect.
    monkeypatch.setattr(server, "tick", lambda job: None)
    result = Batch(tmp_path / "b", server, "openai").run()
    assert result.is_complete and cost(result) is None
    failures = [sample.failure for sample in result.results()]
    assert all(each is not None and "did not end" in each.message for each in failures)
    looks = server.operations.count("get")
    assert looks in ((4, 5, 6) if expires == 0 else (30, 31, 32))
    assert server.operations.count("create") == 1


def test_a_creation_that_fails_for_now_is_told(server: ProviderServer, tmp_path: Path) -> None:
    lines: list[str] = []

    class Shown(NoDisplay):
        def notice(self, line: str) -> None:
            lines.append(line)

    server.faults = [Fault("create", "before", times=2)]
    assert Batch(tmp_path / "b", server, "openai").run(display=Shown()).is_complete
    assert len([line for line in lines if "could not be created yet: " in line]) == 1


def test_a_parked_task_is_not_resumed_by_itself(server: ProviderServer, tmp_path: Path) -> None:
    batch = Batch(tmp_path / "b", server, "openai", rows=1)
    batch.run(wait=False)
    evaluator = Evaluator(handler="p", tasks_dir=tmp_path / "b" / "batch" / "tasks", trust=True)
    outcome = evaluator.resume_sync(1)
    assert isinstance(outcome, TaskError) and "waits for a provider batch" in outcome.message
    assert server.interactive == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "processes"}, "the engine local"),
        ({"models": ["simulated"]}, "simulated has no batch API"),
        ({"provider_batch_deadline": "soon"}, "expected a time"),
        ({"provider_batch": False}, "wait has no effect without provider_batch"),
        (
            {"provider_batch": False, "wait": False, "provider_batch_deadline": "6h"},
            "provider_batch_deadline has no effect",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    server: ProviderServer, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Batch(tmp_path / "b", server, "openai").run(**options)
    assert server.operations == [] and not (tmp_path / "b" / "batch").exists()
