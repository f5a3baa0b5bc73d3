"""Attempts with what somebody else has stored: task files, samples of a batch's folder, response caches, pickles.

Somebody else has another key, so that their signature is not the user's. Each attempt has a control: what the user's
own program stored is used.
"""

from __future__ import annotations

import ast
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evaluator import Evaluator, HandlerConfig, ResponseCache, SimulatedBackend, TemplateLibrary
from evaluator.batch.work import Worker
from evaluator.errors.results import TaskError, Usage
from evaluator.interpreter.run_files import signed_part
from evaluator.models.backend import Message, ModelRequest, ModelResponse
from evaluator.models.cache_store import CacheKey
from evaluator.record.steps import Header

PACKAGE = Path(__file__).parents[2] / "evaluator"
# A template of the project: asks the model, then runs a shell with an input.
TEMPLATE = """<task name="n" type="sequential"><description>d</description>
<inputs><input name="word" required="true">a word</input></inputs><steps>
<task name="a" type="atomic"><description>ask</description></task>
<task name="b" type="script"><description>say</description><command shell="true">echo {{ word }}</command></task>
</steps></task>"""
CONFIG = HandlerConfig(backend="simulated", backoff_s=())


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "user"))
    return folder


def library() -> TemplateLibrary:
    found = TemplateLibrary()
    found.add(TEMPLATE)
    return found


def unfinished_task(word: str) -> int:
    """A task file that ends before the script: the model failed."""
    failing = SimulatedBackend(fail=1.0)
    outcome = Evaluator(library(), CONFIG, backend=failing).evaluate_sync("n", {"word": word})
    assert isinstance(outcome, TaskError) and outcome.task_id is not None
    return outcome.task_id


@pytest.mark.parametrize(
    ("is_own", "options", "runs"),
    [(False, {}, False), (True, {}, True), (False, {"trust": True}, True)],
)
def test_a_task_file_of_somebody_else_chooses_no_template_and_no_inputs(
    is_own: bool,
    options: dict[str, Any],
    runs: bool,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = unfinished_task("x; touch MARK")
    if not is_own:
        monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(project / "another-user"))
    evaluator = Evaluator(library(), CONFIG, backend=SimulatedBackend())
    outcome = evaluator.resume_sync(task, **options)
    assert (outcome.ok, (project / "MARK").exists()) == (runs, runs), outcome
    if not runs:
        assert isinstance(outcome, TaskError) and "no program of yours wrote" in outcome.message


def test_the_signature_of_a_header_covers_everything_that_decides_what_runs() -> None:
    header = Header(1, "now", "r", {"a": 1}, "t", model="m", extra={"handler": "h", "root": "/"})
    signed = signed_part(header)
    changes: list[dict[str, Any]] = [
        {"request": "x"},
        {"inputs": {"a": 2}},
        {"template": "u"},
        {"model": "n"},
        {"extra": {"handler": "g", "root": "/"}},
        {"extra": {**header.extra, "node": "<task/>"}},
        {"extra": {**header.extra, "model_roles": {"grader": "m"}}},
    ]
    for change in changes:
        assert signed_part(Header(**{**header_fields(header), **change})) != signed
    same = {"extra": {**header.extra, "signature": "0"}, "created": "later", "task_id": 2}
    assert signed_part(Header(**{**header_fields(header), **same})) == signed, "the control"


def header_fields(header: Header) -> dict[str, Any]:
    return {name: getattr(header, name) for name in Header.__dataclass_fields__}


@pytest.mark.parametrize(
    ("change", "is_run"),
    [
        ({}, True),
        ({"inputs": {"word": "x; touch MARK", "key": "***"}}, False),
        ({"template": "other"}, False),
        ({"model": "expensive"}, False),
        ({"extra": {"handler": "other"}}, False),
        ({"extra": {"node": "<task/>"}}, False),
    ],
)
def test_a_batch_continues_a_recorded_sample_only_if_it_is_its_own(
    change: dict[str, Any], is_run: bool
) -> None:
    extra = {"redacted_inputs": ["key"], "handler": None, **change.pop("extra", {})}
    fields = {"template": "n", "inputs": {"word": "x", "key": "***"}, "model": "m", **change}
    header = Header(1, "now", **fields, extra=extra)
    services = SimpleNamespace(default_profile=SimpleNamespace(name="default"))
    worker: Any = SimpleNamespace(
        _recording=lambda _: SimpleNamespace(header=header),
        evaluator=SimpleNamespace(services=services, model=None),
    )
    inputs = {"word": "x", "key": "secret"}
    assert Worker._is_run(worker, 1, "n", inputs, "m", None) is is_run


