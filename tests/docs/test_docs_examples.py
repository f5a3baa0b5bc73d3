"""What the documentation shows is true: its Python runs, its XML is valid, its commands print what stands there.

Every block runs as it is pasted, in an empty folder, after the blocks before it on its page. Markers are HTML comments
on the line before a block: `file: PATH` saves it for the blocks after it, `not run` leaves it alone, `not valid` demands an
error, `exit: N` demands that the last command ends with that code (default: 0), `output` demands that the commands before
printed just that, `output: part` that they printed these lines among others. In an output `…` is any text within a line.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import io
import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from evaluator import TemplateLibrary
from evaluator.cli import main
from evaluator.cli.main import cli
from evaluator.handler.config import read_profile
from evaluator.nodes.declare import OPERATORS
from evaluator.xml.schema import validate
from evaluator.xml.source import read_source
from tests.tables import each_case

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        *(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts),
    ]
)
_FENCE = re.compile(r"(`{3,})([\w{}-]*)\s*")
_MARK = re.compile(r"<!-- (file|not run|not valid|output|exit)(?:: (\S+))? -->")
_HERE_DOCUMENT = re.compile(r"^cat > (\S+) <<'(\w+)'\n(.*?)^\2\n", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block, its language, where it stands, and its markers."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str | None]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    marks: dict[str, str | None] = {}
    lines = page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.fullmatch(lines[at])
        if fence is None:
            mark = _MARK.fullmatch(lines[at].strip())
            if mark is not None:
                marks[mark[1]] = mark[2]
            elif lines[at].strip():
                marks = {}
            at += 1
            continue
        end = next(i for i in range(at + 1, len(lines)) if lines[i] == fence[1])
        text = "\n".join(lines[at + 1 : end]) + "\n"
        found.append(Block(page, at + 1, fence[2], text, marks))
        marks, at = {}, end + 1
    return found


def named(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language in languages]


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each line that runs `evaluator`, up to a pipe or a redirection."""
    text = _HERE_DOCUMENT.sub("", block.text).replace("\\\n", " ")
    for line in text.splitlines():
        if block.language == "console" and not line.startswith("$ "):
            continue  # output
        words = shlex.split(line.removeprefix("$ "), comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words and words[0] == "evaluator":
            ends = [i for i, word in enumerate(words) if word in ("|", ">", "<")]
            yield words[1 : ends[0] if ends else None]


def save(block: Block, folder: Path) -> None:
    """Writes the file that a block is, or those that its commands write from here-documents."""
    files = {block.marks.get("file"): block.text} | {
        found[1]: found[3] for found in _HERE_DOCUMENT.finditer(block.text)
    }
    for name, text in files.items():
        if name is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_does_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python blocks and the commands of a page run in order, the Python as one program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setitem(sys.modules, "datasets", hub())
    (tmp_path / "templates").mkdir()
    found = blocks(page)
    scope: dict[str, Any] = {"__name__": "page"}
    printed = ""
    for block in found:
        save(block, tmp_path)
        if "not run" in block.marks:
            continue
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, str(block), "exec"), scope)
        elif block.language in ("sh", "console"):
            ran = [run(words) for words in commands(block)]
            printed = "".join(out for out, _ in ran)
            codes = [code for _, code in ran]
            assert (
                codes == [*[0] * (len(ran) - 1), int(block.marks.get("exit") or 0)][: len(ran)]
            ), f"{block}: {printed}"
        elif "output" in block.marks:
            assert shows(block, printed), f"{block}: the page shows another output than\n{printed}"


def shows(block: Block, printed: str) -> bool:
    """Whether a block marked `output` is what was printed, or a part of it."""
    pattern = re.escape(block.text).replace("…", ".*")
    if block.marks["output"] == "part":
        return re.search(f"^{pattern}", printed, re.MULTILINE) is not None
    return re.fullmatch(pattern, printed) is not None


def hub() -> ModuleType:
    """Stands in for Hugging Face's library: of its hub it has the test split of GSM8K, as the page saved it."""

    def load_dataset(path: str, name: str, *, split: str) -> list[dict[str, Any]]:
        assert (path, name, split) == ("openai/gsm8k", "main", "test")
        lines = Path("test.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    module = ModuleType("datasets")
    module.__dict__["load_dataset"] = load_dataset
    return module


def run(words: list[str]) -> tuple[str, int]:
    """What a command prints, on either stream, in the order in which it was printed, and its exit code."""
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        pytest.raises(SystemExit) as ended,
    ):
        main([path for word in words for path in (sorted(glob.glob(word)) or [word])])
    return out.getvalue(), int(ended.value.code or 0)


