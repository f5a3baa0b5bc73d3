"""`diff`, `templates show --history` and `docs` describe versions of templates and run nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from evaluator.authoring.pages import graph_svg, page_names
from evaluator.cli import main

TASK = """\
<task name="write" type="atomic" version="{version}">
  <description>Write a {kind} letter</description>
  <inputs>
    <input name="topic" type="string">What it is about</input>
  </inputs>
  {extra}<instructions>Write a {kind} letter about {{{{ topic }}}}.</instructions>
  <examples>
    <example>
      <input name="topic">the lift | `x`</input>
      <output>Dear all, the lift is broken.</output>
    </example>
  </examples>
</task>
"""
CALLER = """\
<task name="twice" type="sequential">
  <description>Write two letters</description>
  <steps>
    <call template="write"><arg name="topic">rain</arg></call>
    <call template="write"><arg name="topic">snow</arg></call>
  </steps>
</task>
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*arguments: str) -> tuple[Any, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        shown = capsys.readouterr()
        return ended.value.code, shown.out + shown.err

    return run


def put(folder: Path, version: str = "1", kind: str = "kind", extra: str = "") -> None:
    (folder / "templates").mkdir(parents=True, exist_ok=True)
    text = TASK.format(version=version, kind=kind, extra=extra)
    (folder / "templates" / "write.xml").write_text(text, encoding="utf-8")
    (folder / "templates" / "twice.xml").write_text(CALLER, encoding="utf-8")


def git(*arguments: str, stdin: str = "") -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *settings, *arguments], check=True, capture_output=True, input=stdin, text=True
    )
    return done.stdout


def test_diff_shows_prompts_bounds_tools_and_authority(run: Any, tmp_path: Path) -> None:
    put(tmp_path / "old")
    tools = '<tools><tool name="read_file"/></tools>\n  <file_paths source="glob"><path>*.md</path></file_paths>\n  '
    put(tmp_path / "new", version="2", kind="short", extra=tools)
    code, out = run("diff", "old", "new", "--model", "openai/gpt-4o-mini")
    assert code == 0
    for line in (
        "write: changed",
        "  version: 1 → 2",
        "  calls: at most 1 model call → at most 12 model calls",
        "  + tool read_file",
        "  + files (glob) *.md",
        "    -Write a kind letter about the lift | `x`.",
        "    +Write a short letter about the lift | `x`.",
        "twice: changed",
        "  calls: at most 2 model calls → at most 24 model calls",
        "2 templates changed",
    ):
        assert line in out.splitlines(), out
    assert "price: at most $" in out
    code, out = run("diff", "old", "new", "--template", "write", "-i", "topic=rain", "--json")
    (change,) = json.loads(out)["changes"]
    assert change["gained"] == ["tool read_file", "files (glob) *.md"]
    assert "+Write a short letter about rain." in change["prompts"]["given inputs"]
    assert run("diff", "old", "old")[1].splitlines() == ["0 templates changed"]


