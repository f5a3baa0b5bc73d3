"""A folder watched for documents, offline: python examples/watched_folder/run.py [FOLDER] [-w]

Each document of FOLDER/inbox becomes an entry of a queue. Workers summarise it, a grader verifies
the summary, and the document, its summary and the entry are archived. The program may be killed at
any moment: each step can be repeated, because the key of an entry is the name and content of its
document.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

from evaluator import Evaluator, ModelRequest, SimulatedBackend, TemplateLibrary
from evaluator.queue import GraderVerifier, QueueEntry, TaskQueue

HERE = Path(__file__).parent
SAMPLES = {
    "baikal.md": "Lake Baikal is the deepest lake on Earth. It holds a fifth of all fresh water "
    "that is not frozen.",
    "canal.md": "The Suez Canal, which was opened in 1869 after ten years of work, joins the "
    "Mediterranean Sea to the "
    "Red Sea without a single lock. It is 193 km long.",
    "helium.md": "Helium was seen in the light of the Sun before it was found on Earth. It boils "
    "at 4.2 K.",
}
INBOX, SUMMARIES, DOCUMENTS = "inbox", "summaries", "documents"
MAX_WORDS = 20


def simulated_model(request: ModelRequest) -> str:
    """Answers as a model would: it grades the answer that it is shown, or shortens the document."""
    given = request.hints.inputs
    if "answer" in given:
        words = len(str(given["answer"]).split())
        feedback = (
            f"The summary has {words} words, at most {MAX_WORDS} were asked for."
            if words > MAX_WORDS
            else ""
        )
        return json.dumps({"success": not feedback, "feedback": feedback})
    first = re.split(r"(?<=[.!?])\s", str(given["document"]).strip())[0]
    is_short = "in at most 12 words" in request.messages[-1].content
    return " ".join(first.split()[:12]) + " …" if is_short else first


def make_evaluator(folder: Path) -> Evaluator:
    """The Evaluator of this example: its templates and the shipped ones, of which it uses the
    grader.
    """
    return Evaluator(
        TemplateLibrary.load(HERE / "templates"),
        backend=SimulatedBackend(script=simulated_model),
        tasks_dir=folder / "tasks",
        roots=[folder],
    )


def queue_document(queue: TaskQueue, path: Path) -> QueueEntry:
    """The entry of a document, which is added unless it was added before, even if it is in the
    archive by now.
    """
    data = path.read_bytes()
    return queue.add(
        f"Summarise the document {path.name} of the inbox in at most {MAX_WORDS} words",
        type="info-lookup",
        inputs={"document": data.decode(errors="replace")},
        max_retries=10,  # an attempt that is killed counts
        key=f"{path.name} {hashlib.sha256(data).hexdigest()}",
    )


def put_away(folder: Path, path: Path, entry: QueueEntry) -> None:
    """Stores the summary, then moves the document out of the inbox."""
    assert entry.deliverable_path is not None
    summary = folder / SUMMARIES / path.name
    temporary = summary.with_suffix(".tmp")
    shutil.copyfile(entry.deliverable_path, temporary)
    os.replace(temporary, summary)
    os.replace(path, folder / DOCUMENTS / path.name)
    print(f"{entry.id} {path.name}: {entry.deliverable}", flush=True)


async def run(folder: Path, *, watch: bool) -> None:
    """Works until the inbox has nothing that could be done; with `watch`, until it is stopped."""
    evaluator = make_evaluator(folder)
    with TaskQueue(folder / "queue") as queue:
        grader = GraderVerifier(evaluator, "verify_result")
        while True:
            for path in sorted((folder / INBOX).glob("*.md")):
                queue_document(queue, path)
            await queue.work(evaluator, until_empty=True, verifiers=[grader])
            for path in sorted((folder / INBOX).glob("*.md")):
                entry = queue_document(queue, path)
                if entry.status == "done":
                    put_away(folder, path, entry)
            queue.archive(days=0)
            if not watch:
                return
            await asyncio.sleep(1)


def main(folder: Path, *, watch: bool = False) -> None:
    if not folder.exists():  # the folder appears with all samples or not at all
        new = folder.with_name(f"{folder.name}.new")
        (new / INBOX).mkdir(parents=True, exist_ok=True)
        for name, text in SAMPLES.items():
            (new / INBOX / name).write_text(text + "\n", encoding="utf-8")
        new.rename(folder)
    for name in (INBOX, SUMMARIES, DOCUMENTS):
        (folder / name).mkdir(exist_ok=True)
    asyncio.run(run(folder, watch=watch))


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "-w"]
    with contextlib.suppress(KeyboardInterrupt):  # what runs has returned to the queue
        main(Path(arguments[0] if arguments else "watched"), watch="-w" in sys.argv)
