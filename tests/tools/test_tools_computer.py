"""The computer tool: what reaches xdotool and the screen, what never does, and the errors for missing programs.

The same checks run against small programs of the same names and against a real display where Xvfb is installed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    ConfigurationError,
    Evaluator,
    HandlerConfig,
    SimulatedBackend,
    TaskError,
    TemplateLibrary,
    ToolError,
)
from evaluator.handler.config import read_profile
from evaluator.tools import FileAccess, PolicyRule, ToolContext, ToolOutcome, ToolRegistry
from evaluator.tools.computer import computer_tool
from evaluator.tools.x_display import _KEYS, XDisplay, chords  # pyright: ignore[reportPrivateUsage]

WIDTH, HEIGHT = 320, 240
REAL = all(map(shutil.which, ("Xvfb", "xdotool", "import")))
real_only = pytest.mark.skipif(
    not REAL, reason="no real display: Xvfb, xdotool or ImageMagick's import is missing"
)

FAKE_XDOTOOL = """#!{python}
import json, os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
state = os.path.join(here, "state.json")
now = json.load(open(state))
args = sys.argv[1:]
stdin = sys.stdin.read() if args[0] == "type" else None
with open(os.path.join(here, "log"), "a") as log:
    log.write(json.dumps({{"argv": args, "stdin": stdin, "env": dict(os.environ)}}) + "\\n")
if now.get("hangs"):
    time.sleep(60)
if now.get("floods"):
    while True:
        sys.stdout.write("x" * 100_000)
if os.environ["DISPLAY"] not in now["displays"]:
    sys.exit("Error: Can't open display: " + os.environ["DISPLAY"])
if args[0] == "keydown" and os.path.exists(os.path.join(here, "pressed")):
    open(os.path.join(here, "pressed"), "w").close()
if args[0] == now.get("fails"):
    sys.exit("it does not work")
if args[0] == "getdisplaygeometry":
    print(*now["size"])
if args[0] == "getmouselocation":
    print("x:%d y:%d screen:0 window:1" % tuple(now["at"]))
for place, word in enumerate(args):
    if word == "mousemove":
        now["at"] = [int(args[place + 1]), int(args[place + 2])]
with open(state + ".new", "w") as file:
    json.dump(now, file)
os.replace(state + ".new", state)
"""
FAKE_IMPORT = """#!{python}
import json, os, sys, zlib
here = os.path.dirname(os.path.abspath(__file__))
now = json.load(open(os.path.join(here, "state.json")))
if os.environ["DISPLAY"] not in now["displays"]:
    sys.exit("import: unable to open X server `" + os.environ["DISPLAY"] + "'")
if sys.argv[1:] != ["-silent", "-window", "root", "png:-"]:
    sys.exit("import: another picture was asked for")
