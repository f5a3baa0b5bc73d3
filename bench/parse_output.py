"""What reading costs: valid 1 kB JSON against `json.loads`, and the worst of many hostile texts of 1 MB.

Run: python bench/parse_output.py
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

from evaluator.output import parse_output

MEGABYTE = 1_000_000
PIECES = [
    "[", "{", "(", '"', "'", "\\", "`", "```", "<", "<think>", "</think>", "[1,", "[]", "{}", "[],", "{},", "[[],", "[{},",
    '{"a":', '{"a":1,', '{"a":1 ', "{'a':1,", '["', '["a', '["a" ', "['", "['a',", '["a",', '{"', '{"a"', '{"a"}', '[{"a"},',
    "[{'a':1},", "}", "]", "]}", "[}", "{]", '"}', '{"a":"', '{"a":"\\', '\\"', '"\\"', "“", "[“a”,", "/*", "[/*", "[//", "[#",
    "[1 ", "[1,\n", "[,", "[ ,", "[tru", "[True,", "[None ", "[a,", "{a:", "{a:b,", "{a:1,", "{ ", "[ ", "\n", " ", "[...,",
    "\\boxed{", "\\boxed{4}", "Answer: ", "answer is ", "= ", "1,", "1 ", "$1,299", "9", "-", "1.1.", "```json\n{}\n```\n",
    "```json\n", "<think>{}", "{}</think>", "[THINK]", "{\"a\":\"b\" \"", '{"a":"<think>"},', "\x00", "\ud800", "４", "é{", "[[1],",
    '{"a":{"b":[', '["a"b', '"a" "b" ', '{"a":"b"c', "{a", "{a ", "a: ", "{'", "{'a'", "yes", "No, ", "[']", '{"a":1]',
    '{"a":1}\n', "{'a':1}\n", "<a>", "<a", "&", "[1]x", "[,]",
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
        "summary": "The committee met twice and settled on the second proposal after a long discussion of its cost.",
        "score": 0.87,
        "accepted": True,
        "labels": ["finance", "planning", "minutes"],
        "items": [
            {"name": f"item {i}", "price": 12.5 + i, "count": i, "note": None, "tags": ["a", "b"]}
            for i in range(11)
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


def main() -> None:
    print(f"valid JSON of {len(valid_text())} characters: {ratio(None):.2f} x json.loads")
    print(f'the same, schema "object": {ratio("object"):.2f} x json.loads')
    worst: list[tuple[float, str, str | None]] = []
    for index, (label, text) in enumerate(hostile_texts()):
        for schema in (SCHEMAS[index % len(SCHEMAS)],):
            worst.append(
                (
                    min(seconds(lambda t=text, s=schema: parse_output(t, schema=s)) for _ in range(1)),
                    label,
                    schema,
                )
            )
    worst.sort(key=lambda entry: entry[0], reverse=True)
    print(f"worst of {len(worst)} hostile texts of 1 MB: {worst[0][0]:.2f} s")
    for elapsed, label, schema in worst[:8]:
        print(f"  {elapsed:.2f} s  {label}  (schema {schema})")


if __name__ == "__main__":
    main()
