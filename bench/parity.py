"""Agreement of the scorers with reference implementations, on outputs written for this benchmark.

    python bench/parity.py --python /tmp/parity/bin/python --repositories /tmp/repositories

The first is the Python of an environment with the packages of parity.txt, the second a folder with
clones of the repositories that it lists. For each kind every row is combined with every format of
an answer, hostile ones included (`parity_cases.py`); both sides score the same outputs. Each
disagreement is printed with a judgement: who is right, and why. A kind whose reference is missing
is skipped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from parity_cases import SUITES, Case, cases
from parity_judged import judge

from evaluator import Evaluator
from evaluator.batch import read_definition
from evaluator.batch.records import Sample
from evaluator.batch.scorers import ScorerInput, make_scorer, run_scores
from evaluator.errors import MissingExtra
from evaluator.errors.results import Status, TaskResult

REFERENCE = Path(__file__).with_name("parity_reference.py")
GOAL = 0.98
GRADED = {"type": "graded", "template": "judge", "inputs": {"answer": "output"}}

SCORERS: dict[str, Any] = {
    "choice": "choice:strict=inspect",
    "choice_default": "choice",
    "choice_set": "choice:strict=inspect",
    "choice_set_default": "choice",
    "numeric": "numeric:strict=lm_eval",
    "numeric_default": "numeric",
    "squad_em": "exact:normalise=squad,unanswerable=unanswerable",
    "squad_f1": "f1:normalise=squad,unanswerable=unanswerable",
    "drop": "drop",
    "calls": "calls",
    "math": "math",
    "simpleqa": GRADED | {"grades": {"CORRECT": 1, "INCORRECT": 0, "NOT_ATTEMPTED": 0.5}},
    "mt_bench": GRADED | {"out_of": 10},
}
SCORERS["simpleqa_other"] = SCORERS["simpleqa"]
SCORERS["ifeval"] = SCORERS["ifeval_loose"] = "ifeval"
VALUES = {"ifeval": "ifeval.prompt_strict", "ifeval_loose": "ifeval.prompt_loose"}
HUMANEVAL = read_definition(SUITES / "humaneval" / "evaluator.toml").options.scorers[0]


async def ours(found: list[Case], kind: str, evaluator: Evaluator) -> list[float | None]:
    scorer = make_scorer(HUMANEVAL if kind == "humaneval" else SCORERS[kind])
    value = VALUES.get(kind, scorer.name)
    few = asyncio.Semaphore(2)

    async def score(case: Case) -> float | None:
        async def evaluate(template: str, inputs: Any, **_: Any) -> Any:
            if template == "judge":
                return TaskResult(Status.COMPLETE, case.output)
            return await evaluator.evaluate(template, inputs)

        row = case.row or {}
        field = "functions" if kind == "calls" else "choices"
        inputs = {"prompt": row["prompt"]} if kind in VALUES else row
        sample = Sample(
            "1", inputs | ({} if case.options is None else {field: case.options}), case.target, row
        )
        outcome = TaskResult(Status.COMPLETE, case.output)
        async with few:
            return (await run_scores(scorer, ScorerInput(sample, outcome, lambda: None, evaluate)))[
                value
            ].value

    return list(await asyncio.gather(*map(score, found)))


def theirs(options: argparse.Namespace, by_kind: dict[str, list[Case]]) -> dict[str, Any]:
    request = json.dumps(
        {kind: [case._asdict() for case in found] for kind, found in by_kind.items()}
    )
    command = [
        options.python,
        str(REFERENCE),
        *([options.repositories] if options.repositories else []),
    ]
    ended = subprocess.run(command, input=request, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{REFERENCE.name} failed:\n{ended.stderr[-2000:]}")
    return json.loads(ended.stdout)


def agree(own: float | None, reference: float | None) -> bool:
    if own is None or reference is None:
        return own is reference
    return abs(own - reference) <= 0.005


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", default=sys.executable, help="the Python with the packages of parity.txt"
    )
    parser.add_argument("--repositories", help="the folder with the repositories of parity.txt")
    parser.add_argument("--kind", action="append", help="only this kind")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    by_kind: dict[str, list[Case]] = {}
    for case in cases():
        if not options.kind or case.kind in options.kind:
            by_kind.setdefault(case.kind, []).append(case)
    references = theirs(options, by_kind)
    report: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as work,
        Evaluator(handler="offline", tasks_dir=None, roots=[work]) as evaluator,
    ):
        for kind, found in by_kind.items():
            if isinstance(references[kind], str):
                report[kind] = {"skipped": references[kind]}
                continue
            try:
                own = asyncio.run(ours(found, kind, evaluator))
            except MissingExtra as error:
                report[kind] = {"skipped": str(error)}
                continue
            differ = [
                each
                for each in zip(found, own, references[kind], strict=True)
                if not agree(*each[1:])
            ]
            report[kind] = {
                "agree": len(found) - len(differ),
                "of": len(found),
                "goal": GOAL,
                "disagreements": [
                    {
                        "output": case.output,
                        "target": case.target,
                        "ours": a,
                        "theirs": b,
                        "judgement": judge(case),
                    }
                    for case, a, b in differ
                ],
            }
    print(json.dumps(report, indent=2, ensure_ascii=False) if options.json else as_text(report))


def as_text(report: dict[str, Any]) -> str:
    lines: list[str] = []
    for kind, found in report.items():
        if "skipped" in found:
            lines.append(f"{kind}: skipped: {found['skipped']}")
            continue
        lines.append(
            f"{kind}: {found['agree']} of {found['of']} agree ({found['agree'] / found['of']:.1%})"
        )
        lines += [
            f"    {each['output']!r} for {each['target']!r}: ours {each['ours']}, reference "
            f"{each['theirs']}; "
            f"{each['judgement']}"
            for each in found["disagreements"]
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
