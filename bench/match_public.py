"""How well `LexicalRanker` finds templates in public collections of labelled requests.

    git clone --depth 1 https://github.com/HowieHwong/MetaTool
    git clone --depth 1 https://github.com/ShishirPatil/gorilla
    git clone --depth 1 https://github.com/clinc/oos-eval
    git clone --depth 1 https://github.com/THUNLP-MT/StableToolBench
    python bench/match_public.py --data . [--part test] [--sample 1000] [--sets toole,clinc] [--vectors]

Each tool, function or intent becomes a template. A collection whose folder is missing is left out, which is said.
The splits are fixed: CLINC150 has its own; elsewhere the digest of a request decides. Coefficients and weights were
chosen on the train part; `--part test` is what counts.
"""

from __future__ import annotations

import csv
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from figures import Figure, parser_for, remarks, report

from evaluator.library.matching import LOW_SCORE, LexicalRanker, Match
from evaluator.library.vectors import find_vectors, make_ranker
from evaluator.nodes import Atomic, Example, Input, Span, Task, Text

EXAMPLES = 10
"""Of an intent of CLINC150, so many of its training requests are the template's examples."""
REPOSITORY = Path(__file__).parents[1]
FOREIGN_DOMAINS = ("banking", "credit_cards", "home", "work")
BFCL = "gorilla/berkeley-function-call-leaderboard/bfcl_eval/data"
BFCL_SETS = ("simple_python", "simple_java", "simple_javascript", "multiple", "live_simple", "live_multiple")


@dataclass(frozen=True)
class Template:
    name: str
    node: Task


@dataclass(frozen=True)
class Row:
    """A request, the templates that are right for it (none: unrelated), and the part that it belongs to."""

    request: str | Task
    wanted: frozenset[str]
    part: str


@dataclass(frozen=True)
class Collection:
    name: str
    templates: list[Template]
    rows: list[Row]


def part_of(request: str) -> str:
    return "train" if hashlib.sha256(request.encode()).digest()[0] % 2 else "test"


def text(value: str) -> Text:
    return Text(value, Span())


def declared(name: str, description: str) -> Input:
    return Input(name, "string", False, None, None, None, description, Span())


def toole(root: Path) -> list[Collection]:
    """ToolE: 199 tools that are described in a sentence, requests for one of them."""
    folder = root / "MetaTool/dataset"
    described = json.loads((folder / "plugin_des.json").read_text(encoding="utf-8"))
    templates = [Template(name, Atomic(name=name, description=text(what))) for name, what in described.items()]
    with (folder / "data/all_clean_data.csv").open(encoding="utf-8", newline="") as file:
        rows = [Row(r["Query"], frozenset({r["Tool"]}), part_of(r["Query"])) for r in csv.DictReader(file)]
    whole = Collection("ToolE", templates, rows)
    return [whole, thinned(whole)]


def clinc(root: Path) -> list[Collection]:
    """CLINC150: 150 intents with ten examples each, and requests that fit none."""
    data = json.loads((root / "oos-eval/data/data_full.json").read_text(encoding="utf-8"))
    shown: dict[str, list[str]] = {}
    for request, intent in data["train"]:
        shown.setdefault(intent, []).append(request)
    templates = [
        Template(
            intent,
            Atomic(
                name=intent,
                description=text(intent.replace("_", " ")),
                examples=tuple(Example({"request": r}, "", Span()) for r in requests[:EXAMPLES]),
            ),
        )
        for intent, requests in shown.items()
    ]
    rows: list[Row] = []
    for part, fits, unrelated in (
        ("train", "val", "oos_val"),
        ("train", "", "oos_train"),
        ("test", "test", "oos_test"),
    ):
        rows += [Row(request, frozenset({intent}), part) for request, intent in data.get(fits, ())]
        rows += [Row(request, frozenset(), part) for request, _ in data[unrelated]]
    return [Collection("CLINC150", templates, rows)]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _function(spec: dict[str, Any]) -> Atomic:
    properties = spec.get("parameters", {}).get("properties", {})
    inputs = tuple(declared(name, str(p.get("description", ""))) for name, p in properties.items())
    return Atomic(name=spec["name"], description=text(spec["description"]), inputs=inputs)


