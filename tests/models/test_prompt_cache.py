"""What a prompt cache is asked to keep: the common beginning, its end, and the call that writes it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evaluator import (
    Attachment,
    CacheMark,
    HandlerConfig,
    Message,
    ModelRequest,
    ModelResponse,
    ToolCall,
    clock,
)
from evaluator.handler.config import PromptCache
from evaluator.models.prompt_cache import (
    LIFETIME_S,
    PromptCaches,
    cache_terms,
    prefix_of,
)
from tests.batch.conftest import Scripted
from tests.conftest import MakeEvaluator

CLAUDE = "anthropic/claude-sonnet-4-5"
SYSTEM = Message("system", "Be brief.", shared=9)
PICTURE = Attachment("image/png", b"\x89PNG", "a.png")


@pytest.mark.parametrize(
    ("messages", "end"),
    [
        ((SYSTEM, Message("user", "x")), CacheMark(0, 9)),
        ((SYSTEM, Message("user", "Rules\nAsk: x", shared=11)), CacheMark(1, 6)),
        ((SYSTEM, Message("user", "Ask: x", shared=5)), CacheMark(0, 9)),
        ((SYSTEM, Message("user", "Rules\n \n", shared=7)), CacheMark(0, 9)),
        ((SYSTEM, Message("user", "Rules\n", (), None, (PICTURE,), shared=6)), CacheMark(0, 9)),
        ((Message("system", "Be x"), Message("user", "Rules\n", shared=6)), None),
    ],
)
def test_the_prefix_ends_behind_a_line_of_the_last_shared_text(
    messages: tuple[Message, ...], end: CacheMark | None
) -> None:
    prefix = prefix_of(messages)
    assert (prefix and prefix.end) == end


def test_only_a_price_that_makes_the_second_call_cheaper_is_a_reason_for_a_cache() -> None:
    terms = cache_terms(CLAUDE)
    assert terms is not None and terms.needs_marks and terms.min_tokens == 1024
    assert terms.saved_usd(1000, 9) == 0.0
    assert terms.saved_usd(2000, 1) < 0 < terms.saved_usd(2000, 2)
    automatic = cache_terms("openai/gpt-4o-mini")
    assert automatic is not None and not automatic.needs_marks and automatic.write_adds_usd == 0
    assert cache_terms("openai/gpt-4-0613") is None and cache_terms("local/x") is None


def test_the_next_call_writes_what_a_failed_one_did_not_and_again_when_it_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    prefix = prefix_of([SYSTEM])
    assert prefix is not None
    order: list[str] = []

    async def call(caches: PromptCaches, name: str, *, works: bool = True) -> None:
        writing = await caches.enter(prefix, "openai/gpt-4o-mini")
        order.append(f"{name} writes" if writing else f"{name} reads")
        await asyncio.sleep(0)
        if writing is not None:
            writing.leave(is_written=works)

    async def check() -> None:
        nonlocal now
        caches = PromptCaches()
        await asyncio.gather(call(caches, "a", works=False), call(caches, "b"), call(caches, "c"))
        now += LIFETIME_S - 1
        await call(caches, "d")
        now += LIFETIME_S
        await asyncio.gather(call(caches, "e"), call(caches, "f"))

    asyncio.run(check())
    assert order == ["a writes", "b writes", "c reads", "d reads", "e writes", "f reads"]


TOOLS = '<tools><tool name="list_files"/></tools>'


@pytest.mark.parametrize(
    ("mode", "tools", "marked"),
    [
        ("auto", "", [[]]),
        ("auto", TOOLS, [["Rules\nAsk: x"], ["tool"]]),
        ("off", TOOLS, [[], []]),
        ("on", "", [["Rules\n"]]),
        ("on", TOOLS, [["Rules\n", "Rules\nAsk: x"], ["Rules\n", "tool"]]),
    ],
)
def test_a_single_run_marks_what_it_sends_again(
    make_evaluator: MakeEvaluator, mode: PromptCache, tools: str, marked: list[list[str]]
) -> None:
    seen: list[list[str]] = []

    def answer(request: ModelRequest) -> Any:
        ends = [(request.messages[mark.message], mark) for mark in request.cache_marks]
        seen.append([m.content[: e.characters] if m.role == "user" else m.role for m, e in ends])
        if request.tools and len(seen) == 1:
            return ModelResponse("", "tool_calls", (ToolCall("1", "list_files", "{}"),))
        return "done"

    evaluator = make_evaluator(
        '<task name="t" type="atomic"><description>d</description><inputs><input name="q" '
        f'type="string"/></inputs><instructions>Rules\nAsk: {{{{ q }}}}</instructions>{tools}</task>',
        backend=Scripted(script=answer),
        model=CLAUDE,
        handler=HandlerConfig(prompt_cache=mode),
    )
    asyncio.run(evaluator.evaluate("t", {"q": "x"})).unwrap()
    assert seen == marked
