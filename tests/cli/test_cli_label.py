"""`evaluator label` and `calibrate` at a terminal: blind, resumable at any instant, and readable by other programs."""

from __future__ import annotations

import csv
import json
import math
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_BZIP2, ZIP_LZMA, ZipFile

import pytest

from evaluator.batch import LabelVerdict, open_batch
from evaluator.batch.folder import BatchFolder
from evaluator.batch.labels import read_labels
from tests.batch.labelled import judged_batch, label_some, pair_batch, result_of

PEOPLE = ("--labeller", "ada")
# The method of an archive that Inspect AI may use. Python reads it from 3.14 on.
ZSTANDARD = 93
READS_ZSTANDARD = sys.version_info >= (3, 14)


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    return judged_batch(tmp_path / "b").folder


def verdicts(folder: Path) -> list[str]:
    return [label.verdict.value for label in read_labels(folder)]


def test_labels_are_given_with_keys_and_notes(cli: Any, batch: Path) -> None:
    ran = cli("label", "b", *PEOPLE, stdin=b"p\nf the year is wrong\n0.25\nx\n?\nq\n")
    assert ran.code == 0 and "'x' is neither a key nor a number" in ran.err
    assert verdicts(batch) == ["passed", "failed", "failed", "undecided"]
    labels = read_labels(batch)
    assert [label.note for label in labels] == ["", "the year is wrong", "", ""]
    assert labels[2].value == 0.25 and labels[0].scorer == "judge"
    assert len({label.key for label in labels}) == 4
    assert "quiz × small: 3 of 60 results labelled" in ran.out


def test_the_verdict_and_the_model_are_hidden_until_the_end(cli: Any, batch: Path) -> None:
    ran = cli("label", "b", *PEOPLE, "--limit", "4", stdin=b"p\n" * 4)
    shown, _, after = ran.out.rpartition("> ")
    assert shown.count("question:") == 4 and "Number" in shown
    for hidden in ("small", "some/model", "judge", "topic", "s0"):
        assert hidden not in shown, hidden
    assert "quiz × small" in after


def test_undo_shows_the_sample_again_and_works_over_sessions(cli: Any, batch: Path) -> None:
    cli("label", "b", *PEOPLE, "--limit", "2", stdin=b"p\np\n")
    cli("label", "b", *PEOPLE, stdin=b"u\nf\nq\n")
    labels = read_labels(batch)
    assert [label.verdict for label in labels[2:]] == [LabelVerdict.REMOVED, LabelVerdict.FAILED]
    assert labels[1].key == labels[2].key == labels[3].key
    ran = cli("label", "b", "--labeller", "bob", stdin=b"u\nq\n")
    assert "there is no label to undo" in ran.err and len(read_labels(batch)) == 4


def test_skip_shows_another_sample_and_stores_nothing(cli: Any, batch: Path) -> None:
    ran = cli("label", "b", *PEOPLE, stdin=b"s\ns\np\n")
    assert verdicts(batch) == ["passed"]
    numbers = [line for line in ran.out.splitlines() if "Number" in line]
    assert len(set(numbers)) == 4


def test_control_characters_of_an_answer_are_made_visible(cli: Any, batch: Path) -> None:
    with BatchFolder.open(batch) as folder:
        for place in range(60):
            folder.append(result_of(place, "\x1b[2Jgone", place % 2 == 0))
    ran = cli("label", "b", *PEOPLE, stdin=b"q\n")
    assert "\x1b[2J" not in ran.out and "\\x1b[2Jgone" in ran.out


def test_a_kill_at_any_moment_loses_no_label(start: Any, tmp_path: Path, batch: Path) -> None:
    import subprocess

    for expected in (1, 2, 3):
        process = start("label", "b", *PEOPLE, stdin=subprocess.PIPE)
        prompts = 0
        seen = b""
        while prompts < 2:
            byte = process.stdout.read(1)
            assert byte, process.stderr.read()
            seen += byte
            if seen.endswith(b"\n> "):
                prompts += 1
                if prompts == 1:
                    process.stdin.write(b"p\n")
                    process.stdin.flush()
        # The second sample is on the screen, so the first label is on the disk.
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert verdicts(batch) == ["passed"] * expected
    assert len({label.key for label in read_labels(batch)}) == 3


