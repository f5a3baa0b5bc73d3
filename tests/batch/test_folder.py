"""A batch's folder gives back what was written into it, whenever the writer was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import RecordError, TaskBusy, Usage, disk
from evaluator.batch import Failure, SampleResult, Score, Verdict
from evaluator.batch.folder import BatchFolder
from evaluator.batch.identity import encode_results
from evaluator.batch.records import nested_of, scalars_of
from evaluator.errors import BatchDamaged, RecordNotWritten
from evaluator.record.redact import Redactor
from tests.tables import each_case

RESULT = SampleResult(
    identity="0" * 32,
    sample_id="a",
    place=0,
    epoch=1,
    template="t",
    variant="m",
    verdict=Verdict.PASSED,
    inputs={"question": "Why?"},
    target="Because",
    content="Because",
    scores={"exact": Score(1.0, True, "Because")},
    usage=Usage(10, 2, 0, 0, None, 1),
    duration_s=0.25,
    started="2026-01-02T03:04:05.678Z",
    task_id=7,
    task_file="tasks/done/TASK-7.md",
    parts={"inputs": "1"},
    scored_by="ab",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "batch"


def made(path: Path) -> BatchFolder:
    folder = BatchFolder.create(path)
    folder.write_manifest({"schema": "1"})
    return folder


TEXTS = st.text(st.characters(codec=None), max_size=20)
RESULTS = st.builds(
    lambda sample_id, content, verdict, score, failure: replace(
        RESULT,
        sample_id=sample_id,
        content=content,
        verdict=verdict,
        scores={content: score},
        failure=failure,
    ),
    TEXTS,
    TEXTS,
    st.sampled_from(Verdict),
    st.builds(
        Score,
        st.none() | st.floats(0, 1),
        st.none() | st.booleans(),
        st.none() | TEXTS,
        TEXTS,
        st.none() | TEXTS,
    ),
    st.none() | st.builds(Failure, TEXTS, TEXTS, TEXTS, st.booleans()),
)


@settings(deadline=None, max_examples=60)
@given(RESULTS)
def test_a_result_is_read_as_it_was_written(result: SampleResult) -> None:
    def known(score: Score) -> Score:
        return replace(score, answer=score.answer or None, error=score.error or None)

    expected = replace(result, scores={name: known(score) for name, score in result.scores.items()})
    assert SampleResult.from_dict(json.loads(json.dumps(result.to_dict()))) == expected


def test_of_several_results_with_one_key_the_last_counts_and_the_index_points_at_it(
    path: Path,
) -> None:
    with made(path) as folder:
        folder.append(
            replace(RESULT, verdict=Verdict.ERROR, failure=Failure("TASK_FAILURE", "k", "m", True))
        )
        folder.append(replace(RESULT, sample_id="b"))
        folder.append(RESULT)
        index = folder.index()
        assert [result.sample_id for result in folder.results()] == ["b", "a"]
        entry = index[RESULT.key]
        assert (entry.verdict, entry.retryable, entry.identity, entry.scored_by) == (
            Verdict.PASSED,
            False,
            b"0" * 32,
            b"ab",
        )
        assert folder.read_at(entry.offset) == RESULT


def test_cut_anywhere_in_its_last_line_a_file_reads_as_what_was_whole(path: Path) -> None:
    with made(path) as folder:
        folder.append(RESULT)
        folder.append(replace(RESULT, sample_id="b"))
    whole = (path / "results.jsonl").read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(first, len(whole)):
        (path / "results.jsonl").write_bytes(whole[:size])
        assert [result.sample_id for result in BatchFolder.reader(path).results()] == ["a"]
        with BatchFolder.open(path) as folder:
            assert folder.torn_bytes == size - first
            folder.append(replace(RESULT, sample_id="c"))
            assert [result.sample_id for result in folder.results()] == ["a", "c"]


@pytest.mark.parametrize(
    "change",
    [lambda line: line.replace(b'"key":"', b'"key":"x'), lambda line: b"{}\n", lambda line: b"\n"],
)
def test_a_line_that_somebody_changed_is_named_with_its_number(path: Path, change) -> None:
    with made(path) as folder:
        folder.append(replace(RESULT, sample_id="b"))
        folder.append(RESULT)
    lines = (path / "results.jsonl").read_bytes().splitlines(keepends=True)
    (path / "results.jsonl").write_bytes(change(lines[0]) + lines[1])
    with (
        BatchFolder.open(path) as folder,
        pytest.raises(RecordError, match=r"results\.jsonl:1: .*was changed"),
    ):
        folder.index()


def test_numbers_that_json_has_no_word_for_are_kept_as_texts(path: Path) -> None:
    with made(path) as folder:
        folder.append(replace(RESULT, parsed={"a": [float("nan"), float("-inf")]}))
        assert next(folder.results()).parsed == {"a": ["nan", "-inf"]}


def test_a_secret_is_not_written(path: Path) -> None:
    with made(path) as folder:
        folder.append(
            replace(RESULT, content="it is hunter2-hunter2"),
            scrub=Redactor({"DB_PASSWORD": "hunter2-hunter2"}),
        )
        assert next(folder.results()).content == "it is [redacted:DB_PASSWORD]"


SECRET = "hunter2-hunter2"
FAILURE = Failure("TASK_FAILURE", "unexpected_error", message=SECRET)
WITH_SECRETS: tuple[dict[str, Any], ...] = (
    {"identity": SECRET},
    {"sample_id": SECRET},
    {"template": SECRET},
    {"variant": SECRET},
    {"inputs": {"question": ["Why?", {"more": SECRET}]}},
    {"inputs": {SECRET: 1.5}},
    {"target": SECRET},
    {"metadata": {"a": {}, "b": {SECRET: None}}},
    {"metadata": {"a": 1e-7, "b": f"a 1e-7 is written by another encoder, and {SECRET} too"}},
    {"metadata": {"a": 2**70, "b": [{"c": SECRET}]}},
    {"model": SECRET},
    {"content": SECRET},
    {"content": json.dumps({"password": SECRET})},
    {"parsed": [[], [{"a": [SECRET]}]]},
    {"parsed": [float("nan"), SECRET]},
    {"scores": {SECRET: Score(1.0, True)}},
    {"scores": {"exact": Score(1.0, True, answer=SECRET)}},
    {"scores": {"exact": Score(0.5, None, metadata={"votes": {SECRET: 1}})}},
    {"scores": {"exact": Score(None, None, error=SECRET)}},
    {"failure": FAILURE},
    {"started": SECRET},
    {"task_file": SECRET},
    {"warnings": ("first", SECRET)},
    {"parts": {"inputs": SECRET}},
    {"scored_by": SECRET},
)


@each_case("fields", WITH_SECRETS)
def test_a_secret_in_any_member_of_a_result_is_not_in_its_line(fields: dict[str, Any]) -> None:
    redactor = Redactor({"DB_PASSWORD": SECRET})
    before = replace(RESULT, sample_id="before")
    for results in ([replace(RESULT, **fields)], [before, replace(RESULT, **fields), before]):
        lines, _ = encode_results(results, redactor)
        for result, line in zip(results, lines, strict=True):
            assert SECRET.encode() not in line
            assert (b"[redacted:DB_PASSWORD]" in line) == (result is not before)


def test_a_secret_that_only_its_text_shows_is_not_in_a_line() -> None:
    secret = 'hunter2-"hunter2\\'
    redactor = Redactor({"DB_PASSWORD": secret})
    # In JSON the escapes of a reversed text are not those of the secret.
    results = [replace(RESULT, content="nothing"), replace(RESULT, content=secret[::-1])]
    lines, _ = encode_results(results, redactor)
    assert [json.loads(line)["content"] for line in lines] == ["nothing", "[redacted:DB_PASSWORD]"]


def test_every_member_of_a_result_is_searched_for_secrets() -> None:
    members: dict[str, Any] = {name: [name] for name in RESULT.to_dict()}
    searched = [*scalars_of(members), *nested_of(members)]
    assert sorted(name for (name,) in searched) == sorted(members)


def test_a_second_process_is_told_that_the_batch_is_taken(path: Path) -> None:
    code = f"import evaluator.batch.folder as f, sys; f.BatchFolder.open({str(path)!r})"
    with made(path):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert "TaskBusy" in done.stderr and "another process works on this batch" in done.stderr
        with pytest.raises(TaskBusy):
            BatchFolder.open(path)
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_full_disk_leaves_the_results_as_they_were(path: Path) -> None:
    code = f"""
