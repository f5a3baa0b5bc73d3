"""Watches folders of templates: what changed since the last look, what `lint` finds there, and
whether the examples of the changed templates still work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from evaluator.authoring.portraits import (
    Profiles,
    offline_evaluator,
    prompts_of,
    runs_programs,
    sample_inputs,
)
from evaluator.errors import Diagnostic, UsageError
from evaluator.errors.results import TaskError
from evaluator.interpreter.evaluator import Evaluator
from evaluator.interpreter.linting import Linter
from evaluator.lazy_dataclass import dataclass
from evaluator.library import TemplateLibrary
from evaluator.library.files import Root, Stamp, scan, stamp_of
from evaluator.nodes import Function
from evaluator.output import parse_output


@dataclass(frozen=True, slots=True)
class Look:
    """What is new: the templates that changed or depend on a change, and the findings in their
    files, in the files that changed, and wherever they are others than before.
    """

    names: tuple[str, ...]
    findings: tuple[Diagnostic, ...]


class Watch:
    """The templates below some folders or files, as they were at the last look."""

    def __init__(self, paths: Sequence[Path], profiles: Profiles) -> None:
        self.library = TemplateLibrary.load(*paths)
        self._roots = [Root.of(path) for path in paths]
        self._linter = Linter(profiles)
        self._stamps = self._now()
        self._findings = self._linter.lint(self.library)

    def __len__(self) -> int:
        """The number of files that are watched."""
        return len(self._stamps)

    def _now(self) -> dict[str, Stamp | None]:
        """The stamps of the files of templates and of what they include, by path."""
        found: dict[str, Stamp | None] = {}
        for root in self._roots:
            for file in scan(root)[0]:
                path = os.path.join(root.folder, file.relative)
                found[path] = stamp_of(root, file.relative)
            if root.only is None:
                # Partials begin with `_` and are not scanned; those that were read are known.
                for name in self.library.partials:
                    path = os.path.realpath(name)
                    if path.startswith(os.path.join(root.folder, "")):
                        found[path] = stamp_of(root, os.path.relpath(path, root.folder))
        return found

    def look(self) -> Look | None:
        """What changed since the last look; None where nothing has."""
        now = self._now()
        changed = {path for path in now | self._stamps if now.get(path) != self._stamps.get(path)}
        if not changed:
            return None
        self._stamps = now
        names: set[str] = set()
        for path in sorted(changed):
            names |= self.library.edit(path, None)
        affected = [
            name
            for name in self.library
            if name in names or not names.isdisjoint(self.library.called_by(name))
        ]
        found = self._linter.lint(self.library)
        files = {os.path.realpath(self.library.templates[name].file or "") for name in affected}
        files |= changed
        findings = [
            diagnostic
            for file, diagnostics in found.items()
            if os.path.realpath(file or "") in files or diagnostics != self._findings.get(file)
            for diagnostic in diagnostics
        ]
        self._findings = found
        return Look(tuple(affected), tuple(findings))


def try_template(
    library: TemplateLibrary, profiles: Profiles, name: str, evaluator: Evaluator | None = None
) -> Iterator[str]:
    """Lines that say whether a template can be rendered, and what its examples give.

    The examples run with `evaluator`, by default with the simulated model; a template that runs
    programs or tools is only rendered.
    """
    node = library.get(name).node
    if isinstance(node, Function):
        return
    failed = [each for each in prompts_of(library, profiles, name) if each.error is not None]
    for prompts in failed:
        yield f"{name}: {prompts.title} cannot be rendered: {prompts.error}"
    if failed or not node.examples:
        if not failed:
            yield f"{name}: rendered; it has no examples"
        return
    if runs_programs(library, node):
        yield f"{name}: rendered; its examples do not run, because it runs programs or tools"
        return
    evaluator = evaluator or offline_evaluator(library, profiles)
    right = 0
    for number, example in enumerate(node.examples):
        try:
            outcome = evaluator.evaluate_sync(name, sample_inputs(node, number))
        except UsageError as error:
            yield f"{name}: example {number + 1}: {error}"
            continue
        if isinstance(outcome, TaskError):
            yield f"{name}: example {number + 1}: error: {outcome}"
            continue
        kind = "text" if node.output is None else node.output.type
        expected = parse_output(example.output, kind).value if kind != "text" else None
        is_right = outcome.content.strip() == example.output.strip() or (
            expected is not None and outcome.parsed_content == expected
        )
        right += is_right
        if not is_right:
            yield f"{name}: example {number + 1}: the answer differs from the example's output"
    yield f"{name}: {right} of {len(node.examples)} examples as expected"
