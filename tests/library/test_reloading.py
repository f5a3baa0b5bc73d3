"""A library follows its files: reloads, added and edited templates, and when shipped files are read."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from evaluator import TemplateError, TemplateLibrary, UsageError
from evaluator.library import content, loader
from evaluator.library.reading import read_entry
from evaluator.nodes import Atomic
from tests.library.library_files import load, put, task, with_include


def test_a_reload_returns_the_changed_names(tmp_path):
    folder = put(tmp_path, a=task("a"), b=task("b"), c=task("c"))
    library = load(folder)
    before = library.templates
    put(folder, a=task("a", "changed"), d=task("d"))
    (folder / "b.xml").unlink()
    assert library.reload() == {"a", "b", "d"}
    assert list(library) == ["a", "c", "d"]
    assert list(before) == ["a", "b", "c"]
    assert library.reload() == frozenset()


def test_a_changed_partial_changes_the_templates_that_include_it(tmp_path):
    folder = put(tmp_path, a=with_include("a", "_p.xml"), b=task("b"), _p="<partial>one</partial>")
    library = load(folder)
    digest = library.get("a").sha256
    put(folder, _p="<partial>two</partial>")
    assert library.reload() == {"a"}
    assert library.get("a").sha256 != digest


def test_an_edit_that_keeps_size_and_time_right_after_the_load_is_seen(tmp_path):
    folder = put(tmp_path, a=task("a", "one"))
    library = load(folder)
    stamp = (folder / "a.xml").stat()
    put(folder, a=task("a", "two"))
    os.utime(folder / "a.xml", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert library.reload() == {"a"}


def test_unchanged_files_are_not_read_again(tmp_path, monkeypatch):
    folder = put(tmp_path, a=task("a"), b=task("b"))
    for name in ("a.xml", "b.xml"):
        os.utime(folder / name, (1, 1))
    library = load(folder)
    put(folder, b=task("b", "changed"))
    read: list[str] = []
    from evaluator.library import loader, reading

    monkeypatch.setattr(
        loader,
        "read_entry",
        lambda root, found, *edited: read.append(found.relative) or reading.read_entry(root, found),
    )
    library.reload()
    assert read == ["b.xml"]


def test_the_hash_of_a_template_covers_the_templates_that_it_refers_to(tmp_path):
    folder = put(
        tmp_path, base=task("base", "one"), mine='<task type="atomic" name="mine" ref="base"/>'
    )
    library = load(folder)
    digest = library.get("mine").sha256
    put(folder, base=task("base", "two"))
    assert library.reload() == {"base", "mine"}
    assert library.get("mine").sha256 != digest


def test_the_hash_of_a_template_does_not_cover_the_rest_of_its_file(tmp_path):
    text = "<library>{}<!-- {} -->{}</library>"
    folder = put(tmp_path, both=text.format(task("a", "one"), "x", task("b", "one")))
    library = load(folder)
    a, b = library.get("a").sha256, library.get("b").sha256
    put(folder, both="\n\n" + text.format(task("a", "one"), "another comment", task("b", "two")))
    library.reload()
    assert library.get("a").sha256 == a and library.get("b").sha256 != b


def test_a_template_is_added_from_a_string(tmp_path):
    library = load(put(tmp_path, a=task("a", "file")))
    assert library.add(task("a", "string")) == ("a",)
    node = library.get("a").node
    assert isinstance(node, Atomic)
    assert node.instructions is not None
    assert node.instructions.value == "string"
    library.add(task("a", "again"))
    assert library.diagnostics == ()


@pytest.mark.parametrize(
    "xml", [task("b", "{{ nowhere }}"), "<task", task("b", attributes=' ref="none"'), "<x/>"]
)
def test_adding_a_template_with_errors_adds_nothing(tmp_path, xml):
    library = load(put(tmp_path, a=task("a")))
    with pytest.raises(TemplateError) as raised:
        library.add(xml)
    assert list(library) == ["a"]
    assert library.diagnostics == ()
    assert pickle.loads(pickle.dumps(raised.value)).diagnostics == raised.value.diagnostics


def test_a_template_that_calls_a_missing_one_works_after_that_is_added(tmp_path):
    call = '<task type="sequential" name="a"><description>d</description><steps><call template="b"/></steps></task>'
    library = load(put(tmp_path, a=call))
    assert "a" not in library
    library.add(task("b"))
    assert "a" in library
    assert library.diagnostics == ()


def shown(library: TemplateLibrary) -> list[str]:
    return sorted(map(str, library.diagnostics))


def test_an_edited_text_counts_until_it_is_withdrawn(tmp_path):
    folder = put(
        tmp_path,
        base=task("base", "one"),
        heir='<task type="atomic" name="heir" ref="base"/>',
        other=task("other", "{{ base_text }}"),
    )
    library = load(folder)
    before = shown(library)
    path = str((folder / "base.xml").resolve())
    changed = library.edit(path, task("base", "two"))
    assert changed == {"base", "heir"}
    assert library.get("heir").node.instructions.value == "two"
    assert library.source_text(library.get("base").file) == task("base", "two")
    assert library.edit(path, "<task") == {"base", "heir"}
    assert {"base", "heir"} <= library.broken and "other" not in library
    assert library.edit(path, None) == {"base", "heir"}
    assert shown(library) == before
    assert library.edit(str(tmp_path.parent / "x.xml"), task("x", "y")) == frozenset()


def test_only_what_depends_on_an_edit_is_checked_again(tmp_path, monkeypatch):
    from evaluator.library import checks

    call = '<task type="sequential" name="{0}"><description>d</description><steps><call template="{1}"/></steps></task>'
    folder = put(
        tmp_path,
        a=task("a", "one"),
        b=call.format("b", "a"),
        c=call.format("c", "b"),
        far=task("far", "x"),
    )
    library = load(folder)
    walked: list[str] = []
    top = checks.ScopeWalk.top
    monkeypatch.setattr(
        checks.ScopeWalk, "top", lambda self, node: walked.append(node.name) or top(self, node)
    )
    path = str((folder / "a.xml").resolve())
    library.edit(path, task("a", "two"))
    assert walked == ["a"], "what its caller sees of it is the same"
    walked.clear()
    needs = task("a", "{{ doc }}").replace(
        "<instructions>", '<inputs><input name="doc"/></inputs><instructions>'
    )
    library.edit(path, needs)
    assert set(walked) == {"a", "b"}
    assert [d.code for d in library.diagnostics if d.severity == "error"] == [
        "wrong-arity",
        "uses-broken-template",
    ]


@pytest.fixture
def files_read(tmp_path, monkeypatch):
    """The files of templates that are read, with `tmp_path/shipped` as the shipped folder."""
    read: list[str] = []

    def counted(root, file, *edited):
        read.append(file.relative)
        return read_entry(root, file, *edited)

    for module in (content, loader):
        monkeypatch.setattr(module, "read_entry", counted)
    monkeypatch.setattr(loader, "shipped_folder", lambda _: tmp_path / "shipped")
    return read


def test_the_shipped_files_are_read_once_for_all_libraries_of_a_process(tmp_path, files_read):
    shipped = put(tmp_path / "shipped", one=task("one"), two=task("two"))
    own = put(tmp_path / "own", three=task("three"))
    for name in ("shipped/one", "shipped/two", "own/three"):
        os.utime(tmp_path / f"{name}.xml", (1, 1))
    first = TemplateLibrary.load(own)
    assert sorted(first) == ["one", "three", "two"]
    assert sorted(files_read) == ["one.xml", "three.xml", "two.xml"]
    files_read.clear()
    assert TemplateLibrary.load(own).get("one") == first.get("one")
    assert files_read == ["three.xml"], "the user's file is read again"
    put(shipped, one=task("one", "another text"))
    files_read.clear()
    assert TemplateLibrary.load(own).get("one") != first.get("one")
    assert files_read == ["three.xml", "one.xml"]


def test_a_shipped_file_is_read_when_its_template_is_used(tmp_path, files_read):
    three = task("three", "Say which one, or two.")
    put(tmp_path / "shipped", one=task("one", "{{ two() }}"), two=TWO, three=three)
    own = put(tmp_path / "own", mine=task("mine"))
    TemplateLibrary.load(own).get("three")
    assert files_read == ["mine.xml", "three.xml"], "a word of a sentence is no mention"
    files_read.clear()
    library = TemplateLibrary.load(own)
    assert library.get("mine").name == "mine"
    assert "three" in library and "four" not in library and not library.broken
    assert files_read == ["mine.xml"]
    one = library.get("one")
    assert [*library.called_by("one")] == ["two"]
    assert files_read == ["mine.xml", "one.xml", "two.xml"], "with the one that it calls"
    assert [*library.own] == ["mine"]
    assert [*library.with_edit(f"{own}/mine.xml", task("edited")).own] == ["edited"]
    with pytest.raises(UsageError, match="there is no template 'thre'; did you mean `three`"):
        library.get("thre")
    with pytest.raises(UsageError, match=r"no template 't/three\.xml'; did you mean `three`"):
        library.get("t/three.xml")
    with pytest.raises(UsageError, match="there is no template ' three'; did you mean `three`"):
        library.get(" three")
    assert [*library.templates] == ["mine", "one", "three", "two"]
    assert library.get("one") is one


def test_all_shipped_files_are_read_where_the_findings_may_depend_on_them(tmp_path, files_read):
    put(tmp_path / "shipped", one=task("one", "{{ two() }}"), two=TWO)
    hides = TWO.replace("<template", '<template params="text"')
    library = TemplateLibrary.load(put(tmp_path / "own", two=hides))
    assert [(d.code, Path(d.span.file).name) for d in library.errors] == [
        ("wrong-arity", "one.xml")
    ]
    library = TemplateLibrary.load(put(tmp_path / "wrong", calls=task("calls", "{{ tow() }}")))
    assert [d.hint for d in library.errors] == ["did you mean `two`?"]


def test_a_template_of_a_shipped_file_with_another_name_is_found(tmp_path, files_read):
    put(tmp_path / "shipped", one=task("one"), two=task("other"))
    assert TemplateLibrary.load(put(tmp_path / "own")).get("other").name == "other"


def test_a_reload_in_between_does_not_lose_shipped_templates(tmp_path, files_read, monkeypatch):
    put(tmp_path / "shipped", one=task("one"), two=task("two"))
    library = TemplateLibrary.load(put(tmp_path / "own"))
    half_read = library._content
    whole = library._state
    contents = iter([whole])
    monkeypatch.setattr(
        TemplateLibrary, "_content", property(lambda _: next(contents, half_read)), raising=False
    )
    assert [*library.templates] == ["one", "two"]


TWO = f'<template name="two">{task("word")}</template>'


def test_a_shipped_template_is_the_same_if_it_is_read_alone() -> None:
    whole = TemplateLibrary.load()
    assert whole.templates
    for name in ("report", "summarise_each", "write_run_fix", "sentiment"):
        alone = TemplateLibrary.load()
        template = alone.get(name)
        assert (template.node, template.file) == (whole.get(name).node, whole.get(name).file)
        assert alone.called_by(name) == whole.called_by(name)


def test_the_roles_reached_follow_a_changed_template(tmp_path: Path) -> None:
    role = '<model role="judge"/>'
    named = task("two").replace("<instructions>", f"{role}<instructions>")
    library = TemplateLibrary.load(put(tmp_path, one=task("one", "{{ two() }}"), two=named))
    assert library.needs("one").roles == {"judge"} == library.needs("two").roles
    put(tmp_path, two=named.replace("judge", "editor"))
    library.reload()
    assert library.needs("one").roles == {"editor"}
