"""The tool `computer`, which Anthropic's models are trained on, for an X display: screenshots,
mouse and keyboard.

An Anthropic model receives its type and the display's size; other models receive a schema. Rules on
the argument `action` decide what is allowed: by default, looking and waiting are allowed and
everything else asks. Only `screenshot` shows the display; the model takes one when it wants to see
the effect of an action.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from evaluator import clock
from evaluator.errors import ToolError
from evaluator.errors.messages import amount
from evaluator.models.backend import ToolSpec
from evaluator.patterns import Pattern
from evaluator.tools.arguments import check_action
from evaluator.tools.policy import PolicyRule
from evaluator.tools.tool import Tool, ToolAnswer, ToolContext, object_schema, text_schema
from evaluator.tools.x_display import PROGRAM_S, XDisplay, chords

COMPUTER = "computer"
MAX_TEXT_CHARS = 4_000
MAX_WAIT_S = 100
_MAX_SCROLL = 100
_KEY_DELAY_MS = 12
_CHAR_S = 0.05  # much more than xdotool takes for a character
_CLICKS: Mapping[str, tuple[str, ...]] = {
    "left_click": ("click", "1"),
    "right_click": ("click", "3"),
    "middle_click": ("click", "2"),
    "double_click": ("click", "--repeat", "2", "--delay", "10", "1"),
    "triple_click": ("click", "--repeat", "3", "--delay", "10", "1"),
}
_WHEEL = {"up": "4", "down": "5", "left": "6", "right": "7"}
# The required and the optional arguments of each action.
_ACTIONS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "screenshot": ((), ()),
    "cursor_position": ((), ()),
    "wait": (("duration",), ()),
    "mouse_move": (("coordinate",), ()),
    **dict.fromkeys(_CLICKS, ((), ("coordinate", "text"))),
    "left_click_drag": (("coordinate",), ("start_coordinate", "text")),
    "left_mouse_down": ((), ()),
    "left_mouse_up": ((), ()),
    "scroll": (("scroll_direction", "scroll_amount"), ("coordinate", "text")),
    "key": (("text",), ()),
    "hold_key": (("text", "duration"), ()),
    "type": (("text",), ()),
}
_AT = Pattern(r"x:(\d+) y:(\d+)")


def computer_tool(display: XDisplay) -> Tool:
    """The tool `computer` for one display. A mouse button that is still held at the task's end is
    released.
    """
    computer = _Computer(display)
    description = (
        f"Look at a screen of {display.width}x{display.height} pixels and use its mouse and "
        "keyboard. Take a screenshot to see the screen and the effect of an action; positions are "
        "[x, y] in pixels from the top left."
    )
    size = {
        "display_width_px": display.width,
        "display_height_px": display.height,
        "display_number": display.number,
    }
    # In the form that LiteLLM expects. Source: the reference of Anthropic's computer use tool;
    # LiteLLM, `llms/anthropic/chat/transformation.py`.
    native = {
        "type": "computer_20250124",
        "name": COMPUTER,
        "function": {"name": COMPUTER, "parameters": size},
    }
    return Tool(
        ToolSpec(COMPUTER, description, parameters=_PARAMETERS, native=native),
        computer.run,
        policy="ask",
        rules=tuple(
            PolicyRule("allow", "action", matches=action)
            for action in ("screenshot", "cursor_position", "wait")
        ),
        close=computer.close,
    )


_PLACE = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2}
_PARAMETERS = object_schema(
    {
        "action": {"type": "string", "enum": list(_ACTIONS)},
        "coordinate": {**_PLACE, "description": "[x, y]: where to move, click, scroll, or drag to"},
        "start_coordinate": {
            **_PLACE,
            "description": "[x, y], for left_click_drag: where to begin",
        },
        "text": text_schema(
            "for type: the text; for key and hold_key: keys such as Return or ctrl+s; for clicks, "
            "drag and scroll: keys to hold meanwhile, such as shift"
        ),
        "duration": {
            "type": "number",
            "minimum": 0,
            "maximum": MAX_WAIT_S,
            "description": "for wait and hold_key: seconds",
        },
        "scroll_direction": {"type": "string", "enum": list(_WHEEL)},
        "scroll_amount": {
            "type": "integer",
            "minimum": 1,
            "maximum": _MAX_SCROLL,
            "description": "for scroll: clicks of the wheel",
        },
    },
    ["action"],
)


class _Computer:
    def __init__(self, display: XDisplay) -> None:
        self.display = display
        self.checked = False
        self.holds_button = False

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        _check(arguments, self.display)
        action = arguments["action"]
        left = context.remaining_s
        if action == "wait":
            await clock.sleep(arguments["duration"])
            return f"waited {arguments['duration']:g} s"
        keys: list[str] = []
        if action == "type":
            _check_text(arguments["text"])
        elif "text" in arguments:
            keys = chords(arguments["text"])
        if len(keys) > 1 and action != "key":
            raise ToolError(f"{action} takes one combination of keys, such as ctrl+shift")
        if not self.checked:
            await self.display.check(left)
            self.checked = True
        if action == "screenshot":
            return ToolAnswer(
                f"a screenshot, {self.display.size}", (await self.display.screenshot(left),)
            )
        if action == "cursor_position":
            return _position((await self.display.xdotool(["getmouselocation"], left)).stdout)
        if action == "type":
            return await self._type(arguments["text"], left)
        if action == "key":
            for key in keys:
                # One at a time: xdotool would run a second name that is one of its commands.
                await self.display.xdotool(["key", "--", key], left)
            return f"pressed {' '.join(keys)}"
        if action == "hold_key":
            return await self._hold(keys[0], arguments["duration"], left=left)
        if action == "left_mouse_down":
            self.holds_button = True
        await self.display.xdotool(_mouse(arguments, keys), left)
        if action == "left_mouse_up":
            self.holds_button = False
        return f"{action} done"

    async def close(self) -> None:
        if self.holds_button:
            self.holds_button = False
            with contextlib.suppress(ToolError):  # the display no longer exists
                await self.display.xdotool(["mouseup", "1"], PROGRAM_S)

    async def _type(self, text: str, left: float) -> str:
        # Through standard input, so that no part of the text can be an option or a command. Lines
        # end with a carriage return, the Return key; to xdotool, a line feed is another key, which
        # few programs know.
        await self.display.xdotool(
            ["type", "--delay", str(_KEY_DELAY_MS), "--file", "-"],
            left,
            stdin=text.replace("\n", "\r"),
            timeout_s=PROGRAM_S + _CHAR_S * len(text),
        )
        return f"typed {amount(len(text), 'character')}"

    async def _hold(self, key: str, seconds: float, left: float) -> str:
        try:
            await self.display.xdotool(["keydown", "--", key], left)
            await clock.sleep(seconds)
        except BaseException:
            with contextlib.suppress(ToolError):  # the first exception is the one to report
                await self.display.xdotool(["keyup", "--", key], PROGRAM_S)
            raise
        await self.display.xdotool(["keyup", "--", key], PROGRAM_S)
        return f"held {key} for {seconds:g} s"


def _check(arguments: Mapping[str, Any], display: XDisplay) -> None:
    """Raises: ToolError, for a missing or unknown argument of the action, and a position outside
    the display.
    """
    check_action(arguments, *_ACTIONS[arguments["action"]])
    for name in ("start_coordinate", "coordinate"):
        x, y = arguments.get(name, (0, 0))
        if x >= display.width or y >= display.height:
            raise ToolError(
                f"{name} is [{x}, {y}]; the screen has {display.width}x{display.height} pixels, so "
                f"the last position is [{display.width - 1}, {display.height - 1}]"
            )


def _check_text(text: str) -> None:
    """Raises: ToolError, for a text that is empty or too long, or has characters that no keyboard
    has.
    """
    if not text:
        raise ToolError("text is empty; give the text to type")
    if len(text) > MAX_TEXT_CHARS:
        raise ToolError(
            f"text has {len(text):,} characters, at most {MAX_TEXT_CHARS:,} are typed at once"
        )
    strange = next((char for char in text if char not in "\n\t" and not char.isprintable()), None)
    if strange is not None:
        raise ToolError(
            f"text contains the character {strange!r}, which no keyboard has; for keys, use key"
        )


def _mouse(arguments: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """The arguments of xdotool for a mouse action, with the key combination `keys` held
    meanwhile.
    """
    action = arguments["action"]
    to = _move(arguments.get("coordinate"))
    if action in _CLICKS:
        words = [*to, *_CLICKS[action]]
    elif action == "scroll":
        amount = str(arguments["scroll_amount"])
        button = _WHEEL[arguments["scroll_direction"]]
        words = [*to, "click", "--repeat", amount, "--delay", "10", button]
    elif action == "left_click_drag":
        # Short pauses, because toolkits ignore a drag that ends immediately.
        start = _move(arguments.get("start_coordinate"))
        pause = ["sleep", "0.05"]
        words = [*start, "mousedown", "1", *pause, *to, *pause, "mouseup", "1"]
    else:
        buttons = {"left_mouse_down": ["mousedown", "1"], "left_mouse_up": ["mouseup", "1"]}
        words = buttons.get(action, to)
    if keys:
        return ["keydown", keys[0], *words, "keyup", keys[0]]
    return words


def _move(place: Sequence[int] | None) -> list[str]:
    if place is None:
        return []
    return ["mousemove", *map(str, place)]


def _position(output: str) -> str:
    found = _AT.search(output)
    if found is None:
        raise ToolError("xdotool did not report the position of the mouse")
    return f"X={found[1]},Y={found[2]}"
