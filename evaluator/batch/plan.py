"""A planned batch: every part of it found, checked and hashed, before anything runs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.batch.arguments import Arguments
from evaluator.batch.averages import Average
from evaluator.batch.cells import (
    Judges,
    answered_cells,
    bound_of_cells,
    check_logprobs,
    find_judges,
    inputs_of,
    make_cells,
    make_variants,
    scorer_parts,
    scoring_part,
)
from evaluator.batch.decision import Decision
from evaluator.batch.design import PlannedDecision, plan_decision
from evaluator.batch.fields import check_fields
from evaluator.batch.folder import MANIFEST, BatchFolder
from evaluator.batch.identity import (
    SCHEMA,
    Cell,
    digest,
)
from evaluator.batch.metrics import (
    Metric,
    StoredMetric,
    describe_metric,
    make_metrics,
    metric_names,
)
from evaluator.batch.options import BatchOptions, limits_to_dict
from evaluator.batch.records import Sample
from evaluator.batch.rows import RowMapping, RowsInput, RowSource, open_rows
from evaluator.batch.rows.fewshot import FEWSHOT, ShotPool, read_shots
from evaluator.batch.scorers import (
    Scorer,
    is_bounded,
    make_scorers,
    score_names,
)
from evaluator.batch.scorers.function_scorer import UnloadedScorer
from evaluator.batch.scorers.scorer_registry import check_rows
from evaluator.batch.statistics import reducer
from evaluator.batch.thresholds import Threshold, check_fit, parse_threshold
from evaluator.batch.work_items import Variant
from evaluator.errors import InputError, UsageError
from evaluator.errors.messages import amount, did_you_mean, listed
from evaluator.fields import Names, accept
from evaluator.language.inputs import bind_inputs
from evaluator.lazy_dataclass import frozen
from evaluator.library.bounds import CallBound
from evaluator.models.provider_batches import batches_of
from evaluator.nodes import Atomic, Function, Input, TopLevel

if TYPE_CHECKING:
    from evaluator.interpreter.evaluator import Evaluator
_PACKAGES = ("evaluator", "litellm", "lxml", "jinja2", "httptools")


@frozen
class BatchPlan:
    """The plan of a session, made from `options`.

    `call_bound` counts the model calls of one row in all cells, one epoch, without judges.
    `scorer_parts` is what determines the judgements of each scorer; `judges` are the models that
    judge. `reducers` are those of the options and those that thresholds need. `shots` are the
    few-shot examples. `warnings` are about the rows. `deciding` is what the batch has to decide.
    `settings` are those of the handlers by their hash, as the manifest stores them.
    """

    name: str
    options: BatchOptions
    cells: Sequence[tuple[Cell, Variant]]
    rows: RowSource
    scorers: Sequence[Scorer]
    scorer_parts: Mapping[str, Any]
    thresholds: Sequence[Threshold]
    reducers: tuple[str, ...] | None
    call_bound: CallBound
    judges: Judges
    shots: ShotPool | None = None
    metrics: Sequence[Metric] = ()
    warnings: tuple[str, ...] = ()
    deciding: PlannedDecision | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def scoring_part(self) -> str:
        """The hash of everything that judges; empty without scorers."""
        return scoring_part(self.scorer_parts, self.options)

    @property
    def work_part(self) -> str | None:
        """The hash of everything that determines the samples, their identities and their scoring;
        None where the rows are not in a file, or other files determine them too.
        """
        options = self.options
        source = dict(self.rows.description)
        source.pop("path", None)
        if "sha256" not in source or self.shots is not None or self.deciding is not None:
            return None
        mapping = asdict(_mapping_of(options))
        cells = [asdict(cell) for cell, _ in self.cells]
        parts = [_versions(), source, mapping, asdict(options.select), options.epochs, cells]
        return digest([*parts, self.scoring_part])

    @property
    def versions(self) -> dict[str, str]:
        """The hash of everything that determines the judgements of each scorer, by its name."""
        options = self.options
        others = [sorted(options.count_as_failed), options.limited]
        return {name: digest([part, *others])[:16] for name, part in self.scorer_parts.items()}

    @property
    def evaluations(self) -> list[tuple[str, str | None]]:
        """Each template that the session evaluates, those of scorers included, with its handler
        profile.
        """
        is_answered = self.options.answers is not None
        return [
            (name, variant.handler)
            for cell, variant in self.cells
            for name in (*(() if is_answered else (cell.template,)), *self.judges.templates)
        ]

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user has to know before the batch runs."""
        return (
            *self.rows.notices,
            *self.warnings,
            *(() if self.shots is None else self.shots.notices),
            *self.judges.notices,
            *(() if self.deciding is None else self.deciding.decision.design.lines()),
        )

    def pinned(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """`arguments` with the commits of data sets, so that a resumed batch has the same rows."""
        found = dict(arguments)
        if self.rows.description["kind"] == "hf":
            found["rows"] = self.rows.name
        if self.shots is not None and self.shots.source["kind"] == "hf":
            found["fewshot"] = {**found["fewshot"], "rows": self.shots.name}
        return found

    @property
    def total(self) -> int | None:
        """Samples, if the number of rows is known before they are read."""
        rows = self.rows.total
        if self.deciding is not None:
            rows = len(self.deciding.look_of)
        if rows is None:
            return None
        return rows * self.options.epochs * len(self.cells)

    async def slices(self, look: int | None = None) -> AsyncGenerator[Sequence[Sample]]:
        """The rows that are evaluated, or those of them that belong to one look, counted from 0;
        some at a time.
        """
        look_of = None if self.deciding is None else self.deciding.look_of
        async with aclosing(self.rows.slices()) as slices:
            async for samples in slices:
                if look_of is None:
                    yield samples
                    continue
                found = [sample for sample in samples if sample.id in look_of]
                if look is not None:
                    found = [sample for sample in found if look_of[sample.id] == look]
                if found:
                    yield found


def make_plan(
    evaluator: Evaluator, templates: str | Sequence[str], rows: RowsInput, options: BatchOptions
) -> BatchPlan:
    """A batch that is ready to run; runs nothing and makes no call.

    Raises: UsageError, TemplateError or ConfigurationError, for anything that cannot be used.
    """
    names = accept(Names, templates, "templates", UsageError)
    if not names:
        raise UsageError("name a template")
    scorers = make_scorers(options.scorers)
    variants = make_variants(options.models, options.handlers)
    is_answered = options.answers is not None
    if is_answered:
        cells = answered_cells(evaluator, names, variants=variants)
        settings = {}
    else:
        cells, settings = make_cells(evaluator, names, variants=variants)
    parts = scorer_parts(evaluator, scorers, cells=cells)
    metrics: tuple[Metric, ...] = ()
    if options.metrics:
        metrics = make_metrics(options.metrics, options.group_by, cluster=options.cluster)
    thresholds = [
        parse_threshold(each) if isinstance(each, str) else each for each in options.thresholds
    ]
    reducers = _reducers_of(
        options, thresholds, scorers=scorers, parts=parts, metrics=metrics, cells=cells
    )
    source, shots = _open_rows(evaluator, names, rows, options=options)
    fields = {"cluster": options.cluster, "group_by": options.group_by}
    for metric in metrics:
        if isinstance(metric, Average):
            fields[f"metric {metric.name}"] = metric.reads
    if set(fields.values()) != {None}:
        check_fields(source, fields, target=options.target)
    check_rows(source.read_ahead(), scorers)
    check_logprobs(evaluator, scorers, cells, is_answered=is_answered)
    _check_provider_batch(evaluator, options, source, () if is_answered else variants)
    _check_measure(options, scorers)
    deciding = _plan_decision(options, source, variants=len(cells))
    if deciding is not None and deciding.decision.design.epochs != options.epochs:
        options = replace(options, epochs=deciding.decision.design.epochs)
        return make_plan(evaluator, names, rows, options)
    warnings: list[str] = []
    if not is_answered and not was_begun(options):
        nodes = [evaluator.library.get(name).node for name in names]
        warnings = _check_rows(source, nodes, shots=shots)
    plan = BatchPlan(
        options.name or ", ".join(names),
        options,
        cells=cells,
        rows=source,
        scorers=scorers,
        scorer_parts=parts,
        thresholds=thresholds,
        reducers=reducers,
        call_bound=CallBound(0, 0, lines=()) if is_answered else bound_of_cells(evaluator, cells),
        judges=find_judges(evaluator, scorers, parts=parts, cells=cells),
        shots=shots,
        metrics=metrics,
        warnings=tuple(warnings),
        deciding=deciding,
        settings=settings,
    )
    if not was_begun(options):
        evaluator.check_reached(plan.evaluations)
    return plan


def _open_rows(
    evaluator: Evaluator, templates: Sequence[str], rows: RowsInput, options: BatchOptions
) -> tuple[RowSource, ShotPool | None]:
    """The rows and the few-shot examples of a batch. Raises: UsageError, if they cannot be used."""
    declared, required = inputs_of(evaluator, templates)
    mapping = _mapping_of(options)
    shots = None
    if options.answers is not None:
        required = []
    elif options.fewshot is not None:
        declared = [name for name in declared if name != FEWSHOT]
        required = [name for name in required if name != FEWSHOT]
        check = _check_of_shots(evaluator, templates)
        shots = read_shots(
            options.fewshot, mapping, declared=declared, required=required, check=check
        )
    source = open_rows(
        rows,
        mapping,
        selection=options.select,
        declared=declared,
        required=required,
        choose_shots=None if shots is None else shots.choose,
    )
    return source, shots


def _check_provider_batch(
    evaluator: Evaluator, options: BatchOptions, rows: RowSource, variants: Sequence[Variant]
) -> None:
    """Raises: UsageError, if the batch cannot have provider batches, or only their options."""
    if not options.provider_batch:
        given = {
            "provider_batch_rest": options.provider_batch_rest != "batch",
            "provider_batch_deadline": options.provider_batch_deadline is not None,
            "keep_provider_files": options.keep_provider_files,
            "wait": options.wait,
        }
        for name, is_given in given.items():
            if is_given:
                raise UsageError(f"{name} has no effect without provider_batch: give both")
        return
    if options.engine not in (None, "local"):
        raise UsageError("provider_batch needs the engine local: nothing runs while calls wait")
    if rows.is_live or not rows.is_repeatable:
        raise UsageError("provider_batch needs rows that can be read again; write them to a file")
    services = evaluator.services
    for variant in variants:
        config = services.profile(variant.handler)
        choice = services.chooser.choose(variant.model or evaluator.model, None, config)
        if batches_of(choice.backend, choice.model) is None:
            raise UsageError(
                f"{choice.label} has no batch API that this version knows; remove "
                "provider_batch, or choose a model of OpenAI, Anthropic, Gemini or Mistral, or of "
                "a server with /v1/batches"
            )


def _plan_decision(options: BatchOptions, rows: RowSource, variants: int) -> PlannedDecision | None:
    """What the batch has to decide; of a batch that is resumed what is recorded in its folder.

    Raises: UsageError, if it cannot be planned; RecordError, if the record cannot be read.
    """
    method = options.decide.method
    if method is not None and options.select.shard is not None:
        raise UsageError(
            "a shard does not see the results of the others: give detect or race to a whole batch"
        )
    recorded = None
    if was_begun(options):
        recorded = Decision.of(BatchFolder.reader(options.output or "").manifest(repair=True))
        if (recorded is None) != (method is None):
            raise UsageError(
                "a decision is designed before the first call: give its options to a new batch, "
                "and the same ones when it is resumed"
            )
    if method is None:
        return None
    return plan_decision(
        options.decide,
        method,
        rows=rows,
        variants=variants,
        epochs=options.epochs,
        cluster=options.cluster,
        recorded=recorded,
    )


def _check_measure(options: BatchOptions, scorers: Sequence[Scorer]) -> None:
    """Raises: UsageError, if no scorer gives the score that the batch decides by."""
    measure = options.decide.measure
    if measure is None:
        return
    names = [name for scorer in scorers for name in score_names(scorer)]
    if measure in names:
        return
    # A scorer whose code is not loaded may have this value.
    if not any(
        isinstance(scorer, UnloadedScorer) and measure.startswith(f"{scorer.name}.")
        for scorer in scorers
    ):
        hint = did_you_mean(measure, names) or f"the scores are {listed(names)}"
        raise UsageError(f"measure: there is no score {measure!r}; {hint}")


def was_begun(options: BatchOptions) -> bool:
    """Whether the batch resumes one whose rows were checked when it started."""
    return options.resume and options.output is not None and Path(options.output, MANIFEST).exists()


def _check_rows(
    rows: RowSource, nodes: Sequence[TopLevel], *, shots: ShotPool | None = None
) -> list[str]:
    """Reads all selected rows: their ids, and the types of the inputs of `nodes`, are checked
    before anything is paid. Nothing is checked if the rows can be read only once or have to be
    waited for.

    Returns: a warning for each required input that is empty in some rows, with their number.
    Raises: RowError, for the first row that cannot be used.
    """
    declared: list[tuple[TopLevel, Arguments, list[Input]]] = []
    required: set[str] = set()
    for node in nodes:
        inputs: list[Input] = []
        # The parameters of a function are checked when it is called.
        if not isinstance(node, Function):
            inputs += (each for each in node.inputs if each.name != FEWSHOT)
        declared.append((node, Arguments(node), inputs))
        required |= {each.name for each in inputs if each.must_be_given}
    empty = dict.fromkeys(sorted(required), 0)
    number = 0

    def check(sample: Sample) -> None:
        nonlocal number
        number += 1
        for node, arguments, inputs in declared:
            values = arguments.read(sample.inputs)
            if isinstance(node, Function):
                continue
            try:
                bind_inputs(inputs, values, location=node.span)
            except InputError as error:
                raise UsageError(error.diagnostics[0].message) from error
        for name in required:
            value = sample.inputs.get(name)
            if isinstance(value, str) and not value.strip():
                empty[name] += 1

    rows.check(check, with_shots=shots is not None and not shots.is_enough_for_any_row())
    return [
        f"{rows.name}: the required input {name!r} is empty in {count:,} of {amount(number, 'row')}"
        for name, count in empty.items()
        if count
    ]


def _names_of(metrics: Sequence[Metric], scorers: Collection[str]) -> list[str]:
    """The names of all values of metrics. Raises: UsageError, for an average of an unknown
    scorer.
    """
    for metric in metrics:
        for of in metric.of_scorers if isinstance(metric, Average) else ():
            if of not in scorers:
                hint = did_you_mean(of, scorers) or f"its scorers are {listed(scorers)}"
                raise UsageError(f"metric {metric.name!r}: the batch has no scorer {of!r}; {hint}")
    return [name for metric in metrics for name in metric_names(metric)]


def _values_of_unloaded(
    made: Sequence[Scorer] | Sequence[Metric], kind: type, thresholds: Sequence[Threshold]
) -> list[str]:
    """The values NAME.VALUE that thresholds name, of functions whose code is not imported and may
    declare them.
    """
    named = [threshold.scorer for threshold in thresholds if threshold.scorer is not None]
    unloaded = [f"{each.name}." for each in made if isinstance(each, kind)]
    return [name for name in named if any(name.startswith(prefix) for prefix in unloaded)]


def _reducers_of(
    options: BatchOptions,
    thresholds: Sequence[Threshold],
    *,
    scorers: Sequence[Scorer],
    parts: Mapping[str, Any],
    metrics: Sequence[Metric],
    cells: Sequence[tuple[Cell, Variant]],
) -> tuple[str, ...] | None:
    """The reducers of the options and those that thresholds need. Raises: UsageError, for a
    threshold that does not fit.
    """
    reducers = None
    if options.reducers is not None:
        reducers = tuple(reducer(name).name for name in options.reducers)
    names = _names_of(metrics, parts)
    if not thresholds and reducers is None:
        return None
    return check_fit(
        thresholds,
        scorers=[*parts, *_values_of_unloaded(scorers, UnloadedScorer, thresholds=thresholds)],
        cells=[(cell.template, cell.variant) for cell, _ in cells],
        epochs=options.epochs,
        reducers=reducers,
        bounded=[name for name, part in parts.items() if is_bounded(part)],
        metrics=[
            *names,
            *_values_of_unloaded(metrics, StoredMetric, thresholds=thresholds),
        ],
    )


def _mapping_of(options: BatchOptions) -> RowMapping:
    return RowMapping(
        options.inputs,
        options.id,
        target=options.target,
        metadata=options.metadata,
        answers=options.answers,
        shuffle_choices=options.shuffle_choices,
        allow_empty=options.empty == "keep",
    )


def _check_of_shots(
    evaluator: Evaluator, templates: Sequence[str]
) -> Callable[[Mapping[str, Any]], None]:
    """The check of the inputs of few-shot examples. Raises: UsageError, for a template that cannot
    have them.
    """
    nodes = [evaluator.library.get(template).node for template in templates]
    arguments = list(map(Arguments, nodes))
    for template, node, taken in zip(templates, nodes, arguments, strict=True):
        if not taken.takes_shots and not isinstance(node, Atomic):
            raise UsageError(
                f"fewshot: the template {template!r} is not atomic, so that examples cannot be "
                "turns of its "
                f'conversation; declare <input name="{FEWSHOT}" type="array"/> and show them in '
                "its text"
            )

    def check(inputs: Mapping[str, Any]) -> None:
        for taken in arguments:
            taken.read(inputs)

    return check


def make_manifest(plan: BatchPlan, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that is needed to run the batch again, or to see what has changed."""
    options = plan.options
    return {
        "schema": SCHEMA,
        "name": plan.name,
        "versions": dict(_versions()),
        "rows": dict(plan.rows.description),
        "select": {
            name: value for name, value in asdict(options.select).items() if name != "shard"
        },
        "shard": options.select.shard,
        "fewshot": None if plan.shots is None else plan.shots.describe(),
        "epochs": options.epochs,
        "templates": {cell.template: cell.template_part for cell, _ in plan.cells},
        "cells": [
            {
                "template": cell.template,
                "variant": cell.variant,
                "model": variant.model,
                "handler": variant.handler,
                "handler_part": cell.handler_part,
                "simulated": cell.is_simulated,
            }
            for cell, variant in plan.cells
        ],
        "settings": plan.settings,
        "scorers": dict(plan.scorer_parts),
        "judges": dict(plan.judges.models),
        "count_as_failed": sorted(options.count_as_failed),
        "limited": options.limited,
        "metrics": [describe_metric(metric) for metric in plan.metrics],
        "limits": limits_to_dict(options.limits),
        "thresholds": [str(threshold) for threshold in plan.thresholds],
        "cluster": options.cluster,
        "group_by": options.group_by,
        "reducers": None if plan.reducers is None else list(plan.reducers),
        "decision": None if plan.deciding is None else plan.deciding.decision.to_dict(),
        "call_bound": {"min": plan.call_bound.min_calls, "max": plan.call_bound.max_calls},
        "cwd": os.getcwd(),
        "arguments": dict(arguments),
    }


@cache
def _versions() -> Mapping[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
