"""Tests of templates, beside them: their examples, the cases of `NAME.tests.toml`, and golden
prompts.

    [[cases]]
    name = "france"
    inputs = { country = "France" }
    prompt = ["France"]               # texts that the prompts contain
    without = ["None"]                # and texts that they do not
    target = "Paris"
    scorers = ["includes"]            # as in a batch

Prompts are rendered without a call. `NAME.prompts.txt` holds the rendered prompts of all cases, if
it was written once; a prompt that differs fails its case until the file is updated.

Answers come from the simulated model, or from a real one with a cache of responses: only calls
whose prompt, settings or tools have changed since they were answered are made again.

Watches folders of templates: what changed since the last look, and what `lint` finds there.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator.authoring.portraits import (
    Profiles,
    offline_evaluator,
    prompts_of,
    runs_programs,
    sample_inputs,
)
from evaluator.batch.arguments import Arguments
from evaluator.batch.records import Sample
from evaluator.batch.scorers import Scorer, ScorerInput, make_scorers, run_scores
from evaluator.batch.scorers.function_scorer import without_code
from evaluator.batch.work import GRADER
from evaluator.errors import Diagnostic, UsageError
from evaluator.errors.messages import amount, json_problem
from evaluator.errors.results import Outcome, TaskResult
from evaluator.fields import Checked, Name, Names
from evaluator.files.atomic import write_atomic
from evaluator.files.open_below import read_named
from evaluator.interpreter.evaluator import Evaluator
from evaluator.interpreter.linting import Linter
from evaluator.interpreter.sync import run_sync
from evaluator.lazy_dataclass import frozen
from evaluator.library import TemplateLibrary
from evaluator.library.files import Root, Stamp, scan, stamp_of
from evaluator.nodes import Function, Task
from evaluator.output import parse_output

SUFFIX = ".tests.toml"
GOLDEN = ".prompts.txt"
_MAX_BYTES = 16_000_000
_SHOWN_LINES = 12


@frozen
class Case(Checked, error=UsageError):
    """A case of a template. `scorers` judge the answer; without any, only prompts are tested."""

    name: Name
    inputs: Mapping[str, Any]
    target: Any = None
    prompt: Names = ()
    without: Names = ()
    scorers: tuple[Any, ...] = ()


@frozen
class CaseResult:
    """A case that was tested. `problems` is empty if it passed; `calls` were made, and `cached`
    calls answered by the cache. `is_answered`: an answer was tested, not only prompts.
    """

    template: str
    case: str
    problems: tuple[str, ...] = ()
    calls: int = 0
    cached: int = 0
    is_answered: bool = False


def read_cases(path: Path) -> list[Case]:
    """The cases in a file. Raises: UsageError, for an invalid one, or a scorer that names code."""
    try:
        table = tomllib.loads(read_named(path, _MAX_BYTES).decode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: invalid TOML: {json_problem(error)}") from error
    given = table.pop("cases", None)
    if table or not isinstance(given, list):
        raise UsageError(f"{path}: expected [[cases]], and nothing else")
    cases: list[Case] = []
    for number, one in enumerate(given, 1):
        try:
            if not isinstance(one, Mapping):
                raise UsageError("expected a table")
            case = Case.from_table(one)
            with without_code() as code:
                make_scorers(case.scorers)
            if code.functions or code.schemas:
                raise UsageError("scorers here name no code; test those with pytest")
        except UsageError as error:
            raise UsageError(f"{path}: case {number}: {error}") from error
        if any(case.name == other.name for other in cases):
            raise UsageError(f"{path}: case {number}: another case has the name {case.name!r}")
        cases.append(case)
    return cases


class TemplateTests:
    """The tests of the templates of a library. `evaluator` answers; by default the simulated model,
    for templates that run no programs and tools.
    """

    def __init__(
        self, library: TemplateLibrary, profiles: Profiles, evaluator: Evaluator | None = None
    ) -> None:
        self._library = library
        self._profiles = profiles
        self._evaluator = evaluator or offline_evaluator(library, profiles)

    def run(self, name: str, *, update: bool = False) -> Iterator[CaseResult]:
        """The results of every case of a template. `update` writes its golden prompts.

        Raises: UsageError, for an invalid file of cases.
        """
        template = self._library.get(name)
        node = template.node
        if isinstance(node, Function):
            return
        if template.file is None:
            folder = None
        else:
            folder = Path(template.file).parent
        golden: dict[str, str] | None = None
        if folder is not None and not update and (folder / f"{name}{GOLDEN}").is_file():
            golden = _read_golden(folder / f"{name}{GOLDEN}")
        prompts: dict[str, str] = {}
        can_run = not runs_programs(self._library, node)
        for case, scorers, expected in self._cases(name, node, folder):
            (found,) = prompts_of(self._library, self._profiles, name, case.inputs)
            text = "\n".join(found.requests)
            prompts[case.name] = text
            if found.error is None:
                problems = []
            else:
                problems = [f"cannot be rendered: {found.error}"]
            problems += [f"the prompt lacks {each!r}" for each in case.prompt if each not in text]
            problems += [f"the prompt has {each!r}" for each in case.without if each in text]
            if golden is not None and golden.get(case.name, "") != text:
                problems.append(_difference(golden.get(case.name, ""), text))
            result = CaseResult(name, case.name, tuple(problems))
            if found.error is None and can_run and (scorers or expected is not None):
                result = self._answered(result, node, case, scorers=scorers, expected=expected)
            yield result
        if update and folder is not None and prompts:
            write_atomic(folder / f"{name}{GOLDEN}", _golden_text(prompts).encode())

    def _cases(
        self, name: str, node: Task, folder: Path | None
    ) -> Iterator[tuple[Case, Sequence[Scorer], str | None]]:
        """Every case with its scorers, and the expected output of an example."""
        for number, example in enumerate(node.examples):
            values = sample_inputs(node, number)
            yield Case(f"example {number + 1}", values), (), example.output
        cases: list[Case] = []
        if folder is not None and (folder / f"{name}{SUFFIX}").is_file():
            cases = read_cases(folder / f"{name}{SUFFIX}")
        for case in cases:
            yield case, make_scorers(case.scorers), None
        if not cases and not node.examples:
            yield Case("sample inputs", sample_inputs(node)), (), None

    def _answered(
        self,
        result: CaseResult,
        node: Task,
        case: Case,
        *,
        scorers: Sequence[Scorer],
        expected: str | None,
    ) -> CaseResult:
        """`result` with what its answer shows."""
        outcome, problems = run_sync(self._judged(result.template, node, case, scorers, expected))
        cached = outcome.notes.get("cached_calls", 0)
        return replace(
            result,
            problems=(*result.problems, *problems),
            calls=max(0, (outcome.usage.turns or 0) - cached),
            cached=cached,
            is_answered=True,
        )

    async def _judged(
        self,
        name: str,
        node: Task,
        case: Case,
        scorers: Sequence[Scorer],
        expected: str | None,
    ) -> tuple[Outcome, list[str]]:
        evaluator = self._evaluator
        outcome = await evaluator.prepare(name).evaluate(
            dict(case.inputs), target=Arguments(node).target_text(case.target)
        )
        if not isinstance(outcome, TaskResult):
            return outcome, [f"error: {outcome}"]
        if expected is not None:
            if node.output is None:
                kind = "text"
            else:
                kind = node.output.type
            if kind == "text":
                value = None
            else:
                value = parse_output(expected, kind).value
            is_right = outcome.content.strip() == expected.strip() or (
                value is not None and outcome.parsed_content == value
            )
            return outcome, [] if is_right else ["the answer differs from the example's output"]

        async def ask(template: str, inputs: Mapping[str, Any], **options: Any) -> Outcome:
            model = options.get("model")
            return await evaluator.evaluate(
                template,
                inputs,
                model_roles=None if model is None else {GRADER: model},
                epoch=options.get("repeat", 1),
            )

        problems: list[str] = []
        scored = ScorerInput(
            Sample(case.name, case.inputs, case.target),
            outcome,
            recording=lambda: None,
            evaluate=ask,
        )
        for scorer in scorers:
            for scorer_name, score in (await run_scores(scorer, scored)).items():
                if score.error is not None:
                    problems.append(f"{scorer_name}: error: {score.error}")
                elif score.passed is False:
                    problems.append(f"{scorer_name}: {score.explanation or 'failed'}")
                elif score.value is None:
                    problems.append(f"{scorer_name}: did not decide: {score.explanation}")
        return outcome, problems


def report(results: Sequence[CaseResult]) -> Iterator[str]:
    """Lines about the cases of one template: each problem, then how many passed."""
    for each in results:
        for problem in each.problems:
            yield f"{each.template}: {each.case}: {problem}"
    if not results:
        return
    passed = sum(not each.problems for each in results)
    line = f"{results[0].template}: {passed} of {amount(len(results), 'case')} as expected"
    if not any(each.is_answered for each in results):
        line += ", of prompts only"
    yield line


def _read_golden(path: Path) -> dict[str, str]:
    """The golden prompts by the names of their cases. Raises: UsageError, if unreadable."""
    try:
        text = read_named(path, _MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read; write it again with --update") from error
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines(keepends=True):
        if line.startswith("##### "):
            name = line[6:].strip()
            found[name] = ""
        else:
            found[name] = found.get(name, "") + line[line.startswith("\\") :]
    return {name: prompt.removesuffix("\n") for name, prompt in found.items()}


def _golden_text(prompts: Mapping[str, str]) -> str:
    """The prompts below a line with the name of their case; a line of a prompt that looks like one
    begins with a backslash.
    """
    parts: list[str] = []
    for name, text in prompts.items():
        parts.append(f"##### {name}\n")
        parts += [
            f"\\{line}" if line.startswith(("##### ", "\\")) else line
            for line in f"{text}\n".splitlines(keepends=True)
        ]
    return "".join(parts)


def _difference(before: str, after: str) -> str:
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1))
    shown = [f"  {line}" for line in lines[2 : 2 + _SHOWN_LINES]]
    more = len(lines) - 2 - _SHOWN_LINES
    if more > 0:
        shown.append(f"  and {amount(more, 'more line')}")
    return "\n".join(["the prompt has changed; accept it with --update:", *shown])


@frozen
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
