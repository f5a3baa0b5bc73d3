"""The report in a real browser: it asks for nothing, hostile texts stay texts, and it can be filtered, sorted and read."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from evaluator.batch import Score, open_batch
from evaluator.viewer import ReportBatch, compare_batches, write_report
from tests.batch.export.results import EACH, FAILED, HOSTILE, hostile, many, result
from tests.viewer.batches import write_batch
from tests.viewer.browser import Page, becomes, find_chromium, opened
from tests.viewer.report_page import (
    COUNT,
    DETAIL,
    EACH_DETAIL,
    IDS,
    ROWS,
    WRONG,
    chip,
    choose,
    click_sort,
    labelled,
    then,
)
from tests.viewer.test_report_file import write_tasks

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs chromium on the PATH")


def test_hostile_texts_stay_texts_in_every_part_of_the_page(with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    batch = ReportBatch(
        hostile(), {"name": HOSTILE[0], HOSTILE[1]: HOSTILE[1]}, folder=tmp_path, name=HOSTILE[1]
    )
    write_report(path, [batch, replace(batch, results=islice(hostile(), 4))], title=HOSTILE[0])

    async def steps(page: Page) -> Any:
        await page.open(path)
        title = await page.run("document.title")
        contents = await page.run(EACH_DETAIL)
        text = HOSTILE[1]
        where = urlencode({f"meta.{text}": text})
        query = {"group": f"meta.{text}", "sort": f"score.{text}", "where": where}
        await page.run(then(f"location.hash = {json.dumps(urlencode(query))}"))
        assert await page.run(COUNT) == f"1 of {len(HOSTILE)} rows"
        grown = await page.run(
            "document.querySelectorAll('img, iframe, object, embed, form[action], base').length"
        )
        scripts = await page.run("document.querySelectorAll('script').length")
        links = await page.run("[...document.querySelectorAll('a[href]')].map((a) => a.protocol)")
        return title, contents, grown, scripts, links, await page.run("document.title")

    title, contents, grown, scripts, links, title_after = with_page(steps)
    assert title == title_after == HOSTILE[0]
    assert len(contents) == 5 * len(HOSTILE) + 4
    for text in HOSTILE[:4]:
        assert any(content.count(text) > 5 for content in contents)
    assert any(r"\u202eabc" in content for content in contents)
    assert not any("\u202e" in content or "\x1b" in content for content in contents)
    assert (grown, scripts) == (0, 2) and set(links) == {"file:"}


def test_markup_that_got_into_the_page_would_not_run(with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_report(path, [ReportBatch(EACH)])
    page = path.read_text(encoding="utf-8")
    path.write_text(
        page.replace("<body>", "<body><script>document.title = 'owned'</script>"), encoding="utf-8"
    )

    async def steps(page: Page) -> Any:
        await page.open(path)
        refused, page.problems = page.problems, []
        return await page.run("document.title"), refused

    title, refused = with_page(steps)
    assert title == "batch" and "Content Security Policy" in str(refused)


def test_it_can_be_filtered_and_the_address_says_how(with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_report(path, [ReportBatch(EACH, {})])

    async def steps(page: Page) -> None:
        await page.open(path)
        assert await page.run(COUNT) == "5 of 5 rows"
        await page.run(chip("error"))
        assert await page.run(IDS) == ["iron", "zinc"]
        await page.run(then("location.hash = 'chip=error&where=target%3Dlead'"))
        assert await page.run(COUNT) == "2 of 5 rows"
        assert "chip=error" in await page.run("location.hash")
        await page.run(then("history.back()"))
        assert await page.run(IDS) == ["iron", "zinc"]
        await page.run(chip("failed"))
        (row,) = await page.run(ROWS)
        assert "failed" in row and "includes: no 'tin' in it" in row, "the reason is said"

    with_page(steps)


def test_a_search_finds_what_the_text_is_in(with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_report(path, [ReportBatch(EACH)])

    async def steps(page: Page) -> Any:
        await page.open(path)
        await page.run("document.getElementById('filter-text').focus()")
        await page.send("Input.insertText", text="503 FROM")
        await page.run(then("document.getElementById('filter-text').form.requestSubmit()"))
        return await page.run(IDS)

    assert with_page(steps) == ["iron"]


def test_metadata_can_be_filtered_and_grouped_by(with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    rows = [
        result(str(n), metadata={"toString": ("a", "b")[n % 2], "unlike": n}, place=n)
        for n in range(80)
    ]
    write_report(path, [ReportBatch([*rows, result("none", metadata={}, place=99)])])

    async def steps(page: Page) -> None:
        await page.open(path)
        fields = await page.run(
            "[...document.querySelectorAll('#choose-field optgroup')].map((o) => o.label)"
        )
        assert fields == ["toString"]
        await page.run(choose("field", "meta.toString=b"))
        assert await page.run(COUNT) == "40 of 81 rows"
        await page.run(then("document.querySelector('.conditions a').click()"))
        await page.run(choose("group", "meta.toString"))
        groups = await page.run(
            "[...document.querySelectorAll('#samples tr.group')].map((row) => row.innerText)"
        )
        assert [each.split(" ")[0] for each in groups] == ["(none)", "a", "b"]
        assert "40 rows · 100.0 % of 40 judged results passed" in groups[1]

    with_page(steps)


def test_it_can_be_sorted_and_what_is_unknown_comes_last(with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_report(path, [ReportBatch(EACH)])

    async def steps(page: Page) -> None:
        await page.open(path)
        await page.run(then("document.getElementById('column-score.includes').click()"))
        for heads, ids in ((["ascending"], ["tin", "lead"]), (["descending"], ["lead", "tin"])):
            await page.run(click_sort("score.includes"))
            assert (await page.run(IDS))[:2] == ids
            shown = (
                "[...document.querySelectorAll('#samples th[aria-sort]')].map((th) => th.ariaSort)"
            )
            assert await page.run(shown) == heads
        await page.run(choose("sort", "cost"))
        assert (await page.run(IDS))[-1] == "iron"

    with_page(steps)


def test_columns_are_chosen_and_moved_and_a_link_opens_exactly_this(
    with_page: Any, tmp_path: Path
) -> None:
    path = tmp_path / "r.html"
    write_report(path, [ReportBatch(EACH)])
    heads = "[...document.querySelectorAll('#samples thead th')].map((th) => th.innerText.trim())"

    async def steps(page: Page) -> None:
        await page.open(path)
        assert await page.run(heads) == ["sample ↑", "question", "target", "answer × small"]
        await page.run(then("document.getElementById('column-cost').click()"))
        await page.run(then("document.getElementById('column-target').click()"))
        await page.run(then("document.getElementById('left-cost').click()"))
        chosen = ["sample ↑", "question", "cost", "answer × small"]
        assert await page.run(heads) == chosen
        address = await page.run("location.href")
        await page.visit("about:blank")
        await opened(page, address)
        assert await page.run(heads) == chosen

    with_page(steps)


def test_a_range_of_a_plot_filters_the_rows(with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    rows = [result(f"s{n}", place=n, duration_s=float(n)) for n in range(20)]
    write_report(path, [ReportBatch(rows)])
    box = "document.querySelector('svg.brushed').getBoundingClientRect().toJSON()"

    async def steps(page: Page) -> None:
        await page.open(path)
        await page.run(choose("plot", "duration|"))
        await page.run(
            "document.querySelector('.brushing [name=from]').value = '4.5';"
            + then("document.querySelector('.brushing form').requestSubmit()")
        )
        assert await page.run(COUNT) == "15 of 20 rows"
        await page.run(then("document.querySelector('.conditions a').click()"))
        await page.run("document.querySelector('svg.brushed').scrollIntoView()")
        place = await page.run(box)
        middle = {"y": place["y"] + place["height"] / 2, "button": "left", "buttons": 1}
        left, right = (place["x"] + share * place["width"] for share in (0.0, 0.5))
        await page.send("Input.dispatchMouseEvent", type="mousePressed", x=left + 1, **middle)
        await page.send("Input.dispatchMouseEvent", type="mouseMoved", x=right, **middle)
        await page.send("Input.dispatchMouseEvent", type="mouseReleased", x=right, **middle)
        await page.run(becomes(f"!{COUNT}.startsWith('20 ')"))
        count = await page.run(COUNT)
        assert count in ("9 of 20 rows", "10 of 20 rows"), count

    with_page(steps)


def test_pages_go_on(with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_report(path, [ReportBatch(labelled(120))])

    async def steps(page: Page) -> None:
        await page.open(path)
        assert len(await page.run(IDS)) == 50
        for wanted in ("s050", "s100"):
            await page.run(then("document.querySelector('a[rel=next]').click()"))
            assert (await page.run(IDS))[0] == wanted
        assert await page.run("document.querySelector('.pages input').value") == "3"
        assert " of 3" in await page.run("document.querySelector('.pages').textContent")
        assert await page.run("document.querySelector('a[rel=next]')") is None

    with_page(steps)


def test_one_result_is_shown_whole_and_the_keyboard_goes_through_them(
    with_page: Any, tmp_path: Path
) -> None:
    path = tmp_path / "r.html"
    rows = [replace(each, place=number) for number, each in enumerate(EACH)]
    write_report(path, [ReportBatch(rows, folder=tmp_path)])

    async def steps(page: Page) -> None:
        await page.open(path)
        await page.run("document.querySelectorAll('#samples a.verdict')[2].focus()")
        await page.press("Enter")
        await page.run(becomes(f"{DETAIL} && {DETAIL}.open"))
        text = await page.run(f"{DETAIL}.innerText")
        for part in ("iron", "503 from the model\nafter 4 attempts", "provider_failure", "unknown"):
            assert part in text
        await page.press("ArrowLeft")
        await page.run(becomes(f"{DETAIL}.innerText.includes('tin')"))
        await page.press("ArrowLeft")
        await page.run(becomes(f"{DETAIL}.innerText.includes('It is lead.')"))
        text = await page.run(f"{DETAIL}.innerText")
        assert all(part in text for part in ("1 of 5", "found 'lead'", "Which element has"))
        assert (
            await page.run(f"{DETAIL}.querySelector('.facts a').href")
            == (tmp_path / "tasks/TASK-000007.md").as_uri()
        )
        await page.press("Escape")
        await page.run(becomes(f"!{DETAIL}.open && !location.hash.includes('sample')"))

    with_page(steps)


def test_several_batches_stand_side_by_side(with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    wrong = [replace(FAILED, sample_id=each.sample_id, place=each.place) for each in labelled(3)]
    right = [*labelled(2), result("s002", place=2, scores={"label": Score(1.0, True)})]
    write_report(path, [ReportBatch(right, {"name": "a"}), ReportBatch(wrong, {"name": "b"})])

    async def steps(page: Page) -> None:
        await page.open(path)
        heads = (
            "[...document.querySelectorAll('#samples thead th')].map((th) => th.innerText.trim())"
        )
        assert await page.run(heads) == [
            "sample ↑",
            "question",
            "target",
            "a: small baseline",
            "b: small",
        ]
        assert await page.run(COUNT) == "3 of 3 rows"
        await page.run(chip("flipped"))
        rows = await page.run(ROWS)
        assert rows and all("passed" in row and "failed" in row for row in rows)
        labels = "[...document.querySelectorAll('#key-figures tbody th')].map((th) => th.innerText)"
        assert {"a: small", "b: small"} <= set(await page.run(labels))

    with_page(steps)


def test_numbers_and_plots_are_those_of_the_summary(with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_report(path, [ReportBatch(labelled(30))])

    async def steps(page: Page) -> Any:
        await page.open(path)
        kinds = "Object.fromEntries([...document.querySelectorAll('svg.plot')].map((svg) => [svg.classList[1], 1]))"
        return await page.run("document.getElementById('parts').innerText"), await page.run(kinds)

    text, kinds = with_page(steps)
    assert set(kinds) == {"counts", "interval", "histogram", "scatter"}
    assert "50.0 %" in text and "30 of 30" in text
    assert (
        "Targets and answers" in text and "30 of 30 results have a target that is a label." in text
    )


def test_what_is_left_out_is_said(with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_report(path, [ReportBatch(many(50))], max_samples=20)

    async def steps(page: Page) -> Any:
        await page.open(path)
        return await page.run(
            "document.querySelector('#left-out .notice').textContent"
        ), await page.run(COUNT)

    notice, count = with_page(steps)
    assert notice.startswith("This page shows 20 of 50 results: errors first") and count.endswith(
        " rows"
    )


@pytest.mark.parametrize("results", [[], [result(scores={}, template="", variant="", content="")]])
def test_an_empty_batch_and_an_empty_result_are_shown(
    results: list[Any], with_page: Any, tmp_path: Path
) -> None:
    path = tmp_path / "r.html"
    write_report(path, [ReportBatch(results)])

    async def steps(page: Page) -> Any:
        await page.open(path)
        return await page.run(f"[{COUNT}, document.querySelector('p.lead').textContent]")

    count, lead = with_page(steps)
    of_all = f"{len(results)} of {len(results)}"
    assert count == f"{of_all} {'row' if results else 'rows'}"
    assert lead.startswith(f"{of_all} {'result' if results else 'results'}. ")


CONTRAST = """
(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const light = (colour) => {
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(document.documentElement);
  const ground = light(style.getPropertyValue('--ground'));
  return Object.fromEntries(['ink', 'quiet', 'link', 'bad', 'error', 'good', 'stopped'].map((name) => {
    const other = light(style.getPropertyValue('--' + name));
    return [name, (Math.max(ground, other) + 0.05) / (Math.min(ground, other) + 0.05)];
  }));
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_ground(scheme: str, with_page: Any, tmp_path: Path) -> None:
    """WCAG 2.2, 1.4.3: 4.5 to 1."""
    path = tmp_path / "r.html"
    write_report(path, [ReportBatch(EACH)])

    async def steps(page: Page) -> Any:
        await page.media(scheme=scheme)
        await page.open(path)
        return await page.run(CONTRAST), await page.run(
            "getComputedStyle(document.body).backgroundColor"
        )

    contrasts, ground = with_page(steps)
    assert min(contrasts.values()) >= 4.5
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 27)"}[scheme]


@pytest.mark.parametrize("width", [1280, 1024, 400])
def test_the_page_itself_never_scrolls_sideways(width: int, with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    long = result(
        "x" * 300, template="t" * 200, content="y" * 3_000, metadata={"m" * 100: "n" * 200}
    )
    write_report(path, [ReportBatch([*labelled(40), *many(40), long])])

    async def steps(page: Page) -> None:
        await page.open(path, width=width)
        assert await page.run("document.documentElement.scrollWidth <= innerWidth")
        await page.run(then("document.querySelector('#samples a.verdict').click()"))
        assert await page.run(
            "document.getElementById('detail').getBoundingClientRect().right <= innerWidth"
        )

    with_page(steps)


def test_what_is_only_for_the_screen_is_not_printed(with_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_report(path, [ReportBatch(labelled(200))])

    async def steps(page: Page) -> Any:
        await page.open(path)
        await page.media(media="print", scheme="dark")
        shown = "['.controls', '.chips', 'h1'].map((name) => getComputedStyle(document.querySelector(name)).display)"
        return await page.run(shown), await page.run(
            "getComputedStyle(document.body).backgroundColor"
        )

    assert with_page(steps) == (["none", "none", "block"], "rgb(255, 255, 255)")


def test_a_result_shows_its_transcript_as_text(with_page: Any, tmp_path: Path) -> None:
    results = write_tasks(tmp_path / "b")
    batch = ReportBatch(results, {"name": "metals"}, folder=tmp_path / "b")
    write_report(tmp_path / "r.html", [batch], transcripts="all")

    async def steps(page: Page) -> Any:
        await page.open(tmp_path / "r.html")
        assert not (await page.run("document.title")).startswith("owned")
        return await page.run(EACH_DETAIL)

    details = with_page(steps)
    assert any("Conversation TASK-1" in text and "say Which metal?" in text for text in details)
    assert any(f"say {HOSTILE[0]}" in text for text in details)
    assert any("there is no task 9" in text for text in details)


def test_two_batches_are_compared_with_flipped_answers_side_by_side(
    with_page: Any, tmp_path: Path
) -> None:
    hostile_text = "".join(HOSTILE).encode("utf-8", "replace").decode()
    lost = result("lead", content=f"It is a metal. {hostile_text}")
    a = open_batch(write_batch(tmp_path / "a", [lost, result("same")]))
    b = open_batch(
        write_batch(
            tmp_path / "b", [result("lead", content="It is a gas.", scores=WRONG), result("same")]
        )
    )
    path = tmp_path / "report.html"
    batches = [ReportBatch(each.results(), each.manifest) for each in (a, b)]
    write_report(path, batches, comparisons=compare_batches(a, b))

    async def steps(page: Page) -> None:
        await page.open(path, width=400)
        words = await page.run("document.querySelector('.verdict-words').innerText")
        assert words.startswith("b is worse by 50.0 points")
        assert "2 of 2 samples make a pair" in await page.run(
            "document.getElementById('comparison').textContent"
        )
        marks = "[...document.querySelectorAll('#comparison {0}')].map((each) => each.textContent.trim())"
        assert (await page.run(marks.format("del")))[0].startswith("metal.")
        assert await page.run(marks.format("ins")) == ["gas."]
        assert (await page.run(marks.format("summary")))[-1] == "1 flipped result side by side"
        assert await page.run(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )

    with_page(steps)


def test_the_reason_is_that_of_the_scorer_that_decided(with_page: Any, tmp_path: Path) -> None:
    right = Score(1.0, True, explanation="it is right")
    rows = [
        result("failed", place=0, scores={"a": right, "b": Score(0.0, False, explanation="wrong")}),
        result(
            "unscored", place=1, scores={"a": right, "b": Score(None, None, explanation="no idea")}
        ),
        result("error", place=2, scores={"a": right, "b": Score(None, None, error="it crashed")}),
        result("passed", place=3, scores={"a": right}),
    ]
    path = tmp_path / "r.html"
    write_report(path, [ReportBatch(rows)])

    async def steps(page: Page) -> Any:
        await page.open(path)
        reason = "row.querySelector('.reason')?.innerText ?? null"
        return await page.run(
            f"[...document.querySelectorAll('#samples tbody tr')].map((row) => {reason})"
        )

    assert with_page(steps) == ["b: wrong", "b: no idea", "b: it crashed", None]
