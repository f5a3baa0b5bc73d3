"""Installs the locked packages with pip: says how far it is, and prints nothing else, unless it
fails.

    python .ci/install.py PYTHON

PYTHON is the interpreter of the environment.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PIP = (
    "-m",
    "pip",
    "install",
    "--disable-pip-version-check",
    "--no-input",
    "--progress-bar",
    "off",
)
_READ = re.compile(r"(Collecting|Requirement already satisfied:) ")
_LOOK_S = 1.0


class Progress:
    """One line that is written again on a terminal, else a line at each fifth of the way."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._shown = ""
        self._fifths: set[tuple[str, int]] = set()

    def show(self, what: str, number: int) -> None:
        number = min(number, self._count)
        text = f"installing: {what} {number} of {self._count} packages"
        if text == self._shown:
            return
        self._shown = text
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{text}")
        else:
            fifth = (what, 5 * number // self._count)
            if fifth in self._fifths:
                return
            self._fifths.add(fifth)
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K")


def installed(python: str) -> int:
    """The number of packages in the environment of an interpreter that is in its `bin`."""
    return sum(1 for _ in Path(python).parent.parent.glob("lib/python*/site-packages/*.dist-info"))


def run(python: str, *arguments: str, progress: Progress) -> int:
    """Returns: pip's exit status. Its output is printed if it failed."""
    lines: list[str] = []
    with subprocess.Popen(
        [python, *_PIP, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    ) as process:
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(_LOOK_S):
                progress.show("installed", installed(python))

        assert process.stdout is not None
        follower = threading.Thread(target=follow)
        read = 0
        for line in process.stdout:
            lines.append(line)
            if _READ.match(line):
                read += 1
                progress.show("fetched", read)
            elif line.startswith("Installing collected packages"):
                follower.start()
        status = process.wait()
        ended.set()
        if follower.ident is not None:
            follower.join()
    if status:
        progress.end()
        sys.stderr.writelines(lines)
    return status


def main(python: str) -> int:
    locked = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    progress = Progress(len(re.findall(r"^[\w.-]+==", locked, re.M)))
    status = run(python, "--require-hashes", "-r", "requirements.txt", progress=progress)
    if not status:
        status = run(python, "--no-deps", "--no-build-isolation", "-e", ".", progress=progress)
    progress.end()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
