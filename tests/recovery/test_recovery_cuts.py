"""A task file that lost its end is resumed from its whole records, wherever it was cut; a damaged one is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from recovery_cases import BY_NAME, COMPOSITE, Case, hash_of, reply_to
from recovery_child import evaluator_for
from recovery_harness import HEADER, Lab, files_of, recordings, result_of, snapshot

from evaluator import (
    CorruptRecord,
    ModelRequest,
    ModelResponse,
    ProviderError,
    Recording,
    TaskError,
)
from evaluator.errors import TaskNotBegun
from evaluator.models.chat_wire import read_completion, request_body
from evaluator.record import encoding, grammar

SMALL = BY_NAME["atomic with read_file"]
NESTED = BY_NAME["subtask in a subtask"]


class Answering:
    """A backend that answers as the server does, and counts: thousands of resumptions need no connection."""

    name = "answering"

    def __init__(self, case: Case) -> None:
        self.case, self.posts = case, Counter[str]()

    async def complete(self, request: ModelRequest, *, on_text: Any = None) -> ModelResponse:
        body = request_body(request)
        self.posts[hash_of(body)] += 1
        status, data = reply_to(self.case, body, self.posts[hash_of(body)])
        if status != 200:
            raise ProviderError("try again", kind="server", status=status, retryable=True)
        return read_completion(data)

    async def aclose(self) -> None:
        pass


@dataclass
class Bench:
    """A folder that is put back to what a run left there, its root file cut or changed, and then resumed."""

    case: Case
    folder: Path
    result: dict[str, Any]
    posts: Counter[str]
    files: Mapping[str, bytes]
    effects: str
    runner: asyncio.Runner

    def __post_init__(self) -> None:
        # One evaluator for thousands of resumptions; in the sweep each resumption has a process of its own.
        self.backend = Answering(self.case)
        self.evaluator = evaluator_for(self.case, str(self.folder), backend=self.backend)

    @property
    def tasks(self) -> Path:
        return self.folder / "tasks"

    def put(self, changed: Mapping[str, bytes]) -> None:
        """The files as they were, but for `changed`: a name in the folder, and the bytes of that file."""
        # The evaluator holds the folders open.
        for path in (path for path in self.tasks.rglob("*") if path.is_file()):
            path.unlink()
        ids = {Path(name).name for name in changed}
        for name, data in {
            **{n: d for n, d in self.files.items() if Path(n).name not in ids},
            **changed,
        }.items():
            (self.tasks / name).write_bytes(data)
        (self.folder / "effects.txt").write_text(self.effects)

    def resume(self, task_id: int = 1, *, repair: bool = False) -> tuple[Any, Counter[str]]:
        self.backend.posts.clear()
        outcome = self.runner.run(
            self.evaluator.resume(task_id, unfinished="repeat", repair=repair)
        )
        return outcome, Counter(self.backend.posts)

    def linked(self) -> dict[int, Recording]:
        """The root as it is now, and the subtasks that it and they name: what there is to go on from."""
        found, kept = recordings(self.tasks), dict[int, Recording]()
        todo = [1]
        while todo:
            number = todo.pop()
            if number in found and number not in kept:
                kept[number] = found[number]
                links = (
                    step.start.args for step in found[number].steps if step.start.kind == "subtask"
                )
                todo += [args["task_id"] for args in links]
        return kept

    def check(self, cut: bytes, name: str) -> None:
        """Resumes what was put, and holds it against the undisturbed run."""
        taken = snapshot(self.case, self.linked())
        state = grammar.scan(cut, name)
        outcome, posts = self.resume()
        assert result_of(outcome.to_dict()) == self.result
        assert not set(taken.answered) & set(posts), "a call is made again whose answer is there"
        assert posts == Counter(
            {key: n for key, n in self.posts.items() if key not in taken.answered}
        )
        effects = Counter((self.folder / "effects.txt").read_text().splitlines())
        assert not [label for label in taken.done if effects[label] > 1]
        aside = sorted(path.name for path in self.tasks.rglob("*.torn-*"))
        tail = cut[state.offset :]
        if tail:
            assert aside == [f"{Path(name).name}.torn-1"]
            assert (self.tasks / Path(name).parent / aside[0]).read_bytes() == tail
        else:
            assert not aside


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all resumptions of this module."""
    with asyncio.Runner() as made:
        yield made


