"""Templates of a few words, and what a check finds in them."""

from __future__ import annotations

from evaluator import Diagnostic, TemplateLibrary


def findings(tmp_path, xml: str) -> list[Diagnostic]:
    (tmp_path / "t.xml").write_text(xml, encoding="utf-8")
    return list(TemplateLibrary.load(tmp_path, shipped=False).diagnostics)


def atomic(body: str, attributes: str = "") -> str:
    return (
        f'<task type="atomic" name="t"{attributes}>\n<description>d</description>\n{body}\n</task>'
    )


def sequence(steps: str, inputs: str = "") -> str:
    return f'<task type="sequential" name="t">\n<description>d</description>{inputs}\n<steps>\n{steps}\n</steps></task>'


def step(name: str, text: str, more: str = "") -> str:
    return (
        f'<task type="atomic" name="{name}"><description>d</description>'
        f"<instructions>{text}</instructions>{more}</task>"
    )


def library(*members: str) -> str:
    return "<library>\n" + "\n".join(members) + "\n</library>"


TITLE_OF = '<template name="title_of" params="doc, style=short"><task type="atomic"><description>d</description><instructions>{{ doc }} {{ style }}</instructions></task></template>'
TITLE_SCHEMA = '<output_format type="json">{"type":"object","properties":{"title":{"type":"string"},"tags":{"type":"array"}}}</output_format>'
DIRECTOR = '<director type="atomic"><description>d</description></director>'
JUDGE = '<evaluator type="atomic"><description>d</description></evaluator>'
