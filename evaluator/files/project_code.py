"""Imports: the code of a project, large packages, and what a user names as `module:name`.

Python code of a project: which files an import runs, and a guard that runs only those that the
user has allowed.

A permission for code is for the content of each file. `code_files` finds them without running any:
the file that is named, and those below the project that it imports, also inside functions. What
import statements do not show is found by a `CodeGuard` when it is imported: the guard reads each
file once, and what it has checked is what is compiled. Compiled files (`__pycache__`) are not read,
because they may hold something else than their source.

Installed packages are not a project's code, also if the environment they are in is below it. Files
are read up to a bound; larger ones are refused.

Imports of large and optional packages, which leave the process's environment as it is.

A package may change `os.environ` while it is imported. LiteLLM does: it reads the `.env` file of
the nearest folder above its own one, which is the project's if that has a virtual environment in
it. Hosts, proxies and CA files would then be the project's choice. All such imports are here.

Imports what a user names as `module:name` or `file.py:name`.

A module is looked up as Python does, then in the current folder. Files are loaded from their
source, never from a compiled file.
"""

from __future__ import annotations

import ast
import errno
import importlib
import os
import site
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from threading import RLock
from types import CodeType, MappingProxyType, ModuleType
from typing import Any, Protocol

from evaluator.errors import ConfigurationError, MissingExtra
from evaluator.files.open_below import read_named
from evaluator.files.trust import ProjectFile, is_allowed
from evaluator.lazy_dataclass import frozen

MAX_SOURCE_BYTES = 4_000_000
"""A larger source file of a project is not run."""
_MAX_COMPILED_BYTES = 256_000_000
_NAMES = ("Python code, which is imported",)


class Guard(Protocol):
    """Decides which files of code are imported."""

    def covers(self, path: str) -> bool:
        """Whether it decides on this file."""
        ...

    def beside(self, path: str) -> Guard:
        """The guard for a file that is imported by its path, and for the files beside it."""
        ...

    def check(self, path: str, data: bytes) -> None:
        """Raises: ConfigurationError, for code that is refused."""
        ...


@frozen
class CodeGuard:
    """Refuses modules below `folder` unless the user has allowed their present content, or `known`
    has it.
    """

    folder: str
    known: frozenset[ProjectFile] = frozenset()

    def covers(self, path: str) -> bool:
        return is_below(path, self.folder)

    def beside(self, path: str) -> CodeGuard:
        return replace(self, folder=os.path.dirname(path))

    def check(self, path: str, data: bytes) -> None:
        """Raises: ConfigurationError, for code of the project that is not allowed."""
        if not self.covers(path):
            return
        file = _code_file(self.folder, path, data)
        if file not in self.known and not is_allowed(file):
            raise file.refusal()


class CodeLoader(SourceFileLoader):
    """Loads a module from its source only, which is read once, and checked by the guards in
    force.
    """

    def get_code(self, fullname: str) -> CodeType:
        data = _read_bounded(self.path, MAX_SOURCE_BYTES)
        _check(self.path, data)
        return self.source_to_code(data, self.path)


