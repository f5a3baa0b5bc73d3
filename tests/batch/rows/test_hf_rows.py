"""Data sets of the Hugging Face Hub as rows: named, downloaded once through `datasets`, read from the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, MissingExtra, UsageError, run_batch_sync
from evaluator.batch.rows import open_rows
from evaluator.batch.rows.hf_rows import HubRows, place_in, without_downloads

COMMIT = "a" * 40
PINNED = f"hf:own/sums/main:test@{COMMIT}"
ROWS = b'{"question": "1 + 1?", "target": "2"}\n{"question": "2 + 2?", "target": "4"}\n'
CARD = (
    b"---\nconfigs:\n- config_name: main\n  data_files:\n  - split: test\n    path: main/test.jsonl\n"
    b"- config_name: other\n  data_files:\n  - split: test\n    path: main/test.jsonl\n---\n"
)
FILES = {"README.md": CARD, "main/test.jsonl": ROWS}
OTHER_FILES = {"test.txt": b"one line\n"}


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as one data set needs. `asked` are the paths of all requests."""

    asked: list[str]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.asked.append(self.path)
        path = self.path.partition("?")[0]
        if "/resolve/" in path:
            content = self.files.get(path.partition(f"/resolve/{COMMIT}/")[2])
        elif "/tree/" in path:
            found = path.partition(f"/tree/{COMMIT}")[2].strip("/")
            content = self._listing(name for name in self.files if name.startswith(found))
        elif path.startswith("/api/datasets/own/"):
            siblings = [{"rfilename": name} for name in self.files]
            content = json.dumps(
                {"id": "own/sums", "sha": COMMIT, "siblings": siblings, "private": False}
            ).encode()
        else:
            content = None
        self._reply(content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._reply(self._listing(self.files))

    @property
    def files(self) -> dict[str, bytes]:
        return OTHER_FILES if "/own/words" in self.path else FILES

    def _listing(self, names: Any) -> bytes:
        return json.dumps(
            [
                {"type": "file", "path": name, "size": len(self.files[name]), "oid": "1" * 40}
                for name in names
            ]
        ).encode()

    def _reply(self, content: bytes | None) -> None:
        self.send_response(404 if content is None else 200)
        self.send_header("ETag", f'"{self.path.rpartition("/")[2]}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content or b"")))
        if content is None:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content or b"")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OneHub", (Hub,), {"asked": asked}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_data_set_is_downloaded_once_and_the_manifest_has_its_commit(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    url, asked = hub
    environment = {
        **os.environ,
        "HF_ENDPOINT": url,
        "HF_HOME": str(tmp_path / "hub"),
        "EVALUATOR_CACHE_DIR": str(tmp_path / "own"),
        "NO_PROXY": "127.0.0.1",
    }

    # Not the Hub's: a folder of the same name in the project.
    (tmp_path / "own/sums/main").mkdir(parents=True)
    (tmp_path / "own/sums/main/test.jsonl").write_text('{"question": "evil", "target": "x"}\n')

    def batch(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "evaluator", "batch", "--handler", "offline", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == code, done.stderr
        return done.stderr

    named = ("--template", "answer_question", "--scorer", "includes", "--rows")
    said = batch(*named, "hf:own/sums/main:test", "--output", "one")
    assert f"hf:own/sums/main:test: the commit is {COMMIT}; to keep it, write {PINNED}" in said
    said = batch(*named, "hf:own/words:test", "--output", "other", code=2)
    assert "its files are neither Parquet nor JSON nor CSV; convert them" in said
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    parts = {
        name: manifest["rows"][name]
        for name in ("kind", "name", "config", "split", "revision", "rows")
    }
    assert parts == {
        "kind": "hf",
        "name": "own/sums",
        "config": "main",
        "split": "test",
        "revision": COMMIT,
        "rows": 2,
    }
    assert manifest["arguments"]["rows"] == PINNED
    count = len(asked)
    assert count and not any("telemetry" in path for path in asked)
    monkeypatch.setenv("EVALUATOR_CACHE_DIR", str(tmp_path / "own"))
    for module in ("datasets", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, module, None)
    quiz: Any = {
        "evaluator": Evaluator(tasks_dir=None),
        "handlers": ["offline"],
        "scorers": ["includes"],
    }
    two = run_batch_sync(
        "answer_question", PINNED, **quiz, fewshot={"rows": PINNED, "k": 1}, output=tmp_path / "two"
    )
    assert two.ended.ran == 2
    with without_downloads():
        assert open_rows(PINNED).total == 2
    again = run_batch_sync("answer_question", PINNED, **quiz, output=tmp_path / "one", resume=True)
    assert (again.ended.ran, again.ended.counts.done) == (0, 2)
    assert len(asked) == count, "the commit is named, and its rows are stored"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:openai/gsm8k:test@v1.0", HubRows("openai/gsm8k", None, "test", "v1.0")),
        (
            "hf:cais/mmlu/abstract_algebra:test[:100]@refs/pr/3",
            HubRows("cais/mmlu", "abstract_algebra", "test[:100]", "refs/pr/3"),
        ),
        (PINNED, HubRows("own/sums", "main", "test", COMMIT)),
    ],
)
def test_a_name_has_a_configuration_a_split_and_a_revision(text: str, expected: HubRows) -> None:
    assert HubRows.parse(text) == expected and str(expected) == text
    assert (
        place_in("/folder", text) == text
        and place_in("/folder", "rows.jsonl") == "/folder/rows.jsonl"
    )


@pytest.mark.parametrize(
    "text",
    [
        "hf:",
        "hf:gsm8k",
        "hf:gsm8k:test",
        "hf:pandas:train@main",
        "hf:a/b/c/d:test",
        "hf:../x:test",
        "hf:/tmp/x:test",
        "hf:./x:test",
        "hf:a/b:test@",
        "hf:a/b:t@../x",
    ],
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected hf:OWNER/NAME/CONFIGURATION:SPLIT@REVISION"):
        open_rows(text)


def test_a_dry_run_asks_no_server() -> None:
    with without_downloads():
        with pytest.raises(UsageError, match="a dry run contacts no server; name the commit"):
            open_rows("hf:own/sums:test@main")
        with pytest.raises(
            UsageError, match="not downloaded yet, and a dry run contacts no server; run the batch"
        ):
            open_rows(f"hf:own/sums:test@{COMMIT}")


@pytest.mark.parametrize("text", ["hf:own/sums:test", f"hf:own/sums:test@{COMMIT}"])
def test_without_the_library_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    for module in ("datasets", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"pip install 'evaluator\[hf\]'"):
        open_rows(text)


@pytest.mark.skipif(
    not os.environ.get("EVALUATOR_TEST_HUB"), reason="set EVALUATOR_TEST_HUB=1 to read the real Hub"
)
def test_the_real_hub_gives_rows() -> None:
    rows = open_rows("hf:openai/gsm8k/main:test")
    assert rows.total == 1319 and len(str(rows.description["revision"])) == 40
