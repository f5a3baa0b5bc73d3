"""A recording is rendered for a person: sections, conversations, and the tree of subtasks."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import Recording, TaskStore
from evaluator.errors.messages import visible
from evaluator.record.conversation import conversations
from evaluator.record.render import cost_text, render_messages, render_text, tokens_text
from evaluator.record.steps import Header, Step, StepEnd, StepKind, StepStart, Summary
from evaluator.record.tree import MAX_DEPTH, TaskNode, read_tree, render_tree

FAILED = Step(
    1,
    StepStart(
        "turn[1]", "model", "m", {"messages": [{"role": "user", "content": "a\nb"}]}, "f", 1, 3
    ),
    StepEnd(
        "failed",
        None,
        0.25,
        "busy",
        {"input_tokens": None, "turns": 1, "tool_calls": 0, "cost_usd": 0.0004},
    ),
)
LINK = Step(2, StepStart("turn[1]/tool[1]/subtask", "subtask", "sub", {"task_id": 13}))
RECORDING = Recording(
    Header(
        12,
        "2026-01-02T03:04:05.678Z",
        "say hello",
        {"name": "Ada"},
        template="greet",
        model="m",
        parent=4,
    ),
    (FAILED, Step(1, StepStart("turn[1]", "model", "m", None, "f", 2, 3, 2.0), None), LINK),
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
  subtasks: TASK-13

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
  usage: input tokens unknown, turns 1, cost $0.0004

Step 1 (retry): m  running
  model · turn[1] · attempt 2/3 · after 2.0 s

Step 2: sub  running
  subtask · turn[1]/tool[1]/subtask · in TASK-13
  args: {"task_id": 13}

Summary  aborted
  1 step of 3 planned, 1 retried in 2 min 30 s
  reason: the user said no

warning: mind the gap
"""


def test_a_recording_is_shown_whole() -> None:
    assert render_text(RECORDING) == PLAIN


def test_colours_add_nothing_but_colours() -> None:
    coloured = render_text(RECORDING, colour=True)
    assert "\x1b[31mfailed\x1b[0m" in coloured
    assert re.sub("\x1b\\[[0-9]+m", "", coloured) == PLAIN


def test_recorded_text_cannot_act_on_the_terminal() -> None:
    hostile = "\x1b]0;title\x07 \x1b[2J \r \u202e \x9b31m \ud800 é ✓"
    step = Step(
        1,
        StepStart(hostile, "tool", hostile, {hostile: hostile}),
        StepEnd("failed", [hostile], 0.1, hostile),
    )
    shown = render_text(Recording(Header(1, hostile, hostile), (step,), warnings=(hostile,)))
    assert not {
        c
        for c in shown
        if ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e" or "\ud800" <= c < "\ue000"
    } - {"\n"}
    assert visible("é ✓\n\tx") == "é ✓\n\tx"
    assert visible("a\nb", one_line=True) == "a\\nb"


def test_a_file_that_ends_before_its_header_can_be_shown() -> None:
    assert (
        render_text(Recording(None, status="interrupted"))
        == "a task without a header  interrupted\n"
    )


def test_a_run_without_an_end_tells_what_it_has_used_so_far() -> None:
    def used(**usage: Any) -> Step:
        return Step(1, StepStart("p", "model", "m"), StepEnd("success", "x", 0.1, None, usage))

    steps = (used(input_tokens=3, cost_usd=0.5), used(input_tokens=4, cost_usd=None), LINK)
    shown = render_text(Recording(Header(1, ""), steps, status="interrupted"))
    assert "  used so far: input tokens 7, cost unknown\n" in shown
    assert "used so far" not in render_text(RECORDING)