import resource, signal
from tests.batch.test_folder import RESULT, made, replace, Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = made(Path({str(path)!r}))
folder.append(RESULT)
resource.setrlimit(resource.RLIMIT_FSIZE, (folder._end + 100, folder._end + 100))
try:
    folder.append(replace(RESULT, sample_id="b"))
except Exception as error:
    print(type(error).__name__, error)
print([result.sample_id for result in folder.results()])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "RecordNotWritten" in done.stdout and "File too large" in done.stdout
    assert done.stdout.endswith("['a']\n")
    assert (path / "results.jsonl").read_bytes().endswith(b"}\n")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda path: made(path).close(), "there is a batch already"),
        (lambda path: (path.mkdir(), (path / "notes.txt").write_text("x")), "holds other files"),
        (lambda path: path.symlink_to(path.parent), "is a link"),
        (lambda path: path.write_text("x"), "Not a directory"),
    ],
)
def test_a_folder_that_is_no_place_for_a_new_batch_is_refused(
    path: Path, prepare, said: str
) -> None:
    prepare(path)
    with pytest.raises(RecordError, match=said):
        BatchFolder.create(path)


def test_a_folder_that_was_only_begun_is_begun_again(path: Path) -> None:
    BatchFolder.create(path).close()
    with made(path) as folder:
        folder.append(RESULT)
        assert len(folder.index()) == 1


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_what_is_no_batch_is_not_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    for opened in (BatchFolder.open, BatchFolder.reader):
        with pytest.raises(RecordError, match=r"no such folder|not a batch"):
            opened(tmp_path / name)