def test_markdown_of_a_diff_cannot_be_ended_by_a_template(run: Any, tmp_path: Path) -> None:
    put(tmp_path / "old")
    put(tmp_path / "new", kind="```\n# Approved\n```` | `x`")
    out = run("diff", "old", "new", "--markdown")[1]
    assert "# Approved" not in [line for line in out.splitlines() if not line.startswith("+")]
    fences = [
        line for line in out.splitlines() if line.startswith("```") and line.strip("`") == "diff"
    ]
    assert all(len(fence.removesuffix("diff")) > 4 for fence in fences) and fences


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_revision_writes_nothing_outside_of_its_folder(run: Any, tmp_path: Path) -> None:
    git("init", "-q", ".")
    put(tmp_path)
    blob = git("hash-object", "-w", "templates/write.xml").strip()
    inner = git("mktree", stdin=f"100644 blob {blob}\tplanted.xml\n").strip()
    tree = git("mktree", stdin=f"040000 tree {inner}\t..\n").strip()
    commit = git("commit-tree", tree, "-m", "Hostile").strip()
    code, out = run("diff", commit, "templates")
    assert code == 2 and "'../planted.xml' is outside of the repository" in out
    assert not (Path(tempfile.gettempdir()) / "planted.xml").exists()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_file_that_a_partial_clone_lacks_is_named(run: Any, tmp_path: Path) -> None:
    git("init", "-q", ".")
    put(tmp_path)
    git("add", "-A")
    git("commit", "-qm", "First")
    blob = git("rev-parse", "HEAD:templates/write.xml").strip()
    (tmp_path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    code, out = run("diff", "HEAD", "templates")
    assert code == 2 and "the repository lacks 'templates/write.xml'; fetch it first" in out


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_revisions_are_compared_and_listed(run: Any, tmp_path: Path) -> None:
    git("init", "-q", ".")
    put(tmp_path)
    git("add", "-A")
    git("commit", "-qm", "First")
    put(tmp_path, version="2", kind="short")
    git("commit", "-qam", "Second")
    put(tmp_path, version="3", kind="long")
    out = run("diff", "HEAD~1", "HEAD")[1]
    assert "+Write a short letter about the lift | `x`." in out.replace("    ", "")
    assert "  version: 2 → 3" in run("diff", "HEAD")[1]
    rows = json.loads(run("templates", "show", "write", "--history", "--json")[1])["history"]
    assert [(row["version"], row["subject"]) for row in rows] == [("2", "Second"), ("1", "First")]
    assert rows[0]["sha256"] != rows[1]["sha256"]
    code, out = run("diff", "--", "--output=x")
    assert code == 2 and "neither a path nor a revision" in out
    code, out = run("diff", "nope")
    assert code == 2 and "neither a path nor a revision" in out


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_repository_runs_no_program_when_its_revisions_are_read(run: Any, tmp_path: Path) -> None:
    git("init", "-q", ".")
    put(tmp_path)
    git("add", "-A")
    git("commit", "-qm", "First")
    (tmp_path / "evil").write_text("#!/bin/sh\ntouch ran\ncat\n", encoding="utf-8")
    os.chmod(tmp_path / "evil", 0o755)
    program = str(tmp_path / "evil")
    for name in (
        "core.fsmonitor",
        "core.pager",
        "diff.x.textconv",
        "gpg.program",
        "core.sshCommand",
    ):
        git("config", name, program)
    git("config", "filter.x.smudge", program)
    git("config", "log.showSignature", "true")
    (tmp_path / ".git" / "info").mkdir(exist_ok=True)
    (tmp_path / ".git" / "info" / "attributes").write_text(
        "*.xml filter=x diff=x\n", encoding="utf-8"
    )
    put(tmp_path, version="2")
    assert "version: 1 → 2" in run("diff", "HEAD")[1]
    assert "First" in run("templates", "show", "write", "--history")[1]
    assert not (tmp_path / "ran").exists()


def test_docs_writes_a_page_for_each_template(run: Any, tmp_path: Path) -> None:
    put(tmp_path, kind="<script>alert(1)</script>".replace("<", "&lt;"))
    assert run("docs", "site", "--model", "openai/gpt-4o-mini")[0] == 0
    names = {path.name for path in (tmp_path / "site").iterdir()}
    assert names == {
        f"{page}.{end}" for page in ("index", "write", "twice") for end in ("html", "md")
    }
    page = (tmp_path / "site" / "write.html").read_text(encoding="utf-8")
    assert "<script" not in page and "&lt;script&gt;alert(1)" in page
    assert "the lift | `x`" in page and "Dear all, the lift is broken." in page
    assert "at most 1 model call; at most $" in page and 'href="twice.html"' in page
    page = (tmp_path / "site" / "twice.md").read_text(encoding="utf-8")
    assert "- [twice](twice.md) calls [write](write.md)" in page and "at most 2 model calls" in page
    assert "<svg" in (tmp_path / "site" / "twice.html").read_text(encoding="utf-8")


def test_pages_of_hostile_names_stay_in_the_folder() -> None:
    names = page_names(["../../x", "..", "Index", "index", "a/b", "a_b"])
    assert len(set(map(str.lower, names.values()))) == 6
    assert not any("/" in page or page.startswith(".") for page in names.values())
    assert "&lt;b&gt;" in graph_svg("<b>", [("<b>", "c")], {})
