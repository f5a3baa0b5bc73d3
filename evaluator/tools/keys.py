"""The keys that a model may press, by their xdotool names: `ctrl+s`, `Return`, `Page_Down`,
`shift+F10`.

The set is fixed because xdotool runs a key name that is also one of its commands. `Help` is left
out for that reason.
"""

from __future__ import annotations

import re

from evaluator.errors import ToolError

MAX_CHORDS = 100
_PLAIN = re.compile(r"[A-Za-z0-9]|[Ff](?:[1-9]|[12][0-9]|3[0-5])|KP_[0-9]|U[0-9A-Fa-f]{4,5}")
_NAMED = """
    Return Escape Tab BackSpace Delete Insert Home End Page_Up Page_Down Prior Next Left Right Up Down space Menu Print
    Pause Break Scroll_Lock Caps_Lock Num_Lock Multi_key Undo Redo Find Cancel Clear Select ISO_Left_Tab
    alt ctrl shift super meta Alt_L Alt_R Control_L Control_R Shift_L Shift_R Super_L Super_R Meta_L Meta_R
    ISO_Level3_Shift Mode_switch
    KP_Enter KP_Add KP_Subtract KP_Multiply KP_Divide KP_Decimal KP_Separator KP_Equal KP_Home KP_End KP_Prior KP_Next
    KP_Page_Up KP_Page_Down KP_Left KP_Right KP_Up KP_Down KP_Insert KP_Delete KP_Begin
    minus plus equal underscore comma period slash backslash semicolon colon apostrophe quotedbl grave asciitilde
    bracketleft bracketright braceleft braceright parenleft parenright less greater question exclam at numbersign
    dollar percent asciicircum ampersand asterisk bar
    XF86Back XF86Forward XF86Reload XF86Search XF86Copy XF86Cut XF86Paste XF86AudioPlay XF86AudioStop XF86AudioMute
    XF86AudioRaiseVolume XF86AudioLowerVolume
"""
_ALSO = {
    "enter": "Return",
    "esc": "Escape",
    "del": "Delete",
    "ins": "Insert",
    "pageup": "Page_Up",
    "pgup": "Page_Up",
    "pagedown": "Page_Down",
    "pgdn": "Page_Down",
    "arrowleft": "Left",
    "arrowright": "Right",
    "arrowup": "Up",
    "arrowdown": "Down",
    "spacebar": "space",
    "control": "ctrl",
    "option": "alt",
    "cmd": "super",
    "command": "super",
    "win": "super",
    "windows": "super",
    "-": "minus",
    "=": "equal",
    ",": "comma",
    ".": "period",
    "/": "slash",
    "\\": "backslash",
    ";": "semicolon",
    "'": "apostrophe",
    "`": "grave",
    "[": "bracketleft",
    "]": "bracketright",
    "*": "asterisk",
    "?": "question",
}
_KEYS = {name.lower(): name for name in _NAMED.split()} | _ALSO


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
            "a, joined by + "
            "(ctrl+s); to enter text, use the action type"
        )
    return known
