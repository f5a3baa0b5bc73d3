"""What reading costs: valid 1 kB JSON against `json.loads`, and the worst of many hostile texts of
1 MB.

    python bench/parse_output.py [--show 8] [--part 1/4]

All times are CPU times, which other programs affect little. The ratio is a median over rounds that
time both side by side. The hostile texts repeat each of 183 pieces (brackets, quotes, comments,
fences, half values) after each of twelve beginnings, and add deep, long and wide ones, values under
schemas that are slow to check, XML, lists, labelled lines and tables; each is read once. The twelve
slowest are read again at four sizes: the growth is the time of each doubling, by which linear work
doubles. `--part K/N` reads only every Nth hostile text, from the Kth on.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from figures import Figure, parser_for, remarks, report

from evaluator import parse_output

GOAL_RATIO, GOAL_HOSTILE_S, GOAL_GROWTH = 2.0, 0.5, 2.6
GOAL_RATIO_OF_PROPERTIES = 3.0
MEGABYTE = 1_000_000
SIZES = (MEGABYTE // 4, MEGABYTE // 2, MEGABYTE, 2 * MEGABYTE)
PIECES = [
    "[",
    "{",
    "(",
    '"',
    "'",
    "\\",
    "`",
    "```",
    "<",
    "<think>",
    "</think>",
    "[1,",
    "[]",
    "{}",
    "[],",
    "{},",
    "[[],",
    "[{},",
    '{"a":',
    '{"a":1,',
    '{"a":1 ',
    "{'a':1,",
    '["',
    '["a',
    '["a" ',
    "['",
    "['a',",
    '["a",',
    '{"',
    '{"a"',
    '{"a"}',
    '[{"a"},',
    "[{'a':1},",
    "}",
    "]",
    "]}",
    "[}",
    "{]",
    '"}',
    '{"a":"',
    '{"a":"\\',
    '\\"',
    '"\\"',
    "“",
    "[“a”,",
    "/*",
    "[/*",
    "[//",
    "[#",
    "[1 ",
    "[1,\n",
    "[,",
    "[ ,",
    "[tru",
    "[True,",
    "[None ",
    "[a,",
    "{a:",
    "{a:b,",
    "{a:1,",
    "{ ",
    "[ ",
    "\n",
    " ",
    "[...,",
    "\\boxed{",
    "\\boxed{4}",
    "Answer: ",
    "answer is ",
    "= ",
    "1,",
    "1 ",
    "$1,299",
    "9",
    "-",
    "1.1.",
    "```json\n{}\n```\n",
    "```json\n",
    "<think>{}",
    "{}</think>",
    "[THINK]",
    '{"a":"b" "',
    '{"a":"<think>"},',
    "\x00",
    "\ud800",
    "４",
    "é{",
    "[[1],",
    '{"a":{"b":[',
    '["a"b',
    '"a" "b" ',
    '{"a":"b"c',
    "{a",
    "{a ",
    "a: ",
    "{'",
    "{'a'",
    "yes",
    "No, ",
    "[']",
    '{"a":1]',
    '{"a":1}\n',
    "{'a':1}\n",
    "<a>",
    "<a",
    "&",
    "[1]x",
    "[,]",
    '["',
    '"]',
    '"},',
    '"],"',
    '", "',
    '":"',
    '""',
    '"""',
    "'''",
    '("',
    ")",
    '"//',
    '"/*',
    '"#',
    '"\n',
    ',\n"',
    '{"x" ',
    '"<',
    '" + "',
    "«",
    "「",
    "a b: ",
    '"a": "b "',
    "&quot;",
    "> ",
    '{\\"',
    "<answer>",
    "<!--",
    '"<!--',
    "，",
    "：",
    "0x",
    'b"',
    "1 kg,",
    "1 2 ",
    "not ",
    '[[[["',
    '"}"',
    '"], "',
    '"}, {"',
    '" ;',
    '"\n"',
    '"\n"a",',
    "- ",
    '\n- "',
    "1. ",
    "#fff,",
    "f(",
    "f(),",
    "$1,000",
    "a, b ",
    '("a" ',
    "(1)",
    "{{",
    '{{"',
    "［",
    "、",
    ":a =>",
    "->",
    '[{"a":1},"a":',
    '\\"',
    '\\"}',
    "...(",
    "1.000.",
    "A ",
    "true\n",
    "&lt;",
    '"C:\\',
    '"C:\\",',
    '"};',
    'x "y"} ',
    '"\nk: 1',
    "C++ ",
    '"a", \\n',
    '{"a": ... no, it goes on:\n',
]
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
SCHEMAS: list[Any] = [
    None,
    "object",
    "number",
    "boolean",
    "string[]",
    {"type": "string", "enum": ["a", "b c"]},
]
UNION = {
    "$defs": {
        "n": {
            "oneOf": [
                {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}},
                {"type": "string"},
            ]
        }
    },
    "$ref": "#/$defs/n",
}
OBJECTS = {"type": "array", "uniqueItems": True, "items": {"type": "object", "required": ["a"]}}
XML_PIECES = [
    "<a>",
    "</a>",
    "<a/>",
    "<!",
    "<!--",
    "<?",
    "<![CDATA[",
    "<",
    "<<",
    "&",
    "&amp;",
    "&x;",
    "<think>",
    "</think>",
    "<a></think>",
    "<a b='",
    '<a b="c">',
    "<a b=c>",
    "<answer>",
    "<a>x</b>",
    "</",
    "<a ",
    "]]>",
    "-->",
    "<a>\n",
    '<a b="c" d"',
    '<a b="c"d" ',
    "<a@b",
    "&lt;a&gt;",
]
ROWS: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["a"],
    },
}
OTHER_FORMS: list[tuple[str, Any]] = [
    (piece, schema)
    for piece in (
        "- ",
        "- a\n",
        "a: ",
        "a: b\n",
        "a: b\n\n",
        "a:\n  ",
        "|",
        "| a ",
        "| a | b |\n",
        "|---",
        "|---|---|\n",
        "a,b\n",
        "a,",
        "1. a: b\n",
        "## a\n",
        "**a**\n",
        "P(a=",
        "P(a='x'),",
        "<a>",
        "<a>1</a>",
        "<parameter=a>",
        "<arg_key>a</arg_key>",
        '{"x": ',
        '{"x": [],',
        "```yaml\na: b\n```\n",
        "```\n- a\n",
        "> a: b\n",
        "a b c d\n",
        "12 kg\n",
        "Answer:\n",
        "**1** ",
        "#### 1\n",
    )
    for schema in ("string[]", "number", ROWS, ROWS["items"])
]
"""Pieces of answers that are not JSON, each with a schema that asks for what they could be."""

