"""Labels are stored as results are: appended, with checksums, never lost and never silently used."""

from __future__ import annotations

import dataclasses
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import RecordError, UsageError
from evaluator.batch import CurrentLabels, Label, LabelVerdict, merge_shards, open_batch
from evaluator.batch.export.output_path import check_not_record
from evaluator.batch.folder import BatchFolder
from evaluator.batch.labels import append_labels, read_labels, repair_labels, shown_digest
from evaluator.errors import BatchDamaged
from evaluator.record.redact import Redactor
from tests.batch.labelled import CELL, judged_batch, label_of, label_some, result_of

LABEL = label_of(result_of(1, "right", True))
_text = st.text(max_size=20)
_labels = st.builds(
    Label,
    key=_text,
    identity=_text,
    shown=_text,
    scorer=_text,
    labeller=_text.map(lambda name: f"x{name}"),
    verdict=st.sampled_from(LabelVerdict),
    value=st.none() | st.floats(0, 1),
    grade=_text,
    note=_text,
    at=_text,
    seconds=st.floats(0, 1e6).map(lambda seconds: round(seconds, 3)),
)


@given(st.lists(_labels, max_size=5))
def test_what_is_read_is_what_was_written(tmp_path_factory: Any, labels: list[Label]) -> None:
    folder = tmp_path_factory.mktemp("labels")
    for label in labels:
        append_labels(folder, [label])
    assert read_labels(folder) == labels


def test_the_last_label_of_a_labeller_counts_and_a_removed_one_does_not(tmp_path: Path) -> None:
    second = dataclasses.replace(LABEL, verdict=LabelVerdict.FAILED)
    other = dataclasses.replace(LABEL, labeller="bob")
    append_labels(tmp_path, [LABEL, other, second])
    found = CurrentLabels(read_labels(tmp_path))
    assert found.of("judge")[LABEL.key] == {"bob": other, "ada": second}
    append_labels(tmp_path, [dataclasses.replace(LABEL, verdict=LabelVerdict.REMOVED)])
    found = CurrentLabels(read_labels(tmp_path))
    assert found.of("judge") == {LABEL.key: {"bob": other}}
    assert len(read_labels(tmp_path)) == 4


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_an_incomplete_line_is_skipped_and_then_removed(tmp_path: Path, cut: int) -> None:
    append_labels(tmp_path, [LABEL, LABEL])
    path = tmp_path / "labels.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert read_labels(tmp_path) == [LABEL]
    append_labels(tmp_path, [LABEL])
    assert path.read_bytes() == whole


def test_a_changed_line_is_an_error_until_it_is_repaired(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b")
    labels = label_some(batch, 3)
    path = batch.folder / "labels.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"passed", b"failed", 1) + lines[2])
    if lines[1] == path.read_bytes().splitlines(keepends=True)[1]:
        path.write_bytes(lines[0] + lines[1].replace(b"failed", b"passed", 1) + lines[2])
    with pytest.raises(BatchDamaged, match=r"labels.jsonl:2: the line was changed .* --repair"):
        batch.summarise()
    assert repair_labels(batch.folder) == 1
    assert read_labels(batch.folder) == [labels[0], labels[2]]
    assert (batch.folder / "damaged.jsonl").read_bytes().count(b"\n") == 1
    assert repair_labels(batch.folder) == 0


def test_resume_repairs_labels_and_keeps_the_others(run: Any) -> None:
    folder = run().folder
    (result, *_) = open_batch(folder).results()
    label = label_of(result, scorer="exact")
    append_labels(folder, [label, label])
    path = folder / "labels.jsonl"
    path.write_bytes(path.read_bytes().replace(b"ada", b"eve", 1))
    run(resume=True, repair=True)
    assert read_labels(folder) == [label]


def test_a_line_that_is_not_a_label_is_an_error_with_its_place(tmp_path: Path) -> None:
    from evaluator.batch.identity import seal_line

    (tmp_path / "labels.jsonl").write_bytes(seal_line('{"key":"a"}'))
    with pytest.raises(BatchDamaged, match=r"labels.jsonl:1: not a label"):
        read_labels(tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / "labels.jsonl").symlink_to(tmp_path / "elsewhere")
    for act in (lambda: append_labels(tmp_path, [LABEL]), lambda: read_labels(tmp_path)):
        with pytest.raises(RecordError, match="symbolic link"):
            act()
    assert (tmp_path / "elsewhere").read_bytes() == b""


def test_secrets_are_removed_from_notes(tmp_path: Path) -> None:
    secret = 'hunter2-"hunter2\\-hunter2'
    for number, shown in enumerate((secret, secret[::-1])):
        label = dataclasses.replace(LABEL, note=f"the key is {shown}")
        append_labels(tmp_path, [label], Redactor({"KEY": secret}))
        assert read_labels(tmp_path)[number].note == "the key is [redacted:KEY]"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"value": 1.5}, "expected one in"),
        ({"value": float("nan")}, "expected one in"),
        ({"labeller": " "}, "the name of a labeller"),
        ({"note": "n" * 10_001}, "a note has 10,001 characters"),
        ({"seconds": -1}, "the seconds"),
    ],
)
def test_impossible_labels_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(LABEL, **changed)


def _label_often(folder: Path, name: str) -> None:
    for _ in range(30):
        append_labels(folder, [dataclasses.replace(LABEL, labeller=name)])


def test_two_processes_label_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    people = [context.Process(target=_label_often, args=(tmp_path, name)) for name in ("a", "b")]
    for each in people:
        each.start()
    for each in people:
        each.join()
    assert sorted(label.labeller for label in read_labels(tmp_path)) == ["a"] * 30 + ["b"] * 30


def test_a_label_whose_text_has_changed_is_stale(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b")
    results = {result.key: result for result in batch.results()}
    label = label_some(batch, 40)[0]
    before = batch.summarise().groups[0].calibrations["judge"]
    assert (before.share.labels, before.stale) == (40, 0)
    with BatchFolder.open(batch.folder) as folder:
        folder.append(dataclasses.replace(results[label.key], content="another answer"))
    after = batch.summarise().groups[0].calibrations["judge"]
    assert (after.share.labels, after.stale) == (39, 1)
    assert "1 label is stale, as the text has changed; it does not count" in str(batch.summarise())


def test_another_verdict_of_the_judge_leaves_labels_valid(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b")
    result = next(iter(batch.results()))
    other = result_of(result.place, result.content, passed=not result.scores["judge"].passed)
    assert shown_digest(other) == shown_digest(result)


def test_merged_shards_have_the_labels_of_all(run: Any, tmp_path: Path) -> None:
    folders = [tmp_path / f"shard-{number}" for number in (1, 2)]
    for number, folder in enumerate(folders, 1):
        run(select={"shard": f"{number}/2"}, output=folder)
        results = list(open_batch(folder).results())
        append_labels(folder, [label_of(each, scorer="exact") for each in results])
    merged = merge_shards(folders, tmp_path / "merged")
    found = read_labels(merged.folder)
    assert len(found) == 10
    assert {label.key for label in found} == {result.key for result in merged.results()}
    own = merged.summarise().groups[0].calibrations["exact"]
    assert (own.share.labels, own.stale) == (10, 0)


def test_an_export_does_not_replace_labels(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b", schema="evaluator-batch/1")
    with pytest.raises(UsageError, match="belongs to the record"):
        check_not_record(batch.folder / "labels.jsonl")
    check_not_record(batch.folder / "mine.csv")
    assert batch.cells == [CELL]
