"""Background tasks in the viewer: the list, the end of an output, and the kill by form."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.background import BackgroundTasks, End, ScriptWork
from evaluator.store.owners import current_owner
from evaluator.viewer.server import queues
from tests.batch.export.results import HOSTILE
from tests.viewer.site import Site, assert_harmless, page, visit
from tests.viewer.tasks import FOLDER, ID, add_task, end_task


def address(root: Path, task_id: str = ID) -> str:
    found = re.search(rf'"(/background/[0-9a-f]+/{task_id})"', page(root, "/background").text)
    assert found is not None
    return found[1]


def test_without_tasks_the_page_says_how_to_start_one(tmp_path: Path) -> None:
    assert page(tmp_path, "/background").data["has_folders"] is False


def test_the_list_has_each_task_with_its_state(tmp_path: Path) -> None:
    add_task(tmp_path)
    add_task(tmp_path, id="a00000000", type="a", description="ended")
    end_task(
        tmp_path, End("failed", reason="no answer", input_tokens=7, output_tokens=5), "a00000000"
    )
    data = page(tmp_path, "/background").data
    running, ended = data["rows"]
    assert (running["id"], ended["id"]) == (ID, "a00000000"), "the running one first"
    assert ended["reason"] == "no answer"
    assert (ended["input_tokens"], ended["output_tokens"]) == (7, 5)
    assert data["live_ms"] == 2_000


def test_a_task_whose_process_is_gone_is_shown_as_failed(tmp_path: Path) -> None:
    add_task(tmp_path, owner=replace(current_owner(), pid=2**22 + 1), output=b"so far")
    data = page(tmp_path, address(tmp_path)).data
    assert (data["status"], data["has_ended"]) == ("failed", True)
    assert data["window"]["text"] == "so far"


def test_an_output_is_shown_from_its_end_in_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "WINDOW_BYTES", 25)
    add_task(tmp_path, output=b"".join(b"line %d\n" % number for number in range(100)))
    data = page(tmp_path, address(tmp_path)).data
    assert data["window"]["text"] == "line 97\nline 98\nline 99\n"
    assert data["window"]["before"] == 97 * 8 - 10
    assert data["live_ms"] == 1_000


def test_a_transcript_is_shown_as_messages(tmp_path: Path) -> None:
    lines = [
        json.dumps({"type": "message", "path": "p", "role": "user", "content": "the question"}),
        json.dumps({"type": "outcome", "content": "the answer"}),
        "no JSON",
        "[1]",
        "[" * 5_000,
    ]
    add_task(tmp_path, suffix="jsonl", output="\n".join(lines).encode())
    message, outcome, *lines = page(tmp_path, address(tmp_path)).data["window"]["records"]
    assert (message["role"], message["content"]) == ("user", "the question")
    assert outcome["content"] == "the answer"
    assert lines[0] == "no JSON"


@pytest.mark.parametrize("kind", ["link", "pipe", "missing"])
def test_only_the_file_in_the_folder_of_the_tasks_is_read(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret.log"
    secret.write_text("the secret", encoding="utf-8")
    task = add_task(tmp_path, output=None, output_file=str(secret))
    inside = tmp_path / FOLDER / "secret.log"
    if kind == "link":
        inside.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(inside)
    text = page(tmp_path, address(tmp_path, task.id)).text
    assert "the secret" not in text
    assert "the output cannot be read" in text


def test_a_task_is_killed_by_its_form_only_with_token_and_confirmation(tmp_path: Path) -> None:
    async def steps(site: Site) -> None:
        async with BackgroundTasks(tmp_path / FOLDER) as tasks:
            task = tasks.start(ScriptWork(["sleep", "600"], cwd=tmp_path), "sleeps")
            path = re.findall(
                r'"(/background/[0-9a-f]+/b[0-9a-z]+)"', (await site.get("/background")).text
            )[0]
            token = (await site.get(path)).data["token"]
            origin = {"Origin": site.address}
            for form, message in (
                ({"token": "wrong", "confirm": "yes"}, "not of this server"),
                ({"token": token}, "the kill was not confirmed"),
            ):
                answer = await site.ask("POST", path, data=form, headers=origin)
                assert (answer.status, message in answer.text) == (400, True)
            assert not tasks.store.get(task.id).has_ended
            assert (
                await site.ask("POST", path, data={"token": token, "confirm": "yes"})
            ).status == 403, "no Origin"
            answer = await site.ask(
                "POST", path, data={"token": token, "confirm": "yes"}, headers=origin
            )
            assert "killed in the viewer" in answer.text
            assert (await tasks.wait(task.id)).status == "killed"

    visit(tmp_path, steps)


@pytest.mark.parametrize("task_id", ["b00000000", "x", "..%2F..%2Fetc"])
def test_a_task_that_does_not_exist_is_not_found(tmp_path: Path, task_id: str) -> None:
    add_task(tmp_path)
    assert page(tmp_path, f"{address(tmp_path).rpartition('/')[0]}/{task_id}").status == 404


@pytest.mark.parametrize("suffix", ["log", "jsonl"])
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_every_field_stays_text(tmp_path: Path, text: str, suffix: str) -> None:
    plain = text.encode("utf-8", "replace").decode()
    message = {
        "type": text,
        "role": text,
        "content": text,
        "tool_calls": [{"name": text, "arguments": text}],
    }
    output = (
        json.dumps(message).encode() if suffix == "jsonl" else text.encode("utf-8", "surrogatepass")
    )
    add_task(tmp_path, description=plain, suffix=suffix, output=output)
    assert_harmless(page(tmp_path, address(tmp_path)).text)
    end_task(tmp_path, End("failed", reason=plain, summary=plain, task_file=plain))
    assert_harmless(page(tmp_path, "/background").text)
    assert_harmless(page(tmp_path, address(tmp_path)).text)


def test_a_folder_that_cannot_be_read_is_named_beside_the_others(tmp_path: Path) -> None:
    add_task(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "background.sqlite").write_bytes(
        b"no database at all, but long enough to be one" * 100
    )
    text = page(tmp_path, "/background").text
    assert "other: " in text
    assert ID in text
