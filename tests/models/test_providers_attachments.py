"""Images and PDFs among `file_paths`: what is attached, recorded and not sent."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    Attachment,
    Evaluator,
    HandlerConfig,
    InMemoryIndex,
    OpenAICompatibleBackend,
    TaskError,
    TaskResult,
    TaskStore,
    TemplateLibrary,
)
from evaluator.models import attachments, prices
from evaluator.models.attachments import media_type_of
from evaluator.testing import Answer, LoopbackServer

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(50))
PDF = b"%PDF-1.4\n1 0 obj << /Type /Page >> 2 0 obj << /Type /Pages >> 3 0 obj << /Type/Page/A 1 >>"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (PDF, "application/pdf"),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"", None),
        (b"\x89PN", None),
        (b" %PDF-1.4", None),
        (b"plain text", None),
    ],
)
def test_the_first_bytes_say_what_a_file_is(data: bytes, expected: str | None) -> None:
    assert media_type_of(data) == expected


def test_tokens_are_estimated_by_kind_and_pages() -> None:
    assert Attachment("image/png", PNG, "a").tokens == 1_600
    assert Attachment("application/pdf", PDF, "a").tokens == 2 * 4_600
    assert Attachment("application/pdf", b"%PDF-" + b"x" * 120_000, "a").tokens == 3 * 4_600


LOOK = '<task name="look" type="atomic"><description>Look</description><file_paths>{}</file_paths></task>'


def look(
    folder: Path, files: dict[str, bytes], *, memory: bool = False, model: str = "m", **config: Any
) -> tuple[TaskResult | TaskError, LoopbackServer, str]:
    """Evaluates a task with `files`; returns the result, the server and the task file as text."""
    roots = folder / "roots"
    roots.mkdir()
    for name, data in files.items():
        (roots / name).write_bytes(data)
    library = TemplateLibrary()
    paths = "" if memory else "".join(f"<path>{name}</path>" for name in files)
    if memory:
        library.add(
            '<task name="look" type="atomic"><description>Look at a</description>'
            "<context_management><fresh_context>enabled</fresh_context></context_management></task>"
        )
    else:
        library.add(LOOK.format(paths))
    index = InMemoryIndex(dict.fromkeys(files, "a")) if memory else None

    async def run(url: str) -> TaskResult | TaskError:
        backend = OpenAICompatibleBackend(url)
        settings: dict[str, Any] = {
            "name": "test",
            "model": model,
            "roots": (str(roots),),
            "backoff_s": (),
            **config,
        }
        profile = HandlerConfig(**settings)
        evaluator = Evaluator(
            library, profile, backend=backend, tasks_dir=folder / "tasks", memory=index
        )
        try:
            return await evaluator.evaluate("look")
        finally:
            await backend.aclose()

    with LoopbackServer(default=Answer("seen")) as server:
        outcome = asyncio.run(run(server.base_url))
    (path,) = (folder / "tasks" / "done").glob("TASK-*.md")
    return outcome, server, path.read_text()


def test_images_and_pdfs_are_attached_by_content_and_text_is_text(tmp_path: Path) -> None:
    outcome, server, record = look(
        tmp_path, {"photo.txt": PNG, "paper": PDF, "notes.png": b"just text"}
    )
    assert isinstance(outcome, TaskResult)
    content = server.bodies[0]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["image_url", "file", "text"]
    assert (
        content[0]["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(PNG).decode()
    )
    assert content[1]["file"]["filename"] == "paper"
    assert content[2]["text"] == '<context source="file:notes.png">\njust text\n</context>\n\nLook'
    assert outcome.notes["warnings"] == []
    assert base64.b64encode(PNG).decode()[:20] not in record
    step = next(
        step for step in TaskStore(tmp_path / "tasks").read(1).steps if step.start.kind == "model"
    )
    assert step.start.args["messages"][0]["attachments"] == [
        {
            "source": "photo.txt",
            "media_type": "image/png",
            "size": 58,
            "sha256": hashlib.sha256(PNG).hexdigest(),
        },
        {
            "source": "paper",
            "media_type": "application/pdf",
            "size": len(PDF),
            "sha256": hashlib.sha256(PDF).hexdigest(),
        },
    ]


def test_the_fingerprint_covers_the_bytes(tmp_path: Path) -> None:
    prints: list[str] = []
    for number, data in enumerate((PNG, PNG[:-1] + b"x", PNG)):
        (folder := tmp_path / str(number)).mkdir()
        look(folder, {"a.png": data})
        step = next(
            step for step in TaskStore(folder / "tasks").read(1).steps if step.start.kind == "model"
        )
        prints.append(step.start.fingerprint)
    assert prints[0] == prints[2] != prints[1]


def test_an_image_for_a_model_without_vision_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def supports(_: str, feature: str) -> bool | None:
        return {"vision": True, "pdf_input": False}.get(feature)

    monkeypatch.setattr(prices, "supports", supports)
    outcome, server, _ = look(tmp_path, {"a.png": PNG, "b.pdf": PDF})
    content = server.bodies[0]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["image_url", "text"]
    assert outcome.notes["warnings"] == ["b.pdf was not sent: m takes no PDFs"]


def test_what_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "a": {"supports_vision": False},
        "b": {"supports_vision": True},
        "c": {"supports_vision": "yes"},
    }
    monkeypatch.setattr(prices, "_entry", table.get)
    assert [prices.supports(model, "vision") for model in ("a", "b", "c", "d")] == [
        False,
        True,
        None,
        None,
    ]


def test_a_file_that_is_too_large_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachments, "MAX_IMAGE_BYTES", 60)
    outcome, server, _ = look(tmp_path, {"a.png": PNG, "b.png": PNG + b"xyz"})
    assert len(server.bodies[0]["messages"][-1]["content"]) == 2
    assert outcome.notes["warnings"] == [
        "b.png was not attached: 61 bytes, at most 60 are sent of one image/png file"
    ]


def test_files_that_are_too_large_together_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evaluator.models.attachment_rules.MAX_BYTES_TOGETHER", 100)
    outcome, server, _ = look(tmp_path, {"a.png": PNG, "b.png": PNG[:-1], "c.png": PNG[:40]})
    assert [part["type"] for part in server.bodies[0]["messages"][-1]["content"]] == [
        "image_url",
        "image_url",
        "text",
    ]
    assert outcome.notes["warnings"] == [
        "b.png was not sent: the files of one message may hold 100 bytes together"
    ]


def test_images_that_memory_finds_are_not_attached(tmp_path: Path) -> None:
    outcome, server, _ = look(tmp_path, {"a.png": PNG}, memory=True)
    assert isinstance(server.bodies[0]["messages"][-1]["content"], str)
    assert outcome.notes["warnings"] == [
        "a.png was not attached: only file_paths attaches images and PDFs"
    ]


def test_an_image_counts_against_the_context(tmp_path: Path) -> None:
    outcome, server, _ = look(tmp_path, {"a.png": PNG}, context_window=1_500)
    assert isinstance(outcome, TaskError)
    assert outcome.resource is not None
    assert (outcome.resource.name, server.posts) == ("context", 0)
