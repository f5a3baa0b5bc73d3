"""The logarithms of the probabilities of tokens that a server gives: of an answer (chat
completions), or of a given text (completions with `echo`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import chain, repeat
from typing import Any, cast

from evaluator.lazy_dataclass import frozen

_DIGITS = 7
_NO_CHANCE = -9999.0
"""A logarithm for a probability of 0, which JSON has no number for."""


@frozen
class TokenLogprob:
    """A token of a text, and the natural logarithm of its probability after the tokens before it;
    None for the first token of a given text. `top` has the most likely tokens at this place.
    """

    token: str
    logprob: float | None
    top: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def is_most_likely(self) -> bool:
        """Whether no other token at this place is known to be more likely."""
        return self.logprob is None or all(
            other <= self.logprob for token, other in self.top.items() if token != self.token
        )


def to_rows(tokens: Sequence[TokenLogprob]) -> list[list[Any]]:
    """The recorded form: `[token, logprob]` or `[token, logprob, top]` for each token."""
    rows: list[list[Any]] = []
    for each in tokens:
        row: list[Any] = [each.token, each.logprob]
        if each.top:
            row.append(dict(each.top))
        rows.append(row)
    return rows


def from_rows(rows: Any) -> tuple[TokenLogprob, ...]:
    """Reads what `to_rows` gave."""
    return tuple(TokenLogprob(row[0], row[1], *row[2:]) for row in rows or ())


def read_chat(logprobs: Any) -> tuple[TokenLogprob, ...]:
    """The tokens in `choices[0].logprobs` of a chat completion; empty where there are none."""
    if logprobs is None:
        return ()
    found: list[TokenLogprob] = []
    for entry in map(_mapping, _list(_mapping(logprobs).get("content"))):
        rows = map(_mapping, _list(entry.get("top_logprobs")))
        top = {str(row.get("token")): row.get("logprob") for row in rows}
        found.append(_token(entry.get("token"), entry.get("logprob"), top))
    return tuple(found)


def read_completion_tokens(logprobs: Any) -> tuple[TokenLogprob, ...]:
    """The tokens in `choices[0].logprobs` of a completion; empty where there are none."""
    found = _mapping(logprobs)
    tokens = found.get("tokens")
    values = found.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list):
        return ()
    # Servers may leave out what they do not know at the end.
    all_values = chain(_list(values), repeat(None))
    tops = chain(_list(found.get("top_logprobs")), repeat(None))
    return tuple(
        _token(token, value, _mapping(top))
        for token, value, top in zip(_list(tokens), all_values, tops, strict=False)
    )


def _token(token: Any, logprob: Any, top: Mapping[str, Any]) -> TokenLogprob:
    likely = {other: _number(value) for other, value in top.items()}
    known = {other: value for other, value in likely.items() if value is not None}
    return TokenLogprob(str(token), _number(logprob), known)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value):
        return _NO_CHANCE
    return round(float(value), _DIGITS)
