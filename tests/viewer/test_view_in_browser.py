"""The viewer in a real browser: nothing leaves the machine, hostile texts stay texts, pages update themselves, keys work."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from evaluator.queue import TaskQueue
from evaluator.record.steps import StepEnd, StepStart, Summary
from evaluator.record.store import TaskStore
from evaluator.viewer.server import background, batches, make_app, state
from tests.batch.export.results import EACH, HOSTILE, hostile, result
from tests.viewer.batches import append, numbered, write_batch
from tests.viewer.browser import Page, find_chromium, running, tab
from tests.viewer.site import TOKEN
from tests.viewer.tasks import add_task, append_output

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs chromium on the PATH")

WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
Steps = Callable[[Page, str], Awaitable[Any]]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("profile")) as address:
        yield address


@pytest.fixture
def browse(browser: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Steps], Any]:
    """Runs steps with a tab that has opened the address; the console stays empty and only the server is asked."""
    monkeypatch.setattr(state, "WAIT_S", 120)
    # Pages ask again at once, so that no test waits for the next time.
    monkeypatch.setattr(batches, "LIVE_MS", 20)
    monkeypatch.setattr(background, "OUTPUT_MS", 20)

    def go(steps: Steps) -> Any:
        async def whole() -> Any:
            async with (
                TestServer(make_app(tmp_path, TOKEN), host="127.0.0.1") as server,
                tab(browser) as page,
            ):
                address = f"http://127.0.0.1:{server.port}"
                await page.visit(f"{address}/?token={TOKEN}")
                found = await steps(page, address)
                assert page.problems == []
                assert [each for each in page.requests if not each.startswith(f"{address}/")] == []
                return found

        return asyncio.run(whole())

    return go


def becomes(condition: str) -> str:
    """JavaScript that waits until the page fulfils a condition."""
    return (
        f"new Promise((done) => {{ const look = () => ({condition}) && (done(true), true);"
        "if (!look()) new MutationObserver((_, seen) => look() && seen.disconnect())"
        ".observe(document, {subtree: true, childList: true, attributes: true, characterData: true}); })"
    )


async def links(page: Page, prefix: str) -> list[str]:
    return await page.run(
        f"[...document.querySelectorAll('main a[href^=\"{prefix}\"]')].map((link) => link.href)"
    )


async def main_pages(page: Page, address: str) -> list[str]:
    """The address of each kind of page."""
    lists = {
        "runs": "/run/",
        "batches": "/batch/",
        "templates": "/template/",
        "queue": "/queue/",
        "background": "/background/",
    }
    found = [f"{address}/{name}" for name in (*lists, "compare")]
    for start, prefix in lists.items():
        await page.visit(f"{address}/{start}")
        found.append((await links(page, prefix))[0])
        if start == "batches":
            await page.visit(found[-1])
            found.append((await links(page, "/sample/"))[0])
    return found


def write_project(root: Path) -> None:
    write_batch(
        root / "a",
        [*EACH, *hostile()],
        cells=[{"template": "answer", "variant": "small"}, *hostile_cells()],
    )
    write_batch(root / "b", [replace(each, content="other words " * 50) for each in EACH])
    journal = TaskStore(root / "tasks").create("r", {"text": "\n".join(HOSTILE)}, template="t")
    args = {"messages": [{"role": "user", "content": text} for text in HOSTILE]}
    journal.note(
        StepStart("turn[1]", "model", "m", args), StepEnd("success", {"content": "x" * 5_000}, 0.1)
    )
    journal.close(Summary("completed", 1, 0, 0.1, result={"content": "\n".join(HOSTILE)}))
    hostile_text = "".join(HOSTILE).replace("\x00", "").encode("utf-8", "replace").decode()
    with TaskQueue(root / "queue") as queue:
        queue.add(hostile_text)
    add_task(root, description=hostile_text, output=hostile_text.encode() + b"x" * 500)


def hostile_cells() -> list[dict[str, str]]:
    return [{"template": text, "variant": text} for text in HOSTILE]


def test_no_page_runs_a_hostile_text_or_is_wider_than_a_phone(browse: Any, tmp_path: Path) -> None:
    write_project(tmp_path)

    async def steps(page: Page, address: str) -> None:
        for each in await main_pages(page, address):
            await page.visit(each)
            assert "owned" not in await page.run("document.title.slice(0, 5)"), each
            for width in (1280, 400):
                await page.resize(width)
                assert await page.run(WIDE) <= 0, (each, width)

    browse(steps)


def test_pages_are_dark_where_the_reader_wants_it(browse: Any, tmp_path: Path) -> None:
    async def steps(page: Page, address: str) -> list[str]:
        colours: list[str] = []
        for scheme in ("light", "dark"):
            await page.media(scheme=scheme)
            colours.append(await page.run("getComputedStyle(document.body).backgroundColor"))
        return colours

    assert browse(steps) == ["rgb(255, 255, 255)", "rgb(22, 24, 27)"]


def test_a_running_batch_grows_without_a_reload_and_what_is_typed_stays(
    browse: Any, tmp_path: Path
) -> None:
    path = write_batch(tmp_path / "b", numbered(2), state="running", total=4)

    async def steps(page: Page, address: str) -> None:
        await page.visit(f"{address}/batches")
        await page.visit((await links(page, "/batch/"))[0])
        await page.run("document.getElementById('filter-text').value = 'typed'; window.same = true")
        append(path, result("s2"))
        assert await page.run(
            becomes("document.getElementById('progress').innerText.includes('3 of 4 results')")
        )
        assert await page.run("document.querySelectorAll('#results tbody tr').length") == 3
        assert (
            await page.run("window.same && document.getElementById('filter-text').value") == "typed"
        )

    browse(steps)


def test_the_plots_of_the_report_are_drawn_and_follow_the_batch(
    browse: Any, tmp_path: Path
) -> None:
    path = write_batch(tmp_path / "b", numbered(2), state="running", total=4)

    async def steps(page: Page, address: str) -> None:
        await page.visit(f"{address}/batches")
        await page.visit((await links(page, "/batch/"))[0])
        figures = "document.getElementById('key-figures').innerText"
        assert await page.run(becomes(f"{figures}.includes('2 of 4')"))
        assert (
            await page.run(
                "document.querySelectorAll('#key-figures svg.counts, #plots svg.histogram').length"
            )
            >= 2
        )
        append(path, result("s2"))
        assert await page.run(becomes(f"{figures}.includes('3 of 4')"))

    browse(steps)


def test_an_output_is_followed_unless_the_reader_scrolled_up(browse: Any, tmp_path: Path) -> None:
    task = add_task(tmp_path, output=b"line\n" * 200)
    bottom = "output.scrollTop + output.clientHeight >= output.scrollHeight - 4"

    async def steps(page: Page, address: str) -> None:
        async def appears(text: str) -> None:
            append_output(task, text)
            assert await page.run(
                becomes(f"document.getElementById('output').innerText.includes('{text}')")
            )

        await page.visit(f"{address}/background")
        await page.visit((await links(page, "/background/"))[0])
        assert await page.run(bottom), "it is shown from its end"
        await appears("the first")
        assert await page.run(bottom)
        await page.run("output.scrollTop = 7")
        await appears("the second")
        assert await page.run("output.scrollTop") == 7

    browse(steps)


def test_an_entry_is_skipped_with_the_keyboard_alone(browse: Any, tmp_path: Path) -> None:
    with TaskQueue(tmp_path / "queue") as queue:
        queue.add("a text")

        async def steps(page: Page, address: str) -> str:
            await page.visit(f"{address}/queue")
            await page.run("document.querySelector('.card a').focus()")
            await page.follow("Enter")
            await page.run("document.querySelector('form [name=confirm]').focus()")
            await page.press(" ")
            await page.press("Tab")
            await page.follow("Enter")
            return await page.run("document.querySelector('.lead').innerText")

        shown = browse(steps)
        entry = queue.show("T-01").entry
        assert shown == f"skipped · {entry.type}"
        assert entry.status == "skipped"


def test_the_arrow_keys_lead_through_the_samples(browse: Any, tmp_path: Path) -> None:
    write_batch(tmp_path / "b", numbered(3))

    async def steps(page: Page, address: str) -> list[str]:
        await page.visit(f"{address}/batches")
        await page.visit((await links(page, "/batch/"))[0])
        await page.visit((await links(page, "/sample/"))[0])
        seen = [await page.run("document.querySelector('h1').textContent")]
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
            await page.follow(key)
            seen.append(await page.run("document.querySelector('h1').textContent"))
        return seen

    assert browse(steps) == ["s0", "s1", "s2", "s1"]


def test_the_prompt_follows_what_is_typed(browse: Any, tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "own.xml").write_text(
        '<task name="a_greeting" type="atomic"><description>d</description><inputs><input name="who"/></inputs>'
        "<instructions>Greet {{ who }}</instructions></task>",
        encoding="utf-8",
    )

    async def steps(page: Page, address: str) -> None:
        await page.visit(f"{address}/templates")
        found = await page.run(
            "[...document.links].find((link) => link.textContent === 'a_greeting').href"
        )
        await page.visit(found)
        await page.run(
            "(() => { const box = document.getElementById('input-1'); box.value = 'Ada <b>';"
            "box.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )
        assert await page.run(
            becomes("document.getElementById('preview').innerText.includes('Greet Ada <b>')")
        )

    browse(steps)
    assert not re.search("tasks", "".join(each.name for each in tmp_path.iterdir()))
