"""An X display, and the keys that a model may press on it.

The keys have their xdotool names: `ctrl+s`, `Return`, `Page_Down`, `shift+F10`. The set is fixed
because xdotool runs a key name that is also one of its commands. `Help` is left out for that
reason.

Each program is started by its argv, never through a shell, within the limits of a script: its own
session, a scrubbed environment plus DISPLAY, 10 seconds, limited output; it is dead when the call
returns. Input from a model reaches xdotool only as numbers, as key names from a fixed set, or as
text on its standard input. This matters: xdotool runs any argument that is the name of one of its
commands, in upper or lower case, and its command `exec` runs programs.
"""

from __future__ import annotations

from collections.abc import Sequence

from evaluator.errors import ConfigurationError, ToolError
from evaluator.lazy_dataclass import frozen
from evaluator.models.attachments import MAX_IMAGE_BYTES, Attachment, media_type_of
from evaluator.patterns import Pattern
from evaluator.processes.scripts import ScriptResult, run_script

MAX_CHORDS = 100
_PLAIN = Pattern(r"[A-Za-z0-9]|[Ff](?:[1-9]|[12][0-9]|3[0-5])|KP_[0-9]|U[0-9A-Fa-f]{4,5}")
_NAMED = """
    Return Escape Tab BackSpace Delete Insert Home End Page_Up Page_Down Prior Next Left Right Up
    Down space Menu Print Pause Break Scroll_Lock Caps_Lock Num_Lock Multi_key Undo Redo Find Cancel
    Clear Select ISO_Left_Tab alt ctrl shift super meta Alt_L Alt_R Control_L Control_R Shift_L
    Shift_R Super_L Super_R Meta_L Meta_R ISO_Level3_Shift Mode_switch KP_Enter KP_Add KP_Subtract
    KP_Multiply KP_Divide KP_Decimal KP_Separator KP_Equal KP_Home KP_End KP_Prior KP_Next
    KP_Page_Up KP_Page_Down KP_Left KP_Right KP_Up KP_Down KP_Insert KP_Delete KP_Begin minus plus
    equal underscore comma period slash backslash semicolon colon apostrophe quotedbl grave
    asciitilde bracketleft bracketright braceleft braceright parenleft parenright less greater
    question exclam at numbersign dollar percent asciicircum ampersand asterisk bar XF86Back
    XF86Forward XF86Reload XF86Search XF86Copy XF86Cut XF86Paste XF86AudioPlay XF86AudioStop
    XF86AudioMute XF86AudioRaiseVolume XF86AudioLowerVolume
"""
_OTHER_NAMES = {
    "Return": "enter",
    "Escape": "esc",
    "Delete": "del",
    "Insert": "ins",
    "Page_Up": "pageup pgup",
    "Page_Down": "pagedown pgdn",
    "Left": "arrowleft",
    "Right": "arrowright",
    "Up": "arrowup",
    "Down": "arrowdown",
    "space": "spacebar",
    "ctrl": "control",
    "alt": "option",
    "super": "cmd command win windows",
    "minus": "-",
    "equal": "=",
    "comma": ",",
    "period": ".",
    "slash": "/",
    "backslash": "\\",
    "semicolon": ";",
    "apostrophe": "'",
    "grave": "`",
    "bracketleft": "[",
    "bracketright": "]",
    "asterisk": "*",
    "question": "?",
}
_KEYS = {name.lower(): name for name in _NAMED.split()} | {
    other: name for name, others in _OTHER_NAMES.items() for other in others.split()
}


def chords(text: str) -> list[str]:
    """The key combinations in `text`, separated by blanks, in xdotool's spelling; names are
    case-insensitive.

    Raises: ToolError, for an unknown key, an empty text, and more than 100 combinations.
    """
    words = text.split()
    if not words:
        raise ToolError("text is empty; name a key, such as Return or ctrl+s")
    if len(words) > MAX_CHORDS:
        raise ToolError(
            f"text has {len(words)} key combinations, at most {MAX_CHORDS}; to enter text, use type"
        )
    return ["+".join(map(_key, word.split("+"))) for word in words]


def _key(name: str) -> str:
    if _PLAIN.fullmatch(name):
        if name[0] == "f" and len(name) > 1:
            return name.upper()
        return name
    known = _KEYS.get(name.lower())
    if known is None:
        raise ToolError(
            f"{name[:50]!r} is not a key; use names such as Return, Escape, Page_Down, F5, minus, "
            "a, joined by + (ctrl+s); to enter text, use the action type"
        )
    return known


