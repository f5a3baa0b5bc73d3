"""The types that public signatures name, read from the source: annotations may name types that are not loaded."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

MODULES = (
    "evaluator",
    "evaluator.batch",
    "evaluator.batch.compare",
    "evaluator.batch.export",
    "evaluator.batch.rows",
    "evaluator.batch.scorers",
    "evaluator.batch.statistics",
    "evaluator.batch.summary",
    "evaluator.batch.thresholds",
    "evaluator.errors",
    "evaluator.errors.results",
    "evaluator.library",
    "evaluator.memory",
    "evaluator.nodes",
    "evaluator.output",
    "evaluator.queue",
    "evaluator.testing",
    "evaluator.tools",
    "evaluator.viewer",
)
"""The modules whose names users may import."""
INTERNAL = {
    "BackgroundService",
    "CacheKey",
    "CacheStats",
    "CallLimiter",
    "CallParking",
    "Header",
    "Journal",
    "McpHeader",
    "Needs",
    "Owner",
    "PreparedRequest",
    "Profiles",
    "ProviderBatches",
    "Reason",
    "Resumption",
    "RunOptions",
    "Scrub",
    "Services",
    "Step",
    "Summary",
    "TemplateLike",
    "ShotPool",
    "XDisplay",
    "Origin",
    "_Templates",
}
"""Types of members of public classes that only our own packages use."""


def exported(module: ModuleType) -> dict[str, Any]:
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and _is_own(value, module)
        ]
    return {name: getattr(module, name) for name in names}


def _is_own(value: Any, module: ModuleType) -> bool:
    # A package also exports what its own modules define.
    home = getattr(value, "__module__", module.__name__) or ""
    return home == module.__name__ or (
        hasattr(module, "__path__") and home.startswith(f"{module.__name__}.")
    )


def unexported(names: tuple[str, ...] = MODULES) -> set[str]:
    """`public name: type` for each type of ours in a public signature that no public module exports."""
    public = [value for name in names for value in exported(import_module(name)).values()]
    found: set[str] = set()
    for value in public:
        module = getattr(value, "__module__", "") or ""
        if not module.startswith("evaluator") or not isinstance(value, (type, FunctionType)):
            continue
        for name in _annotated_names(module, value.__qualname__):
            kind = _resolve(module, name)
            if kind is not None and not any(kind is each for each in public):
                found.add(f"{module}.{value.__qualname__}: {name}")
    return found


def _annotated_names(module: str, qualname: str) -> Iterator[str]:
    for node in ast.walk(_tree(module)):
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and node.name == qualname
        ):
            for member in [node] if not isinstance(node, ast.ClassDef) else node.body:
                for annotation in _annotations(member):
                    yield from _names_in(annotation)


def _names_in(annotation: ast.AST) -> Iterator[str]:
    """The names of types; the marks of `Annotated` are none."""
    if isinstance(annotation, ast.Name):
        yield annotation.id
    elif (
        isinstance(annotation, ast.Subscript)
        and isinstance(annotation.value, ast.Name)
        and annotation.value.id == "Annotated"
        and isinstance(annotation.slice, ast.Tuple)
    ):
        yield from _names_in(annotation.slice.elts[0])
    else:
        for child in ast.iter_child_nodes(annotation):
            yield from _names_in(child)


def _annotations(node: ast.AST) -> Iterator[ast.AST]:
    if (
        isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and not node.target.id.startswith("_")
    ):
        yield node.annotation
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if node.name.startswith("_") and node.name != "__init__":
            return
        arguments = node.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if each.annotation is not None:
                yield each.annotation
        if node.returns is not None:
            yield node.returns


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(import_module(module)))


@cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _resolve(module: str, name: str) -> Any:
    """The class of ours that `name` means in `module`; None for anything else."""
    home, original = _imports(module).get(name, (module, name))
    if not home.startswith("evaluator"):
        return None
    found = getattr(import_module(home), original, None)
    return found if isinstance(found, type) and found.__module__.startswith("evaluator") else None
