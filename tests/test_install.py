"""`make demo` and `make test` install quietly, say how far they are, and show why they failed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

INSTALL = Path(__file__).parent.parent / ".ci" / "install.py"


@pytest.mark.parametrize("status", [0, 3])
def test_an_installation_says_how_far_it_is_and_prints_the_rest_only_if_it_fails(
    tmp_path: Path, status: int
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    locked = (INSTALL.parent.parent / "requirements.txt").read_text(encoding="utf-8")
    count = len(re.findall(r"^\S+==", locked, re.MULTILINE))
    packages = "\n".join(f"echo 'Collecting p{number}==1 (from -r)'" for number in range(count))
    python.write_text(
        f"#!/bin/sh\n{packages}\necho 'Using cached x'\necho 'ERROR: no space' >&2\nexit {status}\n"
    )
    python.chmod(0o755)
    ran = subprocess.run(
        [sys.executable, INSTALL, python], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (status, "")
    first_fifth = f"fetched {-(-count // 5)} of {count} packages\n"
    assert f"installing: {first_fifth}" in ran.stderr
    assert ran.stderr.count("fetched") < 13
    assert ("ERROR: no space" in ran.stderr) == ("Using cached" in ran.stderr) == bool(status)
