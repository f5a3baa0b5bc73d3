"""Templates that serve the Evaluator itself: filling inputs from words, decomposing a task, compiling words to one.

A library's own template of that name comes first, so that a project can change how it is asked.
"""

from __future__ import annotations

from functools import cache

from evaluator.interpreter.services import Services
from evaluator.library import Template, TemplateLibrary
from evaluator.nodes import Atomic
from evaluator.xml.resources import shipped

_FILES = {
    "extract_inputs": "extract/extract_inputs.xml",
    "decompose": "plan/decompose.xml",
    "compile_task": "plan/compile_task.xml",
}
INTERNAL = frozenset(_FILES)
"""Their names."""


def internal_template(services: Services, name: str) -> Atomic:
    """The atomic template `name`, the library's or the shipped one."""
    template = services.library.get(name) if name in services.library else _shipped(name)
    node = template.node
    return node if isinstance(node, Atomic) else _atomic(_shipped(name))


@cache
def _shipped(name: str) -> Template:
    return TemplateLibrary.load(shipped("templates") / _FILES[name], shipped=False).get(name)


def _atomic(template: Template) -> Atomic:
    assert isinstance(template.node, Atomic)
    return template.node