class _GuardedFinder:
    """Finds modules as Python does, and gives those below a guarded folder to a CodeLoader."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        guards = _guards()
        if not guards:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or spec.origin is None:
            return None
        if not any(guard.covers(spec.origin) for guard in guards):
            return spec
        if type(spec.loader) is SourceFileLoader:
            spec.loader = CodeLoader(name, spec.origin)
            spec.cached = None
        else:
            _check(spec.origin, _read(spec.origin, _MAX_COMPILED_BYTES))
        return spec


_for_process: list[Guard] = []
_for_import: ContextVar[tuple[Guard, ...]] = ContextVar("evaluator_code_guards", default=())


def guard_process(guards: Iterable[Guard]) -> None:
    """Puts the guards in force until this process ends, for every import of it."""
    _install()
    _for_process.extend(guard for guard in guards if guard not in _for_process)


def process_guards() -> tuple[Guard, ...]:
    """The guards of this process, for its worker processes."""
    return tuple(_for_process)


class guarded_import:
    """Inside, `guards` are in force, too, for the imports of this thread."""

    __slots__ = ("_guards", "_token")

    def __init__(self, *guards: Guard) -> None:
        self._guards = guards
        self._token: Token[tuple[Guard, ...]] | None = None

    def __enter__(self) -> None:
        if self._guards:
            _install()
            self._token = _for_import.set((*_for_import.get(), *self._guards))

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _for_import.reset(self._token)


def code_files(place: str, folder: str | Path, *, refuses_large: bool = True) -> list[ProjectFile]:
    """The files below `folder` that importing `place` runs, as far as their import statements show
    it; `place` is a module or the path of a file.

    Raises: ConfigurationError, for a file that is too large to be imported; without `refuses_large`
    it is left out.
    """
    root = os.path.realpath(folder)
    searched = [root, *_searched(root)]
    if place.endswith(".py"):
        pending = [os.path.join(root, place)]
    else:
        pending = list(_module_files(place, searched))
    found: dict[str, ProjectFile] = {}
    seen: set[tuple[str, str]] = set()
    while pending:
        path = os.path.abspath(pending.pop())
        if path in found or not os.path.isfile(path) or _is_installed(path):
            continue
        try:
            data = _read(path, MAX_SOURCE_BYTES)
        except ConfigurationError:
            if refuses_large:
                raise
            continue
        file = found[path] = _code_file(root, path, data)
        for level, name in _import_statements(file.sha256, data):
            if level:
                bases = [os.path.normpath(os.path.join(path, *[os.pardir] * level))]
            else:
                bases = [*searched, os.path.dirname(path)]
            new = [base for base in bases if (base, name) not in seen]
            seen.update((base, name) for base in new)
            files = [*_module_files(name, new)]
            if level and new:
                files.append(os.path.join(bases[0], "__init__.py"))
            pending += [each for each in files if is_below(each, root)]
    return list(found.values())


def _code_file(folder: str, path: str, data: bytes) -> ProjectFile:
    return ProjectFile.of(folder, path, content=data, names=_NAMES)


_statements: dict[str, tuple[tuple[int, str], ...]] = {}
"""What import statements of sources name, by the hash of the source."""


def _import_statements(sha256: str, data: bytes) -> tuple[tuple[int, str], ...]:
    """The modules that the import statements in a source may run, each with the number of its
    leading dots.
    """
    names = _statements.get(sha256)
    if names is None:
        names = _statements[sha256] = tuple(dict.fromkeys(_imported(data)))
    return names


def _imported(data: bytes) -> Iterator[tuple[int, str]]:
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # it cannot be imported either
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.level, ".".join(filter(None, (node.module, alias.name)))
        elif isinstance(node, ast.Call) and node.args:
            function = getattr(node.func, "attr", getattr(node.func, "id", None))
            argument = node.args[0]
            if function in ("import_module", "__import__") and isinstance(argument, ast.Constant):
                yield 0, str(argument.value)


def _module_files(name: str, places: Iterable[str]) -> Iterator[str]:
    """The files in one of `places` that importing the module runs: its packages, and itself."""
    parts = name.split(".")
    for place in places:
        for end in range(1, len(parts) + 1):
            stem = os.path.join(place, *parts[:end])
            yield from filter(os.path.isfile, (f"{stem}.py", os.path.join(stem, "__init__.py")))


def _searched(root: str) -> list[str]:
    """The folders below `root` in which Python looks for modules."""
    return [place for place in sys.path if place and is_below(os.path.join(place, "x"), root)]


def is_below(path: str, folder: str) -> bool:
    """Whether a file is a project's: below the folder, by its name or without links, and not
    installed.
    """
    start = os.path.join(os.path.realpath(folder), "")
    names = (os.path.abspath(path), os.path.realpath(path))
    return any(name.startswith(start) for name in names) and not _is_installed(path)


def _is_installed(path: str) -> bool:
    real = os.path.realpath(path)
    return any(real.startswith(place) for place in _installed())


def own_path_first() -> list[str]:
    """The places of `sys.path`, first those of the standard library, of installed packages and of
    this one: a process that a program starts while tasks write files takes its own modules from
    there, and not from the folder of the program.
    """
    own = os.path.realpath(Path(__file__).parents[2])

    def rank(place: str) -> int:
        if _is_installed(os.path.join(place, "x")):
            return 0
        return 1 if os.path.realpath(place) == own else 2

    return sorted((str(place) for place in sys.path), key=rank)


@lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    """The folders of the standard library, of installed packages, and of this one."""
    import sysconfig  # reads the whole configuration of Python

    names = ("stdlib", "platstdlib", "purelib", "platlib")
    places = [sysconfig.get_path(name) for name in names]
    places += [*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[1])]
    return tuple(os.path.join(os.path.realpath(place), "") for place in places)


def _guards() -> list[Guard]:
    return [*_for_process, *_for_import.get()]


def _check(path: str, data: bytes) -> None:
    for guard in _guards():
        guard.check(path, data)


def _read(path: str, max_bytes: int) -> bytes:
    """The content of a file; empty for what is not a file of its own, such as a module in a ZIP."""
    try:
        return _read_bounded(path, max_bytes)
    except OSError:
        return b""


def _read_bounded(path: str, max_bytes: int) -> bytes:
    """Raises: OSError, or ConfigurationError for a larger file."""
    try:
        return read_named(path, max_bytes)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        message = f"{path}: {error.strerror}, so it is not imported; move its data to another file"
        raise ConfigurationError(message) from error


def _install() -> None:
    if _GuardedFinder in sys.meta_path:
        return
    # Built-in modules, and finders that are before it on purpose, stay before it.
    if PathFinder in sys.meta_path:
        at = sys.meta_path.index(PathFinder)
    else:
        at = len(sys.meta_path)
    sys.meta_path.insert(at, _GuardedFinder)


# Read by packages while they are imported: no `.env`, no download, no report of use.
_WHILE_IMPORTING: Mapping[str, str] = MappingProxyType(
    {
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
)
_NOTHING: Mapping[str, str] = MappingProxyType({})
_lock = RLock()


def import_library(module: str, settings: Mapping[str, str] = _NOTHING) -> Any:
    """A module of an installed package; `os.environ` is the same before and after.

    `settings` are environment variables that only the import sees, in addition to those that every
    import sees.

    Raises: whatever importing it raises.
    """
    if module in sys.modules:
        return import_module(module)
    with _lock, _same_environment():
        os.environ.update(_WHILE_IMPORTING)
        os.environ.update(settings)
        return import_module(module)


def import_extra(module: str, extra: str, settings: Mapping[str, str] = _NOTHING) -> Any:
    """A module of an optional package, as `import_library`. Raises: MissingExtra, which names the
    `extra` to install.
    """
    try:
        return import_library(module, settings)
    except ImportError as error:
        raise MissingExtra(module.partition(".")[0].replace("_", "-"), extra) from error


@contextmanager
def _same_environment() -> Generator[None]:
    """Takes back all changes of `os.environ`."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value


