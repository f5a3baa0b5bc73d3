"""A benchmark sends what its author wrote and nothing else: the bytes of the requests of a batch, on a real server."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, TemplateLibrary, run_batch_sync
from evaluator.files.locations import shipped
from evaluator.handler.config import read_profile
from evaluator.testing import Answer, LoopbackServer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

HANDLERS = shipped("handlers")
PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20
ASK = """<task name="ask" type="atomic"><description>Any description</description>
<instructions>Q: {{ question }}
A:</instructions>%s<inputs><input name="question"/></inputs></task>"""
FILES = "<file_paths><path>a.png</path><path>b.png</path></file_paths>"


@pytest.mark.parametrize("backend", ["openai_compatible", "litellm"])
@pytest.mark.parametrize("profile", sorted(path.stem for path in HANDLERS.glob("*.xml")))
@pytest.mark.parametrize("files", ["", FILES])
def test_the_prompt_of_the_author_and_its_images_are_all_that_is_sent(
    backend: str, profile: str, files: str, tmp_path: Path
) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(PNG)
    library = TemplateLibrary()
    library.add(ASK % files)
    with LoopbackServer(default=Answer("4")) as server:
        config = read_profile(HANDLERS / f"{profile}.xml")[0].override(
            backend=backend, model="openai/m", base_url=server.base_url, roots=(str(tmp_path),)
        )
        evaluator = Evaluator(library, config, tasks_dir=tmp_path / "tasks", model="openai/m")
        rows = [{"id": "r", "question": "2 + 2?", "target": "4"}]
        run_batch_sync("ask", rows, evaluator=evaluator, scorers=["exact"], output=tmp_path / "b")
        (body,) = server.bodies
    text = "Q: 2 + 2?\nA:"
    image: Any = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(PNG).decode()},
    }
    content = [image, image, {"type": "text", "text": text}] if files else text
    assert json.dumps(body["messages"]) == json.dumps([{"role": "user", "content": content}])
    assert body.keys() - {"max_tokens", "temperature", "seed"} == {"model", "messages"}