@pytest.mark.parametrize(
    ("usage", "tokens", "cost"),
    [
        (None, "", ""),
        # Records leave out what is 0.
        ({}, "0", "$0"),
        ({"input_tokens": 5, "cost_usd": None}, "5", "?"),
        ({"input_tokens": 1200, "output_tokens": 34, "cost_usd": 1234.5}, "1,234", "$1,234.50"),
        ({"input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}, "0", "$0"),
        ({"input_tokens": 5, "output_tokens": None, "cost_usd": None}, "?", "?"),
        ({"input_tokens": "5", "output_tokens": 1, "cost_usd": "1"}, "?", "?"),
        ({"cost_usd": 0.0123}, "0", "$0.0123"),
        ({"cost_usd": 1e-9}, "0", "<$0.000001"),
        ({"cost_usd": 10**400}, "0", "?"),
        ({"cost_usd": float("nan")}, "0", "?"),
    ],
)
def test_unknown_figures_are_never_shown_as_zero(usage: Any, tokens: str, cost: str) -> None:
    assert (tokens_text(usage), cost_text(usage)) == (tokens, cost)


# -- the conversation -----------------------------------------------------------------------------------------

CALL = {"id": "c1", "name": "look", "arguments": '{"at": "here"}'}
TALK = (
    Step(
        1,
        StepStart(
            "a/turn[1]",
            "model",
            "m",
            {
                "model": "m/1",
                "settings": {"seed": 1},
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "x\ny"},
                ],
            },
        ),
        StepEnd(
            "success",
            {
                "content": "",
                "finish_reason": "tool_calls",
                "tool_calls": [CALL],
                "reasoning": "why",
            },
            0.1,
        ),
    ),
    Step(2, StepStart("a/turn[1]/tool[1]", "tool", "look"), StepEnd("success", "seen", 0.1)),
    Step(
        3,
        StepStart(
            "a/turn[2]",
            "model",
            "m",
            {
                "model": "m/1",
                "settings": {},
                "messages": [
                    {"role": "tool", "tool_call_id": "c1", "content_of": "turn[1]/tool[1]"},
                    {"role": "tool", "tool_call_id": "c2", "content_of": "turn[1]/tool[2]"},
                ],
            },
        ),
        StepEnd("failed", "half", 0.1, "server: gone"),
    ),
)

TALKED = """\
TASK-3  failed

Conversation a  m/1

system
  Be brief.

user
  x
  y

assistant
  reasoning: why
  calls look c1
    {"at": "here"}

tool c1
  seen

tool c2
  the record has no answer of: turn[1]/tool[2]

no answer: failed  server: gone
  partial answer: half
"""


def test_a_conversation_is_shown_role_by_role() -> None:
    recording = Recording(Header(3, ""), TALK, status="failed")
    assert render_messages(recording) == TALKED
    coloured = render_messages(recording, colour=True)
    assert "\x1b[36muser\x1b[0m" in coloured
    assert re.sub("\x1b\\[[0-9]+m", "", coloured) == TALKED


def test_a_task_without_a_model_has_no_conversation() -> None:
    assert (
        render_messages(Recording(Header(3, ""), TALK[1:2]))
        == "TASK-3  running\n  no model was called\n"
    )


# -- the tree -------------------------------------------------------------------------------------------------


def store_of(
    folder: Path, links: dict[int, list[int]], parents: dict[int, int] | None = None
) -> TaskStore:
    """Finished tasks 1, 2, … with a call each and links to subtasks."""
    store = TaskStore(folder)
    usage = {"input_tokens": 90, "output_tokens": 10, "cost_usd": 0.5}
    for number, children in links.items():
        journal = store.create(template=f"t{number}", parent=(parents or {}).get(number))
        assert journal.id == number
        journal.end(
            journal.begin(StepStart("s[1]/turn[1]", "model", "m")),
            StepEnd("success", {}, 1.5, None, usage),
        )
        for n, child in enumerate(children, 1):
            start = StepStart(
                f"s[1]/turn[1]/tool[{n}]/subtask", "subtask", f"t{child}", {"task_id": child}
            )
            journal.end(journal.begin(start), StepEnd("success", {}, 2.0))
        journal.close(Summary("completed", 1, 0, 2.5, usage))
    return store


