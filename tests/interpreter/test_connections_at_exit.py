"""A script that ends without closing the Evaluator leaves no open connection and prints nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from evaluator.testing import Answer, LoopbackServer

BEGIN = """
    import asyncio, sys
    from evaluator import Evaluator, HandlerConfig, OpenAICompatibleBackend, TemplateLibrary
    library = TemplateLibrary()
    library.add('<task name="t" type="atomic"><description>d</description></task>')
    config = HandlerConfig(backend="openai_compatible", base_url=sys.argv[1], model="m")
    evaluator = Evaluator(library, config, tasks_dir=None)
"""
WAYS = {
    "sync": "print(evaluator.evaluate_sync('t').unwrap().content)",
    "async": "print(asyncio.run(evaluator.evaluate('t')).unwrap().content)",
    "two loops": "asyncio.run(evaluator.evaluate('t')).unwrap(); print(asyncio.run(evaluator.evaluate('t')).unwrap().content)",
    "dropped": "print(asyncio.run(evaluator.evaluate('t')).unwrap().content); del evaluator",
    "given": """
async def main():
    backend = OpenAICompatibleBackend(sys.argv[1])
    async with Evaluator(library, config, backend=backend, tasks_dir=None) as evaluator:
        print((await evaluator.evaluate('t')).unwrap().content)
asyncio.run(main())
""",
    "given, global": """
backend = OpenAICompatibleBackend(sys.argv[1])
async def main():
    async with Evaluator(library, config, backend=backend, tasks_dir=None) as evaluator:
        print((await evaluator.evaluate('t')).unwrap().content)
asyncio.run(main())
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_left_open(way):
    source = textwrap.dedent(BEGIN) + WAYS[way]
    with LoopbackServer(default=Answer("fine")) as server:
        done = subprocess.run(
            [sys.executable, "-c", source, server.base_url],
            capture_output=True,
            text=True,
            timeout=200,
        )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
    assert done.stderr == ""
