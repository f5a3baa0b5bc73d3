"""A Host: the process on a node that performs work, many samples at once, in an event loop of its
own.

It decides nothing: work arrives when it may start, and each call acquires its permit from the
batch's one limiter. Its messages are fetched with `listen`, all at once, so that many of them share
a round trip.

A Recipe: everything that another process needs to make the same Worker, pickled.

Python objects are sent with cloudpickle. Functions and classes of scripts and of modules that are
not installed are sent by value, with the globals that they use; installed packages have to be
installed there too. Locks are replaced by new ones.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import io
import os
import pickle
import platform
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from evaluator.batch.engines.base import RemoteLimiter
from evaluator.batch.engines.packing import Job, ResultPacker, unpack_jobs
from evaluator.batch.engines.taskfiles import OwnFolder, Probe
from evaluator.batch.records import Limited
from evaluator.batch.scorers.contract import exception_text
from evaluator.batch.summary.rows import ResultRows
from evaluator.batch.work import Worker
from evaluator.batch.work_items import WorkResult
from evaluator.errors import ConfigurationError, EvaluatorError, UsageError
from evaluator.files.pinned_code import PinnedCode
from evaluator.files.project_code import Guard, guard_process, guarded_import, process_guards
from evaluator.interpreter.background import NoBackground
from evaluator.interpreter.recovery import OnUnfinished
from evaluator.lazy_dataclass import frozen
from evaluator.processes.concurrency import cancel_all
from evaluator.record.redact import Redactor
from evaluator.record.store import TaskStore
from evaluator.store.owners import Owner, current_owner

if TYPE_CHECKING:
    from evaluator.handler.config import HandlerConfig
    from evaluator.interpreter.evaluator import Evaluator

# Addresses and names of models. Keys and tokens are found as a Redactor finds them.
_SETTING = re.compile(
    r"EVALUATOR_\w+|LITELLM_\w+|\w+_(?:BASE|BASE_URL|API_BASE|ENDPOINT|API_VERSION)"
)
_LOCKS = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}


@frozen
class EvaluatorRecipe:
    """`arguments`: pickled arguments of the Evaluator, by name. `variables`: environment variables
    to set. `folder`: where relative paths of scorers and tools begin. `machine`: that of the
    caller. `guards`: those in force for this program's code.
    `code` is what it is now, so that no process that starts later imports what a task has written.
    """

    arguments: Mapping[str, bytes]
    variables: Mapping[str, str]
    folder: str
    machine: str
    guards: Sequence[Guard]
    code: PinnedCode

    def enter(self, notice: Callable[[str], None]) -> dict[str, Any]:
        """Sets the variables, the guards and the folder of this process. Returns: the arguments."""
        os.environ.update(self.variables)
        guard_process(self.guards)
        try:
            os.chdir(self.folder)
        except OSError as error:
            notice(
                f"{self.folder} cannot be entered ({error.strerror}); relative paths begin in "
                f"{os.getcwd()}"
            )
        with guarded_import(self.code):
            return {name: pickle.loads(value) for name, value in self.arguments.items()}


@frozen
class Recipe:
    """`scorers`: pickled. `versions`: of the scorers, by name. `tasks`: the batch's folder of task
    files; `is_packed`: they are written to segments. `cache`: the file of the cache.
    """

    evaluator: EvaluatorRecipe
    scorers: Sequence[bytes]
    versions: Mapping[str, str]
    count_as_failed: Sequence[str]
    limited: Limited
    unfinished: OnUnfinished
    repair: bool
    cluster: str | None
    group_by: str | None
    tasks: str
    is_packed: bool
    cache: str | None


def evaluator_recipe(
    evaluator: Evaluator, variables: Mapping[str, str], without: Collection[str] = ()
) -> EvaluatorRecipe:
    """The recipe of `evaluator`, except the arguments `without`.

    Raises: UsageError, with the name of an object that cannot be pickled.
    """
    return EvaluatorRecipe(
        {
            name: pack(value, f"the evaluator's {name}")
            for name, value in evaluator.init_args.items()
            if value is not None and name not in without
        },
        variables,
        folder=os.getcwd(),
        machine=current_owner().boot_id,
        guards=process_guards(),
        code=evaluator.services.code.renewed(),
    )


def make_recipe(worker: Worker, also: Iterable[str] = ()) -> tuple[Recipe, TaskStore]:
    """The recipe of `worker`, and the store of its task files. `also` names further environment
    variables.

    Raises: UsageError, with the name of an object that cannot be pickled.
    """
    evaluator = worker.evaluator
    store = evaluator.services.store
    if store is None:
        raise UsageError("a batch on several processes needs a folder of task files")
    scorers = [pack(scorer, f"the scorer {scorer.name}") for scorer in worker.scorers]
    if evaluator.cache is None:
        cache = None
    else:
        cache = os.path.abspath(evaluator.cache.path)
    profiles = [*evaluator.services.profiles.values(), evaluator.services.default_profile]
    recipe = Recipe(
        evaluator_recipe(evaluator, dict(_variables(profiles, also))),
        scorers,
        versions=dict(worker.versions),
        count_as_failed=tuple(worker.count_as_failed),
        limited=worker.limited,
        unfinished=worker.unfinished,
        repair=worker.repair,
        cluster=worker.cluster,
        group_by=worker.group_by,
        tasks=os.path.abspath(store.root),
        is_packed=store.is_packed,
        cache=cache,
    )
    return recipe, store


def pack(value: Any, what: str) -> bytes:
    """`value` as bytes that `pickle.loads` reads.

    Raises: UsageError, if it cannot be pickled, with `what` it is.
    """
    cloudpickle: Any = import_module("cloudpickle")
    added: list[ModuleType] = []

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if type(obj) in _LOCKS:
                return _LOCKS[type(obj)], ()
            if isinstance(obj, (FunctionType, type)):
                module = sys.modules.get(obj.__module__)
                if module is not None and not _is_installed(module) and module not in added:
                    added.append(module)
                    cloudpickle.register_pickle_by_value(module)
            return super().reducer_override(obj)

    known = cloudpickle.list_registry_pickle_by_value()
    buffer = io.BytesIO()
    try:
        Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{what} cannot be sent to another process: {reason}; give one that can be pickled"
        ) from error
    finally:
        for module in added:
            if module.__name__ not in known:
                cloudpickle.unregister_pickle_by_value(module)
    return buffer.getvalue()


def _is_installed(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if (
        file is None
        or module.__name__ == "__main__"
        or module.__name__.partition(".")[0] == __name__.partition(".")[0]
    ):
        return True
    path = Path(file).resolve()
    homes = {
        Path(place).resolve()
        for name, place in sysconfig.get_paths().items()
        if name.endswith(("lib", "stdlib"))
    }
    return any(home in path.parents for home in homes)


def _variables(profiles: Iterable[HandlerConfig], also: Iterable[str]) -> Iterator[tuple[str, str]]:
    named = set(also)
    for profile in profiles:
        named.update(profile.secret_variables())
    for name, value in os.environ.items():
        is_secret = Redactor.from_environment({name: value}).suspects(value)
        if (is_secret or name in named or _SETTING.fullmatch(name)) and not name.startswith("RAY_"):
            yield name, value


VERSIONS = (
    f"evaluator {importlib.metadata.version('evaluator')}, Python "
    f"{'.'.join(platform.python_version_tuple()[:2])}"
)

_MOMENT_S = 0.03

ELSEWHERE = (
    "a task of a batch cannot start background tasks on another machine than that of the batch; "
    "take the tools for background tasks out of the template and the profile, or run the batch "
    "with the engine local or processes"
)


@frozen
class Opened:
    """`shares_folder`: the process sees the batch's folder, and its locks. `owner` is the process,
    as its task files name it.
    """

    shares_folder: bool
    owner: Owner


class Host:
    """Takes `work`, `acquired`, `rejected`, `recall`, `budget_ended`, `sign`; sends `done`,
    `pending`, `files`, `raised`, `acquire`, `renew`, `release`, `notice`, and `sign` as an answer.
    """

    def __init__(self) -> None:
        self._outbox: list[tuple[Any, ...]] = []
        self._results: ResultPacker | None = None
        self._renewed: list[tuple[Any, ...]] = []
        self._has_messages = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._limiter = RemoteLimiter(self._send)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._unrecorded: dict[str, int] = {}
        self._counted: dict[str, int] = {}
        self._worker: Worker | None = None
        self._folder: OwnFolder | None = None
        self._budget_ended: str | None = None
        self._is_closing = False

    async def versions(self) -> str:
        return VERSIONS

    async def open(
        self, recipe: bytes, probe: Probe | None, first_id: int
    ) -> Opened | EvaluatorError:
        """Prepares the worker. Task files go into the batch's folder if `probe` is visible there,
        else into a folder of this node, with ids from `first_id`. An error is returned, because a
        raised one would arrive wrapped.
        """
        try:
            return self._open(pickle.loads(recipe), probe, first_id=first_id)
        except Exception as error:
            return portable_error(error)

    def _open(self, recipe: Recipe, probe: Probe | None, first_id: int) -> Opened:
        from evaluator.interpreter.evaluator import Evaluator

        arguments = recipe.evaluator.enter(self._notice)
        if "background" in arguments and recipe.evaluator.machine != current_owner().boot_id:
            # The database of their states cannot be shared with another machine.
            arguments["background"] = NoBackground(ELSEWHERE)
        code = recipe.evaluator.code
        evaluator = Evaluator(**arguments, tasks_dir=None, notice=self._notice).with_code(code)
        with guarded_import(code):
            scorers = [pickle.loads(scorer) for scorer in recipe.scorers]
        shares_folder = probe is not None and probe.is_visible()
        if shares_folder:
            self._folder = None
        else:
            self._folder = OwnFolder(first_id)
        if self._folder is None:
            tasks = recipe.tasks
        else:
            tasks = self._folder.path
        self._worker = Worker(
            evaluator.with_limiter(
                self._limiter,
                tasks,
                recipe.cache,
                is_packed=recipe.is_packed and shares_folder,
            ),
            scorers,
            budget_ended=lambda: self._budget_ended,
            versions=recipe.versions,
            count_as_failed=recipe.count_as_failed,
            limited=recipe.limited,
            unrecorded=self._unrecorded,
            counted=self._counted,
            unfinished=recipe.unfinished,
            repair=recipe.repair,
        )
        store = self._worker.evaluator.services.store
        self._results = ResultPacker(
            None if store is None else store.redactor,
            ResultRows(recipe.cluster, recipe.group_by),
        )
        return Opened(shares_folder, current_owner())

    async def post(self, messages: bytes) -> None:
        """Takes messages: a pickled list."""
        for kind, *rest in pickle.loads(messages):
            if kind == "work":
                for job in unpack_jobs(rest[0]):
                    self._tasks[job.number] = asyncio.ensure_future(self._perform(job))
            elif kind in ("acquired", "rejected"):
                self._limiter.answer(*rest)
            elif kind == "recall":
                self._limiter.recall()
            elif kind == "sign":
                self._send(("sign",))
            else:
                self._budget_ended = rest[0]

    async def listen(self) -> bytes:
        """The messages to send, as soon as there are enough of them: a pickled list."""
        await self._has_messages.wait()
        self._has_messages.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # What ended in a place comes before the message that gives the place back.
        messages: list[tuple[Any, ...]] = []
        if self._renewed:
            messages.append(("renew", self._renewed))
        messages += self._outbox
        if self._results:
            messages.append(("done", *self._results.take()))
        self._renewed = []
        self._outbox = []
        return pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)

    async def close(self) -> None:
        """Cancels everything in flight. Returns when it has ended and its task files are
        complete.
        """
        self._is_closing = True
        await cancel_all(self._tasks.values())
        if self._worker is not None:
            await self._worker.evaluator.aclose()
        if self._folder is not None:
            self._folder.remove()

    async def _perform(self, job: Job) -> None:
        number = job.number
        self._unrecorded.update(job.unrecorded)
        self._counted.update(job.counted)
        try:
            if self._worker is None:
                raise RuntimeError("work arrived before the process was opened")
            done = await self._worker.perform(job.work)
            self._end(number, self._worker, done=job.with_unseen(done))
        except BaseException as error:
            if self._is_closing:
                raise
            # The caller learns of it, whatever ended the sample.
            self._send(("raised", number, portable_error(error)))
        finally:
            for label in job.unrecorded:
                self._unrecorded.pop(label, None)
            for label in job.counted:
                self._counted.pop(label, None)
            self._tasks.pop(number, None)

    def _end(self, number: int, worker: Worker, done: WorkResult) -> None:
        """Keeps the result until it is sent, or sends why there is none."""
        store = worker.evaluator.services.store
        if self._folder is not None and store is not None:
            files = self._folder.take_files(store, done.work)
            if files:
                self._send(("files", files))
        if done.result is None or self._results is None:
            self._send(("pending", number, done.pending))
            return
        try:
            self._results.add(number, done.work, done.result)
        except Exception as error:
            raise UsageError(
                f"sample {done.work.sample.id!r}: its result cannot be written: {error}"
            ) from error
        self._send_soon(len(self._results))

    def _notice(self, line: str) -> None:
        self._send(("notice", line))

    def _send(self, message: tuple[Any, ...]) -> None:
        """Queues a message."""
        if message[0] == "renew":
            self._renewed.append(message[1:])
            # The sample of most calls ends in one of the next turns of the event loop.
            self._send_soon(0)
        else:
            self._outbox.append(message)
            self._has_messages.set()

    def _send_soon(self, waiting: int) -> None:
        """The end of a sample or a call is not urgent: it is sent with the next message, when a
        quarter of the samples in flight have ended, or after a moment.
        """
        if waiting > len(self._tasks) // 4:
            self._has_messages.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_MOMENT_S, self._has_messages.set)


def portable_error(error: BaseException) -> EvaluatorError:
    """`error`, if it is one of ours and can be pickled; else one with the same message."""
    if not isinstance(error, EvaluatorError):
        return ConfigurationError(exception_text(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return EvaluatorError(str(error))
    return error
