"""Runs that tests of `resume` record, interrupt and continue."""

from __future__ import annotations

import asyncio

STORY = """
<task name="story" type="sequential"><description>Write a story about a topic</description>
  <inputs><input name="topic" required="true"/></inputs>
  <context_management><accumulate_data>false</accumulate_data></context_management>
  <steps>
    <task name="plan" type="atomic"><description>plan</description><instructions>Plan {{ topic }}</instructions></task>
    <task name="draft" type="atomic"><description>draft</description>
      <instructions>Draft of {{ steps.plan.content }}</instructions></task>
    <task name="finish" type="atomic"><description>finish</description>
      <instructions>Finish {{ steps.draft.content }}</instructions></task>
  </steps></task>
"""


def run(make_evaluator, xml=STORY, name="story", inputs=None, script=None, **options):
    evaluator = make_evaluator(xml, script=script, **options)
    outcome = asyncio.run(evaluator.evaluate(name, {"topic": "cats"} if inputs is None else inputs))
    return evaluator, outcome


def echo(prompt: str) -> str:
    return f"<{prompt}>"


SCRIPTED = """
<task name="act" type="script"><description>Act</description>
  <command>sh -c "echo ran >> effects; cat effects"</command></task>
"""
