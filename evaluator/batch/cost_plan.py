"""The cost of a batch before it runs: the most that can happen, and what is to be expected.

Nothing is run or imported and no key is needed. The most is a bound that no run exceeds, see
`interpreter.cost_bounds`. The expectation is that of requests which are rendered with the rows and
followed by simulated answers; their lengths come from examples, output formats, or from an earlier
batch of the same template.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.batch.arguments import Arguments
from evaluator.batch.costs import CacheSaving, CostPart, CostPlan
from evaluator.batch.decision import Design
from evaluator.batch.folder import MANIFEST, BatchFolder
from evaluator.batch.pending import PendingWork
from evaluator.batch.plan import BatchPlan
from evaluator.batch.reading import open_batch
from evaluator.batch.records import Sample, SampleResult, existing_answer
from evaluator.batch.result_index import EarlierResults
from evaluator.batch.scorers import ScorerInput, member_scorers, run_scores
from evaluator.batch.scorers.model_graded import ModelGradedScorer
from evaluator.batch.wave_log import LoggedCall, submissions_of
from evaluator.batch.work import GRADER
from evaluator.batch.work_items import Variant, WorkItem
from evaluator.errors import UsageError
from evaluator.errors.messages import agree, amount
from evaluator.errors.results import Outcome, TaskResult, Usage
from evaluator.handler.backends import is_simulated_model
from evaluator.handler.config import HandlerConfig
from evaluator.handler.conversation import cache_terms_of
from evaluator.interpreter.cost_bounds import Amounts, CostBounds
from evaluator.interpreter.preview import Preview, PreviewBackend
from evaluator.lazy_dataclass import dataclass
from evaluator.models import prices
from evaluator.nodes import Task, TopLevel
from evaluator.nodes.walk import operands
from evaluator.output.schema import schema_imports

if TYPE_CHECKING:
    from evaluator.interpreter.evaluator import Evaluator

MAX_PREVIEWED = 2_000
"""More rows are not rendered for a template and variant: each takes about a millisecond."""
MAX_COMPARED = 200
"""More rows of an earlier batch are not rendered for a template and variant."""
_TYPICAL = 0.68
"""What a model counts, of an estimate: the mean over the shipped suites."""
_MESSAGE_TOKENS = 4
"""What providers add to a message."""
_UNKNOWN = Amounts(*(None,) * 7)


async def plan_costs(
    evaluator: Evaluator, plan: BatchPlan, like: str | Path | None = None
) -> CostPlan:
    """The cost of a planned batch. Reads all rows, and makes no call.

    `evaluator` is the one `plan` was made with; use `Evaluator.without_network`, which needs no
    key. `like` is the folder of an earlier batch, whose recorded lengths the expectation takes;
    without it, a batch that is resumed has its own.

    Raises: RecordError, if there is no batch in `like`; RowError, for a row that cannot be used.
    """
    like = like or plan.options.decide.like
    if like is None and _is_resumed(plan):
        like = plan.options.output
    recorded: dict[tuple[str, str | None], Amounts] = {}
    rows_before: dict[str, list[Mapping[str, Any]]] = {}
    if like is not None:
        recorded, rows_before = _recorded(like)
    if not recorded:
        like = None
    makers = [
        _CellCost(evaluator, plan, template=cell.template, variant=variant, recorded=recorded)
        for cell, variant in plan.cells
    ]
    if plan.options.fewshot is None:  # the examples of earlier rows are not recorded
        for maker in makers:
            await maker.compare(rows_before.get(maker.template, ()))
    pending, left = _pending_work(plan)
    if left is None:
        stride = 1
    else:
        stride = -(-left // MAX_PREVIEWED) or 1
    makers_of = {(maker.template, maker.variant.name): maker for maker in makers}
    rows = 0
    last = None
    is_shown = False
    async for works in pending.work(plan.slices()):
        for work in works:
            if work.sample.id != last:
                last = work.sample.id
                is_shown = rows % stride == 0 and rows // stride < MAX_PREVIEWED
                rows += 1
            await makers_of[work.cell.template, work.cell.variant].add(work, is_shown=is_shown)
    parts = [part for maker in makers for part in maker.parts()]
    most = sum((maker.total for maker in makers), Amounts())
    expected = sum((part.expected for part in parts), Amounts())
    max_cost, max_tokens = _bounds(plan)
    capped = most.capped(
        cost_usd=max_cost,
        batch_cost_usd=max_cost,
        input_tokens=max_tokens,
        output_tokens=max_tokens,
    )
    previewed = min(rows, -(-rows // stride), MAX_PREVIEWED)
    missing = dict.fromkeys(line for maker in makers for line in maker.missing())
    samples = sum(maker.samples for maker in makers)
    notes = _notes(rows, previewed, capped != most, like)
    if plan.deciding is not None:
        notes += _notes_on_stopping(plan.deciding.decision.design)
    if samples < pending.counts.samples:
        done = pending.counts.samples - samples
        notes.append(
            f"{amount(done, 'sample')} {agree(done, 'has', 'have')} a result; the numbers are for "
            "the rest"
        )
    return CostPlan(
        plan.name,
        samples=samples,
        previewed=previewed,
        parts=parts,
        most=capped,
        expected=expected,
        tree={f"{maker.template}, {maker.variant.name}": maker.tree() for maker in makers},
        missing=[*missing],
        notes=notes,
    )


def _is_resumed(plan: BatchPlan) -> bool:
    """Whether the planned session resumes a batch that is there."""
    options = plan.options
    return options.resume and options.output is not None and Path(options.output, MANIFEST).exists()


def waiting_calls(plan: BatchPlan) -> list[LoggedCall]:
    """The calls that wait for a provider batch: the planned session collects their answers, which
    are paid whatever its limits are.
    """
    if not _is_resumed(plan):
        return []
    folder = plan.options.output or ""
    created = str(BatchFolder.reader(folder).manifest().get("created"))
    return [
        call
        for submission in submissions_of(folder, created)
        if submission.is_open
        for call in submission.calls.values()
    ]


def _bounds(plan: BatchPlan) -> tuple[float | None, float | None]:
    """The most that the planned session can cost, in US dollars, and the most tokens, by its
    limits.
    """
    limits = plan.options.limits
    calls = waiting_calls(plan)
    costs = [call.cost_usd for call in calls]
    tokens = [count for call in calls for count in (call.input_tokens, call.output_tokens)]
    return _bound_with(limits.max_cost, costs), _bound_with(limits.max_tokens, tokens)


def _bound_with(limit: float | None, begun: Sequence[float | None]) -> float | None:
    """The higher of a limit and the sum of what is begun; None if there is no limit or an amount is
    unknown.
    """
    known = [amount for amount in begun if amount is not None]
    if limit is None or len(known) < len(begun):
        return None
    return max(limit, sum(known))


def _pending_work(plan: BatchPlan) -> tuple[PendingWork, int | None]:
    """The work that the planned session would do, and in how many rows it is, about; None if that
    is unknown.
    """
    options = plan.options
    folder = None
    earlier: EarlierResults = {}
    if _is_resumed(plan):
        folder = BatchFolder.reader(options.output or "")
        earlier = folder.index()
    left = plan.total
    if left is not None:
        left = max(0, left - len(earlier)) // (len(plan.cells) * options.epochs)

    def read_result(offset: int) -> SampleResult:
        assert folder is not None  # only its entries have an offset
        return folder.read_at(offset)

    pending = PendingWork(
        plan.cells,
        options.epochs,
        earlier=earlier,
        read_result=read_result,
        on_kept=lambda verdict: None,
        scoring_part=plan.scoring_part,
        retry_errors=options.retry_errors,
        on_changed=options.on_changed,
    )
    return pending, left


def _notes(rows: int, previewed: int, is_capped: bool, like: str | Path | None) -> list[str]:
    notes: list[str] = []
    if previewed < rows:
        notes.append(
            f"{previewed:,} of {amount(rows, 'row')} {agree(previewed, 'was', 'were')} rendered: "
            "the expectation is theirs, and the "
            "most takes a full context window for each of the others"
        )
    if is_capped:
        notes.append("the limits of the batch bound the total")
    if like is None:
        notes.append("expected answers are as long as the examples and output formats say")
    else:
        notes.append(f"expected lengths are those recorded in {like}")
    return notes


def _notes_on_stopping(design: Design) -> Iterator[str]:
    """The share of the cost that a batch takes, which may stop at one of its looks."""
    if design.looks > 1 and design.method != "race":
        shares = [design.rule.expected_share(effect) for effect in (1, 0)]
        yield (
            f"stopping early takes {100 * shares[0]:.0f} % of the expected cost, on average, if "
            f"the difference is there, and {100 * shares[1]:.0f} % if there is none"
        )


@dataclass(slots=True)
class _Expected:
    """Sums over the samples that were rendered, for the template or for a judge."""

    by_model: dict[str, Amounts] = field(default_factory=dict[str, Amounts])
    prefixes: Counter[tuple[str, bytes, int]] = field(
        default_factory=Counter[tuple[str, bytes, int]]
    )

    @property
    def input_tokens(self) -> float:
        return sum(amounts.input_tokens or 0 for amounts in self.by_model.values())

    def add(self, config: HandlerConfig, preview: Preview) -> None:
        model = preview.model
        self.by_model[model] = self.by_model.get(model, Amounts()) + _expected(config, preview)
        self.prefixes[model, preview.prefix_key, preview.prefix_tokens] += 1


class _CellCost:
    """The cost of one template with one variant, and of its judges."""

    def __init__(
        self,
        evaluator: Evaluator,
        plan: BatchPlan,
        *,
        template: str,
        variant: Variant,
        recorded: Mapping[tuple[str, str | None], Amounts],
    ) -> None:
        self.template = template
        self.variant = variant
        self.total = Amounts()
        self.samples = 0
        self._asked = self._shown = self._shown_asked = 0
        self._last: tuple[str, int | None] | None = None
        self._evaluator = evaluator
        self._node: TopLevel = evaluator.library.get(template).node
        self._arguments = Arguments(self._node)
        self._config = evaluator.services.profile(variant.handler)
        self._bounds = CostBounds(evaluator, model=variant.model, handler=variant.handler)
        is_answered = plan.options.answers is not None
        if is_answered:
            default = None
        else:
            default = _label(self._bounds)
        self._knows_prompt = not is_answered and self._bounds.knows_prompt(self._node)
        self._backend = PreviewBackend()
        self._lock = asyncio.Lock()
        self._previewing = evaluator.previewing(self._backend, default)
        self._most: dict[tuple[str | None, str], Amounts] = {}
        self._expected: dict[str | None, _Expected] = {None: _Expected()}
        self._known: dict[Any, dict[str | None, Amounts]] = {}
        self._recorded = recorded
        self._rendered_before: float | None = None
        self._scorers = [
            (scorer, member)
            for scorer in plan.scorers
            for member in member_scorers(scorer)
            if isinstance(member, ModelGradedScorer)
        ]
        self._judges = {id(member): self._judge_bounds(member) for _, member in self._scorers}
        self._of_judge = {
            key: evaluator.previewing(self._backend, _label(bounds))
            for key, (bounds, _) in self._judges.items()
        }

    def _judge_bounds(self, member: ModelGradedScorer) -> tuple[CostBounds, dict[str | None, Any]]:
        roles = dict(self._evaluator.model_roles)
        if member.model is not None:
            mapped = {**self._config.roles, **roles}
            roles[GRADER] = mapped.get(member.model, member.model)
        bounds = CostBounds(self._evaluator, model=None, handler=self.variant.handler, roles=roles)
        node = self._evaluator.library.get(member.template).node
        most = bounds.most(node, {})
        return bounds, {model: amounts.times(member.asks) for model, amounts in most.items()}

    # -- one row -----------------------------------------------------------------------------------

    async def add(self, work: WorkItem, *, is_shown: bool) -> None:
        """Counts one sample. `is_shown`: it is rendered, in its first epoch."""
        sample = work.sample
        if work.answered is None:
            answer = sample.answer
        else:
            answer = work.answered.content
        is_again = self._last is not None and self._last[0] == sample.id
        is_shown = is_shown and not is_again
        outcome: Outcome | None = None
        if self._last is not None and is_again:
            prompt = self._last[1]
        else:
            prompt = None
        if answer is not None:
            if isinstance(self._node, Task):
                output = self._node.output
            else:
                output = None
            with schema_imports("none"):
                outcome = existing_answer(answer, output)
        else:
            try:
                inputs, shots = self._arguments.of(sample)
            except UsageError:
                return  # the run gives an error without a call
            self._asked += 1
            if is_shown:
                self._shown_asked += 1
                model = self.variant.model or self._evaluator.model
                seen, outcome = await self._preview(
                    self._previewing, self.template, inputs, model=model, shots=shots
                )
                self._expect(None, seen)
                if self._knows_prompt and len(seen) == 1:
                    prompt = seen[0].max_input_tokens
            self._count(None, self._bound(inputs, prompt))
        self._last = sample.id, prompt
        self.samples += 1
        self._shown += is_shown
        for scorer, member in self._scorers:
            self._count(scorer.name, self._judges[id(member)][1])
        if is_shown and isinstance(outcome, TaskResult):
            await self._judge(sample, outcome)

    async def compare(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Renders rows of an earlier batch, whose prompts may be longer or shorter than these."""
        rendered = _Expected()
        count = 0
        model = self.variant.model or self._evaluator.model
        for inputs in rows:
            seen, _ = await self._preview(self._previewing, self.template, inputs, model=model)
            count += bool(seen)
            for preview in seen:
                rendered.add(self._config, preview)
        if count:
            self._rendered_before = rendered.input_tokens / count

    def _bound(self, inputs: Mapping[str, Any], prompt: int | None) -> dict[str | None, Amounts]:
        repeats = tuple(each.repeats.most for each in operands(self._node, inputs))
        key = (prompt, repeats, frozenset(inputs))
        if key not in self._known:
            self._known[key] = self._bounds.most(self._node, inputs, prompt)
        return self._known[key]

    def _count(self, judge: str | None, most: Mapping[str | None, Amounts]) -> None:
        for model, amounts in most.items():
            if model is None:
                self.total += amounts
            else:
                key = (judge, model)
                self._most[key] = self._most.get(key, Amounts()) + amounts

    async def _preview(
        self, previewing: Evaluator, template: str, inputs: Mapping[str, Any], **options: Any
    ) -> tuple[list[Preview], Outcome]:
        async with self._lock:  # a scorer may ask its judges at once
            self._backend.seen.clear()
            outcome = await previewing.evaluate(
                template, inputs, handler=self.variant.handler, **options
            )
            return [*self._backend.seen], outcome

    async def _judge(self, sample: Sample, outcome: TaskResult) -> None:
        """Renders the requests of the judges of a simulated answer."""
        outcome = replace(outcome, parsed_content=outcome.parsed_data)
        for scorer, member in self._scorers:
            bounds = self._judges[id(member)][0]
            judging = self._of_judge[id(member)]

            async def evaluate(
                template: str,
                inputs: Mapping[str, Any],
                name: str = scorer.name,
                roles: Mapping[str, str] = bounds.roles,
                previewing: Evaluator = judging,
                **_: Any,
            ) -> Outcome:
                model = self._evaluator.model
                seen, judged = await self._preview(
                    previewing, template, inputs, model=model, model_roles=roles
                )
                self._expect(name, seen)
                return judged

            await run_scores(
                member, ScorerInput(sample, outcome, recording=_no_record, evaluate=evaluate)
            )

    def _expect(self, judge: str | None, seen: Iterable[Preview]) -> None:
        found = self._expected.setdefault(judge, _Expected())
        for preview in seen:
            found.add(self._config, preview)

    # -- the sums ----------------------------------------------------------------------------------

    def parts(self) -> list[CostPart]:
        """The parts of the cell, for all samples; some of them were rendered."""
        found: list[CostPart] = []
        keys = dict.fromkeys(
            [*self._most]
            + [(judge, model) for judge, sums in self._expected.items() for model in sums.by_model]
        )
        for judge, model in keys:
            models = [other for of, other in keys if of == judge]
            found.append(
                CostPart(
                    self.template,
                    self.variant.name,
                    judge=judge,
                    model=model,
                    # A model that a variable names is bounded under another name.
                    most=self._most.get((judge, model), Amounts()),
                    expected=self._expectation(judge, model, models=models),
                    cached=self._cached(judge, model),
                )
            )
        return found

    def _counts(self, judge: str | None) -> tuple[int, int]:
        """The samples that the template or a judge is asked for, and those that were rendered."""
        if judge is None:
            return self._asked, self._shown_asked
        return self.samples, self._shown

    def _expectation(self, judge: str | None, model: str, models: Sequence[str]) -> Amounts:
        """The expectation for one of the `models` that the template, or a judge, asks."""
        count, shown = self._counts(judge)
        rendered = self._expected.get(judge, _Expected())
        sums = rendered.by_model
        recorded = self._recorded.get((self.template, judge))
        if recorded is not None:
            if judge is None and shown and self._rendered_before and recorded.input_tokens:
                longer = rendered.input_tokens / shown / self._rendered_before
                recorded = replace(recorded, input_tokens=recorded.input_tokens * longer)
            # The record has the sum of all models: each has the share of its rendered turns.
            turns = [sums.get(other, Amounts()).turns or 0 for other in models]
            share = 1 / len(models)
            if sum(turns):
                share = (sums.get(model, Amounts()).turns or 0) / sum(turns)
            return _priced(self._config, model, recorded.times(share)).times(count)
        if not shown:
            return _UNKNOWN
        return replace(sums.get(model, Amounts()).times(count / shown), seconds=None)

    def _cached(self, judge: str | None, model: str) -> CacheSaving:
        """What the prompt cache of `model` saves: the first call with a prefix writes it, and the
        others read it.
        """
        terms = cache_terms_of(self._config, model)
        count, shown = self._counts(judge)
        if terms is None or self._config.prices is not None or not shown:
            return CacheSaving()
        found = CacheSaving()
        prefixes = self._expected.get(judge, _Expected()).prefixes
        for (of, _, estimate), rendered in prefixes.items():
            calls = rendered * count / shown
            tokens = estimate * _TYPICAL
            saved = terms.saved_usd(tokens, calls)
            if of == model and saved > 0:
                found += CacheSaving(tokens * (calls - 1), saved)
        return found

    def missing(self) -> list[str]:
        judges = [bounds for bounds, _ in self._judges.values()]
        return [line for bounds in (self._bounds, *judges) for line in bounds.missing]

    def tree(self) -> str:
        lines = [self._bounds.tree(self._node)]
        for scorer, member in self._scorers:
            bounds = self._judges[id(member)][0]
            node = self._evaluator.library.get(member.template).node
            judged = bounds.tree(node).replace("\n", "\n  ")
            if member.asks == 1:
                asked = ""
            else:
                asked = f", asked {member.asks} times"
            lines.append(f"judge {scorer.name}{asked}:\n  {judged}")
        return "\n".join(lines)


