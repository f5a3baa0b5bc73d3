"""Attempts with what somebody else has stored: task files, samples of a batch's folder, response caches, pickles.

Somebody else has another key, so that their signature is not the user's. Each attempt has a control: what the user's
own program stored is used.
"""

from __future__ import annotations

import ast
import asyncio
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest

from evaluator import (
    Evaluator,
    HandlerConfig,
    Message,
    ModelRequest,
    ModelResponse,
    ResponseCache,
    SimulatedBackend,
    TaskError,
    TaskResult,
    TemplateLibrary,
    Usage,
)
from evaluator.batch import Worker
from evaluator.models.cache_store import CacheKey
from evaluator.record.encoding import RULE, STATUS_HINTS
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


# An answer of the model goes into a shell.
SAYS = """<library>
<task name="p" type="sequential"><description>d</description><steps>
<task name="a" type="atomic"><description>ask</description></task>
<task name="b" type="script"><description>say</description>
<command shell="true">echo {{ steps.a.content }}</command></task>
</steps></task></library>"""
ANSWER = b"a quiet answer"
POISON = b"x; touch PWNED"
_OPENING = re.compile(rb"<!-- (?:evaluator-task|[a-z]+ [0-9]+) .*-->\n")


def forged(data: bytes, old: bytes, new: bytes, *, signed: bool = True) -> bytes:
    """A task file with `old` replaced by `new`, and lengths and checksums made right again. The
    signatures stay as they are; or there are none.
    """
    done, at, chain = b"", 0, 0
    while at < len(data):
        opening = _OPENING.search(data, at)
        assert opening is not None
        *front, length, _crc, mark, _link, _end = opening[0].split(b" ")
        start, is_title = opening.end(), at == 0
        hint = data[start : start + 1 + len(STATUS_HINTS["running"])] if is_title else b""
        start += len(hint)
        body = data[start : start + int(length)].replace(old, new)
        heading = data[at : opening.start()]
        lead = heading[: len(RULE)] if heading.startswith(RULE) else b""
        line = heading[len(lead) :] + b" ".join(front) + b" %d %08x " % (len(body), crc32(body))
        line += mark + b" " if signed else b""
        chain = crc32(line, chain)
        done += lead + line + b"%08x -->\n" % chain + hint + body
        at = start + int(length)
    return done


def stopped_run(project: Path, word: str = ANSWER.decode()) -> tuple[Evaluator, Path]:
    """A run that was killed before its script, and its file."""
    found = TemplateLibrary()
    found.add(SAYS)
    evaluator = Evaluator(found, CONFIG, backend=SimulatedBackend(script=lambda _: word))
    done = evaluator.evaluate_sync("p")
    path = project / f"tasks/done/TASK-{done.task_id}.md"
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(RULE, 0, data.index(b"- **Kind**: script"))])
    (project / "PWNED").unlink(missing_ok=True)
    return evaluator, path


def resumed(evaluator: Evaluator, task: int = 1, **options: Any) -> tuple[bool, str]:
    """Whether the run was resumed, and its content or the error."""
    outcome = evaluator.resume_sync(task, **options)
    return outcome.ok, outcome.content if outcome.ok else str(outcome)


def without_first_step(data: bytes) -> bytes:
    """The file without its first record after the header, its checksums made right again."""
    first = data.index(RULE)
    return forged(data[:first] + data[data.index(RULE, first + 1) :], b"\0", b"\0")


FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "a changed result": lambda data: forged(data, ANSWER, POISON),
    "a changed result, no signatures": lambda data: forged(data, ANSWER, POISON, signed=False),
    "a changed header": lambda data: forged(data, b"- **Template**: p", b"- **Template**: q"),
    "a step of an own run that was left out": without_first_step,
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_task_file_that_somebody_else_changed_is_not_resumed(forgery: str, project: Path) -> None:
    evaluator, path = stopped_run(project)
    original = path.read_bytes()
    assert forged(original, b"\0", b"\0") == original, "the forger knows the format"
    path.write_bytes(FORGERIES[forgery](original))
    was_resumed, text = resumed(evaluator)
    assert not was_resumed and "no program of yours wrote" in text and "--trust" in text
    assert not (project / "PWNED").exists()
    # The control: the file as it was written.
    path.write_bytes(original)
    assert resumed(evaluator) == (True, "a quiet answer\n")


def test_what_the_user_trusts_is_resumed_with_its_false_result(project: Path) -> None:
    evaluator, path = stopped_run(project)
    path.write_bytes(forged(path.read_bytes(), ANSWER, POISON))
    assert resumed(evaluator, trust=True)[0] and (project / "PWNED").exists()


def test_the_header_of_an_own_task_does_not_make_the_steps_of_another_one_own(
    project: Path,
) -> None:
    evaluator, own = stopped_run(project)
    _, other = stopped_run(project, POISON.decode())
    data = own.read_bytes()
    poisoned = other.read_bytes()
    header = data[: data.index(RULE)]
    own.write_bytes(forged(header + poisoned[poisoned.index(RULE) :], b"\0", b"\0"))
    was_resumed, text = resumed(evaluator)
    assert not was_resumed and "no program of yours wrote its step 1" in text
    assert not (project / "PWNED").exists()
    own.write_bytes(data)
    assert resumed(evaluator)[0], "the control"


