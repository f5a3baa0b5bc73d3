"""Prompt caches of providers: which part of a prompt is the same in many calls, and whether keeping
it there pays.

A provider reads the beginning of a prompt at a lower price if an earlier call had the same one.
Most providers find it themselves. Anthropic caches what is marked, and bills it higher when it is
written. A call finds only what was written before it began: `PromptCaches` lets one call of a batch
write a prefix before the others are made. No mark and no wait changes what the model reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Any

from evaluator import clock
from evaluator.lazy_dataclass import frozen
from evaluator.models import prices
from evaluator.models.backend import CacheMark, Message, ModelRequest, ToolSpec, estimate_tokens

LIFETIME_S = 300.0
"""Providers keep an entry for about so long after its last use."""
MARK = {"cache_control": {"type": "ephemeral"}}
"""The field of a block that ends what is cached."""
_MIN_TOKENS = 1024
"""The shortest prefix that is kept where the price table does not say."""
_MAX_PREFIXES = 1000


@frozen
class CacheTerms:
    """What a model's provider asks for its cache, in US dollars for a token.

    `needs_marks`: only marked prompts are kept. `min_tokens` is the shortest prefix that is kept.
    `read_saves_usd` is the difference between a token that is not in the cache and one that is,
    `write_adds_usd` what is added where it is written.
    """

    needs_marks: bool
    min_tokens: int = _MIN_TOKENS
    read_saves_usd: float = 0.0
    write_adds_usd: float = 0.0

    def saved_usd(self, tokens: float, calls: float) -> float:
        """What `calls` with a common prefix of so many tokens save; the first one writes it."""
        if tokens < self.min_tokens:
            return 0.0
        return tokens * ((calls - 1) * self.read_saves_usd - self.write_adds_usd)


def needs_marks(model: str) -> bool:
    """Whether the provider of `model` caches only what is marked."""
    name = model.lower()
    return "claude" in name or "anthropic/" in name


def cache_terms(model: str) -> CacheTerms | None:
    """The terms of `model`; None unless the price table says that a second call with the same
    prefix costs less.
    """
    is_marked = needs_marks(model)
    found = prices.cache_prices(model)
    if found is None:
        return None
    terms = CacheTerms(
        is_marked,
        found.min_tokens or _MIN_TOKENS,
        read_saves_usd=found.uncached - found.read,
        write_adds_usd=found.written - found.uncached if is_marked else 0.0,
    )
    if terms.saved_usd(terms.min_tokens, 2) <= 0:
        return None
    return terms


# -- prefixes --------------------------------------------------------------------------------------


@frozen
class Prefix:
    """The beginning of a request that other calls have too: where it ends, about how many tokens it
    has, and a hash of it.
    """

    end: CacheMark
    tokens: int
    key: bytes


def prefix_of(messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Prefix | None:
    """The prefix of a conversation that begins with `messages`; None without one.

    A message that is shared in part is cut behind a line end, so that the model reads the same
    tokens.
    """
    end = None
    texts: list[str] = []
    for index, message in enumerate(messages):
        content = message.content
        characters = message.shared
        if characters < len(content):
            characters = content.rfind("\n", 0, characters) + 1
            if not content[characters:].strip():
                characters = 0
        if message.attachments or not content[:characters].strip():
            break
        end = CacheMark(index, characters)
        texts.append(f"{message.role}\n{content[:characters]}")
        if characters < len(content):
            break
    if end is None:
        return None
    texts += [tool.text() for tool in tools]
    digest = blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=16)
    return Prefix(end, sum(map(estimate_tokens, texts)), digest.digest())


# -- marks -----------------------------------------------------------------------------------------


def marked_places(request: ModelRequest) -> dict[int, list[int]]:
    """The places of the marks in each message, by the message's index."""
    places: dict[int, list[int]] = {}
    for mark in request.cache_marks:
        places.setdefault(mark.message, []).append(mark.characters)
    return places


def text_blocks(content: str, places: Collection[int]) -> list[dict[str, Any]]:
    """The blocks of a text, cut at the marked places; none for an empty one."""
    blocks: list[dict[str, Any]] = []
    start = 0
    for place in sorted({*places, len(content)}):
        if start < place:
            block: dict[str, Any] = {"type": "text", "text": content[start:place]}
            if place in places:
                block |= MARK
            blocks.append(block)
        start = place
    return blocks


# -- one call before the others --------------------------------------------------------------------


class CacheWrite:
    """A prefix in the provider's cache. `lock` is held by the call that writes it."""

    __slots__ = ("_used_at", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._used_at: float | None = None

    def is_warm(self) -> bool:
        return self._used_at is not None and clock.monotonic() - self._used_at < LIFETIME_S

    def use(self) -> None:
        self._used_at = clock.monotonic()

    def leave(self, *, is_written: bool) -> None:
        """Ends the call that was to write the prefix; if it did not, the next one is."""
        if is_written:
            self.use()
        self.lock.release()


class PromptCaches:
    """Lets the first call with a prefix end before other calls with it begin, and again after the
    provider has dropped it.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str, bytes], CacheWrite] = {}

    async def enter(self, prefix: Prefix, model: str, endpoint: str = "") -> CacheWrite | None:
        """Returns at once where the prefix is in the cache of `model` at `endpoint`: None. Else
        waits for the call that writes it; if that is the caller's, the caller has to `leave` what
        is returned.
        """
        key = (model, endpoint, prefix.key)
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= _MAX_PREFIXES:
                self._entries.clear()  # who waits for one has it
            entry = self._entries[key] = CacheWrite()
        if not entry.is_warm():
            await entry.lock.acquire()
            if not entry.is_warm():
                return entry
            entry.lock.release()
        entry.use()
        return None
