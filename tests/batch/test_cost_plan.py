"""No run takes more than its plan says, whatever the models answer."""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import (
    ConfigurationError,
    Evaluator,
    HandlerConfig,
    ModelRequest,
    ModelResponse,
    ProviderError,
    SimulatedBackend,
    TemplateLibrary,
    ToolCall,
    Usage,
    run_batch_sync,
)
from evaluator.batch import (
    BatchOptions,
    CostPlan,
    cost_plan,
    make_plan,
    open_batch,
    plan_costs,
)
from evaluator.batch.rows import checked_samples
from tests.batch.conftest import Scripted

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
        made = min(self._random.choice([1, OUTPUT // 2, OUTPUT]), request.max_output_tokens or 1)
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


EXAMPLES = 5_000 if settings.get_current_profile_name() == "explore" else 150
CHECKED: list[int] = []


@settings(max_examples=EXAMPLES)
@given(tree=trees(2, name="t"), seed=st.integers(0, 999), docs=st.lists(st.text(max_size=9)))
def check_that_no_run_takes_more_than_its_plan_says(tree: str, seed: int, docs: list[str]) -> None:
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
    CHECKED.append(ledger.calls)
    assert ledger.turns <= most.turns and outcome.usage.turns <= most.calls
    assert ledger.calls <= most.calls
    assert ledger.input_tokens <= most.input_tokens
    assert ledger.output_tokens <= most.output_tokens
    assert ledger.cost_usd <= most.cost_usd + 1e-12


def test_no_run_takes_more_than_its_plan_says() -> None:
    check_that_no_run_takes_more_than_its_plan_says()
    # The control: most of the runs had a bound and made calls.
    assert sum(calls > 1 for calls in CHECKED) > EXAMPLES / 3


def library_of(folder: Path, *xml: str) -> TemplateLibrary:
    (folder / "t.xml").write_text(f"<library>{''.join(xml)}</library>", encoding="utf-8")
    return TemplateLibrary.load(folder)


ASK = node(
    "task",
    "atomic",
    "t",
    '<inputs><input name="q"/></inputs><instructions>Answer: {{ q }}</instructions>',
    '<handler max_output_tokens="100"/><output_format type="json" schema="string[]"/>',
)
ROWS = [{"q": "one"}, {"q": "two"}]


@pytest.mark.parametrize("model", ["openai/gpt-4o-mini", "anthropic/claude-haiku-4-5"])
def test_a_plan_needs_no_key_and_has_both_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    evaluator = Evaluator(library_of(tmp_path, ASK), tasks_dir=None)
    # The control: a run needs the key.
    with pytest.raises(ConfigurationError, match="API_KEY"):
        make_plan(evaluator, "t", rows=ROWS, options=BatchOptions(models=[model]))
    costs = planned(evaluator, ROWS, models=[model])
    for amounts in (costs.most, costs.expected):
        assert amounts.cost_usd and amounts.batch_cost_usd
        assert amounts.batch_cost_usd == pytest.approx(amounts.cost_usd / 2, rel=0.01)
    assert costs.expected.turns == 2 and costs.most.turns == 2 and costs.most.calls == 8
    assert costs.most.output_tokens == 800 and costs.missing == []
    assert [part.model for part in costs.parts] == [model]


def test_an_unknown_price_is_unknown_and_says_where_to_set_it(tmp_path: Path) -> None:
    evaluator = Evaluator(library_of(tmp_path, ASK), backend=Ledger(0), tasks_dir=None)
    costs = planned(evaluator, ROWS)
    assert costs.most.cost_usd is None and costs.expected.cost_usd is None
    assert any("<prices" in line for line in costs.missing)


@pytest.mark.parametrize(
    ("parts", "arguments", "line"),
    [
        ('<tools><tool name="subtask"/></tools>', {}, "write max_cost"),
        ("", {"reparse": True}, "<disable_reparsing>"),
    ],
)
def test_calls_that_nothing_bounds_have_no_bound(
    tmp_path: Path, parts: str, arguments: dict[str, Any], line: str
) -> None:
    library = library_of(tmp_path, node("task", "atomic", "t", parts))
    make = partial(Evaluator, library, PROFILE, backend=Ledger(0), tasks_dir=None)
    costs = planned(make(**arguments), [{"id": "1"}])
    assert costs.most.cost_usd is None and line in str(costs.missing)
    # The control: without them the same task has a bound.
    library = library_of(tmp_path, node("task", "atomic", "t"))
    plain = Evaluator(library, PROFILE, backend=Ledger(0), tasks_dir=None)
    assert planned(plain, [{"id": "1"}]).most.cost_usd is not None


def test_the_profile_that_a_task_names_bounds_its_turns(tmp_path: Path) -> None:
    many = replace(PROFILE, name="many", max_turns=9)
    tools = '<handler ref="many"/><tools><tool name="list_files"/></tools>'
    library = library_of(tmp_path, node("task", "atomic", "t", tools))
    profiles = {"default": PROFILE, "many": many}
    evaluator = Evaluator(library, backend=Ledger(0), tasks_dir=None, profiles=profiles)
    assert planned(evaluator, [{"id": "1"}]).most.turns == 9


def test_judges_and_recorded_lengths_are_planned(tmp_path: Path) -> None:
    rows = [{"q": "one", "target": "a"}, {"q": "two", "target": "b"}]
    library = library_of(tmp_path, ASK)
    evaluator = Evaluator(library, "offline", tasks_dir=None)
    options: dict[str, Any] = {"scorers": ["reference", "pairwise"]}
    costs = planned(evaluator, rows, **options)
    turns = {part.judge: (part.most.turns, part.expected.turns) for part in costs.parts}
    assert turns == {None: (2, 2), "reference": (2, 2), "pairwise": (4, 4)}
    output = tmp_path / "b"
    result = run_batch_sync("t", rows, evaluator=evaluator, output=output, display=None, **options)
    planning = evaluator.without_network()
    plan = make_plan(planning, "t", rows=rows, options=BatchOptions(**options))
    like = asyncio.run(plan_costs(planning, plan, output))
    recorded = list(open_batch(output).results())
    assert result.is_complete and len(recorded) == 2
    (own,) = [part.expected for part in like.parts if part.judge is None]
    assert own.output_tokens == sum(each.usage.output_tokens or 0 for each in recorded)
    assert own.seconds is not None


def test_the_plan_of_a_resumed_batch_is_that_of_what_is_left(tmp_path: Path) -> None:
    rows = [{"q": f"question {n}", "target": '["a"]'} for n in range(10)]
    evaluator = Evaluator(library_of(tmp_path, ASK), "offline", tasks_dir=None)
    output = tmp_path / "b"
    run_batch_sync("t", rows[:4], evaluator=evaluator, output=output, display=None, epochs=2)

    def plan_of(rows: Any, **options: Any) -> CostPlan:
        given = {"scorers": ["reference"], "epochs": 2, "output": output, **options}
        return planned(evaluator, rows, **given)

    def turns(costs: CostPlan) -> dict[str | None, tuple[float | None, float | None]]:
        return {part.judge: (part.most.turns, part.expected.turns) for part in costs.parts}

    fresh = plan_of(rows, output=tmp_path / "new")
    assert (fresh.samples, turns(fresh)) == (20, {None: (20, 20), "reference": (20, 20)})
    # The answers of 8 samples are there; a new judge reads them.
    left = plan_of(rows, resume=True)
    assert (left.samples, turns(left)) == (20, {None: (12, 12), "reference": (20, 20)})
    left = plan_of(rows, resume=True, scorers=[])
    assert (left.samples, left.most.turns, left.expected.turns) == (12, 12, 12)
    assert "8 samples have a result; the numbers are for the rest" in left.notes
    # Its first rows say how long the answers of the others are.
    used = [each.usage.output_tokens or 0 for each in open_batch(output).results()]
    assert left.expected.output_tokens == pytest.approx(12 * sum(used) / 8)
    assert f"expected lengths are those recorded in {output}" in left.notes
    nothing = plan_of(rows[:4], resume=True, scorers=[])
    assert (nothing.samples, nothing.most.turns, nothing.most.cost_usd) == (0, 0, 0)


def test_a_row_with_epochs_is_one_row_where_rows_were_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_samples, "SLICE", 4)
    monkeypatch.setattr(cost_plan, "MAX_PREVIEWED", 5)
    evaluator = Evaluator(library_of(tmp_path, ASK), "offline", tasks_dir=None)
    costs = planned(evaluator, [{"q": f"question {n}"} for n in range(10)], epochs=2)
    assert costs.samples == 20
    assert any(note.startswith("5 of 10 rows were rendered") for note in costs.notes)


def test_recorded_lengths_of_several_models_are_counted_once(tmp_path: Path) -> None:
    step = '<task type="atomic" name="{0}">{1}<description>Ask</description><instructions>{0}'
    step += "</instructions></task>"
    steps = step.format("one", "<model>cheap</model>") + step.format("two", "<model>dear</model>")
    library = library_of(tmp_path, node("task", "sequential", "t", f"<steps>{steps}</steps>"))
    profile = replace(PROFILE, prices=PRICES)
    profiles = {"default": profile}
    backend = Scripted(script=lambda request: "some words")
    evaluator = Evaluator(library, backend=backend, tasks_dir=None, profiles=profiles)
    rows = [{"id": str(n)} for n in range(3)]
    output = tmp_path / "b"
    run_batch_sync("t", rows, evaluator=evaluator, output=output, display=None)
    planning = evaluator.without_network()
    plan = make_plan(planning, "t", rows=rows, options=BatchOptions())
    like = asyncio.run(plan_costs(planning, plan, output))
    used = [each.usage for each in open_batch(output).results()]
    assert len(like.parts) == 2 and sum(usage.turns for usage in used) == 6
    assert like.expected.turns == 6
    assert like.expected.input_tokens == pytest.approx(sum(u.input_tokens or 0 for u in used))
    assert {part.expected.turns for part in like.parts} == {3}


class Counting(SimulatedBackend):
    """Counts a token for four characters, and answers with as many words as the row says."""

    name = "counting"

    def __init__(self) -> None:
        super().__init__(script=self.answer)

    def answer(self, request: ModelRequest) -> ModelResponse:
        prompt = request.messages[-1].content
        text = "word " * int(prompt.split()[-1])
        tools = sum(len(tool.text()) for tool in request.tools)
        sent = (len(prompt) + tools) // 4
        return ModelResponse(text, "stop", usage=Usage(sent, len(text) // 4, 0, 0, None, 1))


@pytest.mark.parametrize("tools", ["", '<tools><tool name="read_file"/></tools>'])
def test_an_earlier_batch_of_shorter_rows_tells_the_lengths_of_longer_ones(
    tmp_path: Path, tools: str
) -> None:
    instructions = "<instructions>Sum up: {{ doc }} in words: {{ n }}</instructions>"
    inputs = '<inputs><input name="doc" type="string"/><input name="n" type="number"/></inputs>'
    library = library_of(tmp_path, node("task", "atomic", "t", inputs, instructions, tools))
    profiles = {"default": HandlerConfig(prices=PRICES, max_output_tokens=500)}
    evaluator = Evaluator(library, backend=Counting(), tasks_dir=None, profiles=profiles)
    prose = "The lighthouse of the point was built by an engineer in that year. "
    short = [{"doc": prose * n, "n": 20 + n} for n in range(1, 9)]
    long = [{"doc": prose * 20 * n, "n": 20 + n} for n in range(1, 9)]
    output = tmp_path / "b"
    run_batch_sync("t", short, evaluator=evaluator, output=output, display=None)
    planning = evaluator.without_network()
    plan = make_plan(planning, "t", rows=long, options=BatchOptions())
    costs = asyncio.run(plan_costs(planning, plan, output))
    done = run_batch_sync("t", long, evaluator=evaluator, output=tmp_path / "c", display=None)
    used = sum((each.usage for each in done.results()), Usage())
    assert costs.expected.input_tokens == pytest.approx(used.input_tokens, rel=0.15)
    assert costs.expected.output_tokens == pytest.approx(used.output_tokens, rel=0.15)
    first = asyncio.run(plan_costs(planning, plan))
    assert first.expected.input_tokens == pytest.approx(used.input_tokens, rel=0.25)
    assert first.expected.output_tokens is None