BOSS = """<library>
<task name="boss" type="atomic"><description>lead</description><tools><tool name="subtask"/></tools>
<instructions>LEAD</instructions></task>
<task name="inner" type="atomic"><description>help</description><instructions>HELP</instructions></task>
</library>"""


def led_run(project: Path, seen: list[str]) -> tuple[Evaluator, Path, Path]:
    """A run with a subtask, and the files of both; `seen` gets what the tool answers."""
    call = {
        "tool": "subtask",
        "arguments": {
            "type": "atomic",
            "description": "help",
            "inputs": {},
            "hints": {"template": "inner"},
        },
    }

    def model(request: ModelRequest) -> Any:
        seen.extend(message.content for message in request.messages if message.role == "tool")
        if "HELP" in request.messages[-1].content:
            return "ANSWER"
        return "done" if request.messages[-1].role == "tool" else call

    found = TemplateLibrary()
    found.add(BOSS)
    evaluator = Evaluator(found, CONFIG, backend=SimulatedBackend(script=model))
    assert evaluator.evaluate_sync("boss").ok
    boss, inner = (next(project.glob(f"tasks/done/TASK-{number}.md")) for number in (1, 2))
    return evaluator, boss, inner


@pytest.mark.parametrize("changed", [b'"task_ie"', b'"task_id"'], ids=["changed", "the control"])
def test_a_trusted_record_whose_subtask_has_no_id_is_resumed(project: Path, changed: bytes) -> None:
    seen: list[str] = []
    evaluator, boss, _ = led_run(project, seen)
    data = boss.read_bytes()
    end = data.index(b'"status": "COMPLETE"')
    # As after a kill between the end of the subtask's step and that of the tool's.
    data = data[: data.index(RULE, end)]
    output = data[data.rindex(b"{", 0, end) :].partition(b"}")[0]
    boss.write_bytes(forged(data, output, output.replace(b'"task_id"', changed)))
    seen.clear()
    assert resumed(evaluator, trust=True) == (True, "done") and "ANSWER" in seen[0]


def test_a_changed_file_of_a_subtask_ends_the_run_that_resumes_it(project: Path) -> None:
    seen: list[str] = []
    evaluator, boss, inner = led_run(project, seen)
    # As after a kill between the end of the subtask and that of the parent's step.
    data = boss.read_bytes()
    at = data.index(b"- **Kind**: subtask")
    opening = _OPENING.search(data, at)
    assert opening is not None
    boss.write_bytes(data[: opening.start()])
    original = inner.read_bytes()
    inner.write_bytes(forged(original, b"ANSWER", b"POISON"))
    seen.clear()
    was_resumed, text = resumed(evaluator)
    assert not was_resumed and "TASK-2: no program of yours wrote" in text and not seen
    inner.write_bytes(original)
    assert resumed(evaluator) == (True, "done"), "the control"
    assert len(seen) == 1 and "ANSWER" in seen[0]


def test_a_changed_result_of_a_completed_task_is_not_given(project: Path) -> None:
    evaluator, path = stopped_run(project)
    assert resumed(evaluator) == (True, "a quiet answer\n")
    original = path.read_bytes()
    path.write_bytes(forged(original, ANSWER, POISON))
    was_resumed, text = resumed(evaluator)
    assert not was_resumed and "no program of yours wrote" in text
    path.write_bytes(original)
    assert resumed(evaluator) == (True, "a quiet answer\n"), "the control"


def test_a_chat_of_somebody_else_is_not_continued(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = Evaluator(library(), CONFIG, backend=SimulatedBackend(script=lambda _: "hello"))

    async def chat(queries: list[str | None], **options: Any) -> TaskResult | TaskError:
        pending = iter(queries)

        async def ask() -> str | None:
            return next(pending)

        return await evaluator.chat(ask, lambda _: None, **options)

    begun = asyncio.run(chat(["hi", None]))
    assert begun.task_id is not None and begun.ok
    (path,) = project.glob("tasks/done/TASK-*.md")
    data = path.read_bytes()
    # As after a kill: the file has no end.
    path.write_bytes(data[: data.rindex(RULE + b"## Result")])
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "another"))
    refused = asyncio.run(chat([None], resume=begun.task_id))
    assert isinstance(refused, TaskError) and "no program of yours wrote" in str(refused)
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "user"))
    assert asyncio.run(chat([None], resume=begun.task_id)).ok, "the control"


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
    "batch/engines/node_template.py": "the request that the caller sends over its cluster",
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
    from evaluator import run_batch_sync

    runner = Evaluator(library(), CONFIG, backend=SimulatedBackend(), tasks_dir=None)
    rows = [{"word": "a"}, {"word": "b"}]
    run_batch_sync("n", rows, evaluator=runner, output=project / "b", cache=project / "b/cache.db")
    files = [path for path in (project / "b").rglob("*") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        assert not data.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")), path
