"""Bytes of a task file for each byte of the conversation that it holds.

    python bench/size.py [--folder FOLDER]

A conversation's bytes are the UTF-8 bytes of what the model saw and said: the content of every
message, each message once, and the arguments of every tool call. Roles, names, ids, numbers and
JSON's own signs count as nothing, and so do the inputs of a task besides the messages that they end
up in. They are counted where the model stands, not read from the file. Every run is a real one,
with the simulated model in the place of one.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Figure, parser_for, report, work_folder

from evaluator import Evaluator, HandlerConfig, TemplateLibrary
from evaluator.handler.config import ToolGrant
from evaluator.models.backend import ModelRequest
from evaluator.models.simulated import SimulatedBackend
from evaluator.tools import tool

GOAL = 1.3
TEXT = (
    "the ferry leaves the eastern pier at six every morning and crosses to the island in forty "
    "minutes while dogs need "
    "a ticket of their own on Sundays it is later and bicycles travel free as far as the old "
    "lighthouse"
)
WORDS = TEXT.split()
CALL = """<task type="atomic" name="call">
  <description>Answer one question about a text</description>
  {inputs}
  <instructions>Answer from the text alone.

{text}</instructions>
</task>
"""
INPUT = '<inputs><input name="text" type="string" required="true">the text</input></inputs>'
STEP = """<task type="atomic" name="part_{n}">
  <description>Part {n}</description>
  <instructions>Write part {n} of the guide.{before}</instructions>
</task>"""


def prose(size: int, seed: int = 0) -> str:
    """Text of `size` characters in lines of about a hundred; equal seeds give equal texts."""
    chosen = random.Random(seed)
    lines: list[str] = []
    while sum(map(len, lines)) + len(lines) < size:
        line = ""
        while len(line) < 90:
            line += chosen.choice(WORDS) + " "
        lines.append(line[:-1].capitalize() + ".")
    return "\n".join(lines)[:size].rstrip().ljust(size, ".")


class Counting:
    """A script for the simulated model that counts what it sees and says. `say` gives the answer to
    call n.
    """

    def __init__(self, say: Callable[[int], Any]) -> None:
        self._say = say
        self.calls = 0
        self.bytes = 0

    def __call__(self, request: ModelRequest) -> Any:
        messages = list(request.messages)
        own = [place for place, message in enumerate(messages) if message.role == "assistant"]
        # What the model said, and saw before that, was counted at the call before.
        for message in messages[own[-1] + 1 if own else 0 :]:
            self.bytes += len(message.content.encode())
        answer = self._say(self.calls)
        self.calls += 1
        if isinstance(answer, str):
            self.bytes += len(answer.encode())
        else:
            self.bytes += len(answer["text"].encode()) + len(
                json.dumps(answer["arguments"]).encode()
            )
        return answer


@dataclass(frozen=True)
class Shape:
    """A template, its inputs, and what the model answers."""

    what: str
    template: str
    inputs: Mapping[str, Any]
    say: Callable[[int], Any]
    tools: tuple[str, ...] = ()
    goal: float | None = GOAL


def conversation(turns: int, argument: int = 60) -> Callable[[int], Any]:
    """A tool call with a line of text in every turn but the last; `argument` is the size of its
    text.
    """

    def say(call: int) -> Any:
        if call == turns - 1:
            return prose(500, call)
        arguments = {"page": call, "part": prose(argument, call)}
        return {"tool": "read_page", "arguments": arguments, "text": prose(100, call)}

    return say


@tool(effect=False)
def read_page(page: int, part: str) -> str:
    """Reads a page of the guide.

    Args:
        page: its number
        part: which part of it
    """
    return prose(2000, page)


def shapes() -> list[Shape]:
    text = prose(3000)
    asked = CALL.format(inputs="", text=text)
    steps = "\n".join(
        STEP.format(n=n, before="" if n == 1 else "\n\nSo far:\n{{ previous.content }}")
        for n in range(1, 6)
    )
    sequence = f"""<task type="sequential" name="call">
  <description>Write a guide</description>
  <steps>{steps}</steps>
</task>"""
    long = CALL.format(inputs="", text="Read the guide page by page, then sum it up.")
    return [
        Shape("one call, 3 kB in, 1 kB out", asked, {}, lambda _: prose(1000, 1)),
        Shape(
            "  the same, the 3 kB given as an input",
            CALL.format(inputs=INPUT, text="{{ text }}"),
            {"text": text},
            lambda _: prose(1000, 1),
        ),
        Shape("50 turns, tool results of 2 kB", long, {}, conversation(50), ("read_page",)),
        Shape("  200 turns", long, {}, conversation(200), ("read_page",)),
        Shape(
            "  20 turns, tool arguments of 2 kB too",
            long,
            {},
            conversation(20, 2000),
            ("read_page",),
        ),
        Shape(
            "sequential of 5 tasks, answers of 4 kB", sequence, {}, lambda call: prose(4000, call)
        ),
        Shape(
            "a very short task, 30 bytes in, 5 out",
            CALL.format(inputs="", text="6"),
            {},
            lambda _: "seven",
            goal=None,
        ),
    ]


async def measured(shape: Shape, folder: Path) -> tuple[int, int]:
    """Bytes of the task file and of the conversation. Raises: SystemExit, if the task fails."""
    templates = folder / "templates"
    templates.mkdir(parents=True)
    (templates / "call.xml").write_text(shape.template, encoding="utf-8")
    script = Counting(shape.say)
    config = HandlerConfig(
        name="bench", max_turns=1000, tools=tuple(ToolGrant(name) for name in shape.tools)
    )
    evaluator = Evaluator(
        TemplateLibrary.load(templates, shipped=False),
        config,
        backend=SimulatedBackend(script=script),
        tasks_dir=folder / "tasks",
        roots=[folder],
        profiles={},
        tools=[read_page],
    )
    outcome = await evaluator.evaluate("call", shape.inputs)
    if not outcome.ok:
        raise SystemExit(f"{shape.what}: {outcome}")
    return (folder / "tasks" / "done" / "TASK-1.md").stat().st_size, script.bytes


def measure(folder: Path) -> list[Figure]:
    figures: list[Figure] = []
    for number, shape in enumerate(shapes()):
        size, said = asyncio.run(measured(shape, folder / str(number)))
        if shape.goal is None:
            figures.append(Figure(f"{shape.what}: bytes of its file besides", size - said, "B"))
        else:
            figures.append(
                Figure(f"{shape.what}: file, for a byte said", size / said, "", shape.goal)
            )
    return figures


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--folder", type=Path, help="where the task files go, and stay")
    arguments = parser.parse_args()
    with work_folder(arguments.folder) as folder:
        figures = measure(folder)
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