Text = tuple[str, Callable[[int], str], str, Any]
"""A name, the text of a size, the type and the schema."""


SPECIAL: list[Text] = [
    ("[ * n + ] * n", lambda n: "[" * (n // 2) + "]" * (n // 2), "json", "number"),
    (
        '{"a": * n + } * n',
        lambda n: '{"a":' * (n // 6) + "1" + "}" * (n // 6),
        "json",
        "object",
    ),
    (
        "valid list of numbers",
        lambda n: "[" + "1," * (n // 2) + "1]",
        "json",
        {"items": {"type": "integer"}},
    ),
    ("one long number", lambda n: "1" * n, "json", "number"),
    ("list of one long number", lambda n: "[" + "1" * n + "]", "json", None),
    ("one long string, cut", lambda n: '{"a": "' + "x" * n, "json", "object"),
    ("deep, then wide", lambda n: "[" * 201 + "1," * (n // 2), "json", "number"),
    (
        "different objects under uniqueItems",
        lambda n: json.dumps([{"a": number} for number in range(n // 12)]),
        "json",
        OBJECTS,
    ),
    (
        "objects under a recursive union",
        lambda n: '{"a":' * 150 + json.dumps("x" * n) + "}" * 150,
        "json",
        UNION,
    ),
    (
        "texts that hold objects",
        lambda n: json.dumps(["{'a': 1}"] * (n // 12)),
        "json",
        "object[]",
    ),
    (
        "objects with broken texts",
        lambda n: "{},".join(['{"a":"[\'x"}'] * (n // 14)),
        "json",
        OBJECTS,
    ),
    (
        "one text that holds a broken list",
        lambda n: json.dumps("['" * (n // 2)),
        "json",
        "array",
    ),
    ("an attribute of quotes", lambda n: '<a b="c' + 'x"' * (n // 2) + ">", "xml", None),
    ("attributes without ends", lambda n: "<a " + 'b="c ' * (n // 5) + ">", "xml", None),
    (
        "a list under a recursive union",
        lambda n: "[" + '{"a":"b"},' * (n // 10) + "1]",
        "json",
        UNION,
    ),
]


def hostile_texts() -> list[Text]:
    """Every text that is measured: pieces repeated, texts of a special form, and other formats."""
    return [*_repeated_pieces(), *SPECIAL, *_other_forms()]


def _repeated_pieces() -> list[Text]:
    repeated = [(prefix, piece) for prefix in PREFIXES for piece in PIECES]
    return [
        (
            f"{prefix!r} + {piece!r} * n",
            partial(repeat, prefix, piece),
            "json",
            SCHEMAS[index % len(SCHEMAS)],
        )
        for index, (prefix, piece) in enumerate(repeated)
    ]


def _other_forms() -> list[Text]:
    pieces: list[Text] = [
        (
            f"{piece!r} * n{size or ''}",
            lambda n, piece=piece, size=size: repeat("", piece, min(n, size or n)),
            "json",
            schema,
        )
        for piece, schema in OTHER_FORMS
        for size in (None, 99_000)
    ]
    xml: list[Text] = [
        (f"XML {prefix!r} + {piece!r} * n", partial(repeat, prefix, piece), "xml", None)
        for prefix in ("", "<r>", "```xml\n<r>")
        for piece in XML_PIECES
    ]
    return [*pieces, *xml]


def repeat(prefix: str, piece: str, size: int) -> str:
    return prefix + piece * (size // len(piece))


def read_seconds(text: Text, size: int = MEGABYTE) -> float:
    _, make, kind, schema = text
    made: Any = make(size)
    return seconds(lambda: parse_output(made, kind, schema))  # type: ignore[arg-type]


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def valid_text() -> str:
    record = {
        "summary": "The committee met twice and settled on the second proposal after a long talk "
        "about cost.",
        "score": 0.87,
        "accepted": True,
        "labels": ["finance", "planning", "minutes"],
        "items": [
            {"name": f"item {i}", "price": 12.5 + i, "count": i, "note": None, "tags": ["a", "b"]}
            for i in range(11)
        ],
    }
    return json.dumps(record)


def schema_of(value: Any) -> dict[str, Any]:
    """A JSON Schema with the properties and items of a value, all of them required."""
    if isinstance(value, dict):
        properties = {name: schema_of(item) for name, item in value.items()}
        return {"type": "object", "properties": properties, "required": list(properties)}
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0])} if value else {"type": "array"}
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return {"type": names[value.__class__]}


def ratio(schema: str | dict[str, Any] | None, rounds: int = 400, repeat: int = 20) -> float:
    """Median over rounds of time(parse_output) / time(json.loads), the two measured side by
    side.
    """
    text = valid_text()
    ratios: list[float] = []
    for _ in range(rounds):
        own = seconds(lambda: [parse_output(text, schema=schema) for _ in range(repeat)])
        base = seconds(lambda: [json.loads(text) for _ in range(repeat)])
        ratios.append(own / base)
    return statistics.median(ratios)


def measure(show: int, part: slice, say: Callable[[str], None]) -> list[Figure]:
    texts = hostile_texts()[part]
    times = sorted(((read_seconds(text), index) for index, text in enumerate(texts)), reverse=True)
    # What disturbed the machine must not stand as the worst case: the slowest few are read again.
    worst: list[tuple[float, str]] = []
    growths: list[float] = []
    for elapsed, index in times[: max(show, 12)]:
        text = texts[index]
        worst.append(
            (min(elapsed, read_seconds(text), read_seconds(text)), f"{text[0]} (schema {text[3]})")
        )
        by_size = [min(read_seconds(text, size) for _ in range(2)) for size in SIZES]
        growths.append(max(larger / smaller for smaller, larger in pairwise(by_size)))
    worst.sort(reverse=True)
    for elapsed, label in worst[:show]:
        say(f"{elapsed:.2f} s  {label}")
    return [
        Figure("parse_output, valid 1 kB JSON : json.loads", ratio(None), "", GOAL_RATIO),
        Figure('  the same with schema "object"', ratio("object"), "", GOAL_RATIO),
        Figure(
            "  the same with a schema of its properties",
            ratio(schema_of(json.loads(valid_text()))),
            "",
            GOAL_RATIO_OF_PROPERTIES,
        ),
        Figure(
            f"parse_output, worst of {len(texts)} hostile 1 MB texts",
            worst[0][0],
            "s",
            GOAL_HOSTILE_S,
        ),
        Figure("  largest growth per doubling, 0.25 to 2 MB", max(growths), "", GOAL_GROWTH),
    ]


def every_nth(written: str) -> slice:
    """The texts of the part `K/N`."""
    first, _, step = written.partition("/")
    return slice(int(first) - 1, None, int(step))


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--show", type=int, default=3, help="how many of the slowest texts to name")
    parser.add_argument(
        "--part",
        type=every_nth,
        default="1/1",
        metavar="K/N",
        help="only every Nth text, from the Kth on",
    )
    arguments = parser.parse_args()
    report(measure(arguments.show, arguments.part, remarks(arguments.json)), as_json=arguments.json)


if __name__ == "__main__":
    main()
