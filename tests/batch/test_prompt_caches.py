"""Prompt caches of providers in a batch: what is marked, who waits, and that each dollar is counted."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from evaluator import BatchResult, Evaluator, TemplateLibrary
from evaluator.batch import BatchOptions, make_plan, plan_costs, submissions, waves
from evaluator.batch.display import line_of
from evaluator.handler.config import read_profile
from tests import provider_server
from tests.batch.wave_driver import run_session, write_project
from tests.provider_replies import PRICES
from tests.provider_server import ProviderServer

FORMATS = ["openai", "anthropic"]
ROWS = 4
MIN_TOKENS = {"openai": 1024, "anthropic": 4096}
RULES = "\n".join(
    f"Rule {n}: an answer names the place and the year of the event." for n in range(350)
)
QUIZ = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    f"<instructions>{RULES}\nThe question is {{{{ question }}}}</instructions></task>"
)


def tokens_of(text: str) -> int:
    return len(text) // 4


class CachingServer(ProviderServer):
    """Both APIs with a prompt cache: a call reads what was written before it arrived. With `crowd`,
    interactive calls are answered when so many have arrived.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written: set[str] = set()
        self.found: list[bool] = []
        self.bodies: list[Mapping[str, Any]] = []
        self.crowd = threading.Barrier(1)
        self._answers: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._seen = threading.local()

    def take_fault(self, operation: str) -> int | str | None:
        self._seen.written = frozenset(self.written) if operation == "call" else None
        if operation == "call":
            self.crowd.wait(60)
        return super().take_fault(operation)

    def reply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if id(body) not in self._answers:
            self._answers[id(body)] = (body, self._new_reply(body))
            self.bodies.append(body)
        return self._answers[id(body)][1]

    def _new_reply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        written = self._seen.written
        if written is None:
            written = frozenset(self.written)
        model = f"{body['model']}: "
        written = frozenset(text.removeprefix(model) for text in written if text.startswith(model))
        self.found.append(bool(written))
        answer = super().reply(body)
        if "input_tokens" in answer["usage"]:
            answer["usage"] = self._anthropic(body, written)
        else:
            answer["usage"] = self._openai(body, written)
        return answer

    def _anthropic(self, body: Mapping[str, Any], written: frozenset[str]) -> dict[str, int]:
        blocks = [*body.get("system", ()), *(b for m in body["messages"] for b in m["content"])]
        text = ""
        read = 0
        kept = 0
        for block in blocks:
            text += block["text"]
            is_long = tokens_of(text) >= MIN_TOKENS["anthropic"]
            if text in written:
                read = tokens_of(text)
            if "cache_control" in block and is_long:
                kept = tokens_of(text)
                self.written.add(f"{body['model']}: {text}")
        new = max(0, kept - read)
        return {
            "input_tokens": tokens_of(text) - read - new,
            "output_tokens": 3,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": new,
        }

    def _openai(self, body: Mapping[str, Any], written: frozenset[str]) -> dict[str, Any]:
        text = "".join(message["content"] for message in body["messages"])
        rules = text.rpartition("\n")[0]
        read = tokens_of(rules) if any(other.startswith(rules) for other in written) else 0
        self.written.add(f"{body['model']}: {text}")
        cached = read // 128 * 128 if read >= MIN_TOKENS["openai"] else 0
        sent = tokens_of(text)
        return {
            "prompt_tokens": sent,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def price_of(body: Mapping[str, Any], answer: Mapping[str, Any]) -> float:
    price_in, price_out = PRICES[str(body["model"])]
    usage = answer["usage"]
    if "prompt_tokens" in usage:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        sent = usage["prompt_tokens"] - cached + cached / 2
        return sent * price_in + 3 * price_out
    sent = usage["input_tokens"] + 0.1 * usage["cache_read_input_tokens"]
    return (sent + 1.25 * usage["cache_creation_input_tokens"]) * price_in + 3 * price_out


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CachingServer]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(provider_server, "price_of", price_of)
    monkeypatch.setattr(waves, "POLL_S", 0.001)
    monkeypatch.setattr(submissions, "SETTLE_S", 0.0)
    with CachingServer() as server:
        yield server


def run(
    folder: Path, server: ProviderServer, format: str, mode: str, **options: Any
) -> BatchResult:
    write_project(folder, server.url, format, ROWS, QUIZ)
    profile = folder / "handlers" / "p.xml"
    text = profile.read_text().replace(
        "</handler>", f"<prompt_cache>{mode}</prompt_cache></handler>"
    )
    profile.write_text(text)
    return run_session(folder, **{"provider_batch": False, "wait": False, **options})


def total(result: BatchResult, name: str) -> float:
    return sum(getattr(sample.usage, name) for sample in result.results())


