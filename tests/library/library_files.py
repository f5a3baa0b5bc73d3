"""Template files that tests of the library write and load."""

from __future__ import annotations

from pathlib import Path

from evaluator import TemplateLibrary


def task(name: str, text: str = "x", more: str = "", attributes: str = "") -> str:
    return (
        f'<task type="atomic" name="{name}"{attributes}><description>{name}</description>'
        f"<instructions>{text}</instructions>{more}</task>"
    )


def put(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.xml").write_text(text, encoding="utf-8")
    return folder


def load(*folders: Path) -> TemplateLibrary:
    return TemplateLibrary.load(*folders, shipped=False)


def codes(library: TemplateLibrary) -> list[str]:
    return [d.code for d in library.errors]


def with_include(name: str, href: str) -> str:
    return (
        f'<task type="atomic" name="{name}"><description>d</description>\n'
        f'<instructions>Before. <include href="{href}"/></instructions></task>'
    )
