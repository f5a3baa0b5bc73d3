"""The share of model calls that `evaluator test` saves over a history of edits.

    python bench/template_tests.py [--edits 40] [--json]

Twelve templates with two cases each; each edit changes the prompt of one of them, its description,
a setting, or a partial that three of them include. After each edit all are tested. Without a cache
every test would call the model. The edits are drawn with a seed.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figures import Figure, parser_for, report

from evaluator import Evaluator, TemplateLibrary
from evaluator.authoring.template_tests import TemplateTests
from evaluator.handler.profiles import load_profiles
from evaluator.models.simulated import SimulatedBackend

TEMPLATES = 12
KINDS = ("prompt", "description", "setting", "partial")


class Model(SimulatedBackend):
    """A model whose answers the cache keeps."""

    @property
    def name(self) -> str:
        return "scripted"


def write(folder: Path, state: dict[str, Any]) -> None:
    (folder / "_rules.xml").write_text(f"<partial>Rules {state['partial']}.</partial>")
    for number in range(TEMPLATES):
        include = '<include href="_rules.xml"/>' if number < 3 else ""
        examples = "".join(
            f'<example><input name="text">{word}</input><output>ok</output></example>'
            for word in ("one", "two")
        )
        (folder / f"t{number}.xml").write_text(
            f'<task name="t{number}" type="atomic">'
            f"<description>Number {number}, {state['description', number]}</description>"
            f'<handler max_output_tokens="{100 + state["setting", number]}"/>'
            '<inputs><input name="text" type="string" required="true">it</input></inputs>'
            f"<instructions>Do {number}, {state['prompt', number]}: {{{{ text }}}} {include}"
            f"</instructions><examples>{examples}</examples></task>"
        )


def measure(edits: int) -> Figure:
    rng = random.Random(1)
    state: dict[Any, int] = {(kind, n): 0 for kind in KINDS for n in range(TEMPLATES)}
    state["partial"] = 0
    profiles = load_profiles(trust=True)
    made = 0
    answered = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "templates")
        folder.mkdir()
        for edit in range(edits + 1):
            if edit:
                kind = rng.choice(KINDS)
                state["partial" if kind == "partial" else (kind, rng.randrange(TEMPLATES))] += 1
            write(folder, state)
            library = TemplateLibrary.load(folder, shipped=False)
            with Evaluator(
                library,
                "offline",
                backend=Model(script=lambda request: "ok"),
                tasks_dir=None,
                cache=Path(place, "tests.cache"),
            ) as evaluator:
                tests = TemplateTests(library, profiles, evaluator)
                results = [result for name in library.templates for result in tests.run(name)]
            assert not any(result.problems for result in results), results
            if edit:
                made += sum(result.calls for result in results)
                answered += sum(result.calls + result.cached for result in results)
    return Figure(f"calls saved over {edits} edits", 100 * (1 - made / answered), "%")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--edits", type=int, default=40)
    options = parser.parse_args(arguments)
    report([measure(options.edits)], as_json=options.json)


if __name__ == "__main__":
    main()
