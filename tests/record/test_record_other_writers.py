"""Task files of other writers are read as documented; an unreadable part is reported with its line."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from evaluator import CorruptRecord
from evaluator.record.grammar import decode
from evaluator.record.other_writers import read_other
from evaluator.record.render import render_text
from evaluator.record.steps import StepEnd, StepStart

RETRIED = """\
# TASK-208

- **Created**: 2025-03-02T09:10:11.120Z
- **Turn ID**: turn-9c1
- **Status**: completed

---

## Step 1: file_read

- **Attempt**: 1/3
- **Args**:
  ```json
  {
    "path": "notes/plan.txt"
  }
````

* **Output**:
  ```
  first
    second, indented
  ```
* **Duration**: 41ms
* **Status**: success

***

## Step 2: web\\_fetch

* **Attempt**: 1/3
* **Args**:
  ```json theme={null}
  {"url": "https://example.test/a_b"}
  ```
* **Output**:
  ```
  ## Step 9: not a step
  - **Status**: aborted
  ```
* **Duration**: 1.5s
* **Status**: failed
* **Error**: HTTP 503: try \\*later\\*
* **Region**: north

***

## Step 2 (retry): web\\_fetch

* **Attempt**: 2/3
* **Backoff**: 2000ms
* **Args**: {"url": "https://example.test/a_b"}
* **Output**: fine
* **Duration**: 2m 3s
* **Status**: SUCCESS

***

## Summary

* **Total Steps**: 2 (1 retry)
* **Total Duration**: 124541ms
* **Final Status**: completed
"""

ABORTED = """\
# TASK-5
+ created: 2025-03-02T09:10:11Z
+ STATUS: Aborted

## STEP 1: shell
__Not a field__
- Args: `ls -la`
- output:
  a.txt
  b.txt
- **Duration:** 12 ms
- **Status:** Success

## step 2: shell
- **Args**: { not json
- **Status**: aborted
- **Reason**: safety.denied: the user said no

## Notes
- **Weather**: fair

## summary
- **Total Steps**: 1 of 3 planned
- **Final Status**: Aborted
- **Abort Reason**: The user said no
"""


def test_steps_retries_and_the_summary_are_read() -> None:
    read = decode(RETRIED.encode())
    assert read.header is not None
    assert (read.header.task_id, read.header.created) == (208, "2025-03-02T09:10:11.120Z")
    assert read.header.extra == {"Turn ID": "turn-9c1"}
    first, second, retry = read.steps
    assert first.start == StepStart(
        "step[1]", "tool", "file_read", {"path": "notes/plan.txt"}, "", 1, 3
    )
    assert first.end == StepEnd("success", "first\n  second, indented", 0.041)
    assert second.start.name == "web_fetch"
    assert second.start.args == {"url": "https://example.test/a_b"}
    assert second.end == StepEnd(
        "failed",
        "## Step 9: not a step\n- **Status**: aborted",
        1.5,
        "HTTP 503: try *later*",
        None,
        {"Region": "north"},
    )
    assert (retry.number, retry.start.attempt, retry.start.backoff_s) == (2, 2, 2.0)
    assert retry.start.args == second.start.args
    assert retry.end == StepEnd("success", "fine", 123.0)
    assert read.summary is not None
    assert (read.summary.status, read.summary.steps, read.summary.retries) == ("completed", 2, 1)
    assert read.summary.duration_s == 124.541
    assert (read.status, read.tail, read.warnings) == ("completed", "clean", ())


def test_relatives_of_the_format_are_read_too() -> None:
    read = decode(ABORTED.encode())
    assert read.header is not None
    assert read.header.created == "2025-03-02T09:10:11Z"
    assert read.header.extra == {"Notes": {"Weather": "fair"}}
    first, second = read.steps
    assert first.start.args == "ls -la"
    assert first.end == StepEnd("success", "a.txt\nb.txt", 0.012)
    assert second.start.args == "{ not json"
    assert second.end == StepEnd("aborted", None, 0.0, "safety.denied: the user said no")
    assert read.summary is not None
    assert (read.summary.steps, read.summary.planned) == (1, 3)
    assert (read.summary.status, read.summary.reason) == ("aborted", "The user said no")
    assert len(read.warnings) == 1
    assert read.warnings[0] == "line 6: this is not a field and is left out: '__Not a field__'"


NAMED = """\
# Task: send the figure

- **ID:** TASK-m1x9k2ab
- **Status:** FAILED
- **Created:** 2026-05-16T14:30:24.310Z
- **Updated:** 2026-05-16T14:31:24.310Z
- **Steps:** 1/3 succeeded

## Steps

### Step 1: pdf_extract_images ✅
- **Args:** `{"path":"/tmp/a`b.pdf"}`
- **Started:** 2026-05-16T14:30:24.410Z
- **Duration:** 0.79s
- **Attempts:** 1
- **Output:**
```
three images
```json
{"a": 1}
```
- **Status:** aborted
### not a step
```
- **Result:** succeeded

### Step 2: send_file ❌
- **Args:** `{"path":"/tmp/b.png"}`
- **Duration:** 2.00s
- **Attempts:** 3
- **Error:** tool failed after 3 attempts
no such file
- **Result:** failed

### Step 3: shell ⏹
- **Args:** `{}`
- **Attempts:** 0
"""


def test_a_named_task_with_steps_of_the_third_level_is_read() -> None:
    read = decode(NAMED.encode())
    assert read.header is not None
    assert (read.header.task_id, read.header.request) == (0, "send the figure")
    assert read.header.extra == {
        "ID": "TASK-m1x9k2ab",
        "Updated": "2026-05-16T14:31:24.310Z",
        "Steps": "1/3 succeeded",
    }
    first, second, third = read.steps
    assert first.start == StepStart(
        "step[1]", "tool", "pdf_extract_images", {"path": "/tmp/a`b.pdf"}, "", 1, 1
    )
    output = 'three images\n```json\n{"a": 1}\n```\n- **Status:** aborted\n### not a step'
    assert first.end == StepEnd(
        "success", output, 0.79, None, None, {"Started": "2026-05-16T14:30:24.410Z"}
    )
    assert (second.start.attempt, second.start.max_attempts) == (3, 3)
    assert second.end == StepEnd("failed", None, 2.0, "tool failed after 3 attempts\nno such file")
    # Without a result, the mark in the heading says how the step ended.
    assert (third.start.name, third.start.args, third.status) == ("shell", {}, "aborted")
    assert (read.status, read.warnings) == ("failed", ())
    assert read.summary is not None
    assert (read.summary.steps, read.summary.retries, read.summary.duration_s) == (3, 2, 2.79)
    assert read.summary.reason == "tool failed after 3 attempts\nno such file"
    assert render_text(read).startswith("TASK-m1x9k2ab  failed\n")


