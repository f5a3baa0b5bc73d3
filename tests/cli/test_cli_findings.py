"""`evaluator run` shows the errors of the template that it runs, and only counts those of others."""

from __future__ import annotations

from pathlib import Path

TASK = '<task type="atomic" name="{}"><description>d</description>{}</task>'
SEQUENCE = '<task type="sequential" name="{}"><description>d</description><steps>{}</steps></task>'
FAULT = "<nonsense/>"


def put(folder: Path, **texts: str) -> None:
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.xml").write_text(text, encoding="utf-8")


def test_errors_of_other_templates_are_counted_and_not_shown(cli, tmp_path):
    put(tmp_path / "lib", good=TASK.format("good", ""), bad=TASK.format("bad", FAULT))
    ran = cli("run", "--template", "good", "--library", "lib", "--handler", "offline")
    assert ran.code == 0
    assert "nonsense" not in ran.err
    assert "note: other templates have 1 error; see: evaluator lint lib\n" in ran.err
    assert "nonsense" in cli("lint", "lib").out


def test_errors_of_what_the_template_reaches_are_shown(cli, tmp_path):
    called = TASK.format("called", FAULT)
    calls = SEQUENCE.format("calls", '<call template="middle"/>')
    middle = SEQUENCE.format("middle", '<call template="called"/>')
    other = TASK.format("other", "<rubbish/>")
    put(tmp_path / "lib", called=called, calls=calls, middle=middle, other=other)
    ran = cli("run", "--template", "calls", "--library", "lib", "--handler", "offline")
    assert ran.code != 0
    assert "nonsense" in ran.err
    assert "rubbish" not in ran.err
    assert "note: other templates have 1 error; see: evaluator lint lib\n" in ran.err


def test_all_errors_are_shown_where_any_template_may_be_meant(cli, tmp_path):
    put(tmp_path / "lib", good=TASK.format("good", ""), bad=TASK.format("bad", FAULT))
    for request in (("--template", "goood"), ("Answer one question about a short text",)):
        ran = cli("run", *request, "--library", "lib", "--handler", "offline")
        assert "nonsense" in ran.err
        assert "other templates" not in ran.err


def test_an_error_of_the_template_itself_is_shown_once_with_its_line(cli, tmp_path):
    put(
        tmp_path / "lib",
        bad=TASK.format("bad", FAULT),
        calls=SEQUENCE.format("calls", '<call template="bad"/>'),
    )
    for run, message in (
        (("--template", "bad"), "<nonsense> is not known"),
        (("bad",), "<nonsense> is not known"),
        (("--template", "calls"), "call of `bad`, which has errors"),
    ):
        ran = cli("run", *run, "--library", "lib", "--handler", "offline")
        assert ran.code == 1
        assert ran.err.count(message) == 1, ran.err
        error = ran.err[ran.err.index("error: lib/") :]
        assert message in error and "^\n" in error