width, height = now["size"]
def chunk(kind, data):
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
rows = zlib.compress((b"\\0" + bytes(width)) * height)
png = b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
sys.stdout.buffer.write(png + bytes(now.get("padding", 0)))
"""


class Fake:
    """Programs named xdotool and import, and what they were called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = {"displays": [":7"], "size": [WIDTH, HEIGHT], "at": [0, 0]}
        for name, text in (("xdotool", FAKE_XDOTOOL), ("import", FAKE_IMPORT)):
            (folder / name).write_text(text.format(python=sys.executable))
            (folder / name).chmod(0o700)
        self.be()

    def be(self, **state: Any) -> None:
        self.state |= state
        (self.folder / "state.json").write_text(json.dumps(self.state))

    @property
    def calls(self) -> list[dict[str, Any]]:
        log = self.folder / "log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def argvs(self) -> list[list[str]]:
        return [call["argv"] for call in self.calls if call["argv"] != ["getdisplaygeometry"]]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    (folder := tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return Fake(folder)


@pytest.fixture(scope="module")
def server() -> Iterator[XDisplay]:
    """A display of its own, at the first number that is free."""
    reading, writing = os.pipe()
    words = [
        "Xvfb",
        "-displayfd",
        str(writing),
        "-screen",
        "0",
        f"{WIDTH}x{HEIGHT}x24",
        "-noreset",
        "-nolisten",
        "tcp",
    ]
    process = subprocess.Popen(
        words, pass_fds=[writing], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(writing)
    try:
        with open(reading) as file:
            number = file.readline().strip()
        assert number, "Xvfb did not start"
        yield XDisplay(f":{number}", WIDTH, HEIGHT)
    finally:
        process.terminate()
        process.wait(200)


@pytest.fixture(params=["fake", pytest.param("real", marks=real_only)])
def display(request: pytest.FixtureRequest) -> XDisplay:
    if request.param == "real":
        return request.getfixturevalue("server")
    request.getfixturevalue("fake")
    return XDisplay(":7", WIDTH, HEIGHT)


def calls(display: XDisplay, *arguments: dict[str, Any], **changes: Any) -> list[ToolOutcome]:
    """What one tool answers, allowed to do all unless `changes` say otherwise, and closed at the end."""

    async def run() -> list[ToolOutcome]:
        tool = dataclasses.replace(computer_tool(display), **{"policy": "allow", **changes})
        registry = ToolRegistry([tool])
        context = ToolContext(FileAccess([]))
        try:
            return [
                await registry.call("computer", json.dumps(given), context) for given in arguments
            ]
        finally:
            await registry.aclose()

    return asyncio.run(run())


def call(display: XDisplay, **arguments: Any) -> ToolOutcome:
    return calls(display, arguments)[0]


# -- what the small programs and a real display both do -----------------------------------------------------------


def test_a_screenshot_is_a_png_of_the_display(display: XDisplay) -> None:
    outcome = call(display, action="screenshot")
    assert (outcome.ok, outcome.content) == (True, "a screenshot, 320×240")
    (image,) = outcome.images
    assert (image.media_type, image.source) == ("image/png", f"screenshot of {display.name}")
    assert [int.from_bytes(image.data[at : at + 4], "big") for at in (16, 20)] == [WIDTH, HEIGHT]


def test_the_mouse_is_where_it_was_moved_and_where_a_drag_ends(display: XDisplay) -> None:
    said = calls(
        display,
        {"action": "mouse_move", "coordinate": [10, 20]},
        {"action": "cursor_position"},
        {"action": "left_click_drag", "start_coordinate": [1, 2], "coordinate": [319, 239]},
        {"action": "cursor_position"},
        {"action": "scroll", "coordinate": [5, 6], "scroll_direction": "down", "scroll_amount": 3},
        {"action": "left_click", "text": "ctrl+shift"},
        {"action": "cursor_position"},
    )
    assert [outcome.content for outcome in said] == [
        "mouse_move done",
        "X=10,Y=20",
        "left_click_drag done",
        "X=319,Y=239",
        "scroll done",
        "left_click done",
        "X=5,Y=6",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"action": "key", "text": "ctrl+s Return pageup F5"}, "pressed ctrl+s Return Page_Up F5"),
        ({"action": "type", "text": "-a --file /etc/hostname; $(id)\n"}, "typed 31 characters"),
        ({"action": "hold_key", "text": "Shift", "duration": 0.01}, "held shift for 0.01 s"),
        ({"action": "wait", "duration": 0}, "waited 0 s"),
        ({"action": "left_mouse_down"}, "left_mouse_down done"),
        ({"action": "left_mouse_up"}, "left_mouse_up done"),
        ({"action": "triple_click"}, "triple_click done"),
        ({"action": "middle_click", "coordinate": [0, 0]}, "middle_click done"),
    ],
)
def test_keys_buttons_and_waiting(display: XDisplay, arguments: dict[str, Any], said: str) -> None:
    outcome = call(display, **arguments)
    assert (outcome.ok, outcome.content) == (True, said)


def test_a_display_of_another_size_is_refused(display: XDisplay) -> None:
    other = dataclasses.replace(display, width=1024, height=768)
    outcome = call(other, action="left_click", coordinate=[700, 700])
    assert (
        outcome.error
        == f"the display {display.name} is 320×240, the profile says 1024×768; make the two the same"
    )


