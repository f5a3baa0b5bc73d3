"""Batches in the viewer: the list, progress, samples filtered and sorted on the server, and one sample."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from evaluator import TaskStore
from evaluator.batch import Score, open_batch, run_batch_sync
from evaluator.batch.folder import BatchFolder
from evaluator.batch.wave_log import WaveLog
from evaluator.cli import main
from evaluator.record.steps import StepEnd, StepStart, Summary
from tests.batch.export.results import EACH, ERROR, FAILED, HOSTILE, PASSED, hostile, result
from tests.viewer.batches import ONE, append, numbered, write_batch
from tests.viewer.site import Answer, Site, assert_harmless, page, visit


def batch_link(root: Path, place: int = 0) -> str:
    return page(root, "/batches").data["entries"][place]["href"]


def sample_ids(answer: Answer) -> list[str]:
    return [row["title"] for row in answer.data["matrix"]["rows"]]


def sample_links(answer: Answer) -> list[str]:
    rows = answer.data["matrix"]["rows"]
    return [each["href"] for row in rows for cell in row["results"].values() for each in cell]


def test_a_folder_without_batches_says_how_they_get_there(tmp_path: Path) -> None:
    assert page(tmp_path, "/batches").data["entries"] == []


def test_a_batch_shows_n_of_n_and_the_numbers_of_its_summary(tmp_path: Path) -> None:
    write_batch(tmp_path / "batches" / "metals", EACH, total=7)
    path = tmp_path / "batches" / "metals"
    data = page(tmp_path, batch_link(tmp_path)).data
    progress = data["progress"]
    assert (progress["results"], progress["total"]) == (5, 7)
    assert progress["counts"] == {"passed": 1, "failed": 1, "error": 2, "unscored": 1}
    (batch,) = data["numbers"]["data"]["batches"]
    summary = open_batch(path).summarise().to_dict()
    assert batch["summary"] == json.loads(json.dumps(summary))
    (durations, *_) = data["numbers"]["data"]["distributions"]
    assert [(group["n"], group["of"]) for group in durations["groups"]] == [(3, 5)], (
        "errors are in no bin"
    )
    assert data["live_ms"] == 0


def test_a_total_that_is_unknown_is_shown_as_unknown(tmp_path: Path) -> None:
    write_batch(tmp_path / "b", EACH)
    progress = page(tmp_path, batch_link(tmp_path)).data["progress"]
    assert (progress["results"], progress["total"]) == (5, None)


ALL = ["lead", "tin", "iron", "zinc", "gold"]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["lead", "tin", "iron", "zinc", "gold"]),
        ("chip=error", ["iron", "zinc"]),
        ("chip=passed&text=IT%20IS", ["lead"]),
        ("text=503%20from", ["iron"]),
        ("text=division", ["zinc"]),
        ("text=verdict", []),
        ("text=crc32", []),
        ("sort=written&order=down", ["gold", "zinc", "iron", "tin", "lead"]),
        ("sort=score.includes&order=down", ["lead", "tin", "iron", "zinc", "gold"]),
        ("sort=score.includes", ["tin", "lead", "iron", "zinc", "gold"]),
        ("sort=cost", ["lead", "tin", "zinc", "gold", "iron"]),
        ("sort=verdict", ["iron", "zinc", "tin", "gold", "lead"]),
        ("sort=target", ["lead", "tin", "iron", "zinc", "gold"]),
        ("where=target%3Dlead", ["lead", "tin", "iron", "zinc"]),
        ("where=meta.group%3Dother", []),
        ("between=score.includes%3D0.5:1", ["lead"]),
        ("group=target", ["gold", "lead", "tin", "iron", "zinc"]),
        ("sort=nonsense&chip=nonsense&cell=7&page=x", ["lead", "tin", "iron", "zinc", "gold"]),
        ("where=nonsense%3D1&between=nonsense%3Dx&group=nonsense", ALL),
    ],
)
def test_samples_are_filtered_and_sorted_and_unknown_values_come_last(
    tmp_path: Path, query: str, ids: list[str]
) -> None:
    write_batch(tmp_path / "b", EACH)
    answer = page(tmp_path, f"{batch_link(tmp_path)}?{query}")
    assert sample_ids(answer) == ids
    matrix = answer.data["matrix"]
    assert (matrix["count"], matrix["total"]) == (len(ids), 5)


@pytest.mark.parametrize("text", ["Zürich", "ZÜRICH", 'say "hi"', "back\\slash", "日本"])
def test_text_that_json_escapes_is_found(tmp_path: Path, text: str) -> None:
    written = {"Zürich": "zürich", "ZÜRICH": "zürich"}.get(text, text)
    write_batch(
        tmp_path / "b", [result("one", content=f"x {written} y"), result("other", content="x")]
    )

    link = batch_link(tmp_path)
    assert sample_ids(page(tmp_path, f"{link}?{urlencode({'text': text})}")) == ["one"]


def test_pages_of_samples_follow_each_other(tmp_path: Path) -> None:
    write_batch(tmp_path / "b", numbered(120))
    link = batch_link(tmp_path)
    seen = [
        sample_ids(page(tmp_path, f"{link}?sort=duration&order=down&page={number}"))
        for number in (1, 2, 3, 4)
    ]
    assert seen[0] + seen[1] + seen[2] == [f"s{n}" for n in range(119, -1, -1)]
    assert seen[3] == seen[2], "the last page"


def test_results_of_other_cells_and_of_rows_that_are_left_out_are_not_shown(tmp_path: Path) -> None:
    other = replace(PASSED, sample_id="other", variant="large")
    out = result("out")
    write_batch(tmp_path / "b", [PASSED, other, out], left_out=[out.key])
    assert sample_ids(page(tmp_path, batch_link(tmp_path))) == ["lead"]


def test_a_later_result_replaces_the_earlier_one(tmp_path: Path) -> None:
    write_batch(
        tmp_path / "b",
        [replace(ERROR, sample_id="x"), FAILED, result("x", content="Now it worked.")],
    )
    answer = page(tmp_path, batch_link(tmp_path))
    assert sample_ids(answer) == ["x", "tin"]
    assert "Now it worked." in answer.shown
    assert answer.data["progress"]["results"] == 2


def test_a_running_batch_grows_on_the_page(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b", numbered(2), state="running", total=4)
    link = batch_link(tmp_path)

    async def steps(site: Site) -> None:
        before = await site.get(link)
        progress = before.data["progress"]
        assert (progress["results"], progress["total"], before.data["live_ms"]) == (2, 4, 2_000)
        assert progress["unfinished"] == "the last session is running, or was killed"
        assert progress["resume"] == "evaluator batch --resume b"
        append(path, result("s3"), result("s1", content="again"))
        after = await site.get(link)
        assert after.data["progress"]["results"] == 3
        assert sample_ids(after) == ["s0", "s1", "s3"]

    visit(tmp_path, steps)


def test_a_half_written_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b", [PASSED, FAILED]) / "results.jsonl"
    whole, link = path.read_bytes(), batch_link(tmp_path)

    async def steps(site: Site) -> None:
        path.write_bytes(whole[:-10])
        assert sample_ids(await site.get(link)) == ["lead"]
        path.write_bytes(whole)
        assert sample_ids(await site.get(link)) == ["lead", "tin"]

    visit(tmp_path, steps)


def test_a_damaged_line_is_reported_and_the_results_before_it_are_shown(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b", [PASSED, FAILED]) / "results.jsonl"
    path.write_bytes(path.read_bytes().replace(b"It is zinc.", b"It is tin!!"))
    answer = page(tmp_path, batch_link(tmp_path))
    assert sample_ids(answer) == ["lead"]
    for problem in (answer.data["progress"]["problem"], answer.data["numbers"]["error"]):
        assert "was changed after it was written" in problem


@pytest.mark.parametrize("manifest", [b"", b"{}", b"[1]", b'{"name": "an app"}', b"\xff\xfe"])
def test_a_damaged_or_foreign_manifest_is_listed_with_the_reason(
    tmp_path: Path, manifest: bytes
) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / "results.jsonl").touch()
    (folder / "manifest.json").write_bytes(manifest)
    write_batch(tmp_path / "good", [PASSED])
    good, bad = page(tmp_path, "/batches").data["entries"]
    assert (good["name"], good["problem"]) == ("good", "")
    assert bad["name"] == "b" and "manifest.json: " in bad["problem"]


def test_a_batch_that_was_removed_is_a_page_that_says_so(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b", [PASSED])
    link = batch_link(tmp_path)
    for each in path.iterdir():
        each.unlink()
    answer = page(tmp_path, link)
    assert (answer.status, "there is no such batch now" in answer.text) == (404, True)


def test_a_sample_shows_its_scores_and_the_transcripts_of_its_task_and_judges(
    tmp_path: Path,
) -> None:
    judged = {"judge": Score(1.0, True, "yes", "It is right.", metadata={"task_ids": [2, "x"]})}
    write_batch(
        tmp_path / "b", [result("lead", task_id=1, scores=judged), result("gone", task_id=9)]
    )
    store = TaskStore(tmp_path / "b" / "tasks")
    for question, answer in (
        ("Which metal?", "Lead <b>it</b> is."),
        ("Is it right?", "Yes, right."),
    ):
        journal = store.create("r")
        args = {"messages": [{"role": "user", "content": question}]}
        journal.note(
            StepStart("turn[1]", "model", "m", args), StepEnd("success", {"content": answer}, 0.1)
        )
        journal.close(Summary("completed", 1, 0, 0.1))
    lead, gone = sample_links(page(tmp_path, batch_link(tmp_path)))
    answer = page(tmp_path, lead)
    task, judge = answer.data["transcripts"]
    (talk,) = task["conversations"]
    assert [each["content"] for each in talk["messages"]] == [
        "Which metal?",
        "Lead <b>it</b> is.",
    ]
    assert [(each["path"], each["attempt"]) for each in task["calls"]] == [("turn[1]", 1)]
    assert judge["title"] == "Judge of judge" and "Is it right?" in str(judge)
    assert "It is right." in answer.shown
    assert "there is no task 9" in page(tmp_path, gone).shown
    assert "Which metal?" in page(tmp_path, f"{answer.data['run']}{task['task']}").shown


def test_samples_lead_to_each_other_in_the_order_of_the_list(tmp_path: Path) -> None:
    write_batch(tmp_path / "b", numbered(3))
    listed = page(tmp_path, f"{batch_link(tmp_path)}?sort=duration&order=down")
    first, middle, last = sample_links(listed)

    def neighbours(link: str) -> tuple[str, str]:
        data = page(tmp_path, link).data
        return data["previous"], data["next"]

    assert neighbours(first) == ("", middle)
    assert neighbours(middle) == (first, last)
    assert neighbours(last) == (middle, "")


@pytest.mark.parametrize("key", ["0000000000000000", "x", "../../etc/passwd", "zzzzzzzzzzzzzzzz"])
def test_an_unknown_sample_is_a_page_that_says_so(tmp_path: Path, key: str) -> None:
    write_batch(tmp_path / "b", [PASSED])
    assert page(tmp_path, batch_link(tmp_path).replace("batch", "sample") + f"/{key}").status == 404


@pytest.mark.parametrize("place", range(len(HOSTILE)))
def test_hostile_text_in_every_field_stays_text(tmp_path: Path, place: int) -> None:
    text = HOSTILE[place]
    results = [each for each in hostile() if each.sample_id == text]
    cells = [{"template": text, "variant": text}] * 2
    write_batch(
        tmp_path / "b", results, name=text, cells=cells, epochs=5, cluster=text, group_by=text
    )
    listed = page(tmp_path, "/batches")
    batch = page(tmp_path, batch_link(tmp_path))
    assert_harmless(listed.text)
    assert_harmless(batch.text)
    assert len(sample_links(batch)) == 5
    for link in sample_links(batch):
        assert_harmless(page(tmp_path, link).text)


def progress(path: Path, **values: Any) -> None:
    BatchFolder.reader(path).write_progress(
        {"at": time.time(), "stop": "", "limits": {}, "endpoints": []} | values
    )


ENDPOINT = {
    "name": "m",
    "host": "h.example",
    "in_flight": 3,
    "limit": 4,
    "waiting": 0,
    "held_s": 0.0,
}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"held_s": 11.2, "waiting": 9}, "the provider asked for a pause: 12 s left"),
        ({"in_flight": 4, "waiting": 9}, "as many calls as permitted are in flight"),
        ({"waiting": 9}, "the rate limit"),
    ],
)
def test_a_running_batch_says_what_is_held_and_why(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    path = write_batch(tmp_path / "b", EACH, state="running")
    progress(path, endpoints=[ENDPOINT | changes])
    progress_data = page(tmp_path, batch_link(tmp_path)).data["progress"]
    (endpoint,) = progress_data["session"]["endpoints"]
    assert endpoint["why"] == why
    assert endpoint["waiting"] == (ENDPOINT | changes)["waiting"]
    assert progress_data["resume"] == "", "it runs"


def test_a_running_batch_shows_what_its_limits_leave(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b", EACH, state="running")
    usage = {"cost_usd": 1.5, "input_tokens": None, "output_tokens": 7}
    progress(
        path,
        elapsed_s=61,
        usage=usage,
        limits={"max_cost": 2, "max_tokens": 100, "max_time": 600},
        stop="no money",
    )
    session = page(tmp_path, batch_link(tmp_path)).data["progress"]["session"]
    assert session["budget"] == [
        "$1.5000 of $2.0000",
        "an unknown part of 100 tokens",
        "61 s of 600 s",
    ]
    assert session["stop"] == "no money"


@pytest.mark.parametrize(
    "values",
    [
        {"at": 0},
        {"at": "now"},
        {"at": None},
        {"endpoints": 7},
        {"endpoints": [7]},
        {"limits": []},
        {
            "endpoints": [
                {
                    "name": "<img src=x onerror=alert(1)>",
                    "in_flight": 1e400,
                    "limit": "x",
                    "held_s": [],
                    "waiting": True,
                }
            ]
        },
        {"usage": 3, "limits": {"max_cost": "<b>", "max_tokens": 10**40}},
    ],
)
def test_an_old_or_hostile_progress_is_left_out(tmp_path: Path, values: dict[str, Any]) -> None:
    path = write_batch(tmp_path / "b", EACH, state="running")
    (path / "progress.json").write_text(json.dumps({"at": time.time()} | values), encoding="utf-8")
    answer = page(tmp_path, batch_link(tmp_path))
    assert answer.status == 200
    assert_harmless(answer.text)


def test_a_row_without_an_id_is_shown_by_its_number_and_first_words(tmp_path: Path) -> None:
    computed = "0123456789abcdef"
    write_batch(tmp_path / "b", [result(computed, place=2)])
    answer = page(tmp_path, batch_link(tmp_path))
    title = "row 3: Which element has the symbol Pb?"
    assert sample_ids(answer) == [title]
    (link,) = sample_links(answer)
    sample = page(tmp_path, link).data
    assert sample["title"] == title
    assert sample["result"]["id"] == computed


TWO = [{"template": "answer", "variant": name} for name in ("small", "large")]
WRONG = {"scores": {"s": Score(0.0, False, explanation="it is wrong")}}
RIGHT = {"scores": {"s": Score(1.0, True)}}


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["both", "lost", "gained", "fails", "broken"]),
        ("chip=mixed", ["lost", "gained", "broken"]),
        ("chip=flipped", ["lost", "gained"]),
        ("chip=failed", ["lost", "gained", "fails"]),
        ("chip=failed&cell=1", ["lost", "fails"]),
        ("chip=flipped&cell=1", []),
        ("chip=warned", ["both"]),
        ("sort=verdict", ["broken", "lost", "gained", "fails", "both"]),
        ("sort=score.s&order=down", ["both", "broken", "lost", "gained", "fails"]),
    ],
)
def test_rows_are_chosen_by_what_their_columns_have_in_common(
    tmp_path: Path, query: str, ids: list[str]
) -> None:
    answers: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "both": (RIGHT | {"warnings": ("a comma was left out",)}, RIGHT),
        "lost": (RIGHT, WRONG),
        "gained": (WRONG, RIGHT),
        "fails": (WRONG, WRONG),
        "broken": (RIGHT, {"scores": {}, "failure": ERROR.failure}),
    }
    rows = [
        result(key, place=place, variant=variant, **side)
        for place, (key, sides) in enumerate(answers.items())
        for variant, side in zip(("small", "large"), sides, strict=True)
    ]
    write_batch(tmp_path / "b", rows, cells=TWO)
    answer = page(tmp_path, f"{batch_link(tmp_path)}?{query}")
    assert sample_ids(answer) == ids
    matrix = answer.data["matrix"]
    if query == "chip=flipped":
        assert matrix["shares"] == [[1, 2], [1, 2]]
    if not query:
        assert matrix["shares"] == []
        assert [cell["name"] for cell in matrix["cells"]] == ["small", "large"]
        assert matrix["chips"] | {"passed": 0} == {
            "all": 5,
            "failed": 3,
            "error": 1,
            "passed": 0,
            "unscored": 0,
            "mixed": 3,
            "flipped": 2,
            "warned": 1,
            "labelled": 0,
        }


def test_epochs_of_one_column_with_different_verdicts_are_mixed(tmp_path: Path) -> None:
    rows = [
        result(key, place=place, epoch=epoch, **(RIGHT if key == "same" or epoch == 1 else WRONG))
        for place, key in enumerate(("same", "varies"))
        for epoch in (1, 2)
    ]
    write_batch(tmp_path / "b", rows, epochs=2)
    assert sample_ids(page(tmp_path, f"{batch_link(tmp_path)}?chip=mixed")) == ["varies"]


def test_a_cell_has_the_results_of_all_epochs_and_a_sample_leads_to_its_others(
    tmp_path: Path,
) -> None:
    rows = [
        result("x", epoch=epoch, variant=variant, content=f"{variant} {epoch}", task_id=None)
        for epoch in (2, 1)
        for variant in ("small", "large")
    ]
    write_batch(tmp_path / "b", rows, cells=TWO, epochs=2)
    answer = page(tmp_path, batch_link(tmp_path))
    (row,) = answer.data["matrix"]["rows"]
    contents = {key: [each["content"] for each in cell] for key, cell in row["results"].items()}
    assert contents == {"0": ["small 1", "small 2"], "1": ["large 1", "large 2"]}
    others = page(tmp_path, sample_links(answer)[1]).data["others"]
    assert [(each["cell"], each["epoch"], each["is_this"]) for each in others] == [
        ("small", 1, False),
        ("large", 1, False),
        ("small", 2, True),
        ("large", 2, False),
    ]


def test_plots_are_of_the_chosen_rows(tmp_path: Path) -> None:
    write_batch(tmp_path / "b", numbered(30))
    link = batch_link(tmp_path)
    histogram = page(tmp_path, f"{link}?plot=duration%7C").data["matrix"]["plot"]
    assert (histogram["n"], sum(histogram["counts"])) == (30, 30)
    assert (histogram["edges"][0], histogram["edges"][-1]) == (0, 29)
    query = "plot=length%7Cscore.includes&between=duration%3D10:12"
    scatter = page(tmp_path, f"{link}?{query}").data["matrix"]["plot"]
    assert scatter["points"] == [[11, 1, "passed"]] * 3
    assert page(tmp_path, f"{link}?plot=nonsense").data["matrix"]["plot"] is None


def test_a_sample_whose_answer_existed_has_no_command_that_repeats_it(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "a", "question": "What?", "output": "Canberra"}\n')
    folder = tmp_path / "b"
    run_batch_sync(
        "answer_question", str(rows), answers="output", scorers=["exact"], output=str(folder)
    )
    (link,) = sample_links(page(tmp_path, batch_link(tmp_path)))
    data = page(tmp_path, link).data
    assert (data["result"]["content"], data["command"]) == ("Canberra", "")


@pytest.mark.parametrize("part", [None, [], {}, 1])
def test_a_cell_with_an_odd_hash_of_its_handler_has_a_page_with_a_command(
    tmp_path: Path, part: Any
) -> None:
    cells = [{"template": "answer", "variant": "small", "handler_part": part}]
    write_batch(tmp_path / "b", [result("x")], cells=cells, settings={"another": {}})
    (link,) = sample_links(page(tmp_path, batch_link(tmp_path)))
    command = page(tmp_path, link).data["command"]
    assert command.startswith("evaluator run --template answer ")


def test_the_command_of_a_sample_repeats_it_and_is_safe_to_paste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = {"question": "it's $(touch owned); `x`", "n": [1, 2]}
    cells = [{**ONE, "model": "simulated/small", "handler": "offline"}]
    write_batch(tmp_path / "b", [result("x", inputs=inputs, task_id=None)], cells=cells)
    (link,) = sample_links(page(tmp_path, batch_link(tmp_path)))
    words = shlex.split(page(tmp_path, link).data["command"])
    assert words == [
        "evaluator",
        "run",
        "--template",
        "answer",
        "--handler",
        "offline",
        "--model",
        "simulated/small",
        "--input",
        f"question={inputs['question']}",
        "--input",
        "n=[1, 2]",
    ]
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    options = capsys.readouterr().out
    assert all(word in options for word in words if word.startswith("--"))


def test_a_batch_that_waits_for_a_provider_shows_its_provider_batches(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b", EACH)
    created = open_batch(path).manifest.get("created")
    fields = {
        "format": "openai",
        "label": "openai/m",
        "endpoint": "e",
        "profile": "p",
        "prices": None,
    }
    more = {"tag": "t.1", "digest": "", "max_cost_usd": 0.5, "wall": 0.0}
    log = WaveLog(path, str(created))
    log.add(1, "intent", **fields, **more, calls=[["c", "s", False, 1, 1, 0.5]])
    log.add(1, "created", batch="<b>1</b>", expires=None)
    found = page(tmp_path, batch_link(tmp_path))
    line = "provider batch 1, <b>1</b> (openai/m): created, 1 call, at most $0.5000"
    assert found.data["progress"]["provider_batches"] == [line]
    (path / "provider" / "log.jsonl").write_text("{}\n")
    assert (
        "was changed"
        in page(tmp_path, batch_link(tmp_path)).data["progress"]["provider_batches"][0]
    )
