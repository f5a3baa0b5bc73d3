"""The public collections of labelled requests that `match_public.py` and `match_fit.py` read.

Each tool, function or intent becomes a template. The splits are fixed: CLINC150 and Seal-Tools have
their own; elsewhere the digest of a request decides. The sets of `UNTUNED` have a test part only:
nothing is tuned on them.

Off-topic requests are the out-of-scope requests of CLINC150, asked of every library. A few of them
fit a library of general tools all the same, which counts against the matching.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from evaluator.nodes import Atomic, Example, Input, Span, Task, Text

EXAMPLES = 10
"""Of an intent, so many of its training requests are the template's examples: those with the
smallest digests.
"""
LARGE, LARGE_ROWS = 15_000, 100
"""So many templates of the large library, and requests of each collection."""
REPOSITORY = Path(__file__).parents[1]
FOREIGN_DOMAINS = ("banking", "credit_cards", "home", "work")
BFCL = "gorilla/berkeley-function-call-leaderboard/bfcl_eval/data"
BFCL_SETS = (
    "simple_python",
    "simple_java",
    "simple_javascript",
    "multiple",
    "live_simple",
    "live_multiple",
)
USUAL_INPUTS = ("text", "input", "query", "document", "data", "content", "topic", "prompt")
NODE_KINDS = ("right", "usual")
# Their functions are in the library; their requests ask for several calls at once.
BFCL_MORE = ("parallel", "parallel_multiple")


@dataclass(frozen=True)
class Template:
    name: str
    node: Task


@dataclass(frozen=True)
class Row:
    """A request, the templates that are right for it (none: unrelated), the part that it belongs
    to, and of how many requests it was joined.
    """

    request: str | Task
    wanted: frozenset[str]
    part: str
    joined: int = 1


@dataclass(frozen=True)
class Collection:
    name: str
    templates: list[Template]
    rows: list[Row]


def digest(request: object) -> bytes:
    return hashlib.sha256(str(request).encode()).digest()


def part_of(request: str) -> str:
    return "train" if digest(request)[0] % 2 else "test"


def text(value: str) -> Text:
    return Text(value, Span())


def declared(name: str, description: str) -> Input:
    return Input(name, "string", False, None, None, None, description, Span())


def tool(name: str, description: str, inputs: dict[str, str] | None = None) -> Template:
    found = tuple(declared(key, what) for key, what in (inputs or {}).items())
    return Template(name, Atomic(name=name, description=text(description), inputs=found))


def intent(name: str, requests: Sequence[str]) -> Template:
    shown = sorted(requests, key=digest)[:EXAMPLES]
    examples = tuple(Example({"request": request}, "", Span()) for request in shown)
    return Template(
        name, Atomic(name=name, description=text(name.replace("_", " ")), examples=examples)
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def off_topic(root: Path) -> list[Row]:
    """The out-of-scope requests of CLINC150, singly and joined by threes; none without that
    collection.

    Requests for tools are longer. Without the joined ones, length alone would tell what is
    off-topic.
    """
    if not (root / "oos-eval").is_dir():
        return []
    data = _json(root / "oos-eval/data/data_full.json")
    rows: list[Row] = []
    for part, name in (("train", "oos_val"), ("train", "oos_train"), ("test", "oos_test")):
        rows += _with_joined([request for request, _ in data[name]], part)
    return rows


def own_off_topic(section: str = "") -> list[Row]:
    """The off-topic requests of `off_topic.txt`, singly and joined by threes; only of one section,
    if it is named.
    """
    found: list[str] = []
    is_wanted = True
    for line in (Path(__file__).parent / "off_topic.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            is_wanted = section in line
        elif is_wanted:
            found.append(line)
    return _with_joined(found, "train")


def _with_joined(single: Sequence[str], part: str) -> list[Row]:
    joined = [
        ". ".join(three) for three in zip(single[::3], single[1::3], single[2::3], strict=False)
    ]
    return [Row(request, frozenset(), part) for request in single] + [
        Row(r, frozenset(), part, 3) for r in joined
    ]


def toole(root: Path) -> list[Collection]:
    """ToolE: 199 tools that are described in a sentence, requests for one of them."""
    folder = root / "MetaTool/dataset"
    templates = [tool(name, what) for name, what in _json(folder / "plugin_des.json").items()]
    labelled = _table(folder / "data/all_clean_data.csv")
    rows = [Row(r["Query"], frozenset({r["Tool"]}), part_of(r["Query"])) for r in labelled]
    whole = Collection("ToolE", templates, rows)
    return [whole, thinned(whole)]


def toole_two(root: Path) -> list[Collection]:
    """ToolE: requests that need two of the 199 tools."""
    folder = root / "MetaTool/dataset"
    templates = [tool(name, what) for name, what in _json(folder / "plugin_des.json").items()]
    labelled = _json(folder / "data/multi_tool_query_golden.json")
    return [
        Collection(
            "ToolE, two tools",
            templates,
            [Row(r["query"], frozenset(r["tool"]), "test") for r in labelled],
        )
    ]


def clinc(root: Path) -> list[Collection]:
    """CLINC150: 150 intents with ten examples each, and requests that fit none."""
    data = _json(root / "oos-eval/data/data_full.json")
    shown: dict[str, list[str]] = {}
    for request, name in data["train"]:
        shown.setdefault(name, []).append(request)
    templates = [intent(name, requests) for name, requests in shown.items()]
    rows = [
        Row(request, frozenset({name}), part)
        for part, split in (("train", "val"), ("test", "test"))
        for request, name in data[split]
    ]
    return [Collection("CLINC150", templates, rows)]


def banking(root: Path) -> list[Collection]:
    """Banking77: 77 intents of one bank with ten examples each."""
    folder = root / "task-specific-datasets/banking_data"
    shown: dict[str, list[str]] = {}
    for row in _table(folder / "train.csv"):
        shown.setdefault(row["category"], []).append(row["text"])
    templates = [intent(name, requests) for name, requests in shown.items()]
    rows = [Row(r["text"], frozenset({r["category"]}), "test") for r in _table(folder / "test.csv")]
    return [Collection("Banking77", templates, rows)]


def _function(spec: dict[str, Any]) -> Template:
    properties = spec.get("parameters", {}).get("properties", {})
    inputs = {name: str(p.get("description", "")) for name, p in properties.items()}
    return tool(spec["name"], spec["description"], inputs)


def bfcl(root: Path) -> list[Collection]:
    """BFCL: functions with parameters, and requests for one of them."""
    folder = root / BFCL
    functions: dict[str, Template] = {}
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
                names = [each.name for each in functions[min(wanted)].node.inputs]
                nodes.append(Row(_node(request, names), wanted, part_of(request)))
    for name in BFCL_MORE:
        for row in _lines(folder / f"BFCL_v4_{name}.json"):
            for spec in row["function"]:
                functions.setdefault(spec["name"], _function(spec))
    whole = Collection("BFCL", list(functions.values()), rows)
    as_nodes = replace(whole, name="BFCL, as a node", rows=nodes)
    return [whole, thinned(whole), as_nodes, thinned(as_nodes)]


def seal(root: Path) -> list[Collection]:
    """Seal-Tools: 4,076 tools, requests for one or several of them."""
    folder = root / "Seal-Tools/Seal-Tools_Dataset"
    templates = [
        tool(
            t["api_name"],
            t["api_description"],
            {k: str(p["description"]) for k, p in t["parameters"].items()},
        )
        for t in _lines(folder / "tool.jsonl")
    ]
    rows = [
        Row(row["query"], frozenset(call["api"] for call in row["calling"]), part)
        for name, part in (
            ("dev", "train"),
            ("test_in_domain", "test"),
            ("test_out_domain", "test"),
        )
        for row in _lines(folder / f"{name}.jsonl")
    ]
    several = [row for row in rows if len(row.wanted) > 1]
    return [Collection("Seal-Tools, several tools", templates, several)]


def stable(root: Path) -> list[Collection]:
    """StableToolBench: requests that need several of some thousand APIs."""
    apis: dict[str, Template] = {}
    rows: list[Row] = []
    for path in sorted((root / "StableToolBench/solvable_queries/test_instruction").glob("*.json")):
        for row in _json(path):
            for api in row["api_list"]:
                name = f"{api['tool_name']}: {api['api_name']}"
                parameters = [
                    *api.get("required_parameters", ()),
                    *api.get("optional_parameters", ()),
                ]
                inputs = {str(p["name"]): str(p.get("description", "")) for p in parameters}
                apis.setdefault(name, tool(name, (api.get("api_description") or "")[:600], inputs))
            wanted = frozenset(f"{name}: {api}" for name, api in row["relevant APIs"])
            rows.append(Row(row["query"], wanted, part_of(row["query"])))
    return [Collection("StableToolBench", list(apis.values()), rows)]


def alpaca(root: Path) -> list[Collection]:
    """ToolAlpaca: 64 functions of ten services, requests that need one or several of them."""
    templates: dict[str, Template] = {}
    rows: list[Row] = []
    for service in _json(root / "ToolAlpaca/data/eval_simulated.json"):
        for name, what in service["Function_Description"].items():
            if "Parameters: {" in what:
                described, _, rest = what.partition("Parameters: ")
                inputs = json.JSONDecoder().raw_decode(rest)[0]
                templates.setdefault(
                    name, tool(name, described, {key: str(value) for key, value in inputs.items()})
                )
        for request, calls in zip(service["Instructions"], service["Golden_Answers"], strict=True):
            rows.append(Row(request, frozenset(call["Action"] for call in calls), "test"))
    known = [replace(row, wanted=row.wanted & templates.keys()) for row in rows]
    return [
        Collection("ToolAlpaca", list(templates.values()), [row for row in known if row.wanted])
    ]


def shipped(root: Path) -> list[Collection]:
    """The shipped templates; unrelated are also the requests of CLINC150 that no text task can
    serve.
    """
    from evaluator import TemplateLibrary

    library = TemplateLibrary.load(REPOSITORY / "templates", shipped=False)
    templates = [
        Template(t.name, t.node) for t in library.templates.values() if isinstance(t.node, Task)
    ]
    labelled = _json(REPOSITORY / "tests/library/match_requests.json")
    parts = {"tuning": "train", "held_out": "test"}
    rows = [
        Row(r["request"], frozenset(filter(None, [r["template"]])), parts[r["set"]])
        for r in labelled
    ]
    if (root / "oos-eval").is_dir():
        domains = _json(root / "oos-eval/data/domains.json")
        foreign = {intent for domain in FOREIGN_DOMAINS for intent in domains[domain]}
        data = _json(root / "oos-eval/data/data_full.json")
        for part, name, most in (("train", "val", 300), ("test", "test", 300)):
            unrelated = [
                Row(request, frozenset(), part)
                for request, intent in data[name]
                if intent in foreign
            ]
            rows += sampled(unrelated, part, most)
    return [Collection("shipped templates", templates, rows)]


def written(file: str) -> tuple[list[Template], dict[str, list[list[str]]]]:
    """The templates of our own file of requests, and the cells of each line of its other
    sections.
    """
    sections: dict[str, list[list[str]]] = {}
    section: list[list[str]] = []
    for line in (Path(__file__).parent / file).read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = sections.setdefault(line[3:], [])
        elif not line.startswith("#"):
            section.append([cell.strip() for cell in line.split("|")])
    templates = [
        Template(
            name,
            Atomic(
                name=name,
                description=text(description),
                criteria=text(criteria) if criteria else None,
                inputs=tuple(declared(each.strip(), "") for each in inputs.split(",")),
            ),
        )
        for name, description, criteria, inputs in sections.pop("templates")
    ]
    return templates, sections


def as_rows(
    fitting: Sequence[Sequence[str]], unrelated: Sequence[Sequence[str]], part: str
) -> list[Row]:
    return [
        *(Row(request, frozenset({name}), part) for name, request in fitting),
        *(Row(request, frozenset(), part) for (request,) in unrelated),
    ]


def small(root: Path) -> list[Collection]:
    """Our own small templates with requests for the train part."""
    templates, sections = written("match_train.txt")
    rows = as_rows(sections["fitting"], sections["off-topic"], "train")
    return [Collection("small templates", templates, rows)]


def held_out(root: Path) -> list[Collection]:
    """Our own held-out requests for small templates and for the shipped ones, also as nodes."""
    own, sections = written("match_held_out.txt")
    unrelated = sections["off-topic"]
    found: list[Collection] = []
    for title, templates, key, others in (
        ("held out, small templates", own, "second", [*unrelated, *sections["general"]]),
        ("held out, shipped templates", shipped(root)[0].templates, "shipped", unrelated),
    ):
        whole = Collection(title, templates, as_rows(sections[key], others, "test"))
        for kind in NODE_KINDS:
            nodes = as_nodes(whole, [kind])
            found.append(replace(nodes, name=f"{nodes.name}, {kind} inputs"))
        found.append(whole)
    return found


def large(root: Path) -> list[Collection]:
    """15,000 templates: those of all the collections under one roof, with copies up to that number;
    for the time.
    """
    every = [
        each
        for folder, read in (TUNED | UNTUNED).values()
        if (root / folder).is_dir()
        for each in read(root)[:1]
    ]
    union = [replace(t, name=f"{c.name}: {t.name}") for c in every for t in c.templates]
    templates = [
        replace(t, name=f"{t.name} {n // len(union)}")
        for n, t in zip(range(LARGE), cycle(union), strict=False)
    ]
    rows = [
        replace(
            row,
            wanted=frozenset(
                f"{c.name}: {name} {copy}" for name in row.wanted for copy in (0, 1, 2)
            ),
            part=part,
        )
        for c in every
        for part in ("train", "test")
        for row in sampled(c.rows, part, LARGE_ROWS)
    ]
    return [Collection("all collections", templates, rows)]


def as_nodes(collection: Collection, kinds: Sequence[str] = NODE_KINDS) -> Collection:
    """The requests of a collection as descriptions of nodes, of these kinds in turn: with the
    inputs of the right template (of any, if none is right), and with an input whose name says
    nothing.
    """
    by_name = {template.name: template.node for template in collection.templates}
    every = list(by_name)

    def node(row: Row) -> Atomic:
        number = int.from_bytes(digest(row.request)[1:5], "big")
        kind = kinds[number % len(kinds)]
        if kind == "usual":
            return _node(str(row.request), [USUAL_INPUTS[number % len(USUAL_INPUTS)]])
        wanted = sorted(row.wanted)
        chosen = wanted[0] if wanted else every[number % len(every)]
        return _node(str(row.request), [each.name for each in by_name[chosen].inputs])

    rows = [replace(row, request=node(row)) for row in collection.rows]
    return Collection(f"{collection.name}, as a node", collection.templates, rows)


def _node(description: str, inputs: Iterable[str]) -> Atomic:
    """What a caller passes that knows the inputs: a request as description, inputs by name."""
    return Atomic(
        description=text(description), inputs=tuple(declared(name, "") for name in inputs)
    )


def thinned(collection: Collection) -> Collection:
    """A collection without a fifth of its templates: requests for those are then unrelated."""
    kept = [t for t in collection.templates if digest(t.name)[0] % 5]
    names = {template.name for template in kept}
    rows = [replace(row, wanted=row.wanted & names) for row in collection.rows]
    return Collection(f"{collection.name}, a fifth of the templates left out", kept, rows)


def sampled(rows: Sequence[Row], part: str, most: int | None) -> list[Row]:
    """The rows of a part, at most `most` of them: those with the smallest digests of their
    requests.
    """
    chosen = [row for row in rows if row.part == part]
    if most is None or len(chosen) <= most:
        return chosen
    return sorted(chosen, key=lambda row: digest(repr(row.request))[1:])[:most]


TUNED: dict[str, tuple[str, Callable[[Path], list[Collection]]]] = {
    "toole": ("MetaTool", toole),
    "bfcl": ("gorilla", bfcl),
    "clinc": ("oos-eval", clinc),
    "seal": ("Seal-Tools", seal),
    "stable": ("StableToolBench", stable),
    "shipped": (".", shipped),
    "small": (".", small),
}
UNTUNED: dict[str, tuple[str, Callable[[Path], list[Collection]]]] = {
    "banking": ("task-specific-datasets", banking),
    "two": ("MetaTool", toole_two),
    "alpaca": ("ToolAlpaca", alpaca),
    "held_out": (".", held_out),
}
COLLECTIONS = TUNED | UNTUNED | {"large": (".", large)}
