"""Makes the pictures of the viewer in README.md and in the docs: `make screenshots` (needs
Chromium).

    python -m docs.screenshots [--folder PROJECT] [--output docs/images] [--scheme light|dark]
    [--width 1280] [--all]

It makes a project with runs, three batches, a queue and background tasks against a simulated model,
serves it, and takes the pictures. `--all` takes one of every page; `--folder` leaves the project
there.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestServer

from evaluator import Evaluator, ModelRequest, SimulatedBackend, TemplateLibrary, run_batch
from evaluator.background import BackgroundTasks, ScriptWork
from evaluator.queue import TaskQueue
from evaluator.viewer.server import make_app
from tests.viewer.browser import Page, running, tab

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 150_000
SHOWN = ("start", "batch", "sample", "label", "compare", "run", "queue")
ROWS = [
    json.loads(line)
    for name in ("easy", "medium")
    for line in (ROOT / "examples" / "data" / f"{name}.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
WRONG = ("copper", "Lisbon", "7", "Na", "Jupiter", "Mercury", "Oslo", "12")
LIBRARY = """<library>
<task name="answer_question" type="atomic">
  <description>Answer a question about general knowledge</description>
  <inputs><input name="question" required="true"/></inputs>
  <instructions>Answer in one sentence.

Question: {{ question }}</instructions>
</task>
<task name="write_article" type="sequential">
  <description>Write a short article about {{ topic }} from notes</description>
  <inputs><input name="topic" required="true"/></inputs>
  <steps>
    <task name="notes" type="atomic">
      <description>Collect facts</description>
      <instructions>List facts about {{ topic }}, each with the year in which it was measured.</instructions>
      <output_format type="json" schema="string[]"/>
    </task>
    <task name="draft" type="atomic">
      <description>Write the article</description>
      <instructions>Write three sentences about {{ topic }}. Use only these facts:
{% for fact in steps.notes.parsed %}
- {{ fact }}{% endfor %}</instructions>
    </task>
    <task name="headline" type="atomic">
      <description>Find a headline</description>
      <instructions>Give this article a headline of at most eight words.

{{ steps.draft.content }}</instructions>
    </task>
  </steps>
