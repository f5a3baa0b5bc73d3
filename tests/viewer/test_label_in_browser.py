"""The labelling page in a real browser: the keyboard alone, a narrow page, two labellers, and a killed server."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluator.batch.labels import read_labels
from tests.batch.labelled import judged_batch
from tests.viewer.browser import (
    WIDE,
    Page,
    becomes,
    find_chromium,
    links,
    opened,
    tab,
)

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs chromium on the PATH")
HIDDEN = ("small", "some/model", "topic", "s0", "bob")
TOKEN = "JSON.parse(document.getElementById('data').textContent).token"
# Without the form's random token, which can contain any short word.
SHOWN = f"document.documentElement.outerHTML.replaceAll({TOKEN}, '')"
ASKED = "document.getElementById('asked')"


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "evaluator", "view", "--no-browser", str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


async def tab_to(page: Page, condition: str) -> None:
    for _ in range(60):
        if await page.run(f"document.activeElement.{condition}"):
            return
        await page.press("Tab")
    raise AssertionError(f"Tab does not lead to {condition}")


async def begin(page: Page, address: str, labeller: str = "ada") -> None:
    """Leads from the start to the first question, with the keyboard alone."""
    await opened(page, address)
    await tab_to(page, "innerText === 'quiz'")
    await page.follow("Enter")
    await page.run(becomes("document.querySelector('#head a[href^=\"/label/\"]')"))
    await tab_to(page, "innerText === 'label'")
    await page.follow("Enter")
    await page.run(becomes("document.getElementById('label-labeller')"))
    await tab_to(page, "id === 'label-labeller'")
    await page.send("Input.insertText", text=labeller)
    await page.follow("Enter")
    await page.run(becomes(ASKED))


async def answer(page: Page, key: str) -> None:
    """Presses a key and returns when the next question, or the end, is shown."""
    question = await page.run(f"(document.body.focus(), {ASKED}.dataset.old = '1')")
    assert question
    await page.press(key)
    await page.run(becomes(f"!({ASKED} || document.body).dataset.old"))


def test_a_person_labels_with_the_keyboard_alone_while_another_does_and_the_server_is_killed(
    tmp_path: Path, browser: str
) -> None:
    batch = judged_batch(tmp_path / "quiz", samples=12)

    def verdicts() -> list[str]:
        return [each.verdict for each in read_labels(batch.folder) if each.labeller == "ada"]

    async def first(page: Page, other: Page, process: subprocess.Popen[str], address: str) -> None:
        await page.resize(400)
        await begin(page, address)
        await begin(other, address, labeller="bob")
        for key in "pf":
            await answer(other, "p")
            shown = await page.run(SHOWN)
            assert not [hidden for hidden in HIDDEN if hidden in shown]
            assert await page.run(WIDE) <= 0
            await answer(page, key)
        await page.press("n")
        await page.send("Input.insertText", text="why not")
        await page.press("Enter")
        await answer(page, "?")
        assert read_labels(batch.folder)[-1].note == "why not"
        await page.press("v")
        await page.send("Input.insertText", text="0.75")
        await answer(page, "Enter")
        await answer(page, "u")
        assert verdicts() == ["passed", "failed", "undecided", "passed", "removed"]
        await answer(page, "s")
        process.send_signal(signal.SIGKILL)
        process.wait()
        await page.press("p")
        said = "document.getElementById('connection').innerText"
        await page.run(becomes(f"{said}.includes('may not be stored')"))
        assert len(verdicts()) == 5

    async def second(page: Page, address: str) -> None:
        await begin(page, address)
        while await page.run(f"Boolean({ASKED})"):
            await answer(page, "f")
        shown = await page.run("document.getElementById('main').innerText")
        assert " of 12 results labelled" in shown and "Cohen's κ" in shown
        assert "differs" in shown and await page.run(WIDE) <= 0
        assert len(await links(page, "/sample/")) == 12

    async def whole() -> None:
        async with tab(browser) as page:
            async with tab(browser) as other:
                with serving(tmp_path) as (process, address):
                    await first(page, other, process, address)
            with serving(tmp_path) as (_, address):
                assert re.search("token=", address)
                await second(page, address)

    asyncio.run(whole())
    labels = read_labels(batch.folder)
    assert len({each.key for each in labels if each.labeller == "ada"}) == 12
    assert [each.verdict for each in labels if each.labeller == "bob"] == ["passed", "passed"]