def test_files_are_for_their_owner_alone(path: Path) -> None:
    with made(path) as folder:
        folder.write_summary({})
    assert {name: os.stat(path / name).st_mode & 0o777 for name in os.listdir(path)} == {
        "manifest.json": 0o600,
        "results.jsonl": 0o600,
        "summary.json": 0o600,
    }


def test_json_files_are_utf8_where_a_text_holds_a_lone_surrogate(path: Path) -> None:
    with made(path) as folder:
        folder.write_summary({"groups": {"\udc80 é": 1}})
        folder.write_changed(["\ud800 é"])
    for name in ("summary.json", "changed.txt"):
        (path / name).read_bytes().decode("utf-8")  # strict: raises for anything else
    assert json.loads((path / "summary.json").read_bytes()) == {"groups": {"\udc80 é": 1}}


def test_a_line_that_somebody_else_added_is_found_before_the_next_one(path: Path) -> None:
    with made(path) as folder:
        folder.append(RESULT)
        with (path / "results.jsonl").open("ab") as file:
            file.write(b"{}\n")
        with pytest.raises(BatchDamaged, match="was changed while the batch ran"):
            folder.append(RESULT)


def test_repaired_results_are_locked_as_those_before(path: Path) -> None:
    with made(path) as folder:
        folder.append(RESULT)
    with (path / "results.jsonl").open("ab") as file:
        file.write(b"damaged\n")
    with BatchFolder.open(path, repair=True) as folder:
        assert folder.damaged_lines == 1
        with pytest.raises(TaskBusy):
            BatchFolder.open(path)
    BatchFolder.open(path).close()


def test_an_old_list_of_changes_that_cannot_be_removed_is_an_error_of_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with BatchFolder.create(tmp_path / "b") as folder:
        folder.write_changed(["one"])
        monkeypatch.setattr(disk, "unlink", fail)
        with pytest.raises(RecordNotWritten, match="cannot be removed: Input/output error"):
            folder.write_changed([])
        monkeypatch.undo()
        folder.write_changed([])
        assert not (tmp_path / "b" / "changed.txt").exists()


def test_several_results_are_one_write_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-live-0123456789abcdef"
    redactor = Redactor.from_environment({"API_KEY": secret})
    given = [replace(RESULT, sample_id=str(n)) for n in range(3)]
    given.append(replace(RESULT, sample_id="secret", content=secret, parsed=float("nan")))
    writes: list[bytes] = []
    real = disk.write

    def write(fd: int, data: bytes) -> int:
        writes.append(data)
        return real(fd, data)

    monkeypatch.setattr(disk, "write", write)
    with BatchFolder.create(tmp_path / "b") as folder:
        folder.append(*given, scrub=redactor)
        folder.write_manifest({})
    assert len([data for data in writes if b'"sample_id"' in data]) == 1
    stored = list(BatchFolder.reader(tmp_path / "b").results())
    assert stored[:3] == given[:3]
    assert (stored[3].content, stored[3].parsed) == ("[redacted:API_KEY]", "nan")


def test_the_name_of_the_results_is_on_the_disk_before_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[list[str]] = []
    sync_folder = disk.sync_folder

    def sync(folder: Path, dir_fd: int | None = None) -> None:
        if Path(folder) == tmp_path / "b":
            synced.append(sorted(os.listdir(folder)))
        sync_folder(folder, dir_fd)

    monkeypatch.setattr(disk, "sync_folder", sync)
    with BatchFolder.create(tmp_path / "b"):
        assert ["results.jsonl"] in synced