def test_the_answers_of_two_variants_are_compared(cli: Any, tmp_path: Path) -> None:
    pair_batch(tmp_path / "two", samples=8)
    sides = ("--variant", "small", "--variant", "large")
    ran = cli("label", "two", *PEOPLE, *sides, stdin=b"1\nx\n= both\nq\n")
    shown, _, after = ran.out.rpartition("> ")
    assert "first answer:" in shown and "small" not in shown and "large" not in shown
    assert "quiz × small and quiz × large: 2 of 4 pairs labelled" in after
    assert "'x' is none of the keys" in ran.err
    assert "2 of 4" in cli("calibrate", "two").out
    (found,) = json.loads(cli("calibrate", "two", "--json").out)["preferences"]
    assert (found["a"], found["ties"], found["labels"]) == (["quiz", "small"], 1, 2)
    assert cli("label", "two", *PEOPLE, "--variant", "small").code == 2


def test_calibrate_shows_the_numbers_as_text_markdown_and_json(cli: Any, batch: Path) -> None:
    ran = cli("calibrate", "b")
    assert ran.code == 2 and "evaluator label b --labeller NAME" in ran.err
    from evaluator.batch import open_batch

    label_some(open_batch(batch), 40)
    text = cli("calibrate", "b").out
    for part in ("Corrected by labels", "judge ↓ people →", "sensitivity", "Cohen's κ", "40 of 60"):
        assert part in text
    assert "| Cohen's κ |" in cli("calibrate", "b", "--markdown").out
    (found,) = json.loads(cli("calibrate", "b", "--json").out)["calibrations"]
    assert (found["template"], found["variant"], found["labels_for"]) == ("quiz", "small", "judge")
    assert found["labels"] == 40 and found["counts"]["labelled"] == 40
    ran = cli("summary", "b", "--threshold", "kappa(judge) >= 0.99")
    assert ran.code == 4 and "missed: kappa(judge) >= 0.99" in ran.out


@pytest.mark.parametrize("name", ["l.csv", "l.json", "l.jsonl", "l.eval"])
def test_labels_survive_an_export_and_an_import(
    cli: Any, tmp_path: Path, batch: Path, name: str
) -> None:
    keys = b"p =1+1 is a note\nf\n0.25\n? unclear\nq\n"
    cli("label", "b", *PEOPLE, stdin=keys)
    before = {label.key: label for label in read_labels(batch)}
    assert cli("label", "b", "--export", name).out == f"{name}: 4 labels\n"
    judged_batch(tmp_path / "other")
    assert cli("label", "other", "--import", name).out == f"{name}: 4 labels\n"
    after = {label.key: label for label in read_labels(tmp_path / "other")}
    for key, label in before.items():
        for field in ("verdict", "value", "note", "labeller", "shown", "scorer"):
            assert getattr(after[key], field) == getattr(label, field), field


@pytest.mark.parametrize("name", ["l.csv", "l.json", "l.eval"])
def test_comparisons_survive_an_export_and_an_import(cli: Any, tmp_path: Path, name: str) -> None:
    folder = pair_batch(tmp_path / "pairs").folder
    both = ("--labeller", "ada", "--variant", "small", "--variant", "large")
    cli("label", "pairs", *both, stdin=b"1 a note\n2\n1\n=\n?\nq\n")
    cli("label", "pairs", "--labeller", "bob", *both[2:], stdin=b"2\nq\n")
    before = read_labels(folder)
    assert len(before) == 6 and all(label.other for label in before)
    written = cli("label", "pairs", "--export", name).out
    logs = sorted((path.name for path in tmp_path.glob("l-*.eval")), reverse=True)
    assert written == f"{', '.join(logs or [name])}: 6 labels\n"
    files = logs[:1] or [name]
    copy = pair_batch(tmp_path / "copy").folder
    for file in files:
        assert cli("label", "copy", "--import", file).out == f"{file}: 6 labels\n"
    after = {(label.key, label.labeller): label for label in read_labels(copy)}
    for label in before:
        found = after[label.key, label.labeller]
        assert replace(found, at=label.at, seconds=label.seconds) == label
    shown = cli("calibrate", "copy").out
    assert shown == cli("calibrate", "pairs").out and "Preferences of people" in shown


