"""The built-in tools, called as a model calls them, and the askers."""

import asyncio
import io
import json
import os
import pty
import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest

from evaluator import ToolError, tools
from evaluator.tools import (
    CallbackAsker,
    FileAccess,
    FunctionTool,
    TerminalAsker,
    ToolContext,
    builtin_tools,
)
from evaluator.tools.tool import declared_arguments


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "notes.txt").write_text("".join(f"line {n}\n" for n in range(1, 2501)))
    (tmp_path / "sub").mkdir()
    return tmp_path


def call(folder, name, asker=None, **arguments):
    context = ToolContext(roots=FileAccess([folder]), asker=asker)
    return asyncio.run(builtin_tools().call(name, json.dumps(arguments), context))


def test_every_tool_of_the_package_is_a_builtin_tool():
    modules = [
        import_module(f"{tools.__name__}.{module.name}") for module in iter_modules(tools.__path__)
    ]
    found = {
        each.name
        for module in modules
        for each in vars(module).values()
        if isinstance(each, FunctionTool)
    }
    assert not found - {*builtin_tools().names()}, (
        "add it to builtin_tools() in evaluator/tools/builtin.py"
    )


@pytest.mark.parametrize("tool", builtin_tools(), ids=builtin_tools().names())
def test_a_tool_with_an_effect_asks_first_and_every_tool_is_described(tool):
    assert tool.effect == (tool.policy == "ask"), (
        'declare @tool(policy="ask") or @tool(effect=False)'
    )
    assert tool.spec.description, (
        "write a docstring: its first lines tell the model what the tool does"
    )
    undescribed = [
        name for name, schema in declared_arguments(tool).items() if not schema.get("description")
    ]
    assert not undescribed, "describe each argument below `Args:` in the docstring"
    if tool.effect and "path" in declared_arguments(tool):
        assert tool.preview, (
            "give it a preview in builtin_tools(): it shows the user what a call would change"
        )


@pytest.mark.parametrize("tool", builtin_tools(), ids=builtin_tools().names())
def test_a_tool_that_runs_programs_declares_it(tool):
    used = [
        vars(sys.modules[tool.function.__module__]).get(name)
        for name in tool.function.__code__.co_names
    ]
    modules = {getattr(each, "__module__", None) or getattr(each, "__name__", "") for each in used}
    starts = {
        name
        for name in modules
        if name.startswith("evaluator.processes.") and not name.endswith(".concurrency")
    }
    assert bool(starts) == (tool.controls == "programs"), 'declare @tool(controls="programs")'


def test_only_a_whole_file_is_written_again_after_a_failure():
    repeated = [tool.name for tool in builtin_tools() if tool.retryable]
    assert repeated == ["write_file", "fetch_url"], (
        "a repeated call must do no harm; if so, list the tool here"
    )


def test_read_file_reads_a_range_and_names_the_next_line(folder):
    assert call(folder, "read_file", path="notes.txt", start_line=2500).content == "line 2500\n"
    outcome = call(folder, "read_file", path="notes.txt")
    assert outcome.content.endswith(
        "line 2000\n[lines 1 to 2000 of 2500; continue with start_line=2001]"
    )
    past = call(folder, "read_file", path="notes.txt", start_line=2501)
    assert past.content == "Error: 'notes.txt' has 2,500 lines; start_line is 2501"


def test_read_file_stays_in_its_folder(folder):
    assert "outside the folders" in call(folder, "read_file", path="/etc/passwd").content


def test_read_file_accepts_an_encoding_and_names_binary_files(folder):
    (folder / "text").write_bytes("é\n".encode("cp437"))
    (folder / "wide").write_bytes("é\n".encode("utf-16"))
    (folder / "bin").write_bytes(b"\x7fELF\0")
    assert call(folder, "read_file", path="text", encoding="cp437").content == "é\n"
    assert call(folder, "read_file", path="wide").content == "é\n"
    assert (
        "cannot be read as utf-8"
        in call(folder, "read_file", path="text", encoding="utf-8").content
    )
    assert (
        "not a known encoding"
        in call(folder, "read_file", path="text", encoding="latin-99").content
    )
    assert "binary file" in call(folder, "read_file", path="bin").content


