"""How far the expectation of `evaluator plan` is from what the shipped suites take.

    python bench/expectation.py

Each suite is run with the answers that its rows have recorded, by a model that counts tokens as
cl100k_base does, at the prices of gpt-4o-mini. One half of the rows is the earlier batch (`--like`),
the other half is planned and then run; then the halves change places. The expected cost of a suite
whose first half was run is the cost of that half and what is expected of the other.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tiktoken
from figures import Figure, parser_for, remarks, report, work_folder

from evaluator import (
    Evaluator,
    ModelRequest,
    ModelResponse,
    SimulatedBackend,
    TemplateLibrary,
    run_batch_sync,
)
from evaluator.batch import BatchOptions, make_plan, plan_costs, read_definition
from evaluator.cli.init import SUITES
from evaluator.errors.results import Usage
from evaluator.files.locations import shipped

MODEL = "openai/gpt-4o-mini"
OVERHEAD = 4
"""Tokens that chat completions add to a message."""
READ = ("id", "inputs", "target", "shuffle_choices", "fewshot")
JUDGED = ("simpleqa", "mt_bench")
"""Suites whose scorers ask a model."""


def encoding() -> tiktoken.Encoding:
    """The encoding that LiteLLM ships, so that nothing is downloaded."""
    spec = find_spec("litellm")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0], "litellm_core_utils", "tokenizers")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    return tiktoken.get_encoding("cl100k_base")


class Recorded(SimulatedBackend):
    """Answers as the rows have recorded it, and counts tokens."""

    name = "recorded"

    def __init__(self, rows: Sequence[Mapping[str, Any]], field: str) -> None:
        super().__init__(script=self.answer)
        self._rows = rows
        self._field = field
        self._counter = encoding()

    def answer(self, request: ModelRequest) -> ModelResponse:
        said = "\n".join(message.content for message in request.messages)
        text = self._text(request, said)
        sent = sum(
            len(self._counter.encode(each.content, disallowed_special=())) + OVERHEAD
            for each in request.messages
        )
        if request.tools:
            sent += len(self._counter.encode(json.dumps([t.parameters for t in request.tools])))
        made = len(self._counter.encode(text, disallowed_special=()))
        return ModelResponse(text, "stop", usage=Usage(sent, made, 0, 0, None, 1))

    def _text(self, request: ModelRequest, said: str) -> str:
        row = max(self._rows, key=lambda row: sum(len(t) for t in texts_in(row) if t in said))
        task = request.hints.task or ""
        if "outputs" not in row:
            return row["judgement"] if task == "simpleqa_grade" else row[self._field]
        if task == "mt_bench_judge":
            return row["judgements"][said.count("<assistant>") - 1]
        return row["outputs"][sum(each.role == "assistant" for each in request.messages)]


def texts_in(value: Any) -> Iterator[str]:
    """All texts of a row."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_in(inner)


def errors_of(suite: str, file: str, work: Path) -> tuple[list[float], list[float], list[float]]:
    """The relative errors of what is expected: the cost of a half from that of the other, that of
    the suite after a half, and the input tokens of a half without an earlier batch.
    """
    definition = read_definition(file)
    text = Path(definition.rows).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    options = {name: getattr(definition.options, name) for name in READ}
    if suite in JUDGED:
        options["scorers"] = definition.options.scorers
    field = "output_mc2" if file == "mc2.toml" else "output"
    backend = Recorded(rows, field)
    folders = [work / f"{Path(file).stem}-{half}" for half in (0, 1)]
    evaluator = Evaluator(
        TemplateLibrary.load("templates"), backend=backend, model=MODEL, tasks_dir=None, roots=["."]
    )
    planner = Evaluator(
        TemplateLibrary.load("templates"), model=MODEL, tasks_dir=None, roots=["."]
    ).without_network()
    costs: list[float] = []
    sent: list[int] = []
    for half, folder in enumerate(folders):
        result = run_batch_sync(
            definition.templates, rows[half::2], evaluator=evaluator, output=folder, **options
        )
        used = [each.usage + each.scoring_usage for each in result.results()]
        assert len(used) == 10 and all(each.cost_usd for each in used)
        costs.append(sum(each.cost_usd or 0.0 for each in used))
        sent.append(sum(each.input_tokens or 0 for each in used))
    of_half: list[float] = []
    of_suite: list[float] = []
    of_input: list[float] = []
    for half in (0, 1):
        plan = make_plan(planner, definition.templates, rows[half::2], BatchOptions(**options))
        expected = asyncio.run(plan_costs(planner, plan, folders[1 - half])).expected.cost_usd
        first = asyncio.run(plan_costs(planner, plan)).expected.input_tokens
        assert expected is not None and first is not None
        of_half.append(expected / costs[half] - 1)
        of_suite.append((expected + costs[1 - half]) / sum(costs) - 1)
        of_input.append(first / sent[half] - 1)
    return of_half, of_suite, of_input


def main() -> None:
    arguments = parser_for(__doc__).parse_args()
    say = remarks(arguments.json)
    errors: tuple[list[float], ...] = ([], [], [])
    with work_folder(None) as work:
        for suite in SUITES:
            shutil.copytree(shipped("examples") / "suites" / suite, work / suite)
            os.chdir(work / suite)
            for file in sorted(Path().glob("*.toml")):
                shown: list[str] = []
                for known, new in zip(
                    errors, errors_of(suite, file.name, work / suite), strict=True
                ):
                    known += [100 * abs(error) for error in new]
                    shown.append(", ".join(f"{100 * error:+.1f} %" for error in new))
                say(f"{suite} {file.stem}: {shown[1]}; half {shown[0]}; input {shown[2]}")
    of_half, of_suite, of_input = errors
    figures = [
        Figure("cost of a suite after its first half, largest error", max(of_suite), "%", 15.0),
        Figure("the same, mean error", statistics.mean(of_suite), "%"),
        Figure("cost of a half after the other half, largest error", max(of_half), "%"),
        Figure("halves within 15 %", sum(error <= 15 for error in of_half), f"of {len(of_half)}"),
        Figure("input tokens without an earlier batch, largest error", max(of_input), "%"),
        Figure("the same, mean error", statistics.mean(of_input), "%"),
    ]
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
