"""`evaluator batch --dry-run` and `evaluator plan`: print the cost of a batch before it runs, and
check whether the budget allows a first call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

from evaluator.cli.common import echo_text, print_json, print_table
from evaluator.cli.echo import echo
from evaluator.errors import ConfigurationError, LimitReached
from evaluator.errors.messages import amount, visible
from evaluator.nodes import Node, Task, TopLevel
from evaluator.nodes.walk import children

if TYPE_CHECKING:
    from evaluator.batch.costs import CacheSaving, CostPlan
    from evaluator.batch.identity import Cell
    from evaluator.batch.plan import BatchPlan
    from evaluator.batch.work_items import Variant
    from evaluator.interpreter.cost_bounds import Amounts
    from evaluator.interpreter.evaluator import Evaluator
    from evaluator.limits.call_limiter import PlannedCall


def print_dry_run(
    evaluator: Evaluator, plan: BatchPlan, *, as_json: bool, like: Path | None = None
) -> bool:
    """Prints what would run and its cost. Reads all rows, so that an error in any row is found.

    Returns: False, if the budget does not allow even the first call of a template and variant.
    """
    from evaluator.batch.cost_plan import plan_costs

    costs = asyncio.run(plan_costs(evaluator, plan, like))
    refused = first_call_refusals(evaluator, plan)
    deciding = plan.deciding
    if as_json:
        print_json(
            {
                **costs.to_dict(),
                "cells": len(plan.cells),
                "epochs": plan.options.epochs,
                "scorers": [scorer.name for scorer in plan.scorers],
                "decision": None if deciding is None else deciding.decision.design.to_dict(),
                "notices": list(plan.notices),
                "refused": refused,
            }
        )
        return not refused
    _print_costs(costs)
    for notice in plan.notices:
        echo(notice, err=True)
    for reason in refused:
        echo(f"no call is possible: {reason}", err=True)
    return not refused


_COSTS = ["cost", "prompt cache", "batch API", "time"]
_HEAD = ["", "model", "", "turns", "calls", "input", "output", *_COSTS]


def _print_costs(costs: CostPlan) -> None:
    echo(visible(f"{costs.name}: {amount(costs.samples, 'sample')}"))
    for name, tree in costs.tree.items():
        echo_text(f"{name}\n{indent(tree, '  ')}")
    rows: list[list[str]] = []
    for part in costs.parts:
        name = f"{part.template}, {part.variant}"
        if part.judge is not None:
            name = f"judge {part.judge} of {name}"
        rows += _rows(name, part.model, part.most, part.expected, part.cached)
    if len(costs.models) < len(costs.parts):
        for model, amounts in costs.models.items():
            rows += _rows("all", model, *amounts)
    rows += _rows("total", "", costs.most, costs.expected, costs.cached)
    print_table(_HEAD, rows)
    for note in costs.notes:
        echo(visible(f"note: {note}"))
    for line in costs.missing:
        echo(visible(f"no bound: {line}"))


def _rows(
    name: str, model: str, most: Amounts, expected: Amounts, cached: CacheSaving
) -> list[list[str]]:
    saving = "-"
    if cached.tokens and expected.input_tokens:
        share = min(1.0, cached.tokens / expected.input_tokens)
        cost = expected.cost_usd
        saving = f"{_dollars(None if cost is None else cost - cached.saved_usd)}, {share:.0%} read"
    return [
        [name, model, "at most", *_cells(most, "-")],
        ["", "", "expected", *_cells(expected, saving)],
    ]


def _cells(amounts: Amounts, saving: str) -> list[str]:
    counts = (amounts.turns, amounts.calls, amounts.input_tokens, amounts.output_tokens)
    return [
        *("?" if count is None else f"{ceil(count):,}" for count in counts),
        _dollars(amounts.cost_usd),
        saving,
        _dollars(amounts.batch_cost_usd),
        "?" if amounts.seconds is None else f"{amounts.seconds:,.0f} s",
    ]


def _dollars(cost: float | None) -> str:
    if cost is None:
        return "?"
    return f"${cost:,.2f}" if cost >= 1 or cost == 0 else f"${cost:,.6f}"


def first_call_refusals(evaluator: Evaluator, plan: BatchPlan) -> list[str]:
    """Sandboxes that are not installed, and the budget's reasons for rejecting a cell's first call,
    without judges. Each reason is in the list once.
    """
    return list(dict.fromkeys(_refusals(evaluator, plan)))


def _refusals(evaluator: Evaluator, plan: BatchPlan) -> Iterator[str]:
    from evaluator.batch.cost_plan import waiting_calls
    from evaluator.interpreter.sandboxing import needed_sandboxes
    from evaluator.limits.batch_budget import BatchBudget, BatchSpending

    for template, handler in plan.evaluations:
        domain = evaluator.services.new_domain(handler)
        for sandbox in needed_sandboxes(domain, evaluator.library.get(template).node):
            try:
                sandbox.program()
            except ConfigurationError as error:
                yield str(error)
    limits = plan.options.limits
    budget = BatchSpending(BatchBudget(max_cost_usd=limits.max_cost, max_tokens=limits.max_tokens))
    if not budget.has_shared_limit or waiting_calls(plan):
        return
    for cell, variant in plan.cells:
        call = _first_call(evaluator, cell, variant=variant)
        try:
            if call is not None:
                budget.fits(call)
        except LimitReached as error:
            yield str(error)


def _first_call(evaluator: Evaluator, cell: Cell, variant: Variant) -> PlannedCall | None:
    """The call of the cell with the smallest reservation; None if the cell can run without a call,
    or if its template names a model or settings of its own.
    """
    from evaluator.errors.results import Usage
    from evaluator.library.bounds import bound
    from evaluator.limits.call_limiter import PlannedCall
    from evaluator.models import prices

    library = evaluator.library
    services = evaluator.services
    names = (cell.template, *library.called_by(cell.template))
    if any(_chooses(library.get(name).node) for name in names):
        return None
    if not bound(library.get(cell.template).node, library).min_calls:
        return None
    config = services.profile(variant.handler)
    choice = services.chooser.choose(variant.model or evaluator.model, None, config)
    if choice.is_free:
        return PlannedCall(
            choice.label, choice.endpoint, input_tokens=0, output_tokens=0, cost_usd=0.0
        )
    output = config.max_output_tokens or prices.max_output_tokens(choice.label)
    cost: float | None = None
    if output is not None and config.prices is not None:
        cost = output * config.prices[1] / 1e6
    elif output is not None:
        cost = prices.cost_usd(
            choice.label,
            Usage(0, output, cached_tokens=0, reasoning_tokens=0, cost_usd=None, turns=1),
        )
    return PlannedCall(
        choice.label, choice.endpoint, input_tokens=0, output_tokens=output, cost_usd=cost
    )


def _chooses(node: TopLevel | Node) -> bool:
    """Whether a task in `node` names its own model, role, profile or output limit."""
    if isinstance(node, Task):
        own = node.handler
        if (
            node.model
            or node.model_role
            or (own and (own.ref or own.max_output_tokens is not None))
        ):
            return True
    return any(map(_chooses, children(node)))