def bench_of(lab: Lab, runner: asyncio.Runner, case: Case) -> Bench:
    """With the files of a run that ended."""
    place = lab.place(case)
    backend = Answering(case)
    evaluator = evaluator_for(case, str(place.folder), backend=backend)
    outcome = runner.run(evaluator.evaluate(case.request, case.inputs))
    assert outcome.ok
    path = place.folder / "effects.txt"
    effects = path.read_text() if path.exists() else ""
    return Bench(
        case,
        place.folder,
        result_of(outcome.to_dict()),
        backend.posts,
        files_of(place.tasks),
        effects,
        runner,
    )


def header_end(data: bytes) -> int:
    state, low, high = grammar.scan(data), 0, len(data)
    assert state.header is not None
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (middle + 1, high) if grammar.scan(data[:middle]).header is None else (low, middle)
        )
    return low


def boundaries(data: bytes) -> list[int]:
    """Where each record ends, the header first."""
    found, first = [len(data)], header_end(data)
    while found[-1] > first:
        found.append(grammar.scan(data[: found[-1] - 1]).offset)
    return found[::-1]


def warned_of_a_cut(outcome: Any) -> bool:
    return any(
        "cut" in text or "torn" in text or "ends inside" in text
        for text in outcome.notes["warnings"]
    )


# -- cut -----------------------------------------------------------------------------------------------------------


def test_cut_at_any_byte_it_is_read_up_to_a_record_and_resumed(lab, runner):
    """Read at every byte. What is resumed depends on the whole records and the torn tail alone, so
    it is resumed at the bytes beside the end of each record, and at some of the others.
    """
    bench = bench_of(lab, runner, SMALL)
    whole = bench.files["done/TASK-1.md"]
    ends = boundaries(whole)
    name = "active/TASK-1.md"
    for at in range(ends[0]):
        assert grammar.scan(whole[:at], name).header is None, at
    for end, following in pairwise([*ends, len(whole) + 1]):
        for at in range(end, following):
            assert grammar.scan(whole[:at], name).offset == end, at
    for at in (0, 1, *range(11, ends[0], 71), ends[0] - 1):
        bench.put({name: whole[:at]})
        outcome, posts = bench.resume()
        assert isinstance(outcome, TaskError) and isinstance(outcome.cause, TaskNotBegun), at
        assert not posts and (bench.tasks / name).read_bytes() == whole[:at]
    for at in cuts(whole, 37, 1):
        bench.put({name: whole[:at]})
        bench.check(whole[:at], name)


def cuts(data: bytes, stride: int, every: int) -> list[int]:
    """The end of each record, two bytes to both sides of every so many of them, and here and there between."""
    ends = boundaries(data)
    found = {
        *ends,
        *range(ends[0], len(data), stride),
        *(end + n for end in ends[::every] for n in (-2, -1, 1, 2)),
    }
    return sorted(at for at in found if ends[0] <= at <= len(data))


@pytest.mark.parametrize(
    ("case", "stride", "every"),
    [(NESTED, 307, 1), (COMPOSITE, 9_973, 12)],
    ids=str,
)
def test_cut_around_each_record_of_a_large_file_it_is_resumed(lab, runner, case, stride, every):
    bench = bench_of(lab, runner, case)
    whole = bench.files["done/TASK-1.md"]
    for at in cuts(whole, stride, every):
        bench.put({"active/TASK-1.md": whole[:at]})
        bench.check(whole[:at], "active/TASK-1.md")


