"""Leases end with their owner, or when nobody renews them; no step of the wall clock ends one."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from evaluator import clock
from evaluator.store import leases
from evaluator.store.leases import GONE, SILENT, LeaseObserver
from evaluator.store.owners import current_owner, owner_text

LENGTH_S = 60.0
LIVING = owner_text(current_owner())


class Monotonic:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    found = Monotonic()
    monkeypatch.setattr(clock, "monotonic", found)
    return found


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(leases.TABLE)
        yield connection


def ends_after(db: sqlite3.Connection, observer: LeaseObserver, clock: Monotonic, step: float):
    """How many looks, `step` seconds apart, until the lease `a` has ended."""
    looks = 0
    while "a" not in observer.ended(db, ["a"]) and looks < 100:
        clock.now += step
        looks += 1
    return looks


def test_a_lease_that_is_renewed_does_not_end(db: sqlite3.Connection, monotonic: Monotonic):
    observer = LeaseObserver(trusts_living=False)
    leases.take(db, "a", LIVING, LENGTH_S)
    for _ in range(50):
        monotonic.now += LENGTH_S / leases.BEATS
        leases.renew(db, "a", LENGTH_S)
        assert observer.ended(db, ["a"]) == {}
    assert ends_after(db, observer, monotonic, 1) == LENGTH_S
    assert observer.ended(db, ["a"]) == {"a": SILENT}


def test_a_pause_of_the_observer_counts_as_one_interval(
    db: sqlite3.Connection, monotonic: Monotonic
):
    observer = LeaseObserver(trusts_living=False)
    leases.take(db, "a", LIVING, LENGTH_S)
    assert ends_after(db, observer, monotonic, 3600) == leases.BEATS


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_wall_clock_ends_nothing(
    db: sqlite3.Connection,
    monotonic: Monotonic,
    monkeypatch: pytest.MonkeyPatch,
    step: float,
):
    observer = LeaseObserver(trusts_living=False)
    leases.take(db, "a", LIVING, LENGTH_S)
    assert observer.ended(db, ["a"]) == {}
    now = time.time() + step
    for name in ("time.time", "evaluator.clock.wall"):
        monkeypatch.setattr(name, lambda: now)
    monotonic.now += 1
    assert observer.ended(db, ["a"]) == {}


@pytest.mark.parametrize("trusts_living", [True, False])
def test_the_end_of_a_process_ends_its_leases(db: sqlite3.Connection, trusts_living: bool):
    leases.take(db, "a", owner_text(replace(current_owner(), boot_id="another")), LENGTH_S)
    assert LeaseObserver(trusts_living=trusts_living).ended(db, ["a"]) == {"a": GONE}


def test_a_process_that_lives_keeps_its_leases_where_it_is_trusted(
    db: sqlite3.Connection, monotonic: Monotonic
):
    leases.take(db, "a", LIVING, LENGTH_S)
    observer = LeaseObserver(trusts_living=True)
    assert ends_after(db, observer, monotonic, LENGTH_S) == 100
    leases.take(db, "b", owner_text(replace(current_owner(), host="another")), LENGTH_S)
    monotonic.now = 0.0
    for _ in range(leases.BEATS):
        assert observer.ended(db, ["b"]) == {}
        monotonic.now += LENGTH_S
    assert observer.ended(db, ["b"]) == {"b": SILENT}


def test_a_missing_or_damaged_lease_has_ended(db: sqlite3.Connection):
    observer = LeaseObserver(trusts_living=False)
    assert observer.ended(db, [None, "b"]) == {None: GONE, "b": GONE}
    db.execute("INSERT INTO lease VALUES ('a', ?, 'x', 'long')", (LIVING,))
    assert observer.ended(db, ["a"]) == {"a": GONE}
