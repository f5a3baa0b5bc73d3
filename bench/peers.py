"""One batch of a peer against the benchmark's server: samples a second, on one line.

    python bench/peers.py NAME URL COUNT CONCURRENCY

Each does what `batch.py` does: one call a sample, one scorer that looks for the target in the
answer, so many at once. Every peer is used as its documentation says, with its own client where it
has one. Exit code 3: not installed. promptfoo, a program of its own, is not among these: `batch.py`
calls `promptfoo` here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tasks

KEY = "bench-key-of-no-use"


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"id": str(number), "target": "42", "prompt": prompt(number)} for number in range(count)
    ]


def prompt(number: int) -> str:
    return tasks.messages(tasks.row(number))[0]["content"]


def pydantic_evals(url: str, count: int, concurrency: int) -> float:
    from openai import AsyncOpenAI
    from pydantic_evals import Case, Dataset
    from pydantic_evals.evaluators import Evaluator, EvaluatorContext

    class Includes(Evaluator[str, str, None]):
        def evaluate(self, ctx: EvaluatorContext[str, str, None]) -> bool:
            return str(ctx.expected_output) in ctx.output

    client = AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0)

    async def answer(text: str) -> str:
        done = await client.chat.completions.create(
            model="bench", messages=[{"role": "user", "content": text}]
        )
        return done.choices[0].message.content or ""

    cases = [
        Case(name=row["id"], inputs=row["prompt"], expected_output=row["target"])
        for row in rows(count)
    ]
    dataset: Any = Dataset(name="bench", cases=cases, evaluators=[Includes()])
    started = time.perf_counter()
    found = dataset.evaluate_sync(answer, max_concurrency=concurrency, progress=False)
    elapsed = time.perf_counter() - started
    check(sum(case.assertions["Includes"].value for case in found.cases), count)
    return count / elapsed


def inspect_ai(url: str, count: int, concurrency: int) -> float:
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    os.environ.update(BENCH_API_KEY=KEY, BENCH_BASE_URL=url)
    samples = [
        Sample(input=row["prompt"], target=row["target"], id=row["id"]) for row in rows(count)
    ]
    task = Task(dataset=MemoryDataset(samples), solver=generate(), scorer=includes())
    with tempfile.TemporaryDirectory() as logs:
        started = time.perf_counter()
        (log,) = evaluate(
            task,
            model="openai-api/bench/bench",
            log_dir=logs,
            display="none",
            max_connections=concurrency,
            max_samples=concurrency,
        )
        elapsed = time.perf_counter() - started
    scores = log.results.scores[0].metrics["accuracy"].value if log.results else 0
    check(round(scores * count), count)
    return count / elapsed


def dspy(url: str, count: int, concurrency: int) -> float:
    import dspy

    model = dspy.LM("openai/bench", api_base=url, api_key=KEY, cache=False, num_retries=0)

    class Answer(dspy.Module):  # type: ignore[misc]
        def forward(self, prompt: str) -> Any:
            (text,) = model(messages=[{"role": "user", "content": prompt}])
            return dspy.Prediction(answer=text if isinstance(text, str) else text["text"])

    def found(example: Any, prediction: Any, trace: Any = None) -> bool:
        return example.target in prediction.answer

    examples = [
        dspy.Example(prompt=row["prompt"], target=row["target"]).with_inputs("prompt")
        for row in rows(count)
    ]
    evaluate = dspy.Evaluate(
        devset=examples, metric=found, num_threads=concurrency, display_progress=False
    )
    started = time.perf_counter()
    score = evaluate(Answer()).score
    elapsed = time.perf_counter() - started
    check(round(score / 100 * count), count)
    return count / elapsed


def promptfoo(command: str, folder: Path, url: str, count: int, concurrency: int) -> float:
    """Samples a second of the program `command`, by the duration in its own results.

    That covers calls, assertions and its database in `folder`, which is made; not the start of the
    process nor the results' file. With telemetry off it still sends one event to say so: a proxy
    that is not there holds it back.
    Raises: SystemExit, if not all samples passed.
    """
    folder.mkdir()
    tests = [
        {
            "vars": {"prompt": row["prompt"]},
            "assert": [{"type": "contains", "value": row["target"]}],
        }
        for row in rows(count)
    ]
    provider = {"id": "openai:chat:bench", "config": {"apiBaseUrl": url, "apiKey": KEY}}
    config = {"prompts": ["{{prompt}}"], "providers": [provider], "tests": tests}
    (folder / "promptfooconfig.json").write_text(json.dumps(config), encoding="utf-8")
    switched_off = ("TELEMETRY", "UPDATE", "SHARING", "REMOTE_GENERATION", "RUNTIME_WARNINGS")
    environment = {**os.environ, **{f"PROMPTFOO_DISABLE_{what}": "1" for what in switched_off}}
    environment |= {
        "PROMPTFOO_CONFIG_DIR": str(folder / "home"),
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }
    arguments = ["--max-concurrency", str(concurrency), "--output", "results.json"]
    switches = ["--no-cache", "--no-share", "--no-table", "--no-progress-bar"]
    done = subprocess.run(
        [command, "eval", "--config", "promptfooconfig.json", *arguments, *switches],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"promptfoo: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    stats = json.loads((folder / "results.json").read_text(encoding="utf-8"))["results"]["stats"]
    check(stats["successes"], count)
    return count / (stats["evaluationDurationMs"] / 1000)


def check(passed: int, count: int) -> None:
    if passed != count:
        raise SystemExit(f"{passed} of {count} samples passed")


PEERS: dict[str, tuple[str, Callable[[str, int, int], float]]] = {
    "pydantic-evals": ("pydantic_evals", pydantic_evals),
    "inspect-ai": ("inspect_ai", inspect_ai),
    "dspy": ("dspy", dspy),
}


def main() -> None:
    name, url, count, concurrency = sys.argv[1:]
    module, run = PEERS[name]
    if importlib.util.find_spec(module) is None:
        raise SystemExit(3)
    print(run(url, int(count), int(concurrency)))


if __name__ == "__main__":
    main()
