"""Formatting changes the layout of a template and never what it means."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.xml.build import build
from evaluator.xml.format import ROOTS, format_source
from evaluator.xml.source import read_source
from evaluator.xml.write import to_xml
from tests.tables import each_case

REPOSITORY = Path(__file__).parents[2]
SHIPPED = [
    path
    for path in sorted(
        [*(REPOSITORY / "templates").rglob("*.xml"), *(REPOSITORY / "examples").rglob("*.xml")]
    )
    # Suites are as short as their page promises, with several inputs on one line.
    if read_source(path.read_bytes()).root.tag in ROOTS and "suites" not in path.parts
]

BLANK = st.sampled_from(["", " ", "\n", "\n\n\n", "\t", "\n      "])
BETWEEN = st.lists(
    st.one_of(BLANK, st.sampled_from(["<!-- a\n   b -->", "<!--c-->", "<?x y?>"])), max_size=3
).map("".join)
TEXT = st.lists(
    st.sampled_from(
        [
            "a",
            "  b",
            "\n",
            "\n\n",
            "    ",
            "{{ doc }}",
            "<<doc>>",
            "<![CDATA[ <x> \n  ]]>",
            "&lt;",
            "&#10;",
            "<!-- c -->",
            "\t",
            "é",
            "{% if doc %}x{% endif %}",
        ]
    ),
    max_size=8,
).map("".join)
SPACE = st.sampled_from([" ", "  ", "\n ", "\n\n\t"])


@st.composite
def element(draw: st.DrawFn, name: str, attributes: str, content: str) -> str:
    given_ = [f"{draw(SPACE)}{each}" for each in attributes.split("|") if each]
    return f"<{name}{''.join(given_)}{draw(st.sampled_from(['', ' ']))}>{content}</{name}>"


@st.composite
def tasks(draw: st.DrawFn, name: str = "t", depth: int = 0) -> str:
    """A task with parts in any layout."""
    is_sequence = depth < 2 and draw(st.booleans())
    kind = "sequential" if is_sequence else "atomic"
    parts = [draw(element("description", "", "d" + draw(TEXT)))]
    source = "" if depth == 0 else "|from='doc'"
    inner = draw(element("input", 'name="doc"|default = "a <<x>>  b"' + source, draw(TEXT)))
    more = draw(element("input", 'name="x"' + source, draw(TEXT)))
    parts.append(draw(element("inputs", "", draw(BETWEEN).join(["", inner, more, ""]))))
    if is_sequence:
        steps = [draw(tasks(f"s{n}", depth + 1)) for n in range(draw(st.integers(1, 3)))]
        parts.append(draw(element("steps", "", draw(BETWEEN).join(["", *steps, ""]))))
    else:
        preserve = draw(st.sampled_from(["", 'xml:space="preserve"']))
        parts.append(draw(element("instructions", preserve, draw(TEXT))))
        example = draw(element("input", "name='doc'", draw(TEXT))) + draw(BETWEEN)
        example += draw(element("output", "", draw(TEXT)))
        parts.append(
            draw(element("examples", "", draw(element("example", "", draw(BETWEEN) + example))))
        )
    content = draw(BETWEEN).join(["", *draw(st.permutations(parts)), ""])
    return draw(element("task", f'type="{kind}"|name="{name}"', content))


def meaning(text: str) -> tuple[list[str], list[str]]:
    built = build(read_source(text))
    return [to_xml(node) for node in built.templates], [d.code for d in built.diagnostics]


def check_formatted(task: str, after: str) -> None:
    formatted = format_source(read_source(task + after))
    assert meaning(formatted) == meaning(task + after)
    assert format_source(read_source(formatted)) == formatted
    assert formatted.count("<<") == task.count("<<")
    assert formatted.count("<!--") == (task + after).count("<!--")


@settings(max_examples=120, deadline=None)
@given(tasks(), BETWEEN)
def test_formatting_keeps_the_nodes_and_is_idempotent(task: str, after: str) -> None:
    check_formatted(task, after)


@each_case("path", SHIPPED)
def test_shipped_templates_are_formatted(path: Path) -> None:
    source = read_source(path.read_bytes(), str(path))
    assert format_source(source) == source.text


def test_the_layout() -> None:
    text = (
        '<task  name = "t"\n type="atomic"><!-- first --><description>d</description> <!-- why -->\n\n\n\n'
        "<inputs><input name='a'/><input name='b'>\n  x </input></inputs>\n"
        "<instructions>\n a <b/> <![CDATA[ c ]]>\n</instructions></task>"
    )
    assert format_source(read_source(text)) == (
        '<task name="t" type="atomic"> <!-- first -->\n'
        "  <description>d</description> <!-- why -->\n\n"
        "  <inputs>\n    <input name='a'/>\n    <input name='b'>\n  x </input>\n  </inputs>\n"
        "  <instructions>\n a <b/> <![CDATA[ c ]]>\n</instructions>\n</task>\n"
    )


def test_the_command_writes_only_well_formed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from evaluator.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib").mkdir()
    good = tmp_path / "lib" / "good.xml"
    broken = tmp_path / "lib" / "broken.xml"
    other = tmp_path / "lib" / "other.xml"
    good.write_bytes(b"\xef\xbb\xbf<task name='a'><description>\xc3\xa9</description></task>\r\n")
    broken.write_text("<task><description>d</task>")
    other.write_text("<handler><model>m</model></handler>")

    def run(*arguments: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as ended:
            main(["fmt", *arguments])
        return ended.value.code, capsys.readouterr().out

    before = good.read_bytes()
    code, out = run("lib/good.xml", "--check", "--diff")
    assert code == 1 and "+  <description>é</description>" in out and good.read_bytes() == before
    assert run("lib")[0] == 1
    assert good.read_bytes() == (
        b"\xef\xbb\xbf<task name='a'>\r\n  <description>\xc3\xa9</description>\r\n</task>\r\n"
    )
    assert broken.read_text() == "<task><description>d</task>"
    assert other.read_text() == "<handler><model>m</model></handler>"
    assert run("lib/good.xml", "--check")[0] == 0
