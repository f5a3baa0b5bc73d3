"""Time of the memory's index on a real tree of files, and how well it finds files of this
repository.

    python bench/memory.py [--tree FOLDER] [--files 12000]

A sample of the tree's files (default: the standard library with all that is installed beside it) is
copied to a work folder, indexed, edited at one place and indexed again. Requests are then timed
against it.

Two sets of requests, written from memory of this repository before they were first run: the weights
of the fields were chosen with one. The other was held out, and looked at once more when the weights
were chosen for FTS5.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from figures import HERE, Figure, parser_for, remarks, report, work_folder

from evaluator.memory import GlobalIndex

LEAST_FILES = 10_000
REQUESTS = (
    "parse http headers",
    "json schema validation errors",
    "read a csv file and convert its columns",
    "how does the event loop cancel tasks",
    "python",
    "unit test for email message parsing with unicode",
    "the quick brown fox",
    "connection pool timeout and retries",
    "I have a report of last year's sales by region; which script draws the figure and where is "
    "its style set?",
    "tokenizer",
)
# A request, and the files of which one has to be found.
HELD_OUT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("where are secrets taken out of what is recorded", ("evaluator/record/redact.py",)),
    (
        "how is a template chosen for a request in words",
        ("evaluator/library/matching.py", "docs/explanation/matching.md"),
    ),
    (
        "limit on cost and tokens of a task",
        ("evaluator/limits/budget.py", "docs/explanation/limits.md"),
    ),
    ("open a file without following symbolic links", ("evaluator/files/open_below.py",)),
    ("repair JSON that a model wrote badly", ("evaluator/output/result.py",)),
    ("run a shell command with a timeout", ("evaluator/processes/scripts.py",)),
    ("stem English words", ("evaluator/library/words.py",)),
    ("what a model costs per token", ("evaluator/models/prices.py",)),
    (
        "a crash while a task file is written",
        ("evaluator/record/journal.py", "docs/explanation/task-files.md"),
    ),
    ("command that lists the handlers", ("evaluator/cli/templates.py",)),
    ("explain why XML is not valid", ("evaluator/xml/layout.py", "evaluator/xml/schema.py")),
    ("director evaluator loop iterations", ("evaluator/interpreter/operators/loop.py",)),
    ("ask the user a question in the terminal", ("evaluator/tools/ask.py",)),
    ("measure throughput against a local server", ("bench/throughput.py",)),
    ("which context does a task inherit", ("evaluator/interpreter/context.py",)),
)
# The requests that the weights were chosen with.
TUNING: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "which HTTP errors of a provider are retried",
        ("evaluator/models/failures.py", "evaluator/handler/session.py"),
    ),
    ("decode the body of a streamed answer", ("evaluator/models/stream.py",)),
    ("load environment and profile files of handlers", ("evaluator/handler/config.py",)),
    ("count tokens before sending", ("evaluator/models/prices.py",)),
    ("walk a glob pattern", ("evaluator/files/roots.py",)),
    (
        "turn a python function into a tool schema",
        ("evaluator/tools/decorator.py",),
    ),
    ("which filters may a template use", ("evaluator/language/filters.py",)),
    (
        "sandbox for expressions",
        (
            "evaluator/language/sandbox.py",
            "docs/explanation/sandbox.md",
            "evaluator/language/expressions.py",
        ),
    ),
    ("bind arguments to declared inputs", ("evaluator/language/inputs.py",)),
    (
        "convert text into a declared type",
        ("evaluator/output/coerce.py", "evaluator/language/scopes.py"),
    ),
    ("resolve ref and include in templates", ("evaluator/library/resolve.py",)),
    ("parse markdown task files back into steps", ("evaluator/record/grammar.py",)),
    ("replay recorded answers without a model", ("evaluator/models/replay.py",)),
    ("simulated model for offline use", ("evaluator/models/simulated.py",)),
    ("run many rows in batch", ("evaluator/interpreter/batch.py",)),
    ("startup time of the import", ("bench/startup.py",)),
    ("check the environment and what is missing", ("evaluator/cli/doctor.py",)),
    ("decomposition of an exhausted task", ("evaluator/interpreter/reparse.py",)),
    (
        "show the prompt that the model would see",
        ("evaluator/interpreter/preview.py", "evaluator/cli/templates.py"),
    ),
    ("glossary of terms", ("docs/reference/glossary.md",)),
    ("encoding and byte order marks of XML sources", ("evaluator/xml/source.py",)),
    ("write nodes back as XML", ("evaluator/xml/write.py",)),
    ("error classes of the package", ("evaluator/errors/__init__.py", "docs/reference/errors.md")),
    ("choose which model answers", ("evaluator/handler/model_choice.py",)),
    ("variables that are undefined or unused", ("evaluator/library/scoping.py",)),
)
ROUNDS = 20


def files_below(tree: Path) -> Iterator[Path]:
    """Regular files that are not compiled from others."""
    for folder, below, names in os.walk(tree):
        below[:] = [name for name in below if name != "__pycache__" and not name.startswith(".")]
        for name in names:
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def copy_sample(tree: Path, count: int, target: Path) -> int:
    """Copies `count` files, always the same ones. Returns: how many."""
    found = sorted(files_below(tree))
    if len(found) < LEAST_FILES:
        raise SystemExit(
            f"{tree} has {len(found)} files; name a tree of at least {LEAST_FILES} with --tree"
        )
    for path in random.Random(7).sample(found, min(count, len(found))):
        place = target / path.relative_to(tree)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    return min(count, len(found))


async def measure(tree: Path, count: int, work: Path) -> list[Figure]:
    copied = copy_sample(tree, count, work / "tree")
    with GlobalIndex(work / "memory.sqlite") as index:
        first = await index.add_folder(work / "tree")
        await asyncio.sleep(
            2.1
        )  # what was modified within two seconds is read again; that is not what is measured
        await index.add_folder(work / "tree")
        edited = next(
            path for path in sorted((work / "tree").rglob("*.py")) if path.stat().st_size > 1000
        )
        with edited.open("a", encoding="utf-8") as file:
            file.write("\n\ndef zebra_crossing():\n    pass\n")
        again = await index.add_folder(work / "tree")
        (found, *_) = await index.get_relevant_context_for("zebra crossing", 1)
        if again.changed != 1 or found.path != str(edited.resolve()):
            raise SystemExit(f"the edit was not found: {again}")
        times: list[float] = []
        for request in REQUESTS * ROUNDS:
            began = time.perf_counter()
            await index.get_relevant_context_for(request, 10)
            times.append(time.perf_counter() - began)
        size = (await index.stats()).size_bytes
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return [
        Figure(f"index {copied} files", first.seconds, "s", 30.0),
        Figure("  after one edit", again.seconds, "s", 1.0),
        Figure(
            f"query among {again.files} files, median", statistics.median(times) * 1e3, "ms", 20.0
        ),
        Figure("  95th percentile", statistics.quantiles(times, n=20)[-1] * 1e3, "ms"),
        Figure("  size of the index", size / 1e6, "MB"),
        Figure("  peak memory of the indexing process", peak / 1e6, "MB"),
    ]


async def recall(work: Path, say: Callable[[str], None]) -> list[Figure]:
    """Of how many requests an expected file of this repository comes first, among five, among
    ten.
    """
    figures: list[Figure] = []
    with GlobalIndex(work / "here.sqlite", relative_to=HERE.parent) as index:
        files = (await index.add_folder(HERE.parent)).files
        for name, requests in (("held out", HELD_OUT), ("tuning", TUNING)):
            ranks: list[int] = []
            for request, expected in requests:
                found = [each.path for each in await index.get_relevant_context_for(request, 10)]
                ranks.append(next((at for at, path in enumerate(found, 1) if path in expected), 0))
                if ranks[-1] != 1:
                    say(f"{name}: {request!r}: rank {ranks[-1] or 'none'}, first {found[:1]}")
            for most in (1, 5, 10):
                what = f"{name}, {len(ranks)} requests to {files} files: right among {most}"
                figures.append(Figure(what, sum(0 < rank <= most for rank in ranks), ""))
    return figures


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--tree", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--files", type=int, default=12_000)
    arguments = parser.parse_args()
    with work_folder(None) as work:
        figures = asyncio.run(measure(arguments.tree, arguments.files, work))
        figures += asyncio.run(recall(work, remarks(arguments.json)))
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
