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
from collections.abc import Iterator
from typing import Any

import pytest

from evaluator import (
    ToolError,
)
from evaluator.tools import FileAccess, ToolContext, ToolOutcome, ToolRegistry
from evaluator.tools.computer import computer_tool
from evaluator.tools.x_display import _KEYS, XDisplay, chords  # pyright: ignore[reportPrivateUsage]
from tests.tools.fake_display import (
    HEIGHT,
    WIDTH,
    Fake,
    calls,
)

REAL = all(map(shutil.which, ("Xvfb", "xdotool", "import")))
real_only = pytest.mark.skipif(
    not REAL, reason="no real display: Xvfb, xdotool or ImageMagick's import is missing"
)


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
