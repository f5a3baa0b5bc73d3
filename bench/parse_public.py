"""How many cases of other parsers' own tests `parse_output` reads as they expect. Prints counts
only, never a case.

    git clone https://github.com/mangiucugna/json_repair && git -C json_repair checkout 600ede6be7d1
    git clone https://github.com/josdejong/jsonrepair && git -C jsonrepair checkout 72ccb43aa612
    git clone https://github.com/promplate/partial-json-parser && git -C partial-json-parser
    checkout e0aa5e2ec52e git clone https://github.com/instructor-ai/instructor && git -C instructor
    checkout 2e6c3b3f6ff0 git clone https://github.com/pydantic/pydantic-ai && git -C pydantic-ai
    checkout 4fda38988f29 git clone https://github.com/BoundaryML/baml && git -C baml checkout
    d794f28b4f88
    python bench/parse_public.py --data . [--peers PYTHON] [--node FOLDER] [--types]

`--peers` names the Python of an environment with `pip install -r bench/parse_peers.txt`, `--node` a
folder with `npm install jsonrepair@3.15.0`. A suite whose folder is missing is left out.
`parse_sets.py` says how pairs are extracted and which tests are not.

A text with a schema is one pair of its suite; its first expectation counts. Pairs are `broken`, or
they count apart: `with schema`, which of the other parsers only json_repair takes; `text`, where
the whole text is the expected string (right where a reader finds no value or that string); and
`valid`, texts that are valid JSON. An expected empty text means no value: right where nothing is
found or an error is raised; otherwise an exception is wrong. In BAML's tests null and a missing
member are equal, and members that the expected object lacks do not count. 1 is not true, 1 equals
1.0. A pair is foreign to a reader if its text is not in the reader's own suite. "As expected by
another library too": pairs that a reader of another suite reads as expected, so that no habit of
one library decides.

Keep the measure blind: nobody who changes the parser reads these cases, or which of them fail.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from parse_answers import repr_of
from parse_pairs import NO_VALUE, Pair
from parse_sets import extracts

from evaluator import parse_output

HERE = Path(__file__).parent
OURS, JSONREPAIR = "evaluator", "jsonrepair"
PEERS = ("json_repair", "partial-json-parser", "langchain-core", "demjson3", "dirtyjson", "json5")
KINDS = ("broken", "with schema", "text", "valid", "valid with schema")
Found = tuple[bool, Any]
"""Whether a reader found a value, and the value."""
NODE = """
const {jsonrepair} = require('jsonrepair')
const read = ([text]) => { try { return [true, JSON.parse(jsonrepair(text))] } catch { return [false, null] } }
process.stdout.write(JSON.stringify(JSON.parse(require('fs').readFileSync(0, 'utf8')).map(read)))
"""


@dataclass(frozen=True)
class Case:
    suite: str
    kind: str
    pair: Pair


def cases(data: Path) -> list[Case]:
    found: list[Case] = []
    for suite, extract in extracts(data):
        found += [Case(suite, kind_of(pair), pair) for pair in extract.pairs.values()]
        print(f"{suite}: {len(extract.pairs)} pairs; calls: {dict(extract.calls.most_common())}")
    return found


def kind_of(pair: Pair) -> str:
    try:
        json.loads(pair.text)
        return "valid" if pair.schema is None else "valid with schema"
    except ValueError:
        pass
    if pair.schema is not None:
        return "with schema"
    expected = pair.checks.get(())
    return (
        "text" if isinstance(expected, str) and expected.strip() == pair.text.strip() else "broken"
    )


def read_ours(pairs: Sequence[Pair]) -> list[Found]:
    parsed = [parse_output(pair.text, "json", schema=pair.schema) for pair in pairs]
    return [
        (p.error is None and not any("no JSON was found" in w for w in p.warnings), p.value)
        for p in parsed
    ]


def read_with(
    command: Sequence[str], folder: Path | None = None
) -> Callable[[Sequence[Pair]], list[Found] | None]:
    def read(pairs: Sequence[Pair]) -> list[Found] | None:
        texts = json.dumps([[pair.text, pair.schema] for pair in pairs])
        done = subprocess.run(command, input=texts, stdout=subprocess.PIPE, text=True, cwd=folder)
        if done.returncode:
            print(
                f"{command[-1].strip()[:30]}: left out, exit code {done.returncode}",
                file=sys.stderr,
            )
        return None if done.returncode else json.loads(done.stdout)

    return read


def right(pair: Pair, found: Found) -> bool:
    has_value, value = found
    if NO_VALUE in pair.checks.values():
        return not has_value or value in ("", None)
    if not has_value:
        return kind_of(pair) == "text"
    try:
        items = [
            (reduce(lambda owner, key: owner[key], path, value), expected)
            for path, expected in pair.checks.items()
        ]
    except (LookupError, TypeError):
        return False
    return all(same(item, expected, pair.partial) for item, expected in items)


def same(value: Any, expected: Any, partial: bool) -> bool:
    if partial and isinstance(value, dict) and isinstance(expected, dict):
        return all(same(value.get(key), item, partial) for key, item in expected.items())
    if partial and isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(
            map(same, value, expected, [partial] * len(value))
        )
    return repr_of(value) == repr_of(expected)


def table(held: Sequence[Case], verdicts: dict[str, list[bool]]) -> list[str]:
    """Lines of Markdown: for each reader the right ones of each column, and of foreign pairs beside
    ours.
    """
    columns = {
        f"{case.suite}, {case.kind}": list[int]()
        for case in sorted(held, key=lambda case: KINDS.index(case.kind))
    }
    columns |= {f"all {kind}": list[int]() for kind in KINDS}
    for index, case in enumerate(held):
        columns[f"{case.suite}, {case.kind}"].append(index)
    for index in unique(held):
        columns[f"all {held[index].kind}"].append(index)
    columns["broken and with schema"] = columns["all broken"] + columns["all with schema"]
    names = list(verdicts)
    lines = [f"| pairs | n | {' | '.join(names)} |", "|---|---:|" + "---:|" * len(names)]
    for column, indexes in columns.items():
        if indexes:
            counts = (share(indexes, verdicts[name]) for name in names)
            lines.append(f"| {column} | {len(indexes)} | {' | '.join(counts)} |")
    for column in ("all broken", "broken and with schema"):
        for name in names:
            own = {case.pair.text for case in held if case.suite == name}
            foreign = [index for index in columns[column] if held[index].pair.text not in own]
            if own:
                counts = (share(foreign, verdicts[n]) if n in (OURS, name) else "" for n in names)
                lines.append(
                    f"| {column}, foreign to {name} | {len(foreign)} | {' | '.join(counts)} |"
                )
    others = [(name, verdict) for name, verdict in verdicts.items() if name != OURS]
    agreed = [
        i for i in columns["all broken"] if any(v[i] for name, v in others if name != held[i].suite)
    ]
    if agreed:
        cells = [share(agreed, verdicts[OURS]), *[""] * len(others)]
        lines.append(
            f"| all broken, as expected by another library too | {len(agreed)} | "
            f"{' | '.join(cells)} |"
        )
    return lines


def unique(held: Sequence[Case]) -> list[int]:
    """The indexes of the cases, each text and schema once."""
    first: dict[str, int] = {}
    for index, case in enumerate(held):
        first.setdefault(json.dumps([case.pair.text, case.pair.schema]), index)
    return list(first.values())


def share(indexes: Sequence[int], verdict: Sequence[bool]) -> str:
    count = sum(verdict[index] for index in indexes)
    return f"{count} ({count / len(indexes):.1%})" if indexes else ""


def classes(held: Sequence[Case], found: Sequence[Found], verdict: Sequence[bool]) -> Counter[str]:
    """The cases that are not right, by suite, kind, and the first difference of the values."""
    counts: Counter[str] = Counter()
    for case, (has_value, value), fine in zip(held, found, verdict, strict=True):
        if not fine:
            expected = case.pair.checks.get((), {})
            wanted = "no value" if expected == NO_VALUE else type(expected).__name__
            what = difference(value, expected) if has_value else f"{wanted} -> refused"
            counts[f"{case.suite}, {case.kind}: {what}"] += 1
    return counts


def difference(value: Any, expected: Any) -> str:
    """The first difference of two values, by its kind and without its content."""
    if type(value) is not type(expected):
        return f"{type(expected).__name__} -> {type(value).__name__}"
    if isinstance(value, dict):
        if value.keys() != expected.keys():
            missing, further = (
                bool(a.keys() - b.keys()) for a, b in ((expected, value), (value, expected))
            )
            return "dict, " + (
                "other keys"
                if missing and further
                else "keys missing"
                if missing
                else "further keys"
            )
        items = [(value[key], expected[key]) for key in expected]
    elif isinstance(value, list):
        if len(value) != len(expected):
            return "list, " + ("items missing" if len(value) < len(expected) else "further items")
        items = list(zip(value, expected, strict=True))
    elif isinstance(value, str):
        blanks = "".join(value.split()) == "".join(expected.split())
        length = (
            "shorter"
            if len(value) < len(expected)
            else "longer"
            if len(value) > len(expected)
            else "as long"
        )
        return "str, " + ("blanks" if blanks else length)
    else:
        return type(value).__name__
    return "in it: " + next(
        difference(a, b).removeprefix("in it: ") for a, b in items if not same(a, b, False)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder with the repositories")
    parser.add_argument("--peers", help="the Python of an environment with the other parsers")
    parser.add_argument("--node", type=Path, help="a folder whose node_modules has jsonrepair")
    parser.add_argument(
        "--types",
        action="store_true",
        help="show the types of expected and read values that differ",
    )
    options = parser.parse_args()
    held = cases(options.data)
    pairs = [case.pair for case in held]
    ours = read_ours(pairs)
    found: dict[str, list[Found] | None] = {OURS: ours}
    if options.peers:
        for name in PEERS:
            found[name] = read_with([options.peers, str(HERE / "parse_peers.py"), name])(pairs)
    if options.node:
        found[JSONREPAIR] = read_with(["node", "-e", NODE], options.node)(pairs)
    verdicts = {
        name: list(map(right, pairs, values))
        for name, values in found.items()
        if values is not None
    }
    print("\n".join(table(held, verdicts)))
    for name, verdict in verdicts.items():
        broken = [i for i in unique(held) if held[i].kind == "broken" and not verdict[i]]
        refused = sum(not (found[name] or [])[index][0] for index in broken)
        print(f"{name}: of the broken pairs {refused} refused, {len(broken) - refused} wrong")
    if options.types:
        print(
            "\n".join(
                f"{count} {name}"
                for name, count in classes(held, ours, verdicts[OURS]).most_common()
            )
        )


if __name__ == "__main__":
    main()
