"""Commands that only show or check something run nothing, import nothing from the project and send nothing.

The project leaves a mark for everything that runs, and its profiles name a server that counts requests. Its queue and
its background tasks come from another user, and each of their fields that could start or choose something does.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.background import BackgroundStore, BackgroundTask
from evaluator.cli import main
from evaluator.jobs.background_store import TASK
from evaluator.jobs.queue_store import QueueStore
from evaluator.jobs.queue_tables import ENTRY
from evaluator.models.cache_store import FORMAT as CACHE
from evaluator.queue import TaskQueue
from evaluator.store import database
from evaluator.store.owners import current_owner, owner_text
from evaluator.store.rows import Table
from evaluator.testing import Answer, LoopbackServer
from tests.viewer.site import Site, visit

TASKS = """<library>
<task name="ask" type="atomic"><description>Ask something</description><instructions>{{ q }}</instructions>
<inputs><input name="q" default="x"/></inputs></task>
<task name="model" type="atomic"><description>Give a value</description>
<output_format type="json" schema="trap_model:Model"/></task>
<template name="value" params="" returns="trap_model:Model"><task type="atomic"><description>d</description></task></template>
<task name="program" type="script"><description>Run it</description>
<command>touch {{ place }}/MARK-script</command><inputs><input name="place" default="."/></inputs></task>
<task name="listed" type="atomic"><description>Use files</description>
<file_paths source="command"><command>touch MARK-command</command></file_paths></task>
<task name="served" type="atomic"><description>Use a server</description><handler ref="mcp"/>
<tools><tool name="m__x"/></tools></task>
</library>"""
PROFILES = {
    "default": "<base_url>URL</base_url><api_key_env>TRAP_KEY</api_key_env>",
    "mcp": '<base_url>URL</base_url><mcp><server name="m" command="touch"><arg>MARK-mcp</arg></server></mcp>',
}
TRAP = "import pathlib\npathlib.Path(__file__).with_name('MARK-{0}').touch()\n"
COMMANDS = [
    ("lint",),
    ("lint", "templates", "--json"),
    ("templates",),
    ("handlers",),
    ("match", "ask something"),
    *(("templates", "show", name) for name in ("ask", "model", "program", "listed", "served")),
    ("diff", "templates", "."),
    ("diff", "templates", ".", "--markdown", "--model", "openai/m"),
    ("docs", "pages", "--model", "openai/m"),
    ("render", "ask"),
    ("render", "model"),
    ("render", "value"),
    ("render", "program"),
    ("render", "listed"),
    ("render", "served"),
    ("render", "ask", "--handler", "mcp", "--json"),
    ("plan", "ask"),
    ("plan", "ask", "--input", "q=1", "--model", "openai/m", "--json"),
    ("plan", "ask", "--rows", "rows.jsonl", "--like", "b"),
    ("plan", "evaluator.toml"),
    ("plan", "evaluator.toml", "--like", "b", "--json"),
    ("plan", "model"),
    ("plan", "program"),
    ("plan", "listed"),
    ("plan", "served"),
    ("batch", "--dry-run"),
    ("batch", "--dry-run", "--json"),
    ("batch", "--resume", "b", "--dry-run"),
    (
        "batch",
        "--template",
        "model",
        "--rows",
        "rows.jsonl",
        "--scorer",
        "trap_score.py:same",
        "--dry-run",
    ),
    ("summary", "b"),
    ("summary", "b", "--threshold", "errors <= 0"),
    ("compare", "b", "b"),
    ("report", "b", "--output", "report.html"),
    ("export", "b", "--format", "csv", "--output", "b.csv"),
    ("tasks", "list"),
    ("tasks", "show", "1"),
    ("tasks", "show", "1", "--tree"),
    ("tasks", "show", "1", "--messages"),
    ("trust", "--list"),
    ("ps",),
    ("ps", "--all", "--json"),
    ("logs", "b00000000"),
    ("logs", "b00000000", "--follow"),
    ("queue", "list"),
    ("queue", "list", "--json"),
    ("queue", "list", "--status", "running"),
    ("queue", "show", "T-01"),
    ("queue", "show", "T-02", "--json"),
    ("queue", "stats"),
    ("queue", "export"),
    ("cache", "stats", "cache.sqlite"),
    ("cache", "stats", "cache.sqlite", "--json"),
    ("memory", "stats", "--db", "memory.sqlite"),
    ("memory", "query", "something", "--db", "memory.sqlite"),
]
PAGES = ["/runs", "/batches", "/compare", "/queue", "/background", "/templates"]
GONE = replace(current_owner(), started=current_owner().started - 1)


def leave_rows(project: Path) -> None:
    """Stored rows that start and choose what they can, signed by whoever is the user now."""
    with BackgroundStore(project / "tasks" / "background") as tasks:
        task = BackgroundTask("b00000000", "b", "work", "pending", "b00000000.log", 1.0, GONE)
        command = ("touch", str(project / "MARK-notify"))
        for kind in "bt":
            row = replace(task, id=f"{kind}00000000", type=kind, notify_command=command)  # pyright: ignore[reportArgumentType]
            tasks.add(replace(row, task_file="TASK-1", session="mine" if kind == "t" else None))
            tasks.begin(row.id)
        tasks.send("t00000000", "answer this")
    (project / "tasks" / "background" / "b00000000.log").write_bytes(b"an output\n")
    with TaskQueue(project / "queue") as queue:
        for _ in range(2):
            queue.add("ask something", template="program", inputs={"place": str(project)})
        with closing(QueueStore(project / "queue" / "queue.sqlite")) as store:
            claim = store.claim(60)
            assert claim is not None
            assert store.begin_attempt(claim, "program", str(project / "tasks")) is not None
            with store.transaction() as db:
                db.execute("UPDATE lease SET owner = ?", (owner_text(GONE),))


def contents(project: Path) -> dict[str, bytes]:
    """The files of the project, without those that a command was told to write."""
    written = ("report.html", "b.csv")
    return {
        str(path.relative_to(project)): path.read_bytes()
        for path in project.rglob("*")
        if path.is_file()
        and path.name not in written
        and not {"__pycache__", "pages"} & {*path.parts}
    }


def look_at_every_page(project: Path) -> int:
    """Follows each link of the viewer; returns the number of pages."""

    async def walk(site: Site) -> int:
        waiting = list(PAGES)
        seen = set(waiting)
        while waiting:
            answer = await site.get(waiting.pop())
            assert answer.status in (200, 404), answer.text
            new = [link for link in answer.links if link not in seen and len(seen) < 80]
            seen.update(new)
            waiting += new
        return len(seen)

    return visit(project, walk)


def be(monkeypatch: pytest.MonkeyPatch, project: Path, name: str) -> None:
    """From now on another user runs the commands."""
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(project / name))


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(default=Answer("ok")) as server:
        yield server


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: LoopbackServer) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "user"))
    monkeypatch.setenv("TRAP_KEY", "trap-key-value")
    monkeypatch.syspath_prepend(tmp_path)
    for folder in ("templates", "handlers"):
        (tmp_path / folder).mkdir()
    (tmp_path / "templates/t.xml").write_text(TASKS)
    for name, body in PROFILES.items():
        text = f'<handler name="{name}">{body.replace("URL", server.base_url)}</handler>'
        (tmp_path / f"handlers/{name}.xml").write_text(text)
    (tmp_path / "trap_score.py").write_text(
        TRAP.format("score") + "def same(output):\n    return True\n"
    )
    (tmp_path / "trap_model.py").write_text(
        TRAP.format("model") + "import pydantic\nclass Model(pydantic.BaseModel):\n    a: int = 1\n"
    )
    (tmp_path / "rows.jsonl").write_text('{"q": "1"}\n{"q": "2"}\n')
    (tmp_path / "evaluator.toml").write_text(
        'template = "ask"\nrows = "rows.jsonl"\noutput = "b"\nmodels = ["m"]\nscorers = ["trap_score.py:same"]\n'
    )
    return tmp_path


@pytest.fixture
def evaluator(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out + err

    return run


def marks(project: Path) -> list[str]:
    return sorted(path.name for path in project.rglob("MARK-*"))


def test_commands_that_show_something_run_import_and_send_nothing(
    project: Path,
    server: LoopbackServer,
    evaluator: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The control: runs leave marks and requests. They also make the records that are shown below.
    assert evaluator("batch", "--limit", "1", "--trust")[0] == 0
    assert evaluator("run", "--template", "ask", "--model", "m")[0] == 0
    evaluator("run", "--template", "program")
    evaluator("run", "--template", "model", "--model", "m")
    evaluator("run", "--template", "listed", "--model", "m")
    evaluator("run", "--template", "served", "--model", "m")
    assert marks(project) == ["MARK-command", "MARK-mcp", "MARK-model", "MARK-score", "MARK-script"]
    requests = len(server.paths)
    assert requests >= 3
    assert "trap-key-value" in str(server.headers)
    for path in project.rglob("MARK-*"):
        path.unlink()
    for name in [name for name in sys.modules if name.startswith("trap_")]:
        del sys.modules[name]
    assert evaluator("trust", "--remove")[0] == 0
    be(monkeypatch, project, "stranger")
    leave_rows(project)
    be(monkeypatch, project, "user")
    assert evaluator("memory", "index", "templates", "--db", "memory.sqlite")[0] == 0
    database.connect(project / "cache.sqlite", CACHE, 1.0).close()
    # As after a kill: what was written is still in the log.
    for name in ("cache.sqlite", "memory.sqlite"):
        with closing(sqlite3.connect(project / name)) as connection:
            connection.execute("CREATE TABLE more (number)")
            for file in (name, f"{name}-wal"):
                shutil.copy(project / file, project / f"copy-{file}")
        for file in (name, f"{name}-wal"):
            os.replace(project / f"copy-{file}", project / file)
    assert evaluator("tasks", "list")[0] == 0
    before = contents(project)
    assert "memory.sqlite-wal" in before and "cache.sqlite-wal" in before

    for command in COMMANDS:
        code, said = evaluator(*command)
        assert marks(project) == [], command
        assert not [name for name in sys.modules if name.startswith("trap_")], command
        assert len(server.paths) == requests, (command, server.paths[requests:])
        assert code == 0, (command, said)
        assert contents(project) == before, command
    assert look_at_every_page(project) > 20
    assert contents(project) == before
    assert (marks(project), len(server.paths)) == ([], requests)


@pytest.mark.parametrize("writer", ["stranger", "user"])
def test_a_command_that_acts_does_what_only_this_users_rows_say(
    project: Path,
    evaluator: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
    writer: str,
) -> None:
    monkeypatch.setenv("EVALUATOR_TRUST", str(project))
    be(monkeypatch, project, writer)
    leave_rows(project)
    be(monkeypatch, project, "user")
    _, told = evaluator("wait", "b00000000", "t00000000")
    assert "failed" in told
    with TaskQueue(project / "queue") as queue:
        queue.add("ask something")  # the control of the control: a row of this user
    code, told = evaluator("queue", "work", "--until-empty", "--model", "m")
    assert code == 0, told
    with TaskQueue(project / "queue") as queue:
        strategies = [entry.strategies_tried[-1].strategy for entry in queue.list()]
    if writer == "user":
        assert marks(project) == ["MARK-notify", "MARK-script"]
        assert strategies == ["program", "program", "ask"]
    else:
        assert marks(project) == []
        assert strategies == ["ask", "ask", "ask"]
        assert "T-01: its template and inputs come from somebody else" in told
        assert "comes from somebody else" in evaluator("ps", "--all", "--json")[1]
        with BackgroundStore(project / "tasks" / "background", is_snapshot=True) as tasks:
            assert tasks.list(session="mine") and not tasks.is_own("t00000000")


def test_a_change_of_a_foreign_row_does_not_sign_what_it_chooses(
    project: Path, evaluator: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    be(monkeypatch, project, "stranger")
    leave_rows(project)
    be(monkeypatch, project, "user")
    with TaskQueue(project / "queue") as queue:
        assert queue.show("T-02").options.template == "program"
        assert not queue.show("T-02").is_signed
        queue.skip("T-02")
        stored = queue.show("T-02")
        assert (stored.is_signed, stored.options.template, stored.options.inputs) == (
            True,
            None,
            {},
        )
    with BackgroundStore(project / "tasks" / "background") as tasks:
        tasks.request_kill("b00000000", "not needed")
        assert tasks.get("b00000000").status == "killed" and not tasks.is_own("b00000000")
        assert tasks.claim(task_id="b00000000") == [] and tasks.take_messages("t00000000") == []


def put_unsigned(store: BackgroundStore | QueueStore, table: Table, **changes: object) -> None:
    """Changes a row as somebody who knows how checksums are made."""
    (row, *_) = table.select(store._connection)  # pyright: ignore[reportPrivateUsage]
    table.put(store._connection, {**row, **changes}, is_own=False)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    "change",
    [
        {"document": "[]"},
        {"document": '{"id": "T-01"}'},
        {"document": 7},
        {"options": "{}"},
        {"options": '{"priority": "x"}'},
        {"not_before": 1e300},
        {"status": "done"},
        {"base": "x"},
    ],
)
def test_a_foreign_entry_that_is_not_one_is_an_error_that_names_it(
    project: Path, evaluator: Callable[..., tuple[int, str]], change: dict[str, object]
) -> None:
    leave_rows(project)
    with closing(QueueStore(project / "queue" / "queue.sqlite")) as store:
        put_unsigned(store, ENTRY, **change)
    for command in (("list",), ("list", "--json"), ("show", "T-01"), ("skip", "T-01")):
        code, told = evaluator("queue", *command)
        assert code != 0 and "the entry T-01 comes from somebody else and is not valid" in told


@pytest.mark.parametrize(
    "change",
    [
        {"owner": "{}"},
        {"notify_command": "7"},
        {"notify_command": "[7]"},
        {"created_at": "x"},
        {"type": "z"},
        {"status": "done"},
        {"description": None},
        {"exit_code": 1.5},
    ],
)
def test_a_foreign_task_that_is_not_one_is_an_error_that_names_it(
    project: Path, evaluator: Callable[..., tuple[int, str]], change: dict[str, object]
) -> None:
    leave_rows(project)
    with BackgroundStore(project / "tasks" / "background") as store:
        put_unsigned(store, TASK, **change)
    for command in (("ps",), ("ps", "--json"), ("logs", "b00000000"), ("wait", "b00000000")):
        code, told = evaluator(*command)
        assert code != 0 and "the task b00000000 comes from somebody else and is not valid" in told
