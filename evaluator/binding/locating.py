"""Faults at offsets: whatever goes wrong in a closure, said in an author's words, at its place."""

from __future__ import annotations

from typing import Any

from jinja2 import nodes

from evaluator.binding.bounds import Run
from evaluator.binding.operations import FOREIGN, text_of
from evaluator.library.syntax import Fault, free_path


def located(offset: int, what: str, error: BaseException) -> Fault:
    """What Python said, as a Fault at an offset."""
    if isinstance(error, RecursionError):
        return Fault("nested too deeply", offset, "too-deep", True)
    if isinstance(error, MemoryError):
        return Fault("takes too much memory", offset, "too-large", True)
    if isinstance(error, ZeroDivisionError):
        return Fault("division by zero", offset, "division-by-zero")
    if isinstance(error, OverflowError):
        return Fault("the number is too large", offset, "too-large", True)
    detail = str(error).replace("<lambda>()", "it")
    return Fault(f"{what}: {detail}", offset, "wrong-type")


def placed(fault: Fault, offset: int) -> Fault:
    if fault.offset is None:
        fault.offset = offset
    return fault


def written(run: Run, value: Any, what: str, offset: int) -> str:
    """`text_of` with its errors located."""
    try:
        return text_of(run, value, what)
    except Fault as fault:
        raise placed(fault, offset) from None
    except FOREIGN as error:
        raise located(offset, f"{what} cannot be written", error) from error


def label(node: nodes.Node) -> str:
    """How messages name an expression: its path where it has one."""
    base, path = free_path(node)
    if not isinstance(base, nodes.Name):
        return "the value"
    shown = "".join(f".{part}" if isinstance(part, str) and part.isidentifier() else f"[{part!r}]" for part in path)
    return f"'{base.name}{shown}'"
