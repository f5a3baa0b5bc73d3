"""No run takes more than its plan says, whatever the models answer."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import Evaluator
from evaluator.batch import BatchOptions, make_plan
from evaluator.batch.cost_plan import CostPlan, plan_costs
from evaluator.errors import ProviderError
from evaluator.errors.results import Usage
from evaluator.handler.config import HandlerConfig
from evaluator.library import TemplateLibrary
from evaluator.models.backend import ModelRequest, ModelResponse, ToolCall
from evaluator.models.simulated import SimulatedBackend

WINDOW = 3_000
OUTPUT = 40
PRICES = (3.0, 15.0)
PROFILE = HandlerConfig(
    max_turns=3,
    context_window=WINDOW,
    max_output_tokens=OUTPUT,
    prices=PRICES,
    backoff_s=(0.0, 0.0),
)


class Ledger(SimulatedBackend):
    """A provider that counts every byte as a token, bills every attempt, and answers at random."""

    name = "ledger"

    def __init__(self, seed: int) -> None:
        super().__init__(script=self.answer)
        self._random = random.Random(seed)
        self.turns = self.calls = self.input_tokens = self.output_tokens = 0

    def answer(self, request: ModelRequest) -> ModelResponse | Exception:
        size = sum(len(message.content.encode()) + 8 for message in request.messages)
        sent = min(size, WINDOW)
        made = self._random.choice([1, OUTPUT // 2, OUTPUT])
        self.calls += 1
        self.input_tokens += sent
        self.output_tokens += made
        if self._random.random() < 0.2:
            return ProviderError("500", kind="server", retryable=True, maybe_billed=True)
        self.turns += 1
        usage = Usage(sent, made, cached_tokens=0, reasoning_tokens=0, cost_usd=None, turns=1)
        calls: tuple[ToolCall, ...] = ()
        if request.tools and self._random.random() < 0.7:
            calls = (ToolCall("c", request.tools[0].name, '{"path": "."}'),)
        text = self._random.choice(['{"success": false}', '{"success": true}', "x" * made, "a"])
        return ModelResponse(text, "tool_calls" if calls else "stop", calls, usage=usage)

    @property
    def cost_usd(self) -> float:
        return (self.input_tokens * PRICES[0] + self.output_tokens * PRICES[1]) / 1e6


def node(tag: str, kind: str, name: str, *parts: str) -> str:
    named = f' name="{name}"' if name else ""
    return f'<{tag} type="{kind}"{named}><description>d</description>{"".join(parts)}</{tag}>'


INPUT = '<inputs><input name="docs" type="string[]" default=\'["a", "b é"]\'/></inputs>'
SCALAR = '<inputs><input name="docs" type="string" default="b é"/></inputs>'
TEXTS = ["x", "{{ docs }}", "{{ f(docs) }}", "{% if docs %}{{ f(1) }}{% endif %}"]


@st.composite
def atomics(draw: st.DrawFn, tag: str = "task", name: str = "") -> str:
    text = draw(st.sampled_from(TEXTS))
    instructions = f"<instructions>{text}</instructions>"
    extra = draw(
        st.sampled_from(
            [
                "",
                '<handler max_turns="2"/><tools><tool name="list_files"/></tools>',
                '<tools><tool name="list_files"/></tools>',
                '<turns><turn>go on</turn><turn max="2"><task type="atomic">'
                "<description>play</description></task></turn></turns>",
                '<output_format type="json"/>',
                '<handler max_output_tokens="7"/>',
            ]
        )
    )
    return node(tag, "atomic", name, instructions, extra)


def trees(depth: int, tag: str = "task", name: str = "") -> st.SearchStrategy[str]:
    if depth == 0:
        return atomics(tag, name)
    given_inputs = INPUT if name else SCALAR
    child = trees(depth - 1)
    inner = trees(depth - 1, "inner_task")

    def steps(found: list[str]) -> str:
        return node(tag, "sequential", name, given_inputs, f"<steps>{''.join(found)}</steps>")

    def cond(found: list[str]) -> str:
        cases = f'<cond><case test="docs | length == 1">{found[0]}</case>'
        return steps([f"{cases}<default>{found[1]}</default></cond>"])

    def loop(found: tuple[str, str]) -> str:
        most = "<max_iterations>2</max_iterations>"
        return node(tag, "director_evaluator_loop", name, given_inputs, most, *found)

    return st.one_of(
        atomics(tag, name),
        st.lists(child, min_size=1, max_size=2).map(steps),
        st.lists(child, min_size=2, max_size=2).map(cond),
        inner.map(lambda one: node(tag, "map", name, given_inputs, one)),
        st.tuples(inner, trees(0, "reduction_task")).map(
            lambda two: node(tag, "reduce", name, given_inputs, *two)
        ),
        st.tuples(trees(depth - 1, "director"), trees(0, "evaluator")).map(loop),
        child.map(
            lambda one: node(
                tag, "atomic", name, f'<inputs><input name="docs">{one}</input></inputs>'
            )
        ),
    )


FUNCTION = (
    '<template name="f" params="a"><task type="atomic"><description>{{ a }}</description>'
    "</task></template>"
)


def planned(evaluator: Evaluator, rows: list[dict[str, Any]], **options: Any) -> CostPlan:
    planning = evaluator.without_network()
    plan = make_plan(planning, "t", rows=rows, options=BatchOptions(**options))
    return asyncio.run(plan_costs(planning, plan))


@settings(max_examples=30)
@given(tree=trees(2, name="t"), seed=st.integers(0, 999), docs=st.lists(st.text(max_size=9)))
def test_no_run_takes_more_than_its_plan_says(tree: str, seed: int, docs: list[str]) -> None:
    values = {"docs": docs} if INPUT in tree else {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "t.xml").write_text(f"<library>{FUNCTION}{tree}</library>", encoding="utf-8")
        library = TemplateLibrary.load(folder, shipped=False)
        ledger = Ledger(seed)
        evaluator = Evaluator(library, PROFILE, backend=ledger, tasks_dir=None, roots=[folder])
        if "t" not in library:
            return  # a text names docs, which this task does not declare
        plan = planned(evaluator, [values])
        most = plan.most
        assert ledger.calls == 0
        outcome = evaluator.evaluate_sync("t", values)
    if most.turns is None:
        assert plan.missing
        return
    assert most.calls is not None and most.cost_usd is not None
    assert most.input_tokens is not None and most.output_tokens is not None
    assert ledger.turns <= most.turns and outcome.usage.turns <= most.calls
    assert ledger.calls <= most.calls
    assert ledger.input_tokens <= most.input_tokens
    assert ledger.output_tokens <= most.output_tokens
    assert ledger.cost_usd <= most.cost_usd + 1e-12