def _label(bounds: CostBounds) -> str | None:
    """The model of tasks that name none."""
    choice = bounds.choice()
    return None if choice is None else choice.label


def _no_record() -> None:
    return None


def _expected(config: HandlerConfig, preview: Preview) -> Amounts:
    """What the request of a preview and its answer are expected to take."""
    if is_simulated_model(preview.model):
        share = 1.0
    else:
        share = _TYPICAL
    if preview.output_tokens is None:
        output = None
    else:
        output = preview.output_tokens * share
    sent = preview.input_tokens * share + _MESSAGE_TOKENS * len(preview.messages)
    amounts = Amounts(
        1,
        1,
        input_tokens=sent,
        output_tokens=output,
        cost_usd=None,
        batch_cost_usd=None,
        seconds=None,
    )
    return _priced(config, preview.model, amounts)


def _priced(config: HandlerConfig, model: str, amounts: Amounts) -> Amounts:
    """`amounts` with the cost of their tokens; None where a price is unknown."""
    if is_simulated_model(model):
        return replace(amounts, cost_usd=0.0, batch_cost_usd=0.0)
    sent = amounts.input_tokens
    made = amounts.output_tokens
    if sent is None or made is None:
        return replace(amounts, cost_usd=None, batch_cost_usd=None)
    usage = Usage(round(sent), round(made), 0, 0, None)
    if config.prices is not None:
        cost = (sent * config.prices[0] + made * config.prices[1]) / 1e6
    else:
        cost = prices.cost_usd(model, usage)
    batch_cost = prices.batch_cost_usd(model, usage, profile=config.prices)
    return replace(amounts, cost_usd=cost, batch_cost_usd=batch_cost)


def _recorded(
    folder: str | Path,
) -> tuple[dict[tuple[str, str | None], Amounts], dict[str, list[Mapping[str, Any]]]]:
    """The mean amounts of a sample in an earlier batch, by template, and of each judge; and the
    inputs of some of its rows, by template.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    sums: dict[tuple[str, str | None], Amounts] = {}
    counts: dict[tuple[str, str | None], int] = {}
    for result in open_batch(folder).results():
        known = rows.setdefault(result.template, [])
        if result.usage.turns and len(known) < MAX_COMPARED:
            known.append(result.inputs)
        used: list[tuple[str | None, Usage, float]] = [(None, result.usage, result.duration_s)]
        used += [(name, score.usage, 0.0) for name, score in result.scores.items()]
        for judge, usage, seconds in used:
            if not usage.turns or usage.input_tokens is None or usage.output_tokens is None:
                continue
            key = (result.template, judge)
            turns = usage.turns
            one = Amounts(turns, turns, usage.input_tokens, usage.output_tokens, seconds=seconds)
            sums[key] = sums.get(key, Amounts()) + one
            counts[key] = counts.get(key, 0) + 1
    return {key: amounts.times(1 / counts[key]) for key, amounts in sums.items()}, rows
