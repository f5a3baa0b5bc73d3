"""The board of a queue in the viewer, an entry, and retry and skip by form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator import TaskStore
from evaluator.jobs.queue_store import QueueStore
from evaluator.jobs.queue_view import DATABASE
from evaluator.queue import QueueEntry, StrategyAttempt, TaskQueue
from evaluator.record.steps import Summary
from evaluator.viewer.server import queues
from tests.batch.export.results import HOSTILE
from tests.viewer.site import Answer, Site, assert_harmless, page, visit


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[TaskQueue]:
    with TaskQueue(tmp_path / "queue") as found:
        yield found


def run_next(root: Path, **changes: object) -> QueueEntry:
    """Ends the next entry as if a worker had, with these fields."""
    store = QueueStore(root / "queue" / DATABASE)
    try:
        claim = store.claim(60)
        assert claim is not None
        ended = {"status": "done", "completed_at": "2026-03-04T05:06:07Z"} | changes
        found = store.end(claim, lambda entry: replace(entry, subagent_session=None, **ended))
        assert found is not None
        return found
    finally:
        store.close()


def block_next(root: Path) -> QueueEntry:
    return run_next(
        root, status="blocked", blocked_reason="no template fits", user_action_required="add one"
    )


def columns(answer: Answer) -> dict[str, list[str]]:
    board = answer.data["board"]["value"]
    return {each["status"]: [card["id"] for card in each["cards"]] for each in board["columns"]}


def address(root: Path, entry: str) -> str:
    found = re.search(rf'"(/queue/[0-9a-f]+/{entry})"', page(root, "/queue").text)
    assert found is not None
    return found[1]


def act(root: Path, entry: str, **form: str) -> Answer:
    """Sends the form of an entry's page, with changed fields."""
    path = address(root, entry)

    async def steps(site: Site) -> Answer:
        token = (await site.get(path)).data["token"]
        data = {"token": token, "confirm": "yes"} | form
        return await site.ask("POST", path, data=data, headers={"Origin": site.address})

    return visit(root, steps)


def test_without_a_queue_the_page_says_how_to_make_one(tmp_path: Path) -> None:
    assert page(tmp_path, "/queue").data["chosen"] is None


def test_the_board_has_each_entry_in_the_column_of_its_state(
    tmp_path: Path, queue: TaskQueue
) -> None:
    for text in ("first", "second", "third", "fourth"):
        queue.add(text)
    run_next(tmp_path, deliverable="the answer")
    block_next(tmp_path)
    queue.skip("T-03")
    answer = page(tmp_path, "/queue")
    assert columns(answer) == {
        "pending": ["T-04"],
        "running": [],
        "blocked": ["T-02"],
        "done": ["T-01"],
        "skipped": ["T-03"],
    }
    assert "the answer" in answer.shown
    assert "no template fits" in answer.shown
    assert answer.data["board"]["value"]["ready"] == 1


def test_a_long_column_shows_its_first_entries_and_says_so(
    tmp_path: Path, queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "MAX_CARDS", 2)
    for number in range(5):
        queue.add(f"text {number}")
    answer = page(tmp_path, "/queue")
    assert columns(answer)["pending"] == ["T-01", "T-02"]
    assert answer.data["board"]["value"]["columns"][0]["count"] == 5


def test_an_entry_has_its_attempts_each_with_the_run_if_it_is_of_this_entry(
    tmp_path: Path, queue: TaskQueue
) -> None:
    queue.add("the text", priority=3)
    for label in ("T-01", "T-99"):
        extra = {"labels": {"queue_entry": label}}
        TaskStore(tmp_path / "tasks").create("r", {}, template="t", extra=extra).close(
            Summary("completed", 0, 0, 0.1)
        )
    attempts = [
        StrategyAttempt(n, f"strategy {n}", "evaluator", "2026-03-04T05:06:07Z", f"TASK-{n}: x")
        for n in (1, 2)
    ]
    run_next(
        tmp_path,
        strategies_tried=(attempts[0], replace(attempts[1], verification_failure="too long")),
    )
    data = page(tmp_path, address(tmp_path, "T-01")).data
    last, first = data["attempts"]
    assert re.fullmatch(r"/run/[0-9a-f]+/1", first["run"]["href"])
    assert last["run"]["href"] == ""
    assert last["attempt"]["strategy"] == "strategy 2"
    assert last["attempt"]["verification_failure"] == "too long"
    assert data["details"]["priority"] == 3


def test_a_blocked_entry_is_retried_with_guidance(tmp_path: Path, queue: TaskQueue) -> None:
    queue.add("a text")
    block_next(tmp_path)
    answer = act(tmp_path, "T-01", action="retry", guidance="use\r\nthe library")
    assert "pending" in answer.text
    stored = queue.show("T-01")
    assert (stored.entry.status, stored.options.guidance) == ("pending", ("use\nthe library",))


def test_a_pending_entry_is_skipped(tmp_path: Path, queue: TaskQueue) -> None:
    queue.add("a text")
    act(tmp_path, "T-01", action="skip")
    assert queue.show("T-01").entry.status == "skipped"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"token": "wrong"}, "not of this server"),
        ({"confirm": ""}, "the change was not confirmed"),
        ({"action": "retry"}, "only a blocked entry can be retried"),
        ({"action": "drop"}, "expected retry or skip"),
    ],
)
def test_without_token_and_confirmation_or_in_another_state_nothing_changes(
    tmp_path: Path, queue: TaskQueue, form: dict[str, str], message: str
) -> None:
    queue.add("a text")
    answer = act(tmp_path, "T-01", **{"action": "skip", **form})
    assert (answer.status, message in answer.text) == (400, True)
    assert queue.show("T-01").entry.status == "pending"


@pytest.mark.parametrize("entry", ["T-07", "x", "T-01%20OR%201"])
def test_an_entry_that_does_not_exist_is_not_found(
    tmp_path: Path, queue: TaskQueue, entry: str
) -> None:
    queue.add("a text")
    folder = address(tmp_path, "T-01").rpartition("/")[0]
    assert page(tmp_path, f"{folder}/{entry}").status == 404


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_every_field_stays_text(
    tmp_path: Path, queue: TaskQueue, text: str
) -> None:
    queue.add(
        f"x {text}".replace("\x00", "").encode("utf-8", "replace").decode(), inputs={"k": text}
    )
    plain = text.encode("utf-8", "replace").decode()
    attempt = StrategyAttempt(1, plain, plain, "2026-03-04T05:06:07Z", plain, plain)
    run_next(
        tmp_path,
        status="blocked",
        blocked_reason=plain,
        user_action_required=plain,
        strategies_tried=(attempt,),
        deliverable=plain,
        deliverable_path=plain,
    )
    assert_harmless(page(tmp_path, "/queue").text)
    assert_harmless(page(tmp_path, address(tmp_path, "T-01")).text)


def test_a_database_that_is_none_is_named_and_other_pages_work(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / DATABASE).write_bytes(
        b"no database at all, but long enough to be read as one" * 100
    )
    answer = page(tmp_path, "/queue")
    assert "queue" in answer.data["board"]["error"]
