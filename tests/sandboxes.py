"""Sandboxes in tests: which of them work on this machine, and a stand-in for a container's engine."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from pathlib import Path

import pytest

from evaluator import ConfigurationError, Sandbox
from evaluator.processes.scripts import try_sandbox

BUBBLEWRAP = Sandbox("bubblewrap")
_IMAGES = ("python:3.12-slim", "debian:stable-slim", "alpine", "busybox")


@functools.cache
def why_not(sandbox: Sandbox) -> str | None:
    """The reason why the sandbox does not work here; None if it works."""
    try:
        asyncio.run(try_sandbox(sandbox, Path("/tmp")))
    except ConfigurationError as error:
        return str(error)
    return None


def require_bubblewrap() -> Sandbox:
    """Skips the test where bubblewrap does not work."""
    reason = why_not(BUBBLEWRAP)
    if reason is not None:
        pytest.skip(f"bubblewrap does not work here: {reason}")
    return BUBBLEWRAP


def working(kind: str) -> Sandbox:
    """A sandbox of this kind that works here; skips the test if there is none."""
    if kind == "bubblewrap":
        return require_bubblewrap()
    for image in _IMAGES:
        sandbox = Sandbox(kind, image)
        if why_not(sandbox) is None:
            return sandbox
    pytest.skip(f"{kind} runs none of the images {', '.join(_IMAGES)} here")


_ENGINE = """#!{python}
import json, os, re, sys
words = sys.argv[1:]
with open({log!r}, "a") as file:
    file.write(json.dumps(words) + "\\n")
if words[0] == "run" and not os.path.exists({broken!r}):
    options = dict(zip(words, words[1:]))
    open(options["--cidfile"], "x").write("a1b2")
    mounts = [dict(part.strip('"').partition("=")[::2] for part in re.split(',(?=[a-z"])', words[i + 1]))
              for i, word in enumerate(words) if word == "--mount"]
    folders = {{mount["target"]: mount["source"] for mount in mounts}}
    os.chdir(folders.get(options["--workdir"], options["--workdir"]))
    command = words[words.index("--") + 2:]
    os.execvp(command[0], command)
if words[0] == "run":
    sys.exit("no such image")
"""


class StandIn:
    """A program called `docker` or `podman` that records its arguments and runs the command without a container."""

    def __init__(self, folder: Path, name: str) -> None:
        self.log, self.broken = folder / "calls.jsonl", folder / "broken"
        self.log.touch()
        program = folder / name
        program.write_text(
            _ENGINE.format(python=sys.executable, log=str(self.log), broken=str(self.broken))
        )
        program.chmod(0o755)

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]
