"""Runs batches in tests: one folder per batch, one run per marker in all processes, and the outcome
of each test.

Plans a batch from the arguments of a marker or a call, with the models that the test run
allows.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import AsyncGenerator, Collection, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from evaluator import disk, randomness
from evaluator.batch.definition import read_definition
from evaluator.batch.options import BatchOptions, Stop
from evaluator.batch.plan import BatchPlan, make_plan
from evaluator.batch.reading import open_batch
from evaluator.batch.records import Sample, SampleResult, Verdict, key_of
from evaluator.batch.rows import RowSource
from evaluator.batch.rows.hf_rows import place_in
from evaluator.batch.run import BatchResult, run_plan
from evaluator.batch.scorers import parse_scorer
from evaluator.errors import EvaluatorError, UsageError
from evaluator.fields import check_names
from evaluator.files.atomic import locked_file
from evaluator.interpreter.evaluator import Evaluator
from evaluator.interpreter.sync import run_sync
from evaluator.lazy_dataclass import frozen
from evaluator.library import TemplateLibrary
from evaluator.models.simulated import SimulatedBackend
from evaluator.pytest_plugin import EACH, MARKER
from evaluator.pytest_plugin.report import failure_report, sample_report

_EVALUATOR = {"library", "model_roles", "roots", "tools"}
# Where results go, and when a session ends, is up to the test run.
_OPTIONS = {each.name for each in fields(BatchOptions)} - {"output", "resume", "display", "stop"}


@frozen
class PreparedBatch:
    """A batch that can run. `is_own`: its evaluator was made here and has to be closed."""

    evaluator: Evaluator
    plan: BatchPlan
    is_own: bool

    @property
    def is_simulated(self) -> bool:
        return any(cell.is_simulated for cell, _ in self.plan.cells)

    def only(self, ids: Collection[str]) -> PreparedBatch:
        """The batch with only these samples."""
        rows = cast("RowSource", _SelectedRows(self.plan.rows, ids))
        return replace(self, plan=replace(self.plan, rows=rows))


def prepare(
    config: pytest.Config, what: Any, rows: Any, arguments: Mapping[str, Any], folder: Path
) -> PreparedBatch:
    """`what` is a definition's file or names templates; paths are relative to `folder`.

    Raises: EvaluatorError, for anything that cannot be used.
    """
    given = {**_read_definition(what, folder), **arguments}
    if rows is not None:
        if isinstance(rows, (str, Path)):
            given["rows"] = place_in(folder, str(rows))
        else:
            given["rows"] = rows
    check_names(given, {"templates", "rows", "evaluator", *_OPTIONS, *_EVALUATOR}, UsageError)
    if "rows" not in given:
        raise UsageError("rows are missing")
    templates = given.pop("templates")
    rows = given.pop("rows")
    own = given.pop("evaluator", None)
    init = {name: given.pop(name) for name in _EVALUATOR & given.keys()}
    if isinstance(given.get("cache"), (str, Path)):
        given["cache"] = folder / given["cache"]
    if own is None:
        evaluator, given = _make_evaluator(config, init, given=given, folder=folder)
    elif init:
        raise UsageError(f"give either an evaluator, or {', '.join(sorted(init))} to make one")
    else:
        evaluator = own
    options = BatchOptions(**given, display=None)
    if options.decide.method is not None:
        raise UsageError("a test evaluates all rows of its batch: leave out `decide`")
    scorers = tuple(
        parse_scorer(each) if isinstance(each, str) else each for each in options.scorers
    )
    return PreparedBatch(
        evaluator,
        make_plan(evaluator, templates, rows=rows, options=replace(options, scorers=scorers)),
        is_own=own is None,
    )


def _read_definition(what: Any, folder: Path) -> dict[str, Any]:
    """The table that the first argument denotes."""
    if isinstance(what, Path) or (isinstance(what, str) and what.endswith(".toml")):
        table = read_definition(folder / what).to_dict()
        table.pop("output", None)
        return table
    if what is None:
        raise UsageError("give a definition's file or a template's name")
    return {"templates": what}


def _make_evaluator(
    config: pytest.Config, init: dict[str, Any], given: dict[str, Any], folder: Path
) -> tuple[Evaluator, dict[str, Any]]:
    """An evaluator, and the options of the batch, with the models that the test run allows."""
    library = init.get("library")
    if isinstance(library, (str, Path)):
        init["library"] = folder / library
    elif isinstance(library, (list, tuple)):
        init["library"] = TemplateLibrary.load(
            *(folder / each for each in cast("tuple[str, ...]", library))
        )
    init |= {
        "roots": [folder / root for root in init.get("roots", ())] or [folder],
        "tasks_dir": None,
    }
    # pytest runs the project's code anyway.
    init["trust"] = True
    model = config.getoption("evaluator_model")
    handler = config.getoption("evaluator_handler")
    if not model and not handler:
        if config.getoption("evaluator_live"):
            return Evaluator(**init), given
        model = os.environ.get("EVALUATOR_MODEL")
    if not model and not handler:
        # This backend answers every call, whatever model is named anywhere.
        return Evaluator(handler="offline", backend=SimulatedBackend(), **init), {
            **given,
            "handlers": (),
        }
    return Evaluator(handler=handler, **init), {
        **given,
        "models": (model,) if model else (),
        "handlers": (),
    }


class _SelectedRows:
    """The `rows` with these ids."""

    def __init__(self, rows: RowSource, ids: Collection[str]) -> None:
        self._rows = rows
        self._ids = frozenset(ids)
        self.total = len(self._ids)
        self.is_repeatable = rows.is_repeatable
        self.description = rows.description
        self.is_live = rows.is_live
        self.name = rows.name
        self.notices = rows.notices

    def is_as_described(self) -> bool:
        """False: the description is that of all rows. So no session of some rows signs that its
        folder has all results.
        """
        return False

    async def slices(self) -> AsyncGenerator[Sequence[Sample]]:
        async with aclosing(self._rows.slices()) as slices:
            async for samples in slices:
                yield [sample for sample in samples if sample.id in self._ids]


Place = tuple[str, int, str, str]
"""The place of one result: the sample's id, epoch, template, variant."""