def test_a_comparison_names_the_other_answer_by_its_variant(
    cli: Any, write: Any, tmp_path: Path
) -> None:
    """From either side, and in words of Label Studio; a wrong one is an error with its row."""
    folder = pair_batch(tmp_path / "pairs").folder
    head = "sample_id,variant,other_variant,verdict\n"
    write("l.csv", head + "s010,small,large,worse\ns011,large,small,better\ns012,large,small,tie\n")
    assert cli("label", "pairs", "--import", "l.csv", "--labeller", "ada").code == 0
    assert [label.verdict for label in read_labels(folder)] == ["worse", "worse", "tie"]
    assert "37.5" not in cli("calibrate", "pairs").out
    (found,) = json.loads(cli("calibrate", "pairs", "--json").out)["preferences"]
    assert (found["b_better"], found["ties"], found["labels"]) == (2, 1, 3)
    for row, message in (
        ("s010,small,large,passed", "the verdict is 'passed', expected one of"),
        ("s010,small,middle,better", "has no result"),
        ("s010,small,small,better", "compares a result with itself"),
    ):
        write("l.csv", f"{head}{row}\n")
        ran = cli("label", "pairs", "--import", "l.csv", "--labeller", "ada")
        assert ran.code == 2 and f"l.csv:2: {message}" in ran.err.replace("the batch ", ""), ran.err
    write(
        "l.json",
        json.dumps(
            [
                {
                    "data": {"sample_id": "s013", "variant": "small", "other_variant": "large"},
                    "annotations": [
                        {
                            "completed_by": "bob",
                            "result": [{"type": "pairwise", "value": {"selected": "right"}}],
                        }
                    ],
                }
            ]
        ),
    )
    assert cli("label", "pairs", "--import", "l.json").code == 0
    assert read_labels(folder)[-1].verdict == "worse"


def test_edits_of_scores_in_a_log_of_inspect_are_imported(
    cli: Any, tmp_path: Path, batch: Path
) -> None:
    """People who edit the judge's score in Inspect AI label the answer."""
    cli("export", "b", "-f", "inspect", "-o", "log.eval")
    edits = {"s001": "C", "s002": "I", "s003": 0.25, "s004": math.nan, "s005": "UNCHANGED"}
    with ZipFile(tmp_path / "log.eval") as log, ZipFile(tmp_path / "edited.eval", "w") as edited:
        for name in log.namelist():
            data = json.loads(log.read(name))
            if name.startswith("samples/") and data["id"] in edits:
                judge = data["scores"]["judge"]
                provenance = {"author": "ada", "timestamp": "2026-01-02T00:00:00Z", "reason": "why"}
                judge["history"] = [
                    {"value": judge["value"]},
                    {"value": edits[data["id"]], "provenance": provenance},
                ]
            edited.writestr(name, json.dumps(data))
    assert cli("label", "b", "--import", "edited.eval").out == "edited.eval: 4 labels\n"
    labels = read_labels(batch)
    assert verdicts(batch) == ["passed", "failed", "failed", "undecided"]
    assert {(each.labeller, each.note, each.scorer) for each in labels} == {("ada", "why", "judge")}
    assert labels[2].value == 0.25 and labels[0].at == "2026-01-02T00:00:00Z"
    assert cli("label", "b", "--import", "log.eval").out == "log.eval: 0 labels\n"
    judge = {"value": 1, "history": [{"value": "C", "provenance": provenance}]}
    sample = {"id": "s006", "epoch": 1, "scores": {"judge": judge}}
    (tmp_path / "log.json").write_text(json.dumps({"eval": {}, "samples": [sample]}, indent=1))
    assert cli("label", "b", "--import", "log.json").out == "log.json: 1 label\n"


