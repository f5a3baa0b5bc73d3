"""The search for garbage while samples run: rare, and without what was there before.

A sample leaves no cycles behind, so the search finds nothing but what scorers and tools of users leave; with hundreds
of samples in flight it would look at all of theirs again and again.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

ALLOCATIONS = 50_000
"""Objects made, less those that are gone, from one search of the youngest to the next; Python's own number is 700."""

_lock = threading.Lock()
_inside = 0
_before = (0, 0, 0)


@contextmanager
def rarely_searched() -> Generator[None]:
    """Within it the search is rare. Batches side by side share it: the last one that ends puts back what was."""
    global _inside, _before
    with _lock:
        _inside += 1
        if _inside == 1:
            _before = gc.get_threshold()
            if 0 < _before[0] < ALLOCATIONS:
                gc.set_threshold(ALLOCATIONS, *_before[1:])
            gc.freeze()
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                gc.unfreeze()
                gc.set_threshold(*_before)
