"""Time of `TemplateLibrary.match` among 1,000 templates.

    python bench/match.py [--count 1000]

The templates are made of verbs, objects and manners, so that they share words as a real library's
do, and have descriptions, criteria, inputs and examples. A thousand requests in five shapes, some
of which fit nothing; then one request of 100 kB. The index is built by the first request, which is
not counted but shown. Then quality, on the held-out half of `tests/library/match_requests.json`.
Public collections need a download: see `match_public.py`.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from figures import HERE, Figure, parser_for, report

from evaluator import TemplateLibrary
from evaluator.library import Match
from evaluator.library.matching import LOW_SCORE

GOAL_MS = 1.0
_VERBS = """
    summarise translate classify extract compare grade review rewrite explain plan count convert
    validate outline label rank merge split clean annotate
"""
VERBS = _VERBS.split()
_OBJECTS = """
    invoice contract email ticket essay paper abstract patent recipe letter transcript tweet review
    log table query function script schema dataset map timeline budget menu lecture poem speech
    survey resume report article minutes policy claim receipt order brochure manual glossary
"""
OBJECTS = _OBJECTS.split()
_MANNERS = """
    for lawyers | for children | in plain language | as a table | with citations | by topic | by
    date | for the press | in one sentence | with a rubric | against a source | step by step
"""
MANNERS = _MANNERS.split("|")
_WORDS = """
    river metal planet engine market climate vaccine bridge orbit protein harbour museum election
    glacier battery forest satellite currency theatre railway enzyme volcano archive tunnel harvest
    telescope
"""
WORDS = _WORDS.split()


def write(folder: Path, count: int, rng: random.Random) -> None:
    """Writes `count` atomic templates."""
    combinations = list(itertools.product(VERBS, OBJECTS, MANNERS))
    for verb, thing, manner in rng.sample(combinations, count):
        manner = manner.strip()
        name = "_".join([verb, thing, *manner.split()])
        (folder / f"{name}.xml").write_text(
            template(name, verb, thing, manner, rng), encoding="utf-8"
        )


def template(name: str, verb: str, thing: str, manner: str, rng: random.Random) -> str:
    def prose(length: int) -> str:
        return " ".join(rng.choices(WORDS, k=length))

    example = f"""<example><input name="{thing}">{prose(40)}</input><output>"{prose(20)}"</output></example>"""
    return f"""<task type="atomic" name="{name}">
  <description>{verb.capitalize()} a {thing} {manner}</description>
  <criteria>{verb}, {rng.choice(OBJECTS)}, {rng.choice(WORDS)}</criteria>
  <inputs>
    <input name="{thing}" type="string" required="true">The {thing} to work on</input>
    <input name="length" type="integer" default="100">Longest allowed length in words</input>
  </inputs>
  <instructions>{verb} this {manner} in {{{{ length }}}} words: {{{{ {thing} }}}}. {prose(60)}</instructions>
  <output_format type="json" schema="string"/>
  <examples>{example}{example}</examples>
</task>
"""


def requests(count: int, rng: random.Random) -> list[str]:
    shapes = (
        "{verb} this {thing} {manner}",
        "please {verb} the attached {thing}, it is about the {word} and the {word2}",
        "what does the {thing} say about the {word}?",
        "I have a {thing} from Alice; could you {verb} it {manner} before noon",
        "order a pizza with extra {word}",
    )
    return [
        rng.choice(shapes).format(
            verb=rng.choice(VERBS),
            thing=rng.choice(OBJECTS),
            manner=rng.choice(MANNERS).strip(),
            word=rng.choice(WORDS),
            word2=rng.choice(WORDS),
        )
        for _ in range(count)
    ]


def measure(count: int) -> list[Figure]:
    rng = random.Random(7)
    folder = Path(tempfile.mkdtemp(prefix="evaluator-match-"))
    try:
        write(folder, count, rng)
        library = TemplateLibrary.load(folder, shipped=False)
    finally:
        shutil.rmtree(folder)
    if len(library) != count:
        raise SystemExit(f"{len(library)} of {count} templates loaded: {library.errors[:3]}")
    began = time.perf_counter()
    library.match("warm up")
    built = time.perf_counter() - began
    times: list[float] = []
    for request in requests(1000, rng):
        began = time.perf_counter()
        library.match(request, limit=5)
        times.append(time.perf_counter() - began)
    long = f"summarise this report: {' '.join(rng.choices(WORDS, k=14_000))}"[:100_000]
    began = time.perf_counter()
    library.match(long, limit=5)
    last = time.perf_counter() - began
    return [
        Figure(
            f"match among {count} templates, median", statistics.median(times) * 1e3, "ms", GOAL_MS
        ),
        Figure("  95th percentile", statistics.quantiles(times, n=20)[-1] * 1e3, "ms"),
        Figure("  a request of 100 kB", last * 1e3, "ms"),
        Figure("  building the index, once", built * 1e3, "ms"),
    ]


def quality() -> list[Figure]:
    """How well the held-out requests of the project's own set find the shipped templates."""
    rows = json.loads(
        (HERE.parent / "tests/library/match_requests.json").read_text(encoding="utf-8")
    )
    library = TemplateLibrary.load(HERE.parent / "templates", shipped=False)
    found = [
        (row["template"], library.match(row["request"], 5))
        for row in rows
        if row["set"] == "held_out"
    ]
    fitting = [(wanted, five) for wanted, five in found if wanted]
    others = [five for wanted, five in found if not wanted]

    def runs(five: list[Match]) -> bool:
        return bool(five) and five[0].score >= LOW_SCORE

    def percent(values: list[bool]) -> float:
        return 100 * sum(values) / len(values)

    first = [bool(five) and five[0].template.name == wanted for wanted, five in fitting]
    return [
        Figure(
            "right template first (public sets: bench/match_public.py)",
            percent(first),
            "%",
            95,
            at_least=True,
        ),
        Figure(
            "  unrelated requests that run something",
            percent([runs(five) for five in others]),
            "%",
            5,
        ),
        Figure(
            "  fitting requests refused", percent([not runs(five) for _, five in fitting]), "%", 15
        ),
    ]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--count", type=int, default=1000)
    arguments = parser.parse_args()
    report([*measure(arguments.count), *quality()], as_json=arguments.json)


if __name__ == "__main__":
    main()
