"""`evaluator batch --dry-run`: what a batch would take, and whether its budget would let it begin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from evaluator.cli.common import print_json
from evaluator.errors import LimitReached
from evaluator.nodes import Node, Task, TopLevel, children
from evaluator.record.render import visible

if TYPE_CHECKING:
    from evaluator.batch.identity import Cell
    from evaluator.batch.plan import BatchPlan
    from evaluator.batch.work import Variant
    from evaluator.handler.gate import PlannedCall
    from evaluator.interpreter.evaluator import Evaluator


def say_what_it_takes(evaluator: Evaluator, plan: BatchPlan, *, as_json: bool) -> bool:
    """Prints samples and calls, after reading all rows, so that what is wrong with one of them is found, too.

    Returns: False, where the budget lets not even the first call of a template and variant begin.
    """
    bound = plan.call_bound
    read = asyncio.run(_count(plan.rows))
    rows, total = read * plan.epochs, read * plan.epochs * len(plan.cells)
    most = None if bound.max_calls is None else rows * bound.max_calls
    least = rows * bound.min_calls
    refused = list(dict.fromkeys(_refused(evaluator, plan)))
    if as_json:
        print_json({"samples": total, "min_calls": least, "max_calls": most, "cells": len(plan.cells),
                    "epochs": plan.epochs, "scorers": [scorer.name for scorer in plan.scorers],
                    "notices": list(plan.notices), "refused": refused})  # fmt: skip
        return not refused
    click.echo(f"{plan.name}: {total:,} samples")
    click.echo(bound.explanation)
    click.echo(f"model calls: at least {least:,}, at most {'?' if most is None else f'{most:,}'}, judges' not counted")
    for notice in plan.notices:
        click.echo(visible(notice), err=True)
    for reason in refused:
        click.echo(f"nothing can be sent: {visible(reason)}", err=True)
    return not refused


async def _count(rows: AsyncIterable[Any]) -> int:
    return sum([1 async for _ in rows])


def _refused(evaluator: Evaluator, plan: BatchPlan) -> Iterator[str]:
    """Why the budget would refuse the first call of a cell, as it would say then; judges are not looked at."""
    from evaluator.handler.pacing_budget import BatchBudget, SharedBudget

    limits = plan.limits
    budget = SharedBudget(BatchBudget(max_cost_usd=limits.max_cost, max_tokens=limits.max_tokens))
    for cell, variant in plan.cells if budget.is_shared_out else ():
        call = _first_call(evaluator, cell, variant)
        try:
            if call is not None:
                budget.fits(call)
        except LimitReached as error:
            yield str(error)


def _first_call(evaluator: Evaluator, cell: Cell, variant: Variant) -> PlannedCall | None:
    """The least that a call of the cell reserves; None where it need not make one, or says itself by which model
    or with which settings."""
    from evaluator.handler import prices
    from evaluator.handler.gate import PlannedCall
    from evaluator.library.bounds import bound
    from evaluator.results import Usage

    library, services = evaluator.library, evaluator.services
    names = (cell.template, *library.called_by(cell.template))
    if any(_chooses(library.get(name).node) for name in names):
        return None
    if not bound(library.get(cell.template).node, library).min_calls:
        return None
    config = services.profile(variant.handler)
    choice = services.chooser.choose(variant.model or evaluator.model, None, config)
    if choice.backend.name in ("simulated", "replay"):
        return PlannedCall(choice.label, choice.endpoint, 0, 0, 0.0)
    output = config.max_output_tokens
    if output is None:
        output = prices.max_output_tokens(choice.label)
    cost: float | None = None
    if output is not None and config.prices is not None:
        cost = output * config.prices[1] / 1e6
    elif output is not None:
        cost = prices.cost_usd(choice.label, Usage(0, output, 0, 0, None, 1))
    return PlannedCall(choice.label, choice.endpoint, 0, output, cost)


def _chooses(node: TopLevel | Node) -> bool:
    """Whether a task in `node` names a model, a role, a profile or a longest answer of its own."""
    if isinstance(node, Task):
        own = node.handler
        if node.model or node.model_role or (own and (own.ref or own.max_output_tokens is not None)):
            return True
    return any(map(_chooses, children(node)))
