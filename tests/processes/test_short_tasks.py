"""The garbage collector runs rarely while there are many short tasks, and leaves out what existed
before, and nothing else.
"""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from evaluator.processes import concurrency
from evaluator.processes.concurrency import short_tasks


@pytest.fixture(autouse=True)
def _nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """The process of the tests has frozen what it imported, and that may have been seen."""
    monkeypatch.setattr(concurrency, "_program_freezes", False)
    gc.unfreeze()
    yield
    gc.freeze()


def test_objects_from_before_are_left_out_until_the_last_run_ends() -> None:
    assert gc.get_freeze_count() == 0
    with short_tasks():
        assert gc.get_freeze_count() > 0
        with short_tasks():
            pass
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("own", [700, 100_000])
def test_collections_are_rare_until_the_last_run_ends(own: int) -> None:
    _, *others = before = gc.get_threshold()
    gc.set_threshold(own, *others)
    try:
        with short_tasks(), short_tasks():
            assert gc.get_threshold() == (max(own, 50_000), *others)
        assert gc.get_threshold() == (own, *others)
        with short_tasks():
            gc.set_threshold(5, *others)
        assert gc.get_threshold() == (5, *others)
    finally:
        gc.set_threshold(*before)


def test_many_tasks_that_begin_together_start_no_collection() -> None:
    _, *others = before = gc.get_threshold()
    gc.set_threshold(700, *others)
    try:
        with short_tasks(2), short_tasks(1000), short_tasks(2):
            assert gc.get_threshold() == (150_000, *others)
        # A threshold is no larger than an int of C.
        with short_tasks(10**12):
            assert gc.get_threshold() == (1_500_000, *others)
        assert gc.get_threshold() == (700, *others)
    finally:
        gc.set_threshold(*before)


def test_they_are_collected_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="a row"), short_tasks():
        raise ValueError("a row")
    assert gc.get_freeze_count() == 0


def test_objects_that_a_program_has_frozen_stay_frozen() -> None:
    threshold, *others = before = gc.get_threshold()
    gc.freeze()
    try:
        with short_tasks(1000):
            assert gc.get_threshold() == (max(threshold, 150_000), *others)
        assert gc.get_threshold() == before
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_a_command_in_the_process_of_a_program_leaves_its_collector_alone() -> None:
    """In a process of its own: the command's module is imported once."""
    program = (
        "import gc\n"
        "from evaluator.cli import main\n"
        "before = gc.get_threshold(), gc.get_freeze_count()\n"
        "try: main(['templates', '--help'])\n"
        "except SystemExit: print('collector', (gc.get_threshold(), gc.get_freeze_count()) == before)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1:] == ["collector True"], ran.stderr


def test_a_command_of_its_own_process_collects_seldom() -> None:
    program = (
        "import atexit, gc, sys\n"
        "from evaluator.__main__ import _GC_THRESHOLD, main\n"
        "@atexit.register\n"
        "def show():\n"
        "    print('collector', gc.get_threshold()[0] == _GC_THRESHOLD, gc.get_freeze_count() > 0)\n"
        "sys.argv = ['evaluator', 'templates', '--help']\n"
        "main()"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1:] == ["collector True True"], ran.stderr


@pytest.mark.parametrize("module", ["json", "sqlite3"])
def test_a_command_ends_without_freeing_objects_unless_a_database_may_be_open(module: str) -> None:
    program = (
        f"import atexit, os, sys, {module}\n"
        "from evaluator.__main__ import main\n"
        "class Kept:\n"
        "    def __del__(self, write=os.write): write(2, b'freed')\n"
        "sys.kept = Kept()\n"
        "atexit.register(print, 'registered')\n"
        "sys.argv = ['evaluator', 'templates', '--nothing']\n"
        "main()"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout == "registered\n"
    assert ran.returncode == 2 and "--nothing" in ran.stderr
    assert ("freed" in ran.stderr) is (module == "sqlite3")


@pytest.mark.parametrize("is_daemon", [True, False])
def test_a_command_ends_after_the_work_of_a_pool_that_a_daemon_thread_has_started(
    is_daemon: bool,
) -> None:
    """The threads of such a pool are daemon threads too."""
    program = (
        "import os, sys, threading, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from evaluator.__main__ import main\n"
        "has_begun, ends = threading.Event(), threading.Event()\n"
        "threading._register_atexit(ends.set)\n"
        "def work():\n"
        "    has_begun.set()\n"
        "    ends.wait()\n"
        "    os.write(1, b'work done\\n')\n"
        "def start():\n"
        "    ThreadPoolExecutor(1).submit(work)\n"
        f"threading.Thread(target=start, daemon={is_daemon}).start()\n"
        "has_begun.wait()\n"
        "sys.argv = ['evaluator', 'templates', '--nothing']\n"
        "main()"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "work done\n"), ran.stderr


def test_a_program_around_the_command_continues_after_it() -> None:
    """A profiler that uses `sys.monitoring` is such a program."""
    program = (
        "import sys\n"
        "from evaluator.__main__ import main\n"
        "def around():\n"
        "    try: main()\n"
        "    except SystemExit as ending: print('continues', ending.code)\n"
        "sys.argv = ['evaluator', 'templates', '--nothing']\n"
        "around()"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "continues 2\n"), ran.stderr


def test_ctrl_c_while_the_process_ends_prints_no_traceback() -> None:
    program = (
        "import atexit, os, signal, sys\n"
        "from evaluator.__main__ import main\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.argv = ['evaluator', 'templates', '--help']\n"
        "main()"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")
    assert "--help" in ran.stdout
