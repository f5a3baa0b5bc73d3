"""A Recipe: everything that another process needs to make the same Worker, pickled.

Python objects are sent with cloudpickle. Functions and classes of scripts and of modules that are
not installed are sent by value, with the globals that they use; installed packages have to be
installed there too. Locks are replaced by new ones.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from evaluator.batch.records import Limited
from evaluator.batch.work import Worker
from evaluator.errors import UsageError
from evaluator.files.project_code import CodeGuard, process_guards
from evaluator.interpreter.recovery import OnUnfinished
from evaluator.record.owner import current_owner
from evaluator.record.redact import Redactor
from evaluator.record.store import TaskStore

if TYPE_CHECKING:
    from evaluator.handler.config import HandlerConfig

# Addresses and names of models. Keys and tokens are found as a Redactor finds them.
_SETTING = re.compile(
    r"EVALUATOR_\w+|LITELLM_\w+|\w+_(?:BASE|BASE_URL|API_BASE|ENDPOINT|API_VERSION)"
)
_LOCKS = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}


@dataclass(frozen=True, slots=True)
class Recipe:
    """`arguments`: pickled arguments of the Evaluator, by name. `scorers`: pickled. `tasks`: the
    batch's folder of task files; `is_packed`: they are written to segments. `cache`: the file of
    the cache. `variables`: environment variables to set. `folder`: where relative paths of scorers
    and tools begin. `machine`: that of the batch. `guards`: those in force for this program's code.
    """

    arguments: Mapping[str, bytes]
    scorers: Sequence[bytes]
    count_as_failed: Sequence[str]
    limited: Limited
    unfinished: OnUnfinished
    repair: bool
    tasks: str
    is_packed: bool
    cache: str | None
    variables: Mapping[str, str]
    folder: str
    machine: str
    guards: Sequence[CodeGuard]


def make_recipe(worker: Worker, also: Iterable[str] = ()) -> tuple[Recipe, TaskStore]:
    """The recipe of `worker`, and the store of its task files. `also` names further environment
    variables.

    Raises: UsageError, with the name of an object that cannot be pickled.
    """
    evaluator = worker.evaluator
    store = evaluator.services.store
    if store is None:
        raise UsageError("a batch on several processes needs a folder of task files")
    arguments = {
        name: pack(value, f"the evaluator's {name}")
        for name, value in evaluator.init_args.items()
        if value is not None
    }
    scorers = [pack(scorer, f"the scorer {scorer.name}") for scorer in worker.scorers]
    if evaluator.cache is None:
        cache = None
    else:
        cache = os.path.abspath(evaluator.cache.path)
    profiles = [*evaluator.services.profiles.values(), evaluator.services.default_profile]
    recipe = Recipe(
        arguments,
        scorers,
        count_as_failed=tuple(worker.count_as_failed),
        limited=worker.limited,
        unfinished=worker.unfinished,
        repair=worker.repair,
        tasks=os.path.abspath(store.root),
        is_packed=store.is_packed,
        cache=cache,
        variables=dict(_variables(profiles, also)),
        folder=os.getcwd(),
        machine=current_owner().boot_id,
        guards=process_guards(),
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
