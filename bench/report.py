"""What a report of 10,000 samples costs: writing it, its size, and opening it in Chromium.

    python bench/report.py [--samples 10000] [--keep report.html]

Opening is from the start of navigation until the page has built its tables and plots, the median of
five, in a headless Chromium at 1,280 x 900. Without a Chromium on the PATH only writing is
measured. `--keep` leaves the report there.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, parser_for, remarks, report

from evaluator.batch.records import Failure, SampleResult, Score, verdict_of
from evaluator.errors.results import Usage
from evaluator.viewer import ReportBatch, write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
GOAL_OPEN_S = 1.0
WORDS = (
    "ore",
    "melts",
    "dense",
    "silver",
    "below",
    "water",
    "found",
    "alloy",
    "soft",
    "bright",
    "oxide",
    "rare",
)
LABELS = ("metal", "nonmetal", "metalloid")
ERRORS = (
    Failure("TASK_FAILURE", "provider_failure", "the model answered 503 four times", True),
    Failure(
        "INVALID_OUTPUT", "output_format_failure", "expected an object with `label`, found a text"
    ),
    Failure("RESOURCE_EXHAUSTION", "execution_timeout", "60 s have passed", True),
)


def results(count: int, seed: int = 7) -> Iterator[SampleResult]:
    """`count` results of two templates with two models: some 80 words each, two scorers, all four
    verdicts.
    """
    chance = random.Random(seed)
    for number in range(count):
        template, variant = ("classify", "explain")[number % 2], ("small", "large")[number // 2 % 2]
        sample = number // 4
        target = LABELS[sample % len(LABELS)]
        draw = chance.random()
        failure = chance.choice(ERRORS) if draw < 0.03 else None
        right = draw < (0.75 if variant == "small" else 0.88)
        answer = target if right else chance.choice(LABELS)
        text = " ".join(chance.choices(WORDS, k=80))
        scores = {
            "label": Score(
                float(answer == target),
                answer == target,
                answer,
                f"read {answer!r}, expected {target!r}",
            ),
            "rubric": Score(None, None, explanation="the judge gave no grade")
            if draw > 0.98
            else Score(
                round(chance.betavariate(6, 2), 3),
                True,
                explanation=f"It {chance.choice(WORDS)}s well.",
            ),
        }
        scores = {} if failure else scores
        price = 0.0002 if variant == "small" else 0.0011
        verdict = verdict_of(failure, scores.values())
        yield SampleResult(
            f"{number:032x}",
            f"element-{sample:05d}",
            sample,
            1,
            template,
            variant,
            verdict,
            {"element": f"element {sample}", "notes": " ".join(chance.choices(WORDS, k=20))},
            target,
            {"level": ("easy", "medium", "hard")[sample % 3]},
            f"m-{variant}",
            "" if failure else f"{text}. {answer}",
            {"label": answer},
            scores,
            failure,
            Usage(
                chance.randint(80, 400),
                chance.randint(10, 200),
                0,
                0,
                price * (0.5 + chance.random()),
                1,
            ),
            chance.lognormvariate(0 if variant == "small" else 0.6, 0.5),
            "2026-03-04T05:06:07+00:00",
            number,
            f"tasks/TASK-{number:06d}.md",
        )


def opened_s(browser: str, page: Path) -> float:
    """Seconds from the start of navigation until every table of the page is there, by the page's
    own clock.
    """
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            f"--user-data-dir={profile}",
            "--window-size=1280,900",
            "--dump-dom",
            page.as_uri(),
        ]
        shown = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=True
        ).stdout
    found = re.search(r'data-ready="(\d+)"', shown[:2_000])
    if found is None:
        raise RuntimeError("the page did not come to its end in the browser")
    return int(found[1]) / 1000


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    say = remarks(arguments.json)
    rows = list(results(arguments.samples))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        manifest = {"name": "elements", "created": "2026-03-04T05:06:07+00:00"}
        started = time.perf_counter()
        written = write_report(page, [ReportBatch(rows, manifest, folder=folder)])
        took = time.perf_counter() - started
        figures = [
            Figure(f"writing a report of {arguments.samples:,} samples", took, "s"),
            Figure("its size", written.size_bytes / 1e6, "MB"),
        ]
        browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
        if browser is None:
            say("no Chromium on the PATH: opening the page is not measured")
        else:
            times = [opened_s(browser, page) for _ in range(5)]
            say(f"opened in {json.dumps([round(each, 3) for each in times])} s")
            figures.append(
                Figure("opening it in Chromium", statistics.median(times), "s", GOAL_OPEN_S)
            )
        if arguments.keep:
            shutil.copyfile(page, arguments.keep)
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
