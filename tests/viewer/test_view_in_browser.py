"""The viewer in a real browser: nothing leaves the machine, hostile texts stay texts, pages update themselves, keys work."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from evaluator import ModelRequest, ModelResponse, SimulatedBackend, TaskStore, run_batch
from evaluator.batch import BatchLimits, Score, open_batch
from evaluator.batch.control import ControlLog
from evaluator.batch.folder import BatchFolder
from evaluator.batch.labels import append_labels
from evaluator.queue import TaskQueue
from evaluator.record.steps import StepEnd, StepStart, Summary
from evaluator.viewer.server import make_app, progress, queues
from tests.batch.conftest import QUIZ
from tests.batch.export.results import EACH, FAILED, HOSTILE, PASSED, hostile, result
from tests.batch.labelled import label_of
from tests.conftest import MakeEvaluator
from tests.viewer.batches import append, numbered, write_batch
from tests.viewer.browser import (
    WIDE,
    Page,
    becomes,
    find_chromium,
    links,
    opened,
    tab,
)
from tests.viewer.site import TOKEN
from tests.viewer.tasks import add_task, append_output

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs chromium on the PATH")

FAILURES = (PASSED, FAILED, replace(FAILED, sample_id="other"))
Steps = Callable[[Page, str], Awaitable[Any]]


@pytest.fixture
def browse(browser: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Steps], Any]:
    """Runs steps with a tab that has opened the address; the console stays empty and only the server is asked."""
    # Pages ask again at once, so that no test waits for the next time.
    monkeypatch.setattr(progress, "LIVE_MS", 20)
    monkeypatch.setattr(queues, "OUTPUT_MS", 20)

    def go(steps: Steps) -> Any:
        async def whole() -> Any:
            async with (
                TestServer(make_app(tmp_path, TOKEN), host="127.0.0.1") as server,
                tab(browser) as page,
            ):
                address = f"http://127.0.0.1:{server.port}"
                await opened(page, f"{address}/?token={TOKEN}")
                found = await steps(page, address)
                assert page.problems == []
                assert [each for each in page.requests if not each.startswith(f"{address}/")] == []
                return found

        return asyncio.run(whole())

    return go


async def main_pages(page: Page, address: str) -> list[str]:
    """The address of each kind of page."""
    lists = {
        "runs": "/run/",
        "batches": "/batch/",
        "templates": "/template/",
        "queue": "/queue/",
        "background": "/background/",
    }
    found = [f"{address}/{name}" for name in (*lists, "", "search?text=a")]
    for start, prefix in lists.items():
        await opened(page, f"{address}/{start}")
        of_kind = await links(page, prefix)
        found.append(of_kind[0])
        if start == "batches":
            a, b = (each.rpartition("/")[2] for each in dict.fromkeys(of_kind))
            found.append(f"{address}/compare?a={a}&b={b}")
            found.append(f"{address}/label/{b}")
            found.append(f"{address}/label/{b}?labeller=ada")
            found.append(f"{address}/label/{b}?labeller=bob&finish=1")
            await opened(page, found[-5])
            found.append((await links(page, "/sample/"))[0])
    return found


def write_project(root: Path) -> None:
    write_batch(
        root / "a",
        [*EACH, *hostile()],
        cells=[{"template": "answer", "variant": "small"}, *hostile_cells()],
    )
    other = [replace(each, content="other words " * 50) for each in EACH]
    write_batch(root / "b", other, scorers={"includes": {}}, state="stopped")
    labels = [
        label_of(result, name, scorer="includes", note=text)
        for result in open_batch(root / "b").results()
        for name, text in zip(("bob", HOSTILE[0]), HOSTILE, strict=False)
    ]
    append_labels(root / "b", labels)
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
            await opened(page, each)
            assert "owned" not in await page.run("document.title.slice(0, 5)"), each
            grown = "document.querySelectorAll('main img, iframe, object, embed, base').length"
            assert await page.run(grown) == 0, each
            for width in (1280, 400):
                await page.resize(width)
                assert await page.run(WIDE) <= 0, (each, width)

    browse(steps)


def test_axe_finds_nothing_on_any_page(browse: Any, tmp_path: Path) -> None:
    """Every rule in light, and the contrast of texts in dark too."""
    write_project(tmp_path)
    axe = gzip.decompress((Path(__file__).parent / "vendor" / "axe.min.js.gz").read_bytes())

    def check(options: str) -> str:
        return (
            f"axe.run({options}).then(({{violations}}) => violations"
            ".filter(({impact}) => impact !== 'minor')"
            ".map(({id, nodes}) => [id, nodes.length, nodes[0].html]))"
        )

    async def steps(page: Page, address: str) -> None:
        for each in await main_pages(page, address):
            await opened(page, each)
            await page.run(f"{axe.decode()}; 0")
            await page.media(scheme="light")
            assert await page.run(check("{}")) == [], each
            await page.media(scheme="dark")
            assert await page.run(check("{runOnly: ['color-contrast']}")) == [], each

    browse(steps)


def test_the_keyboard_alone_leads_from_the_start_to_a_failed_sample_and_to_the_comparison(
    browse: Any, tmp_path: Path
) -> None:
    write_batch(tmp_path / "a", [replace(each, place=n) for n, each in enumerate(FAILURES)])
    write_batch(tmp_path / "b", [replace(each, place=n) for n, each in enumerate(EACH)])

    async def steps(page: Page, address: str) -> None:
        async def tab_to(text: str) -> None:
            """Presses Tab until the element with this text has the focus."""
            words = "(document.activeElement.ariaLabel || document.activeElement.innerText).trim()"
            for _ in range(60):
                if (await page.run(words)).startswith(text):
                    return
                await page.press("Tab")
            raise AssertionError(f"Tab does not lead to {text!r}")

        async def title_is(text: str) -> None:
            await page.run(becomes(f"document.querySelector('h1')?.innerText.trim() === '{text}'"))

        await title_is(tmp_path.name)
        await tab_to("a")
        await page.follow("Enter")
        await title_is("a")
        await tab_to("Failed")
        await page.press("Enter")
        await page.run(becomes("document.querySelectorAll('#samples tbody tr').length === 2"))
        await tab_to("tin")
        await page.follow("Enter")
        await title_is("tin")
        assert "no 'tin' in it" in await page.run("document.querySelector('.reason').innerText")
        await page.follow("j")
        await title_is("other")
        await page.follow("u")
        await title_is("a")
        assert await page.run("document.querySelectorAll('#samples tbody tr').length") == 2
        await tab_to("compare")
        await page.follow("Enter")
        await title_is("Compare")
        while await page.run("document.activeElement.id") != "choose-b":
            await page.press("Tab")
        await page.press("ArrowDown")
        await tab_to("Compare")
        await page.follow("Enter")
        await page.run(becomes("document.querySelector('.verdict-words')"))
        words = await page.run("document.querySelector('.verdict-words').innerText")
        assert words.startswith("b is ")
        await page.press("/")
        assert await page.run("document.activeElement.id") == "find"

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
        await opened(page, f"{address}/batches")
        await opened(page, (await links(page, "/batch/"))[0])
        await page.run("document.getElementById('filter-text').value = 'typed'; window.same = true")
        append(path, result("s2"))
        assert await page.run(
            becomes("document.getElementById('head').innerText.includes('3 of 4 results')")
        )
        assert await page.run("document.querySelectorAll('#samples tbody tr').length") == 3
        assert (
            await page.run("window.same && document.getElementById('filter-text').value") == "typed"
        )

    browse(steps)


def test_a_running_batch_announces_its_end_and_what_is_open_stays_where_it_was(
    browse: Any, tmp_path: Path
) -> None:
    path = write_batch(tmp_path / "b", numbered(60), state="running", total=61)

    async def steps(page: Page, address: str) -> None:
        await opened(page, f"{address}/batches")
        await opened(page, (await links(page, "/batch/"))[0])
        await page.run(becomes("document.getElementById('all-numbers')"))
        await page.run("document.getElementById('columns').open = true; scrollTo(0, 500)")
        before = await page.run(
            "document.querySelector('#samples tbody tr:nth-child(9)').getBoundingClientRect().y"
        )
        ControlLog(path, "2026-03-04").send("pause")
        said = "document.getElementById('announcement').textContent"
        assert await page.run(becomes(f"{said}.includes('b is paused')"))
        ControlLog(path, "2026-03-04").send("continue")
        append(path, result("s60", place=60))
        with BatchFolder.open(path) as folder:
            folder.write_manifest(folder.manifest() | {"state": "complete"})
        assert await page.run(becomes(f"{said}.includes('b is complete: 61 passed')"))
        assert "(complete)" in await page.run("document.title")
        after = await page.run(
            "document.querySelector('#samples tbody tr:nth-child(9)').getBoundingClientRect().y"
        )
        assert abs(after - before) < 60, "nothing jumps"
        assert await page.run("document.getElementById('columns').open")
        await page.run("document.getElementById('all-numbers').open = true")
        assert await page.run(becomes("document.querySelector('#numbers svg.histogram')"))

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

        await opened(page, f"{address}/background")
        await opened(page, (await links(page, "/background/"))[0])
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
            await opened(page, f"{address}/queue")
            await page.run("document.querySelector('.card a').focus()")
            await page.follow("Enter")
            await page.run("document.querySelector('form [name=confirm]').focus()")
            await page.press(" ")
            await page.press("Tab")
            await page.follow("Enter")
            await page.run(
                becomes("document.querySelector('.title .badge')?.innerText === 'skipped'")
            )
            return await page.run("document.querySelector('.lead').innerText")

        shown = browse(steps)
        entry = queue.show("T-01").entry
        assert shown == entry.type
        assert entry.status == "skipped"


def test_the_arrow_keys_lead_through_the_samples(browse: Any, tmp_path: Path) -> None:
    write_batch(tmp_path / "b", numbered(3))

    async def steps(page: Page, address: str) -> list[str]:
        await opened(page, f"{address}/batches")
        await opened(page, (await links(page, "/batch/"))[0])
        await opened(page, (await links(page, "/sample/"))[0])
        seen = [await page.run("document.querySelector('h1').textContent")]
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
            await page.follow(key)
            await page.run(becomes("document.querySelector('h1')"))
            seen.append(await page.run("document.querySelector('h1').textContent"))
        return seen

    assert browse(steps) == ["s0", "s1", "s2", "s1"]


DIFFERENCES = [
    ("the cat sat", "the dog sat"),
    ("a\nb\nc", "a\nc"),
    ("", "new"),
    ("same", "same"),
    ("word " * 900 + "one end", "word " * 900 + "other end"),
    ("line\n" * 900, "other\n" * 900),
    ("é 日本 x", "é 日 x"),
]


def test_the_differences_of_two_answers_make_up_both_texts(browse: Any, tmp_path: Path) -> None:
    """As the page marks them: what is not marked is the same on both sides."""
    for place, name in enumerate("ab"):
        passed = {"scores": {"s": Score(float(place), bool(place))}}
        rows = [
            result(str(n), place=n, content=texts[place], **passed)
            for n, texts in enumerate(DIFFERENCES)
        ]
        write_batch(tmp_path / name, rows)

    async def steps(page: Page, address: str) -> Any:
        await opened(page, f"{address}/batches")
        ids = [each.rpartition("/")[2] for each in await links(page, "/batch/")]
        await opened(page, f"{address}/compare?a={ids[0]}&b={ids[1]}&from=failed&to=passed")
        side = "[...pre.childNodes].map((node) => [node.textContent, node.nodeType !== Node.TEXT_NODE])"
        return await page.run(
            "[...document.querySelectorAll('.pair')].map((pair) =>"
            f" [...pair.querySelectorAll('pre')].map((pre) => {side}))"
        )

    pairs = browse(steps)
    assert len(pairs) == len(DIFFERENCES)
    for texts, sides in zip(DIFFERENCES, pairs, strict=True):
        assert tuple("".join(text for text, _ in side) for side in sides) == texts
        same = ["".join(text for text, is_marked in side if not is_marked) for side in sides]
        assert same[0] == same[1]
    assert [text for text, is_marked in pairs[4][1] if is_marked] == [" other"]
    assert not any(is_marked for side in pairs[3] for _, is_marked in side)


MARKED = """# Answer

