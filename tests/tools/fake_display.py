"""Small programs in place of xdotool and import, which note how they are called."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from evaluator.tools import FileAccess, ToolContext, ToolOutcome, ToolRegistry
from evaluator.tools.computer import computer_tool
from evaluator.tools.x_display import XDisplay  # pyright: ignore[reportPrivateUsage]

WIDTH, HEIGHT = 320, 240

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