def test_files_are_written_edited_and_deleted_once_allowed(folder):
    yes = CallbackAsker(lambda question: "y")
    assert (
        call(folder, "write_file", yes, path="new/a.txt", content="é\n").content
        == "created new/a.txt (3 bytes)"
    )
    assert (
        call(folder, "write_file", yes, path="new/a.txt", content="b b\n").content
        == "replaced new/a.txt (4 bytes)"
    )
    edited = call(folder, "edit_file", yes, path="new/a.txt", old="b", new="c", count=2)
    assert edited.content == "edited new/a.txt in 2 places"
    assert (folder / "new" / "a.txt").read_text() == "c c\n"
    assert (
        call(folder, "delete_file", yes, path="new/a.txt").content == "deleted the file new/a.txt"
    )
    assert call(folder, "delete_file", yes, path="new").content == "deleted the folder new"
    for name, arguments in (
        ("write_file", {"content": ""}),
        ("edit_file", {"old": "a", "new": ""}),
        ("delete_file", {}),
    ):
        assert call(folder, name, path="notes.txt", **arguments).code == "denied"
    assert (folder / "notes.txt").read_text().startswith("line 1\n")


def test_list_files_lists_and_finds(folder):
    assert json.loads(call(folder, "list_files").content) == [
        {"name": "notes.txt", "kind": "file", "size_bytes": (folder / "notes.txt").stat().st_size},
        {"name": "sub", "kind": "folder"},
    ]
    assert json.loads(call(folder, "list_files", pattern="**/*.txt").content) == ["notes.txt"]


def test_run_script_runs_in_the_folder_once_allowed(folder):
    command = ["sh", "-c", "pwd; cat; exit 4"]
    outcome = call(
        folder, "run_script", CallbackAsker(lambda question: "y"), command=command, stdin="in"
    )
    assert json.loads(outcome.content) == {"exit_code": 4, "stdout": f"{folder}\nin", "stderr": ""}
    assert call(folder, "run_script", command=command).code == "denied"


def test_run_script_reports_a_time_limit(folder):
    outcome = call(
        folder,
        "run_script",
        CallbackAsker(lambda question: "y"),
        command=["sleep", "30"],
        timeout_s=0.1,
    )
    assert json.loads(outcome.content) | {"stderr": ""} == {
        "exit_code": None,
        "stdout": "",
        "stderr": "",
        "signal": 9,
        "timed_out": True,
    }


def test_ask_user_uses_the_asker_of_the_run(folder):
    async def reply(question):
        return f"{question} Yes."

    assert call(folder, "ask_user", CallbackAsker(reply), question="Well?").content == "Well? Yes."
    assert "nobody to ask" in call(folder, "ask_user", question="Well?").content


def test_the_terminal_asker_needs_a_terminal(folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("typed\n"))
    assert "not a terminal" in call(folder, "ask_user", TerminalAsker(), question="Well?").content


@pytest.fixture
def terminal(monkeypatch):
    ours, theirs = pty.openpty()
    with open(theirs, encoding="utf-8", closefd=True) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield ours
    os.close(ours)


def test_a_terminal_is_read_a_line_a_question_while_the_loop_goes_on(terminal, capsys):
    async def both():
        asker = TerminalAsker()
        asked = [
            asyncio.create_task(asker.ask(question)) for question in ("first\x1b[2J", "second")
        ]
        await asyncio.sleep(0)  # the loop is free while the question stands
        os.write(terminal, "é one\n".encode())
        first = await asked[0]
        os.write(terminal, b"two\n")
        return [first, await asked[1]]

    assert asyncio.run(both()) == ["é one", "two"]
    assert capsys.readouterr().err == "first\\x1b[2J\n> second\n> "


def test_an_unanswered_question_is_an_error_and_a_cancelled_one_frees_the_terminal(terminal):
    async def leave():
        asker = TerminalAsker()
        waiting = asyncio.create_task(asker.ask("first"))
        await asyncio.sleep(0)
        waiting.cancel()
        os.write(terminal, b"\x04")
        with pytest.raises(ToolError, match="end of input"):
            await asker.ask("second")

    asyncio.run(leave())
