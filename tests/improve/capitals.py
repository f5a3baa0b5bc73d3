"""A template whose simulated model answers better to a better prompt, and searches over it."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator import Evaluator, SimulatedBackend
from evaluator.improve import Certificate, improve

TEMPLATE = """\
<?xml version="1.0" encoding="UTF-8"?>
<!-- Of our quiz. -->
<task name="capital" type="atomic" version="1.4">
  <description>Name the capital of a country</description>
  <inputs><input name="country" type="string" required="true">The country</input></inputs>
  <instructions>
    What is the capital of <<country>>?
    Think of cities &amp; towns.
  </instructions>
</task>
"""
BETTER = {
    "why": "the name alone is expected",
    "edits": [
        {
            "op": "replace",
            "element": "instructions",
            "find": "Think of cities & towns.",
            "text": "Reply with its name alone: <b> & co.",
        }
    ],
}
USELESS = {"why": "kind", "edits": [{"op": "set", "element": "system", "text": "Be kind."}]}
HARMFUL = {"why": "harm", "edits": [{"op": "set", "element": "system", "text": "Be wrong."}]}
EXAMPLE = {"why": "an example", "edits": [{"op": "add_example", "row": "ROW"}]}
REFUSED = {
    "why": "a call",
    "edits": [{"op": "set", "element": "system", "text": "{{ country | upper }}"}],
}


class Model:
    """Answers rows by the prompt, and asks for edits with `proposals`. `calls` counts prompts."""

    def __init__(self, proposals: list[Any] | None = None) -> None:
        self.proposals = proposals or [BETTER, USELESS, HARMFUL, EXAMPLE]
        self.calls: Counter[str] = Counter()
        self.questions: list[str] = []

    def __call__(self, request: Any) -> str:
        text = "\n".join(message.content for message in request.messages)
        self.calls[text] += 1
        if "Propose" in text:
            self.questions.append(text)
            row = text.split('{"id": "', 1)[1].split('"', 1)[0]
            return json.dumps({"proposals": self.proposals}).replace("ROW", row)
        number = request.messages[-1].content.split("country-")[1].split("?")[0]
        chance = 0.4 + 0.4 * ("name alone" in text) - 0.4 * ("Be wrong" in text)
        drawn = random.Random(number).random() * 0.8 + random.Random(text).random() * 0.2
        return f"city-{number}" if drawn < chance else "none"


def rows(count: int = 64) -> list[dict[str, Any]]:
    return [{"id": str(n), "country": f"country-{n}", "target": f"city-{n}"} for n in range(count)]


def evaluator_in(folder: Path, model: Model, **options: Any) -> Evaluator:
    templates = folder / "templates"
    templates.mkdir(exist_ok=True)
    if not (templates / "capital.xml").exists():
        (templates / "capital.xml").write_text(TEMPLATE)
    options.setdefault("notice", lambda line: None)
    return Evaluator(templates, backend=SimulatedBackend(script=model), tasks_dir=None, **options)


def search(folder: Path, model: Model, **options: Any) -> Certificate:
    """A search in `folder/search`, resumed if it is there."""
    output = folder / "search"
    given: Mapping[str, Any] = {
        "scorers": ["exact"],
        "output": output,
        "resume": (output / "log.jsonl").exists(),
        "rounds": 2,
        "limits": {"concurrency": 4},
    }
    data = options.pop("rows", None) or rows()
    evaluator = evaluator_in(folder, model)
    return asyncio.run(improve("capital", data, evaluator=evaluator, **{**given, **options}))
