"""Batches with provider batches: each state of a provider batch is read, and each dollar is counted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluator import BatchResult, Evaluator, TaskError, UsageError, clock
from evaluator.batch import (
    NoDisplay,
    batch_status,
    control_batch,
    score_batch_sync,
    submissions,
    waves,
)
from evaluator.batch.wave_log import WaveLog
from evaluator.errors import BatchDamaged
from evaluator.models.anthropic_batches import AnthropicBatches
from evaluator.models.gemini_batches import GeminiBatches
from evaluator.models.openai_batches import OpenAIBatches
from tests.batch.wave_driver import TWO, run_session, write_project
from tests.provider_jobs import DAY_S
from tests.provider_replies import last_prompt
from tests.provider_server import Fault, ProviderServer

FORMATS = ["openai", "anthropic"]
ALL_FORMATS = [*FORMATS, "gemini", "mistral"]


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(waves, "POLL_S", 0.001)
    monkeypatch.setattr(submissions, "SETTLE_S", 0.0)
    monkeypatch.setattr(submissions, "RETRY_AFTER_S", (0.0, 0.0, 0.0))


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server


class Batch:
    """A batch in `folder`."""

    def __init__(
        self, folder: Path, server: ProviderServer, format: str, rows: int = 4, template: Any = None
    ) -> None:
        self.folder = folder
        write_project(folder, server.url, format, rows, *([] if template is None else [template]))

    def run(self, **options: Any) -> BatchResult:
        return run_session(self.folder, **options)

    def log(self) -> WaveLog:
        manifest = json.loads((self.folder / "batch" / "manifest.json").read_text())
        log = WaveLog(self.folder / "batch", manifest["created"])
        log.read()
        return log

    def counts(self) -> list[dict[str, int]]:
        return [dict(each.counts) for each in self.log().submissions.values()]


def answers(result: BatchResult) -> dict[str, str]:
    return {sample.sample_id: sample.content for sample in result.results()}


def cost(result: BatchResult) -> float | None:
    costs = [sample.usage.cost_usd for sample in result.results()]
    if None in costs:
        return None
    return sum(each for each in costs if each is not None)


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
    server.fate = _once(server, fate)
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
    server.fate = _once(server, fate)
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


def _asks(body: Any, prompt: str) -> bool:
    return last_prompt(body) == prompt


def _once(server: ProviderServer, fate: str) -> Any:
    """The fate of the question xx in the first batch."""
    first: list[str] = []

    def of(custom_id: str, body: Any) -> str:
        if not _asks(body, "xx"):
            return "succeeded"
        if not first:
            first.append(custom_id)
        return fate if custom_id == first[0] else "succeeded"

    return of


@pytest.mark.parametrize("format", FORMATS)
def test_an_invalid_request_and_a_second_failure_are_errors(
    server: ProviderServer, tmp_path: Path, format: str
) -> None:
    server.fate = lambda custom_id, body: (
        "errored" if _asks(body, "x") else "expired" if _asks(body, "xx") else "succeeded"
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
    server.fate = _once(server, "expired")
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


def test_a_creation_that_nobody_can_find_out_about_ends_the_session(
    server: ProviderServer, tmp_path: Path
) -> None:
    batch = Batch(tmp_path / "b", server, "openai")
    server.faults = [Fault("create", "after"), Fault("list", 403, times=9)]
    with pytest.raises(UsageError, match="--unfinished repeat"):
        batch.run(unfinished="stop")
    told = batch.run(unfinished="tell")
    assert told.is_complete and cost(told) is None
    assert server.operations.count("create") == 1


def test_a_log_that_was_changed_ends_the_session(server: ProviderServer, tmp_path: Path) -> None:
    batch = Batch(tmp_path / "b", server, "openai")
    batch.run(wait=False)
    path = tmp_path / "b" / "batch" / "provider" / "log.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"batch_", b"batch-"))
    with pytest.raises(BatchDamaged, match="may be paid already"):
        batch.run()
    path.write_bytes(whole + whole.splitlines(keepends=True)[-1][:20])
    assert batch.run().is_complete


@pytest.mark.parametrize("event", ["uploaded", "created"])
def test_an_entry_of_another_batch_ends_the_session(tmp_path: Path, event: str) -> None:
    """The id of the provider batch once stood in for the identity of the batch in what is signed."""
    fields: dict[str, Any] = {"batch": "batch-of-one"} if event == "created" else {"upload": "file"}
    for name in ("one", "two"):
        _begin_log(tmp_path / name, created=name)
    other = WaveLog(tmp_path / "one", "one")
    other.read()
    other.add(1, event, **fields)
    log = WaveLog(tmp_path / "two", "two")
    line = other.path.read_bytes().splitlines(keepends=True)[-1]
    log.path.write_bytes(log.path.read_bytes() + line)
    with pytest.raises(BatchDamaged, match=r"log\.jsonl:2: was changed, or was not written by you"):
        log.read()


def _begin_log(folder: Path, created: str) -> None:
    call = ["call-1", "sample-1", False, 10, 10, 0.1]
    folder.mkdir()
    WaveLog(folder, created).add(
        1,
        "intent",
        format="openai",
        label="gpt",
        endpoint="https://api.example.com",
        profile="offline",
        prices=None,
        tag=f"tag-{created}",
        digest="0",
        calls=[call],
        max_cost_usd=0.1,
        wall=0.0,
    )


def test_a_batch_with_running_calls_is_not_resumed_without_its_provider_batches(
    server: ProviderServer, tmp_path: Path
) -> None:
    batch = Batch(tmp_path / "b", server, "openai")
    batch.run(wait=False)
    server.takes_s = DAY_S
    with pytest.raises(UsageError, match="4 calls wait in 1 provider batch,"):
        batch.run(provider_batch=False, wait=False)
    assert server.interactive == []


@pytest.mark.parametrize("operation", ["upload", "create"])
def test_a_refusal_ends_the_session_and_the_next_one_submits(
    server: ProviderServer, tmp_path: Path, operation: str
) -> None:
    batch = Batch(tmp_path / "b", server, "openai")
    server.faults = [Fault(operation, 403)]
    refused = batch.run()
    assert refused.ended.state == "incomplete" and "HTTP 403: fault 403" in refused.ended.reason
    assert server.billed == 0
    assert batch.run().is_complete and server.twice == [] and len(server.ledger) == 4


@pytest.mark.parametrize("format", ["openai", "gemini", "mistral"])
def test_requests_that_the_provider_has_deleted_since_are_sent_again(
    server: ProviderServer, tmp_path: Path, format: str
) -> None:
    batch = Batch(tmp_path / "b", server, format)
    server.faults = [Fault("create", 403)]
    assert batch.run().ended.state == "incomplete"
    server.files.clear()
    server.faults = [Fault("create", 403, skip=1)]
    refused = batch.run()
    assert (refused.ended.state, server.operations.count("upload")) == ("incomplete", 2)
    server.files.clear()
    assert batch.run().is_complete and server.twice == [] and len(server.ledger) == 4
    # Gemini deletes files of results itself.
    assert all(file["purpose"] == "batch_output" for file in server.files.values())


@pytest.mark.parametrize(
    ("format", "unreturned"),
    [
        ("openai", ("metadata",)),
        ("openai", ("metadata", "input_file_id")),
        ("mistral", ("metadata",)),
        ("mistral", ("metadata", "input_files")),
    ],
)
def test_a_server_that_does_not_return_the_tag_is_not_paid_twice(
    server: ProviderServer, tmp_path: Path, format: str, unreturned: tuple[str, ...]
) -> None:
    server.unreturned = unreturned
    server.faults = [Fault("create", "after")]
    result = Batch(tmp_path / "b", server, format).run()
    assert result.is_complete and server.twice == [] and len(server.ledger) == 4
    assert server.operations.count("create") == 1
    assert cost(result) == pytest.approx(server.billed, rel=1e-9)


@pytest.mark.parametrize("total", [0, 3, 5, None])
def test_a_wrong_count_does_not_make_a_batch_another_one(
    server: ProviderServer, tmp_path: Path, total: int | None
) -> None:
    server.now = time.time()
    server.unreturned = ("metadata", "input_file_id")
    server.returned = {"request_counts": {"total": total}}
    server.faults = [Fault("create", "after")]
    result = Batch(tmp_path / "b", server, "openai").run()
    assert result.is_complete and server.twice == [] and len(server.ledger) == 4
    assert server.operations.count("create") == 1


def test_a_batch_is_known_by_an_answer_that_is_not_its_first(
    server: ProviderServer, tmp_path: Path
) -> None:
    server.unreturned = ("metadata", "input_file_id")
    server.fate = lambda custom_id, body: "foreign"
    server.faults = [Fault("create", "after")]
    result = Batch(tmp_path / "b", server, "openai").run()
    assert result.is_complete and server.twice == [] and len(server.ledger) == 4


def with_wrong_ids(monkeypatch: pytest.MonkeyPatch, api: Any, wrong_id: Any) -> None:
    create = api.create

    async def create_as(self: Any, *arguments: Any) -> Any:
        return replace(await create(self, *arguments), id=wrong_id())

    monkeypatch.setattr(api, "create", create_as)


@pytest.mark.parametrize("id", ["batch_999", "somebody-elses"])
def test_a_batch_with_another_id_than_its_creation_said_is_found(
    server: ProviderServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id: str
) -> None:
    if id != "batch_999":
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        job = server.new_job([("foreign", body)], format="openai", metadata={"evaluator": "other"})
        id = job.id
    with_wrong_ids(monkeypatch, OpenAIBatches, lambda: id)
    result = Batch(tmp_path / "b", server, "openai").run()
    assert result.is_complete and server.operations.count("create") == 1
    assert all(sample.failure is None for sample in result.results())
    assert server.twice == []


def test_a_batch_whose_creation_was_answered_is_not_created_again_because_it_is_not_found(
    server: ProviderServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server changes the name that a batch was created with."""
    read: Any = getattr(GeminiBatches, "_read")  # noqa: B009

    def read_changed(self: Any, data: Any) -> Any:
        batch = read(self, data)
        return replace(batch, tag=f"{batch.tag} (1)")

    monkeypatch.setattr(GeminiBatches, "_read", read_changed)
    batch = Batch(tmp_path / "b", server, "gemini")
    with pytest.raises(UsageError, match="--unfinished repeat"):
        batch.run(unfinished="stop")
    told = batch.run(unfinished="tell")
    assert told.is_complete and cost(told) is None
    assert server.operations.count("create") == 1