def test_a_tree_shows_the_steps_by_path_and_the_subtasks_files_below_their_links(
    tmp_path: Path,
) -> None:
    store = store_of(tmp_path, {1: [2], 2: [3, 9], 3: []}, {2: 1, 3: 2})
    tree = read_tree(store, store.read(2))
    assert (
        render_tree(tree).replace(str(tmp_path), "FOLDER")
        == """\
TASK-1  completed  t1  2.5 s  100 tokens  $0.50  (parent)
TASK-2  completed  t2  2.5 s  100 tokens  $0.50
  s[1]/turn[1]  1  model  m  success  1.5 s  100 tokens  $0.50
    tool[1]/subtask  2  subtask  t3  success  2.0 s
      TASK-3  completed  t3  2.5 s  100 tokens  $0.50
        s[1]/turn[1]  1  model  m  success  1.5 s  100 tokens  $0.50
    tool[2]/subtask  3  subtask  t9  success  2.0 s
      TASK-9  FOLDER: there is no task 9
"""
    )
    data = json.loads(json.dumps(tree.to_dict()))
    assert (data["id"], data["parent"], data["usage"]["cost_usd"]) == (2, 1, 0.5)
    assert [step["subtask"] and step["subtask"]["id"] for step in data["steps"]] == [None, 3, 9]
    assert data["steps"][1]["subtask"]["steps"][0]["path"] == "s[1]/turn[1]"
    assert "no task 9" in data["steps"][2]["subtask"]["problem"]


def test_attempts_and_places_that_several_steps_share_have_a_line_each() -> None:
    def step(number: int, path: str, attempt: int = 1) -> Step:
        return Step(number, StepStart(path, "model", "m", attempt=attempt, max_attempts=3))

    steps = (
        step(1, "a/b/turn[1]"),
        step(2, "c"),
        step(1, "a/b/turn[1]", 2),
        step(3, "a/b/turn[2]"),
        step(4, "c/d"),
    )
    assert (
        render_tree(TaskNode(1, Recording(Header(1, ""), steps)))
        == """\
TASK-1  running
  a/b
    turn[1]  1  model  m  running
    turn[1]  1  model  m (retry 2/3)  running
    turn[2]  3  model  m  running
  c  2  model  m  running
    d  4  model  m  running
"""
    )


def test_files_that_link_to_each_other_are_followed_once(tmp_path: Path) -> None:
    store = store_of(tmp_path, {1: [2, 3, 1], 2: [3, 1], 3: [2]}, {1: 3})
    shown = render_tree(read_tree(store, store.read(1)))
    assert shown.count("TASK-2  completed") == 1
    assert shown.count("TASK-3  completed") == 1
    assert shown.startswith(
        "TASK-3  completed  t3  2.5 s  100 tokens  $0.50  (parent)\nTASK-1  completed"
    )
    assert shown.count("shown above") == 4


def test_a_damaged_file_is_shown_in_its_place(tmp_path: Path) -> None:
    store = store_of(tmp_path, {1: [2], 2: []})
    store.path_of(2).write_bytes(b"# TASK-2\n\n- **Status**: wonderful\n")
    assert "TASK-2.md:3: Status is not a status: 'wonderful'" in render_tree(
        read_tree(store, store.read(1))
    )


def test_a_chain_of_files_is_followed_only_so_deep(tmp_path: Path) -> None:
    count = MAX_DEPTH + 5
    store = store_of(tmp_path, {n: [n + 1] if n < count else [] for n in range(1, count + 1)})
    tree = read_tree(store, store.read(1))
    shown = render_tree(tree)
    assert f"TASK-{MAX_DEPTH + 1}  not followed: {MAX_DEPTH} files deep" in shown
    assert f"TASK-{MAX_DEPTH}  completed" in shown
    assert json.dumps(tree.to_dict(), indent=2)


# -- hostile content ------------------------------------------------------------------------------------------