class Runs:
    """The batches of one pytest process. `run_id` is the same in all processes of a test run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        worker: Mapping[str, Any] = getattr(config, "workerinput", {})
        self.run_id: str = worker.get("testrunuid") or randomness.token_hex(16)
        self._prepared: dict[int, tuple[pytest.Mark, PreparedBatch]] = {}
        self._shared: dict[str, SharedBatch] = {}
        self._wanted: dict[int, set[str] | None] = {}
        self._folders: set[Path] = set()

    # -- markers -----------------------------------------------------------------------------------

    def parameters(self, mark: pytest.Mark, folder: Path) -> tuple[list[Place | None], list[str]]:
        """The parameters and ids of the tests of a marker with `each`; None is the test of the
        thresholds.

        Fails the collection for a batch that cannot be planned, or whose rows can be read only
        once.
        """
        try:
            plan = self.prepare_mark(mark, folder).plan
            if not plan.rows.is_repeatable:
                raise UsageError(
                    "rows of each=True are read twice: give a file, a list or a frame, not an "
                    "iterator"
                )
            return _parameters(plan, run_sync(_ids(plan.rows)))
        except EvaluatorError as error:
            problem = error
        fail(problem)

    def note_selected(self, items: Sequence[pytest.Item]) -> None:
        """Notes which samples the selected tests need: all, if one of them is about the whole
        batch.
        """
        for item in items:
            mark = item.get_closest_marker(MARKER)
            if mark is None:
                continue
            place = place_of(item)
            wanted = self._wanted.setdefault(id(mark), set())
            if not isinstance(place, tuple):
                self._wanted[id(mark)] = None
            elif wanted is not None:
                wanted.add(place[0])

    def shared(self, item: pytest.Item, mark: pytest.Mark, base: Path) -> SharedBatch:
        """The batch of `mark`, the same one for each test that has it."""
        name = _slug(_owner(item, mark))
        if name not in self._shared:
            wanted = self._wanted.get(id(mark))
            self._shared[name] = SharedBatch(
                self, mark, source=item.path.parent, folder=self._root(base) / name, wanted=wanted
            )
        return self._shared[name]

    def prepare_mark(self, mark: pytest.Mark, folder: Path) -> PreparedBatch:
        """Raises: EvaluatorError, for anything that cannot be used."""
        if id(mark) not in self._prepared:
            arguments = {name: value for name, value in mark.kwargs.items() if name != "each"}
            if len(mark.args) > 2:
                raise UsageError("it takes a definition or templates, rows, and options by name")
            what, rows = (*mark.args, None, None)[:2]
            rows = arguments.pop("rows", rows)
            self._prepared[id(mark)] = (
                mark,
                prepare(self._config, what, rows=rows, arguments=arguments, folder=folder),
            )
        return self._prepared[id(mark)][1]

    # -- calls -------------------------------------------------------------------------------------

    def call(
        self, item: pytest.Item, what: Any, rows: Any, arguments: Mapping[str, Any], base: Path
    ) -> tuple[BatchResult, dict[str, Any]]:
        """Runs a batch in a separate folder. Returns: its result and its usage."""
        __tracebackhide__ = True
        has_output = self._config.getoption("evaluator_output")
        root = self._root(base) if has_output else base / "evaluator"
        first = folder = root / _slug(item.nodeid)
        number = 1
        while folder in self._folders:
            number += 1
            folder = first.with_name(f"{first.name}-{number}")
        self._folders.add(folder)
        try:
            return self.run(
                prepare(
                    self._config, what, rows=rows, arguments=arguments, folder=item.path.parent
                ),
                folder,
                stop=Stop(),
            )
        except EvaluatorError as error:
            problem = error
        fail(problem)

    # -- both --------------------------------------------------------------------------------------

    def run(
        self, batch: PreparedBatch, folder: Path, stop: Stop, *, resume: bool = False
    ) -> tuple[BatchResult, dict[str, Any]]:
        """Raises: EvaluatorError, if it cannot be run."""
        resume = resume or bool(self._config.getoption("evaluator_resume"))
        if not resume and (folder / "manifest.json").exists():
            raise UsageError(
                f"{folder}: there is a batch already; resume it with --evaluator-resume, or give "
                "another "
                "--evaluator-output"
            )
        disk.make_folders(folder.parent)
        options = replace(batch.plan.options, output=folder, resume=resume, stop=stop)
        try:
            result = run_sync(run_plan(batch.evaluator, replace(batch.plan, options=options)))
        finally:
            if batch.is_own:
                batch.evaluator.close()
        usage = result.ended.snapshot.usage
        return result, {
            "folder": str(folder),
            "samples": result.ended.ran,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cost_usd": usage.cost_usd,
            "simulated": batch.is_simulated,
        }

    def check(self, item: pytest.Item, result: BatchResult) -> None:
        """Fails the test unless the batch is complete and its thresholds are met."""
        __tracebackhide__ = True
        output = shlex.quote(str(result.folder.parent))
        command = (
            f"pytest {shlex.quote(item.nodeid)} --evaluator-output {output} --evaluator-resume"
        )
        if not result.ok:
            pytest.fail(failure_report(result, command), pytrace=False)

    def _root(self, base: Path) -> Path:
        output = self._config.getoption("evaluator_output")
        if output:
            return Path(self._config.invocation_params.dir, output)
        return (base.parent if hasattr(self._config, "workerinput") else base) / "evaluator"


class SharedBatch:
    """The batch of one marker, in one process. One of several processes runs it; the others read
    its results.
    """

    def __init__(
        self,
        runs: Runs,
        mark: pytest.Mark,
        source: Path,
        folder: Path,
        wanted: Collection[str] | None,
    ) -> None:
        self._runs = runs
        self._mark = mark
        self._source = source
        self._folder = folder
        self._wanted = wanted
        self._result: BatchResult | None = None
        self._problem: EvaluatorError | None = None
        self._samples: dict[str, SampleResult] | None = None

    def run(self) -> dict[str, Any]:
        """Runs the batch the first time, and fails the test if it cannot run. Returns: what it
        used.
        """
        used: dict[str, Any] = {}
        if self._result is None and self._problem is None:
            try:
                self._result, used = self._run()
            except EvaluatorError as error:
                self._problem = error
        if self._problem is not None:
            fail(self._problem)
        return used

    def _run(self) -> tuple[BatchResult, dict[str, Any]]:
        batch = self._runs.prepare_mark(self._mark, self._source)
        if self._wanted is not None:
            batch = batch.only(self._wanted)
        with _locked(
            self._folder.with_name(f"{self._folder.name}.lock"), self._runs.run_id
        ) as has_run:
            stop = Stop()
            if has_run and (self._folder / "manifest.json").exists():
                # If another process of this test run left it incomplete, it stays so for all of
                # them.
                last = open_batch(self._folder).manifest
                if last["state"] != "complete":
                    stop.ask(last["state"], last["sessions"][-1]["reason"] or "")
            return self._runs.run(batch, self._folder, stop, resume=has_run)

    @property
    def result(self) -> BatchResult:
        if self._result is None:
            raise RuntimeError("the batch has not run")
        return self._result

    def sample(self, item: pytest.Item) -> SampleResult:
        """The result that the test `item` is about."""
        place = place_of(item)
        if not isinstance(place, tuple):
            pytest.fail(f"sample is for tests of one sample: {MARKER}(…, each=True)", pytrace=False)
        if self._samples is None:
            self._samples = {each.key: each for each in self.result.results()}
        found = self._samples.get(key_of(*place))
        if found is None:
            ended = self.result.ended
            pytest.fail(f"{place[0]} has no result: {ended.state}: {ended.reason}", pytrace=False)
        return found

    def expect_answer(self, item: pytest.Item) -> None:
        """For a test of one sample: an error of the sample is an error of the test; an unscored
        sample skips it.
        """
        if not isinstance(place_of(item), tuple):
            return
        found = self.sample(item)
        if found.verdict is Verdict.ERROR:
            pytest.fail(sample_report(found), pytrace=False)
        if found.verdict is Verdict.UNSCORED:
            pytest.skip("; ".join(line.strip() for line in sample_report(found).splitlines()[:2]))

    def check(self, item: pytest.Item) -> None:
        """Fails a test of one sample if the sample failed; any other unless the batch is complete
        and its thresholds are met.
        """
        if not isinstance(place_of(item), tuple):
            self._runs.check(item, self.result)
        elif self.sample(item).verdict is Verdict.FAILED:
            pytest.fail(sample_report(self.sample(item)), pytrace=False)


def fail(error: EvaluatorError) -> NoReturn:
    """Fails the test, or the collection, without a traceback."""
    pytest.fail(f"{MARKER}: {error}", pytrace=False)


async def _ids(rows: RowSource) -> list[str]:
    return [sample.id async for sample in rows]


def _parameters(plan: BatchPlan, samples: Sequence[str]) -> tuple[list[Place | None], list[str]]:
    templates = len({cell.template for cell, _ in plan.cells}) > 1
    variants = len({cell.variant for cell, _ in plan.cells}) > 1
    epochs = plan.options.epochs
    places: list[Place | None] = []
    names: list[str] = []
    for name in samples:
        for epoch in range(1, epochs + 1):
            for cell, _ in plan.cells:
                places.append((name, epoch, cell.template, cell.variant))
                parts = [name, cell.template if templates else "", cell.variant if variants else ""]
                names.append(
                    "-".join([part for part in parts if part] + [f"epoch{epoch}"] * (epochs > 1))
                )
    if plan.thresholds:
        places.append(None)
        names.append("thresholds")
    return places, names


def place_of(item: pytest.Item) -> Place | bool | None:
    """The subject of a test of `each`; None for the test of the thresholds, False for a test
    without `each`.
    """
    params: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return params.get(EACH, False)


def _owner(item: pytest.Item, mark: pytest.Mark) -> str:
    """The owner of a marker: a class, a module, a function, or one case of a parametrized
    function.
    """
    for node, each in item.iter_markers_with_node(MARKER):
        if each is mark and node is not item:
            return node.nodeid
    marks = getattr(getattr(item, "obj", None), "pytestmark", ())
    if any(each is mark for each in marks):
        return item.nodeid.removesuffix(item.name) + str(getattr(item, "originalname", item.name))
    return item.nodeid


def _slug(name: str) -> str:
    """A name for a test's folder: short, readable, unique."""
    word = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")[-60:].lstrip("-.")
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=4)
    return f"{word}-{digest.hexdigest()}"


@contextmanager
def _locked(path: Path, run_id: str) -> Generator[bool]:
    """Holds a lock. Yields whether another process of the same test run held it before."""
    disk.make_folders(path.parent)
    run = run_id.encode()
    with locked_file(path) as file:
        has_run = os.pread(file, len(run) + 1, 0) == run
        if not has_run:
            disk.ftruncate(file, 0)
            disk.pwrite(file, run, 0)
        yield has_run
