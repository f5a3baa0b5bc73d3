"""The report as a file: one page that loads nothing, with data that cannot become markup, and n of N where it is cut."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from evaluator import RecordError, TaskStore, Usage, UsageError
from evaluator.batch import SampleResult, Score, open_batch
from evaluator.batch.summary import summarise
from evaluator.record.steps import StepEnd, StepStart, Summary
from evaluator.viewer import ReportBatch, compare_batches, report, write_report
from evaluator.viewer.samples import MAX_TEXT_CHARS, Distributions, link_to
from tests.batch.export.results import (
    EACH,
    ERROR,
    FAILED,
    HOSTILE,
    PASSED,
    UNSCORED,
    hostile,
    many,
    result,
)
from tests.viewer.batches import write_batch
from tests.viewer.site import data_of


class Parts(HTMLParser):
    """The elements of a page, and the texts of its script, style and title elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._inside = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag in {"script", "style", "title"}
        if self._inside:
            self.texts.append((tag, ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            tag, before = self.texts.pop()
            self.texts.append((tag, before + data))


def page_of(results: Any, path: Path, **options: Any) -> str:
    write_report(path, [ReportBatch(results, {"name": "metals"})], **options)
    return path.read_text(encoding="utf-8")


def shown(page: str, batch: int = 0) -> list[dict[str, Any]]:
    data = data_of(page)
    return [dict(zip(data["fields"], cells, strict=True)) for cells in data["samples"][batch]]


def test_the_page_holds_what_the_results_say(tmp_path: Path) -> None:
    page = page_of(EACH, tmp_path / "r.html")
    samples = {sample["id"]: sample for sample in shown(page)}
    assert set(samples) == {"lead", "tin", "iron", "zinc", "gold"}
    assert samples["gold"]["verdict"] == "unscored"
    assert samples["tin"]["scores"]["includes"] == {
        "value": 0.0,
        "passed": False,
        "explanation": "no 'tin' in it",
    }
    assert samples["iron"]["failure"]["message"] == "503 from the model\nafter 4 attempts"
    assert samples["iron"]["usage"]["cost_usd"] is None and samples["lead"]["target"] == "lead"
    (batch,) = data_of(page)["batches"]
    assert batch["summary"] == summarise(EACH).to_dict() and batch["groups"] == [
        ["answer", "small"]
    ]


def test_a_row_without_an_id_has_its_number_and_first_words_as_title(tmp_path: Path) -> None:
    samples = shown(page_of([PASSED, result("0123456789abcdef", place=1)], tmp_path / "r.html"))
    assert [sample["title"] for sample in samples] == [
        "lead",
        "row 2: Which element has the symbol Pb?",
    ]


def test_the_page_asks_for_nothing_and_runs_nothing_but_its_own_script(tmp_path: Path) -> None:
    parts = Parts(page_of(EACH, tmp_path / "r.html"))
    for _, attributes in parts.tags:
        assert not {"src", "srcset", "style", "onload", "onerror", "onclick"} & set(attributes)
        assert not (attributes.get("href") or "#").partition("#")[0]
    policy = next(
        each["content"] or ""
        for _, each in parts.tags
        if each.get("http-equiv") == "Content-Security-Policy"
    )
    assert (
        policy.startswith("default-src 'none'; ")
        and "unsafe" not in policy
        and "http" not in policy
    )
    style = next(text for tag, text in parts.texts if tag == "style")
    script = [text for tag, text in parts.texts if tag == "script"][-1]
    for name, text in (("style-src", style), ("script-src", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script
    )
    vendored = (files("evaluator.viewer") / "assets" / "vendor" / "marked.js").read_text("utf-8")
    addresses = re.findall(r"https?://[^\"'` ]+", style + script.replace(vendored, ""))
    assert addresses == ["http://www.w3.org/2000/svg"]
    assert "document." not in vendored and "fetch(" not in vendored


def test_hostile_texts_add_no_element_and_come_back_as_they_were(tmp_path: Path) -> None:
    plain = Parts(page_of(EACH, tmp_path / "plain.html"))
    page = page_of(hostile(), tmp_path / "r.html", title=HOSTILE[0])
    assert [tag for tag, _ in Parts(page).tags] == [tag for tag, _ in plain.tags]
    assert "<" not in page.partition('id="data">')[2].partition("</script>")[0]
    assert "<title>&lt;/script&gt;&lt;script&gt;" in page
    kept = [sample for sample in shown(page) if sample["epoch"] == 1]
    for sample, text in zip(kept, HOSTILE, strict=True):
        text = text.replace("\ud83d", "\ufffd")
        assert (sample["id"], sample["content"], sample["inputs"][text]) == (text, text, text)
        assert sample["scores"][text]["explanation"] == text and sample["metadata"] == {text: text}


def test_what_json_cannot_hold_is_text(tmp_path: Path) -> None:
    values = {
        "nan": math.nan,
        "inf": math.inf,
        "big": 2**60,
        "half": "\ud800",
        "long": "x" * (MAX_TEXT_CHARS + 9),
    }
    (sample,) = shown(page_of([result(inputs=values)], tmp_path / "r.html"))
    inputs = sample["inputs"]
    assert (inputs["nan"], inputs["inf"], inputs["big"], inputs["half"]) == (
        "nan",
        "inf",
        str(2**60),
        "\ufffd",
    )
    assert inputs["long"].endswith("x… (the first 50,000 of 50,009 characters)")


@pytest.mark.parametrize(
    ("limit", "ids"), [(2, ["iron", "zinc"]), (3, ["iron", "zinc", "tin"]), (0, [])]
)
def test_above_the_limit_errors_and_failed_results_are_kept_first(
    limit: int, ids: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "r.html"
    written = write_report(path, [ReportBatch(EACH)], max_samples=limit)
    page = path.read_text(encoding="utf-8")
    assert [sample["id"] for sample in shown(page)] == ids
    assert (written.shown, written.total, written.size_bytes) == (limit, 5, path.stat().st_size)
    assert data_of(page)["batches"][0]["total"] == 5
    assert data_of(page)["batches"][0]["summary"]["counts"]["results"] == 5


def test_the_bound_on_bytes_holds(tmp_path: Path) -> None:
    empty = len(page_of(many(400), tmp_path / "r.html", max_samples=0).encode())
    written = write_report(
        tmp_path / "r.html", [ReportBatch(many(400), {"name": "metals"})], max_bytes=20_000
    )
    assert 0 < written.shown < 400 and written.size_bytes <= empty + 20_000


def test_the_summary_that_is_given_is_the_one_that_is_shown(tmp_path: Path) -> None:
    given = summarise(EACH, total=9).to_dict()
    write_report(tmp_path / "r.html", [ReportBatch(EACH, {}, given)])
    assert (
        data_of((tmp_path / "r.html").read_text(encoding="utf-8"))["batches"][0]["summary"] == given
    )


def test_several_batches_have_names_of_their_own_and_share_the_limit(tmp_path: Path) -> None:
    batches = [ReportBatch(many(40), {"name": "metals"}), ReportBatch(many(40), {"name": "metals"})]
    written = write_report(tmp_path / "r.html", batches, max_samples=20)
    data = data_of((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert [batch["name"] for batch in data["batches"]] == ["metals", "metals (2)"]
    assert data["title"] == "metals and metals (2)"
    assert [len(samples) for samples in data["samples"]] == [10, 10] and (
        written.shown,
        written.total,
    ) == (20, 80)


@pytest.mark.parametrize(
    ("task_file", "link"),
    [
        ("tasks/TASK-1.md", "./b/tasks/TASK-1.md"),
        ("tasks/a b#c?d.md", "./b/tasks/a%20b%23c%3Fd.md"),
        ("javascript:alert(1)", "./b/javascript%3Aalert%281%29"),
        ('tasks/<&">.md', "./b/tasks/%3C%26%22%3E.md"),
        ("../../etc/passwd", None),
        ("/etc/passwd", None),
        ("tasks\\..\\x", None),
        (None, None),
    ],
)
def test_a_link_is_relative_escaped_and_stays_in_the_folder(
    task_file: str | None, link: str | None
) -> None:
    assert link_to("./b", task_file) == link


def test_links_go_from_the_report_to_the_batch(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a b" / "tasks").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "r.html"
    write_report(path, [ReportBatch([PASSED], folder=tmp_path / "runs" / "a b")])
    (sample,) = shown(path.read_text(encoding="utf-8"))
    assert sample["href"] == "./../runs/a%20b/tasks/TASK-000007.md"


def test_wrong_calls_are_refused_and_leave_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    path.write_text("before")
    with pytest.raises(UsageError, match="needs a batch"):
        write_report(path, [])
    with pytest.raises(UsageError, match="expected 0 or more"):
        write_report(path, [ReportBatch(EACH)], max_samples=-1)

    def breaks() -> Iterator[SampleResult]:
        yield PASSED
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_report(path, [ReportBatch(breaks())])
    assert path.read_text() == "before" and [each.name for each in tmp_path.iterdir()] == ["r.html"]
    with pytest.raises(RecordError, match="cannot be written"):
        write_report(tmp_path / "nowhere" / "r.html", [ReportBatch(EACH)])


def test_memory_holds_no_sample(tmp_path: Path) -> None:
    def large(count: int) -> Iterator[SampleResult]:
        for each in many(count):
            yield replace(each, content="x" * 20_000)

    def peak(count: int) -> int:
        tracemalloc.start()
        write_report(tmp_path / "r.html", [ReportBatch(large(count))])
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    peak(10)
    small, big = peak(500), peak(1_000)
    assert big < 1.3 * small


def test_bins_are_shared_round_and_hold_every_known_value() -> None:
    distributions = Distributions()
    for number in range(1_000):
        distributions.add(0, result(duration_s=number / 100, variant="small"))
    distributions.add(0, result(duration_s=500.0, variant="large", usage=Usage(None, 3)))
    distributions.add(0, ERROR)
    durations, inputs, _ = distributions.to_list()
    edges = durations["edges"]
    assert edges[:3] == [0.0, 0.5, 1.0] and edges[-1] <= 10
    small, large = durations["groups"]
    assert (sum(small["counts"]), small["n"], small["of"]) == (1_000, 1_000, 1_001)
    assert large["counts"][-1] == 1 and small["counts"][:2] == [50, 50]
    assert [(group["n"], group["of"]) for group in inputs["groups"]] == [(1_000, 1_001), (0, 1)]


def test_what_has_one_value_or_none_makes_no_odd_bins() -> None:
    distributions = Distributions()
    distributions.add(0, result(usage=Usage(None, None)))
    distributions.add(0, result(usage=Usage(None, None)))
    (durations,) = distributions.to_list()
    assert durations["edges"] == [0.25] and durations["groups"][0]["counts"] == [2]
    assert Distributions().to_list() == []


def test_a_batch_without_results_is_a_page(tmp_path: Path) -> None:
    assert shown(page_of([], tmp_path / "r.html")) == []


def test_results_are_read_once_in_any_iterable(tmp_path: Path) -> None:
    page = page_of(iter([FAILED, UNSCORED]), tmp_path / "r.html")
    assert [sample["id"] for sample in shown(page)] == ["tin", "gold"]


def write_tasks(folder: Path) -> list[SampleResult]:
    """A passed and a failed result with task files, and an error whose file is missing."""
    store = TaskStore(folder / "tasks")
    for text in ("Which metal?", HOSTILE[0]):
        journal = store.create("r")
        args = {"messages": [{"role": "user", "content": text}]}
        journal.note(
            StepStart("turn[1]", "model", "m", args),
            StepEnd("success", {"content": f"say {text}"}, 0.1),
        )
        journal.close(Summary("completed", 1, 0, 0.1))
    return [replace(PASSED, task_id=1), replace(FAILED, task_id=2), replace(ERROR, task_id=9)]


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [("none", set()), ("failed", {"tin", "iron"}), ("all", {"lead", "tin", "iron"})],
)
def test_transcripts_of_failed_or_all_results_are_in_the_page(
    tmp_path: Path, wanted: Any, ids: set[str]
) -> None:
    path = tmp_path / "r.html"
    batch = ReportBatch(write_tasks(tmp_path / "b"), {"name": "metals"}, folder=tmp_path / "b")
    write_report(path, [batch], transcripts=wanted)
    page = path.read_text(encoding="utf-8")
    samples = {sample["id"]: sample["transcripts"] for sample in shown(page)}
    assert {key for key, found in samples.items() if found is not None} == ids
    assert "<" not in page.partition('id="data">')[2].partition("</script>")[0]
    if "tin" in ids:
        (task,) = samples["tin"]
        (conversation,) = task["conversations"]
        assert [message["content"] for message in conversation["messages"]] == [
            HOSTILE[0],
            f"say {HOSTILE[0]}",
        ]
        (missing,) = samples["iron"]
        assert missing["conversations"] == [] and "there is no task 9" in missing["problem"]


def test_an_unknown_choice_of_transcripts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="transcripts is 'some', expected one of none, failed, all"
    ):
        write_report(tmp_path / "r.html", [ReportBatch(EACH)], transcripts="some")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cells_a", "cells_b", "compared"),
    [
        ([("answer", "small")], [("answer", "large")], [("answer × small", "answer × large")]),
        (
            [("answer", "small"), ("answer", "large")],
            [("answer", "large"), ("other", "small")],
            [("answer × large", "answer × large")],
        ),
        ([("answer", "small")], [("answer", "large"), ("other", "small")], []),
    ],
)
def test_the_templates_and_variants_that_both_batches_have_are_compared(
    tmp_path: Path, cells_a: list[Any], cells_b: list[Any], compared: list[Any]
) -> None:
    batches = [
        open_batch(
            write_batch(
                tmp_path / name,
                [result("x", template=template, variant=variant) for template, variant in cells],
                cells=[{"template": template, "variant": variant} for template, variant in cells],
            )
        )
        for name, cells in (("a", cells_a), ("b", cells_b))
    ]
    assert [tuple(each["cells"]) for each in compare_batches(*batches)] == compared


def test_flips_beyond_the_limit_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_FLIPS", 2)
    wrong = {"includes": Score(0.0, False)}
    # Results are in the order in which they ended, flips in that of the dataset.
    places = (4, 1, 3, 0, 2)
    a = write_batch(
        tmp_path / "a", [result(f"s{place}", scores=wrong, place=place) for place in places]
    )
    b = write_batch(tmp_path / "b", [result(f"s{place}", place=place) for place in range(5)])
    (found,) = compare_batches(open_batch(a), open_batch(b))
    assert found["matrix"] == [{"a": "failed", "b": "passed", "count": 5}]
    assert [pair["title"] for pair in found["pairs"]] == ["s0", "s1"]