def test_a_missing_display_is_named_with_a_command_that_starts_it(display: XDisplay) -> None:
    outcome = call(XDisplay(":64999", WIDTH, HEIGHT), action="screenshot")
    assert outcome.error == (
        "there is no display :64999; start one, such as: Xvfb :64999 -screen 0 320x240x24 -noreset (from the package xvfb)"
    )


# -- what a real display alone can show ---------------------------------------------------------------------------


@real_only
@pytest.mark.skipif(
    shutil.which("xev") is None, reason="no program to see events with: xev (x11-apps) is missing"
)
def test_a_program_on_the_display_sees_clicks_keys_and_text(server: XDisplay) -> None:
    words = ["xev", "-geometry", "300x200+0+0"]
    environment = {**os.environ, "DISPLAY": server.name}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as xev:
        assert xev.stdout is not None
        try:
            for line in xev.stdout:
                if line.startswith("Expose"):
                    break
            done = calls(
                server,
                {"action": "double_click", "coordinate": [50, 60], "text": "ctrl"},
                {"action": "scroll", "scroll_direction": "up", "scroll_amount": 2},
                {"action": "key", "text": "ctrl+s"},
                {"action": "type", "text": "hi $x;\n"},
                {"action": "key", "text": "Escape"},
            )
            assert all(outcome.ok for outcome in done), done
            seen: list[str] = []
            kind = state = ""
            for line in xev.stdout:
                if found := re.match(r"(\w+) event", line):
                    kind = found[1]
                if found := re.search(
                    r"state (0x\w+), (?:button (\d)|keycode \d+ \(keysym 0x\w+, (\w+)\))", line
                ):
                    state = "ctrl+" if int(found[1], 16) & 4 else ""
                    if kind in ("ButtonPress", "KeyPress"):
                        seen.append(state + (found[2] or found[3]))
                    if found[3] == "Escape":
                        break
        finally:
            xev.terminate()
    assert [name for name in seen if name not in ("Control_L", "Shift_L", "ctrl+Control_L")] == [
        "ctrl+1",
        "ctrl+1",
        "4",
        "4",
        "ctrl+s",
        "h",
        "i",
        "space",
        "dollar",
        "x",
        "semicolon",
        "Return",
        "Escape",
    ]


@real_only
def test_no_key_is_a_command_of_xdotool(server: XDisplay) -> None:
    environment = {**os.environ, "DISPLAY": server.name}
    commands = subprocess.run(
        ["xdotool", "help"], capture_output=True, text=True, env=environment
    ).stdout.split()
    assert "exec" in commands
    assert {name.lower() for name in (*_KEYS, *_KEYS.values())}.isdisjoint(commands)


@real_only
def test_xdotool_knows_every_key_that_is_accepted(server: XDisplay) -> None:
    names = sorted(set(_KEYS.values()))
    assert asyncio.run(server.xdotool(["key", "--delay", "0", "--", *names], 10)).stderr == ""
    with pytest.raises(ToolError, match="No such key name 'Nokey'"):
        asyncio.run(server.xdotool(["key", "--", "Nokey"], 10))


# -- what is called, and what never is ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "argv"),
    [
        ({"action": "mouse_move", "coordinate": [1, 2]}, ["mousemove", "1", "2"]),
        ({"action": "left_click"}, ["click", "1"]),
        ({"action": "right_click", "coordinate": [1, 2]}, ["mousemove", "1", "2", "click", "3"]),
        (
            {"action": "middle_click", "text": "alt"},
            ["keydown", "alt", "click", "2", "keyup", "alt"],
        ),
        ({"action": "double_click"}, ["click", "--repeat", "2", "--delay", "10", "1"]),
        ({"action": "triple_click"}, ["click", "--repeat", "3", "--delay", "10", "1"]),
        (
            {"action": "left_click_drag", "coordinate": [3, 4], "start_coordinate": [1, 2]},
            [
                "mousemove",
                "1",
                "2",
                "mousedown",
                "1",
                "sleep",
                "0.05",
                "mousemove",
                "3",
                "4",
                "sleep",
                "0.05",
                "mouseup",
                "1",
            ],
        ),
        (
            {
                "action": "scroll",
                "coordinate": [1, 2],
                "scroll_direction": "left",
                "scroll_amount": 4,
            },
            ["mousemove", "1", "2", "click", "--repeat", "4", "--delay", "10", "6"],
        ),
        ({"action": "left_mouse_up"}, ["mouseup", "1"]),
        ({"action": "key", "text": "Ctrl+Page_down"}, ["key", "--", "ctrl+Page_Down"]),
    ],
)
def test_an_action_is_one_argv(fake: Fake, arguments: dict[str, Any], argv: list[str]) -> None:
    assert call(XDisplay(":7", WIDTH, HEIGHT), **arguments).ok
    assert fake.argvs == [argv]


