"""What a person sees of a recording."""

from __future__ import annotations

from evaluator.record.render import render_text, visible
from evaluator.record.steps import Header, Recording, Step, StepEnd, StepStart, Summary

FAILED = Step(
    1,
    StepStart("turn[1]", "model", "m", {"messages": [{"role": "user", "content": "a\nb"}]}, "f", 1, 3),
    StepEnd("failed", None, 0.25, "busy", {"input_tokens": None, "turns": 1, "tool_calls": 0}),
)
RECORDING = Recording(
    Header(12, "2026-01-02T03:04:05.678Z", "say hello", {"name": "Ada"}, "greet", None, "m", 4),
    (FAILED, Step(1, StepStart("turn[1]", "model", "m", None, "f", 2, 3, 2.0), None)),
    Summary("aborted", 1, 1, 150.0, None, None, "the user said no", 3),
    "aborted",
    "clean",
    None,
    ("mind the gap",),
)

PLAIN = """\
TASK-12  aborted
  created: 2026-01-02T03:04:05.678Z
  template: greet
  model: m
  parent: TASK-4
  request: say hello
  inputs: {"name": "Ada"}

Step 1: m  failed
  model · turn[1] · attempt 1/3 · 250 ms
  args:
    messages:
      [0]:
        role: user
        content:
          a
          b
  error: busy
  usage: input tokens unknown, turns 1

Step 1 (retry): m  running
  model · turn[1] · attempt 2/3 · after 2.0 s

Summary  aborted
  1 steps of 3 planned, 1 retried in 2 min 30 s
  reason: the user said no

warning: mind the gap
"""


def test_a_recording_is_shown_whole() -> None:
    assert render_text(RECORDING) == PLAIN


def test_colours_add_nothing_but_colours() -> None:
    import re

    coloured = render_text(RECORDING, colour=True)
    assert "\x1b[31mfailed\x1b[0m" in coloured
    assert re.sub("\x1b\\[[0-9]+m", "", coloured) == PLAIN


def test_recorded_text_cannot_act_on_the_terminal() -> None:
    hostile = "\x1b]0;title\x07 \x1b[2J \r \u202e \x9b31m \ud800 é ✓"
    step = Step(1, StepStart(hostile, "tool", hostile, {hostile: hostile}), StepEnd("failed", [hostile], 0.1, hostile))
    shown = render_text(Recording(Header(1, hostile, hostile), (step,), warnings=(hostile,)))
    assert not {c for c in shown if ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e" or "\ud800" <= c < "\ue000"} - {
        "\n"
    }
    assert visible("é ✓\n\tx") == "é ✓\n\tx"
    assert visible("a\nb", one_line=True) == "a\\nb"


def test_a_file_that_ends_before_its_header_can_be_shown() -> None:
    assert render_text(Recording(None, status="interrupted")) == "a task without a header  interrupted\n"
