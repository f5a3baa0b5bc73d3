"""Provider batches that a log, an answer or the provider names wrongly: none is lost, paid twice or taken for another one."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluator import UsageError, clock
from evaluator.batch import (
    waves,
)
from evaluator.batch.wave_log import WaveLog
from evaluator.errors import BatchDamaged
from evaluator.models.anthropic_batches import AnthropicBatches
from evaluator.models.gemini_batches import GeminiBatches
from evaluator.models.openai_batches import OpenAIBatches
from tests.batch.waves.wave_batch import (
    FORMATS,
    Batch,
    cost,
)
from tests.provider_jobs import DAY_S
from tests.provider_server import Fault, ProviderServer


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
