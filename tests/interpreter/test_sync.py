"""Ctrl-C ends the synchronous forms, also before the work has begun."""

import asyncio
import inspect
import signal
import threading
import warnings

import pytest

from evaluator.interpreter import sync


async def work():
    await asyncio.sleep(60)


@pytest.fixture
def waits(monkeypatch):
    """Whether the work had ended when each wait for it did."""
    sync.run_sync(asyncio.sleep(0))
    found = []
    real = sync.wait
    monkeypatch.setattr(
        sync, "wait", lambda futures, timeout: found.append(bool(real(futures, timeout).done))
    )
    return found


def test_ctrl_c_before_the_loop_takes_the_work_waits_for_its_end_and_no_longer(monkeypatch, waits):
    gate, loop = threading.Event(), sync._loop
    loop.call_soon_threadsafe(gate.wait, 30)

    class Interrupted(sync.Future):
        def done(self):
            gate.set()
            raise KeyboardInterrupt

    monkeypatch.setattr(sync, "Future", Interrupted)
    coroutine = work()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyboardInterrupt):
            sync.run_sync(coroutine)
    assert waits == [True]
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def test_ctrl_c_before_the_work_is_passed_to_the_loop_closes_it(monkeypatch, waits):
    loop = sync._loop
    real, calls = loop.call_soon_threadsafe, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    coroutine = work()
    with pytest.raises(KeyboardInterrupt):
        sync.run_sync(coroutine)
    assert waits == [True]
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def test_ctrl_c_that_ends_no_wait_is_noticed():
    """As just before a wait: the signal reaches a thread, but not the one that waits."""

    async def interrupted():
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        sync.run_sync(interrupted())
