"""Time of `LexicalRanker.rank` among 1,000 templates: python bench/match.py [templates]

Prints the time to build the index, the median and 95th percentile of a request, and that of one of 100 kB.
The templates are made of verbs, objects and manners, so that they share words as a real library's do.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import time
from dataclasses import dataclass

from evaluator.library.matching import LexicalRanker
from evaluator.nodes import Atomic, Example, Input, OutputFormat, Span, Text

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


@dataclass(frozen=True, slots=True)
class Template:
    name: str
    node: Atomic


def templates(count: int, rng: random.Random) -> list[Template]:
    combinations = list(itertools.product(VERBS, OBJECTS, MANNERS))
    return [_template(*combination, rng) for combination in rng.sample(combinations, count)]


def _template(verb: str, thing: str, manner: str, rng: random.Random) -> Template:
    def prose(length: int) -> str:
        return " ".join(rng.choices(WORDS, k=length))

    manner = manner.strip()
    node = Atomic(
        description=Text(f"{verb.capitalize()} a {thing} {manner}", Span()),
        criteria=Text(f"{verb}, {rng.choice(OBJECTS)}, {rng.choice(WORDS)}", Span()),
        instructions=Text(f"{verb} the {thing} below {manner}. {prose(60)}", Span()),
        inputs=(
            Input(thing, "string", True, None, None, None, f"The {thing} to work on", Span()),
            Input("length", "integer", False, None, None, None, "Longest allowed length in words", Span()),
        ),
        examples=tuple(Example({thing: prose(40)}, prose(20), Span()) for _ in range(2)),
        output=OutputFormat("json", "object", Span()),
    )
    return Template("_".join([verb, thing, *manner.split()]), node)


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
            verb=rng.choice(VERBS), thing=rng.choice(OBJECTS), manner=rng.choice(MANNERS).strip(),
            word=rng.choice(WORDS), word2=rng.choice(WORDS),
        )
        for _ in range(count)
    ]  # fmt: skip


def main(count: int = 1000) -> None:
    rng = random.Random(7)
    ranker = LexicalRanker(templates(count, rng))
    began = time.perf_counter()
    ranker.rank("warm up")
    built = time.perf_counter() - began
    times: list[float] = []
    for request in requests(1000, rng):
        began = time.perf_counter()
        found = ranker.rank(request, 5)
        times.append(time.perf_counter() - began)
        assert found, request
    long = f"summarise this report: {' '.join(rng.choices(WORDS, k=14_000))}"[:100_000]
    began = time.perf_counter()
    ranker.rank(long, 5)
    last = time.perf_counter() - began
    print(f"templates                {count}")
    print(f"index built in           {built * 1e3:8.1f} ms")
    print(f"request, median          {statistics.median(times) * 1e3:8.3f} ms")
    print(f"request, 95th percentile {statistics.quantiles(times, n=20)[-1] * 1e3:8.3f} ms")
    print(f"request of {len(long):,} chars {last * 1e3:8.3f} ms")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