def test_text_is_passed_by_standard_input_with_a_scrubbed_environment(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.setenv("DISPLAY", ":1")
    assert call(XDisplay(":7", WIDTH, HEIGHT), action="type", text="exec reboot\n").ok
    typed = fake.calls[-1]
    assert typed["argv"] == ["type", "--delay", "12", "--file", "-"]
    assert typed["stdin"] == "exec reboot\r"
    assert typed["env"]["DISPLAY"] == ":7"
    kept = {"PATH", "HOME", "LANG", "TMPDIR", "DISPLAY", "EVALUATOR_SCRIPT_ID"}
    assert {name for name in typed["env"] if not name.startswith(("LC_", "__"))} <= kept


@pytest.mark.parametrize(
    "text",
    [
        "exec",
        "exec reboot",
        "Exec",
        "a search",
        "Help",
        "ctrl+exec",
        "--window",
        "+",
        "a++",
        "!",
        "",
    ],
)
def test_an_unknown_key_never_reaches_xdotool(fake: Fake, text: str) -> None:
    for action in (
        {"action": "key"},
        {"action": "hold_key", "duration": 0},
        {"action": "left_click"},
    ):
        outcome = call(XDisplay(":7", WIDTH, HEIGHT), text=text, **action)
        assert (outcome.ok, outcome.code) == (False, "failed")
    assert fake.calls == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"action": "mouse_move", "coordinate": [320, 0]}, "the last position is [319, 239]"),
        (
            {"action": "left_click", "coordinate": [0, 240]},
            "coordinate is [0, 240]; the screen has 320x240 pixels",
        ),
        (
            {"action": "left_click_drag", "coordinate": [0, 0], "start_coordinate": [999, 0]},
            "start_coordinate is",
        ),
        (
            {"action": "mouse_move", "coordinate": [-1, 0]},
            "$.coordinate[0]: -1 is less than the minimum of 0",
        ),
        ({"action": "mouse_move", "coordinate": [1.5, 0]}, "1.5 is not of type 'integer'"),
        ({"action": "mouse_move", "coordinate": [1]}, "is too short"),
        ({"action": "mouse_move"}, "mouse_move needs coordinate"),
        ({"action": "hold_key"}, "hold_key needs text and duration"),
        ({"action": "scroll", "scroll_amount": 1}, "scroll needs scroll_direction"),
        (
            {"action": "scroll", "scroll_amount": 101, "scroll_direction": "up"},
            "greater than the maximum of 100",
        ),
        (
            {"action": "left_mouse_down", "coordinate": [1, 1]},
            "does not take coordinate; it takes no other argument",
        ),
        (
            {"action": "key", "text": "a", "coordinate": [1, 1]},
            "key does not take coordinate; it takes text",
        ),
        ({"action": "left_click", "text": "a b"}, "left_click takes one combination of keys"),
        ({"action": "key", "text": " ".join("a" * 101)}, "101 key combinations, at most 100"),
        ({"action": "type", "text": ""}, "text is empty"),
        (
            {"action": "type", "text": "a\x1bc"},
            "contains the character '\\x1b', which no keyboard has",
        ),
        ({"action": "type", "text": "x" * 4_001}, "4,001 characters, at most 4,000"),
        ({"action": "wait", "duration": 101}, "greater than the maximum of 100"),
        ({"action": "zoom"}, "'zoom' is not one of"),
    ],
)
def test_invalid_arguments_call_no_program(
    fake: Fake, arguments: dict[str, Any], error: str
) -> None:
    outcome = call(XDisplay(":7", WIDTH, HEIGHT), **arguments)
    assert not outcome.ok
    assert error in (outcome.error or "")
    assert fake.calls == []


