"""`math`: the answer is mathematically equal to the target, as the references of the MATH benchmark
decide it.

Equal after normalisation, as in Hendrycks et al.'s script, or else equal for math-verify (SymPy). A
comparison runs in a child process and has 5 s of processor time; one that needs more counts as "not
equal", as in the references. Comparisons that wait at the same time share a process, because
importing SymPy takes a second.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from evaluator.batch.records import Score
from evaluator.batch.scorers.builtin_scorer import TargetScorer, as_list, expected_one_of, shown
from evaluator.batch.scorers.contract import binary_score
from evaluator.errors import EvaluatorError, MissingExtra, UsageError
from evaluator.lazy_dataclass import frozen
from evaluator.processes.scripts import ScriptResult, run_script

CPU_S = 5.0
_MOST_AT_ONCE = 64
_MAX_CHARS = 2_000
_STARTUP_S = 120.0
_WALL_S = 60.0
_CHILD = Path(__file__).with_name("math_child.py")

_FINAL = re.compile(
    r"(?:final\s+answer|\banswer)\b[*_`\s]{0,8}(?::"
    r"|\bis\b)[*_`\s]{0,8}(?:the\s+final\s+answer\s+is[:\s]*)?([^\n]+)",
    re.IGNORECASE,
)
_HOPE = re.compile(r"\.?\s*I hope it is correct.*", re.DOTALL)
_INLINE = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_COMMANDS = re.compile(
    r"\\(?:left|right|displaystyle|,|;|:|!|\s)(?![a-zA-Z])|\\(?:left|right|displaystyle)\b"
)
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox|textrm)\s?\{([^{}]*)\}")
_UNIT = re.compile(
    r"(?<=[\d}])\s*\\(?:text|mathrm|mbox|textrm)\s?\{\s*[a-zA-Z][^{}]*\}(?:\^\{?\d\}?)?\s*\Z"
)
_DEGREES = re.compile(r"\^\s?\{?\s?\\circ\s?\}?|°")
_SHORT_FRACTION = re.compile(r"\\frac\s?(\d|[a-zA-Z])\s?(\d|[a-zA-Z])")
_SLASH = re.compile(r"(-?)(\d+)/(\d+)")
_SHORT_ROOT = re.compile(r"\\sqrt\s?(\w)")
_NAME = re.compile(r"[a-zA-Z]\s*=\s*(?=[^=]+\Z)")
_BASE = re.compile(r"\A-?[\dA-F]+_\{?(\d+)\}?\Z")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,)(?=\d{3}(?!\d))")


class MathFailed(EvaluatorError):
    """The child process could not compare two expressions."""


@frozen(kw_only=True)
class MathScorer(TargetScorer):
    """The answer equals the target, or one of several, as a mathematical expression in LaTeX or
    plain text: fractions, roots, intervals, sets, matrices, units, degree signs, `\\text{…}`. The
    answer is the last `\\boxed{}`, else the text after the last `Answer:` or `the final answer is`,
    else the last formula, else the last line. Needs the extra `evaluator[math]`. Source: Hendrycks
    et al., "Measuring Mathematical Problem Solving With the MATH Dataset", 2021.
    """

    type: ClassVar[str] = "math"

    def check(self) -> None:
        if find_spec("math_verify") is None:
            raise MissingExtra("math-verify", "math")

    def check_target(self, target: Any) -> None:
        """As `BuiltinScorer.check_target`."""
        for each in as_list(target):
            if isinstance(each, str) and not 0 < len(normal(boxed(each) or each)) <= _MAX_CHARS:
                raise UsageError(
                    f"the target {shown(each)} is empty or longer than {_MAX_CHARS} characters"
                )

    async def compare(self, text: str, wanted: list[str]) -> Score:
        self.check_target(wanted)
        answer = final_answer(text)
        expected = [boxed(each) or each for each in wanted]
        if normal(answer) in {normal(each) for each in expected}:
            return binary_score(True, answer)
        why = f"{expected_one_of(map(shown, wanted))}, found {shown(answer)}"
        if not normal(answer) or len(answer) > _MAX_CHARS:
            return binary_score(False, answer, explanation=why)
        comparer = _COMPARERS.setdefault(asyncio.get_running_loop(), _Comparer())
        for each in expected:
            if _base(each) != _base(answer):  # math-verify ignores it
                continue
            is_equal = await comparer.compare(_formula(each), _formula(answer))
            if is_equal:
                return binary_score(True, answer)
            if is_equal is None:
                why = f"{why}; not shown to be equal in {CPU_S:g} s of processor time"
        return binary_score(False, answer, explanation=why)


def boxed(text: str) -> str | None:
    """The content of the last `\\boxed{}` or `\\fbox{}` with balanced braces."""
    for match in reversed(list(re.finditer(r"\\f?box(?:ed)?\s?\{", text))):
        depth = 1
        for at in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if depth == 0:
                return text[match.end() : at]
    return None


def final_answer(text: str) -> str:
    """The part of a text that states its answer."""
    if (found := boxed(text)) is not None:
        return found.strip()
    finals = _FINAL.findall(text)
    lines = [line for line in text.splitlines() if line.strip()]
    last = _HOPE.sub("", finals[-1] if finals else lines[-1] if lines else "")
    if formulas := _INLINE.findall(last if finals else text):
        formula = next(part for part in formulas[-1] if part)
        rest = _INLINE.sub("", last).strip(" .*_`")
        # "Answer: $3$ or $4$" and "Answer: $5$ cm": only the second is one formula.
        if not finals or len(formulas) == 1 or not rest:
            return formula.strip().rstrip(".")
    return last.strip().strip("*_`$ ").rstrip(".")


def normal(text: str) -> str:
    """An expression without what does not change its meaning: spaces, units, `\\left`, degree
    signs, `x =`.
    """
    text = text.strip().strip("$").strip().rstrip(".")
    text = re.sub(r"\\[dt]frac", r"\\frac", _COMMANDS.sub("", text.replace(r"\$", "")))
    text = _DEGREES.sub("", _UNIT.sub("", text))
    text = _TEXT.sub(r"\1", text).replace(r"\%", "").replace("%", "").replace("$", "")
    text = _THOUSANDS.sub("", text)
    if _NAME.match(text):
        text = _NAME.sub("", text, count=1)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text))
    text = "".join(text.split())
    if (slash := _SLASH.fullmatch(text)) is not None:
        text = rf"{slash[1]}\frac{{{slash[2]}}}{{{slash[3]}}}"
    text = f"0{text}" if text.startswith(".") else text
    if re.fullmatch(r"[a-zA-Z]{2,}", text):
        return text.lower()
    return text


def _base(text: str) -> str | None:
    """The base of a number such as `2516_8`."""
    match = _BASE.search(normal(text))
    if match is None:
        return None
    return match[1]


def _formula(text: str) -> str:
    """An expression for math-verify, without delimiters and without what it does not read."""
    return (
        _DEGREES.sub("", _UNIT.sub("", text.strip().strip("$").rstrip(".")))
        .replace("$", "")
        .replace("\n", " ")
    )


class _Comparer:
    """Compares pairs of expressions in child processes, one process at a time, with all pairs that
    wait.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[str, asyncio.Future[bool | None]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def compare(self, expected: str, found: str) -> bool | None:
        """Whether two expressions are equal; None if the time was not enough.

        Raises: MathFailed, if they could not be compared.
        """
        future: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((json.dumps([expected, found]), future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())
        return await future

    async def _work(self) -> None:
        while self._waiting:
            pairs = self._waiting[:_MOST_AT_ONCE]
            self._waiting = self._waiting[_MOST_AT_ONCE:]
            try:
                ended = await run_script(
                    [sys.executable, str(_CHILD), str(CPU_S)],
                    stdin="".join(f"{line}\n" for line, _ in pairs),
                    timeout_s=_STARTUP_S + _WALL_S * len(pairs),
                )
            except BaseException as error:
                for _, future in pairs:
                    _settle(
                        future,
                        error
                        if isinstance(error, Exception)
                        else MathFailed("the comparison was stopped"),
                    )
                raise
            self._waiting = _settle_all(pairs, ended) + self._waiting


def _settle_all(
    pairs: list[tuple[str, asyncio.Future[bool | None]]], ended: ScriptResult
) -> list[tuple[str, asyncio.Future[bool | None]]]:
    """Settles the pairs that the process has compared, and the one that ended it; returns the
    others.
    """
    ready, *results = [json.loads(line) for line in ended.stdout.splitlines()] or [None]
    for (_, future), result in zip(pairs, results, strict=False):
        _settle(
            future,
            result if isinstance(result, bool) else MathFailed(f"math-verify failed: {result}"),
        )
    rest = pairs[len(results) :]
    if not rest:
        return []
    if ready is None:
        for _, future in rest:
            _settle(
                future, MathFailed(f"math-verify cannot be started: {ended.stderr.strip()[-500:]}")
            )
        return []
    if ended.signal == signal.SIGPROF:
        result = None
    else:
        why = ended.overrun or f"exit code {ended.exit_code}, signal {ended.signal}"
        if ended.timed_out:
            why = "it took too long"
        result = MathFailed(f"the comparison ended early ({why})")
    _settle(rest[0][1], result)
    return rest[1:]


def _settle(future: asyncio.Future[bool | None], result: bool | Exception | None) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


_COMPARERS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Comparer] = WeakKeyDictionary()