def test_a_log_of_inspect_that_cannot_be_read_is_refused(
    cli: Any, tmp_path: Path, batch: Path
) -> None:
    (tmp_path / "bad.eval").write_text("no archive")
    ran = cli("label", "b", "--import", "bad.eval")
    assert ran.code == 2 and "is not a log of Inspect AI that can be read" in ran.err
    cli("export", "b", "-f", "inspect", "-o", "log.eval")
    packed = bytearray((tmp_path / "log.eval").read_bytes())
    # The data is not that of the method.
    header = packed.rindex(b"PK\x01\x02", 0, packed.rindex(b"header.json"))
    damaged = "is not a log of Inspect AI that can be read"
    for method, problem in (
        (ZIP_BZIP2, "cannot be read: Invalid data stream"),
        (ZIP_LZMA, damaged),
        (ZSTANDARD, damaged if READS_ZSTANDARD else "inspect log convert --to json"),
    ):
        for place in (8, header + 10):
            packed[place] = method
        (tmp_path / "other.eval").write_bytes(packed)
        ran = cli("label", "b", "--import", "other.eval")
        assert ran.code == 2 and problem in ran.err, ran.err
    with ZipFile(tmp_path / "flipped.eval", "w", ZIP_LZMA) as log:
        log.writestr("header.json", json.dumps({"eval": list(range(100))}))
    packed = bytearray((tmp_path / "flipped.eval").read_bytes())
    packed[60:70] = b"\xff" * 10
    (tmp_path / "flipped.eval").write_bytes(packed)
    ran = cli("label", "b", "--import", "flipped.eval")
    assert ran.code == 2 and damaged in ran.err, ran.err


@pytest.mark.skipif(not READS_ZSTANDARD, reason="Python reads Zstandard from 3.14 on")
def test_a_log_of_inspect_that_is_compressed_with_zstandard_is_imported(
    cli: Any, tmp_path: Path, batch: Path
) -> None:
    provenance = {"author": "ada", "timestamp": "2026-01-02T00:00:00Z"}
    judge = {"value": 1, "history": [{"value": "C", "provenance": provenance}]}
    sample = {"id": "s006", "epoch": 1, "scores": {"judge": judge}}
    with ZipFile(tmp_path / "zstd.eval", "w", ZSTANDARD) as log:
        log.writestr("header.json", json.dumps({"eval": {}}))
        log.writestr("samples/s006_epoch_1.json", json.dumps(sample))
    assert cli("label", "b", "--import", "zstd.eval").out == "zstd.eval: 1 label\n"


def test_a_spreadsheet_takes_no_cell_for_a_formula(cli: Any, tmp_path: Path, batch: Path) -> None:
    cli("label", "b", *PEOPLE, stdin=b"p =HYPERLINK(1)\nq\n")
    cli("label", "b", "--export", "l.csv")
    (row,) = csv.DictReader((tmp_path / "l.csv").read_text().splitlines())
    assert row["note"] == "'=HYPERLINK(1)"


def test_annotations_of_label_studio_are_imported(cli: Any, tmp_path: Path, batch: Path) -> None:
    def task(sample: str, *annotations: Any) -> dict[str, Any]:
        return {"id": 1, "data": {"sample_id": sample}, "annotations": list(annotations)}

    def choice(word: str, **more: Any) -> dict[str, Any]:
        return {
            "completed_by": {"id": 7, "email": "ada@example.com"},
            "lead_time": 4.5,
            "result": [{"type": "choices", "value": {"choices": [word]}}],
            **more,
        }

    cancelled = choice("failed", was_cancelled=True)
    tasks = [task("s001", choice("passed"), cancelled), task("s002", choice("failed"))]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    assert cli("label", "b", "--import", "tasks.json").code == 0
    labels = read_labels(batch)
    assert [(each.labeller, each.seconds) for each in labels] == [("ada@example.com", 4.5)] * 2
    assert verdicts(batch) == ["passed", "failed"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("sample_id,verdict\ns001,passed\n", "name the labeller with --labeller NAME"),
        (
            "sample_id,verdict,labeller\ns999,passed,ada\n",
            "l.csv:2: the batch has no result 's999'",
        ),
        ("sample_id,verdict,labeller\ns001,passed,a\ns002,maybe,a\n", "l.csv:3: 'maybe'"),
        ("sample_id,verdict\ns001\n", "l.csv:2"),
    ],
)
def test_an_import_is_whole_or_an_error_with_its_row(
    cli: Any, write: Any, batch: Path, rows: str, message: str
) -> None:
    write("l.csv", rows)
    ran = cli("label", "b", "--import", "l.csv")
    assert ran.code == 2 and message in ran.err, ran.err
    assert read_labels(batch) == []


