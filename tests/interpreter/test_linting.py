"""`lint` reports everything that it can know in one pass, each fault once and at its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluator import Diagnostic, TemplateLibrary, load_profiles
from evaluator.interpreter.linting import fixed, lint

PROFILES = load_profiles(trust=True)
REPOSITORY = Path(__file__).parents[2]


def findings(folder: Path, xml: str) -> list[Diagnostic]:
    (folder / "t.xml").write_text(xml, encoding="utf-8")
    return lint(TemplateLibrary.load(folder, shipped=False), PROFILES)


def atomic(body: str, text: str = "Read {{ doc }}.") -> str:
    """A sound atomic task; `body` is on line 4, `text` on line 5 from column 15 on."""
    return (
        '<task type="atomic" name="t">\n<description>d</description>\n'
        f'<inputs><input name="doc"/></inputs>\n{body}\n<instructions>{text}</instructions>\n</task>'
    )


SCHEMA = '<output_format type="json">{"type": "object", %s}</output_format>'
TEXTS = {
    "unknown-filter": [
        ("{{ doc | uper }}", 10),
        ("{{ doc | lenght }}", 10),
        ("{{ doc | jon }}", 10),
    ],
    "undefined-variable": [("{{ doc }} {{ dok }}", 14), ("<<doc>> <<other>>", 11)],
    "unknown-test": [("{% if doc is strng %}{{ doc }}{% endif %}", 14)],
    "forbidden-statement": [("{{ doc }}{% include 'x' %}", 13)],
    "unknown-template": [("{{ doc }} {{ f(1) }}", 14)],
}
STRUCTURE = [
    ("<bogus/>", "unknown-element", 1),
    ('<handler max_turns="lots"/>', "invalid-value", 21),
    ('<handler max_turn="1"/>', "unknown-attribute", 10),
    ('<handler ref="nobody"/>', "unknown-handler", 15),
    ('<tools><tool name="reed"/></tools>', "unknown-tool", 20),
    ("<toolz><tool name='read_file'/></toolz>", "unknown-element", 1),
    ("<model>gpt-4o</model>", "unknown-provider", 8),
    ("<model>opnai/gpt-4o</model>", "unknown-provider", 8),
    (SCHEMA % '"proprties": {"a": {}}', "schema-keyword", 48),
    (SCHEMA % '"additionalproperties": false', "schema-keyword", 48),
    (SCHEMA % '"properties": {"a": {"minlength": 1}}', "schema-keyword", 69),
    ('<output_format type="json" schema="strng"/>', "unknown-schema", 36),
    ("<steps/>", "misplaced-element", 1),
    ("<system>x</system><system>y</system>", "duplicate-element", 19),
]
# Each fault of structure alone and beside each fault of a text: (xml, findings as code, line, column)
PLANTED = [
    *((atomic(body), [(code, 4, column)]) for body, code, column in STRUCTURE),
    *(
        (atomic("", text), [(code, 5, 14 + column)])
        for code, texts in TEXTS.items()
        for text, column in texts
    ),
    *(
        (atomic(body, text), [(code, 4, column), (in_text, 5, 14 + at)])
        for body, code, column in STRUCTURE
        for in_text, texts in TEXTS.items()
        for text, at in texts
    ),
    # Two faults of one text.
    *(
        (
            atomic("", f"{one}{two}"),
            [(code, 5, 14 + at), (other, 5, 14 + len(one) + there)],
        )
        for code, ones in TEXTS.items()
        for one, at in ones[:1]
        for other, twos in TEXTS.items()
        for two, there in twos[:1]
    ),
    (atomic("", "{{ doc b }} {{ dok }} {{ doc | uper }}"), [("syntax", 5, 22), ("undefined-variable", 5, 30), ("unknown-filter", 5, 46)]),
    ('<task type="atomik" name="t"><description>d</description></task>', [("invalid-value", 1, 13)]),
    ('<task type="atomic" nam="t"><description>d</description></task>', [("unknown-attribute", 1, 21)]),
    (
        '<task type="sequential" name="t"><description>d</description><step>\n'
        '<task type="atomic" name="a"><description>d</description></task></step></task>',
        [("unknown-element", 1, 62)],
    ),
    (
        '<library>\n<task type="atomic" name="a"><description>d</description><bogus/></task>\n'
        '<task type="sequential" name="b"><description>d</description><steps><call template="a"/>\n'
        "</steps></task>\n</library>",
        [("unknown-element", 2, 58)],
    ),
]  # fmt: skip


ALONE = [
    json.loads(line)
    for line in Path(__file__).with_name("planted_faults.jsonl").read_text("utf-8").splitlines()
]
"""A sound template with one fault each; ⟦ is where the finding belongs."""


def test_each_of_200_faults_alone_is_found_at_its_word_with_no_other_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len({row["xml"] for row in ALONE}) >= 200
    wrong: list[Any] = []
    for row in ALONE:
        before, _, after = row["xml"].partition("⟦")
        place = (before.count("\n") + 1, len(before) - before.rfind("\n"))
        found = [(d.code, d.span.line, d.span.column) for d in findings(tmp_path, before + after)]
        if found != [(row["code"], *place)]:
            wrong.append((row, found))
    assert wrong[:4] == []


def test_each_planted_fault_is_found_at_its_place_with_no_other_finding(tmp_path: Path) -> None:
    wrong: list[Any] = []
    for xml, expected in PLANTED:
        found = [(d.code, d.span.line, d.span.column) for d in findings(tmp_path, xml)]
        if found != sorted(expected, key=lambda one: one[1:]):
            wrong.append((xml, expected, found))
    assert wrong[:4] == []


def test_a_name_that_a_refused_part_may_declare_is_not_undefined(tmp_path: Path) -> None:
    xml = atomic('<inputs><input name="more"/></inputs>', "{{ doc }} {{ more }} {{ dok }}")
    assert [d.code for d in findings(tmp_path, xml)] == ["duplicate-element", "undefined-variable"]
    xml = atomic('<include href="none.xml"/>', "{{ doc }} {{ more }}")
    assert {d.code for d in findings(tmp_path, xml)} <= {"unreadable", "include"}


@pytest.mark.parametrize(
    "folder",
    [
        REPOSITORY / "templates",
        *(REPOSITORY / "examples" / "new").glob("*.xml"),
        *(REPOSITORY / "examples").glob("*/*/templates"),
    ],
    ids=str,
)
def test_shipped_templates_and_examples_have_no_finding(folder: Path) -> None:
    found = lint(TemplateLibrary.load(folder, shipped=False), PROFILES)
    # "sandbox" is about the programs of this machine.
    assert [d for d in found if d.code != "sandbox"] == []


def test_a_hint_is_one_sentence_with_one_mark(tmp_path: Path) -> None:
    hints = [d.hint for xml, _ in PLANTED for d in findings(tmp_path, xml) if d.hint]
    assert hints and not any("?." in hint or "??" in hint for hint in hints)


def test_comments_suppress_findings_by_code(tmp_path: Path) -> None:
    model = "<model>gpt-4o</model>"
    ignored = f"<!-- lint: ignore unknown-provider -->\n{model}"
    assert findings(tmp_path, atomic(ignored)) == []
    assert findings(tmp_path, "<?lint ignore unknown-provider?>\n" + atomic(model)) == []
    other = f"<!-- lint: ignore no-type -->{model}"
    assert [d.code for d in findings(tmp_path, atomic(other))] == ["unknown-provider"]
    error = atomic("<!-- lint: ignore undefined-variable -->", "{{ doc }} {{ dok }}")
    assert [d.code for d in findings(tmp_path, error)] == ["undefined-variable"]


def test_safe_fixes_leave_nothing_to_report(tmp_path: Path) -> None:
    body = (
        '<handlr max_turn="2"/><toolz><tool name="read_fil"/></toolz>'
        "<context_management><accumulation_format>minimal</accumulation_format></context_management>"
        + SCHEMA
        % '"proprties": {"a": {}}'
    )
    xml = atomic(body, "{{ doc | uper }} {{ dok }}")
    text, done = fixed(xml, findings(tmp_path, xml))
    assert len(done) == 7
    assert '<handler max_turns="2"/><tools><tool name="read_file"/></tools>' in text
    assert "notes_only" in text and '"properties"' in text and "doc | upper" in text
    left = {d.code for d in findings(tmp_path, text)}
    assert left == {"undefined-variable", "setting-without-effect"}
    assert fixed(text, findings(tmp_path, text)) == (text, [])


def test_lint_writes_fixes_and_formats_for_reviews(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from evaluator.cli import main

    monkeypatch.chdir(tmp_path)
    path = tmp_path / "t.xml"
    path.write_bytes(atomic("", "{{ doc | uper }}").replace("\n", "\r\n").encode())
    path.chmod(0o666)

    def run(*arguments: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as ended:
            main(["lint", "t.xml", *arguments])
        return ended.value.code, capsys.readouterr().out

    code, out = run("--format", "github")
    assert code == 1 and out.startswith("::error file=t.xml,line=5,col=24,title=unknown-filter::")
    code, out = run("--format", "sarif")
    result = json.loads(out)["runs"][0]["results"][0]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert (code, result["ruleId"], region) == (
        1,
        "unknown-filter",
        {"startLine": 5, "startColumn": 24},
    )
    assert run("--fix")[0] == 0
    assert b"{{ doc | upper }}" in path.read_bytes() and b"\r\n" in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o666


def test_a_program_that_is_missing_for_a_shipped_template_concerns_only_those_who_call_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    template = tmp_path / "t.xml"
    template.write_text(atomic(""), encoding="utf-8")

    def codes() -> list[tuple[str, str]]:
        found = lint(TemplateLibrary.load(template), PROFILES)
        return [(Path(d.span.file or "").name, d.code) for d in found]

    assert codes() == []
    template.write_text(atomic("", "{{ run_python_tests(doc, doc) }}"), encoding="utf-8")
    assert ("run_python_tests.xml", "sandbox") in codes()
    assert ("write_run_fix.xml", "sandbox") not in codes()
    library = TemplateLibrary.load(REPOSITORY / "templates", shipped=False)
    assert "sandbox" in {d.code for d in lint(library, PROFILES)}
