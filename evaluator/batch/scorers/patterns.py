"""`regex`: a pattern in the text, in bounded time.

A pattern may come from a row, so it is data: no pattern, and no text, may hold up the batch. Python's `re` cannot be
stopped, hence the `regex` library, whose syntax includes `re`'s: it takes a time limit. A search gets 10 ms on the
event loop; what takes longer begins again in a thread, without the interpreter's lock, with one second. Past that the
score is an error, as it is for a pattern that the library would take too long, or too much memory, to compile: one of
more than 1,000 characters, or more than 10,000 with its repeats written out.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import NO_TARGET, Scored, yes_or_no
from evaluator.batch.scorers.reading import OfResult, shown, targets
from evaluator.errors import UsageError

MAX_PATTERN_CHARS = 1_000
MAX_EXPANDED = 10_000
INLINE_S = 0.01
TIMEOUT_S = 1.0
# Escaped characters and whole classes count as one; of a repeat, the numbers matter.
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d*),?(\d*)\}|[()]|.", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regex(OfResult):
    """`pattern` is found in the text; without one, the target is the pattern, or several of which one is enough.
    `full`: it has to match the whole text, trimmed. With `group` (a number or name) what the group caught has
    to be the target."""

    type: ClassVar[str] = "regex"
    pattern: str | None = None
    group: int | str | None = None
    ignore_case: bool = False
    full: bool = False

    def check(self) -> None:
        if self.pattern is None:
            if self.group is not None:
                raise UsageError("regex: group needs a pattern, since what it catches is held against the target")
            return
        compiled = compile_pattern(self.pattern, self.ignore_case)
        if isinstance(self.group, int) and not 0 <= self.group <= compiled.groups:
            raise UsageError(f"regex: the pattern has {compiled.groups} groups, not a group {self.group}")
        if isinstance(self.group, str) and self.group not in compiled.groupindex:
            names = ", ".join(compiled.groupindex) or "none"
            raise UsageError(f"regex: the pattern has no group {self.group!r} (named: {names})")

    async def score(self, scored: Scored) -> Score:
        text = self.text(scored)
        wanted = targets(scored) if self.pattern is None or self.group is not None else []
        patterns = wanted if self.pattern is None else [self.pattern]
        if not patterns or (self.group is not None and not wanted):
            return NO_TARGET
        for pattern in patterns:
            match = await self._search(compile_pattern(pattern, self.ignore_case), text)
            if match is None:
                continue
            caught = match[0 if self.group is None else self.group]
            if self.group is None:
                return yes_or_no(True, caught)
            return self._compare(caught, wanted)
        return yes_or_no(False, explanation=f"no match of {' or '.join(map(shown, patterns[:3]))}")

    def _compare(self, caught: str | None, wanted: list[str]) -> Score:
        if caught is None:
            return yes_or_no(False, explanation=f"group {self.group} took no part in the match")
        fold = str.casefold if self.ignore_case else str
        if fold(caught.strip()) in {fold(target.strip()) for target in wanted}:
            return yes_or_no(True, caught)
        return yes_or_no(False, caught, f"expected {' or '.join(map(shown, wanted[:3]))}, caught {shown(caught)}")

    async def _search(self, compiled: Any, text: str) -> Any:
        find = compiled.fullmatch if self.full else compiled.search
        text = text.strip() if self.full else text
        try:
            return find(text, timeout=INLINE_S)
        except TimeoutError:
            try:
                return await asyncio.to_thread(find, text, timeout=TIMEOUT_S, concurrent=True)
            except TimeoutError as error:
                raise UsageError(
                    f"the pattern {shown(compiled.pattern)} took more than {TIMEOUT_S:g} s on {len(text)} characters; "
                    "avoid repeats within repeats"
                ) from error


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str, ignore_case: bool = False) -> Any:
    """The compiled pattern. Raises: UsageError, for one that is none or is too large."""
    import regex

    if len(pattern) > MAX_PATTERN_CHARS:
        raise UsageError(f"a pattern has {len(pattern)} characters, at most {MAX_PATTERN_CHARS} are taken")
    if expanded_size(pattern) > MAX_EXPANDED:
        raise UsageError(
            f"the pattern {shown(pattern)} has more than {MAX_EXPANDED} parts with its repeats written out"
        )
    try:
        return regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except (regex.error, RecursionError) as error:
        raise UsageError(f"the pattern {shown(pattern)} is none: {error}") from error


def expanded_size(pattern: str) -> int:
    """How many single parts a pattern has where each `{n,m}` is written out; an upper bound for valid ones."""
    sums, last = [0], [0]
    for piece in _PIECE.finditer(pattern):
        token = piece[0]
        if token == "(":
            sums.append(0)
            last.append(0)
        elif token == ")" and len(sums) > 1:
            size = sums.pop() + 1
            last.pop()
            sums[-1] += size
            last[-1] = size
        elif token[0] == "{" and (piece[1] or piece[2]):
            times = max(int(piece[1] or 0), int(piece[2] or 0))
            sums[-1] += last[-1] * max(0, times - 1)
            last[-1] *= max(1, times)
        elif token not in "*+?":
            sums[-1] += 1
            last[-1] = 1
    return sum(sums)
