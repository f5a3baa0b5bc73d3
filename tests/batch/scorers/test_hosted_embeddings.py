"""`similarity` by a hosted model, over real HTTP on loopback."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from evaluator.batch import Score
from evaluator.batch.scorers import make_scorer, run_scorer
from tests.batch.scorers.scorer_inputs import seen

VECTORS = {"near": [1.0, 0.0], "target": [0.8, 0.6]}


@pytest.mark.parametrize("status", [200, 500])
def test_a_hosted_model_embeds_in_one_call_that_is_counted(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    asked: list[Any] = []

    async def embeddings(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append(body)
        if status != 200:
            return web.json_response({"error": {"message": "down"}}, status=status)
        rows = [
            {"object": "embedding", "index": n, "embedding": VECTORS[text]}
            for n, text in enumerate(body["input"])
        ]
        return web.json_response(
            {
                "object": "list",
                "model": "e",
                "data": rows[::-1],
                "usage": {"prompt_tokens": 5, "total_tokens": 5},
            }
        )

    async def run() -> Score:
        app = web.Application()
        app.router.add_post("/v1/embeddings", embeddings)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        monkeypatch.setenv("OPENAI_API_BASE", f"http://127.0.0.1:{port}/v1")
        scorer = make_scorer("similarity:model=openai/text-embedding-3-small,pass_at=0.7")
        try:
            return await run_scorer(scorer, seen("near", "target"))
        finally:
            import litellm

            await litellm.close_litellm_async_clients()
            await runner.cleanup()

    given = asyncio.run(run())
    assert len(asked) == 1 and asked[0]["input"] == ["near", "target"]
    if status == 200:
        assert given.value == pytest.approx(0.8) and given.passed is True
        assert given.usage.input_tokens == 5 and given.usage.cost_usd == pytest.approx(5 * 0.02e-6)
    else:
        assert (
            given.value is None
            and given.error is not None
            and "answered with a server error" in given.error
        )
