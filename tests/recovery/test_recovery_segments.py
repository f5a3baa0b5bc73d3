"""A batch with packed tasks that is killed at any effect, and resumed, ends as if nothing had happened.

Each test kills at the effects that leave one kind of state behind, and checks which calls were repeated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
Crash = tuple[int, str]


@dataclass
class Killed:
    """A session that was killed, and the one that resumed it. `before`: what the tasks on the disk said in between."""

    crash: Crash
    called: Counter[str]
    called_again: Counter[str]
    before: dict[str, list[Any]]
    resumed: dict[str, Any]


class Sessions:
    """Runs sessions in processes forked from one that has imported everything."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = 0
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)])}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "segments_child.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
        )

    def run(self, folder: Path, **job: Any) -> dict[str, Any] | None:
        """What the session reports; None if it was killed."""
        out = folder / "out"
        line = json.dumps({"folder": str(folder), "out": str(out), **job})
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        code = json.loads(self.process.stdout.readline())
        if code == -9:
            return None
        assert code == 0
        return json.loads(out.read_bytes())

    def new_folder(self) -> Path:
        self.count += 1
        folder = self.root / str(self.count)
        folder.mkdir()
        return folder

    def kills(self, crashes: list[Crash], sync: str = "off") -> list[Killed]:
        """A session killed at each of `crashes`. A few may end before: how many results share a write varies."""
        found = [self._kill(crash, sync) for crash in crashes]
        killed = [each for each in found if each is not None]
        assert len(killed) >= len(crashes) - 4
        return killed

    def _kill(self, crash: Crash, sync: str) -> Killed | None:
        folder = self.new_folder()
        if self.run(folder, crash=crash, sync=sync) is not None:
            return None
        called = calls(folder)
        resumed = self.run(folder, resume=True, sync=sync)
        assert resumed is not None
        return Killed(crash, called, calls(folder) - called, resumed["before"], resumed)


def calls(folder: Path) -> Counter[str]:
    path = folder / "calls.txt"
    return (
        Counter(json.loads(line) for line in path.read_text().splitlines())
        if path.exists()
        else Counter()
    )


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    found = Sessions(tmp_path_factory.mktemp("sessions"))
    yield found
    found.process.communicate()
    assert found.process.returncode == 0


@pytest.fixture(scope="module")
def whole(sessions: Sessions) -> dict[str, Any]:
    """The undisturbed session."""
    said = sessions.run(sessions.new_folder(), sync="off")
    assert said is not None and said["complete"] and len(said["results"]) == 4
    return said


def check(killed: Killed, whole: dict[str, Any]) -> None:
    """Nothing is lost, doubled or different, and only calls without a recorded end are repeated."""
    resumed = killed.resumed
    assert resumed["complete"], killed.crash
    assert resumed["results"] == whole["results"], killed.crash
    assert resumed["lines"] == 4, killed.crash
    assert "damaged" not in killed.before, (killed.crash, killed.before)
    for prompt, count in killed.called.items():
        # A call is made only once its beginning is on the disk.
        entries = killed.before.get(prompt, [])
        assert len(entries) >= count, (killed.crash, prompt, killed.before)
        if entries[-1][1] == "success" or entries[-1][0] == "failed":
            assert not killed.called_again[prompt], (killed.crash, prompt)


def points(whole: dict[str, Any], kinds: tuple[str, ...], hows: tuple[str, ...]) -> list[Crash]:
    return [
        (number, how)
        for number, (kind, *_) in enumerate(whole["effects"])
        if kind in kinds
        for how in hows
    ]


def test_a_torn_last_frame_is_ignored(sessions: Sessions, whole: dict[str, Any]) -> None:
    found = sessions.kills(points(whole, ("pwrite",), ("half",))[::3])
    for killed in found:
        check(killed, whole)
    assert any(killed.called for killed in found)


def test_a_call_that_was_begun_and_has_no_end_is_repeated(
    sessions: Sessions, whole: dict[str, Any]
) -> None:
    found = sessions.kills(points(whole, ("pwrite",), ("before",)))
    in_flight = 0
    for killed in found:
        check(killed, whole)
        for prompt, entries in killed.before.items():
            if [status for _, status in entries] == ["running"]:
                assert killed.called_again[prompt] == 1, (killed.crash, prompt)
                in_flight += 1
    assert in_flight


def test_a_task_that_ended_without_its_result_is_scored_without_a_call(
    sessions: Sessions, whole: dict[str, Any]
) -> None:
    crashes = points(whole, ("pwrite",), ("after",)) + points(whole, ("results",), ("before",))
    found = sessions.kills(crashes)
    ended = Counter[str]()
    for killed in found:
        check(killed, whole)
        for prompt, entries in killed.before.items():
            for status, _ in entries:
                if status in ("completed", "failed"):
                    assert not killed.called_again[prompt], (killed.crash, prompt)
                    ended[status] += 1
    assert ended["completed"] and ended["failed"], "answers and errors"


def test_a_torn_line_of_results_is_removed_and_written_again(
    sessions: Sessions, whole: dict[str, Any]
) -> None:
    for killed in sessions.kills(points(whole, ("results",), ("half", "after"))):
        check(killed, whole)
        assert not any(
            killed.called_again[prompt]
            for prompt, entries in killed.before.items()
            if entries[-1][0] in ("completed", "failed")
        )


def test_killed_at_any_other_effect_it_ends_the_same(
    sessions: Sessions, whole: dict[str, Any]
) -> None:
    kinds = {kind for kind, *_ in whole["effects"]} - {"pwrite", "results"}
    for kind in kinds:
        found = points(whole, (kind,), ("after",))
        # Each distinct effect once, and of those that recur some.
        for killed in sessions.kills([*found[:1], *found[1::3]]):
            check(killed, whole)


@pytest.mark.parametrize("sync", ["task", "step"])
def test_with_syncs_too(sessions: Sessions, whole: dict[str, Any], sync: str) -> None:
    said = sessions.run(sessions.new_folder(), sync=sync)
    assert said is not None
    crashes = points(said, ("fdatasync", "pwrite"), ("before",))
    assert any(kind == "fdatasync" for kind, *_ in said["effects"])
    for killed in sessions.kills(crashes[::7], sync=sync):
        check(killed, whole)