@pytest.mark.parametrize("level", [2, 3])
def test_the_file_of_a_subtask_may_be_the_one_that_was_cut(lab, runner, level):
    # Killed while the innermost subtask waited: all three files are without an end.
    crashes = [crash for crash in lab.reference(NESTED).crashes(("before",)) if crash[0] > HEADER]
    for crash in crashes:
        place = lab.place(NESTED)
        assert place.do(crash=crash) is None
        if len([found for found in recordings(place.tasks).values() if found.summary is None]) == 3:
            break
        place.remove()
    else:
        raise AssertionError("there was no time at which all three tasks had begun and not ended")
    bench = Bench(
        NESTED,
        place.folder,
        lab.reference(NESTED).result,
        lab.reference(NESTED).posts,
        files_of(place.tasks),
        (place.folder / "effects.txt").read_text(),
        runner,
    )
    name = f"active/TASK-{level}.md"
    whole = bench.files[name]
    for at in (*range(0, header_end(whole), 61), *cuts(whole, 61, 1)):
        bench.put({name: whole[:at]})
        taken = snapshot(NESTED, bench.linked())
        outcome, posts = bench.resume()
        assert result_of(outcome.to_dict()) == bench.result, at
        state = grammar.scan(whole[:at])
        if state.header is not None:
            assert warned_of_a_cut(outcome) is (state.offset < at), (at, outcome.notes["warnings"])
        assert not set(taken.answered) & set(posts), at
        effects = Counter((bench.folder / "effects.txt").read_text().splitlines())
        assert not [label for label in taken.done if effects[label] > 1], at


def test_the_outcome_warns_that_an_end_was_cut_off_and_does_not_where_none_was(lab, runner):
    bench = bench_of(lab, runner, SMALL)
    whole = bench.files["done/TASK-1.md"]
    ends = boundaries(whole)
    for at, is_torn in ((ends[3], False), (ends[3] + 5, True), (ends[3] - 5, True)):
        bench.put({"active/TASK-1.md": whole[:at]})
        outcome, _ = bench.resume()
        assert warned_of_a_cut(outcome) is is_torn, outcome.notes["warnings"]
        assert (
            recordings(bench.tasks)[1].resumptions[-1].cut_bytes
            == at - grammar.scan(whole[:at]).offset
        )


@pytest.mark.parametrize("block", [512, 4096])
@pytest.mark.parametrize("folder", ["active", "done"])
def test_with_its_last_block_zeroed_it_is_resumed(lab, runner, block, folder):
    bench = bench_of(lab, runner, BY_NAME["atomic with effects"])
    whole = bench.files["done/TASK-1.md"]
    begun, seen = header_end(whole), 0
    for end in boundaries(whole):
        start = (end - 1) // block * block
        data = whole[:start] + bytes(end - start)
        name = f"{folder}/TASK-1.md"
        bench.put({name: data})
        if start < begun:
            before = files_of(bench.tasks)
            outcome, posts = bench.resume()
            assert (
                isinstance(outcome.cause, TaskNotBegun)
                and not posts
                and files_of(bench.tasks) == before
            )
            continue
        seen += 1
        bench.check(data, name)
    assert seen


def test_with_zeros_after_its_last_record_it_is_resumed(lab, runner):
    bench = bench_of(lab, runner, SMALL)
    whole = bench.files["done/TASK-1.md"]
    for end in boundaries(whole)[:-1]:
        # As far as the next block of the disk, and further.
        for size in (-end % 512 + 1, -end % 512 + 100, 4096):
            data = whole[:end] + bytes(size)
            bench.put({"active/TASK-1.md": data})
            bench.check(data, "active/TASK-1.md")


# -- damaged -------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_refused_and_nothing_is_changed(lab, runner):
    bench = bench_of(lab, runner, SMALL)
    whole = bench.files["done/TASK-1.md"]
    end, last = boundaries(whole)[-4], boundaries(whole)[-5]
    state = grammar.scan(whole)
    hint = range(state.hint_offset, state.hint_offset + len(encoding.STATUS_HINTS["running"]))
    refused = 0
    for at in (n for n in range(0, last, 3) if n not in hint):
        data = bytearray(whole[:end])
        data[at] ^= 1 << (at % 8)
        bench.put({"active/TASK-1.md": bytes(data)})
        before = files_of(bench.tasks)
        outcome, posts = bench.resume()
        assert isinstance(outcome, TaskError), at
        assert not posts and files_of(bench.tasks) == before, at
        refused += isinstance(outcome.cause, CorruptRecord)
    assert refused > 500