def bfcl(root: Path) -> list[Collection]:
    """BFCL: functions with parameters, and requests for one of them."""
    folder = root / BFCL
    functions: dict[str, Atomic] = {}
    rows: list[Row] = []
    nodes: list[Row] = []
    for name in BFCL_SETS:
        answers = {
            row["id"]: {key for call in row["ground_truth"] for key in call}
            for row in _lines(folder / f"possible_answer/BFCL_v4_{name}.json")
        }
        for row in _lines(folder / f"BFCL_v4_{name}.json"):
            for spec in row["function"]:
                functions.setdefault(spec["name"], _function(spec))
            request = row["question"][0][-1]["content"]
            wanted = frozenset(answers[row["id"]])
            rows.append(Row(request, wanted, part_of(request)))
            if len(wanted) == 1:
                nodes.append(Row(_as_node(request, functions[min(wanted)]), wanted, part_of(request)))
    templates = [Template(name, node) for name, node in functions.items()]
    whole = Collection("BFCL", templates, rows)
    as_nodes = Collection("BFCL, as a node", templates, nodes)
    return [whole, thinned(whole), as_nodes, thinned(as_nodes)]


def _as_node(request: str, function: Atomic) -> Atomic:
    """What a caller that knows the inputs passes: the request as description, the inputs by name."""
    return Atomic(description=text(request), inputs=tuple(declared(i.name, "") for i in function.inputs))


def stable(root: Path) -> list[Collection]:
    """StableToolBench: requests that need several of some thousand APIs."""
    apis: dict[str, Atomic] = {}
    rows: list[Row] = []
    for path in sorted((root / "StableToolBench/solvable_queries/test_instruction").glob("*.json")):
        for row in json.loads(path.read_text(encoding="utf-8")):
            for api in row["api_list"]:
                name = f"{api['tool_name']}: {api['api_name']}"
                parameters = [*api.get("required_parameters", ()), *api.get("optional_parameters", ())]
                inputs = {str(p["name"]): declared(str(p["name"]), str(p.get("description", ""))) for p in parameters}
                described = api.get("api_description") or ""
                apis.setdefault(
                    name, Atomic(name=name, description=text(described[:600]), inputs=tuple(inputs.values()))
                )
            wanted = frozenset(f"{tool}: {api}" for tool, api in row["relevant APIs"])
            rows.append(Row(row["query"], wanted, part_of(row["query"])))
    return [Collection("StableToolBench", [Template(name, node) for name, node in apis.items()], rows)]


def shipped(root: Path) -> list[Collection]:
    """The shipped templates; unrelated are also the requests of CLINC150 that no text task can serve."""
    from evaluator import TemplateLibrary

    library = TemplateLibrary.load(REPOSITORY / "templates", shipped=False)
    templates = [Template(t.name, t.node) for t in library.templates.values() if isinstance(t.node, Task)]
    labelled = json.loads((REPOSITORY / "tests/library/match_requests.json").read_text(encoding="utf-8"))
    parts = {"tuning": "train", "held_out": "test"}
    rows = [Row(r["request"], frozenset(filter(None, [r["template"]])), parts[r["set"]]) for r in labelled]
    if (root / "oos-eval").is_dir():
        domains = json.loads((root / "oos-eval/data/domains.json").read_text(encoding="utf-8"))
        foreign = {intent for domain in FOREIGN_DOMAINS for intent in domains[domain]}
        data = json.loads((root / "oos-eval/data/data_full.json").read_text(encoding="utf-8"))
        # In the train part as many as requests that fit, so that the share of unrelated ones is not fitted.
        for part, name, most in (("train", "val", 40), ("test", "test", 300)):
            unrelated = [Row(request, frozenset(), part) for request, intent in data[name] if intent in foreign]
            rows += sampled(unrelated, part, most)
    return [Collection("shipped templates", templates, rows)]


def thinned(collection: Collection) -> Collection:
    """A collection without a fifth of its templates: requests for those are then unrelated."""
    kept = [t for t in collection.templates if hashlib.sha256(t.name.encode()).digest()[0] % 5]
    names = {template.name for template in kept}
    rows = [replace(row, wanted=row.wanted & names) for row in collection.rows]
    return Collection(f"{collection.name}, a fifth of the templates left out", kept, rows)


COLLECTIONS: dict[str, tuple[str, Callable[[Path], list[Collection]]]] = {
    "toole": ("MetaTool", toole),
    "bfcl": ("gorilla", bfcl),
    "clinc": ("oos-eval", clinc),
    "stable": ("StableToolBench", stable),
    "shipped": (".", shipped),
}