</task>
</library>
"""
FACTS = json.dumps(
    [
        "Lake Baikal is 1,642 m deep (1983)",
        "It holds 23,600 cubic km of water (2003)",
        "It freezes from January to May",
    ]
)
ARTICLE = (
    "Lake Baikal is the deepest lake on Earth: soundings of 1983 found 1,642 metres. It holds "
    "23,600 cubic kilometres "
    "of fresh water, more than all North American Great Lakes together. From January to May it is "
    "frozen."
)


class Model:
    """Answers as a model would; `right` is the share of questions that it knows, a larger model
    knows more of them.
    """

    def __init__(self, right: float, words: str) -> None:
        self.right = right
        self.words = words
        self.rows = {row["question"]: (number, row["target"]) for number, row in enumerate(ROWS)}

    def __call__(self, request: ModelRequest) -> str:
        text = request.messages[-1].content or ""
        if "List facts" in text:
            return f"Here are the facts:\n```json\n{FACTS[:-1]},]\n```"
        if "Write three" in text:
            return ARTICLE
        if "Give this article" in text:
            return "Baikal, the Deepest Lake on Earth"
        question = text.partition("Question: ")[2].strip()
        number, target = self.rows.get(question, (0, "nothing"))
        known = self.right + (0.09 if request.model.endswith("large") else 0)
        answer = target if (number * 37) % 100 < 100 * known else WRONG[number % len(WRONG)]
        return f"{self.words} {answer}."


async def make_project(folder: Path) -> None:
    (folder / "templates").mkdir(parents=True)
    (folder / "templates" / "library.xml").write_text(LIBRARY, encoding="utf-8")
    library = TemplateLibrary.load(folder / "templates")
    for folder_name, right, words in (
        ("first-draft", 0.58, "I think it is"),
        ("short-answers", 0.72, "It is"),
        ("full-sentences", 0.83, "The right answer is"),
    ):
        evaluator = make_evaluator(library, folder, Model(right, words))
        await run_batch(
            "answer_question",
            ROWS,
            evaluator=evaluator,
            scorers=["includes"],
            metadata=["subject"],
            group_by="subject",
            models=["simulated/small", "simulated/large"],
            name="questions",
            output=folder / "batches" / folder_name,
            display="none",
        )
    evaluator = make_evaluator(library, folder, Model(0.8, "It is"))
    for topic in ("Lake Baikal", "the deepest lake"):
        await evaluator.evaluate("write_article", {"topic": topic})
    for row in ROWS[:6]:
        await evaluator.evaluate("answer_question", {"question": row["question"]})
    await fill_queue(folder, evaluator)


def make_evaluator(library: TemplateLibrary, folder: Path, model: Model) -> Evaluator:
    return Evaluator(
        library,
        backend=SimulatedBackend(script=model, latency_s=0.02),
        tasks_dir=folder / "tasks",
        roots=[folder],
        notice=lambda line: None,
    )


async def fill_queue(folder: Path, evaluator: Evaluator) -> None:
    async def refuse(result: Any) -> str | None:
        return (
            "the answer does not name its source" if "source" in result.entry.description else None
        )

    with TaskQueue(folder / "queue", notice=lambda line: None) as queue:
        for row in ROWS[3:6]:
            queue.add(
                row["question"], template="answer_question", inputs={"question": row["question"]}
            )
        queue.add(
            "Say how deep Lake Baikal is, with the source",
            template="write_article",
            inputs={"topic": "Lake Baikal"},
            max_retries=1,
        )
        await queue.work(evaluator, until_empty=True, verifiers=[refuse])
        queue.add("Write an article about the deepest lake", priority=2)
        queue.add("Summarise the reports of March for the board", needs=["T-05"])
        queue.add("Compare the populations of Oslo and Lisbon")
        queue.skip("T-07")


@contextlib.asynccontextmanager
async def background_tasks(folder: Path) -> Any:
    lines = 'for n in $(seq 1 40); do echo "epoch $n  loss 0.$((90 - n))"; done'
    async with BackgroundTasks(folder / "tasks" / "background") as tasks:
        done = tasks.start(ScriptWork(["sh", "-c", lines], cwd=folder), "train a small model")
        await tasks.wait(done.id)
        tasks.start(
            ScriptWork(["sh", "-c", f"{lines}; sleep 600"], cwd=folder), "train the large model"
        )
        yield


async def addresses(page: Page, root: str) -> dict[str, str]:
    """The address of each page by its name."""

    async def first(start: str, prefix: str, text: str = "") -> str:
        await page.visit(start)
        await drawn(page)
        found = f"[...document.querySelectorAll('main a[href^=\"{prefix}\"]')]"
        return await page.run(
            f"({found}.find((link) => link.closest('tr, li').innerText.includes('{text}'))).href"
        )

    batch = await first(f"{root}/batches", "/batch/", "full-sentences")
    other = await first(f"{root}/batches", "/batch/", "short-answers")
    ids = [re.findall(r"/batch/([0-9a-f]+)", each)[0] for each in (other, batch)]
    run = await first(f"{root}/runs", "/run/", "write_article")
    return {
        "start": f"{root}/",
        "runs": f"{root}/runs",
        "run": f"{run}#step-4",
        "batches": f"{root}/batches",
        "batch": f"{batch}?chip=mixed",
        "sample": await first(f"{batch}?chip=flipped", "/sample/"),
        "label": f"{batch.replace('/batch/', '/label/')}?labeller=ada",
        "compare": f"{root}/compare?a={ids[0]}&b={ids[1]}&from=failed&to=passed",
        "queue": f"{root}/queue",
        "entry": await first(f"{root}/queue", "/queue/", "source"),
        "background": f"{root}/background",
        "task": await first(f"{root}/background", "/background/", "large"),
        "templates": f"{root}/templates",
        "template": await first(f"{root}/templates", "/template/", "write_article"),
    }


async def drawn(page: Page) -> None:
    """Returns once the page is drawn, with its numbers."""
    await page.run(
        "new Promise((done) => { const look = () => document.documentElement.dataset.ready"
        " && !/being (computed|read)/.test(document.body.innerText) ? done() : setTimeout(look, 50);"
        " look(); })"
    )


async def take(page: Page, address: str, width: int, height: int) -> bytes:
    """The picture of a page, once its numbers are there."""
    await page.resize(width, height)
    await page.visit(address)
    await drawn(page)
    picture = await page.send("Page.captureScreenshot", format="png", optimizeForSpeed=False)
    return base64.b64decode(picture["data"])


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--scheme", default="light", choices=("light", "dark"))
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=760)
    parser.add_argument("--all", action="store_true")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = (given.folder or Path(temporary) / "questions").absolute()
        if not folder.exists():
            await make_project(folder)
        with running(Path(temporary) / "profile") as browser:
            async with (
                background_tasks(folder),
                TestServer(make_app(folder, "token"), host="127.0.0.1") as server,
                tab(browser) as page,
            ):
                root = f"http://127.0.0.1:{server.port}"
                await page.media(scheme=given.scheme)
                await page.visit(f"{root}/?token=token")
                pages = await addresses(page, root)
                await take_all(
                    page, {name: pages[name] for name in (pages if given.all else SHOWN)}, given
                )


async def take_all(page: Page, pages: Mapping[str, str], given: argparse.Namespace) -> None:
    for name, address in pages.items():
        path = given.output / f"view-{name}.png"
        picture = await take(page, address, given.width, given.height)
        path.write_bytes(picture)
        size = len(picture)
        print(f"{path}: {size:,} bytes")
        if size > MAX_BYTES and not given.all:
            raise SystemExit(f"{path} has more than {MAX_BYTES:,} bytes; show less in it")


if __name__ == "__main__":
    asyncio.run(main())
