"""Wrong usage gives the documented exit code, and a message with the place, what was expected and what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator
from evaluator.cli import main
from tests.cli.conftest import PROGRAM

# arguments, exit code, what standard error says
WRONG: list[tuple[list[str], int, list[str]]] = [
    ([], 2, ["Usage:", "Batches:"]),
    (["rnu"], 2, ["rnu", "did you mean `run`", "--help"]),
    (["--bogus"], 2, ["--bogus", "--help"]),
    (["run"], 2, ["REQUEST", "--template"]),
    (["run", "words", "--template", "summarise"], 2, ["REQUEST", "--template"]),
    (["run", " "], 2, ["empty", "--template"]),
    (["run", "--template", "sumarise"], 2, ["sumarise", "summarise"]),
    (["run", "qqqqq zzzzz"], 1, ["no template fits", "exact name"]),
    (["run", "--template", "summarise"], 1, ["document", "missing", "summarise.xml:"]),
    (["run", "--template", "summarise", "-i", "document"], 2, ["'document'", "KEY=VALUE", "@FILE"]),
    (["run", "--template", "summarise", "-i", "=x"], 2, ["KEY=VALUE"]),
    (
        ["run", "--template", "summarise", "-i", "document=a", "-i", "document=b"],
        2,
        ["document", "twice"],
    ),
    (["run", "--template", "summarise", "-i", "document=@"], 2, ["document", "file"]),
    (
        ["run", "--template", "summarise", "-i", "document=@none.txt"],
        2,
        ["document", "none.txt", "No such file"],
    ),
    (
        ["run", "--template", "summarise", "-i", "document=@folder"],
        2,
        ["document", "folder", "directory"],
    ),
    (
        ["run", "--template", "summarise", "-i", "document=@latin.txt"],
        2,
        ["latin.txt", "UTF-8", "byte 3"],
    ),
    (
        ["run", "--template", "summarise", "-i", "document=a", "-i", "max_words=few"],
        2,
        ["max_words", "integer", "few"],
    ),
    (
        ["run", "--template", "summarise", "-i", "document=a", "-i", "extra=b"],
        1,
        ["extra", "document"],
    ),
    (
        ["run", "--template", "summarise", "-i", "document=a", "--handler", "x"],
        3,
        ["'x'", "offline"],
    ),
    (
        ["run", "--template", "summarise", "-i", "document=a", "--model", ""],
        2,
        ["--model", "empty"],
    ),
    (
        ["run", "--template", "summarise", "-i", "document=a", "--model", "openai/gpt-4o"],
        3,
        ["OPENAI_API_KEY"],
    ),
    (
        ["run", "--template", "summarise", "-i", "document=a", "--library", "none"],
        2,
        ["none", "No such file"],
    ),
    (
        ["run", "--template", "summarise", "-i", "document=a", "--root", "none"],
        2,
        ["none", "--root"],
    ),
    (
        ["run", "--template", "summarise", "-i", "document=a", "--tasks", "file.txt"],
        3,
        ["file.txt", "choose another"],
    ),
    (
        ["run", "--template", "summarise", "-i", "document=a", "--ask-in", "/dev/null"],
        2,
        ["/dev/null", "not a folder"],
    ),
    (
        ["run", "--template", "summarise", "-i", "document=a", "--model-role", "my grader=x/y"],
        2,
        ["my grader", "one word"],
    ),
    (
        ["run", "--template", "summarise", "-i", "document=a", "--model-role", " grader=x/y"],
        2,
        ["one word"],
    ),
    (["memory", "query", "x", "--db", "file.txt"], 3, ["file.txt"]),
    (["memory", "stats", "--db", "file.txt"], 3, ["file.txt"]),
    (["render"], 2, ["NAME"]),
    (["render", "sumarise"], 2, ["summarise"]),
    (["render", "summarise"], 1, ["document", "missing"]),
    (["match"], 2, ["REQUEST"]),
    (["match", ""], 2, ["empty"]),
    (["match", "x", "--limit", "9"], 2, ["--limit", "1<=x<=5"]),
    (["lint", "none"], 2, ["none", "No such file"]),
    (["parse", "none.txt"], 2, ["none.txt", "No such file"]),
    (["parse", "folder"], 2, ["folder", "directory"]),
    (["parse", "latin.txt"], 2, ["latin.txt", "UTF-8"]),
    (["parse", "one.json", "--type", "yaml"], 2, ["--type", "json"]),
    (["parse", "one.json", "--schema", "strnig"], 2, ["strnig", "string"]),
    (["parse", "one.json", "--schema", "none.json"], 2, ["none.json"]),
    (["parse", "one.json", "--schema", "string"], 1, ["string"]),
    (["templates", "--library", "none"], 2, ["none"]),
    (["tasks"], 2, ["list", "show"]),
    (["tasks", "remove"], 2, ["remove"]),
    (["tasks", "list", "--tasks", "file.txt"], 3, ["file.txt"]),
    (["tasks", "list", "--status", "lost"], 2, ["--status", "interrupted"]),
    (["tasks", "show", "999"], 3, ["no task 999", "tasks list"]),
    (["tasks", "show", "abc"], 2, ["abc", "tasks list"]),
    (["tasks", "show", "latin.txt"], 3, ["latin.txt:1", "UTF-8"]),
    (["demo", "--tasks", "file.txt"], 3, ["file.txt", "choose another"]),
]


@pytest.mark.parametrize(
    ("args", "code", "says"), WRONG, ids=[" ".join(w[0]) or "nothing" for w in WRONG]
)
def test_wrong_usage_has_its_exit_code_and_says_what_to_do(
    args: list[str], code: int, says: list[str], cli: Any, write: Any, tmp_path: Path
) -> None:
    write("file.txt", "text")
    write("latin.txt", b"caf\xe9")
    write("one.json", "[1]")
    (tmp_path / "folder").mkdir()
    with_json = [*args, "--json"] if args and args != ["tasks"] else args
    ran = cli(*with_json)
    assert ran.code == code, ran
    if with_json is not args:
        # For programs: the whole of standard output is one JSON value, also where nothing was done.
        assert "--json" in with_json
        data = json.loads(ran.out)
        said = json.dumps(data, ensure_ascii=False) + ran.err
    else:
        said = ran.err
    for words in says:
        assert words.lower() in said.lower(), said


PLAIN = [WRONG[i] for i in (7, 8, 15, 16, 23, 37)]


@pytest.mark.parametrize(("args", "code", "says"), PLAIN, ids=[" ".join(w[0]) for w in PLAIN])
def test_errors_for_people_go_to_standard_error(
    args: list[str], code: int, says: list[str], cli: Any, write: Any
) -> None:
    write("file.txt", "text")
    write("latin.txt", b"caf\xe9")
    write("one.json", "[1]")
    ran = cli(*args)
    assert (ran.code, ran.out) == (code, "")
    for words in says:
        assert words.lower() in ran.err.lower(), ran.err


@pytest.mark.parametrize(
    "args",
    [
        ["match", "is this review positive?"],
        ["templates"],
        ["handlers"],
        ["tasks", "list"],
        ["doctor"],
        ["lint", "."],
        ["parse", "one.json"],
        ["parse", "odd.txt"],
        ["parse", "odd.txt", "--type", "xml"],
        ["parse", "odd.txt", "--type", "text"],
        ["run", "--template", "summarise", "-i", "document=a", "--handler", "offline"],
        ["render", "summarise", "-i", "document={{ x }}"],
    ],
    ids=" ".join,
)
def test_json_is_all_that_standard_output_holds(args: list[str], cli: Any, write: Any) -> None:
    write("one.json", '{"a": "\\ud800", "b": NaN, "c": 1e999}')
    write("odd.txt", 'no json here \x1b[31m "\u2028" \x7f')
    ran = cli(*args, "--json")
    assert ran.code == 0, ran

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    json.loads(ran.out, parse_constant=refuse)


BROKEN = {
    "empty.xml": "",
    "broken.xml": '<task name="broken" type="atomic"><description>d</description>',
    "latin.xml": '<task name="latin" type="atomic"><description>caf\xe9</description></task>'.encode(
        "latin-1"
    ),
    "café_日本.xml": '<task name="café_日本" type="atomic"><description>Say ☃.</description></task>',
}


def test_lint_names_each_broken_file_with_line_and_column(cli: Any, write: Any) -> None:
    for name, content in BROKEN.items():
        write(f"lib/{name}", content)
    ran = cli("lint", "lib")
    assert ran.code == 1
    for name in ("empty.xml", "broken.xml", "latin.xml"):
        assert f"lib/{name}:1:" in ran.out
    assert "1 template, 3 errors" in ran.out
    data = json.loads(cli("lint", "lib", "--json").out)
    assert {d["file"] for d in data["diagnostics"] if d["severity"] == "error"} == {
        "lib/empty.xml",
        "lib/broken.xml",
        "lib/latin.xml",
    }
    assert all(d["line"] >= 1 and d["column"] >= 1 and d["message"] for d in data["diagnostics"])
    assert list(data["templates"]) == ["café_日本"]


def test_xml_of_a_request_is_not_called_an_answer(cli: Any) -> None:
    ran = cli("run", "--handler", "offline", "<task><instructions>say it</instructions></task>")
    assert ran.code == 1
    assert "the XML:\n<task>" in ran.err and "partial answer" not in ran.err
    assert "this <task>, an atomic task, needs <description>" in ran.err


def test_a_good_template_runs_beside_broken_ones_and_a_broken_one_says_why(
    cli: Any, write: Any
) -> None:
    for name, content in BROKEN.items():
        write(f"lib/{name}", content)
    ran = cli("run", "--template", "café_日本", "--library", "lib", "--handler", "offline")
    assert ran.code == 0
    assert ran.out.strip()
    assert "note: other templates have 3 errors; see: evaluator lint lib\n" in ran.err
    ran = cli("run", "--template", "broken", "--library", "lib", "--handler", "offline")
    assert ran.code == 1
    assert "lib/broken.xml:1:" in ran.err


def test_every_json_answer_is_printed_as_json(cli: Any, write: Any) -> None:
    write(
        "lib/t.xml",
        '<task name="t"><description>d</description><output_format type="json" schema="string"/>'
        "<examples><example><output>It is Paris</output></example></examples></task>",
    )
    ran = cli("run", "--template", "t", "--library", "lib", "--handler", "offline")
    assert (ran.code, ran.out) == (0, '"It is Paris"\n')
    write(
        "lib/s.xml",
        '<task name="s" type="sequential"><description>d</description><steps><call template="t"/></steps></task>',
    )
    ran = cli("run", "--template", "s", "--library", "lib", "--handler", "offline")
    assert ran.out == '"It is Paris"\n'
    assert "note: the answer is simulated" in ran.err


def test_a_stand_in_for_a_model_is_reported_once_with_its_reason(cli: Any) -> None:
    ran = cli(
        "run", "--template", "answer_question", "-i", "question=What is the capital of Australia?"
    )
    assert ran.out == "Canberra\n"
    assert ran.err.count("the answer is simulated") == 1
    assert (
        "warning: the answer is simulated: no provider key and no local server was found" in ran.err
    )


def test_a_broken_profile_is_named_with_its_place(cli: Any, write: Any) -> None:
    write("handlers/mine.xml", '<handler name="mine">\n<modle>x</modle></handler>')
    ran = cli("run", "--template", "summarise", "-i", "document=x", "--handler", "mine")
    assert ran.code == 3
    assert "handlers/mine.xml:2:" in ran.err
    assert "modle" in ran.err
    assert cli("handlers").code == 3
    doctor = cli("doctor")
    assert doctor.code == 1
    assert "handlers/mine.xml:2:" in doctor.out


def test_a_role_that_no_template_names_is_reported_with_the_nearest_one(cli: Any) -> None:
    arguments = (
        "run",
        "--template",
        "summarise",
        "-i",
        "document=x",
        "--handler",
        "offline",
        "--model-role",
    )
    assert (
        "no template names this role; did you mean `grader`?"
        in cli(*arguments, "gradre=simulated/x").err
    )
    assert "no template names this role" not in cli(*arguments, "grader=simulated/x").err


def test_the_doctor_names_a_key_that_no_request_can_carry(cli: Any) -> None:
    ran = cli("doctor", env={"OPENAI_API_KEY": "sk-secret\n"})
    assert ran.code == 1
    assert "PROBLEM  key: OPENAI_API_KEY holds a control character" in ran.out
    assert "sk-secret" not in ran.out + ran.err


def test_the_doctor_says_what_mcp_servers_lack_and_starts_none(cli: Any, write: Any) -> None:
    write(
        "handlers/tools.xml",
        '<handler name="tools"><mcp><server name="gone" command="no-such-program"><env name="NO_SUCH_KEY"/></server>'
        '<server name="here" command="touch"><arg>started</arg></server>'
        '<server name="far" url="http://127.0.0.1:9/mcp"/></mcp></handler>',
    )
    ran = cli("doctor")
    assert ran.code == 0
    for said in (
        "note     handler tools, MCP server gone: the program no-such-program is not found; NO_SUCH_KEY is not set",
        "ok       handler tools, MCP server here: touch (not started)",
        "ok       handler tools, MCP server far: http://127.0.0.1:9/mcp (not started)",
    ):
        assert said in ran.out
    assert not Path("started").exists()


def test_why_a_decomposition_failed_is_shown_on_a_line_of_its_own(cli: Any, write: Any) -> None:
    write(
        "templates/cut.xml",
        '<library><task name="cut" type="atomic"><description>Cut</description><handler max_turns="1"/>'
        '<tools><tool name="list_files"/></tools><instructions>Cut</instructions>'
        "<examples><example><output>x</output></example></examples></task></library>",
    )
    write("script.py", REPARSED)
    ran = subprocess.run(
        [sys.executable, "script.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(write("x", "")).parent,
    )
    assert ran.returncode == 1
    error, reparse = [
        line for line in ran.stderr.splitlines() if line.startswith(("error: ", "reparse: "))
    ]
    assert "RESOURCE_EXHAUSTION" in error
    assert "the answer contains no <task>" in reparse


REPARSED = """
from evaluator.cli.run import print_outcome
from evaluator import Evaluator, SimulatedBackend
from pathlib import Path
call = {"tool": "list_files", "arguments": {}}
evaluator = Evaluator("templates", "offline", backend=SimulatedBackend(script=[call, "no task at all"]), reparse=True)
outcome = evaluator.evaluate_sync("cut")
print_outcome(outcome, Path("tasks"), shown=False)
raise SystemExit(outcome.ok is not True)
"""


def test_a_file_that_is_not_a_task_file_is_reported(cli: Any, write: Any) -> None:
    write("empty.md", "")
    write("other.md", "# Shopping\n\n- milk\n")
    ran = cli("tasks", "show", "empty.md")
    assert "warning" in ran.out
    assert cli("tasks", "show", "other.md").code in (0, 3)


def test_a_long_request_and_input_are_taken(cli: Any, write: Any) -> None:
    ran = cli("match", "summarise this document: " + "word " * 20_000, "--json")
    assert ran.code == 0
    write("long.txt", "long " * 40_000)
    ran = cli("run", "--template", "summarise", "-i", "document=@long.txt", "--handler", "offline")
    assert ran.code == 0


def test_an_input_that_no_window_holds_is_refused_with_both_numbers(cli: Any, write: Any) -> None:
    write("long.txt", "long " * 400_000)
    ran = cli("run", "--template", "summarise", "-i", "document=@long.txt", "--handler", "offline")
    assert ran.code == 1
    assert "RESOURCE_EXHAUSTION" in ran.err
    assert "tokens" in ran.err


def test_an_input_that_is_too_large_is_refused(cli: Any, tmp_path: Path) -> None:
    with open(tmp_path / "big.txt", "wb") as file:
        file.truncate(60_000_000)
    ran = cli("run", "--template", "summarise", "-i", "document=@big.txt")
    assert ran.code == 2
    assert "big.txt" in ran.err
    assert "50,000,000" in ran.err


def test_arguments_that_are_not_utf_8_are_shown_escaped(cli: Any) -> None:
    assert cli("tasks", "show", b"\xff").code == 2
    assert cli("run", b"\xff\xfe qqq", "--json").code == 1
    assert cli("lint", b"\xff").code == 2


def test_standard_input_is_read_for_a_dash(cli: Any) -> None:
    assert json.loads(cli("parse", stdin=b"so: {'a': 1,}").out) == {"a": 1}
    ran = cli(
        "run", "--template", "summarise", "-i", "document=@-", "--handler", "offline", stdin=b"\xff"
    )
    assert ran.code == 2
    assert "UTF-8" in ran.err


def test_closed_standard_input_is_not_an_error(environment: dict[str, str], tmp_path: Path) -> None:
    command = f"{PROGRAM} run --template summarise -i document=x --handler offline <&-; {PROGRAM} parse - <&-"
    ran = cli_shell(command, environment, tmp_path)
    assert "Traceback" not in ran.stderr
    assert ran.stdout.strip()
    assert "standard input is closed" in ran.stderr
    assert ran.returncode == 2


def cli_shell(
    command: str, environment: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_every_example_of_the_help_pages_names_inputs_that_exist(cli: Any, write: Any) -> None:
    write("notes.md", "Some notes.")
    for command in ("run", "render"):
        assert "--input document=@notes.md" in cli(command, "--help").out
    assert (
        cli(
            "run",
            "--template",
            "summarise",
            "--input",
            "document=@notes.md",
            "--handler",
            "offline",
        ).code
        == 0
    )
    assert cli("render", "summarise", "--input", "document=@notes.md").code == 0


def test_a_deleted_current_folder_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"import os, sys; os.rmdir({str(gone)!r}); os.execv({PROGRAM!r}, [{PROGRAM!r}, *sys.argv[1:]])"
    argv = ["run", "--template", "summarise", "--input", "document=x"]
    done = subprocess.run(
        [sys.executable, "-c", script, *argv], cwd=gone, capture_output=True, text=True
    )
    assert done.returncode == 3 and "the current folder was deleted" in done.stderr, done


@pytest.mark.parametrize(("success", "code"), [("true", 0), ("false", 1)])
def test_strict_makes_an_unsatisfied_loop_an_exit_code(cli, write, success, code):
    write(
        "templates/t.xml",
        f"""<task name="t" type="director_evaluator_loop"><description>d</description>