def answers(result: BatchResult) -> dict[str, tuple[str, str]]:
    return {each.sample_id: (each.identity, each.content) for each in result.results()}


@pytest.mark.parametrize("format", FORMATS)
def test_one_call_writes_the_common_beginning_and_the_others_read_it(
    server: CachingServer, tmp_path: Path, format: str
) -> None:
    result = run(tmp_path / "auto", server, format, "auto")
    assert server.found == [False, True, True, True]
    assert total(result, "cost_usd") == pytest.approx(server.billed, rel=1e-9)
    rules = tokens_of(RULES)
    assert total(result, "cached_tokens") == pytest.approx(3 * rules, rel=0.02)
    written = rules if format == "anthropic" else 0
    assert total(result, "cache_write_tokens") == pytest.approx(written, rel=0.02)
    assert ("cache_control" in json.dumps(server.bodies)) == (format == "anthropic")

    saved = total(result, "cache_saved_usd")
    summary = result.summary.groups[0].spending
    assert summary.cache_saved_usd.known == pytest.approx(saved) and saved > 0
    share = total(result, "cached_tokens") / total(result, "input_tokens")
    line = f"prompt caches: {100 * share:.1f} % of the tokens in, saved ${saved:.4f}"
    assert share > 0.7 and line in str(result.summary)
    progress = f"prompt caches: {share:.0%} of input, saved ${saved:.4f}"
    assert progress in line_of(result.ended.snapshot)
    library = TemplateLibrary.load(tmp_path / "auto" / "quiz.xml")
    planner = Evaluator(library, handler="p", tasks_dir=None, trust=True).without_network()
    plan = make_plan(planner, "quiz", "rows.jsonl", BatchOptions())
    costs = asyncio.run(plan_costs(planner, plan))
    assert costs.cached.saved_usd == pytest.approx(saved, rel=0.15)
    assert costs.most.cost_usd is not None and costs.most.cost_usd > server.billed

    # Without it, all calls are under way at once, and cost what the plan says beside it.
    server.written.clear()
    server.bodies.clear()
    server.crowd = threading.Barrier(ROWS)
    plain = run(tmp_path / "off", server, format, "off")
    assert server.found[ROWS:] == [False] * ROWS
    assert "cache_control" not in json.dumps(server.bodies)
    assert total(plain, "cost_usd") == pytest.approx(saved + total(result, "cost_usd"))
    assert answers(plain) == answers(result)


@pytest.mark.parametrize("format", FORMATS)
def test_a_provider_batch_is_marked_and_its_cost_is_what_is_billed(
    server: CachingServer, tmp_path: Path, format: str
) -> None:
    result = run(tmp_path / "b", server, format, "auto", provider_batch=True, wait=True)
    assert server.interactive == [] and len(server.ledger) == ROWS
    assert total(result, "cached_tokens") == pytest.approx(3 * tokens_of(RULES), rel=0.02)
    assert ("cache_control" in json.dumps(server.bodies)) == (format == "anthropic")
    if format == "anthropic":
        assert total(result, "cost_usd") == pytest.approx(server.billed, rel=1e-9)
        assert total(result, "cache_saved_usd") > 0


def test_rows_of_an_evaluator_share_the_beginning_too(
    server: CachingServer, tmp_path: Path
) -> None:
    write_project(tmp_path / "p", server.url, "openai", ROWS, QUIZ)
    library = TemplateLibrary.load(tmp_path / "p" / "quiz.xml")
    profiles = {"p": read_profile(tmp_path / "p" / "handlers" / "p.xml")[0]}

    async def evaluate() -> list[int | None]:
        async with Evaluator(library, "p", tasks_dir=None, profiles=profiles) as evaluator:
            rows = [{"question": str(n)} for n in range(ROWS)]
            outcomes = evaluator.evaluate_batch("quiz", rows)
            return [outcome.unwrap().usage.cached_tokens async for outcome in outcomes]

    cached = asyncio.run(evaluate())
    assert server.found == [False, True, True, True] and sorted(map(bool, cached)) == server.found


def test_each_model_of_a_batch_writes_the_beginning_once(
    server: CachingServer, tmp_path: Path
) -> None:
    models = ["openai/gpt-4o-mini", "openai/gpt-4.1-mini"]
    # The first calls of both models are under way together.
    server.crowd = threading.Barrier(len(models))
    run(tmp_path / "p", server, "openai", "auto", models=models)
    found: dict[str, list[bool]] = {}
    for body, was_found in zip(server.bodies, server.found, strict=True):
        found.setdefault(body["model"], []).append(was_found)
    assert list(found.values()) == [[False, True, True, True]] * 2
