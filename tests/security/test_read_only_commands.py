"""Commands that only show or check something run nothing, import nothing from the project and send nothing.

The project leaves a mark for everything that runs, and its profiles name a server that counts requests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evaluator.cli.main import main
from evaluator.testing.loopback import Answer, LoopbackServer

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
    ("render", "ask"),
    ("render", "model"),
    ("render", "value"),
    ("render", "program"),
    ("render", "listed"),
    ("render", "served"),
    ("render", "ask", "--handler", "mcp", "--json"),
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
]


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
    project: Path, server: LoopbackServer, evaluator: Callable[..., tuple[int, str]]
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

    for command in COMMANDS:
        code, said = evaluator(*command)
        assert marks(project) == [], command
        assert not [name for name in sys.modules if name.startswith("trap_")], command
        assert len(server.paths) == requests, (command, server.paths[requests:])
        assert code == 0, (command, said)
