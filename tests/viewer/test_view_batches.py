"""Batches in the viewer: the list, progress, samples filtered and sorted on the server, and one sample."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest

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
    return [link.replace("&amp;", "&") for link in re.findall(r'class="id"><a href="([^"]*)"', text)]


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
    write_batch(tmp_path / "b", [result("one", content=f"x {written} y"), result("other", content="x")])

    link = batch_link(tmp_path)
    assert sample_ids(page(tmp_path, f"{link}?{urlencode({'text': text})}").text) == ["one"]


def test_pages_of_samples_follow_each_other(tmp_path: Path) -> None:
    write_batch(tmp_path / "b", numbered(120))
    link = batch_link(tmp_path)
    seen = [
        sample_ids(page(tmp_path, f"{link}?sort=duration&order=down&page={number}").text) for number in (1, 2, 3, 4)
    ]
    assert seen[0] + seen[1] + seen[2] == [f"s{n}" for n in range(119, -1, -1)]
    assert seen[3] == seen[2], "the last page"


def test_results_of_other_cells_and_of_rows_that_are_left_out_are_not_shown(tmp_path: Path) -> None:
    other = replace(PASSED, sample_id="other", variant="large")
    out = result("out")
    write_batch(tmp_path / "b", [PASSED, other, out], left_out=[out.key])
    assert sample_ids(page(tmp_path, batch_link(tmp_path)).text) == ["lead"]


def test_a_later_result_replaces_the_earlier_one(tmp_path: Path) -> None:
    write_batch(tmp_path / "b", [replace(ERROR, sample_id="x"), FAILED, result("x", content="Now it worked.")])
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
    assert len(problems) == 2 and all("was changed after it was written" in each for each in problems)


@pytest.mark.parametrize("manifest", [b"", b"{}", b"[1]", b'{"name": "an app"}', b"\xff\xfe"])
def test_a_damaged_or_foreign_manifest_is_listed_with_the_reason(tmp_path: Path, manifest: bytes) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / "results.jsonl").touch()
    (folder / "manifest.json").write_bytes(manifest)
    write_batch(tmp_path / "good", [PASSED])
    text = page(tmp_path, "/batches").text
    assert re.search(r'<th scope="row">b</th><td colspan="5" class="notice">[^<]*manifest\.json: ', text)
    assert "/good" in text or ">good</a>" in text


def test_a_batch_that_was_removed_is_a_page_that_says_so(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b", [PASSED])
    link = batch_link(tmp_path)
    for each in path.iterdir():
        each.unlink()
    answer = page(tmp_path, link)
    assert (answer.status, "there is no such batch now" in answer.text) == (404, True)


def test_a_sample_shows_its_scores_and_the_transcripts_of_its_task_and_judges(tmp_path: Path) -> None:
    judged = {"judge": Score(1.0, True, "yes", "It is right.", metadata={"task_ids": [2, "x"]})}
    write_batch(tmp_path / "b", [result("lead", task_id=1, scores=judged), result("gone", task_id=9)])
    store = TaskStore(tmp_path / "b" / "tasks")
    for question, answer in (("Which metal?", "Lead <b>it</b> is."), ("Is it right?", "Yes, right.")):
        journal = store.create("r")
        args = {"messages": [{"role": "user", "content": question}]}
        journal.note(StepStart("turn[1]", "model", "m", args), StepEnd("success", {"content": answer}, 0.1))
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
    write_batch(tmp_path / "b", results, name=text, cells=cells, epochs=5, cluster=text, group_by=text)
    listed = page(tmp_path, "/batches")
    batch = page(tmp_path, batch_link(tmp_path))
    assert_harmless(listed.text, forms=1)
    assert_harmless(batch.text, forms=1)
    assert len(sample_links(batch.text)) == 5
    for link in sample_links(batch.text):
        assert_harmless(page(tmp_path, link).text)
