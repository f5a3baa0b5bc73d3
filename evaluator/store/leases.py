"""Leases: a process that works on something says so again and again, and others see that it does.

A lease is a row with its owner (`owner_text`) and a counter, which the owner raises several times
in the lease's length. No lease ends by a clock that other processes read. It ends with its owner's
process; where that cannot be seen (another machine or container), or does not decide, it ends once
an observer has seen the counter unchanged for the lease's length on the observer's own monotonic
clock. Of the time between two looks at most one interval of renewal counts, so that a machine that
was paused or suspended gives the owner the time to renew the lease.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from evaluator import clock
from evaluator.lazy_dataclass import dataclass
from evaluator.store.owners import is_gone, is_visible, parse_owner

BEATS = 4
"""How often a lease is renewed in its length."""
TABLE = """
CREATE TABLE lease (
    token TEXT PRIMARY KEY, owner TEXT NOT NULL, beats INTEGER NOT NULL, length_s REAL NOT NULL
)""".strip()
GONE = "the worker's process ended"
SILENT = "the worker did not renew its lease"


def take(db: sqlite3.Connection, token: str, owner: str, length_s: float) -> None:
    """Makes a lease; a lease with this token is renewed."""
    db.execute(
        "INSERT INTO lease VALUES (?, ?, 0, ?) ON CONFLICT (token) DO UPDATE SET beats = beats + 1",
        (token, owner, length_s),
    )


def renew(db: sqlite3.Connection, token: str, length_s: float) -> None:
    """Renews a lease, if there is one with this token."""
    sql = "UPDATE lease SET beats = beats + 1, length_s = ? WHERE token = ?"
    db.execute(sql, (length_s, token))


def release(db: sqlite3.Connection, token: str | None) -> None:
    """Removes a lease."""
    db.execute("DELETE FROM lease WHERE token = ?", (token,))


@dataclass(slots=True)
class _Seen:
    beats: int
    at: float
    unchanged_s: float = 0.0


class LeaseObserver:
    """What this process has seen of leases. `trusts_living`: a process that is seen to live may be
    slow and keeps its leases. Otherwise its event loop may hang, and the counter decides.
    """

    def __init__(self, *, trusts_living: bool) -> None:
        self._trusts_living = trusts_living
        self._seen: dict[str, _Seen] = {}

    def ended(self, db: sqlite3.Connection, tokens: Iterable[str | None]) -> dict[str | None, str]:
        """Those of `tokens` whose leases have ended, with the reason. A lease that is missing has
        ended.

        What was seen of other leases is forgotten.
        """
        before = self._seen
        self._seen = {}
        ended: dict[str | None, str] = {}
        for token in tokens:
            sql = "SELECT owner, beats, length_s FROM lease WHERE token = ?"
            lease = db.execute(sql, (token,)).fetchone()
            if token is None or lease is None:
                ended[token] = GONE
                continue
            owner, beats, length_s = lease
            process = parse_owner(str(owner))
            if process is None or is_gone(process) or not isinstance(length_s, float):
                ended[token] = GONE
            elif self._trusts_living and is_visible(process):
                continue
            elif self._is_silent(before.get(token), token, beats, length_s):
                ended[token] = SILENT
        return ended

    def _is_silent(self, seen: _Seen | None, token: str, beats: int, length_s: float) -> bool:
        now = clock.monotonic()
        if seen is None or seen.beats != beats:
            seen = _Seen(beats, now)
        seen.unchanged_s += min(now - seen.at, length_s / BEATS)
        seen.at = now
        self._seen[token] = seen
        return seen.unchanged_s >= length_s