def test_another_batch_is_not_deleted_at_the_provider(
    server: ProviderServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    job = server.new_job([("foreign", body)], format="openai", metadata={"evaluator": "other"})
    create: Any = OpenAIBatches.create

    async def create_as(self: Any, *arguments: Any) -> Any:
        return replace(await create(self, *arguments), id=job.id, tag=None, upload=None)

    async def listed(self: Any) -> Any:
        for batch in ():
            yield batch

    monkeypatch.setattr(OpenAIBatches, "create", create_as)
    monkeypatch.setattr(OpenAIBatches, "listed", listed)
    batch = Batch(tmp_path / "b", server, "openai")
    for _ in range(2):
        result = batch.run()
        failures = [sample.failure for sample in result.results()]
        assert all(each is not None and "is another batch" in each.message for each in failures)
    assert server.operations.count("create") == 1
    assert server.operations.count("delete") == 0


def test_results_of_another_batch_are_not_asked_for_again(
    server: ProviderServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    job = server.new_job([("foreign", body)], format="anthropic")
    with_wrong_ids(monkeypatch, AnthropicBatches, lambda: job.id)
    result = Batch(tmp_path / "b", server, "anthropic").run()
    assert result.is_complete and server.operations.count("create") == 1
    assert all(sample.failure is None for sample in result.results())
    assert server.twice == [] and len(server.ledger) == 5


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("is_deadline", [False, True], ids=["command", "deadline"])
def test_another_batch_is_not_cancelled_at_the_provider(
    server: ProviderServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,
    is_deadline: bool,
) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    other = server.new_job([("foreign", body)], format=format, metadata={"evaluator": "other"})
    with_wrong_ids(
        monkeypatch, OpenAIBatches if format == "openai" else AnthropicBatches, lambda: other.id
    )
    options: dict[str, Any] = {}
    if is_deadline:
        options["provider_batch_deadline"] = 0.000001
    else:
        advance = waves.Waves.advance

        async def cancel_and_advance(self: waves.Waves) -> bool:
            self.cancel()
            return await advance(self)

        monkeypatch.setattr(waves.Waves, "advance", cancel_and_advance)
    server.takes_s = 10 * server.step_s
    Batch(tmp_path / "b", server, format).run(**options)
    assert other.cancelled is None and other.id in server.jobs
    # Where the provider does not tell whose a batch is, it is known only when the other one ends.
    assert server.operations.count("cancel") == (1 if format == "openai" else 0)
    assert server.operations.count("create") == 1 and server.twice == []


def test_the_end_of_a_batch_is_logged_once_while_its_answers_cannot_be_read(
    server: ProviderServer, tmp_path: Path
) -> None:
    server.faults = [Fault("results", 503, times=5)]
    batch = Batch(tmp_path / "b", server, "openai")
    assert batch.run().is_complete and server.operations.count("results") > 5
    log = (batch.folder / "batch" / "provider" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in log].count("ended") == 1


@pytest.mark.parametrize("does_end", [False, True])
def test_a_batch_that_does_not_end_in_time_is_cancelled(
    server: ProviderServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does_end: bool
) -> None:
    server.takes_s = float("inf")
    started = time.time()
    monkeypatch.setattr(
        clock, "wall", lambda: started + server.operations.count("get") * 10 * DAY_S
    )
    if not does_end:
        monkeypatch.setattr(server, "tick", lambda job: None)
    result = Batch(tmp_path / "b", server, "openai").run()
    assert result.is_complete and all(job.cancelled for job in server.jobs.values())
    # Half of the calls were answered until then, and half of the others in a further batch.
    assert server.operations.count("cancel") == (2 if does_end else 1)
    assert result.summary.counts.error == (1 if does_end else 4)


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
    expires = _once(server, "expired")
    server.fate = lambda custom_id, body: (
        "errored" if _asks(body, "x") else expires(custom_id, body)
    )
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
    server.fate = _once(server, "expired")
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
