"""Searches for texts that take the most CPU time per character to read.

    python bench/parse_fuzz.py [--seconds 600] [--size 200000] [--seed 1] [--show 5]

A text is a prefix, a body that is repeated, and an end, each of pieces of JSON, quotes, comments,
fences and prose. The search keeps the slowest shapes so far and changes them: it adds, removes,
repeats and swaps pieces. Nothing is known about the reader, so it finds shapes that nobody listed.
The slowest are read again at 1 MB, where the goal is half a second.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from figures import Figure, parser_for, remarks, report
from parse_output import OBJECTS, PIECES, SCHEMAS, UNION

from evaluator import parse_output

GOAL_S = 0.5
MEGABYTE = 1_000_000
KEPT = 24
MORE_PIECES = ["']',", "'],", '"",', '"a": ', "\\u0041", "\\frac", "C:\\t", "\\n", "True", "“a”: "]
ALL_PIECES = [*PIECES, *MORE_PIECES]
ALL_SCHEMAS: list[Any] = [*SCHEMAS, UNION, OBJECTS]


@dataclass(frozen=True)
class Shape:
    """`body` is repeated until the text is long enough; inside it `inner` is repeated `times`."""

    prefix: tuple[str, ...]
    body: tuple[str, ...]
    inner: tuple[str, ...]
    times: int
    end: tuple[str, ...]
    schema: int = 0

    def text(self, size: int) -> str:
        part = "".join(self.body) + "".join(self.inner) * self.times
        return "".join(self.prefix) + part * max(size // max(len(part), 1), 1) + "".join(self.end)


def seconds(shape: Shape, size: int) -> float:
    text = shape.text(size)[: 2 * size]
    start = time.process_time()
    parse_output(text, schema=ALL_SCHEMAS[shape.schema])
    return time.process_time() - start


def random_pieces(rng: random.Random, most: int) -> tuple[str, ...]:
    return tuple(rng.choices(ALL_PIECES, k=rng.randint(0, most)))


def random_shape(rng: random.Random) -> Shape:
    body = random_pieces(rng, 4) or (rng.choice(ALL_PIECES),)
    inner = random_pieces(rng, 2)
    times = rng.choice([0, 0, 3, 30, 300, 1000])
    return Shape(
        random_pieces(rng, 2),
        body,
        inner,
        times=times,
        end=random_pieces(rng, 2),
        schema=rng.randrange(len(ALL_SCHEMAS)),
    )


def changed(rng: random.Random, shape: Shape, other: Shape) -> Shape:
    """The shape with one change, or with a part of the other one."""
    name = rng.choice(["prefix", "body", "inner", "end"])
    pieces = list(getattr(shape, name))
    kind = rng.randrange(7)
    if kind == 0:
        return replace(shape, times=rng.choice([0, 1, 5, 50, 200, 830, 3000]))
    if kind == 1:
        return replace(shape, schema=rng.randrange(len(ALL_SCHEMAS)))
    if kind == 2:
        return replace(shape, **{name: getattr(other, name)})
    if kind == 3 and pieces:
        del pieces[rng.randrange(len(pieces))]
    elif kind == 4 and pieces:
        pieces[rng.randrange(len(pieces))] = rng.choice(ALL_PIECES)
    else:
        pieces.insert(rng.randint(0, len(pieces)), rng.choice(ALL_PIECES))
    if name == "body" and not pieces:
        return shape
    return replace(shape, **{name: tuple(pieces[:8])})


def search(limit_s: float, size: int, seed: int, say: Callable[[str], None]) -> list[Shape]:
    """The slowest shapes, the slowest first."""
    rng = random.Random(seed)
    end = time.monotonic() + limit_s
    best: list[tuple[float, Shape]] = []
    tried = 0
    while time.monotonic() < end:
        if len(best) < KEPT or rng.random() < 0.3:
            shape = random_shape(rng)
        else:
            shape = changed(rng, rng.choice(best)[1], rng.choice(best)[1])
        tried += 1
        elapsed = seconds(shape, size)
        if len(best) >= KEPT and elapsed <= best[-1][0]:
            continue
        if best and elapsed > best[0][0]:
            say(f"{elapsed:.3f} s for {size:,} characters: {shape}")
        # One shape of each body: variants of the slowest would be all that is kept.
        same = [kept for kept in best if kept[1].body == shape.body]
        if same and same[0][0] >= elapsed:
            continue
        best = sorted([*(kept for kept in best if kept not in same), (elapsed, shape)], key=slow)
        best = best[:KEPT]
    say(f"{tried:,} texts were read")
    return [shape for _, shape in best]


def slow(kept: tuple[float, Shape]) -> float:
    return -kept[0]


def measure(limit_s: float, size: int, seed: int, show: int, say: Callable[[str], None]) -> Figure:
    shapes = search(limit_s, size, seed, say)
    times = sorted(((seconds(shape, MEGABYTE), shape) for shape in shapes), key=slow)
    for elapsed, shape in times[:show]:
        say(f"{elapsed:.2f} s  {shape}")
    return Figure("read 1 MB, worst text that the search found", times[0][0], "s", GOAL_S)


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long to search")
    parser.add_argument("--size", type=int, default=200_000, help="characters of each text")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5, help="how many of the slowest to name")
    options = parser.parse_args()
    say = remarks(options.json)
    figure = measure(options.seconds, options.size, options.seed, show=options.show, say=say)
    report([figure], as_json=options.json)


if __name__ == "__main__":
    main()
