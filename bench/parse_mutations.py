"""How often `parse_output` restores a JSON document in which one character was damaged, and how
often other parsers do.

    python bench/parse_mutations.py [--part train|test|random] [--peers PYTHON] [--node FOLDER]
        [--show 20]

Each document is written in three layouts. In each, single quotes, commas, colons and brackets are
left out, doubled or replaced, and a comment, a line break or dots are inserted, at places chosen
with a fixed seed. Right is only the whole document. What has several readings counts too: nobody
restores all. `--part` is `train` or `test` by document: a change of the parser is made on the first
and counted on the second. `random` are 40 documents made with a fixed seed of words that are hard
to tell from JSON. `--peers` and `--node` are those of
`parse_public.py`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parse_answers import repr_of
from parse_pairs import Pair
from parse_public import HERE, NODE, Found, read_ours, read_with

DOCUMENTS: dict[str, list[Any]] = {
    "train": [
        {"name": "Ada Lovelace", "age": 36, "tags": ["math", "code"], "alive": False},
        {"city": "Bern", "zip": 3000, "pos": {"lat": 46.95, "lon": 7.44}, "note": None},
        [{"id": 1, "title": "First, best"}, {"id": 2, "title": "Second: good"}],
        {"items": [{"sku": "A-1", "qty": 2}, {"sku": "B-2", "qty": 10}], "total": 12.5, "ok": True},
        {"steps": ["Open the door", "Walk in", "Close it"], "count": 3},
        {"a": {"b": {"c": [1, 2, 3]}}, "d": []},
        {
            "answer": "Yes, it does.",
            "confidence": 0.9,
            "sources": ["https://x.example/a", "https://x.example/b"],
        },
        {"query": "SELECT * FROM t WHERE a = 'x'", "limit": 10},
        ["red", "green", "blue"],
        {"summary": 'He said "no" and left.\nThen it rained.', "score": 7},
        {"matrix": [[1, 2], [3, 4]], "label": "m"},
        {"user": {"first": "Zoë", "last": "Ünal"}, "active": True, "roles": []},
    ],
    "test": [
        {"verdict": "guilty", "votes": {"for": 9, "against": 3}, "jurors": ["Kim", "Lee", "Ott"]},
        {
            "title": "Soup",
            "ingredients": [{"what": "leek", "grams": 300}, {"what": "salt", "grams": None}],
            "vegan": True,
        },
        [
            {"q": "2 + 2?", "options": ["3", "4"], "right": 1},
            {"q": "5 - 1?", "options": ["4", "6"], "right": 0},
        ],
        {"reply": "Hello, Mr. O'Neil: all is well!", "language": "en", "length": 31},
        {"path": "C:\\temp\\new", "size": 1024, "hidden": False},
        {"points": [[0, 0], [1.5, -2]], "closed": False, "unit": "m"},
        {"label": "positive", "reason": 'The word "great" is used twice.', "score": 0.97},
        ["north", "south-west", "east by south"],
        {"日付": "2026-03-08", "場所": "東京", "人数": 4},
        {
            "plan": {"days": [{"day": 1, "todo": ["walk", "rest"]}, {"day": 2, "todo": []}]},
            "cost": 80,
        },
        {"code": "if (a < b) { return [a, b]; }", "tests": {"passed": 12, "failed": 0}},
        {
            "entities": [
                {"text": "Marie Curie", "type": "PERSON"},
                {"text": "Paris", "type": "CITY"},
            ]
        },
    ],
}
WORDS = """
    river stone Anna blue market cloud seven 'quoted' it's e-mail café über Straße (note) 50% a/b x=1 Dr. No: yes; ok,
    fine! what? C# #1 100 $5 3:30 [draft] {x} – done