<max_iterations>2</max_iterations>
<director type="script" name="write"><description>d</description><command>echo text</command></director>
<evaluator type="script" name="check"><description>d</description><command>echo '{{"success": {success}}}'</command>
<output_format type="json" schema="object"/></evaluator></task>""",
    )
    assert cli("run", "--template", "t", "--handler", "offline").code == 0
    assert cli("run", "--template", "t", "--handler", "offline", "--strict").code == code


@pytest.mark.parametrize("request_of_run", ["answer_question", "the end of a template"])
def test_an_evaluator_is_closed_when_its_command_ends_also_with_an_error(
    request_of_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Evaluator] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Evaluator, "close", lambda it: closed.append(it))
    with pytest.raises(SystemExit) as ended:
        main(["run", request_of_run, "--handler", "offline", "--input", "nonsense"])
    assert ended.value.code == 2
    assert len(closed) == 1


def test_a_process_without_memory_says_what_to_do(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(path: str) -> str:
        raise MemoryError

    monkeypatch.setattr("evaluator.cli.parse.read_text", no_memory)
    ended = cli("parse", "-")
    assert ended.code == 3
    assert "the process got no more memory; free memory" in ended.err


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "summarise", "--input", "document=x"),
        ("render", "summarise", "--input", "document=x"),
        ("run", "--template", "summarise", "--input", "document=x", "--handler", "offline"),
    ],
    ids=lambda command: command[0],
)
def test_a_command_closes_its_evaluator(cli, monkeypatch, command):
    closed = []
    aclose = Evaluator.aclose

    async def noted(self):
        closed.append(self)
        await aclose(self)

    monkeypatch.setattr(Evaluator, "aclose", noted)
    assert cli(*command).code == 0
    assert len(closed) == 1