- **bold** and `code`
- [link](https://evil.example/x) ![image](https://evil.example/y.png)

```json
{"a": [1, 2]}
```

| h | i |
|---|---|
| 1 | <b onclick=alert(1)>2</b> |

<script>document.title = "owned"</script>
"""


def test_markdown_and_json_are_rendered_and_lead_nowhere(browse: Any, tmp_path: Path) -> None:
    deep = "> " * 3_000 + "x"
    big = '{"id": 12345678901234567890}'
    rows = [
        result(str(n), place=n, content=text, task_id=None)
        for n, text in enumerate((MARKED, '{"k": {"inner": [true]}}', big, deep))
    ]
    write_batch(tmp_path / "b", rows)

    async def steps(page: Page, address: str) -> None:
        await opened(page, f"{address}/batches")
        await opened(page, (await links(page, "/batch/"))[0])
        samples = list(dict.fromkeys(await links(page, "/sample/")))
        await opened(page, samples[0])
        answer = "document.querySelector('main .markdown')"
        assert await page.run(f"{answer}.querySelector('strong').textContent") == "bold"
        assert await page.run(f"{answer}.querySelectorAll('a, img, script, b').length") == 0
        text = await page.run(f"{answer}.textContent")
        for part in ("https://evil.example/x", "<b onclick=alert(1)>2</b>", "<script>"):
            assert part in text
        assert await page.run(f"{answer}.querySelector('.json .json-key').textContent") == "a"
        raw = "document.querySelector('[aria-label=\"raw answer\"]')"
        await page.run(f"{raw}.click()")
        shown = f"{raw}.closest('.value').querySelector(':scope > pre').textContent"
        assert await page.run(shown) == MARKED
        await opened(page, samples[1])
        assert await page.run("document.querySelector('main .json details').open")
        for number, exact in ((2, big), (3, deep)):
            await opened(page, samples[number])
            assert exact in await page.run("document.querySelector('main').textContent")

    browse(steps)


def test_a_run_shows_the_chosen_step_beside_its_tree(browse: Any, tmp_path: Path) -> None:
    journal = TaskStore(tmp_path / "tasks").create("r", {"text": "t"}, template="t")
    call = {"id": "c1", "name": "search", "arguments": {"q": "lead"}}
    for number, (path, answer) in enumerate(
        (("iterations[1]", "one draft"), ("iterations[2]", "two drafts"))
    ):
        sent = [{"role": "user", "content": f"round {number}"}]
        journal.note(
            StepStart(
                f"{path}/turn[1]",
                "model",
                "m",
                {"messages": sent},
                backoff_s=2.0 * number or None,
                attempt=1 + number,
                max_attempts=3,
            ),
            StepEnd("success", {"content": "", "tool_calls": [call]}, 0.1),
        )
        told = [{"role": "tool", "tool_call_id": "c1", "content": "it is a metal"}]
        journal.note(
            StepStart(f"{path}/turn[2]", "model", "m", {"messages": told}),
            StepEnd("success", {"content": answer}, 0.1),
        )
    journal.begin(StepStart("iterations[3]/turn[1]", "model", "m", {"messages": []}))
    journal.flush()
    pane = "document.getElementById('pane')"

    async def steps(page: Page, address: str) -> None:
        await opened(page, f"{address}/runs")
        await opened(page, (await links(page, "/run/"))[0])
        assert "There is no result yet" in await page.run(f"{pane}.innerText")
        await page.run(
            "[...document.querySelectorAll('.steps a')].find((a) => a.id === 'to-step-3').click()"
        )
        await page.run(becomes(f"{pane}.innerText.includes('two drafts')"))
        assert "it is a metal" in await page.run(
            f"{pane}.querySelector('.call .call-result').textContent"
        )
        marked = f"[...{pane}.querySelectorAll('del, ins')].map((each) => each.textContent.trim())"
        assert await page.run(marked) == ["one draft", "two drafts"]
        await page.press("k")
        await page.run(becomes(f"{pane}.innerText.includes('iterations[2]/turn[1]')"))
        await page.press("j")
        await page.run(becomes(f"{pane}.innerText.includes('iterations[2]/turn[2]')"))
        await page.run("document.getElementById('iteration-1').click()")
        await page.run(
            becomes(
                f"{pane}.innerText.includes('one draft') && !{pane}.innerText.includes('two drafts')"
            )
        )

    browse(steps)
    journal.close(Summary("completed", 4, 0, 0.1))


def test_the_prompt_follows_what_is_typed(browse: Any, tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "own.xml").write_text(
        '<task name="a_greeting" type="atomic"><description>d</description><inputs><input name="who"/></inputs>'
        "<instructions>Greet {{ who }}</instructions></task>",
        encoding="utf-8",
    )

    async def steps(page: Page, address: str) -> None:
        await opened(page, f"{address}/templates")
        found = await page.run(
            "[...document.links].find((link) => link.textContent === 'a_greeting').href"
        )
        await opened(page, found)
        await page.run(
            "(() => { const box = document.getElementById('input-1'); box.value = 'Ada <b>';"
            "box.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )
        assert await page.run(
            becomes("document.getElementById('preview').innerText.includes('Greet Ada <b>')")
        )

    browse(steps)
    assert not re.search("tasks", "".join(each.name for each in tmp_path.iterdir()))


class GatedBackend(SimulatedBackend):
    """Answers a call when `gate` lets it through; every second answer is right."""

    def __init__(self) -> None:
        super().__init__(script=lambda request: str(int(request.messages[-1].content[-3]) % 2))
        self.gate = asyncio.Semaphore(0)

    async def complete(self, request: ModelRequest, *rest: Any, **named: Any) -> ModelResponse:
        await self.gate.acquire()
        return await super().complete(request, *rest, **named)


def test_the_looks_of_a_running_batch_are_shown_with_their_boundaries(
    browse: Any, make_evaluator: MakeEvaluator, tmp_path: Path
) -> None:
    rows = [{"id": f"r{n}", "question": f"{n} ?", "target": "1"} for n in range(40)]
    look = "[...document.querySelectorAll('[aria-label=\"Looks\"] tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
    status = "document.querySelector('#decision [role=status]')"

    async def steps(page: Page, address: str) -> Any:
        backend = GatedBackend()
        evaluator = make_evaluator(QUIZ, backend=backend)
        session = asyncio.create_task(
            run_batch(
                "quiz",
                rows,
                evaluator=evaluator,
                scorers=["exact"],
                output=tmp_path / "b",
                limits=BatchLimits(concurrency=2),
                decide={"detect": 0.3, "baseline": 0.5, "stop_early": True},
            )
        )
        first: list[str] = []
        while not first:
            await opened(page, f"{address}/batches")
            first = await links(page, "/batch/")
        await opened(page, first[0])
        planned = await page.run(look)
        for _ in range(int(planned[0][1].partition(" of ")[0])):
            backend.gate.release()
        shows = f"{status} && {status}.innerText.startsWith"
        await page.run(becomes(f"{shows}('Look 1 of 5 taken: not decided yet.')"))
        taken = await page.run(look)
        for _ in range(100):
            backend.gate.release()
        await page.run(becomes(f"{shows}('Stopped at look ')"))
        plot = "document.querySelectorAll('#decision svg.looks .point').length"
        return planned, taken, await page.run(look), await page.run(plot), await session

    planned, taken, decided, points, found = browse(steps)
    decision = found.summary.decision
    assert [row[0] for row in planned] == [f"{number} of 5" for number in range(1, 6)]
    assert [row[-1] for row in planned] == ["ahead"] * 5
    assert [row[-1] for row in taken] == ["continue", *["ahead"] * 4]
    stops = [float(row[5]) for row in taken]
    assert stops == sorted(stops, reverse=True) and stops[-1] > 1.96
    assert len(decided) == len(decision.looks) == points < 5
    assert decided[-1][-1] == decision.last.verdict == "futile"
    assert decided[-1][4] == f"{abs(decision.last.z):.2f}"