"""
KEYS = (
    "id",
    "name",
    "x y",
    "größe",
    "item-2",
    "a.b",
    "when",
    "note",
    "list",
    "7",
    "title",
    "count",
    "rows",
    "flags",
)
RANDOM_DOCUMENTS, DEEPEST = 40, 3
LAYOUTS: tuple[dict[str, Any], ...] = ({}, {"indent": 2}, {"separators": (",", ":")})
REPLACED = {"{": "[", "[": "{", "}": "]", "]": "}", '"': "'", ",": ";", ":": "="}
INSERTED = ("\n", "// a comment\n", "/* a comment */", "...")
LEFT_OUT, DOUBLED, CHANGED, PLACES = 22, 12, 8, 2


def random_value(choose: random.Random, depth: int) -> Any:
    kind = choose.random() if depth else choose.uniform(0.42, 1.0)
    if kind < 0.22 or depth == DEEPEST:
        return {
            key: random_value(choose, depth - 1)
            for key in choose.sample(KEYS, choose.randint(1, 4))
        }
    if kind < 0.42:
        return [random_value(choose, depth - 1) for _ in range(choose.randint(0, 4))]
    if kind < 0.72:
        return " ".join(choose.choices(WORDS.split(), k=choose.randint(1, 6)))
    return choose.choice(
        [True, False, None, choose.randint(-5, 5000), round(choose.uniform(-9, 99), 2)]
    )


def documents(part: str) -> list[Any]:
    if part != "random":
        return DOCUMENTS[part]
    choose = random.Random(2026)
    return [random_value(choose, DEEPEST) for _ in range(RANDOM_DOCUMENTS)]


@dataclass(frozen=True)
class Damaged:
    kind: str
    text: str
    document: Any


def damaged(part: str) -> Iterator[Damaged]:
    choose = random.Random(7)
    for document in documents(part):
        for layout in LAYOUTS:
            text = json.dumps(document, ensure_ascii=False, **layout)
            for each in _damaged(text, document, choose):
                try:
                    json.loads(each.text)
                except ValueError:
                    yield each


def _damaged(text: str, document: Any, choose: random.Random) -> Iterator[Damaged]:
    marks = [index for index, char in enumerate(text) if char in REPLACED]
    brackets = [index for index, char in enumerate(text) if char in ",{[}]"]
    for index in choose.sample(marks, min(LEFT_OUT, len(marks))):
        yield Damaged(f"left out: {text[index]}", text[:index] + text[index + 1 :], document)
    for index in choose.sample(marks, min(DOUBLED, len(marks))):
        yield Damaged(
            f"doubled: {text[index]}", text[:index] + text[index] + text[index:], document
        )
    for index in choose.sample(marks, min(CHANGED, len(marks))):
        other = REPLACED[text[index]]
        yield Damaged(
            f"replaced: {text[index]} by {other}",
            text[:index] + other + text[index + 1 :],
            document,
        )
    for more in INSERTED:
        for index in choose.sample(brackets, PLACES):
            yield Damaged(
                f"inserted: {more.strip()}", text[: index + 1] + more + text[index + 1 :], document
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--part", choices=(*DOCUMENTS, "random"), default="test")
    parser.add_argument("--peers", help="the Python of an environment with json_repair")
    parser.add_argument("--node", type=Path, help="a folder whose node_modules has jsonrepair")
    parser.add_argument(
        "--show", type=int, default=0, help="print so many texts of each kind that are read wrongly"
    )
    options = parser.parse_args()
    cases = list(damaged(options.part))
    pairs = [Pair(case.text, None, {(): case.document}) for case in cases]
    readers: dict[str, list[Found] | None] = {"evaluator": read_ours(pairs)}
    if options.peers:
        readers["json_repair"] = read_with(
            [options.peers, str(HERE / "parse_peers.py"), "json_repair"]
        )(pairs)
    if options.node:
        readers["jsonrepair"] = read_with(["node", "-e", NODE], options.node)(pairs)
    right = {
        name: [
            has and repr_of(value) == repr_of(case.document)
            for case, (has, value) in zip(cases, found, strict=True)
        ]
        for name, found in readers.items()
        if found is not None
    }
    print(f"| damage | n | {' | '.join(right)} |")
    print(f"|---|{'---:|' * (len(right) + 1)}")
    for kind in [*sorted({case.kind for case in cases}), "all"]:
        rows = [index for index, case in enumerate(cases) if kind in (case.kind, "all")]
        shares = [sum(verdict[index] for index in rows) for verdict in right.values()]
        print(
            f"| {kind} | {len(rows)} | "
            f"{' | '.join(f'{n} ({100 * n / len(rows):.1f} %)' for n in shares)} |"
        )
        wrong = [index for index in rows if not right["evaluator"][index]] if kind != "all" else []
        for index in wrong[: options.show]:
            found = (readers["evaluator"] or [])[index]
            print(f"    {cases[index].text!r}\n    -> {found[1] if found[0] else 'nothing'!r}")


if __name__ == "__main__":
    main()
