"""The example of a watched folder: killed before any of its renames and restarted, it loses nothing and repeats nothing."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "watched_folder" / "run.py"
SUMMARIES = {
    "baikal.md": "Lake Baikal is the deepest lake on Earth.",
    "canal.md": "The Suez Canal, which was opened in 1869 after ten years of …",
    "helium.md": "Helium was seen in the light of the Sun before it was found on Earth.",
    "late.md": "It came later.",
}
# Task files, deliverables, published files, archives, summaries and documents all get their names by a rename.
KILLED = """
import importlib.util, os, signal, sys
from pathlib import Path
_, example, folder, number = sys.argv
spec = importlib.util.spec_from_file_location("watched_folder", example)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
left = int(number)
def count(event, arguments):
    global left
    if event == "os.rename":
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
module.main(Path(folder))
"""


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("watched_folder", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(folder: Path, names: set[str]) -> list[list[str]]:
    """Checks that these documents were done once. Returns: the results of the attempts at each."""
    (archive,) = (folder / "queue" / "archive").iterdir()
    entries = json.loads(archive.read_bytes())["tasks"]
    assert json.loads((folder / "queue" / "task-queue.json").read_bytes())["tasks"] == []
    described = [
        f"Summarise the document {name} of the inbox in at most 20 words" for name in sorted(names)
    ]
    assert sorted(entry["description"] for entry in entries) == described
    assert [entry["id"] for entry in entries] == [f"T-{n:02d}" for n in range(1, len(names) + 1)]
    for entry in entries:
        assert entry["status"] == "done"
        *earlier, last = entry["strategies_tried"]
        assert entry["deliverable"] in last["result"] and last["verification_failure"] is None
        for attempt in earlier:
            assert (
                attempt["result"].startswith("interrupted: ")
                or "words" in attempt["verification_failure"]
            )
    assert {path.name: path.read_text() for path in (folder / "summaries").glob("*.md")} == {
        name: SUMMARIES[name] for name in names
    }
    assert list((folder / "inbox").iterdir()) == []
    assert {path.name for path in (folder / "documents").iterdir()} == names
    return [[attempt["result"] for attempt in entry["strategies_tried"]] for entry in entries]


def test_killed_again_and_again_it_does_every_document_once_and_resumes_attempts(
    tmp_path: Path, example: ModuleType
) -> None:
    folder = tmp_path / "watched"
    for number in (1, 4, 4, 6):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, EXAMPLE, folder, str(number)], stderr=subprocess.PIPE
        )
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    example.main(folder)
    attempts = check(folder, SUMMARIES.keys() - {"late.md"})
    assert "(interrupted " in str(attempts), "no kill interrupted an attempt"
    assert [
        len([result for result in results if result.startswith("TASK-")]) for results in attempts
    ] == [1, 2, 1]


def test_a_restart_takes_new_documents_and_repeats_none(
    tmp_path: Path, example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> str:
        example.main(folder)
        return capsys.readouterr().out

    folder = tmp_path / "watched"
    run()
    assert list(map(len, check(folder, SUMMARIES.keys() - {"late.md"}))) == [1, 2, 1]
    tasks = sorted((folder / "tasks" / "done").iterdir())
    (folder / "inbox" / "late.md").write_text(SUMMARIES["late.md"])
    assert run() == "T-04 late.md: It came later.\n"
    assert list(map(len, check(folder, set(SUMMARIES)))) == [1, 2, 1, 1]
    assert (
        len(list((folder / "tasks" / "done").iterdir())) == len(tasks) + 2
    )  # the summary and its verification
    (folder / "documents" / "late.md").rename(
        folder / "inbox" / "late.md"
    )  # as after a kill before it was moved
    assert run() == "T-04 late.md: It came later.\n"
    check(folder, set(SUMMARIES))
