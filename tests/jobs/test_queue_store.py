"""The store: order, dependencies, leases, recovery, ids, the archive."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from evaluator import UsageError
from evaluator.jobs import entries
from evaluator.jobs.document import parse_entry, read_document
from evaluator.jobs.entries import EntryOptions, StrategyAttempt
from evaluator.jobs.queue_files import archive
from evaluator.jobs.queue_store import QueueStore
from evaluator.jobs.queue_view import read_board
from evaluator.store.owners import current_owner, owner_text

NOW = "2026-03-08T09:00:00Z"


def add(store, text="do it", max_retries=None, **options):
    return store.add(text, text, "unknown", EntryOptions(**options), max_retries).id


def attempt(claim, strategy="summarise", failure=None):
    return StrategyAttempt(claim.attempt_number, strategy, "evaluator", NOW, "result", failure)


def finish(store, claim):
    return store.end(
        claim, lambda e: entries.complete(e, attempt(claim), NOW, deliverable="yes", path=None)
    )


def fail(store, claim, **more):
    return store.end(
        claim, lambda e: entries.fail(e, attempt(claim), NOW, reason="no", action="help", **more)
    )


def claimed(store):
    found = store.claim(60)
    return None if found is None else found.entry.id


def test_entries_start_by_priority_and_then_by_id(store):
    store.configure(max_concurrent=9)
    for priority in (0, 5, 0, 5, -1):
        add(store, priority=priority)
    assert [claimed(store) for _ in range(6)] == ["T-02", "T-04", "T-01", "T-03", "T-05", None]


def test_a_board_has_the_entries_that_run_first_and_those_that_ended_last(store, clock):
    for priority in (0, 0, 0, 1, 5, 0):
        add(store, priority=priority)
    for minute in range(3):
        claim = store.claim(60)
        now = f"2026-03-08T09:0{minute}:00Z"
        store.end(
            claim,
            lambda e, c=claim, t=now: entries.complete(
                e, attempt(c), t, deliverable="yes", path=None
            ),
        )
    shown = {
        each.status: (each.count, [entry.id for entry in each.entries])
        for each in read_board(store, 2).columns
        if each.count
    }
    assert shown == {"pending": (3, ["T-02", "T-03"]), "done": (3, ["T-01", "T-04"])}


def test_no_more_than_max_concurrent_entries_run_at_once(store):
    for _ in range(3):
        add(store)
    first = store.claim(60)
    assert (claimed(store), claimed(store)) == ("T-02", None)
    finish(store, first)
    assert claimed(store) == "T-03"


def test_an_entry_waits_for_its_time_and_for_what_it_needs(store, clock):
    add(store)
    add(store, needs=("T-01",))
    add(store, not_before=clock.now + 50)
    first = store.claim(60)
    assert first.entry.id == "T-01" and claimed(store) is None
    assert store.get(2).waits_for == ("T-01",)
    finish(store, first)
    assert claimed(store) == "T-02" and claimed(store) is None
    clock.now += 50
    assert claimed(store) == "T-03"


def test_what_needs_a_skipped_or_missing_entry_does_not_run(store):
    add(store)
    add(store, needs=("T-01",))
    store.skip(1)
    assert claimed(store) is None and store.count_ready() == 0
    with pytest.raises(UsageError, match="there is no entry T-09"):
        add(store, needs=("T-09",))
    assert add(store) == "T-03"  # the refused one took no id


def test_what_waits_for_an_entry_that_will_not_be_done_is_stuck(store, tmp_path, clock):
    add(store, priority=1)
    add(store)
    add(store, needs=("T-01",))
    add(store, needs=("T-03", "T-02"))
    add(store, needs=("T-04",))
    add(store)
    store.skip(2)
    assert [(e.id, e.cause, e.cause_status) for e in store.stuck()] == [
        ("T-04", "T-02", "skipped"),
        ("T-05", "T-02", "skipped"),
    ]
    fail(store, store.claim(60), final=True)
    assert [str(e) for e in store.stuck()] == [
        "T-03 waits for T-01, which is blocked",
        "T-04 waits for T-01, which is blocked",
        "T-04 waits for T-02, which was skipped",
        "T-05 waits for T-01, which is blocked",
        "T-05 waits for T-02, which was skipped",
    ]
    store.retry(1)
    store.skip(4)
    assert [(e.id, e.cause) for e in store.stuck()] == [("T-05", "T-02"), ("T-05", "T-04")]
    clock.now += 1
    archive(store, tmp_path, days=0)
    assert [(e.id, e.cause, e.cause_status) for e in store.stuck()] == [("T-05", "T-04", "skipped")]


def test_an_attempt_that_fails_leads_to_the_next_until_the_entry_is_blocked_and_retried(store):
    add(store, max_retries=2)
    assert fail(store, store.claim(60)).status == "pending"
    blocked = fail(store, store.claim(60))
    assert (
        blocked.status,
        blocked.retries,
        blocked.blocked_reason,
        blocked.user_action_required,
    ) == (
        "blocked",
        2,
        "no",
        "help",
    )
    again = store.retry(1, "use the blue one")
    assert (again.status, again.retries, again.completed_at, again.blocked_reason) == (
        "pending",
        0,
        None,
        None,
    )
    claim = store.claim(60)
    assert claim.options.guidance == ("use the blue one",) and claim.options.tried == ()
    done = finish(store, claim)
    assert done.status == "done" and [each.attempt for each in done.strategies_tried] == [1, 2, 3]


def test_a_skipped_entry_is_not_done_by_any_worker(store):
    add(store)
    add(store, "do that")
    skipped = store.skip(1)
    assert skipped.status == "skipped"
    assert skipped.completed_at is not None
    assert store.claim(60).entry.id == "T-02"
    assert store.claim(60) is None
    with pytest.raises(UsageError, match="T-01 is skipped; only a pending entry"):
        store.skip(1)


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("skip", "T-01 is running; only a pending entry can be skipped"),
        ("retry", "T-01 is running; only a blocked"),
    ],
)
def test_a_user_cannot_change_a_running_entry(store, verb, message):
    add(store)
    claim = store.claim(60)
    with pytest.raises(UsageError, match=message):
        getattr(store, verb)(1)
    assert finish(store, claim).status == "done"


def test_a_lease_that_is_not_renewed_returns_the_entry_with_its_attempt(store, observed):
    add(store)
    lost = store.claim(60)
    assert store.begin_attempt(lost, "translate") is not None
    assert observed.look_for(store, 59) == []
    assert store.extend(lost, 60) and observed.look_for(store, 59) == []
    assert observed.look_for(store, 1) == ["T-01"]
    claim = store.claim(60)
    (tried,) = claim.entry.strategies_tried
    assert (tried.strategy, tried.result, claim.entry.retries) == (
        "translate",
        "interrupted: the worker did not renew its lease",
        1,
    )
    # The worker that comes back has lost the entry and changes nothing.
    assert (
        finish(store, lost) is None
        and not store.extend(lost, 60)
        and store.begin_attempt(lost, "x") is None
    )
    assert store.get(1).entry == claim.entry


def test_an_entry_that_ends_its_workers_is_blocked_in_the_end(store, observed):
    add(store)
    for _ in range(3):
        assert store.claim(60) is not None
        assert observed.look_for(store, 60) == ["T-01"]
    blocked = store.get(1).entry
    assert blocked.status == "blocked" and len(blocked.strategies_tried) == 3
    assert "queue retry T-01" in blocked.user_action_required


HOLD = """
import sys
from pathlib import Path
from evaluator.jobs.queue_store import QueueStore
from evaluator.store.owners import current_owner, owner_text
store = QueueStore(Path(sys.argv[1]))
assert store.claim(1.0) is not None
print("claimed", flush=True)
sys.stdin.read()
"""


def test_only_the_end_of_its_process_returns_an_entry_whatever_the_wall_clock_says(
    store, clock, observed
):
    add(store)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as worker:
        assert worker.stdout.readline() == b"claimed\n"
        for step in (3600, -7200, 3600):
            clock.now += step
            assert store.recover() == [] and store.claim(60) is None
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    (returned,) = store.recover()
    assert returned.strategies_tried[0].result == "interrupted: the worker's process ended"


def test_an_entry_of_another_container_returns_once_nobody_renews_its_lease(store, observed):
    add(store)
    claim = store.claim(60)
    elsewhere = owner_text(replace(current_owner(), host="another"))
    with store.transaction() as db:
        db.execute("UPDATE lease SET owner = ?", (elsewhere,))
    for _ in range(5):
        assert observed.look_for(store, 59) == [] and store.extend(claim, 60)
    observed.now += 86_400  # the observer was suspended
    assert store.recover() == [] and store.extend(claim, 60)
    assert observed.look_for(store, 60) == ["T-01"]
    assert finish(store, claim) is None


def test_threads_and_stores_never_claim_one_entry_twice(store):
    store.configure(max_concurrent=100)
    for _ in range(40):
        add(store)
    stores, found = [store, *(QueueStore(store.path) for _ in range(2))], []

    def work(own):
        while (claim := own.claim(60)) is not None:
            found.append(claim.entry.id)

    threads = [threading.Thread(target=work, args=(own,)) for own in stores * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for own in stores[1:]:
        own.close()
    assert sorted(found) == sorted(entries.entry_id(n) for n in range(1, 41))


def test_ids_widen_after_99_and_are_never_given_again(store, tmp_path, clock):
    for _ in range(101):
        add(store)
    assert store.settings().last_id == "T-101"
    store.skip(101)
    clock.now += 10
    assert archive(store, tmp_path, days=0) == {"2026-03": ["T-101"]}
    assert add(store) == "T-102"


def test_recurring_entries_add_the_next_one_when_they_end(store, clock):
    pytest.importorskip("croniter", reason="the extra `queue` is not installed")
    add(store, every="0 7 * * *")
    done = finish(store, store.claim(60))
    following = store.get(2)
    assert done.status == "done" and following.entry.status == "pending"
    assert entries.timestamp(following.options.not_before) == "2026-03-09T07:00:00Z"
    assert store.get(1).options.every is None and following.options.every == "0 7 * * *"
    store.skip(2)
    with pytest.raises(UsageError, match="there is no entry T-03"):
        store.get(3)


def test_old_terminal_entries_move_into_the_file_of_their_month(store, tmp_path, clock):
    for _ in range(4):
        add(store)
    needing = add(store, needs=("T-01",))
    first, second = store.claim(60), store.claim(60)
    finish(store, first)
    fail(store, second, final=True)
    store.skip(3)
    with store.transaction():
        store.put(3, replace(store.get(3).entry, completed_at="2026-02-28T23:59:59Z"))
    clock.now += 7 * 86_400
    assert archive(store, tmp_path) == {"2026-02": ["T-03"]}
    clock.now += 1
    assert archive(store, tmp_path) == {"2026-03": ["T-01", "T-02"]}
    moved = read_document((tmp_path / "archive" / "2026-03.json").read_bytes(), "a")
    assert [(e.id, e.status) for e in moved.tasks] == [("T-01", "done"), ("T-02", "blocked")]
    assert moved.last_id == "T-05" and store.counts() == {
        "pending": 2,
        "running": 0,
        "done": 0,
        "blocked": 0,
        "skipped": 0,
        "archived": 3,
    }
    assert store.get(5).waits_for == () and needing == "T-05"
    with pytest.raises(UsageError, match=r"T-02 is in the archive, in archive/2026-03.json"):
        store.retry(2)


def test_the_archive_takes_any_time_that_a_file_may_hold(store, tmp_path):
    ended = replace(
        store.add("x", "x", "unknown", EntryOptions()),
        status="done",
        completed_at="0001-01-01T00:00:00+14:00",
    )
    store.put(1, ended)
    assert archive(store, tmp_path) == {"0001-01": ["T-01"]}


def test_an_archive_that_a_crash_left_behind_is_completed(store, tmp_path, clock):
    for _ in range(2):
        add(store)
        store.skip(len(store.documents()))
    clock.now += 10 * 86_400
    before = [json.loads(text) for text in store.documents()]

    def crash(month, moved):
        raise RuntimeError

    store.move_to_archive, whole = crash, store.move_to_archive
    with pytest.raises(RuntimeError):
        archive(store, tmp_path)
    assert [json.loads(text) for text in store.documents()] == before
    store.move_to_archive = whole
    archive(store, tmp_path)
    found = read_document((tmp_path / "archive" / "2026-03.json").read_bytes(), "a")
    assert [e.id for e in found.tasks] == ["T-01", "T-02"] and store.documents() == []


def test_an_archive_that_cannot_be_read_keeps_the_entries(store, tmp_path, clock):
    add(store)
    store.skip(1)
    clock.now += 10 * 86_400
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "2026-03.json").write_text("[]")
    with pytest.raises(UsageError, match=r"2026-03.json: \$ is an array"):
        archive(store, tmp_path)
    assert parse_entry(store.documents()[0]).status == "skipped"
    assert (tmp_path / "archive" / "2026-03.json").read_text() == "[]"
