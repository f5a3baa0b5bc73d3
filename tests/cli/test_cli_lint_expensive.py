"""`evaluator lint` names loops that multiply, and prompts that nearly fill the model's window."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.conftest import Run

ATOMIC = (
    '<{tag} type="atomic" name="{name}"><description>Ask</description>'
    "<instructions>{text}</instructions></{tag}>"
)
LOOP = (
    '<{tag} type="director_evaluator_loop" name="{name}"><description>Try again</description>'
    "<max_iterations>{most}</max_iterations>{director}"
    + ATOMIC.format(tag="evaluator", name="check", text="Good?")
    + "<termination_condition>evaluation.success</termination_condition></{tag}>"
)
PROFILE = (
    '<handler name="{0}"><backend>simulated</backend><context_window>{1}</context_window></handler>'
)


def test_loops_in_loops_are_named_with_their_product(cli: Run, write: Any) -> None:
    draft = ATOMIC.format(tag="director", name="draft", text="Write.")
    inner = LOOP.format(tag="director", name="inner", most=4, director=draft)
    outer = LOOP.format(tag="task", name="outer", most=6, director=inner)
    write("templates/outer.xml", outer)
    write("templates/flat.xml", LOOP.format(tag="task", name="flat", most=9, director=draft))
    found = json.loads(cli("lint", "--json").out)["templates"]
    (line,) = found["outer"]["expensive"]
    assert line.startswith("loops that multiply: director_evaluator_loop outer, line 1 (6 times) ×")
    assert line.endswith("inner, line 1 (4 times): at most 24 times")
    assert found["flat"]["expensive"] == []
    assert f"  expensive: {line}\n" in cli("lint").out


def test_a_prompt_that_nearly_fills_the_window_is_named(cli: Run, write: Any) -> None:
    write("handlers/small.xml", PROFILE.format("small", 1_000))
    write("handlers/large.xml", PROFILE.format("large", 100_000))
    for name in ("small", "large"):
        text = ATOMIC.format(tag="task", name=name, text="word " * 900)
        named = text.replace("<instructions>", f'<handler ref="{name}"/><instructions>')
        write(f"templates/{name}.xml", named)
    found = json.loads(cli("lint", "--json").out)["templates"]
    (line,) = found["small"]["expensive"]
    assert "of the 1,000 tokens of the model's window; shorten it" in line
    assert found["large"]["expensive"] == []
