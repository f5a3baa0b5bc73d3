"""Checks of the arguments of an Evaluator and of its methods."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from evaluator.errors import ConfigurationError, UsageError
from evaluator.errors.messages import LOGGER, type_of, visible
from evaluator.files.locations import given_path
from evaluator.handler.config import HandlerConfig
from evaluator.interpreter.frame import Shots
from evaluator.language.scopes import plain
from evaluator.models.backend import Backend
from evaluator.processes.sandboxes import Sandbox
from evaluator.tools import Tool

if TYPE_CHECKING:
    from evaluator.models.cache import ResponseCache


def _has(*methods: str) -> Callable[[object], bool]:
    return lambda value: all(callable(getattr(value, method, None)) for method in methods)


_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "handler": (lambda value: isinstance(value, (str, HandlerConfig)), "a profile or its name"),
    "model": (lambda value: isinstance(value, str), "a model's id as text"),
    "model_roles": (lambda value: isinstance(value, Mapping), "a mapping of roles to models"),
    "backend": (
        lambda value: isinstance(value, Backend),
        "an object with name, complete and aclose",
    ),
    "memory": (_has("get_relevant_context_for"), "a Memory"),
    "asker": (_has("ask"), "an object with ask, such as CallbackAsker"),
    "cache": (
        lambda value: isinstance(value, (str, Path)) or _has("close")(value),
        "a file or a ResponseCache",
    ),
    "profiles": (lambda value: isinstance(value, Mapping), "a mapping of names to profiles"),
    "sandbox": (
        lambda value: isinstance(value, (str, Sandbox)),
        "a kind of sandbox, such as 'bubblewrap'",
    ),
    "rerank": (lambda value: isinstance(value, bool), "True or False"),
    "trust": (lambda value: isinstance(value, bool), "True or False"),
}


def check_arguments(arguments: Mapping[str, object]) -> None:
    """Raises: UsageError, for an argument of the wrong Python type."""
    for name, (fits, expected) in _ARGUMENTS.items():
        if arguments[name] is not None and not fits(arguments[name]):
            raise UsageError(f"{name} is {type_of(arguments[name])}, expected {expected}")
    max_depth = arguments["max_depth"]
    if not isinstance(max_depth, int) or max_depth < 0:
        raise UsageError(f"max_depth is {max_depth!r}, expected an integer, 0 or more")


def log_notice(line: str) -> None:
    """Logs a line for the user as a warning."""
    LOGGER.warning("%s", visible(line))


def check_flag(name: str, value: object) -> None:
    """Raises: UsageError, for anything but True and False."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}, expected True or False")


def _is_shot(value: object) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    return isinstance(value[0], Mapping)


def plain_shots(shots: Shots) -> Shots:
    """Few-shot examples as plain data.

    Raises: UsageError, for anything but pairs of inputs and answer.
    """
    for shot in shots:
        if not _is_shot(shot):
            raise UsageError(f"shots has {shot!r:.60}, expected pairs of inputs and answer")
    return tuple(
        (cast("dict[str, Any]", plain(dict(inputs))), str(answer)) for inputs, answer in shots
    )


def check_tools(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """The tools as a tuple. Raises: UsageError, for anything but tools."""
    if not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"tools is {type_of(tools)}, expected a list of tools")
    tools = tuple(tools)
    for tool in tools:
        if not isinstance(tool, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"tools has {tool!r}, expected a Tool: decorate the function with @tool"
            )
    return tools


def root_folders(roots: Iterable[str | Path]) -> list[Path]:
    """The roots as paths.

    Raises: UsageError, for one path in place of several; ConfigurationError, where there is no such
    folder.
    """
    if isinstance(roots, (str, Path)):
        raise UsageError(f"roots is one path, expected a list of folders: [{str(roots)!r}]")
    if not isinstance(roots, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"roots is {type_of(roots)}, expected a list of folders")
    folders = [given_path(root, "a root") for root in roots]
    for folder in folders:
        if not os.path.isdir(folder):
            raise ConfigurationError(
                f"the root {str(folder)!r} is not a folder; make it, or name another one"
            )
    return folders


def open_cache(
    cache: ResponseCache | str | Path | None, notice: Callable[[str], None]
) -> ResponseCache | None:
    """The cache itself, or the one in that file."""
    if not isinstance(cache, (str, Path)):
        return cache
    from evaluator.models.cache import ResponseCache

    return ResponseCache(cache, notice=notice)
