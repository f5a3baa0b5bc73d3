"""Batches in the viewer: the list, progress, samples filtered and sorted on the server, and one sample."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from evaluator.batch.folder import BatchFolder
from evaluator.batch.reading import open_batch
from evaluator.batch.records import Score
from evaluator.record.steps import StepEnd, StepStart, Summary
from evaluator.record.store import TaskStore
from evaluator.viewer.server import state
from tests.batch.export.results import EACH, ERROR, FAILED, HOSTILE, PASSED, hostile, result
from tests.viewer.batches import append, numbered, write_batch
from tests.viewer.site import Site, assert_harmless, page, visit


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages wait for their numbers, however busy the machine is."""
    monkeypatch.setattr(state, "WAIT_S", 120)


def batch_link(root: Path, place: int = 0) -> str:
    return re.findall(r'href="(/batch/[0-9a-f]+)"', page(root, "/batches").text)[place]


def sample_ids(text: str) -> list[str]:
    return re.findall(r'class="id"><a href="/sample/[^"]*">([^<]*)</a>', text)


def sample_links(text: str) -> list[str]:
    return [
        link.replace("&amp;", "&") for link in re.findall(r'class="id"><a href="([^"]*)"', text)
    ]


def test_a_folder_without_batches_says_how_they_get_there(tmp_path: Path) -> None:
    assert "There are no batches here yet" in page(tmp_path, "/batches").text


def test_a_batch_shows_n_of_n_and_the_numbers_of_its_summary(tmp_path: Path) -> None:
    write_batch(tmp_path / "batches" / "metals", EACH, total=7)
    text = page(tmp_path, batch_link(tmp_path)).text
    assert "<b>5 of 7 results</b>" in text
    assert re.search(r"1 passed, 1 failed,\s+2 error, 1 unscored", re.sub(r"\s+", " ", text))
    assert "Passed, of the judged results" in text and "95 %" in text
    assert '<progress max="7" value="5"' in text
    assert 'data-live="0"' in text


def test_a_total_that_is_unknown_is_shown_as_unknown(tmp_path: Path) -> None:
    write_batch(tmp_path / "b", EACH)
    assert "<b>5 results</b> (total unknown)" in page(tmp_path, batch_link(tmp_path)).text


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["lead", "tin", "iron", "zinc", "gold"]),
        ("verdict=error", ["iron", "zinc"]),
        ("verdict=passed&text=IT%20IS", ["lead"]),
        ("text=503%20from", ["iron"]),
        ("text=division", ["zinc"]),
        ("text=verdict", []),
        ("text=crc32", []),
        ("sort=written&order=down", ["gold", "zinc", "iron", "tin", "lead"]),
        ("sort=score&order=down", ["lead", "tin", "iron", "zinc", "gold"]),
        ("sort=score", ["tin", "lead", "iron", "zinc", "gold"]),
        ("sort=cost", ["lead", "tin", "zinc", "gold", "iron"]),
        ("sort=nonsense&verdict=nonsense&cell=7&page=x", ["lead", "tin", "iron", "zinc", "gold"]),
    ],
)
def test_samples_are_filtered_and_sorted_and_unknown_values_come_last(
    tmp_path: Path, query: str, ids: list[str]
) -> None:
    write_batch(tmp_path / "b", EACH)
    text = page(tmp_path, f"{batch_link(tmp_path)}?{query}").text
    assert sample_ids(text) == ids
    assert f"{len(ids)} of 5 results" in text


@pytest.mark.parametrize("text", ["Zürich", "ZÜRICH", 'say "hi"', "back\\slash", "日本"])
def test_text_that_json_escapes_is_found(tmp_path: Path, text: str) -> None:
    written = {"Zürich": "zürich", "ZÜRICH": "zürich"}.get(text, text)
    write_batch(
        tmp_path / "b", [result("one", content=f"x {written} y"), result("other", content="x")]
    )

    link = batch_link(tmp_path)
    assert sample_ids(page(tmp_path, f"{link}?{urlencode({'text': text})}").text) == ["one"]


def test_pages_of_samples_follow_each_other(tmp_path: Path) -> None:
    write_batch(tmp_path / "b", numbered(120))
    link = batch_link(tmp_path)
    seen = [
        sample_ids(page(tmp_path, f"{link}?sort=duration&order=down&page={number}").text)
        for number in (1, 2, 3, 4)
    ]
    assert seen[0] + seen[1] + seen[2] == [f"s{n}" for n in range(119, -1, -1)]
    assert seen[3] == seen[2], "the last page"


def test_results_of_other_cells_and_of_rows_that_are_left_out_are_not_shown(tmp_path: Path) -> None:
    other = replace(PASSED, sample_id="other", variant="large")
    out = result("out")
    write_batch(tmp_path / "b", [PASSED, other, out], left_out=[out.key])
    assert sample_ids(page(tmp_path, batch_link(tmp_path)).text) == ["lead"]


def test_a_later_result_replaces_the_earlier_one(tmp_path: Path) -> None:
    write_batch(
        tmp_path / "b",
        [replace(ERROR, sample_id="x"), FAILED, result("x", content="Now it worked.")],
    )
    text = page(tmp_path, batch_link(tmp_path)).text
    assert sample_ids(text) == ["x", "tin"]
    assert "Now it worked." in text and "2 results" in text