def test_a_named_task_may_have_a_number_no_step_and_no_end() -> None:
    read = decode(b"# Task: other work\n\n- **ID:** TASK-12\n- **Status:** RUNNING\n")
    assert read.header is not None
    assert (read.header.task_id, read.header.extra, read.steps, read.summary) == (12, {}, (), None)
    assert decode(b"# Task: other work\n").status == "running"


def test_each_part_that_is_left_out_is_named_with_its_line() -> None:
    read = decode(
        b"# TASK-1\nwords\n- Status: ok\n\n## Step 1: x\n- Status: ok\n\nmore\n```\nblock\n```\n"
    )
    assert read.warnings == (
        "line 8: this is not a field and is left out: 'more'",
        "line 9: this is not a field and is left out: 'block'",
        "line 2: this is not a field and is left out: 'words'",
    )


def test_windows_line_ends_and_a_byte_order_mark_change_nothing() -> None:
    plain = decode(RETRIED.encode())
    assert decode(b"\xef\xbb\xbf" + RETRIED.replace("\n", "\r\n").encode()) == plain


def test_a_file_without_a_summary_has_the_status_of_its_title() -> None:
    head = RETRIED.partition("***\n\n## Summary")[0]
    assert decode(head.encode()).status == "completed"
    assert (
        decode(head.replace("**Status**: completed", "**Status**: running").encode()).status
        == "running"
    )


def test_a_step_that_has_not_ended_is_running() -> None:
    read = decode(b"# TASK-1\n\n## Step 1: x\n- **Args**: {}\n- **Output**: half\n")
    assert read.steps[0].status == "running"
    assert read.steps[0].start.args == {}
    assert read.warnings == ("line 3: a step without an end has Output",)


def test_a_retry_without_a_count_is_the_next_attempt() -> None:
    read = decode(b"# TASK-1\n## Step 1: x\n- Status: failed\n## Step 1 (retry): x\n- Status: ok\n")
    assert [(step.number, step.start.attempt, step.status) for step in read.steps] == [
        (1, 1, "failed"),
        (1, 2, "success"),
    ]


