"""A question in a file, answered by another process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evaluator import ToolError
from evaluator.tools import FileAsker

ANSWERER = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
while not (asked := sorted(folder.glob("question-*.txt"))):
    pass
for path in asked:
    draft = folder / "draft"
    draft.write_text("yes to: " + path.read_text())
    os.rename(draft, folder / path.name.replace("question", "answer"))
"""


async def questions(folder: Path, count: int) -> list[Path]:
    """The questions in the folder, once there are so many: an asking task needs a turn of the loop for each."""
    for _ in range(count):
        await asyncio.sleep(0)
    found = sorted(folder.glob("question-*.txt"))  # noqa: ASYNC240 (a test's own folder)
    assert len(found) == count
    return found


def test_another_process_answers(tmp_path: Path) -> None:
    folder = tmp_path / "questions"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", ANSWERER, str(folder)]) as process:
        answer = asyncio.run(FileAsker(folder, look_every_s=0.01).ask("Go on?"))
        process.wait(200)
    assert answer == "yes to: Go on?"
    assert sorted(path.name for path in folder.iterdir()) == ["answer-1.txt"]


def test_questions_side_by_side_have_numbers_of_their_own_and_old_answers_are_not_taken(
    tmp_path: Path,
) -> None:
    (tmp_path / "answer-1.txt").write_text("old")
    asker = FileAsker(tmp_path, look_every_s=0.01)

    async def both() -> list[str]:
        asking = [asyncio.ensure_future(asker.ask(text)) for text in ("a?", "b?")]
        found = await questions(tmp_path, 2)
        assert {path.name for path in found} == {"question-2.txt", "question-3.txt"}
        for path in found:
            draft = tmp_path / f"draft-{path.name}"
            draft.write_text(path.read_text().upper())
            os.rename(draft, path.with_name(path.name.replace("question", "answer")))
        return await asyncio.gather(*asking)

    assert asyncio.run(both()) == ["A?", "B?"]


def test_a_question_that_is_no_longer_asked_is_deleted(tmp_path: Path) -> None:
    async def given_up() -> None:
        asking = asyncio.ensure_future(FileAsker(tmp_path, look_every_s=0.01).ask("?"))
        await questions(tmp_path, 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(given_up())
    assert list(tmp_path.iterdir()) == []


def test_a_link_a_flood_and_a_folder_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "answer-1.txt").symlink_to("/etc/hostname")
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolError, match="cannot be written"):
        asyncio.run(FileAsker(tmp_path / "file").ask("?"))

    async def answered(content: bytes | str | None) -> str:
        asking = asyncio.ensure_future(FileAsker(tmp_path, look_every_s=0.01).ask("?"))
        found = await questions(tmp_path, 1)
        answer = found[0].with_name(found[0].name.replace("question", "answer"))
        if content is None:
            answer.symlink_to("/etc/hostname")
        elif isinstance(content, str):
            answer.mkdir()
        else:
            (tmp_path / "draft").write_bytes(content)
            os.rename(tmp_path / "draft", answer)
        return await asking

    with pytest.raises(ToolError, match="cannot be read"):
        asyncio.run(answered(None))
    with pytest.raises(ToolError, match="it is not a regular file"):
        asyncio.run(answered("a folder"))
    with pytest.raises(ToolError, match="at most 1,000,000 are read"):
        asyncio.run(answered(b"x" * 1_000_001))
    assert asyncio.run(answered(b"\xff no")) == "� no"
