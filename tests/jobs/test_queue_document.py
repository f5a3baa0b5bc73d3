"""`task-queue.json` is read whole or refused with a place; what is written is valid and reads back as it was."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import UsageError
from evaluator.jobs.document import document_bytes, read_document
from evaluator.jobs.entries import (
    STATUSES,
    TYPES,
    QueueDocument,
    QueueEntry,
    StrategyAttempt,
    entry_id,
)

EXAMPLE = json.loads((Path(__file__).parent / "example.json").read_text(encoding="utf-8"))
SCHEMA = json.loads(
    (Path(__file__).parents[2] / "schemas" / "task-queue.schema.json").read_text(encoding="utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
OPTIONAL = (
    "subagent_session",
    "deliverable",
    "deliverable_path",
    "blocked_reason",
    "user_action_required",
    "started_at",
    "completed_at",
)
DELETED = object()


def read(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_document(data, "q.json")


def changed(*path, to=DELETED):
    """The example with the value at `path` replaced or deleted."""
    found = value = copy.deepcopy(EXAMPLE)
    for key in path[:-1]:
        value = value[key]
    if to is DELETED:
        del value[path[-1]]
    else:
        value[path[-1]] = to
    return found


def test_the_example_is_exported_with_equal_fields_in_equal_order():
    text = (Path(__file__).parent / "example.json").read_bytes()
    assert document_bytes(read(text)) == text
    VALIDATOR.validate(EXAMPLE)


def test_missing_optional_fields_take_their_defaults():
    value = {"version": "1.0", "tasks": [copy.deepcopy(EXAMPLE["tasks"][2])]}
    for name in OPTIONAL:
        del value["tasks"][0][name]
    del value["tasks"][0]["strategies_tried"][0]["verification_failure"]
    VALIDATOR.validate(value)
    document = read(value)
    assert (document.max_concurrent, document.max_retries, document.archive_days) == (2, 3, 7)
    assert (document.last_id, document.task_runner_dir) == ("T-03", "")
    assert [getattr(document.tasks[0], name) for name in OPTIONAL] == [None] * len(OPTIONAL)
    VALIDATOR.validate(json.loads(document_bytes(document)))


TASK = ("tasks", 1)
REFUSED = [
    (EXAMPLE["tasks"], "$ is an array"),
    (b"", "$ is not valid JSON"),
    (b'{"version": "1.0", "version": "1.0"}', "$ is not valid JSON: a key twice"),
    (b'{"version": NaN}', "$ is not valid JSON"),
    (b"[" * 100_000, "$ is nested too deeply"),
    (b"\xff\xfe{}", "$ is not UTF-8"),
    (changed("version", to="2.0"), "$.version is '2.0'"),
    (changed("version"), "$.version is missing"),
    (changed("tasks"), "$.tasks is missing"),
    (changed("tasks", to={"T-01": {}}), "$.tasks is an object, expected an array of objects"),
    (changed("tasks", 0, to="T-01"), "$.tasks[0] is 'T-01', expected an object"),
    (
        changed("max_retries", to=3),
        "$.max_retries is unknown; did you mean `maxRetries`?",
    ),
    (
        changed("maxConcurrent", to=0),
        "$.maxConcurrent is 0, expected an integer in [1, 9007199254740991]",
    ),
    (changed("maxConcurrent", to=True), "$.maxConcurrent is true, expected an integer"),
    (
        changed("maxRetries", to=2**53),
        "$.maxRetries is 9007199254740992, expected an integer in [0, 9007199254740991]",
    ),
    (changed(*TASK, "retries", to=10**30), "$.tasks[1].retries is 10000"),
    (
        changed("lastId", to="T-9007199254740993"),
        "$.lastId is 'T-9007199254740993', expected an id",
    ),
    (changed("lastId", to=f"T-{'9' * 5000}"), "$.lastId is 'T-99999"),
    (changed("archiveDays", to=7.5), "$.archiveDays is 7.5"),
    (changed("lastId", to="T-02"), "$.lastId is 'T-02', lower than the id T-03"),
    (changed("lastId", to=None), "$.lastId is null, lower than the id T-03"),
    (
        changed(*TASK, "addedAt", to="2026-03-07T09:00:00Z"),
        "$.tasks[1].addedAt is unknown; did you mean `added_at`?",
    ),
    (changed(*TASK, "priority", to=1), "$.tasks[1].priority is unknown"),
    (
        changed(*TASK, "status", to="in_progress"),
        "$.tasks[1].status is 'in_progress', expected one of pending, running, done",
    ),
    (changed(*TASK, "status", to="Done"), "$.tasks[1].status is 'Done'"),
    (changed(*TASK, "status", to=["done"]), "$.tasks[1].status is an array"),
    (
        changed(*TASK, "type", to="research"),
        "$.tasks[1].type is 'research', expected one of info-lookup",
    ),
    (changed(*TASK, "id", to="T-1"), "$.tasks[1].id is 'T-1', expected an id"),
    (changed(*TASK, "id", to="T-002"), "$.tasks[1].id is 'T-002'"),
    (changed(*TASK, "id", to="T-01"), "$.tasks[1].id is 'T-01', which an entry above has too"),
    (changed(*TASK, "id", to=2), "$.tasks[1].id is 2, expected an id"),
    (changed(*TASK, "goal"), "$.tasks[1].goal is missing"),
    (changed(*TASK, "maxRetries"), "$.tasks[1].maxRetries is missing"),
    (changed(*TASK, "retries", to=-1), "$.tasks[1].retries is -1"),
    (changed(*TASK, "deliverable", to=5), "$.tasks[1].deliverable is 5, expected a string"),
    (
        changed(*TASK, "added_at", to="yesterday"),
        "$.tasks[1].added_at is 'yesterday', expected a time in ISO 8601",
    ),
    (
        changed(*TASK, "completed_at", to="2026-03-07"),
        "$.tasks[1].completed_at is '2026-03-07', expected a time",
    ),
    (
        changed(*TASK, "strategies_tried", to=None),
        "$.tasks[1].strategies_tried is null, expected an array of objects",
    ),
    (
        changed(*TASK, "strategies_tried", 0, "attempt", to=0),
        "$.tasks[1].strategies_tried[0].attempt is 0",
    ),
    (
        changed(*TASK, "strategies_tried", 0, "notes", to=""),
        "$.tasks[1].strategies_tried[0].notes is unknown",
    ),
    (changed(*TASK, "goal", to="\ud800"), "$.tasks[1].goal holds half of a surrogate pair"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED)
def test_a_file_of_another_shape_is_refused_with_the_place(value, message):
    with pytest.raises(UsageError) as caught:
        read(value)
    assert str(caught.value).startswith(f"q.json: {message}") and str(caught.value).endswith(
        "nothing was imported"
    )


def test_the_schema_refuses_what_the_reader_refuses():
    # Except for what a schema cannot express: bytes, ids of other entries, halves of surrogate pairs, real times.
    beyond = ("an entry above", "lower than the id", "surrogate")
    values = [
        value
        for value, message in REFUSED
        if not isinstance(value, bytes) and not any(b in message for b in beyond)
    ]
    assert len(values) > 20
    assert [value for value in values if VALIDATOR.is_valid(value)] == []


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
maybe = st.none() | text
times = st.datetimes().map(lambda found: found.strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0"))
attempts = st.builds(StrategyAttempt, st.integers(1, 9), text, text, times, text, maybe)
entries = st.builds(
    QueueEntry,
    id=st.integers(1, 500).map(entry_id),
    description=text,
    goal=text,
    type=st.sampled_from(TYPES),
    status=st.sampled_from(STATUSES),
    retries=st.integers(0, 5),
    max_retries=st.integers(0, 5),
    added_at=times,
    subagent_session=maybe,
    strategies_tried=st.lists(attempts, max_size=3).map(tuple),
    deliverable=maybe,
    deliverable_path=maybe,
    blocked_reason=maybe,
    user_action_required=maybe,
    started_at=st.none() | times,
    completed_at=st.none() | times,
)
documents = st.builds(
    QueueDocument,
    task_runner_dir=text,
    last_id=st.integers(500, 2000).map(entry_id),
    tasks=st.lists(entries, max_size=3, unique_by=lambda e: e.id).map(tuple),
    max_concurrent=st.integers(1, 9),
    max_retries=st.integers(0, 9),
    archive_days=st.integers(0, 99),
)


@given(documents)
def test_what_is_written_is_valid_and_reads_back(document):
    written = document_bytes(document)
    VALIDATOR.validate(json.loads(written))
    assert read_document(written, "q.json") == document
