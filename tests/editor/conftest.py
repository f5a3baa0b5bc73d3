"""A project of two files for the tests of the language server."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pygls", reason="the language server needs evaluator[lsp]")

PLAN = """\
<task name="plan" type="sequential">
  <description>Plan a reply and write it</description>
  <inputs>
    <input name="letter" type="string" required="true">The letter</input>
    <input name="words" type="integer" default="80"/>
  </inputs>
  <steps>
    <task name="facts" type="atomic">
      <description>List the facts</description>
      <instructions>List the facts of {{ letter | trim }} in {{ words }} words.</instructions>
      <output_format type="json">{"type": "object", "properties": {"points": {"type": "array"}, "mood": {"type": "string"}}}</output_format>
    </task>
    <call template="polite" name="reply">
      <arg name="text">steps.facts.content</arg>
    </call>
  </steps>
  <examples>
    <example>
      <input name="letter">Dear all, the lift is broken.</input>
      <output>{"points": ["the lift"], "mood": "calm"}</output>
    </example>
  </examples>
</task>
"""
POLITE = """\
<template name="polite" params="text, tone=kind">
  <task type="atomic">
    <description>Write it politely</description>
    <instructions>Write {{ text }} in a {{ tone }} tone.</instructions>
  </task>
</template>
"""


def write_project(folder: Path) -> Path:
    (folder / "templates").mkdir()
    (folder / "templates" / "plan.xml").write_text(PLAN, encoding="utf-8")
    (folder / "templates" / "polite.xml").write_text(POLITE, encoding="utf-8")
    partial = "<partial><criteria>letters</criteria></partial>\n"
    (folder / "templates" / "_rules.xml").write_text(partial, encoding="utf-8")
    return folder
