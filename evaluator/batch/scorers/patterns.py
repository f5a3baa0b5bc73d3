"""`regex`: a pattern in the text, in bounded time.

A pattern may come from a row, so it is data: no pattern, and no text, may hold up the batch. Python's `re` cannot be
stopped, hence the `regex` library, whose syntax includes `re`'s: it takes a time limit. A search gets 10 ms on the
event loop; what takes longer begins again in a thread, without the interpreter's lock, with one second. Past that the
score is an error, as it is for a pattern that the library would take too long, or too much memory, to compile: one of
more than 1,000 characters, or more than 10,000 with its repeats written out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import NO_TARGET, Scored, yes_or_no
from evaluator.batch.scorers.reading import OfResult, shown, targets
from evaluator.errors import UsageError
from evaluator.output import patterns

MAX_PATTERN_CHARS = 1_000
INLINE_S = 0.01
TIMEOUT_S = 1.0


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
    if len(pattern) > MAX_PATTERN_CHARS:
        raise UsageError(f"a pattern has {len(pattern)} characters, at most {MAX_PATTERN_CHARS} are taken")
    try:
        return patterns.compile_pattern(pattern, ignore_case)
    except patterns.BadPattern as error:
        raise UsageError(f"the pattern {shown(pattern)} {error}") from error