def test_a_sample_with_several_results_has_to_be_named_exactly(
    cli: Any, write: Any, tmp_path: Path
) -> None:
    folder = judged_batch(tmp_path / "e", epochs=2).folder
    write("l.csv", "sample_id,verdict,labeller\ns001,passed,ada\n")
    ran = cli("label", "e", "--import", "l.csv")
    assert ran.code == 2 and "several results of the sample 's001'" in ran.err
    write("l.csv", "sample_id,epoch,verdict,labeller\ns001,2,passed,ada\n")
    assert cli("label", "e", "--import", "l.csv").code == 0
    assert len(read_labels(folder)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name the person with --labeller NAME"),
        (("--labeller", "ada", "--scorer", "judg"), "no scorer 'judg'; did you mean"),
        (("--export", "x.csv", "--labeller", "ada"), "give --export alone"),
        (("--export", "x.txt"), "end with .csv, .json, .jsonl or .eval"),
        (("--export", "b/labels.json"), ""),
    ],
)
def test_wrong_options_are_refused(
    cli: Any, batch: Path, arguments: tuple[str, ...], message: str
) -> None:
    ran = cli("label", "b", *arguments)
    assert ran.code == (2 if message else 0) and message in ran.err


def test_of_several_scorers_the_one_that_asks_a_model_is_checked(cli: Any, tmp_path: Path) -> None:
    scorers = {"exact": {"type": "exact"}, "judge": {"type": "graded"}}
    judged_batch(tmp_path / "one", scorers=scorers)
    cli("label", "one", *PEOPLE, stdin=b"p\nq\n")
    assert [label.scorer for label in read_labels(tmp_path / "one")] == ["judge"]
    judged_batch(tmp_path / "none", scorers=scorers, judges={})
    ran = cli("label", "none", *PEOPLE)
    assert ran.code == 2 and "name one with --scorer: `exact`, `judge`" in ran.err
    judged_batch(tmp_path / "no", scorers={}, judges={})
    assert "there is no verdict to check" in cli("label", "no", *PEOPLE).err


def test_options_of_a_search_need_improve(cli: Any, batch: Path) -> None:
    refused = cli("calibrate", "b", "--rounds", "2")
    assert refused.code == 2
    assert "--rounds is an option of a search; give --improve with it" in refused.err
    refused = cli("calibrate", "b", "--improve")
    assert refused.code == 2
    assert "define the judge again" in refused.err


@pytest.mark.parametrize(("verdict", "value"), [("passed", "0.2"), ("Failed", "1")])
def test_an_import_whose_verdict_and_value_differ_is_refused(
    cli: Any, batch: Path, tmp_path: Path, verdict: str, value: str
) -> None:
    key = next(iter(open_batch(batch).results())).key
    (tmp_path / "l.csv").write_text(f"key,verdict,value\n{key},{verdict},{value}\n")
    ran = cli("label", "b", "--import", "l.csv", "--labeller", "ada")
    assert ran.code == 2 and f"l.csv:2: the verdict is {verdict.lower()}, but the value" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--export", "l.csv", "--scorer", "judge"), "give --export alone"),
        (("--export", "l.csv", "--limit", "2"), "give --export alone"),
        (("--import", "l.csv", *PEOPLE, "--limit", "2"), "--import adds the whole file"),
    ],
)
def test_options_without_effect_on_files_of_labels_are_refused(
    cli: Any, batch: Path, words: tuple[str, ...], said: str
) -> None:
    ran = cli("label", batch.name, *words)
    assert ran.code == 2 and said in ran.err


@pytest.mark.parametrize("command", ["calibrate", "summary", "compare"])
def test_two_formats_are_refused(cli: Any, batch: Path, command: str) -> None:
    batches = [batch.name] * (2 if command == "compare" else 1)
    ran = cli(command, *batches, "--json", "--markdown")
    assert ran.code == 2 and "give one of them" in json.loads(ran.out)["error"]["message"]


def test_a_least_difference_that_is_no_number_is_refused_at_once(cli: Any, batch: Path) -> None:
    ran = cli("compare", batch.name, batch.name, "--min-difference", "nan")
    assert ran.code == 2 and ran.out == "" and "expected a finite number" in ran.err
