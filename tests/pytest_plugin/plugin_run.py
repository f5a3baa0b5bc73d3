"""A quiz in Python, which the tests of the pytest plugin test with pytests of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUIZ = '''
import asyncio, os
from pathlib import Path
from evaluator import Evaluator, ProviderError, SimulatedBackend, TemplateLibrary

HERE = Path(__file__).parent
LIBRARY = TemplateLibrary.load(HERE / "library", shipped=False)
ROWS = [{"id": f"r{n}", "question": f"{n} + {n}?", "target": str(2 * n)} for n in range(1, 5)]

class Model(SimulatedBackend):
    """Doubles, and writes down each call; wrong at 3, broken at 4."""

    name = "scripted"

    async def complete(self, request, **options):
        number = int(request.messages[-1].content.split()[-3])
        with open(HERE / "calls.txt", "a") as file:
            file.write(f"{number}\\n")
        await asyncio.sleep(0)
        return await super().complete(request, **options)

def answer(request):
    number = int(request.messages[-1].content.split()[-3])
    if number == 4 and os.environ.get("MENDED") is None:
        return ProviderError("it broke \\x1b[31m", kind="bad_request")
    return "nine" if number == 3 else str(2 * number)

def make(**options):
    return Evaluator(LIBRARY, "offline", backend=Model(script=answer), tasks_dir=None, **options)
'''
TEMPLATE = (
    '<library><task name="double" type="atomic"><description>Double a number</description>'
    '<inputs><input name="question" required="true"/></inputs>'
    "<instructions>Say what is {{ question }}</instructions></task></library>"
)

Run = Callable[..., pytest.RunResult]
