"""Files of one run that tests of the grammar write: a small one, and any that there can be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from hypothesis import strategies as st

from evaluator.record.encoding import (
    encode_begin,
    encode_end,
    encode_header,
    encode_note,
    encode_resumption,
    encode_summary,
)
from evaluator.record.entries import Note
from evaluator.record.steps import (
    Header,
    Resumption,
    Step,
    StepEnd,
    StepKind,
    StepStart,
    Summary,
)
from evaluator.store.owners import Owner


@dataclass(frozen=True)
class Run:
    """What is written. `order`: indexes into `steps`, of which the first mention begins a step and the second ends
    it, and `~index` does both in one record; or that the run was taken over."""

    header: Header
    steps: tuple[Step, ...]
    order: tuple[int | Resumption, ...]
    summary: Summary | None


@dataclass(frozen=True)
class Written:
    data: bytes
    ends: tuple[int, ...]
    """Where each record ends."""


def write(run: Run, key: bytes | None = None) -> Written:
    record, _ = encode_header(run.header, key=key)
    pieces, chain, begun, last = [record.data], record.chain, set[int](), None
    for index in run.order:
        if isinstance(index, Resumption):
            record, last = encode_resumption(index, chain), None
            pieces.append(record.data)
            chain = record.chain
            continue
        step = run.steps[index if index >= 0 else ~index]
        if index < 0:
            assert step.end is not None
            record, last = encode_note(step.number, Note(step.start, step.end), chain), None
        elif index not in begun:
            begun.add(index)
            record, last = encode_begin(step.number, step.start, chain), index
        else:
            assert step.end is not None
            restate = None if last == index else step.start.name
            record, last = encode_end(step.number, step.end, chain, restate=restate), None
        pieces.append(record.data)
        chain = record.chain
    if run.summary is not None:
        pieces.append(encode_summary(run.summary, chain).data)
    ends, at = [], 0
    for piece in pieces:
        at += len(piece)
        ends.append(at)
    return Written(b"".join(pieces), tuple(ends))


SMALL = Run(
    Header(
        3, "2026-01-02T03:04:05.678Z", "say hello", {"name": "Ada"}, template="greet", model="m"
    ),
    (
        Step(
            1,
            StepStart("turn[1]", "model", "m", {"n": 1}, "f1"),
            StepEnd("failed", None, 0.25, "no\nanswer"),
        ),
        Step(
            1,
            StepStart("turn[1]", "model", "m", {"n": 1}, "f1", 2, 3, 2.0),
            StepEnd("success", "hi", 1.5),
        ),
        Step(
            2,
            StepStart("parse", "parse", "text", None, "f2"),
            StepEnd("success", {"a": [1, "x\ny"]}, 0.0),
        ),
    ),
    (
        0,
        0,
        Resumption("2026-01-02T03:05:00.000Z", Owner(7, 8, "0-a", "h"), 12, "any change"),
        1,
        2,
        1,
        2,
    ),
    Summary(
        "completed",
        2,
        1,
        2.0,
        {"turns": 2},
        {"status": "COMPLETE", "content": "hi"},
        interrupted_calls=3,
    ),
)


WHOLE_FILE = write(SMALL).data.decode()


NASTY = st.sampled_from(
    [
        "",
        " ",
        "\n",
        "\r\n",
        "\0",
        "```",
        "````text 3\nabc\n````\n",
        "`" * 40,
        "\ud800",
        "ok \udfff end",
        "\n---\n\n## Step 9: fake <!-- begin 9 0 00000000 00000000 -->\n",
        "- **Status**: completed\r\n",
        "<!-- end 1 0 00000000 00000000 -->\n",
        "## Summary\n- **Final Status**: failed",
        "# TASK-1",
        '"quoted"',
        '"',
        "-->",
        "\u2028\u2029\x85\x1b[31m",
        "a\nb\n",
        "{{ x }}",
        WHOLE_FILE,
    ]
)


TEXT = st.one_of(NASTY, st.text(st.characters(exclude_categories=()), max_size=20))


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(allow_nan=False), TEXT
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=8,
)


OBJECT = st.dictionaries(TEXT, JSON, max_size=3)


SECONDS = st.integers(0, 10**12).map(lambda microseconds: microseconds / 1e6)


STARTS = st.builds(
    StepStart,
    path=TEXT,
    kind=st.sampled_from(get_args(StepKind)),
    name=TEXT,
    args=JSON,
    fingerprint=TEXT,
    attempt=st.integers(1, 4),
    max_attempts=st.integers(1, 4),
    backoff_s=st.none() | SECONDS,
    started=st.none() | TEXT,
    custom_id=st.none() | TEXT,
)


ENDS = st.builds(
    StepEnd,
    status=st.sampled_from(["success", "failed", "aborted"]),
    output=JSON,
    duration_s=SECONDS,
    error=st.none() | TEXT,
    usage=st.none() | OBJECT,
    extra=st.none() | OBJECT,
)


HEADERS = st.builds(
    Header,
    task_id=st.integers(0, 10**15),
    created=TEXT,
    request=TEXT,
    inputs=OBJECT,
    template=st.none() | TEXT,
    template_sha256=st.none() | TEXT,
    template_version=st.none() | TEXT,
    model=st.none() | TEXT,
    parent=st.none() | st.integers(0, 10**9),
    owner=st.none() | st.builds(Owner, st.integers(0, 2**22), st.integers(0), st.just("0-a"), TEXT),
    extra=OBJECT,
)


RESUMPTIONS = st.builds(
    Resumption,
    at=TEXT,
    owner=st.none() | st.builds(Owner, st.integers(0, 2**22), st.integers(0), st.just("0-a"), TEXT),
    cut_bytes=st.integers(0, 10**9),
    allowed=st.none() | TEXT,
)


SUMMARIES = st.builds(
    Summary,
    status=st.sampled_from(["completed", "failed", "aborted"]),
    steps=st.integers(0, 10**6),
    retries=st.integers(0, 10**6),
    duration_s=SECONDS,
    usage=st.none() | OBJECT,
    result=JSON,
    reason=st.none() | TEXT,
    planned=st.none() | st.integers(0, 10**6),
    models=st.lists(TEXT, max_size=3).map(tuple),
    interrupted_calls=st.integers(0, 10**6),
)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    starts = draw(st.lists(STARTS, max_size=4))
    steps = tuple(Step(n, s, draw(st.none() | ENDS)) for n, s in enumerate(starts, 1))
    notes = {i for i, step in enumerate(steps) if step.end is not None and draw(st.booleans())}
    mentions = [
        i for i, step in enumerate(steps) for _ in range(1 if step.end is None or i in notes else 2)
    ]
    order: list[int | Resumption] = list(draw(st.permutations(mentions)))
    # Files hold steps in the order in which they begin.
    rank = {index: new for new, index in enumerate(dict.fromkeys(order))}
    steps = tuple(replace(steps[i], number=rank[i] + 1) for i in rank)
    order = [~rank[i] if i in notes else rank[i] for i in order]
    for resumption in draw(st.lists(RESUMPTIONS, max_size=2)):
        order.insert(draw(st.integers(0, len(order))), resumption)
    return Run(draw(HEADERS), steps, tuple(order), draw(st.none() | SUMMARIES))