# -- response caches ------------------------------------------------------------------------------------------------


def key_of(prompt: str) -> CacheKey:
    request = ModelRequest("m", (Message("user", prompt),))
    return CacheKey.of(request, endpoint="https://a.example", epoch=1)


def answer(text: str) -> ModelResponse:
    return ModelResponse(text, finish_reason="stop", usage=Usage(turns=1))


def stored(path: Path, text: str) -> None:
    cache = ResponseCache(path)
    cache._open()
    cache.put(key_of("q"), answer(text))
    cache.close()


def found(path: Path) -> tuple[str | None, list[str]]:
    """What a cache answers, and its notices."""
    notices: list[str] = []
    cache = ResponseCache(path, notice=notices.append)
    cache._open()
    response = cache.get(key_of("q"))
    cache.close()
    return response and response.content, notices


def test_a_cache_of_somebody_else_is_not_used(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = project / "cache.db"
    stored(path, "poison")
    assert found(path) == ("poison", []), "the control"
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "another"))
    response, notices = found(path)
    assert response is None
    assert len(notices) == 1 and "no program of yours stored are not used" in notices[0]
    # The user's own answer takes its place.
    cache = ResponseCache(path, notice=notices.append)
    cache._open()
    assert cache.get(key_of("q")) is None
    cache.put(key_of("q"), answer("own"))
    cache.close()
    assert found(path) == ("own", [])
    # Control: the folder is trusted.
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "third"))
    monkeypatch.setenv("EVALUATOR_TRUST", str(project))
    assert found(path) == ("own", [])


@pytest.mark.parametrize("column", ["response", "usage", "key", "signature"])
def test_a_response_that_was_changed_is_not_used(column: str, project: Path) -> None:
    path = project / "cache.db"
    stored(path, "good")
    other = ResponseCache(project / "other.db")
    other._open()
    other.put(key_of("another question"), answer("moved"))
    other.close()
    with closing(sqlite3.connect(project / "other.db")) as connection:
        row = connection.execute("SELECT response, usage, signature FROM response").fetchone()
    with closing(sqlite3.connect(path)) as connection, connection:
        if column == "key":
            connection.execute("UPDATE response SET response = ?, usage = ?, signature = ?", row)
        elif column == "signature":
            connection.execute("UPDATE response SET signature = NULL")
        else:
            text = {"response": '{"content": "bad", "finish_reason": "stop"}', "usage": "{}"}
            connection.execute(f"UPDATE response SET {column} = ?", (text[column],))
    assert found(path)[0] is None


# -- pickles --------------------------------------------------------------------------------------------------------

# What is unpickled, and from whom: messages of the process that started this one, or of Ray.
UNPICKLED = {
    "batch/engines/process_worker.py": "the socket of the parent process",
    "batch/engines/process_engine.py": "the socket of a child process",
    "batch/engines/base.py": "messages between hosts of one batch",
    "batch/engines/host.py": "the recipe that the parent sends",
    "testing/answer_checks.py": "a copy that the check makes itself",
}
READING_CODE = {"load", "loads", "Unpickler", "read_pickle", "allow_pickle"}


def test_pickles_come_from_processes_of_the_batch_and_never_from_files() -> None:
    places: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                modules = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                assert not {"shelve", "dill"} & set(modules), name
            if isinstance(node, ast.Attribute) and node.attr in READING_CODE:
                owner = ast.unparse(node.value)
                if "pickle" in owner or node.attr in ("Unpickler", "read_pickle", "allow_pickle"):
                    places.add(name)
    assert places == set(UNPICKLED)


def test_a_folder_of_a_batch_holds_no_pickle(project: Path) -> None:
    """A pickle begins with the bytes of its protocol; every file of the folder is read."""
    from evaluator.batch import run_batch_sync

    runner = Evaluator(library(), CONFIG, backend=SimulatedBackend(), tasks_dir=None)
    rows = [{"word": "a"}, {"word": "b"}]
    run_batch_sync("n", rows, evaluator=runner, output=project / "b", cache=project / "b/cache.db")
    files = [path for path in (project / "b").rglob("*") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        assert not data.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")), path
