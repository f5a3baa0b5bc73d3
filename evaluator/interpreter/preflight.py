"""What a library needs of its surroundings, checked before a token is spent: tools and handler profiles."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from evaluator.errors import Diagnostic
from evaluator.interpreter.subtasks import SUBTASK
from evaluator.library import TemplateLibrary
from evaluator.library.near import did_you_mean
from evaluator.nodes import Node, Task, TopLevel, children


def check_surroundings(library: TemplateLibrary, tools: Collection[str], profiles: Collection[str]) -> list[Diagnostic]:
    """An error for each tool and each handler profile that a template names and nobody has."""
    known = {*tools, SUBTASK, *library.templates}
    found: list[Diagnostic] = []
    for template in library.templates.values():
        for task in _tasks(template.node):
            for tool in task.tools:
                if tool not in known:
                    message = f"no tool and no template is called {tool!r}"
                    hint = did_you_mean(tool, sorted(known))
                    found.append(Diagnostic("error", "unknown-tool", message, task.span, hint))
            ref = None if task.handler is None else task.handler.ref
            if task.handler is not None and ref is not None and ref not in profiles:
                message = f"no handler profile is called {ref!r}"
                hint = did_you_mean(ref, sorted(profiles))
                found.append(Diagnostic("error", "unknown-handler", message, task.handler.span, hint))
    return list(dict.fromkeys(found))


def _tasks(node: TopLevel | Node) -> Iterator[Task]:
    if isinstance(node, Task):
        yield node
    for child in children(node):
        yield from _tasks(child)