def test_a_record_that_was_left_out_or_moved_is_refused(lab, runner):
    bench = bench_of(lab, runner, BY_NAME["sequential"])
    whole = bench.files["done/TASK-1.md"]
    ends = boundaries(whole)[:-1]
    pairs = list(zip([header_end(whole), *ends], ends, strict=False))[:-2]
    for start, end in pairs:
        if start == end:
            continue
        for data in (whole[:start] + whole[end:], whole[:end] + whole[start:]):
            bench.put({"active/TASK-1.md": data})
            before = files_of(bench.tasks)
            outcome, posts = bench.resume()
            assert isinstance(outcome.cause, CorruptRecord), (start, end)
            assert not posts and files_of(bench.tasks) == before


def test_one_damaged_file_of_a_subtask_stops_the_run_before_a_call(lab, runner):
    bench = bench_of(lab, runner, NESTED)
    parent = bench.files["done/TASK-1.md"]
    # The parent had not yet heard of its subtask's end.
    ends = boundaries(parent)
    at = next(
        end
        for end in ends
        if any(s.start.kind == "subtask" for s in grammar.scan(parent[:end]).steps)
    )
    child = bytearray(bench.files["done/TASK-2.md"])
    child[len(child) // 2] ^= 4
    bench.put({"active/TASK-1.md": parent[:at], "done/TASK-2.md": bytes(child)})
    outcome, posts = bench.resume()
    assert isinstance(outcome, TaskError) and "TASK-2" in outcome.message, outcome
    assert not posts
    assert (bench.tasks / "done" / "TASK-2.md").read_bytes() == bytes(child)


# -- after a loss of power -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, b"", bytes(700)], ids=["no file", "empty", "zeros"])
def test_a_subtask_that_never_began_is_run(lab, runner, content):
    bench = bench_of(lab, runner, NESTED)
    parent = bench.files["done/TASK-1.md"]
    at = next(
        end
        for end in boundaries(parent)
        if any(s.start.kind == "subtask" for s in grammar.scan(parent[:end]).steps)
    )
    files = {"active/TASK-1.md": parent[:at]}
    bench.put(files)
    for path in bench.tasks.glob("*/TASK-[23].md"):
        path.unlink()
    if content is not None:
        (bench.tasks / "active/TASK-2.md").write_bytes(content)
    taken = snapshot(bench.case, {1: grammar.decode(parent[:at])})
    outcome, posts = bench.resume()
    assert result_of(outcome.to_dict()) == bench.result
    assert not set(taken.answered) & set(posts)
    assert any("TASK-2 never began" in text for text in outcome.notes["warnings"])


def test_what_replaces_an_ended_subtask_whose_file_is_lost_is_named(lab, runner):
    bench = bench_of(lab, runner, NESTED)
    parent = bench.files["done/TASK-1.md"]
    _, ended = _link(parent, subtask=2)
    bench.put({"active/TASK-1.md": parent[:ended]})
    for path in bench.tasks.glob("*/TASK-[23].md"):
        path.unlink()
    outcome, _ = bench.resume()
    assert result_of(outcome.to_dict()) == bench.result
    files = files_of(bench.tasks)
    resumed = files.pop("done/TASK-1.md")
    (new,) = {step.subtask_id for step in grammar.scan(resumed).steps} - {None, 2}
    # Killed when the new subtask has ended and its parent has not recorded that.
    begun, _ = _link(resumed, subtask=new)
    bench.files = {}
    bench.put({**files, "active/TASK-1.md": resumed[:begun]})
    taken = snapshot(bench.case, bench.linked())
    outcome, posts = bench.resume()
    assert result_of(outcome.to_dict()) == bench.result
    assert len(taken.answered) > 2 and not set(taken.answered) & set(posts)


def _link(parent: bytes, subtask: int) -> tuple[int, int]:
    """Where the step that names a subtask begins to be in the file, and where its end does."""
    begun = 0
    for end in boundaries(parent):
        for step in grammar.scan(parent[:end]).steps:
            if step.subtask_id == subtask:
                begun = begun or end
                if step.end is not None:
                    return begun, end
    raise AssertionError(subtask)


def test_a_task_that_was_given_the_id_of_a_lost_subtask_is_not_taken_for_it(lab, runner):
    bench = bench_of(lab, runner, NESTED)
    parent = bench.files["done/TASK-1.md"]
    at = next(
        end
        for end in boundaries(parent)
        if any(s.start.kind == "subtask" for s in grammar.scan(parent[:end]).steps)
    )
    bench.put({"active/TASK-1.md": parent[:at]})
    for path in bench.tasks.glob("*/TASK-[23].md"):
        path.unlink()
    store = bench.evaluator.services.store
    with store.create("another root", created="2026-01-01T00:00:00.000Z") as other:
        other.flush()
    (bench.tasks / f"active/TASK-{other.id}.md").rename(bench.tasks / "active/TASK-2.md")
    stranger = (
        (bench.tasks / "active/TASK-2.md")
        .read_bytes()
        .replace(b"TASK-%d " % other.id, b"TASK-2 ", 1)
    )
    title = stranger[: stranger.index(b"\n") - len(b"00000000 -->")]
    stranger = title + b"%08x -->" % crc32(title) + stranger[stranger.index(b"\n") :]
    (bench.tasks / "active/TASK-2.md").write_bytes(stranger)
    outcome, _ = bench.resume()
    assert result_of(outcome.to_dict()) == bench.result
    assert (bench.tasks / "active/TASK-2.md").read_bytes() == stranger


@pytest.mark.parametrize("part", [0, 1])
def test_a_file_with_a_hole_is_refused_and_with_repair_resumed_from_the_records_before_it(
    lab, runner, part
):
    bench = bench_of(lab, runner, SMALL)
    whole = bench.files["done/TASK-1.md"]
    begun = header_end(whole)
    holes = [(at, size) for size in (512, 4096) for at in range(0, len(whole) - size, 512)]
    tried = 0
    for at, size in holes[part::2]:
        data = whole[:at] + bytes(size) + whole[at + size :]
        bench.put({"done/TASK-1.md": data})
        before = files_of(bench.tasks)
        outcome, posts = bench.resume()
        assert isinstance(outcome.cause, CorruptRecord), at
        assert not posts and files_of(bench.tasks) == before
        outcome, posts = bench.resume(repair=True)
        if at < begun:
            assert isinstance(outcome.cause, CorruptRecord) and not posts, at
            continue
        tried += 1
        read = grammar.scan(data, repair=True)
        assert read.offset <= at and whole.startswith(data[: read.offset])
        assert result_of(outcome.to_dict()) == bench.result
        answered = snapshot(bench.case, {1: read.recording()}).answered
        assert not set(answered) & set(posts)
        assert (bench.tasks / "done/TASK-1.md.torn-1").read_bytes() == data[read.offset :]
    assert tried


def test_repair_reads_the_damaged_file_of_a_subtask_too(lab, runner):
    bench = bench_of(lab, runner, NESTED)
    parent = bench.files["done/TASK-1.md"]
    at = next(
        end
        for end in boundaries(parent)
        if any(s.start.kind == "subtask" for s in grammar.scan(parent[:end]).steps)
    )
    child = bench.files["done/TASK-2.md"]
    middle = (header_end(child) + len(child)) // 2
    child = child[:middle] + bytes(64) + child[middle + 64 :]
    bench.put({"active/TASK-1.md": parent[:at], "done/TASK-2.md": child})
    outcome, posts = bench.resume()
    assert isinstance(outcome, TaskError) and not posts
    outcome, posts = bench.resume(repair=True)
    assert result_of(outcome.to_dict()) == bench.result