def sampled(rows: Sequence[Row], part: str, most: int | None) -> list[Row]:
    """The rows of a part, at most `most` of them: those with the smallest digests of their requests."""
    chosen = [row for row in rows if row.part == part]
    if most is None or len(chosen) <= most:
        return chosen
    return sorted(chosen, key=lambda row: hashlib.sha256(repr(row.request).encode()).digest()[1:])[:most]


def auroc(right: Sequence[float], wrong: Sequence[float]) -> float:
    """The probability that a fitting request scores above an unrelated one; equal scores count half."""
    ordered = sorted([(score, True) for score in right] + [(score, False) for score in wrong])
    total, below, start = 0.0, 0, 0
    while start < len(ordered):
        end = start
        while end < len(ordered) and ordered[end][0] == ordered[start][0]:
            end += 1
        fits = sum(1 for _, fit in ordered[start:end] if fit)
        others = end - start - fits
        total += fits * (below + others / 2)
        below += others
        start = end
    return total / (len(right) * len(wrong))


def calibration_error(pairs: Iterable[tuple[float, bool]], bins: int = 10) -> float:
    """The expected calibration error over bins of equal width: |share right - mean score|, weighted by their sizes."""
    held: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for score, right in pairs:
        held[min(bins - 1, int(score * bins))].append((score, right))
    size = sum(map(len, held))
    return sum(abs(sum(s for s, _ in b) - sum(r for _, r in b)) for b in held) / size


def measure(collection: Collection, part: str, most: int | None, *, vectors: bool) -> list[Figure]:
    rows = sampled(collection.rows, part, most)
    ranker = (make_ranker if vectors else LexicalRanker)(collection.templates)
    ranker.rank("warm up")
    began = time.process_time()
    found = [(row, ranker.rank(row.request, 5)) for row in rows]
    spent = time.process_time() - began
    fits = [(row, names(matches)) for row, matches in found if row.wanted]
    title = f"{collection.name} ({len(collection.templates)} templates, {len(rows)} requests)"
    figures = [
        Figure(f"{title}: recall@1", 100 * share(bool(row.wanted & set(five[:1])) for row, five in fits), "%"),
        Figure("  recall@5", 100 * share(len(row.wanted & set(five)) / len(row.wanted) for row, five in fits), "%"),
        Figure("  any right one of five", 100 * share(bool(row.wanted & set(five)) for row, five in fits), "%"),
    ]
    unrelated = [top(matches) for row, matches in found if not row.wanted]
    if unrelated:
        related = [top(matches) for row, matches in found if row.wanted]
        figures += [
            Figure("  AUROC of unrelated requests", auroc(related, unrelated), ""),
            Figure("  unrelated requests that run something", 100 * share(s >= LOW_SCORE for s in unrelated), "%"),
            Figure("  fitting requests refused", 100 * share(s < LOW_SCORE for s in related), "%"),
        ]
    ece = calibration_error((top(m), bool(row.wanted & set(names(m[:1])))) for row, m in found)
    return [*figures, Figure("  expected calibration error", ece, ""), Figure("  CPU", 1e3 * spent / len(rows), "ms")]


def names(matches: Iterable[Match]) -> list[str]:
    return [match.template.name for match in matches]


def top(matches: Sequence[Match]) -> float:
    return matches[0].score if matches else 0.0


def share(values: Iterable[float]) -> float:
    counted = list(values)
    return sum(counted) / len(counted)


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds the clones")
    parser.add_argument("--part", choices=("train", "test"), default="test")
    parser.add_argument("--sample", type=int, help="at most so many requests of each collection")
    parser.add_argument("--sets", default=",".join(COLLECTIONS), help="which collections, separated by commas")
    parser.add_argument("--vectors", action="store_true", help="with the vectors of evaluator[vectors]")
    arguments = parser.parse_args()
    if arguments.vectors and find_vectors() is None:
        parser.error("evaluator[vectors] is not installed")
    say = remarks(arguments.json)
    figures: list[Figure] = []
    for key in arguments.sets.split(","):
        folder, read = COLLECTIONS[key]
        if not (arguments.data / folder).is_dir():
            print(f"{key}: left out, there is no folder {arguments.data / folder}", file=sys.stderr)
            continue
        for collection in read(arguments.data):
            say(f"{collection.name} ...")
            figures += measure(collection, arguments.part, arguments.sample, vectors=arguments.vectors)
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