MAX_SIDE = 8_000
"""Pixels: the largest side of an image that providers accept."""
PROGRAM_S = 10.0
_NAME = Pattern(r":([0-9]{1,5})(?:\.[0-9]{1,2})?")
_NO_DISPLAY = Pattern(r"(?:can't|cannot|unable to|failed to) open (?:x )?(?:display|server)", "i")
# Screenshot programs; the first one that is installed is used. Each writes a PNG to its standard
# output.
_CAMERAS: tuple[tuple[str, ...], ...] = (
    ("import", "-silent", "-window", "root", "png:-"),
    ("maim", "-f", "png"),
)


@frozen
class XDisplay:
    """The display `:N` or `:N.S` of this machine and its size in pixels.

    Raises: ConfigurationError, for another form of name, and for a side outside 1 to 8,000.
    """

    name: str
    width: int
    height: int

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"{self.name!r} is not a display of this machine; write it like :1"
            )
        for side in (self.width, self.height):
            if not 1 <= side <= MAX_SIDE:
                raise ConfigurationError(
                    f"a display of {self.size}: each side must have 1 to {MAX_SIDE:,} pixels"
                )

    @property
    def size(self) -> str:
        return f"{self.width}×{self.height}"

    @property
    def number(self) -> int:
        """The N of `:N`."""
        return int(self.name[1:].partition(".")[0])

    async def check(self, remaining_s: float) -> None:
        """Raises: ToolError, unless the display exists and has the configured size, which positions
        depend on.
        """
        result = await self.xdotool(["getdisplaygeometry"], remaining_s)
        found = [int(word) for word in result.stdout.split() if word.isdecimal()]
        if found != [self.width, self.height]:
            is_now = "of an unknown size"
            if len(found) == 2:
                is_now = "×".join(map(str, found))
            raise ToolError(
                f"the display {self.name} is {is_now}, the profile says {self.size}; make the two "
                "the same"
            )

    async def xdotool(
        self,
        args: Sequence[str],
        remaining_s: float,
        *,
        stdin: str | None = None,
        timeout_s: float = PROGRAM_S,
    ) -> ScriptResult:
        """Runs xdotool. Raises: ToolError, if it is not installed, fails, or skips a key."""
        result = await self._run(("xdotool", *args), min(timeout_s, remaining_s), stdin=stdin)
        # It skips an unknown key with a message and still exits with 0.
        if "No such key name" in result.stderr:
            raise ToolError(f"xdotool: {_first_line(result.stderr)}")
        return result

    async def screenshot(self, remaining_s: float) -> Attachment:
        """The whole display as a PNG.

        Raises: ToolError, if no screenshot program is installed, it fails, or the image is above 5
        MB or does not have the display's size.
        """
        import shutil

        camera = next((words for words in _CAMERAS if shutil.which(words[0])), None)
        if camera is None:
            raise ToolError(
                "no screenshot program found; install imagemagick (its program import), or maim"
            )
        result = await self._run(
            camera, min(PROGRAM_S, remaining_s), max_output_bytes=MAX_IMAGE_BYTES
        )
        data = result.stdout_bytes
        if result.stdout_truncated:
            raise ToolError(
                f"the screenshot has more than {MAX_IMAGE_BYTES:,} bytes; use a smaller display"
            )
        if media_type_of(data) != "image/png":
            raise ToolError(f"{camera[0]} did not return a PNG")
        taken = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
        if taken != (self.width, self.height):
            raise ToolError(
                f"the screenshot of {self.name} is {taken[0]}×{taken[1]}, the profile says "
                f"{self.size}; make the two the same"
            )
        return Attachment("image/png", data, source=f"screenshot of {self.name}")

    async def _run(
        self,
        argv: Sequence[str],
        timeout_s: float,
        *,
        stdin: str | None = None,
        max_output_bytes: int = 10_000,
    ) -> ScriptResult:
        import shutil

        from evaluator.processes.supervisor import scrubbed_environment

        program = argv[0]
        if shutil.which(program) is None:
            raise ToolError(
                f"{program} is not installed; the computer tool needs xdotool and imagemagick"
            )
        result = await run_script(
            argv,
            stdin=stdin,
            timeout_s=timeout_s,
            env={**scrubbed_environment(), "DISPLAY": self.name},
            max_output_bytes=max_output_bytes,
        )
        if result.exit_code == 0 and not result.timed_out and result.overrun is None:
            return result
        if result.timed_out:
            raise ToolError(
                f"{program} was stopped: it did not end in time on the display {self.name}"
            )
        if _NO_DISPLAY.search(result.stderr):
            raise ToolError(
                f"there is no display {self.name}; start one, such as: Xvfb {self.name} -screen 0 "
                f"{self.width}x{self.height}x24 -noreset (from the package xvfb)"
            )
        raise ToolError(
            f"{program} failed on the display {self.name}: {_first_line(result.stderr)}"
        )


def _first_line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return next((line[:300] for line in lines if line), "without a message")