@pytest.mark.parametrize("block", named("xml"), ids=str)
def test_xml_that_is_shown_is_valid(block: Block, tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    for other in blocks(block.page):
        if other.line != block.line and other.language == "xml" and "not valid" not in other.marks:
            save(other, beside)
    file = tmp_path / "shown" / (block.marks.get("file") or "shown.xml")
    file.parent.mkdir(parents=True)
    text = block.text.strip()
    if text.startswith(("<handler ", "<?xml")):
        file.write_text(text, encoding="utf-8")
        assert read_profile(file)[0].name
        return
    if not text.startswith(("<task", "<template", "<library")) or "ref=" in text.split(">")[0]:
        source = read_source(f"<partial>{text}</partial>", str(block))
        assert [d for d in validate(source, "task") if d.severity == "error"] == []
        return
    file.write_text(text, encoding="utf-8")
    library = TemplateLibrary.load(tmp_path / "shown", beside)
    own = [str(d) for d in library.errors if d.span.file and str(tmp_path / "shown") in d.span.file]
    assert bool(own) is ("not valid" in block.marks), "\n".join(own) or "this was to show an error"


@each_case("block", named("sh", "console"))
def test_commands_that_are_shown_can_be_given(block: Block) -> None:
    for words in commands(block):
        command: click.Command = cli
        context = click.Context(cli, info_name="evaluator", **cli.context_settings)
        name = "evaluator"
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            given, found, rest = command.resolve_command(context, list(words))
            assert given is not None and found is not None, (
                f"{block}: there is no command {words[0]!r}"
            )
            if isinstance(found, click.Group):
                context = click.Context(found, info_name=given, parent=context)
            command, name, words = found, given, rest
        if "--help" in words or "--version" in words:
            continue
        # Parses every option and argument, and runs nothing.
        assert command.make_context(name, list(words), parent=context).command is command


def links() -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    for page in PAGES:
        text = re.sub(
            r"^(`{3,}).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
        )
        found += [(page, target) for target in _LINK.findall(text)]
    return found


@each_case(("page", "target"), links())
def test_a_link_leads_somewhere(page: Path, target: str) -> None:
    if re.match(r"[a-z]+:", target):
        assert target.startswith("https://")
        return
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    assert file.is_relative_to(ROOT)
    assert file.exists(), f"{page.name} links to {target}"
    if anchor:
        headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in slugs, f"{page.name} links to {target}; there are {sorted(slugs)}"


def _generator(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    committed = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert committed == _generator("generate_cli").page(), (
        "write it again: python docs/generate_cli.py"
    )


def test_the_table_of_options_is_what_is_declared() -> None:
    generator = _generator("generate_options")
    committed = generator.PAGE.read_text(encoding="utf-8")
    assert committed == generator.page(), "write it again: python docs/generate_options.py"
    assert committed.count(generator.BEGIN) == committed.count(generator.END) == 1
    for row in ("| `limits.max_cost` | `--max-cost` | US dollars", "| `name` |  | The name"):
        assert row in committed


def test_the_tables_of_operators_are_what_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = _generator("generate_templates")
    committed = generator.PAGE.read_text(encoding="utf-8")
    assert committed == generator.page(), "write it again: python docs/generate_templates.py"
    sections = committed.count(generator.BEGIN)
    assert sections == committed.count(generator.END) == len(OPERATORS)
    # A new operator gets its section, its rows and its place in the sentences.
    monkeypatch.setitem(OPERATORS, "copied_map", OPERATORS["map"])
    page = generator.page()
    assert page.count(generator.BEGIN) == sections + 1
    assert "\n### copied_map\n\nRuns `inner_task` for each item; the result is the list" in page
    assert "`director_evaluator_loop` or `copied_map` |" in page
    assert "\n| copied_map | none | false | enabled |\n" in page


def test_the_table_of_attempts_is_what_the_tests_are() -> None:
    generator = _generator("generate_attempts")
    committed = generator.PAGE.read_text(encoding="utf-8")
    assert committed == generator.page(), "write it again: python docs/generate_attempts.py"
    assert committed.count(generator.BEGIN) == committed.count(generator.END) == 1
    assert "| no path gives a task more than its parent |" in committed


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {line.strip() for line in index.splitlines()}
    for page in PAGES:
        if page.is_relative_to(ROOT / "docs") and page.name != "index.md":
            assert str(page.relative_to(ROOT / "docs").with_suffix("")) in listed
