"""`watch` checks what a save changes, and what depends on it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evaluator import load_profiles
from evaluator.authoring.template_tests import Watch
from tests.authoring.test_versions import put

PROFILES = load_profiles(trust=True)


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    monkeypatch.chdir(tmp_path)
    put(tmp_path)
    (tmp_path / "templates" / "_rules.xml").write_text(
        "<partial>Be brief.</partial>", encoding="utf-8"
    )
    text = '<task name="other" type="atomic"><description>d</description><system><include href="_rules.xml"/></system></task>'
    (tmp_path / "templates" / "other.xml").write_text(text, encoding="utf-8")
    return Watch([Path("templates")], PROFILES)


def test_a_look_has_what_changed_and_what_depends_on_it(watch: Watch, tmp_path: Path) -> None:
    assert watch.look() is None
    put(tmp_path, kind="friendly")
    look = watch.look()
    assert look is not None and look.names == ("twice", "write") and look.findings == ()
    assert watch.look() is None
    (tmp_path / "templates" / "_rules.xml").write_text(
        "<partial>Be very brief.</partial>", encoding="utf-8"
    )
    look = watch.look()
    assert look is not None and look.names == ("other",)
    put(tmp_path, kind="{{ nobody }}")
    look = watch.look()
    assert look is not None
    assert [d.code for d in look.findings] == ["undefined-variable"] * 2
    (tmp_path / "templates" / "write.xml").unlink()
    look = watch.look()
    assert look is not None and {d.code for d in look.findings} == {"unknown-template"}


def test_the_command_reports_a_save(tmp_path: Path) -> None:
    put(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "evaluator", "watch"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        assert "watching 2 files" in process.stderr.readline()
        put(tmp_path, version="2")
        assert "write: 1 of 1 case as expected" in [
            process.stdout.readline().strip() for _ in range(2)
        ]
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=200)
    assert process.returncode == 130 and "Traceback" not in err