FILE_NAMES: dict[str, str] = {}
"""The module names of imported files, which encode their paths, and the files' own names."""


def import_place(
    place: str, guard: CodeGuard | None = None, always: Iterable[Guard] = ()
) -> ModuleType:
    """The module called `place`, or the file, if it ends in `.py`. It is run once per process.

    `guard` is asked about what Python itself would not find, and those in `always` about all.

    Raises: whatever importing it raises; FileNotFoundError and ModuleNotFoundError, if there is
    none; ConfigurationError, for code that a guard refuses.
    """
    guards = [*always]
    if guard is not None:
        guards.append(guard)
    if place.endswith(".py"):
        path = Path(place).resolve()
        with guarded_import(*(each.beside(str(path)) for each in guards)):
            return _file_module(path)
    try:
        with guarded_import(*always):
            return importlib.import_module(place)
    except ModuleNotFoundError as error:
        top = place.partition(".")[0]
        here = os.getcwd()
        if (
            error.name != top
            or here in sys.path
            or not any(os.path.exists(f"{top}{end}") for end in ("", ".py"))
        ):
            raise
    with guarded_import(*guards):
        sys.path.insert(0, here)
        try:
            importlib.invalidate_caches()
            return importlib.import_module(place)
        finally:
            sys.path.remove(here)


def _file_module(path: Path) -> ModuleType:
    name = f"{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    import importlib.util

    loader = CodeLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python module")
    module = importlib.util.module_from_spec(spec)
    FILE_NAMES[name] = path.name
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
