"""The outline of a task list: its sections, steps and owner."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evaluator.record.task_list_outline import read_outline, with_owner
from tests.record.task_list_texts import PLAN

# text → (done, line, section, role) of each step
STEPS: list[tuple[str, list[tuple[bool, int, str, str | None]]]] = [
    (
        "- [ ] a\n* [x] b\n+ [X] c\n3. [ ] d\n4) [ ] e\n",
        [
            (False, 1, "", None),
            (True, 2, "", None),
            (True, 3, "", None),
            (False, 4, "", None),
            (False, 5, "", None),
        ],
    ),
    ("      - [ ] nested\n", [(False, 1, "", None)]),
    ("- [] a\n- [y] b\n-[ ] c\n[ ] d\n- [ ]e\n", []),
    ("```\n- [ ] a\n```\n- [ ] b\n", [(False, 4, "", None)]),
    ("````md\n```\n- [ ] a\n````\n- [ ] b\n", [(False, 5, "", None)]),
    ("~~~ `x`\n- [ ] a\n```\n~~~\n- [ ] b\n", [(False, 5, "", None)]),
    ("``` not `a fence`\n- [ ] a\n", [(False, 2, "", None)]),
    ("1. [ ] a\n    ```sh\n    - [ ] b\n    ```\n", [(False, 1, "", None)]),
    ("```\n## [A] x\n- [ ] never closed\n", []),
    ("## [A] x ##\n- [ ] a\n", [(False, 2, "x", "A")]),
    ("## [A] C#\n- [ ] a\n", [(False, 2, "C#", "A")]),
    ("# [A] x\n- [ ] a\n", [(False, 2, "[A] x", None)]),
    ("## [A] x\n### y\n- [ ] a\n## z\n- [ ] b\n", [(False, 3, "y", "A"), (False, 5, "z", None)]),
    # A bracketed word below a role is a part of its section.
    (
        "## [A] x\n### [TESTS] y\n- [ ] a\n#### z\n- [ ] b\n### v\n- [ ] c\n",
        [(False, 3, "[TESTS] y", "A"), (False, 5, "z", "A"), (False, 7, "v", "A")],
    ),
    (
        "## x\n### [A] y\n- [ ] a\n### [B] z\n- [ ] b\n",
        [(False, 3, "y", "A"), (False, 5, "z", "B")],
    ),
    ("## [A] x\n# y\n### z\n- [ ] a\n", [(False, 4, "z", None)]),
    ("## [text](link)\n- [ ] a\n", [(False, 2, "[text](link)", None)]),
    ("## [x] a\n- [ ] a\n", [(False, 2, "[x] a", None)]),
    ("## [two   words] a\n- [ ] a\n", [(False, 2, "a", "two words")]),
    ("##[A] x\n- [ ] a\n", [(False, 2, "", None)]),
    ("    ## [A] x\n- [ ] a\n", [(False, 2, "", None)]),
    ("####### [A] x\n- [ ] a\n", [(False, 2, "", None)]),
    ("[A] x\n-----\n- [ ] a\n", [(False, 3, "", None)]),
    ("##\n- [ ]\n", [(False, 2, "", None)]),
    # Without checkboxes: numbered headings, else numbered lists.
    (
        "# 1. t\n## [A] 1. x\n1. detail\n### 2) y (done)\n## Step 3: z ✅\n## Step 4\n## 5 v\n",
        [(False, 2, "", "A"), (True, 4, "1. x", "A"), (True, 5, "", None), (False, 6, "", None)],
    ),
    (
        "## 1. x\n\n- **Status**: done\n## 2. y\n- **Status:** open\n## 3. z\nResult: Succeeded, twice\n",
        [(True, 1, "", None), (False, 4, "", None), (True, 6, "", None)],
    ),
    (
        "### [A] Details:\n1.  **Schema**:\n    * a\n2. ~~Tool~~\n   1. nested\n```\n3. c\n```\n3) [x](link)\n",
        [(False, 2, "Details:", "A"), (True, 4, "Details:", "A"), (False, 9, "Details:", "A")],
    ),
    ("1. a\n- [x] b\n", [(True, 2, "", None)]),
    ("words\n- a\n1.5 b\n", []),
    # Below a heading for steps, the items of any list.
    (
        "# Move\n- a goal\n## Steps\n- copy — done\n- compare: **done**\n  - a detail\n* delete\n"
        "1. tell - done.\n## Notes\n- nothing is done\n",
        [
            (True, 4, "Steps", None),
            (True, 5, "Steps", None),
            (False, 7, "Steps", None),
            (True, 8, "Steps", None),
        ],
    ),
    (
        "## [A] Steps:\n- well-done\n- what is done\n",
        [(False, 2, "Steps:", "A"), (False, 3, "Steps:", "A")],
    ),
    ("## Steps\n- [ ] a\n- b — done\n", [(False, 2, "Steps", None)]),
]


@pytest.mark.parametrize(("text", "steps"), STEPS)
def test_a_text_is_read_as_sections_and_steps(
    text: str, steps: list[tuple[bool, int, str, str | None]]
) -> None:
    assert [(s.done, s.line, s.section, s.role) for s in read_outline(text).steps] == steps


# text → its owner
OWNERS: list[tuple[str, str | None]] = [
    ("# t\n\n- **Owner**: MECHANIC\n", "MECHANIC"),
    ("Owner: the   planner \n# t\n", "the planner"),
    ("---\nowner: [A]\n---\n# t\n", "A"),
    ("* __owner:__ A\n* owner: B\n", "A"),
    ("# t\n## [A] x\n- Owner: B\n", None),
    ("```\nOwner: A\n```\n", None),
    ("Owner: \nOwners: A\nThe owner: A\n", None),
    (PLAN, None),
]


@pytest.mark.parametrize(("text", "owner"), OWNERS)
def test_a_text_names_its_owner_before_its_sections(text: str, owner: str | None) -> None:
    assert read_outline(text).owner == owner


@given(st.text(), st.sampled_from(["a", "The Planner", "x-1"]))
@example("```\nfence", "a")
@example("# t\n## [A] x", "a")
def test_any_text_has_an_outline_and_can_be_given_an_owner(text: str, owner: str) -> None:
    text = text.replace("\r", "\n")
    outline = read_outline(text)
    lines = text.split("\n")
    assert all(step.text in lines[step.line - 1] for step in outline.steps)
    if outline.owner is None:
        owned = read_outline(with_owner(text, owner))
        assert owned.owner == owner
        assert [s.text for s in owned.steps] == [s.text for s in outline.steps]
