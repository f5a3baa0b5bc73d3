"""Which sandbox a task has: profiles decide, templates can only be stricter, and subtasks are never freer."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator import ConfigurationError, HandlerConfig, Sandbox, ToolGrant, run_batch_sync, tool
from evaluator.handler.config import read_profile
from evaluator.handler.profiles import names_of
from evaluator.interpreter import toolset
from evaluator.interpreter.sandboxing import needed_sandboxes
from evaluator.tools import CallbackAsker, ToolContext, ToolRegistry, controls
from tests.sandboxes import StandIn

PODMAN = Sandbox("podman", "img")
SCRIPT = """<task name="{name}" type="script"><description>d</description>{handler}<command>echo ran</command></task>"""


@pytest.fixture
def podman(tmp_path, monkeypatch) -> StandIn:
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return StandIn(programs, "podman")


def ran(podman: StandIn, *command: str) -> int:
    """How often the command ran in a container."""
    calls = podman.calls() if podman.log.exists() else []
    return sum(words[-len(command) :] == list(command) for words in calls)


def profile(sandbox: Sandbox, **options) -> HandlerConfig:
    return HandlerConfig(name="p", backend="simulated", sandbox=sandbox, **options)


@pytest.mark.parametrize(
    ("of_profile", "of_template", "of_user", "expected"),
    [
        (Sandbox(), "", None, "none"),
        (PODMAN, "", None, "podman"),
        (Sandbox("none", "img"), '<handler sandbox="podman"/>', None, "podman"),
        (PODMAN, '<handler sandbox="bubblewrap"/>', None, "podman"),
        (PODMAN, '<handler sandbox="podman"/>', "none", "none"),
        (Sandbox(), "", "podman:img", "podman"),
    ],
)
def test_the_stricter_of_profile_and_template_is_used_unless_the_user_decides(
    make_evaluator, podman, of_profile, of_template, of_user, expected
):
    config = profile(of_profile)
    evaluator = make_evaluator(
        SCRIPT.format(name="s", handler=of_template),
        handler=config,
        profiles={"p": config},
        sandbox=of_user,
    )
    result = evaluator.evaluate_sync("s").unwrap()
    assert (result.content, result.notes["sandbox"]) == ("ran\n", expected)
    assert ran(podman, "echo", "ran") == (expected == "podman")


def test_a_template_cannot_choose_a_profile_with_a_weaker_sandbox_than_the_task_above_it(
    make_evaluator, podman
):
    xml = f"""<task name="all" type="sequential"><description>d</description><handler ref="strict"/>
    <steps><call template="s"/></steps></task>{SCRIPT.format(name="s", handler='<handler ref="free"/>')}"""
    profiles = {
        "strict": HandlerConfig(name="strict", backend="simulated", sandbox=PODMAN),
        "free": HandlerConfig(name="free", backend="simulated"),
        "default": HandlerConfig(backend="simulated"),
    }
    evaluator = make_evaluator(xml, handler=None, profiles=profiles)
    assert evaluator.evaluate_sync("s").unwrap().notes["sandbox"] == "none"  # the control
    evaluator.evaluate_sync("all").unwrap()
    assert ran(podman, "echo", "ran") == 1


def test_a_subtask_has_the_sandbox_of_its_parent(make_evaluator, podman):
    xml = f"""<task name="t" type="atomic"><description>d</description><handler sandbox="podman"/>
    <instructions>go</instructions><tools><tool name="s"/></tools></task>
    {SCRIPT.format(name="s", handler="")}"""
    config = profile(Sandbox("none", "img"))
    seen = []

    def answer(request):
        seen.append(request.messages[-1].content)
        return "done" if len(seen) > 1 else {"tool": "s", "arguments": {}}

    evaluator = make_evaluator(xml, script=answer, handler=config, profiles={"p": config})
    evaluator.evaluate_sync("t").unwrap()
    assert "ran" in seen[-1]
    assert ran(podman, "echo", "ran") == 1


def test_a_run_that_a_model_resumes_has_at_least_the_sandbox_of_the_task(make_evaluator, podman):
    evaluator = make_evaluator(SCRIPT.format(name="s", handler=""))
    evaluator.services = replace(evaluator.services, least_sandbox=PODMAN)
    assert evaluator.evaluate_sync("s").unwrap().notes["sandbox"] == "podman"


@pytest.mark.parametrize("tool", ["run_script", "bash"])
def test_tools_that_run_programs_are_in_the_sandbox(make_evaluator, podman, tool):
    xml = f'<task name="t" type="atomic"><description>d</description><tools><tool name="{tool}"/></tools></task>'
    config = profile(PODMAN, tools=(ToolGrant(tool, "allow"),))
    seen = []

    def answer(request):
        seen.append(request.messages[-1].content)
        command = ["echo", "ran"] if tool == "run_script" else "echo ran"
        return "done" if len(seen) > 1 else {"tool": tool, "arguments": {"command": command}}

    make_evaluator(xml, script=answer, handler=config, profiles={"p": config}).evaluate_sync(
        "t"
    ).unwrap()
    assert json.loads(seen[-1])["stdout"] == "ran\n"
    programs = [words[words.index("--") + 2] for words in podman.calls() if words[0] == "run"]
    assert programs == ["true", "echo" if tool == "run_script" else "bash"]


def test_a_new_tool_that_declares_programs_is_asked_about_and_checked_and_has_the_sandbox(
    make_evaluator, podman, monkeypatch
):
    seen = []

    @tool(policy="ask", controls="programs")
    async def compile_c(context: ToolContext) -> str:
        """Compile."""
        seen.append(context.sandbox.kind)
        return "done"

    config = profile(PODMAN, tools=(ToolGrant("compile_c", "allow"),))
    monkeypatch.setattr(controls, "builtin_tools", lambda: ToolRegistry([compile_c]))
    assert names_of(config, ".")[0] == "the tool compile_c, which runs programs without asking"
    xml = '<task name="t" type="atomic"><description>d</description></task>'
    answers = [{"tool": "compile_c", "arguments": {}}, "done"]
    evaluator = make_evaluator(
        xml, script=answers, handler=config, profiles={"p": config}, tools=[compile_c]
    )
    evaluator.evaluate_sync("t").unwrap()
    assert seen == ["podman"]
    assert ran(podman, "true") == 1  # the sandbox was tried before the first model call


def test_a_tool_of_a_task_that_does_not_declare_what_it_controls_fails_at_import(monkeypatch):
    declared = {name: value for name, value in controls.OF_TASK_TOOLS.items() if name != "bash"}
    monkeypatch.setattr(controls, "OF_TASK_TOOLS", declared)
    source = Path(toolset.__file__).read_text()
    with pytest.raises(
        TypeError, match=r"evaluator/tools/controls.py and the tools of tasks differ: bash;"
    ):
        exec(compile(source, "toolset.py", "exec"), {"__name__": "copy_of_toolset"})


def test_a_command_that_lists_files_is_in_the_sandbox(make_evaluator, podman, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    xml = """<task name="t" type="atomic"><description>d</description><instructions>go</instructions>
    <file_paths source="command"><command>echo notes.txt</command></file_paths></task>"""
    config = profile(PODMAN)
    result = make_evaluator(xml, handler=config, profiles={"p": config}).evaluate_sync("t").unwrap()
    assert result.notes["context"] == ["file:notes.txt"]
    assert ran(podman, "echo", "notes.txt") == 1


def test_a_script_in_a_sandbox_cannot_see_the_record(make_evaluator, podman, tmp_path):
    config = profile(PODMAN)
    make_evaluator(
        SCRIPT.format(name="s", handler=""), handler=config, profiles={"p": config}
    ).evaluate_sync("s")
    words = podman.calls()[-2]
    assert f"{tmp_path}/tasks:ro,size=4096" in words


def test_a_sandbox_that_is_not_installed_is_an_error_before_a_model_call(
    make_evaluator, tmp_path, monkeypatch
):
    xml = f"""<task name="all" type="sequential"><description>d</description><steps>
    <task type="atomic"><description>d</description><instructions>go</instructions></task>
    <call template="s"/></steps></task>{SCRIPT.format(name="s", handler='<handler sandbox="bubblewrap"/>')}"""
    calls = []
    evaluator = make_evaluator(xml, script=lambda request: calls.append(request) or "x")
    monkeypatch.setenv("PATH", str(tmp_path))
    error = evaluator.evaluate_sync("all")
    assert "install the package bubblewrap" in error.message
    assert calls == []
    with pytest.raises(ConfigurationError, match="install the package bubblewrap"):
        run_batch_sync("all", [{"id": 1}], evaluator=evaluator, output=tmp_path / "batch")
    assert not (tmp_path / "batch").exists()
    assert run_batch_sync(
        "all", [{"id": 1}], evaluator=evaluator, output=tmp_path / "b2", sandbox="none"
    ).is_complete
    outcome, _ = evaluator.render("all")  # shows the requests, and starts nothing
    assert outcome.ok


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_a_person_is_asked_once_whether_scripts_may_run_without_a_sandbox_that_does_not_work(
    make_evaluator, tmp_path, monkeypatch, answer
):
    questions = []
    asker = CallbackAsker(lambda question: questions.append(question) or answer)
    xml = SCRIPT.format(name="s", handler='<handler sandbox="bubblewrap"/>')
    evaluator = make_evaluator(xml.replace("echo ran", "/bin/echo ran"), asker=asker)
    chosen = make_evaluator(xml, asker=asker, sandbox="bubblewrap")
    monkeypatch.setenv("PATH", str(tmp_path))
    outcomes = [evaluator.evaluate_sync("s") for _ in range(2)]
    assert len(questions) == (1 if answer == "yes" else 2)
    assert "bwrap, which is not installed" in questions[0]
    assert "without a sandbox, with all of your rights?" in questions[0]
    for outcome in outcomes:
        if answer == "yes":
            assert (outcome.content, outcome.notes["sandbox"]) == ("ran\n", "none")
        else:
            assert "--sandbox (none: scripts run without a sandbox)" in outcome.message
    questions.clear()
    assert not chosen.evaluate_sync("s").ok  # the user chose this sandbox
    assert questions == []


@pytest.mark.parametrize(
    "inside",
    [
        "<call template='s'/>",
        "<task type='script'><description>d</description><command>echo ran</command></task>",
        "<task type='atomic'><description>d</description><instructions>x</instructions><tools><tool name='bash'/></tools></task>",
        "<task type='atomic'><description>d</description><instructions>x</instructions><tools><tool name='s'/></tools></task>",
        "<task type='atomic'><description>d</description><instructions>x</instructions>"
        "<file_paths source='command'><command>ls</command></file_paths></task>",
        "<task type='atomic'><description>d</description><instructions>{{ f() }}</instructions></task>",
    ],
)
def test_what_needs_a_sandbox_is_found_wherever_it_is(make_evaluator, inside):
    xml = f"""<task name="all" type="sequential"><description>d</description><handler sandbox="bubblewrap"/>
    <steps>{inside}</steps></task><template name="f"><call template="s"/></template>
    {SCRIPT.format(name="s", handler="")}"""
    evaluator = make_evaluator(xml)
    library = evaluator.library
    found = {
        sandbox.kind
        for sandbox in needed_sandboxes(
            evaluator.services.new_domain(None), library.get("all").node
        )
    }
    assert found == {"bubblewrap"}
    assert list(needed_sandboxes(evaluator.services.new_domain(None), library.get("s").node)) == []


def test_a_profile_names_its_sandbox(tmp_path: Path):
    def read(sandbox: str) -> Sandbox:
        file = tmp_path / "p.xml"
        file.write_text(f'<handler name="p">{sandbox}</handler>')
        return read_profile(file)[0].sandbox

    assert read("") == Sandbox()
    assert read('<sandbox kind="bubblewrap"/>') == Sandbox("bubblewrap")
    found = read('<sandbox kind="docker" image="img" cpus="0.5" network="true"/>')
    assert found == Sandbox("docker", "img", 0.5, network=True)
    with pytest.raises(ConfigurationError, match="needs an image"):
        read('<sandbox kind="docker"/>')
    with pytest.raises(ConfigurationError, match="jail"):
        read('<sandbox kind="jail"/>')
