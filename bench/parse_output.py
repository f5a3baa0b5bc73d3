"""What reading costs: valid 1 kB JSON against `json.loads`, and the worst of many hostile texts of 1 MB.

    python bench/parse_output.py [--show 8]

The ratio is a median over rounds that time both side by side. The hostile texts repeat each of a hundred
pieces (brackets, quotes, comments, fences, half values) after each of eleven beginnings, and add deep, long
and wide ones; each is read once, with one of five schemas.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

from figures import Figure, parser_for, remarks, report

from evaluator import parse_output

GOAL_RATIO, GOAL_HOSTILE_S = 2.0, 0.5
MEGABYTE = 1_000_000
PIECES = [
    "[", "{", "(", '"', "'", "\\", "`", "```", "<", "<think>", "</think>", "[1,", "[]", "{}", "[],", "{},",
    "[[],", "[{},", '{"a":', '{"a":1,', '{"a":1 ', "{'a':1,", '["', '["a', '["a" ', "['", "['a',", '["a",',
    '{"', '{"a"', '{"a"}', '[{"a"},', "[{'a':1},", "}", "]", "]}", "[}", "{]", '"}', '{"a":"', '{"a":"\\',
    '\\"', '"\\"', "“", "[“a”,", "/*", "[/*", "[//", "[#", "[1 ", "[1,\n", "[,", "[ ,", "[tru", "[True,",
    "[None ", "[a,", "{a:", "{a:b,", "{a:1,", "{ ", "[ ", "\n", " ", "[...,", "\\boxed{", "\\boxed{4}",
    "Answer: ", "answer is ", "= ", "1,", "1 ", "$1,299", "9", "-", "1.1.", "```json\n{}\n```\n",
    "```json\n", "<think>{}", "{}</think>", "[THINK]", '{"a":"b" "', '{"a":"<think>"},', "\x00", "\ud800",
    "４", "é{", "[[1],", '{"a":{"b":[', '["a"b', '"a" "b" ', '{"a":"b"c', "{a", "{a ", "a: ", "{'", "{'a'",
    "yes", "No, ", "[']", '{"a":1]', '{"a":1}\n', "{'a':1}\n", "<a>", "<a", "&", "[1]x", "[,]",
]  # fmt: skip
PREFIXES = [
    "",
    "[",
    "{",
    '{"a":',
    '["',
    '["a",',
    '{"a":"',
    "[{'a':'",
    '{"a":["b",',
    "<think>",
    '{"a":[1,2,',
    "```json\n",
]
SCHEMAS = [None, "object", "number", "boolean", "string[]"]


def hostile_texts() -> list[tuple[str, str]]:
    texts = [
        (f"{prefix!r} + {piece!r} * n", prefix + piece * (MEGABYTE // len(piece)))
        for prefix in PREFIXES
        for piece in PIECES
    ]
    half = MEGABYTE // 2
    texts += [
        ("[ * n + ] * n", "[" * half + "]" * half),
        ('{"a": * n + } * n', '{"a":' * 166_000 + "1" + "}" * 166_000),
        ("valid list of numbers", "[" + "1," * half + "1]"),
        ("one long number", "1" * MEGABYTE),
        ("list of one long number", "[" + "1" * MEGABYTE + "]"),
        ("one long string, cut", '{"a": "' + "x" * MEGABYTE),
        ("deep, then wide", "[" * 201 + "1," * half),
    ]
    return texts


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def valid_text() -> str:
    record = {
        "summary": "The committee met twice and settled on the second proposal after a long talk about cost.",
        "score": 0.87,
        "accepted": True,
        "labels": ["finance", "planning", "minutes"],
        "items": [
            {"name": f"item {i}", "price": 12.5 + i, "count": i, "note": None, "tags": ["a", "b"]} for i in range(11)
        ],
    }
    return json.dumps(record)


def ratio(schema: str | None, rounds: int = 400, repeat: int = 20) -> float:
    """Median over rounds of time(parse_output) / time(json.loads), the two measured side by side."""
    text = valid_text()
    ratios: list[float] = []
    for _ in range(rounds):
        own = seconds(lambda: [parse_output(text, schema=schema) for _ in range(repeat)])
        base = seconds(lambda: [json.loads(text) for _ in range(repeat)])
        ratios.append(own / base)
    return statistics.median(ratios)


def measure(show: int, say: Callable[[str], None]) -> list[Figure]:
    texts = hostile_texts()
    times: list[tuple[float, str]] = []
    for index, (label, text) in enumerate(texts):
        schema = SCHEMAS[index % len(SCHEMAS)]
        elapsed = seconds(lambda text=text, schema=schema: parse_output(text, schema=schema))
        times.append((elapsed, f"{label} (schema {schema})"))
    times.sort(reverse=True)
    # What disturbed the machine must not stand as the worst case: the slowest few are read again.
    again = {label: (text, SCHEMAS[index % len(SCHEMAS)]) for index, (label, text) in enumerate(texts)}
    worst: list[tuple[float, str]] = []
    for elapsed, label in times[: max(show, 8)]:
        text, schema = again[label.rpartition(" (schema ")[0]]
        second = seconds(lambda text=text, schema=schema: parse_output(text, schema=schema))
        worst.append((min(elapsed, second), label))
    worst.sort(reverse=True)
    for elapsed, label in worst[:show]:
        say(f"{elapsed:.2f} s  {label}")
    return [
        Figure("parse_output, valid 1 kB JSON : json.loads", ratio(None), "", GOAL_RATIO),
        Figure('  the same with schema "object"', ratio("object"), "", GOAL_RATIO),
        Figure(f"parse_output, worst of {len(texts)} hostile 1 MB texts", worst[0][0], "s", GOAL_HOSTILE_S),
    ]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--show", type=int, default=3, help="how many of the slowest texts to name")
    arguments = parser.parse_args()
    report(measure(arguments.show, remarks(arguments.json)), as_json=arguments.json)


if __name__ == "__main__":
    main()
