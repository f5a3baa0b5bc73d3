"""A task file reads back as what was written, from any prefix of its bytes; changed bytes are refused."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evaluator import CorruptRecord, RecordError, Recording, UsageError
from evaluator.files.trust import signing_key
from evaluator.record.encoding import (
    STATUS_HINTS,
    Chain,
    encode_begin,
    encode_end,
    encode_header,
    encode_resumption,
    encode_summary,
    record_signature,
)
from evaluator.record.grammar import decode, header_of, scan
from evaluator.record.redact import Redactor
from evaluator.record.steps import (
    FixedPart,
    Resumption,
    Step,
    StepEnd,
    StepStart,
    Summary,
    fingerprint,
)
from evaluator.store.owners import Owner
from tests.record.record_examples import (
    OBJECT,
    SMALL,
    TEXT,
    WHOLE_FILE,
    Run,
    Written,
    runs,
    write,
)

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "task_record.json").read_text())


def expected(run: Run, records: int) -> tuple[Step, ...]:
    """The steps after so many records, the header being the first."""
    found: dict[int, Step] = {}
    for index in run.order[: max(0, records - 1)]:
        if isinstance(index, Resumption):
            continue
        step = run.steps[index if index >= 0 else ~index]
        found[index] = step if index in found or index < 0 else replace(step, end=None)
    return tuple(found.values())


def same(a: object, b: object) -> bool:
    """Equal, and of the same types: 1 is not True here."""
    return repr(a) == repr(b)


@given(runs())
@example(SMALL)
@settings(max_examples=80, deadline=None)
def test_what_is_read_is_what_was_written(run: Run) -> None:
    data = write(run).data
    read = decode(data)
    assert same(read.header, run.header)
    assert same(read.steps, run.steps)
    assert same(read.summary, run.summary)
    assert same(
        read.resumptions, tuple(entry for entry in run.order if isinstance(entry, Resumption))
    )
    assert (read.tail, read.torn_offset, read.warnings) == ("clean", None, ())
    assert read.status == ("running" if run.summary is None else run.summary.status)


@given(runs(), st.data())
@settings(max_examples=80, deadline=None)
def test_any_prefix_of_the_bytes_reads_as_a_prefix_of_the_steps(
    run: Run, data: st.DataObject
) -> None:
    written = write(run)
    cut = data.draw(st.integers(0, len(written.data)))
    check_prefix(run, written, cut)


def test_every_prefix_of_one_file_reads_as_a_prefix_of_its_records() -> None:
    written = write(SMALL)
    for cut in range(len(written.data) + 1):
        check_prefix(SMALL, written, cut)


def check_prefix(run: Run, written: Written, cut: int) -> None:
    read = decode(written.data[:cut])
    whole = sum(1 for end in written.ends if end <= cut)
    good = written.ends[whole - 1] if whole else 0
    assert (read.header is None) == (whole == 0)
    assert same(read.steps, expected(run, whole))
    # The result and the summary are two records that are written as one.
    complete = cut == len(written.data)
    assert same(read.summary, run.summary if complete else None)
    if good == cut and whole:
        assert read.tail == "clean"
    else:
        assert read.tail == "torn" or cut > written.ends[-2]
        if read.torn_offset is not None:
            assert good <= read.torn_offset <= cut


@given(runs(), st.data())
@settings(max_examples=120, deadline=None)
def test_a_changed_byte_is_never_read_as_other_content(run: Run, data: st.DataObject) -> None:
    original = write(run).data
    at = data.draw(st.integers(0, len(original) - 1))
    bits = data.draw(st.integers(1, 255))
    changed = bytearray(original)
    changed[at] ^= bits
    whole = decode(original)
    hint = scan(original).hint_offset
    if hint <= at < hint + len(STATUS_HINTS["running"]):
        # The status in the header is a hint for people: another text there changes nothing.
        read = decode(bytes(changed))
        assert same(read.steps, whole.steps)
        assert read.summary == whole.summary
        return
    check_changed(whole, bytes(changed))


def test_no_single_bit_of_a_file_can_be_flipped_unnoticed() -> None:
    original = write(SMALL).data
    whole = decode(original)
    hint = scan(original).hint_offset
    for at in range(len(original)):
        if hint <= at < hint + len(STATUS_HINTS["running"]):
            continue
        changed = bytearray(original)
        changed[at] ^= 1 << at % 8
        with pytest.raises(CorruptRecord):
            decode(bytes(changed))
    assert whole.tail == "clean"


def check_changed(whole: Recording, changed: bytes) -> None:
    try:
        read = decode(changed)
    except RecordError:
        return
    # Not refused: then it says that it is torn, and what it holds is a prefix.
    assert read.tail == "torn"
    assert (
        same(read.steps, whole.steps[: len(read.steps)])
        or read.steps[:-1] == whole.steps[: len(read.steps) - 1]
    )
    assert read.summary is None


def test_a_record_cannot_be_moved_left_out_or_repeated() -> None:
    written = write(SMALL)
    a, b, c = written.ends[0], written.ends[1], written.ends[2]
    data = written.data
    for other in (
        data[:a] + data[b:],
        data[:a] + data[b:c] + data[a:b] + data[c:],
        data[:b] + data[a:],
    ):
        with pytest.raises(CorruptRecord) as caught:
            decode(other, "x.md")
        assert caught.value.path == "x.md"
        assert caught.value.line > 1
        assert other[: caught.value.offset].count(b"\n") + 1 == caught.value.line


@pytest.mark.parametrize("keep", [0, 100, 1023, 1024, 1500])
def test_disk_blocks_that_were_never_written_read_as_a_torn_end(keep: int) -> None:
    steps = tuple(
        Step(n, StepStart(f"s{n}", "tool", "t", "x" * 300, "f"), None) for n in range(1, 5)
    )
    data = write(Run(SMALL.header, steps, (0, 1, 2, 3), None)).data
    read = decode(data[:keep] + b"\0" * (len(data) - keep))
    assert read.tail == "torn"
    assert same(read.steps, decode(data[:keep]).steps)
    assert read.torn_offset == decode(data[:keep]).torn_offset or read.torn_offset == keep


def test_zeros_at_the_end_that_are_not_a_disk_block_are_corrupt() -> None:
    data = write(SMALL).data
    assert (len(data) - 3) % 512 > 3
    with pytest.raises(CorruptRecord, match="zero bytes"):
        decode(data[:-3] + b"\0\0\0")


def test_a_file_of_a_newer_format_is_named_as_such() -> None:
    record, _ = encode_header(replace(SMALL.header, version=3))
    with pytest.raises(RecordError, match="format 3"):
        decode(record.data)


@pytest.mark.parametrize("damage", [b"\0" * 9, b"- **Status", b"\xff\n\n#"])
def test_a_damaged_status_hint_is_only_a_warning(damage: bytes) -> None:
    data = bytearray(write(SMALL).data)
    whole = decode(bytes(data))
    at = scan(bytes(data)).hint_offset + 3
    data[at : at + len(damage)] = damage
    found = decode(bytes(data))
    assert replace(found, warnings=()) == replace(whole, warnings=())
    (warning,) = found.warnings
    assert "status below the title has been damaged" in warning


def test_the_status_hint_can_be_overwritten_and_the_summary_stays_the_truth() -> None:
    data = bytearray(write(SMALL).data)
    at = scan(bytes(data)).hint_offset
    data[at : at + len(STATUS_HINTS["completed"])] = STATUS_HINTS["completed"]
    assert decode(bytes(data)).warnings == ()
    data[at : at + len(STATUS_HINTS["failed"])] = STATUS_HINTS["failed"]
    read = decode(bytes(data))
    assert read.status == "completed"
    assert read.warnings == ("the title has the status failed, the records completed",)


def test_scan_tells_a_writer_where_to_go_on() -> None:
    written = write(SMALL)
    state = scan(written.data[: written.ends[4] + 7])
    assert state.offset == written.ends[4]
    record = encode_end(1, StepEnd("success", "again", 0.0), state.chain, restate="m")
    assert decode(written.data[: state.offset] + record.data).steps[1].end == StepEnd(
        "success", "again", 0.0
    )


def test_the_file_looks_as_documented() -> None:
    lines = [line for line in WHOLE_FILE.splitlines() if line]
    shown = [line.partition(" <!--")[0] for line in lines if line.startswith("#")]
    assert shown == [
        "# TASK-3",
        "## Step 1: m",
        "## Resumed",
        "## Step 1 (retry): m",
        "## Step 2: text",
        "## Step 1 (result): m",
        "## Step 2 (result): text",
        "## Result",
        "## Summary",
    ]
    for line in (
        "- **Attempt**: 2/3",
        "- **Backoff**: 2000ms",
        "- **Duration**: 250ms",
        "- **Status**: failed",
    ):
        assert line in lines
    assert "- **Total Steps**: 2 (1 retry)" in lines
    # Texts of several lines stand there as they are.
    assert "no\nanswer\n```\n" in WHOLE_FILE
    assert "```text 3 /a/1\nx\ny\n```\n" in WHOLE_FILE


def test_the_fence_is_longer_than_any_run_of_backticks_inside() -> None:
    text = "a ```` b\n``` c"
    data = encode_begin(1, StepStart("p", "tool", "t", text), Chain()).data.decode()
    assert f"`````text {len(text)}\n{text}\n`````\n" in data


@given(runs())
@example(SMALL)
@settings(max_examples=60, deadline=None)
def test_a_recording_as_json_fits_its_schema(run: Run) -> None:
    data = json.loads(json.dumps(decode(write(run).data).to_dict()))
    jsonschema.Draft202012Validator(SCHEMA).validate(data)


def test_the_schema_refuses_what_no_recording_is() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    good = decode(write(SMALL).data).to_dict()
    assert validator.is_valid(good)
    assert not validator.is_valid({**good, "status": "done"})
    assert not validator.is_valid({**good, "torn_offset": 4})
    assert not validator.is_valid({**good, "steps": [{**good["steps"][0], "status": "running"}]})


@given(runs())
@settings(max_examples=60, deadline=None)
def test_without_steps_header_takeovers_and_summary_are_read(run: Run) -> None:
    written = write(run)
    whole, found = decode(written.data), decode(written.data, steps=False)
    assert found.steps == ()
    assert same(found.header, run.header)
    assert same(header_of(written.data), run.header)
    assert header_of(written.data[: written.ends[0] - 1]) is None
    assert same(found.summary, None if run.summary is None else replace(run.summary, result=None))
    assert (found.resumptions, found.status, found.tail) == (
        whole.resumptions,
        whole.status,
        whole.tail,
    )


def test_a_text_that_only_looks_like_a_summary_is_not_read_as_one() -> None:
    fake = encode_summary(Summary("completed", 1, 0, 0.0), Chain()).data.decode()
    step = Step(1, StepStart("p", "tool", "t", fake), None)
    assert decode(write(Run(SMALL.header, (step,), (0,), None)).data, steps=False).summary is None
    failed = Summary("failed", 1, 0, 0.0, None, None, fake)
    assert (
        decode(write(Run(SMALL.header, (step,), (0,), failed)).data, steps=False).summary == failed
    )


@pytest.mark.parametrize("size", [0, 1, 32, 64, 65, 200])
def test_the_signature_of_a_record_is_an_hmac_with_sha_256(size: int) -> None:
    key = bytes(range(size))
    message = b"task record\0before\0line\nbody"
    expected = hmac.digest(key, message, "sha256")[:16].hex().encode()
    assert record_signature(key, b"before", b"line", b"body") == expected


def test_a_fingerprint_does_not_depend_on_the_order_of_keys_and_on_nothing_else() -> None:
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    values = [None, 0, 1, "1", True, [1], {"1": 1}, {"a": 1}, {"a": [1]}, "", [], {}, "\ud800", 1.5]
    assert len({fingerprint(value) for value in values}) == len(values)
    assert len(fingerprint({})) == 32
    with pytest.raises(UsageError):
        fingerprint({"a": object()})


def test_a_fingerprint_is_that_of_the_canonical_json_whatever_encodes_it() -> None:
    texts = [chr(code) for code in range(256)] + ["\u2028", "\ud800", "\U0001f600", 'a\n"b"\\c']
    numbers = [0, -1, 2**53 + 1, 2**63, 2**64, 2**70, 0.1, 1e16, 1e-7, -0.0, 1e300, float("inf")]
    others = [True, None, (1, ("a",)), [], {}, {"b": {"d": 1, "c": ["é", 1.5]}, "a": "x"}, {1: "a"}]
    for value in [*texts, *numbers, *others, dict.fromkeys(texts, 0), ["x", 1e-7, "\x7f"]]:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
        hashed = hashlib.blake2b(text.encode(), digest_size=16, person=b"steps 1")
        assert fingerprint(value) == hashed.hexdigest(), value
        assert fingerprint(value, Redactor({"KEY": "very-secret-value"})) == hashed.hexdigest()


def test_a_fingerprint_refuses_what_is_not_json() -> None:
    endless: list[object] = []
    endless.append(endless)
    for value in (UUID(int=4), b"bytes", {1, 2}, endless, {"a": [Decimal(1)]}):
        with pytest.raises(UsageError, match="JSON values only"):
            fingerprint(value, Redactor({"KEY": "very-secret-value"}))


@pytest.mark.parametrize(
    "secret", [None, "s3cr3t-key-9f8e7d6c5b4a", "\u00e9\u00e8-s3cr3t-9f8e7d6c5b"]
)
def test_a_fixed_part_gives_the_fingerprint_of_the_whole(secret: str | None) -> None:
    scrub = None if secret is None else Redactor({"KEY": secret})
    fixed = FixedPart({"model": "m", "schema": {"b": 1, "a": secret}, "settings": {}, "tools": []})
    for messages in ([], [{"role": "user", "content": f"a {secret} \ud83d\ude00"}]):
        value = {"after": "0" * 32, "messages": messages}
        whole = fingerprint({**fixed.value, **value}, scrub)
        assert fingerprint(value, scrub, fixed) == whole
        # The control: either part counts.
        assert fingerprint({**value, "after": ""}, scrub, fixed) != whole
        assert fingerprint(value, scrub, FixedPart({**fixed.value, "model": "n"})) != whole


@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}, [b"x"]])
def test_a_value_that_is_not_json_is_refused_before_anything_is_written(value: object) -> None:
    with pytest.raises(UsageError, match="Args"):
        encode_begin(1, StepStart("p", "tool", "t", value), Chain())


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_duration_that_is_not_a_time_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="duration"):
        encode_end(1, StepEnd("success", "x", seconds), Chain())


@given(TEXT, OBJECT)
@example("", {"0/0": "\n"})
@example("```\n## Result <!-- result 0 0 00000000 00000000 -->\n\x00\ud800\r\n", {})
@settings(deadline=None)
def test_a_result_that_refers_to_a_step_has_that_step_s_text(
    content: str, more: dict[str, object]
) -> None:
    output = {"content": content}
    steps = (
        Step(1, StepStart("turn[1]", "model", "m", None, "f"), StepEnd("success", output, 0.1)),
    )
    data = write(Run(SMALL.header, steps, (0, 0), None)).data
    chain = scan(data).chain
    result = {**more, "content": content}
    summary = Summary("completed", 1, 0, 0.1, None, result)
    read = decode(data + encode_summary(summary, chain, content_of=1).data)
    assert read.summary is not None
    assert read.summary.result == result
    with pytest.raises(CorruptRecord, match="step 2 has no content"):
        decode(data + encode_summary(summary, chain, content_of=2).data)


def test_a_file_that_was_ended_is_open_again_after_a_resume_record() -> None:
    written = write(SMALL).data
    ended = decode(written)
    assert ended.status == "completed" and ended.summary is not None
    owner = Owner(7, 8, "0-a", "h")
    record = encode_resumption(
        Resumption("2026-01-02T03:06:00.000Z", owner, 0, ""), scan(written).chain
    )
    reopened = decode(written + record.data)
    assert reopened.summary is None
    assert reopened.status == "running"
    assert len(reopened.resumptions) == len(ended.resumptions) + 1


@given(runs(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_signed_file_is_own_up_to_the_first_record_that_is_not(
    run: Run, data: st.DataObject
) -> None:
    key = signing_key(create=True)
    assert key is not None
    signed = write(run, key)
    whole = decode(signed.data)
    assert whole.unsigned is None
    assert replace(whole, unsigned="header") == decode(write(run).data)
    records = data.draw(st.integers(1, len(signed.ends)))
    assert decode(signed.data[: signed.ends[records - 1]]).unsigned is None, "a prefix"
    assert decode(write(run, b"another key").data).unsigned == "header"
    # Continued by somebody else.
    state = scan(signed.data)
    record = encode_resumption(Resumption("now"), state.chain)
    assert decode(signed.data + record.data).unsigned == "resume"
    own = encode_resumption(Resumption("now"), state.chain._replace(key=key))
    assert decode(signed.data + own.data).unsigned is None, "the control"
