"""What another process needs to do a Worker's work: an evaluator's arguments, scorers, settings; packed for the way.

Python objects travel by cloudpickle. Functions and classes of scripts and of modules that are not installed travel
whole, with the globals that they use; what is installed has to be installed there too. Locks are made anew.
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

from evaluator.batch.work import Worker
from evaluator.errors import UsageError
from evaluator.interpreter.recovery import OnUnfinished
from evaluator.record.redact import Redactor

if TYPE_CHECKING:
    from evaluator.handler.config import HandlerConfig

# Where models are, and which; keys and tokens are found as a Redactor finds them.
_SETTING = re.compile(r"EVALUATOR_\w+|LITELLM_\w+|\w+_(?:BASE|BASE_URL|API_BASE|ENDPOINT|API_VERSION)")
_LOCKS = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Packed arguments by name, packed scorers, and what is plain. `tasks` is the folder of task files where the
    batch is; `cache` the cache's file; `variables` what the environment has to hold."""

    arguments: Mapping[str, bytes]
    scorers: Sequence[bytes]
    count_as_failed: Sequence[str]
    unfinished: OnUnfinished
    tasks: str
    cache: str | None
    variables: Mapping[str, str]


def make_recipe(worker: Worker, also: Iterable[str] = ()) -> Recipe:
    """The recipe of `worker`. `also` names further environment variables.

    Raises: UsageError, for what cannot be packed, by name.
    """
    evaluator = worker.evaluator
    store = evaluator.services.store
    if store is None:
        raise UsageError("a batch on several nodes needs a folder of task files")
    arguments = {
        name: packed(value, f"the evaluator's {name}") for name, value in evaluator.made_of.items() if value is not None
    }
    scorers = [packed(scorer, f"the scorer {scorer.name}") for scorer in worker.scorers]
    cache = None if evaluator.cache is None else os.path.abspath(evaluator.cache.path)
    profiles = [*evaluator.services.profiles.values(), evaluator.services.default_profile]
    return Recipe(
        arguments, scorers, tuple(worker.count_as_failed), worker.unfinished, os.path.abspath(store.root), cache,
        dict(_variables(profiles, also)),
    )  # fmt: skip


def packed(value: Any, what: str) -> bytes:
    """`value` as bytes that `pickle.loads` reads.

    Raises: UsageError, which names `what` cannot be packed.
    """
    cloudpickle: Any = import_module("ray.cloudpickle")
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
        why = f"{type(error).__name__}: {error}"
        raise UsageError(f"{what} cannot be taken to another process: {why}; give one that can be pickled") from error
    finally:
        for module in added:
            if module.__name__ not in known:
                cloudpickle.unregister_pickle_by_value(module)
    return buffer.getvalue()


def _is_installed(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == "__main__" or module.__name__.partition(".")[0] == __name__.partition(".")[0]:
        return True
    path = Path(file).resolve()
    homes = {Path(place).resolve() for name, place in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))}
    return any(home in path.parents for home in homes)


def _variables(profiles: Iterable[HandlerConfig], also: Iterable[str]) -> Iterator[tuple[str, str]]:
    named = set(also)
    for profile in profiles:
        named.add(profile.api_key_env or "")
        named.update(name for server in profile.mcp for name in server.variables())
    for name, value in os.environ.items():
        is_secret = Redactor.from_environment({name: value}).suspects(value)
        if (is_secret or name in named or _SETTING.fullmatch(name)) and not name.startswith("RAY_"):
            yield name, value