def test_a_running_batch_grows_on_the_page(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b", numbered(2), state="running", total=4)
    link = batch_link(tmp_path)

    async def steps(site: Site) -> None:
        before = await site.get(link)
        assert "<b>2 of 4 results</b>" in before.text and 'data-live="2000"' in before.text
        assert "the last session is running, or was killed" in before.text
        append(path, result("s3"), result("s1", content="again"))
        after = await site.get(link)
        assert "<b>3 of 4 results</b>" in after.text
        assert sample_ids(after.text) == ["s0", "s1", "s3"]

    visit(tmp_path, steps)


def test_a_half_written_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b", [PASSED, FAILED]) / "results.jsonl"
    whole, link = path.read_bytes(), batch_link(tmp_path)

    async def steps(site: Site) -> None:
        path.write_bytes(whole[:-10])
        assert sample_ids((await site.get(link)).text) == ["lead"]
        path.write_bytes(whole)
        assert sample_ids((await site.get(link)).text) == ["lead", "tin"]

    visit(tmp_path, steps)


def test_a_damaged_line_is_reported_and_the_results_before_it_are_shown(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b", [PASSED, FAILED]) / "results.jsonl"
    path.write_bytes(path.read_bytes().replace(b"It is zinc.", b"It is tin!!"))
    answer = page(tmp_path, batch_link(tmp_path))
    assert sample_ids(answer.text) == ["lead"]
    problems = re.findall(r'role="alert">([^<]*)', answer.text)
    assert len(problems) == 2 and all(
        "was changed after it was written" in each for each in problems
    )


@pytest.mark.parametrize("manifest", [b"", b"{}", b"[1]", b'{"name": "an app"}', b"\xff\xfe"])
def test_a_damaged_or_foreign_manifest_is_listed_with_the_reason(
    tmp_path: Path, manifest: bytes
) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / "results.jsonl").touch()
    (folder / "manifest.json").write_bytes(manifest)
    write_batch(tmp_path / "good", [PASSED])
    text = page(tmp_path, "/batches").text
    assert re.search(
        r'<th scope="row" class="name">b</th><td colspan="5" class="notice">[^<]*manifest\.json: ',
        text,
    )
    assert "/good" in text or ">good</a>" in text


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
    lead, gone = sample_links(page(tmp_path, batch_link(tmp_path)).text)
    text = page(tmp_path, lead).text
    assert "Which metal?" in text and "Lead &lt;b&gt;it&lt;/b&gt; is." in text
    assert "Judge of judge" in text and "Is it right?" in text
    assert "It is right." in text
    assert "there is no task 9" in page(tmp_path, gone).text
    run = next(link for link in page(tmp_path, lead).links if link.startswith("/run/"))
    assert "Which metal?" in page(tmp_path, run).text


def test_samples_lead_to_each_other_in_the_order_of_the_list(tmp_path: Path) -> None:
    write_batch(tmp_path / "b", numbered(3))
    listed = page(tmp_path, f"{batch_link(tmp_path)}?sort=duration&order=down").text
    first, middle, last = sample_links(listed)

    def neighbours(link: str) -> dict[str, str]:
        found = re.findall(r'<a rel="(\w+)" href="([^"]*)"', page(tmp_path, link).text)
        return {rel: target.replace("&amp;", "&") for rel, target in found}

    assert neighbours(first) == {"next": middle}
    assert neighbours(middle) == {"prev": first, "next": last}
    assert neighbours(last) == {"prev": middle}


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
    assert_harmless(listed.text, forms=1)
    assert_harmless(batch.text, forms=1)
    assert len(sample_links(batch.text)) == 5
    for link in sample_links(batch.text):
        assert_harmless(page(tmp_path, link).text)


def test_the_plots_are_drawn_from_the_numbers_of_the_summary(tmp_path: Path) -> None:
    path = write_batch(
        tmp_path / "b", [*EACH, replace(PASSED, sample_id="other", variant="large")], total=7
    )

    async def steps(site: Site) -> None:
        link = re.findall(r'href="(/batch/[0-9a-f]+)"', (await site.get("/batches")).text)[0]
        address = link.replace("/batch/", "/numbers/")
        assert (await site.get(address)).status == 404, "nobody has computed them"
        text = (await site.get(link)).text
        assert f'data-numbers="{address}?version=' in text
        data = json.loads((await site.get(address)).text)
        summary = open_batch(path).summarise().to_dict()
        assert data["batches"][0]["summary"] == json.loads(json.dumps(summary))
        (durations, *_) = data["distributions"]
        assert [(group["n"], group["of"]) for group in durations["groups"]] == [(3, 5)], (
            "errors are in no bin"
        )

    visit(tmp_path, steps)


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
    cells = re.findall(
        r"<td[^>]*>([^<]*)</td>", page(tmp_path, batch_link(tmp_path)).text.partition("Held by")[2]
    )
    assert cells[3] == why
    assert cells[2] == str((ENDPOINT | changes)["waiting"])


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
    text = page(tmp_path, batch_link(tmp_path)).text
    assert "$1.5000 of $2.0000 · an unknown part of 100 tokens · 61 s of 600 s" in text
    assert "The session ends: no money" in text


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
    assert_harmless(answer.text, forms=1)


def test_a_row_without_an_id_is_shown_by_its_number_and_first_words(tmp_path: Path) -> None:
    computed = "0123456789abcdef"
    write_batch(tmp_path / "b", [result(computed, place=2)])
    list_page = page(tmp_path, batch_link(tmp_path))
    title = "row 3: Which element has the symbol Pb?"
    assert f">{title}</a>" in list_page.text
    assert computed not in re.sub(r'href="[^"]*"', "", list_page.text)
    (link,) = (link for link in list_page.links if link.startswith("/sample/"))
    text = page(tmp_path, link).text
    assert f"<h1>{title}</h1>" in text
    assert f"<code>{computed}</code>" in text
