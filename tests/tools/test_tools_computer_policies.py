"""Who may use the computer tool, and the display that a profile names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evaluator import (
    ConfigurationError,
    Evaluator,
    HandlerConfig,
    SimulatedBackend,
    TaskError,
    TemplateLibrary,
)
from evaluator.handler.config import read_profile
from evaluator.tools import PolicyRule
from evaluator.tools.x_display import XDisplay  # pyright: ignore[reportPrivateUsage]
from tests.tools.fake_display import (
    HEIGHT,
    WIDTH,
    Fake,
    calls,
)

# -- policies and profiles ----------------------------------------------------------------------------------------


def test_looking_and_waiting_are_allowed_and_other_actions_ask(fake: Fake) -> None:
    wanted = ({"action": "screenshot"}, {"action": "cursor_position"}, {"action": "left_click"})
    codes = [
        outcome.code for outcome in calls(XDisplay(":7", WIDTH, HEIGHT), *wanted, policy="ask")
    ]
    assert codes == [None, None, "denied"]
    rules = (PolicyRule("deny", "action", "type"), PolicyRule("allow", "action", "*_click"))
    wanted = (
        {"action": "type", "text": "x"},
        {"action": "left_click"},
        {"action": "key", "text": "a"},
    )
    codes = [
        o.code for o in calls(XDisplay(":7", WIDTH, HEIGHT), *wanted, policy="deny", rules=rules)
    ]
    assert codes == ["denied", None, "denied"]


def profile(folder: Path, inner: str) -> HandlerConfig:
    path = folder / "p.xml"
    path.write_text(f'<handler name="p">{inner}</handler>')
    return read_profile(path)[0]


def test_a_profile_names_the_display(tmp_path: Path) -> None:
    config = profile(
        tmp_path,
        '<computer display=":1" width="1024" height="768"/><tools><tool name="computer"/></tools>',
    )
    assert config.computer == XDisplay(":1", 1024, 768)
    assert config.to_dict()["computer"] == {"name": ":1", "width": 1024, "height": 768}
    assert profile(tmp_path, "").computer is None


@pytest.mark.parametrize(
    "attributes",
    [
        'display="1" width="1" height="1"',
        'display="host:1" width="1" height="1"',
        'display=":1" width="0" height="1"',
        'display=":1" width="8001" height="1"',
        'display=":1" width="10"',
        'width="10" height="10"',
    ],
)
def test_a_display_that_cannot_be_is_refused_in_the_profile(
    tmp_path: Path, attributes: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"p\.xml"):
        profile(tmp_path, f"<computer {attributes}/>")


@pytest.mark.parametrize(("name", "side"), [("1", 10), ("host:1", 10), (":1", 0), (":1", 8_001)])
def test_a_display_that_cannot_be_is_refused_in_python(name: str, side: int) -> None:
    with pytest.raises(ConfigurationError):
        XDisplay(name, side, 10)


@pytest.mark.parametrize(
    ("inner", "error"),
    [
        (
            '<tools><tool name="a"/><tool name="a"/></tools>',
            "the tool 'a' is there twice; put its policy and rules into one element",
        ),
        (
            '<mcp><server name="a" command="x"/><server name="a" command="y"/></mcp>',
            "the MCP server 'a' is there twice",
        ),
        (
            '<roles><role name="a" model="x"/><role name="b" model="x"/><role name="a" model="y"/></roles>',
            "the role 'a' is there twice; one model answers where it is named",
        ),
    ],
)
def test_a_second_display_in_a_profile_is_an_error_with_its_position(
    tmp_path: Path, inner: str, error: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(error)) as refused:
        profile(tmp_path, inner)
    second = f'<handler name="p">{inner}'.rindex('name="a"') + len('name="') + 1
    assert re.search(rf"p\.xml:1:{second}\b", str(refused.value)), refused.value


# -- a task that uses it ------------------------------------------------------------------------------------------


def test_a_task_is_offered_the_screen_of_its_profile(fake: Fake, tmp_path: Path) -> None:
    library = TemplateLibrary()
    library.add(
        '<task name="t" type="atomic"><description>D</description><tools><tool name="computer"/></tools></task>'
    )
    script = [{"tool": "computer", "arguments": {"action": "screenshot"}}, "seen"]
    config = HandlerConfig(name="desk", backend="simulated", computer=XDisplay(":7", WIDTH, HEIGHT))
    evaluator = Evaluator(
        library, config, backend=SimulatedBackend(script=script), tasks_dir=tmp_path / "tasks"
    )
    assert evaluator.evaluate_sync("t").unwrap().content == "seen"
    assert len(list((tmp_path / "tasks" / "attachments").iterdir())) == 1


def test_a_profile_without_a_display_has_no_computer_tool(tmp_path: Path) -> None:
    library = TemplateLibrary()
    library.add(
        '<task name="t" type="atomic"><description>D</description><tools><tool name="computer"/></tools></task>'
    )
    evaluator = Evaluator(
        library, "offline", backend=SimulatedBackend(), tasks_dir=tmp_path / "tasks"
    )
    error = evaluator.evaluate_sync("t")
    assert isinstance(error, TaskError)
    assert "the tool 'computer' needs a display; write into the profile 'offline'" in error.message