def test_invalid_json_is_read_as_text_with_a_warning() -> None:
    read = decode(b"# TASK-1\n## Step 1: x\n- Args:\n  ```json\n  {oops\n  ```\n- Status: ok\n")
    assert read.steps[0].start.args == "{oops"
    assert (
        decode(b"# TASK-1\n## Step 1: x\n- Args: [1e999]\n- Status: ok\n").steps[0].start.args
        == "[1e999]"
    )
    assert read.warnings == ("line 4: this block is marked as json and is not JSON; read as text",)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("hello\n", 1, "a title"),
        ("\n\n## Step 1: x\n", 3, "a title"),
        ("   \n", 1, "no task"),
        ("# TASK-1\n\n- **Status**: wonderful\n", 3, "not a status"),
        ("# TASK-1\n## Step 1: x\n- Attempt: many\n- Status: ok\n", 3, "not a count"),
        ("# TASK-1\n## Step 1: x\n- Duration: long\n- Status: ok\n", 3, "not a duration"),
        ("# TASK-1\n## Step 1: x\n- Output:\n  ```\n  never ends\n", 4, "never closed"),
        (
            "# TASK-1\n## Step 1: x\n- Duration: 1" + "0" * 400 + "s\n- Status: ok\n",
            3,
            "too long a duration",
        ),
        ("# Task: x\n## Steps\n### Step 1: x\n- **Output:**\n```\nx\n```\ny\n", 5, "never closed"),
        ("# TASK-1\n## Summary\n- Total Steps: 3\n", 2, "no Final Status"),
        (
            "# TASK-1\n## Summary\n- Total Steps: some\n- Final Status: completed\n",
            3,
            "not a count",
        ),
    ],
)
def test_what_cannot_be_read_gives_the_line_and_the_reason(text: str, line: int, says: str) -> None:
    with pytest.raises(CorruptRecord, match=says) as caught:
        decode(text.encode(), "a.md")
    assert (caught.value.path, caught.value.line) == ("a.md", line)
    assert text.encode()[: caught.value.offset].count(b"\n") == line - 1


@pytest.mark.parametrize(
    "text",
    [
        "# TASK-1\n## Step 1" + " " * 100_000 + "x y\n",
        "# " + " " * 100_000 + "TASK-1\n",
        "# TASK-1\n```" + "\t" * 100_000 + "`\n",
        "# TASK-1\n" + "- " * 50_000 + "x\n",
        "# TASK-1\n- a" + " " * 100_000 + "b\n",
    ],
    ids=["step", "title", "fence", "rule", "field"],
)
@pytest.mark.timeout(50)
def test_long_lines_take_no_longer_than_they_are(text: str) -> None:
    read = decode(text.encode())
    assert read.header is not None
    assert read.header.task_id == 1


def test_bytes_that_are_not_text_are_refused() -> None:
    with pytest.raises(CorruptRecord, match="UTF-8"):
        decode(b"# TASK-1\n\n- x: \xff\xfe\n")


def test_what_was_read_fits_the_schema_of_records() -> None:
    schema = json.loads((Path(__file__).parents[2] / "schemas" / "task_record.json").read_text())
    for text in (RETRIED, ABORTED, NAMED):
        jsonschema.Draft202012Validator(schema).validate(read_other(text.encode()).to_dict())


NESTED_FENCES = """\
# TASK-12

- **Status**: completed

---

## Step 1: file_read

- **Attempt**: 1/3
- **Output**:
  ```
  Run it so:
  ```sh
  make all
  ```
  - **Status**: failed
  ## Step 7: none
  ```
  the end
  ```
- **Duration**: 3ms
- **Status**: success

---

## Step 2: shell_exec

- **Attempt**: 1/3
- **Output**:
  ```
  plain
  ```

A remark of somebody.

---

## Step 3: shell_exec

- **Attempt**: 1/3
- **Output**:
  ```
  ```
  ```
- **Status**: success

---

## Summary

- **Total Steps**: 3
- **Total Duration**: 3ms
- **Final Status**: completed
"""


def test_an_output_may_hold_fences_of_its_own() -> None:
    read = decode(NESTED_FENCES.encode())
    assert [step.start.name for step in read.steps] == ["file_read", "shell_exec", "shell_exec"]
    first, second, third = read.steps
    assert first.end is not None and first.end.status == "success"
    assert first.end.output == (
        "Run it so:\n```sh\nmake all\n```\n- **Status**: failed\n## Step 7: none\n```\nthe end"
    )
    # A block that no field follows ends at its first fence.
    assert second.end is None and any("A remark of somebody" in text for text in read.warnings)
    assert third.end is not None and third.end.output == "```"
    assert read.summary is not None and read.summary.steps == 3
