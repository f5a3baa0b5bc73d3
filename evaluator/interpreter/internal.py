"""The templates that the Evaluator itself uses: to extract inputs, to decompose a task, to compile
words to a task.

A template of the same name in the library comes first, so that a project can change the prompt.
"""

from __future__ import annotations

from functools import cache

from evaluator.errors import ConfigurationError
from evaluator.files.shipped import shipped
from evaluator.interpreter.frame import Services
from evaluator.library import TemplateLibrary
from evaluator.nodes import Atomic

_FILES = {
    "extract_inputs": "extract/extract_inputs.xml",
    "decompose": "plan/decompose.xml",
    "compile_task": "plan/compile_task.xml",
}
INTERNAL = frozenset(_FILES)
"""The names of these templates."""


def internal_template(services: Services, name: str) -> Atomic:
    """The template `name` of the library if it has an atomic one, else the shipped one.

    Raises: TemplateError, if the library's own has errors.
    """
    has_one = name in services.library or name in services.library.broken
    if has_one and isinstance(node := services.library.get(name).node, Atomic):
        return node
    return _shipped(name)


@cache
def _shipped(name: str) -> Atomic:
    node = TemplateLibrary.load(shipped("templates") / _FILES[name], shipped=False).get(name).node
    if not isinstance(node, Atomic):
        raise ConfigurationError(
            f"the shipped template {name!r} is not atomic; reinstall evaluator"
        )
    return node