NASTY = st.sampled_from(
    [
        "\x1b[2J",
        "\x9b31m",
        "\r",
        "\x00",
        "\u202e",
        "\ud800",
        "\n",
        "\t",
        "a/b",
        "turn[1]",
        "\x1b]0;t\x07",
    ]
)
TEXT = (
    NASTY
    | st.text(st.characters(exclude_categories=()), max_size=8)
    | st.lists(NASTY, max_size=4).map("".join)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": TEXT,
        "content": JSON,
        "reasoning": JSON,
        "content_of": JSON,
        "tool_call_id": TEXT,
        "tool_calls": st.lists(
            st.fixed_dictionaries({"id": TEXT, "name": TEXT, "arguments": TEXT}) | JSON, max_size=2
        ),
    },
)
ARGS = (
    st.fixed_dictionaries(
        {},
        optional={
            "model": TEXT,
            "settings": OBJECT,
            "messages": st.lists(MESSAGE, max_size=3),
            "task_id": st.integers(),
        },
    )
    | JSON
)
USAGE = st.dictionaries(
    st.sampled_from(["input_tokens", "output_tokens", "cost_usd"]) | TEXT, JSON, max_size=3
)
STEPS = st.builds(
    Step,
    st.integers(1, 9),
    st.builds(
        StepStart,
        TEXT,
        st.sampled_from(get_args(StepKind)),
        TEXT,
        ARGS,
        st.just("f"),
        st.integers(1, 3),
    ),
    st.none()
    | st.builds(
        StepEnd,
        st.sampled_from(["success", "failed", "aborted"]),
        MESSAGE | JSON,
        st.floats(0, 1e6),
        st.none() | TEXT,
        st.none() | USAGE,
        st.none() | OBJECT,
    ),
)
RECORDINGS = st.builds(
    Recording,
    header=st.none()
    | st.builds(
        Header,
        st.integers(0, 99),
        TEXT,
        TEXT,
        OBJECT,
        template=st.none() | TEXT,
        model=st.none() | TEXT,
        parent=st.none() | st.integers(0, 9),
        extra=OBJECT,
    ),
    steps=st.lists(STEPS, max_size=4).map(tuple),
    summary=st.none()
    | st.builds(
        Summary,
        st.sampled_from(["completed", "failed"]),
        st.integers(0, 9),
        st.integers(0, 9),
        st.floats(0, 1e6),
        st.none() | USAGE,
        JSON,
        st.none() | TEXT,
    ),
    status=st.sampled_from(["running", "interrupted", "completed", "failed", "aborted"]),
    warnings=st.lists(TEXT, max_size=2).map(tuple),
)


@given(RECORDINGS, st.booleans())
@settings(max_examples=100, deadline=None)
def test_no_view_has_a_control_character_but_newlines_tabs_and_its_own_colours(
    recording: Recording, colour: bool
) -> None:
    tree = TaskNode(
        1, recording, None, {0: TaskNode(2, None, "\x1b[2J\r")}, TaskNode(3, None, "\n\x07")
    )
    for shown in (
        render_text(recording, colour),
        render_messages(recording, colour),
        render_tree(tree, colour),
    ):
        plain = re.sub("\x1b\\[[0-9]{1,2}m", "", shown) if colour else shown
        found = {c for c in plain if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")} - {
            "\n",
            "\t",
        }
        assert not found
        assert not set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069") & set(plain)
        assert shown.endswith("\n")
    # Colours are the renderer's own: none comes from what is shown.
    if colour:
        assert re.sub(
            "\x1b\\[[0-9]{1,2}m", "", render_messages(recording, True)
        ) == render_messages(recording, False)
    assert len(conversations(recording)) == render_messages(recording).count("\nConversation")


def test_values_that_are_nested_too_deeply_are_reported() -> None:
    deep: Any = "a\n\x1b"
    for _ in range(3000):
        deep = {"x": deep}
    end = StepEnd("success", deep, 0.1, None, {"turns": deep}, {"e": deep})
    recording = Recording(
        Header(1, "", "", deep), (Step(1, StepStart("turn[1]", "model", "m", deep), end),)
    )
    assert render_text(recording).count("[nested too deeply to show]") == 5
    message = {"role": "user", "content": deep, "reasoning": deep, "tool_calls": [deep]}
    step = Step(1, StepStart("turn[1]", "model", "m", {"messages": [message], "settings": deep}))
    assert render_messages(Recording(None, (step,))).count("[nested too deeply to show]") == 4


def test_a_cost_is_a_lower_bound_where_calls_may_be_billed_too() -> None:
    assert cost_text({"cost_usd": 0.25}, 1) == "at least $0.25"
    assert cost_text({"cost_usd": None}, 1) == "?"
    assert cost_text(None, 1) == ""
    summary = Summary("completed", 1, 0, 0.1, interrupted_calls=2)
    shown = render_text(Recording(Header(1, ""), (), summary, "completed"))
    assert "interrupted calls, which may be billed too: 2" in shown
