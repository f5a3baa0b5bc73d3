"""Batches that tests run: in which folder, how often (once a marker, in all processes), and what a test makes of it."""

from __future__ import annotations

import fcntl
import re
import secrets
import shlex
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from evaluator.batch.plan import BatchPlan
from evaluator.batch.reading import open_batch
from evaluator.batch.records import SampleResult, Verdict, key_of
from evaluator.batch.rows import RowSource
from evaluator.batch.run import BatchResult, run_plan
from evaluator.batch.session import Stop
from evaluator.errors import EvaluatorError, UsageError
from evaluator.interpreter.sync import run_sync
from evaluator.pytest_plugin import EACH, MARKER
from evaluator.pytest_plugin.ready import Ready, make_ready
from evaluator.pytest_plugin.report import sample_report, why_not

Place = tuple[str, int, str, str]
"""Of one result: the sample's id, epoch, template, variant."""


class Runs:
    """The batches of one pytest process. `run_id` is one for all processes of a test run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        told: Mapping[str, Any] = getattr(config, "workerinput", {})
        self.run_id: str = told.get("testrunuid") or secrets.token_hex(16)
        self._ready: dict[int, tuple[pytest.Mark, Ready]] = {}
        self._shared: dict[str, Shared] = {}
        self._wanted: dict[int, set[str] | None] = {}
        self._folders: set[Path] = set()

    # -- markers -------------------------------------------------------------------------------------------------

    def cells(self, mark: pytest.Mark, folder: Path) -> tuple[list[Place | None], list[str]]:
        """What each test of a marker with `each` is about, and how it is called; None is the one about the gates.

        Fails the collection for a batch that cannot be made ready, or whose rows can be read only once.
        """
        try:
            plan = self.of_mark(mark, folder).plan
            if not plan.rows.is_repeatable:
                raise UsageError("rows of each=True are read twice: give a file, a list or a frame, not an iterator")
            samples = run_sync(_ids(plan.rows))
        except EvaluatorError as error:
            problem = f"{MARKER}: {error}"
        else:
            return _tests_of(plan, samples)
        pytest.fail(problem, pytrace=False)

    def note_selected(self, items: Sequence[pytest.Item]) -> None:
        """Which samples the tests to come are about: all, where one is about the whole batch."""
        for item in items:
            mark = item.get_closest_marker(MARKER)
            if mark is None:
                continue
            place = place_of(item)
            if not isinstance(place, tuple):
                self._wanted[id(mark)] = None
                continue
            wanted = self._wanted.setdefault(id(mark), set())
            if wanted is not None:
                wanted.add(place[0])

    def shared(self, item: pytest.Item, mark: pytest.Mark, base: Path) -> Shared:
        """The batch of `mark`, the same for each test that has it."""
        name = _slug(_owner(item, mark))
        if name not in self._shared:
            self._shared[name] = Shared(
                self, mark, item.path.parent, self._root(base) / name, self._wanted.get(id(mark))
            )
        return self._shared[name]

    def of_mark(self, mark: pytest.Mark, folder: Path) -> Ready:
        """Raises: EvaluatorError, for what cannot be used."""
        if id(mark) not in self._ready:
            options = {name: value for name, value in mark.kwargs.items() if name != "each"}
            if len(mark.args) > 2:
                raise UsageError("it takes a definition or templates, rows, and options by name")
            what, rows = (*mark.args, None, None)[:2]
            rows = options.pop("rows", rows)
            self._ready[id(mark)] = mark, make_ready(self._config, what, rows, options, folder)
        return self._ready[id(mark)][1]

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(
        self, item: pytest.Item, what: Any, rows: Any, options: Mapping[str, Any], base: Path
    ) -> tuple[BatchResult, dict[str, Any]]:
        """A batch of its own, in a folder of its own; and what it used."""
        __tracebackhide__ = True
        root = self._root(base) if self._config.getoption("evaluator_output") else base / "evaluator"
        first = folder = root / _slug(item.nodeid)
        number = 1
        while folder in self._folders:
            number += 1
            folder = first.with_name(f"{first.name}-{number}")
        self._folders.add(folder)
        try:
            return self.run(make_ready(self._config, what, rows, options, item.path.parent), folder, Stop())
        except EvaluatorError as error:
            problem = f"{MARKER}: {error}"
        pytest.fail(problem, pytrace=False)

    # -- both ----------------------------------------------------------------------------------------------------

    def run(
        self, ready: Ready, folder: Path, stop: Stop, *, resume: bool = False
    ) -> tuple[BatchResult, dict[str, Any]]:
        """Raises: EvaluatorError, if it cannot be run."""
        resume = resume or bool(self._config.getoption("evaluator_resume"))
        if not resume and (folder / "manifest.json").exists():
            raise UsageError(
                f"{folder}: there is a batch already; --evaluator-resume goes on with it, or give another "
                "--evaluator-output"
            )
        settings = replace(ready.settings, resume=resume, stop=stop)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            result = run_sync(run_plan(ready.evaluator, ready.plan, folder, settings))
        finally:
            if ready.is_own:
                ready.evaluator.close()
        usage, ended = result.ended.snapshot.usage, result.ended
        return result, {
            "folder": str(folder), "samples": ended.ran, "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens, "cost_usd": usage.cost_usd,
            "simulated": ready.is_simulated,
        }  # fmt: skip

    def check(self, item: pytest.Item, result: BatchResult) -> None:
        """Fails the test unless the batch is complete and its gates hold."""
        __tracebackhide__ = True
        output = shlex.quote(str(result.folder.parent))
        again = f"pytest {shlex.quote(item.nodeid)} --evaluator-output {output} --evaluator-resume"
        problem = why_not(result, again)
        if problem is not None:
            pytest.fail(problem, pytrace=False)

    def _root(self, base: Path) -> Path:
        output = self._config.getoption("evaluator_output")
        if output:
            return Path(self._config.invocation_params.dir, output)
        return (base.parent if hasattr(self._config, "workerinput") else base) / "evaluator"


class Shared:
    """The batch of one marker, in one process. Of several processes one runs it; the others find it done."""

    def __init__(
        self, runs: Runs, mark: pytest.Mark, source: Path, folder: Path, wanted: Collection[str] | None
    ) -> None:
        self._runs, self._mark, self._source, self._folder, self._wanted = runs, mark, source, folder, wanted
        self._result: BatchResult | None = None
        self._problem: str | None = None
        self._samples: dict[str, SampleResult] | None = None

    def run(self) -> dict[str, Any]:
        """What it used, the first time; the test fails where it cannot be run."""
        spent: dict[str, Any] = {}
        if self._result is None and self._problem is None:
            try:
                spent = self._run()
            except EvaluatorError as error:
                self._problem = f"{MARKER}: {error}"
        if self._problem is not None:
            pytest.fail(self._problem, pytrace=False)
        return spent

    def _run(self) -> dict[str, Any]:
        ready = self._runs.of_mark(self._mark, self._source)
        if self._wanted is not None:
            ready = ready.only(self._wanted)
        with _alone(self._folder.with_name(f"{self._folder.name}.lock"), self._runs.run_id) as is_begun:
            stop = Stop()
            if is_begun and (self._folder / "manifest.json").exists():
                # What another process of this test run left undone, it left so for all.
                last = open_batch(self._folder).manifest
                if last["state"] != "complete":
                    stop.ask(last["state"], last["sessions"][-1]["reason"] or "")
            self._result, spent = self._runs.run(ready, self._folder, stop, resume=is_begun)
        return spent

    @property
    def result(self) -> BatchResult:
        assert self._result is not None
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

    def is_about_gates(self, item: pytest.Item) -> bool:
        """Whether `item` is the test of `each` that is about no sample."""
        return place_of(item) is None

    def expect_answer(self, item: pytest.Item) -> None:
        """For a test of one sample: an error of it is an error of the test, and nothing to judge is no failure."""
        if not isinstance(place_of(item), tuple):
            return
        found = self.sample(item)
        if found.verdict is Verdict.ERROR:
            pytest.fail(sample_report(found), pytrace=False)
        if found.verdict is Verdict.UNSCORED:
            pytest.skip("; ".join(line.strip() for line in sample_report(found).splitlines()[:2]))

    def check(self, item: pytest.Item) -> None:
        """Fails a test of one sample if that failed, any other unless the whole is complete and its gates hold."""
        if not isinstance(place_of(item), tuple):
            self._runs.check(item, self.result)
        elif self.sample(item).verdict is Verdict.FAILED:
            pytest.fail(sample_report(self.sample(item)), pytrace=False)


async def _ids(rows: RowSource) -> list[str]:
    return [sample.id async for sample in rows]


def _tests_of(plan: BatchPlan, samples: Sequence[str]) -> tuple[list[Place | None], list[str]]:
    templates = len({cell.template for cell, _ in plan.cells}) > 1
    variants = len({cell.variant for cell, _ in plan.cells}) > 1
    places: list[Place | None] = []
    names: list[str] = []
    for name in samples:
        for epoch in range(1, plan.epochs + 1):
            for cell, _ in plan.cells:
                places.append((name, epoch, cell.template, cell.variant))
                parts = [name, cell.template if templates else "", cell.variant if variants else ""]
                names.append("-".join([part for part in parts if part] + [f"epoch{epoch}"] * (plan.epochs > 1)))
    if plan.gates:
        places.append(None)
        names.append("gates")
    return places, names


def place_of(item: pytest.Item) -> Place | bool | None:
    """What a test of `each` is about; None for the one about the gates, False for a test that is not of `each`."""
    params: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return params.get(EACH, False)


def _owner(item: pytest.Item, mark: pytest.Mark) -> str:
    """What a marker stands at: a class, a module, a function, or one case of a parametrised one."""
    for node, each in item.iter_markers_with_node(MARKER):
        if each is mark and node is not item:
            return node.nodeid
    marks = getattr(getattr(item, "obj", None), "pytestmark", ())
    if any(each is mark for each in marks):
        return item.nodeid.removesuffix(item.name) + str(getattr(item, "originalname", item.name))
    return item.nodeid


def _slug(name: str) -> str:
    """A folder's name for a test: short, readable, its own."""
    word = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")[-60:].lstrip("-.")
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=4)
    return f"{word}-{digest.hexdigest()}"


@contextmanager
def _alone(path: Path, run_id: str) -> Generator[bool]:
    """Nobody else is in here; whether somebody of the same test run was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        is_begun = file.read() == run_id
        if not is_begun:
            file.truncate(0)
            file.write(run_id)
            file.flush()
        yield is_begun