def test_capitals_and_other_spellings_of_keys() -> None:
    assert chords("CTRL+enter esc A f12 pgdn U20AC KP_5 -") == [
        "ctrl+Return",
        "Escape",
        "A",
        "F12",
        "Page_Down",
        "U20AC",
        "KP_5",
        "minus",
    ]


# -- bounds -------------------------------------------------------------------------------------------------------


def test_a_program_that_hangs_or_floods_is_killed(fake: Fake) -> None:
    fake.be(hangs=True)
    with pytest.raises(
        ToolError, match="xdotool was stopped: it did not end in time on the display :7"
    ):
        asyncio.run(XDisplay(":7", WIDTH, HEIGHT).xdotool(["click", "1"], 0.3))
    fake.be(hangs=False, floods=True)
    with pytest.raises(ToolError, match="xdotool failed on the display :7"):
        asyncio.run(XDisplay(":7", WIDTH, HEIGHT).xdotool(["click", "1"], 10))


def test_a_screenshot_that_is_too_large_is_refused(fake: Fake) -> None:
    fake.be(padding=5_000_000)
    outcome = call(XDisplay(":7", WIDTH, HEIGHT), action="screenshot")
    assert outcome.error == "the screenshot has more than 5,000,000 bytes; use a smaller display"


@pytest.mark.parametrize("fails", [None, "keyup"])
def test_a_held_key_is_released_when_the_call_is_cancelled(fake: Fake, fails: str | None) -> None:
    fake.be(fails=fails)
    pressed = fake.folder / "pressed"
    os.mkfifo(pressed)

    async def run() -> None:
        tool = ToolRegistry(
            [dataclasses.replace(computer_tool(XDisplay(":7", WIDTH, HEIGHT)), policy="allow")]
        )
        wanted = json.dumps({"action": "hold_key", "text": "w", "duration": 100})
        holding = asyncio.create_task(tool.call("computer", wanted, ToolContext(FileAccess([]))))
        await asyncio.to_thread(pressed.read_bytes)
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding

    asyncio.run(run())
    assert fake.argvs == [["keydown", "--", "w"], ["keyup", "--", "w"]]


def test_a_held_button_is_released_at_the_end_of_the_task(fake: Fake) -> None:
    place = XDisplay(":7", WIDTH, HEIGHT)
    calls(place, {"action": "left_mouse_down"})
    assert fake.argvs == [["mousedown", "1"], ["mouseup", "1"]]
    (fake.folder / "log").unlink()
    calls(place, {"action": "left_mouse_down"}, {"action": "left_mouse_up"})
    assert fake.argvs == [["mousedown", "1"], ["mouseup", "1"]]


def test_maim_takes_the_screenshot_where_import_is_missing(fake: Fake) -> None:
    text = (
        (fake.folder / "import")
        .read_text()
        .replace('["-silent", "-window", "root", "png:-"]', '["-f", "png"]')
    )
    (fake.folder / "import").rename(fake.folder / "maim").write_text(text)
    assert call(XDisplay(":7", WIDTH, HEIGHT), action="screenshot").ok


@pytest.mark.parametrize(
    ("missing", "error"),
    [
        ("xdotool", "xdotool is not installed; the computer tool needs xdotool and imagemagick"),
        (
            "import",
            "no screenshot program found; install imagemagick (its program import), or maim",
        ),
    ],
)
def test_a_missing_program_is_named_with_the_package_to_install(
    fake: Fake, missing: str, error: str
) -> None:
    (fake.folder / missing).unlink()
    assert call(XDisplay(":7", WIDTH, HEIGHT), action="screenshot").error == error


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
