"""Watches folders of templates: what changed since the last look, and what `lint` finds there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from evaluator.authoring.portraits import (
    Profiles,
)
from evaluator.errors import Diagnostic
from evaluator.interpreter.linting import Linter
from evaluator.lazy_dataclass import dataclass
from evaluator.library import TemplateLibrary
from evaluator.library.files import Root, Stamp, scan, stamp_of


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
